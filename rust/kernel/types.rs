// SPDX-License-Identifier: GPL-2.0

//! Types. Upstream: `rust/kernel/types.rs`.

use core::{
    cell::UnsafeCell,
    marker::{PhantomData, PhantomPinned},
    mem::MaybeUninit,
};

/// A value that only C uses.
#[repr(transparent)]
pub struct Opaque<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    _pin: PhantomPinned,
}

impl<T> Opaque<T> {
    /// Returns memory that is not initialised.
    pub const fn uninit() -> Self {
        Self {
            value: UnsafeCell::new(MaybeUninit::uninit()),
            _pin: PhantomPinned,
        }
    }

    /// Returns memory of zeros.
    pub(crate) const fn zeroed() -> Self {
        Self {
            value: UnsafeCell::new(MaybeUninit::zeroed()),
            _pin: PhantomPinned,
        }
    }

    /// Returns the pointer for C.
    pub const fn get(&self) -> *mut T {
        UnsafeCell::get(&self.value).cast()
    }
}

/// Keeps a type on its CPU or task: it is neither `Send` nor `Sync`.
pub type NotThreadSafe = PhantomData<*mut ()>;

/// The value of [`NotThreadSafe`].
#[allow(non_upper_case_globals)]
pub const NotThreadSafe: NotThreadSafe = PhantomData;
