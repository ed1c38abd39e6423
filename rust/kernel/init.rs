// SPDX-License-Identifier: GPL-2.0

//! Initialisation in place. Upstream: `rust/kernel/init.rs` and the crate `pin_init` (`rust/pin-init/src/lib.rs`), of which
//! `src/` needs only what [`new_mutex!`](crate::sync::new_mutex) returns.

/// Initialises a `T` where it stays.
///
/// # Safety
///
/// [`PinInit::init`] initialises all of the memory.
pub unsafe trait PinInit<T>: Sized {
    /// # Safety
    ///
    /// `slot` is valid for writes of a `T`, which does not move until it is dropped.
    unsafe fn init(self, slot: *mut T);
}

/// A type of which all bytes can be zero.
///
/// # Safety
///
/// Zeros are a valid value.
pub unsafe trait Zeroable {}

macro_rules! zeroable {
    ($($type:ty),*) => {
        $(
            // SAFETY: An integer.
            unsafe impl Zeroable for $type {}
        )*
    };
}

zeroable!(u8, u16, u32, u64, usize);

// SAFETY: All its elements can be zero.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}
