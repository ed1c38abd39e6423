// SPDX-License-Identifier: GPL-2.0

//! What the benches of the map record, and what its hash is compared with.

mod jhash;

pub use jhash::jhash;
use stackmap_map::{Fallback, Lookup, Map, ReadSide, Seed};

/// The depth of a stack where nothing else is said.
pub const DEPTH: usize = 16;

/// The `number`-th stack of `depth` frames. They differ where stacks of different callers do: in a
/// few frames in the middle.
pub fn stack(number: u64, depth: usize) -> Vec<u64> {
    let mut frames: Vec<u64> = (0..depth as u64)
        .map(|i| 0xffff_ffff_8100_0000 + i * 0x1234)
        .collect();
    for (shift, frame) in frames[depth / 2..].iter_mut().take(2).enumerate() {
        *frame += (number >> (shift * 10) & 0x3ff) * 0x30;
    }
    frames
}

/// Stacks from `first` on, all of [`DEPTH`] frames.
pub fn stacks(first: u64, nr: u64) -> Vec<Vec<u64>> {
    (first..first + nr)
        .map(|number| stack(number, DEPTH))
        .collect()
}

/// An empty map.
pub fn map(bits: u32, contexts: usize) -> Map {
    Map::new(bits, contexts, Seed::new([5, 6])).expect("memory for a map")
}

/// Records a stack and lets the pool grow.
pub fn record(map: &Map, index: usize, frames: &[u64]) -> Result<Lookup, Fallback> {
    let found = {
        let section = ReadSide::enter();
        // SAFETY: Benches prepare maps on one thread; inside a read-side section.
        unsafe { map.enter(section.inside(), index) }.get_id(frames)
    };
    if map.wants_growth() {
        map.grow().expect("memory for the pool");
    }
    found
}
