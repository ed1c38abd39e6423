// SPDX-License-Identifier: GPL-2.0

//! What is done to a map by one at a time, in process context: growth and reset.

use super::{
    id::Generation,
    pool::CHUNK_BYTES,
    sys::{sizes::POOL_SLACK, synchronize, Ordering},
    word::Word,
    Counter, Map, RESETTING,
};

/// Why a control operation did nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ControlError {
    /// A reset or a growth runs.
    Busy,
    /// No memory.
    NoMemory,
    /// Too much of the pool is in spares; contexts use them before they reserve anything.
    EnoughFree,
}

impl Map {
    /// Whether [`Map::grow`] should be called soon. Context: any.
    pub fn wants_growth(&self) -> bool {
        self.pool.wants_growth()
    }

    /// Adds memory to the pool if it wants some. Context: process, may sleep.
    ///
    /// The pool never has more than the bytes of the records that are published, a quarter of them
    /// and [`POOL_SLACK`](super::sys::sizes::POOL_SLACK).
    pub fn grow(&self) -> Result<(), ControlError> {
        self.exclusively(|| {
            while self.pool.wants_growth() {
                // What is stored only grows meanwhile: a reset is kept out.
                let stored = self.stored_bytes();
                if self.pool.bytes() + CHUNK_BYTES > stored + stored / 4 + POOL_SLACK {
                    return Err(ControlError::EnoughFree);
                }
                self.pool.grow().ok_or(ControlError::NoMemory)?;
            }
            Ok(())
        })
    }

    /// Removes all stacks and counts, and begins a new generation of ids if there was a stack.
    ///
    /// Without one no id of the generation was given out, so it goes on: generations are few, see
    /// `id.rs`. A [`Snapshot`](super::Snapshot) of it stays valid, and empty.
    ///
    /// Context: process, waits for a grace period. Stacks that are recorded meanwhile get
    /// [`Fallback::Resetting`](super::Fallback::Resetting).
    pub fn reset(&self) -> Result<(), ControlError> {
        self.exclusively(|| {
            let state = self.state.load(Ordering::Relaxed);
            self.state.store(state | RESETTING, Ordering::Relaxed);
            synchronize();
            // Nobody is inside any more: every entry that is claimed is that of a published stack.
            let used = self.entries.load(Ordering::Relaxed) != 0;
            for slot in self.slots.iter() {
                // Most are empty: they need not be written.
                if slot.load(Ordering::Relaxed) != Word::EMPTY.bits() {
                    slot.store(Word::EMPTY.bits(), Ordering::Relaxed);
                }
            }
            for ctx in self.contexts.iter() {
                ctx.clear();
            }
            // Those who are turned away meanwhile go on counting.
            for (before, counter) in self.before.iter().zip(Counter::ALL) {
                before.store(self.total_since_new(counter), Ordering::Relaxed);
            }
            // SAFETY: Whoever came after the grace period began has seen `RESETTING` and turned
            // away, the others have left; `exclusively` keeps growth out.
            unsafe { self.pool.rewind() };
            self.entries.store(0, Ordering::Relaxed);
            let generation = Generation::from_bits(state);
            let next = if used {
                self.layout.next(generation)
            } else {
                generation
            };
            // ORDERING: Release; O2, pairs with the loads of the state.
            self.state.store(next.bits(), Ordering::Release);
            Ok(())
        })
    }

    fn exclusively(
        &self,
        operation: impl FnOnce() -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        // ORDERING: Acquire; O4, pairs with the store below: one operation sees what the last did.
        self.control
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| ControlError::Busy)?;
        let result = operation();
        // ORDERING: Release; O4, pairs with the swap above.
        self.control.store(0, Ordering::Release);
        result
    }
}
