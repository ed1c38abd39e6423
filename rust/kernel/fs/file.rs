// SPDX-License-Identifier: GPL-2.0

//! An open file. Upstream: `rust/kernel/fs/file.rs`.

use crate::{bindings, sync::aref::AlwaysRefCounted, types::Opaque};
use core::ptr::NonNull;

/// Flags of `struct file.f_flags`.
pub mod flags {
    use crate::bindings;

    /// The access mode.
    pub const O_ACCMODE: u32 = bindings::O_ACCMODE;
    /// Open for reading only.
    pub const O_RDONLY: u32 = bindings::O_RDONLY;
    /// Open for writing only.
    pub const O_WRONLY: u32 = bindings::O_WRONLY;
}

/// A `struct file`.
#[repr(transparent)]
pub struct File(Opaque<bindings::file>);

// SAFETY: Any task can use a file that it has a reference to.
unsafe impl Send for File {}
// SAFETY: As above.
unsafe impl Sync for File {}

// SAFETY: The reference count of `struct file` keeps it.
unsafe impl AlwaysRefCounted for File {
    unsafe fn dec_ref(file: NonNull<Self>) {
        // SAFETY: The caller gives its reference away.
        unsafe { bindings::fput(file.as_ptr().cast()) }
    }
}
