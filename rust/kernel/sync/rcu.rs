// SPDX-License-Identifier: GPL-2.0

//! RCU. Upstream: `rust/kernel/sync/rcu.rs`.

use crate::{bindings, types::NotThreadSafe};

/// Evidence of a read-side critical section.
pub struct Guard(NotThreadSafe);

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `read_lock` has begun the section, on this CPU or task.
        unsafe { bindings::stackmap_rust_rcu_read_unlock() }
    }
}

/// Begins a read-side critical section. Context: any in which RCU is watching; the section must not sleep.
#[inline(always)]
pub fn read_lock() -> Guard {
    // SAFETY: It has no precondition but the context.
    unsafe { bindings::stackmap_rust_rcu_read_lock() };
    Guard(NotThreadSafe)
}

/// Waits for a grace period. Context: process, may sleep.
pub fn synchronize_rcu() {
    // SAFETY: It has no precondition but the context.
    unsafe { bindings::synchronize_rcu() };
}
