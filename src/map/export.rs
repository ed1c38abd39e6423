// SPDX-License-Identifier: GPL-2.0

//! Reading the map while it is in use: one stack by id, or all stacks in constant memory.
//!
//! An export begins with a snapshot. [`Map::snapshot`] raises the epoch and waits for a grace
//! period. After it, each insert that read the old epoch has ended, and each later insert has a
//! newer epoch. So the stacks of a snapshot are fixed until the next reset: an export can count
//! them first and walk them later, by slot, and both agree whatever is inserted meanwhile.

use super::{
    current::Current,
    id::Generation,
    record::Record,
    sys::{
        sizes::{REFS_MAX, SLOTS_AT_ONCE},
        synchronize, Ordering,
    },
    Id, Map, MapError, ReadSide, MAX_FRAMES,
};

/// A generation and an epoch in it: when a stack was inserted, and of a snapshot the last that belongs to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Epoch {
    generation: Generation,
    number: u32,
}

impl Epoch {
    /// Returns when the stack of a record was inserted.
    fn of(current: Current<'_>, record: Record<'_>) -> Self {
        Self {
            generation: current.generation(),
            number: record.epoch(),
        }
    }

    /// Returns whether a stack that was inserted in epoch `inserted` belongs to the snapshot. The comparison
    /// tolerates wrapping; it is wrong only after 2^31 snapshots of one generation, each of which waits
    /// for a grace period.
    pub fn includes(&self, inserted: Self) -> bool {
        self.generation == inserted.generation
            && self.number.wrapping_sub(inserted.number) <= u32::MAX / 2
    }
}

/// A stack as it was read; its frames are in the caller's buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportedStack {
    /// The id.
    pub id: Id,
    /// The number of frames.
    pub nr: usize,
    /// The events that carry the id, at most [`i32::MAX`].
    pub ref_count: u32,
    /// When it was inserted.
    pub inserted: Epoch,
    /// The slot; the next search starts after it.
    slot: u32,
}

impl ExportedStack {
    /// Returns the slot from which a walk continues after this stack.
    pub fn next(&self) -> u32 {
        self.slot + 1
    }
}

impl Map {
    /// Takes a snapshot for an export. Context: process, waits for a grace period.
    ///
    /// Errors: [`MapError::Busy`] while a reset runs.
    pub fn snapshot(&self) -> Result<Epoch, MapError> {
        let generation = self.generation().ok_or(MapError::Busy)?;
        let number = self.epoch.fetch_add(1, Ordering::Relaxed);
        synchronize();
        Ok(Epoch { generation, number })
    }

    /// Returns a snapshot of the current epoch, without a grace period. Stacks inserted later may belong to
    /// it, so two walks of it can differ. Context: any. Errors: [`MapError::Busy`] while a reset runs.
    pub fn snapshot_now(&self) -> Result<Epoch, MapError> {
        let generation = self.generation().ok_or(MapError::Busy)?;
        let number = self.epoch.load(Ordering::Relaxed);
        Ok(Epoch { generation, number })
    }

    /// Returns whether a stack that was inserted in epoch `inserted` is still in the map. Inside a
    /// read-side section, a stack found in the map stays until the section ends.
    pub fn has(&self, inserted: Epoch) -> bool {
        self.generation() == Some(inserted.generation)
    }

    /// Counts the stacks of a snapshot. Errors: [`MapError::Stale`] during and after a reset. Context: process.
    pub fn count(&self, snapshot: &Epoch) -> Result<u32, MapError> {
        let mut nr = 0;
        self.of_snapshot(snapshot, 0, |_, _, _| {
            nr += 1;
            None::<()>
        })?;
        Ok(nr)
    }

