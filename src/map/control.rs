// SPDX-License-Identifier: GPL-2.0

//! Control operations, one at a time, in process context: growth and reset.

use super::{
    sys::{synchronize, Ordering},
    Map, MapCounter, MapError,
};

impl Map {
    /// Returns whether [`Map::grow`] should be called soon. Context: any.
    pub fn wants_growth(&self) -> bool {
        self.pool.wants_growth()
    }

    /// Adds chunks to the pool while less than one chunk is free and it may grow. Context: process, may
    /// sleep. Errors: [`MapError::Busy`] while another one or a reset runs, [`MapError::NoMemory`].
    pub fn grow(&self) -> Result<(), MapError> {
        self.exclusively(|| {
            while self.pool.wants_growth() {
                self.pool.grow().ok_or(MapError::NoMemory)?;
            }
            Ok(())
        })
    }

    /// Removes all stacks and counts, and begins a new generation of ids if there was a stack.
    ///
    /// An empty map has given out no id, so it keeps its generation: generations are few, see
    /// `id.rs`. A snapshot of the empty map stays valid.
    ///
    /// Context: process, waits for a grace period. Stacks that are recorded meanwhile get
    /// [`Fallback::Resetting`](super::Fallback::Resetting). Errors: [`MapError::Busy`] while another one
    /// or a growth runs.
    pub fn reset(&self) -> Result<(), MapError> {
        self.exclusively(|| {
            let generation = self.generation().ok_or(MapError::Busy)?;
            self.state.store(0, Ordering::Relaxed);
            synchronize();
            // No CPU is inside `get_id` any more: each claimed entry belongs to a published stack.
            let used = self.entries.load(Ordering::Relaxed) != 0;
            for slot in self.slots.iter() {
                // Most slots are empty; writing them would only dirty cache lines.
                if slot.load(Ordering::Relaxed) != 0 {
                    slot.store(0, Ordering::Relaxed);
                }
            }
            for refs in self.refs.iter() {
                if refs.load(Ordering::Relaxed) != 0 {
                    refs.store(0, Ordering::Relaxed);
                }
            }
            for ctx in self.contexts.iter() {
                ctx.clear();
            }
            // CPUs that are refused with `Fallback::Resetting` still count.
            for (before, counter) in self.before.iter().zip(MapCounter::ALL) {
                before.store(self.total_since_new(counter), Ordering::Relaxed);
            }
            // SAFETY: Each CPU that entered before the grace period has left, each later one sees
            // that a reset runs and uses nothing of the pool; `exclusively` keeps growth out.
            unsafe { self.pool.rewind() };
            self.entries.store(0, Ordering::Relaxed);
            let next = if used {
                generation.next(self.slots.len() as u32)
            } else {
                generation
            };
            // ORDERING: Release; O2, pairs with the loads of the state.
            self.state.store(next.bits(), Ordering::Release);
            Ok(())
        })
    }

    /// Runs an operation unless another one runs.
    fn exclusively(
        &self,
        operation: impl FnOnce() -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        // ORDERING: Acquire; O4, pairs with the store below: an operation sees the one before it.
        self.control
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| MapError::Busy)?;
        let result = operation();
        // ORDERING: Release; O4, pairs with the swap above.
        self.control.store(0, Ordering::Release);
        result
    }
}
