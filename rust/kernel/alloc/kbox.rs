// SPDX-License-Identifier: GPL-2.0

//! A value in memory from `kmalloc()`. Upstream: `rust/kernel/alloc/kbox.rs`.

use super::{AllocError, Flags, Kmalloc, RawMemory};
use crate::{
    error::Error,
    init::{PinInit, Zeroable},
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    pin::Pin,
    ptr::NonNull,
};

/// An owned value in memory from `kmalloc()`.
///
/// # Invariants
///
/// The pointer is that of a `RawMemory` of one value, which is initialised.
pub struct KBox<T>(NonNull<T>, PhantomData<T>);

// SAFETY: It owns the value.
unsafe impl<T: Send> Send for KBox<T> {}
// SAFETY: A shared `KBox` gives shared references only.
unsafe impl<T: Sync> Sync for KBox<T> {}

impl<T> KBox<T> {
    /// # Safety
    ///
    /// The value is initialised.
    unsafe fn assume_init(memory: RawMemory<T, Kmalloc>) -> Self {
        // INVARIANT: By the requirement.
        Self(ManuallyDrop::new(memory).ptr, PhantomData)
    }

    /// Moves a value into new memory.
    pub fn new(value: T, flags: Flags) -> Result<Self, AllocError> {
        let memory = RawMemory::<T, Kmalloc>::new(1, flags)?;
        // SAFETY: There is memory for one value, which is initialised then.
        unsafe {
            memory.ptr.as_ptr().write(value);
            Ok(Self::assume_init(memory))
        }
    }

    /// Returns a value of zeros.
    pub fn zeroed(flags: Flags) -> Result<Self, AllocError>
    where
        T: Zeroable,
    {
        let memory = RawMemory::<T, Kmalloc>::new(1, flags)?;
        // SAFETY: There is memory for one value, for which zeros are valid.
        unsafe {
            memory.ptr.as_ptr().write_bytes(0, 1);
            Ok(Self::assume_init(memory))
        }
    }

    /// Initialises a value where it stays.
    pub fn pin_init(init: impl PinInit<T>, flags: Flags) -> Result<Pin<Self>, Error> {
        let memory = RawMemory::<T, Kmalloc>::new(1, flags)?;
        // SAFETY: There is memory for one value, which is initialised then, and does not move again.
        unsafe {
            init.init(memory.ptr.as_ptr());
            Ok(Pin::new_unchecked(Self::assume_init(memory)))
        }
    }

    /// Gives the value away; [`KBox::from_raw`] takes it back.
    pub fn into_raw(this: Self) -> *mut T {
        ManuallyDrop::new(this).0.as_ptr()
    }

    /// Takes a value back.
    ///
    /// # Safety
    ///
    /// The pointer is from [`KBox::into_raw`], and used nowhere else.
    pub unsafe fn from_raw(ptr: *mut T) -> Self {
        // SAFETY: By the requirement it is not null. INVARIANT: It was a `KBox`.
        Self(unsafe { NonNull::new_unchecked(ptr) }, PhantomData)
    }
}

impl<T> Deref for KBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for KBox<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, the value is initialised; it is dropped once.
        unsafe { self.0.as_ptr().drop_in_place() };
        drop(RawMemory::<T, Kmalloc> {
            // INVARIANT: That of `self`.
            ptr: self.0,
            capacity: 1,
            _allocator: PhantomData,
        });
    }
}
