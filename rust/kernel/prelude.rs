// SPDX-License-Identifier: GPL-2.0

//! What most files import. Upstream: `rust/kernel/prelude.rs`.

pub use crate::{
    alloc::{flags::*, KBox, KVVec, KVec, VVec},
    current,
    error::{code::*, Error, Result},
    ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void, CStr},
    init::Zeroable,
    module, pr_err, pr_info, pr_notice, pr_warn,
    str::CStrExt,
    ThisModule,
};
pub use core::{format_args as fmt, pin::Pin};