    /// Reads the first stack of a snapshot at or after slot `from` into `frames`. Returns [`None`] if there is none.
    /// Errors: [`MapError::Stale`] during and after a reset. Context: process.
    pub fn next(
        &self,
        snapshot: &Epoch,
        from: u32,
        frames: &mut [u64; MAX_FRAMES],
    ) -> Result<Option<ExportedStack>, MapError> {
        self.of_snapshot(snapshot, from, |current, slot, record| {
            Some(self.read_slot(current, slot, record, frames))
        })
    }

    /// Reads the stack of an id. Returns [`None`] if the id is unknown, or a reset has removed its stack.
    ///
    /// Context: any that may hold a [`ReadSide`].
    pub fn lookup(&self, id: Id, frames: &mut [u64; MAX_FRAMES]) -> Option<ExportedStack> {
        let section = ReadSide::enter();
        let current = self.current_in(section.inside())?;
        let (slot, record) = self.find_id(current, id)?;
        Some(self.read_slot(current, slot, record, frames))
    }

    /// Calls `read` with the epoch and the record of an id's stack. Returns [`None`] if the id is unknown, or a
    /// reset has removed its stack.
    ///
    /// Context: any that may hold a [`ReadSide`]; `read` runs inside one.
    pub fn read<R>(&self, id: Id, read: impl FnOnce(Epoch, Record<'_>) -> R) -> Option<R> {
        let section = ReadSide::enter();
        let current = self.current_in(section.inside())?;
        let (_, record) = self.find_id(current, id)?;
        Some(read(Epoch::of(current, record), record))
    }

    /// Returns the slot that an id names, and its record.
    fn find_id<'s>(&self, current: Current<'s>, id: Id) -> Option<(u32, Record<'s>)> {
        let slot = id.slot(self.slots.len() as u32);
        let record = current.record(slot)?;
        (current.id(slot) == id).then_some((slot, record))
    }

    /// Calls `visit` for each stack of the snapshot from slot `from` on, until `visit` returns a value.
    fn of_snapshot<R>(
        &self,
        snapshot: &Epoch,
        from: u32,
        mut visit: impl FnMut(Current<'_>, u32, Record<'_>) -> Option<R>,
    ) -> Result<Option<R>, MapError> {
        self.each(Some(snapshot.generation), from, |current, slot, record| {
            let included = snapshot.includes(Epoch::of(current, record));
            included.then(|| visit(current, slot, record)).flatten()
        })
    }

    /// Calls `visit` for each slot from `from` on that names a record, until `visit` returns a value, as
    /// long as this is the generation. There is a section for each part of the slots.
    pub(super) fn each<R>(
        &self,
        generation: Option<Generation>,
        from: u32,
        mut visit: impl FnMut(Current<'_>, u32, Record<'_>) -> Option<R>,
    ) -> Result<Option<R>, MapError> {
        let end = self.slots.len() as u32;
        let mut from = from;
        while from < end {
            let section = ReadSide::enter();
            let current = self.current_in(section.inside()).ok_or(MapError::Stale)?;
            if Some(current.generation()) != generation {
                return Err(MapError::Stale);
            }
            let part = from..end.min(from.saturating_add(SLOTS_AT_ONCE));
            from = part.end;
            for slot in part {
                let record = current.record(slot);
                if let Some(result) = record.and_then(|record| visit(current, slot, record)) {
                    return Ok(Some(result));
                }
            }
        }
        Ok(None)
    }

    fn read_slot(
        &self,
        current: Current<'_>,
        slot: u32,
        record: Record<'_>,
        frames: &mut [u64; MAX_FRAMES],
    ) -> ExportedStack {
        for (to, frame) in frames.iter_mut().zip(record.frames()) {
            *to = frame;
        }
        let batched: u64 = self.contexts.iter().map(|ctx| ctx.batched_refs(slot)).sum();
        let refs = (self.refs(slot) + batched).min(REFS_MAX);
        ExportedStack {
            id: current.id(slot),
            nr: record.nr(),
            ref_count: refs as u32,
            inserted: Epoch::of(current, record),
            slot,
        }
    }
}
