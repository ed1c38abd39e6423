// SPDX-License-Identifier: GPL-2.0

//! Values that readers find without a lock, protected by RCU.

use crate::map::{Inside, ReadSide};
use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::sync::{rcu, Arc, ArcBorrow};

/// Evidence of a read-side critical section.
///
/// # Safety
///
/// Each grace period that begins while the value exists ends only after the value is dropped.
pub(crate) unsafe trait Section {
    /// Returns the evidence that a map needs.
    #[inline(always)]
    fn inside(&self) -> Inside<'_> {
        // SAFETY: As the trait says; the borrow lasts no longer than the value.
        unsafe { Inside::new() }
    }
}

// SAFETY: It holds `rcu_read_lock()`.
unsafe impl Section for ReadSide {}

/// A pointer to a value; readers can load it at any time.
///
/// # Invariants
///
/// The pointer is null, or of an [`Arc`] that is dropped a grace period after the pointer is
/// replaced.
pub(crate) struct Published<T: Send + Sync>(AtomicPtr<T>);

impl<T: Send + Sync> Published<T> {
    /// Returns a pointer without a value.
    pub(crate) const fn nothing() -> Self {
        // INVARIANT: Null.
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the value, if there is one, for as long as the section. Context: any.
    #[inline(always)]
    pub(crate) fn read<'s>(&self, _section: &'s impl Section) -> Option<&'s T> {
        // ORDERING: Acquire; pairs with the swap in `replace`.
        let value = self.0.load(Ordering::Acquire);
        // SAFETY: By the invariant the value is not freed before the section ends.
        unsafe { value.as_ref() }
    }

    /// Returns a reference to the value, if there is one. Context: process.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        let _section = ReadSide::enter();
        // A reference to the value would not do: the count of the `Arc` lies beside it.
        // ORDERING: Acquire; pairs with the swap in `replace`.
        let value = self.0.load(Ordering::Acquire);
        // SAFETY: By the invariant, a non-null pointer is that of an `Arc`, which is not dropped
        // before the section ends.
        (!value.is_null()).then(|| unsafe { ArcBorrow::from_raw(value) }.into())
    }

    /// Publishes another value, or none, then waits a grace period and drops the old value.
    /// Context: process, may sleep; callers serialise.
    pub(crate) fn replace(&self, value: Option<Arc<T>>) {
        let new = value.map_or(null_mut(), |value| Arc::into_raw(value).cast_mut());
        // ORDERING: Release; pairs with the load in `read`. INVARIANT: The old value is dropped
        // below.
        let old = self.0.swap(new, Ordering::Release);
        if old.is_null() {
            return;
        }
        rcu::synchronize_rcu();
        // SAFETY: By the invariant `old` is of an `Arc`; after the grace period no reader has it.
        drop(unsafe { Arc::from_raw(old) });
    }
}
