// SPDX-License-Identifier: GPL-2.0

//! The kernel's C side as bindgen sees it, from `rust/bindings.h`. Upstream: `rust/bindings/lib.rs`.

#![allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

use crate::ffi;

include!(env!("STACKMAP_RUST_BINDINGS"));
