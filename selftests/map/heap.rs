// SPDX-License-Identifier: GPL-2.0

//! Memory outside the kernel.

use core::ops::Deref;

/// An array on the heap, freed when dropped.
pub(in super::super) struct Array<T>(Box<[T]>);

impl<T> Array<T> {
    /// Makes `len` elements. [`None`]: no memory.
    pub(in super::super) fn new(len: usize, make: impl FnMut() -> T) -> Option<Self> {
        let mut array = Vec::new();
        array.try_reserve_exact(len).ok()?;
        array.resize_with(len, make);
        Some(Self(array.into_boxed_slice()))
    }

    /// Gives the memory away; [`Array::from_raw`] takes it back.
    pub(in super::super) fn into_raw(self) -> *mut T {
        Box::into_raw(self.0).cast()
    }

    /// Takes an array back.
    ///
    /// # Safety
    ///
    /// `ptr` is from [`Array::into_raw`] of an array of `len` elements, and used nowhere else.
    pub(in super::super) unsafe fn from_raw(ptr: *mut T, len: usize) -> Self {
        let array = core::ptr::slice_from_raw_parts_mut(ptr, len);
        // SAFETY: By the requirement, this is the box that `into_raw` took apart.
        Self(unsafe { Box::from_raw(array) })
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}
