// SPDX-License-Identifier: GPL-2.0

//! Sequences of operations on a map, each checked against a plain model.
//!
//! The property test makes such sequences at random, the fuzz target and the replay of its corpus
//! read them from bytes.

mod model;

use self::model::Model;
use stackmap_map::{Epoch, ExportedStack, Id, Map, MapError, ReadSide, Seed, MAX_FRAMES};

const SEED: Seed = Seed::new([11, 12]);

/// Contexts of the map.
const CONTEXTS: usize = 3;

/// What can be done to a map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Records a stack in a context.
    Record(u8, Name),
    /// Records stacks that were never recorded, all of one depth, until one is refused.
    Exhaust(u8, u16),
    /// Records new stacks whose search begins at the same slot, until one is refused.
    Crowd(u8, u8),
    /// Reads the stack of an id that was given out, how many ids ago.
    Lookup(u16),
    /// Reads the stack of any number.
    LookupAny(u32),
    /// Adds memory to the pool.
    Grow,
    /// Whether each later operation is followed by as much growth as the map wants.
    FollowGrowth(bool),
    /// Removes everything.
    Reset,
    /// Begins an export.
    Snapshot,
    /// Reads the next stack of the export.
    Next,
    /// Counts the stacks of the export.
    Count,
}

/// The name of a stack: two stacks with different names differ, often in one bit only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    /// The number of frames, reduced to what a map takes.
    pub depth: u16,
    /// Which frame is changed.
    pub position: u16,
    /// How it is changed.
    pub change: u8,
}

impl Name {
    /// The frames of the stack.
    fn frames(self) -> Vec<u64> {
        let depth = usize::from(self.depth) % (MAX_FRAMES + 1);
        let mut frames: Vec<u64> = (0..depth as u64).map(|i| BASE + i * 16).collect();
        if let Some(frame) = frames.get_mut(usize::from(self.position) % depth.max(1)) {
            *frame ^= u64::from(self.change);
        }
        frames
    }
}

/// Where the kernel's text begins on x86-64.
const BASE: u64 = 0xffff_ffff_8100_0000;

/// Where its modules do.
const MODULES: u64 = 0xffff_ffff_c000_0000;

/// An export that has been begun.
struct Export {
    snapshot: Epoch,
    from: u32,
}

/// A map and its model.
struct Run {
    map: Map,
    model: Model,
    export: Option<Export>,
    fresh: u64,
    follow_growth: bool,
}

/// Does operations, one after the other, and checks everything after each one.
pub(crate) fn run(ops: impl IntoIterator<Item = Op>) {
    let map = Map::new(10, CONTEXTS, SEED).expect("memory for a map");
    let mut run = Run {
        model: Model::new(&map, SEED),
        map,
        export: None,
        fresh: 0,
        follow_growth: true,
    };
    for op in ops {
        run.step(op);
        if run.follow_growth && run.map.wants_growth() {
            run.grow();
        }
        run.model.check_counts(&run.map);
    }
    run.model.check_stacks(&run.map);
}

impl Run {
    fn step(&mut self, op: Op) {
        match op {
            Op::Record(context, name) => {
                self.record(context, &name.frames());
            }
            Op::Exhaust(context, depth) => {
                let depth = usize::from(depth) % MAX_FRAMES + 1;
                while {
                    let frames = self.fresh(depth);
                    self.record(context, &frames)
                } {}
            }
            Op::Crowd(context, home) => {
                let slots = self.map.table_size() as u64;
                while {
                    let mut frames = self.fresh(1);
                    while SEED.hash(&frames) % slots != u64::from(home) {
                        frames = self.fresh(1);
                    }
                    self.record(context, &frames)
                } {}
            }
            Op::Lookup(ago) => {
                if let Some(id) = self.model.id_given(ago.into()) {
                    self.lookup(id);
                }
            }
            Op::LookupAny(raw) => self.lookup(Id::from_raw(raw)),
            Op::Grow => self.grow(),
            Op::FollowGrowth(follow) => self.follow_growth = follow,
            Op::Reset => {
                self.map.reset().expect("nothing else runs");
                self.model.reset();
            }
            Op::Snapshot => {
                let snapshot = self.map.snapshot().expect("no reset runs");
                self.model.snapshot();
                self.export = Some(Export { snapshot, from: 0 });
            }
            Op::Next => self.next(),
            Op::Count => {
                if let Some(export) = &self.export {
                    let expected = self.model.snapshot_len().ok_or(MapError::Stale);
                    assert_eq!(self.map.count(&export.snapshot), expected);
                }
            }
        }
    }

