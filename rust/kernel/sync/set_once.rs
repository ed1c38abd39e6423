// SPDX-License-Identifier: GPL-2.0

//! A value that is set once. Upstream: `rust/kernel/sync/set_once.rs`.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

const UNSET: u32 = 0;
const BEING_SET: u32 = 1;
const SET: u32 = 2;

/// A value that can be set once, and copied afterwards.
///
/// # Invariants
///
/// Only the thread that has changed `state` from `UNSET` to `BEING_SET` writes the value, before it stores `SET`.
pub struct SetOnce<T: Copy> {
    state: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: By the type invariant, the value is not written once it is read; it is copied, never dropped.
unsafe impl<T: Copy + Send + Sync> Sync for SetOnce<T> {}

impl<T: Copy> SetOnce<T> {
    /// Returns one without a value.
    #[allow(clippy::new_without_default)] // As upstream.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(UNSET),
            value: UnsafeCell::new(None),
        }
    }

    /// Sets the value. Returns false if it is, or is being, set already.
    pub fn populate(&self, value: T) -> bool {
        let change =
            self.state
                .compare_exchange(UNSET, BEING_SET, Ordering::Relaxed, Ordering::Relaxed);
        if change.is_err() {
            return false;
        }
        // SAFETY: By the type invariant, nobody reads or writes it before `SET`.
        unsafe { *self.value.get() = Some(value) };
        // ORDERING: Release; pairs with the load in `copy`.
        self.state.store(SET, Ordering::Release);
        true
    }

    /// Returns the value, if it is set.
    pub fn copy(&self) -> Option<T> {
        // ORDERING: Acquire; pairs with the store in `populate`.
        if self.state.load(Ordering::Acquire) != SET {
            return None;
        }
        // SAFETY: By the type invariant, nobody writes it any more.
        unsafe { *self.value.get() }
    }
}
