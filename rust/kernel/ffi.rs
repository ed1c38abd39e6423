// SPDX-License-Identifier: GPL-2.0

//! C types, as the kernel has them: `char` is unsigned, `long` is as wide as a pointer. Upstream: `rust/ffi.rs`.

#![allow(missing_docs, non_camel_case_types)]

pub use core::ffi::{c_void, CStr};

pub type c_char = u8;
pub type c_schar = i8;
pub type c_uchar = u8;
pub type c_short = i16;
pub type c_ushort = u16;
pub type c_int = i32;
pub type c_uint = u32;
pub type c_long = isize;
pub type c_ulong = usize;
pub type c_longlong = i64;
pub type c_ulonglong = u64;