    /// A stack that was never recorded before.
    fn fresh(&mut self, depth: usize) -> Vec<u64> {
        self.fresh += 1;
        let mut frames: Vec<u64> = (0..depth as u64).map(|i| MODULES + i).collect();
        frames[depth / 2] = self.fresh;
        frames
    }

    /// Records a stack; returns whether it has an id.
    fn record(&mut self, context: u8, frames: &[u64]) -> bool {
        let context = usize::from(context) % CONTEXTS;
        let result = {
            let section = ReadSide::enter();
            // SAFETY: The only thread, in a read-side section.
            let guard = unsafe { self.map.enter(section.inside(), context) };
            let result = guard.get_id(frames);
            if let Err(reason) = result {
                guard.add(reason.counter(), 1);
            }
            assert_eq!(guard.wants_growth(), self.map.wants_growth());
            result
        };
        self.model.recorded(&self.map, context, frames, result);
        if self.follow_growth && self.map.wants_growth() {
            self.grow();
        }
        result.is_ok()
    }

    fn lookup(&self, id: Id) {
        let mut frames = [0; MAX_FRAMES];
        let found = self.map.lookup(id, &mut frames);
        self.model.check_read(id, found.as_ref(), &frames);
    }

    fn grow(&mut self) {
        assert_eq!(self.map.grow(), Ok(()));
        assert!(!self.map.wants_growth());
    }

    /// Reads on in the export and compares it with the stacks at the snapshot.
    fn next(&mut self) {
        let Some(export) = &mut self.export else {
            return;
        };
        let mut frames = [0; MAX_FRAMES];
        let found = self.map.next(&export.snapshot, export.from, &mut frames);
        let Some(expected) = self.model.next_of_cut(export.from) else {
            // Who has read the last slot has read all.
            let all_read = export.from as usize == self.map.table_size();
            assert_eq!(
                found,
                if all_read {
                    Ok(None)
                } else {
                    Err(MapError::Stale)
                }
            );
            return;
        };
        let found = found.expect("there was no reset");
        assert_eq!(found.as_ref().map(|stack| stack.id), expected);
        if let Some(stack) = found {
            self.model.check_read(stack.id, Some(&stack), &frames);
            export.from = ExportedStack::next(&stack);
        }
    }
}

/// Reads operations from bytes. Every sequence of bytes is a valid sequence of operations.
pub(crate) fn decode(bytes: &[u8]) -> Vec<Op> {
    let mut bytes = bytes.iter().copied();
    core::iter::from_fn(|| {
        let mut byte = || bytes.next();
        let mut word = || Some(u16::from_le_bytes([byte()?, byte()?]));
        // A name costs four bytes: most operations record.
        Some(match word()?.to_le_bytes() {
            // Deep stacks exhaust the pool, and take long.
            [0, context] => Op::Exhaust(
                context,
                word().map(|w| w % if w < 4096 { 1024 } else { 32 })?,
            ),
            [1, home] => Op::Crowd(home % CONTEXTS as u8, home),
            [2, _] => Op::Grow,
            [3, follow] => Op::FollowGrowth(follow % 2 != 0),
            [4, 0..16] => Op::Reset,
            [5, _] => Op::Snapshot,
            [6 | 7, _] => Op::Next,
            [8, _] => Op::Count,
            [9..16, _] => Op::Lookup(word()?),
            [16, high] => {
                let low = word()?;
                Op::LookupAny(u32::from(high) << 24 | u32::from(low))
            }
            [change, context] => {
                let place = word()?;
                Op::Record(
                    context,
                    Name {
                        depth: place % 41,
                        position: place / 41,
                        change,
                    },
                )
            }
        })
    })
    .collect()
}
