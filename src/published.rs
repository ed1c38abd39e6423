// SPDX-License-Identifier: GPL-2.0

//! What others find without a lock, while it is there: protected by RCU.

use crate::map::ReadSide;
use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::{
    bindings,
    sync::{Arc, ArcBorrow},
};

/// Evidence of a read-side critical section.
///
/// # Safety
///
/// Every grace period that begins while the value exists waits until it does not exist any more.
pub(crate) unsafe trait Section {}

// SAFETY: It holds `rcu_read_lock()`.
unsafe impl Section for ReadSide {}

/// A place for a value that readers find at any time.
///
/// # Invariants
///
/// The pointer is null, or of an [`Arc`] that is dropped a grace period after the pointer is replaced.
pub(crate) struct Published<T: Send + Sync>(AtomicPtr<T>);

impl<T: Send + Sync> Published<T> {
    /// There is nothing yet.
    pub(crate) const fn nothing() -> Self {
        // INVARIANT: Null.
        Self(AtomicPtr::new(null_mut()))
    }

    /// The value, if there is one, for as long as the section. Context: any.
    #[inline(always)]
    pub(crate) fn read<'s>(&self, _section: &'s impl Section) -> Option<&'s T> {
        // ORDERING: Acquire; pairs with the swap in `replace`.
        let value = self.0.load(Ordering::Acquire);
        // SAFETY: By the invariant it is there until the section ends.
        unsafe { value.as_ref() }
    }

    /// The value, if there is one, for as long as the caller wants. Context: process.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        let _section = ReadSide::enter();
        // ORDERING: Acquire; pairs with the swap in `replace`.
        let value = self.0.load(Ordering::Acquire);
        // SAFETY: By the invariant, if not null, it is that of an `Arc`, which is there until the section
        // ends.
        (!value.is_null()).then(|| unsafe { ArcBorrow::from_raw(value) }.into())
    }

    /// Publishes another value, or none, and waits until nobody reads the old one. Context: process,
    /// may sleep; callers serialise.
    pub(crate) fn replace(&self, value: Option<Arc<T>>) {
        let new = value.map_or(null_mut(), |value| Arc::into_raw(value).cast_mut());
        // ORDERING: Release; pairs with the load in `read`. INVARIANT: The old one is dropped below.
        let old = self.0.swap(new, Ordering::Release);
        if old.is_null() {
            return;
        }
        // SAFETY: Process context.
        unsafe { bindings::synchronize_rcu() };
        // SAFETY: By the invariant it is that of an `Arc`, whose pointer nobody finds any more.
        drop(unsafe { Arc::from_raw(old) });
    }
}
