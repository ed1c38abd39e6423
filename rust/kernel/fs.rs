// SPDX-License-Identifier: GPL-2.0

//! Files. Upstream: `rust/kernel/fs.rs` and `fs/file.rs`.

pub mod file;

pub use file::File;
