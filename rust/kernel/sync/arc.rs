// SPDX-License-Identifier: GPL-2.0

//! Shared values. Upstream: `rust/kernel/sync/arc.rs`.

use crate::alloc::{AllocError, Flags, KBox};
use core::{
    marker::PhantomData,
    mem::{offset_of, ManuallyDrop},
    ops::Deref,
    ptr::NonNull,
    sync::atomic::{fence, AtomicUsize, Ordering},
};

/// More references than this are a bug; as in the standard library, counting on would wrap.
const REFS_MAX: usize = isize::MAX as usize;

#[repr(C)]
struct Shared<T> {
    refs: AtomicUsize,
    value: T,
}

/// A counted reference to a value in memory from `kmalloc()`.
///
/// # Invariants
///
/// The pointer is that of a `KBox`, whose count includes this reference.
pub struct Arc<T>(NonNull<Shared<T>>, PhantomData<Shared<T>>);

// SAFETY: Any task can use the value, and any can drop it.
unsafe impl<T: Sync + Send> Send for Arc<T> {}
// SAFETY: As above.
unsafe impl<T: Sync + Send> Sync for Arc<T> {}

impl<T> Arc<T> {
    /// Moves a value into new memory.
    pub fn new(value: T, flags: Flags) -> Result<Self, AllocError> {
        let refs = AtomicUsize::new(1);
        let shared = KBox::into_raw(KBox::new(Shared { refs, value }, flags)?);
        // SAFETY: That of a `KBox` is not null. INVARIANT: Its count is 1.
        Ok(Self(unsafe { NonNull::new_unchecked(shared) }, PhantomData))
    }

    /// Gives the reference away, as a pointer to the value; [`Arc::from_raw`] takes it back.
    pub fn into_raw(this: Self) -> *const T {
        let this = ManuallyDrop::new(this);
        // SAFETY: By the type invariant, the pointer is valid.
        unsafe { &raw const (*this.0.as_ptr()).value }
    }

    /// Takes a reference back.
    ///
    /// # Safety
    ///
    /// The pointer is from [`Arc::into_raw`], and the reference is used nowhere else.
    pub unsafe fn from_raw(value: *const T) -> Self {
        // SAFETY: By the requirement, the value is in a `Shared`.
        let shared = unsafe { value.byte_sub(offset_of!(Shared<T>, value)) };
        // SAFETY: It is not null. INVARIANT: By the requirement.
        Self(
            unsafe { NonNull::new_unchecked(shared.cast_mut().cast()) },
            PhantomData,
        )
    }

    fn shared(&self) -> &Shared<T> {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        let old = self.shared().refs.fetch_add(1, Ordering::Relaxed);
        assert!(old < REFS_MAX);
        // INVARIANT: Just counted.
        Self(self.0, PhantomData)
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.shared().value
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the fence: all uses of the value are before it is dropped.
        if self.shared().refs.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: By the type invariant, it is of a `KBox`; this was the last reference.
            drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
        }
    }
}

/// A borrowed reference.
pub struct ArcBorrow<'a, T> {
    arc: ManuallyDrop<Arc<T>>,
    _borrow: PhantomData<&'a T>,
}

impl<T> ArcBorrow<'_, T> {
    /// Borrows a reference that was given away.
    ///
    /// # Safety
    ///
    /// The pointer is from [`Arc::into_raw`], and the reference is not dropped as long as the result exists.
    pub unsafe fn from_raw(value: *const T) -> Self {
        // SAFETY: By the requirement; the reference is never dropped here.
        let arc = ManuallyDrop::new(unsafe { Arc::from_raw(value) });
        Self {
            arc,
            _borrow: PhantomData,
        }
    }
}

impl<T> From<ArcBorrow<'_, T>> for Arc<T> {
    fn from(borrow: ArcBorrow<'_, T>) -> Self {
        Arc::clone(&borrow.arc)
    }
}
