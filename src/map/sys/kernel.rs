// SPDX-License-Identifier: GPL-2.0

//! The kernel: RCU, and memory from vmalloc.

use core::ops::Deref;
use kernel::{alloc::flags::GFP_KERNEL, prelude::*, sync::rcu};

pub(in super::super) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// Holds `rcu_read_lock()`.
pub struct ReadSide {
    _guard: rcu::Guard,
}

impl ReadSide {
    /// Enters the section. Context: any where RCU is watching; the section must not sleep.
    pub fn enter() -> Self {
        Self {
            _guard: rcu::read_lock(),
        }
    }
}

/// Waits for every read-side section and every region with preemption off that began before.
///
/// Context: process, may sleep.
pub(in super::super) fn synchronize() {
    rcu::synchronize_rcu();
}

/// An array in vmalloc'd memory, freed when dropped.
pub(in super::super) struct Array<T>(VVec<T>);

impl<T> Array<T> {
    /// Makes `len` elements. Context: process, may sleep. [`None`]: no memory.
    pub(in super::super) fn new(len: usize, mut make: impl FnMut() -> T) -> Option<Self> {
        let mut array = VVec::with_capacity(len, GFP_KERNEL).ok()?;
        for _ in 0..len {
            array.push_within_capacity(make()).ok()?;
        }
        Some(Self(array))
    }

    /// Gives the memory away; [`Array::from_raw`] takes it back.
    pub(in super::super) fn into_raw(self) -> *mut T {
        self.0.into_raw_parts().0
    }

    /// Takes an array back.
    ///
    /// # Safety
    ///
    /// `ptr` is from [`Array::into_raw`] of an array of `len` elements, and used nowhere else.
    pub(in super::super) unsafe fn from_raw(ptr: *mut T, len: usize) -> Self {
        // SAFETY: By the requirement, `ptr` came from a vector of length and capacity `len`.
        Self(unsafe { VVec::from_raw_parts(ptr, len, len) })
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}
