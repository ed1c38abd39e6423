// SPDX-License-Identifier: GPL-2.0

//! Reading the map while it is used: by id, and all of it in constant memory.
//!
//! An export begins with a [`Snapshot`]. It raises the epoch and waits for a grace period: every insert
//! that read an older epoch has then ended, and all later ones carry a newer epoch. The stacks up to
//! the cut are therefore fixed until the next reset: they can be counted first and walked later, by
//! slot, and count and walk agree whatever is inserted meanwhile.

use super::{
    id::Generation,
    sys::{
        sizes::{REFS_MAX, SLOTS_AT_ONCE},
        synchronize, AtomicU64, Ordering,
    },
    word::Word,
    Id, Map, ReadSide, MAX_FRAMES,
};

/// The stacks that were in the map at one inserted.
#[derive(Clone, Copy)]
pub struct Snapshot(InsertEpoch);

impl Snapshot {
    /// Whether a stack that was inserted at `moment` is one of them.
    pub fn includes(&self, inserted: InsertEpoch) -> bool {
        self.0.generation == inserted.generation && self.includes_epoch(inserted.epoch)
    }

    /// Whether an epoch is not later than the cut. Epochs are compared as if they never wrapped:
    /// wrong after 2^31 cuts of one generation, each of which took a grace period.
    fn includes_epoch(&self, epoch: u32) -> bool {
        self.0.epoch.wrapping_sub(epoch) <= u32::MAX / 2
    }
}

/// When a stack was inserted, for [`Snapshot::includes`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InsertEpoch {
    generation: Generation,
    epoch: u32,
}

/// A reset has removed the stacks that were to be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stale;

/// A stack as it was read; its frames are in the caller's buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stack {
    /// The id.
    pub id: Id,
    /// The number of frames.
    pub nr: usize,
    /// The events that carry the id, at most [`i32::MAX`].
    pub ref_count: u32,
    /// When it was inserted.
    pub inserted: InsertEpoch,
    /// The slot, from which the next search goes on.
    slot: u32,
}

impl Stack {
    /// Where a walk goes on behind this stack.
    pub fn next(&self) -> u32 {
        self.slot + 1
    }
}

/// The frames of a stack, innermost first, read where they are.
pub struct Frames<'a>(core::slice::Iter<'a, AtomicU64>);

impl Iterator for Frames<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0.next().map(|frame| frame.load(Ordering::Relaxed))
    }
}

impl Map {
    /// Begins an export. Context: process, waits for a grace period.
    pub fn snapshot(&self) -> Result<Snapshot, Stale> {
        let generation = self.generation().ok_or(Stale)?;
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        synchronize();
        Ok(Snapshot(InsertEpoch { generation, epoch }))
    }

    /// The stacks that are in the map now. What is inserted meanwhile may be among them, so two walks
    /// need not agree. Context: any.
    pub fn current(&self) -> Result<Snapshot, Stale> {
        let generation = self.generation().ok_or(Stale)?;
        let epoch = self.epoch.load(Ordering::Relaxed);
        Ok(Snapshot(InsertEpoch { generation, epoch }))
    }

    /// Whether a stack that was inserted at `moment` is in the map still. Asked inside a read-side
    /// section, it stays so until its end.
    pub fn has(&self, inserted: InsertEpoch) -> bool {
        self.generation() == Some(inserted.generation)
    }

    /// Counts the stacks of a cut. Context: process.
    pub fn count(&self, snapshot: &Snapshot) -> Result<u32, Stale> {
        let mut nr = 0;
        self.walk(snapshot, 0, |_, _| {
            nr += 1;
            None::<()>
        })?;
        Ok(nr)
    }

    /// Reads the first stack of a cut at or behind slot `from` into `frames`.
    ///
    /// [`None`]: there is none. Context: process.
    pub fn next(
        &self,
        snapshot: &Snapshot,
        from: u32,
        frames: &mut [u64; MAX_FRAMES],
    ) -> Result<Option<Stack>, Stale> {
        self.walk(snapshot, from, |slot, word| {
            Some(self.read_slot(snapshot.0.generation, slot, word, frames))
        })
    }

    /// Reads the stack behind an id. [`None`]: there is no such stack, or no more.
    ///
    /// Context: any that may hold a [`ReadSide`].
    pub fn lookup(&self, id: Id, frames: &mut [u64; MAX_FRAMES]) -> Option<Stack> {
        let _section = ReadSide::enter();
        let (generation, slot, word) = self.find_id(id)?;
        Some(self.read_slot(generation, slot, word, frames))
    }

    /// Has the frames behind an id read, and says when the stack was inserted. [`None`]: there is
    /// no such stack, or no more.
    ///
    /// Context: any that may hold a [`ReadSide`]; `read` runs inside one.
    pub fn read<R>(&self, id: Id, read: impl FnOnce(InsertEpoch, Frames<'_>) -> R) -> Option<R> {
        let _section = ReadSide::enter();
        let (generation, _, word) = self.find_id(id)?;
        let inserted = self.insert_epoch(generation, word);
        let frames = self.pool.frames(word.record(), word.nr());
        Some(read(inserted, Frames(frames.iter())))
    }

    /// The slot that an id names, and what it holds. The caller is inside a read-side section.
    fn find_id(&self, id: Id) -> Option<(Generation, u32, Word)> {
        let generation = self.generation()?;
        let slot = self.layout.slot(id);
        let word = self.word(slot);
        (!word.is_empty() && self.layout.generation(id) == generation)
            .then_some((generation, slot, word))
    }

    fn insert_epoch(&self, generation: Generation, word: Word) -> InsertEpoch {
        InsertEpoch {
            generation,
            epoch: self.pool.epoch(word.record()),
        }
    }

    /// Calls `visit` for each slot of the cut from `from` on, until it returns something.
    fn walk<R>(
        &self,
        snapshot: &Snapshot,
        from: u32,
        mut visit: impl FnMut(u32, Word) -> Option<R>,
    ) -> Result<Option<R>, Stale> {
        let end = self.slots.len() as u32;
        let mut from = from;
        while from < end {
            let _section = ReadSide::enter();
            if self.generation() != Some(snapshot.0.generation) {
                return Err(Stale);
            }
            let part = from..end.min(from.saturating_add(SLOTS_AT_ONCE));
            from = part.end;
            for slot in part {
                let word = self.word(slot);
                if !word.is_empty() && snapshot.includes_epoch(self.pool.epoch(word.record())) {
                    if let Some(result) = visit(slot, word) {
                        return Ok(Some(result));
                    }
                }
            }
        }
        Ok(None)
    }

    fn read_slot(
        &self,
        generation: Generation,
        slot: u32,
        word: Word,
        frames: &mut [u64; MAX_FRAMES],
    ) -> Stack {
        let (record, nr) = (word.record(), word.nr());
        self.pool.copy(record, nr, frames);
        let stack = &frames[..nr];
        let held: u64 = self.contexts.iter().map(|ctx| ctx.held(slot, stack)).sum();
        let refs = (self.pool.refs(record) + held).min(REFS_MAX);
        Stack {
            id: generation.id(slot),
            nr,
            ref_count: refs as u32,
            inserted: self.insert_epoch(generation, word),
            slot,
        }
    }
}
