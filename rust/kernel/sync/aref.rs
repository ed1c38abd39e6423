// SPDX-License-Identifier: GPL-2.0

//! References to objects that C counts. Upstream: `rust/kernel/sync/aref.rs`.

use core::{marker::PhantomData, ops::Deref, ptr::NonNull};

/// An object with a reference count of C.
///
/// # Safety
///
/// The object stays while there is a reference.
pub unsafe trait AlwaysRefCounted {
    /// # Safety
    ///
    /// The caller has a reference, which it does not use afterwards.
    unsafe fn dec_ref(object: NonNull<Self>);
}

/// An owned reference to a counted object.
///
/// # Invariants
///
/// It owns one reference to the object.
pub struct ARef<T: AlwaysRefCounted> {
    ptr: NonNull<T>,
    _object: PhantomData<T>,
}

// SAFETY: A reference can be used and dropped by any task if the object can.
unsafe impl<T: AlwaysRefCounted + Sync + Send> Send for ARef<T> {}
// SAFETY: As above.
unsafe impl<T: AlwaysRefCounted + Sync + Send> Sync for ARef<T> {}

impl<T: AlwaysRefCounted> ARef<T> {
    /// Takes over a reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference to the object, and gives it away.
    pub unsafe fn from_raw(ptr: NonNull<T>) -> Self {
        // INVARIANT: By the requirement.
        Self {
            ptr,
            _object: PhantomData,
        }
    }
}

impl<T: AlwaysRefCounted> Deref for ARef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant, the object stays.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: AlwaysRefCounted> Drop for ARef<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the reference is dropped once.
        unsafe { T::dec_ref(self.ptr) }
    }
}
