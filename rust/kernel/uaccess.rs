// SPDX-License-Identifier: GPL-2.0

//! Memory of user space. Upstream: `rust/kernel/uaccess.rs`.

use crate::{
    bindings,
    error::{code::EFAULT, Result},
    ffi::c_void,
};

/// A pointer into user space.
#[derive(Clone, Copy)]
pub struct UserPtr(*mut c_void);

impl UserPtr {
    /// Wraps a user-space pointer of C.
    pub fn from_ptr(ptr: *mut c_void) -> Self {
        Self(ptr)
    }
}

/// A range of user space.
pub struct UserSlice {
    ptr: UserPtr,
    len: usize,
}

impl UserSlice {
    /// Returns a range of `len` bytes.
    pub fn new(ptr: UserPtr, len: usize) -> Self {
        Self { ptr, len }
    }

    /// Returns a reader of the range.
    pub fn reader(self) -> UserSliceReader {
        UserSliceReader(self)
    }
}

/// Reads a [`UserSlice`].
pub struct UserSliceReader(UserSlice);

impl UserSliceReader {
    /// Reads as many bytes as `out` has. EFAULT: the range is shorter, or cannot be read. Context: process.
    pub fn read_slice(&mut self, out: &mut [u8]) -> Result {
        let UserSlice { ptr, len } = self.0;
        if out.len() > len {
            return Err(EFAULT);
        }
        // SAFETY: `out` can be written for its length; the user's memory is checked by the function.
        match unsafe {
            bindings::stackmap_rust_copy_from_user(out.as_mut_ptr().cast(), ptr.0, out.len())
        } {
            0 => {
                let ptr = UserPtr(ptr.0.wrapping_byte_add(out.len()));
                self.0 = UserSlice::new(ptr, len - out.len());
                Ok(())
            }
            _ => Err(EFAULT),
        }
    }
}
