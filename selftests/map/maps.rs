// SPDX-License-Identifier: GPL-2.0

//! Maps for tests, and what tests do with them.

use stackmap_map::{Fallback, Id, Map, MapError, ReadSide, Seed, MAX_FRAMES};
use std::collections::HashMap;

pub(crate) const SEED: Seed = Seed::new([1, 2]);

pub(crate) fn map(bits: u32, contexts: usize) -> Map {
    Map::new(bits, contexts, SEED).expect("memory for a map")
}

/// Records a stack as one event of the context `index`; the pool does not grow.
pub(crate) fn get_id(map: &Map, index: usize, frames: &[u64]) -> Result<Id, Fallback> {
    let section = ReadSide::enter();
    // SAFETY: Each thread of these tests uses an index of its own, inside a read-side section.
    let guard = unsafe { map.enter(section.inside(), index) };
    guard.get_id(frames).map(|found| found.id)
}

/// Records a stack, growing the pool as the module does.
pub(crate) fn record(map: &Map, index: usize, frames: &[u64]) -> Result<Id, Fallback> {
    let result = get_id(map, index, frames);
    if map.wants_growth() {
        match map.grow() {
            Ok(()) | Err(MapError::Busy) => {}
            Err(error) => panic!("growth failed: {error:?}"),
        }
    }
    result
}

/// A stack that differs from those of other numbers only in its deepest frame.
pub(crate) fn stack(number: u64, depth: usize) -> Vec<u64> {
    let mut frames: Vec<u64> = (0..depth as u64)
        .map(|i| 0xffff_ffff_8100_0000 + i * 64)
        .collect();
    if let Some(last) = frames.last_mut() {
        *last += number;
    }
    frames
}

pub(crate) fn read(map: &Map, id: Id) -> Option<(Vec<u64>, u32)> {
    let mut buffer = [0; MAX_FRAMES];
    let stack = map.lookup(id, &mut buffer)?;
    assert_eq!(stack.id, id);
    Some((buffer[..stack.nr].to_vec(), stack.ref_count))
}

/// All stacks of the map by one export.
pub(crate) fn export(map: &Map) -> HashMap<Id, (Vec<u64>, u32)> {
    let snapshot = map.snapshot().expect("no reset runs");
    let mut buffer = [0; MAX_FRAMES];
    let mut from = 0;
    let mut all = HashMap::new();
    while let Some(stack) = map
        .next(&snapshot, from, &mut buffer)
        .expect("no reset runs")
    {
        from = stack.next();
        let old = all.insert(stack.id, (buffer[..stack.nr].to_vec(), stack.ref_count));
        assert_eq!(old, None, "an id was exported twice");
    }
    assert_eq!(map.count(&snapshot), Ok(all.len() as u32));
    all
}
