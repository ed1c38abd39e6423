// SPDX-License-Identifier: GPL-2.0

//! Reading the map while it is used: by id, and all of it in constant memory.
//!
//! An export begins with a [`Cut`]. It raises the epoch and waits for a grace period: every insert
//! that read an older epoch has then ended, and all later ones carry a newer epoch. The stacks up to
//! the cut are therefore fixed until the next reset: they can be counted first and walked later, by
//! slot, and count and walk agree whatever is inserted meanwhile.

use super::{
    id::Generation,
    sys::{
        sizes::{REFS_MAX, SLOTS_AT_ONCE},
        synchronize, Ordering,
    },
    word::Word,
    Id, Map, ReadSide, MAX_FRAMES,
};

/// The stacks that were in the map at one moment.
#[derive(Clone, Copy)]
pub struct Cut {
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
    /// The slot, from which the next search goes on.
    slot: u32,
}

impl Stack {
    /// Where a walk goes on behind this stack.
    pub fn next(&self) -> u32 {
        self.slot + 1
    }
}

impl Map {
    /// Begins an export. Context: process, waits for a grace period.
    pub fn cut(&self) -> Result<Cut, Stale> {
        let generation = self.generation().ok_or(Stale)?;
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        synchronize();
        Ok(Cut { generation, epoch })
    }

    /// Counts the stacks of a cut. Context: process.
    pub fn count(&self, cut: &Cut) -> Result<u32, Stale> {
        let mut nr = 0;
        self.walk(cut, 0, |_, _| {
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
        cut: &Cut,
        from: u32,
        frames: &mut [u64; MAX_FRAMES],
    ) -> Result<Option<Stack>, Stale> {
        self.walk(cut, from, |slot, word| {
            Some(self.read_slot(cut.generation, slot, word, frames))
        })
    }

    /// Reads the stack behind an id. [`None`]: there is no such stack, or no more.
    ///
    /// Context: any that may hold a [`ReadSide`].
    pub fn lookup(&self, id: Id, frames: &mut [u64; MAX_FRAMES]) -> Option<Stack> {
        let _section = ReadSide::enter();
        let generation = self.generation()?;
        let slot = self.layout.slot(id);
        let word = self.word(slot);
        (!word.is_empty() && self.layout.generation(id) == generation)
            .then(|| self.read_slot(generation, slot, word, frames))
    }

    /// Calls `visit` for each slot of the cut from `from` on, until it returns something.
    fn walk<R>(
        &self,
        cut: &Cut,
        from: u32,
        mut visit: impl FnMut(u32, Word) -> Option<R>,
    ) -> Result<Option<R>, Stale> {
        let end = self.slots.len() as u32;
        let mut from = from;
        while from < end {
            let _section = ReadSide::enter();
            if self.generation() != Some(cut.generation) {
                return Err(Stale);
            }
            let part = from..end.min(from.saturating_add(SLOTS_AT_ONCE));
            from = part.end;
            for slot in part {
                let word = self.word(slot);
                if !word.is_empty() && self.within(cut, word) {
                    if let Some(result) = visit(slot, word) {
                        return Ok(Some(result));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether a stack was inserted before the cut. Epochs are compared as if they never wrapped:
    /// wrong after 2^31 cuts of one generation, each of which took a grace period.
    fn within(&self, cut: &Cut, word: Word) -> bool {
        let age = cut.epoch.wrapping_sub(self.pool.epoch(word.record()));
        age <= u32::MAX / 2
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
            slot,
        }
    }
}
