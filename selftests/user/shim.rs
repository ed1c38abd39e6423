// SPDX-License-Identifier: GPL-2.0

//! The structures of `include/stackmap_shim.h` that distinguish files.

#![expect(non_camel_case_types, reason = "those of C")]

use kernel::error::Error;

/// What distinguishes a file from all others.
#[derive(Default)]
pub(crate) struct stackmap_file_key {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) medium: u64,
    pub(crate) inode: u64,
    pub(crate) ctime_sec: i64,
    pub(crate) ctime_nsec: u32,
    pub(crate) generation: u32,
    pub(crate) size: u64,
    pub(crate) owner: u64,
    pub(crate) type_: u64,
}

/// What is shown of a file.
pub(crate) struct stackmap_binary {
    pub(crate) build_id_len: u32,
    pub(crate) path_len: u32,
    pub(crate) build_id: [u8; 20],
    pub(crate) path: [u8; 4096],
}

/// Returns an errno as an error.
pub(crate) fn errno(code: u32) -> Error {
    Error::from_errno(-(code as i32))
}
