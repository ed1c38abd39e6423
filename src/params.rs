// SPDX-License-Identifier: GPL-2.0

//! The module's parameters: `bits`, and `hook`, a word, which the kernel's `module!` has no type for.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

use crate::{hook::HookChoice, module_parameters};
use core::borrow::Borrow;
use kernel::{bindings, module_param::KernelParam, prelude::*, sync::SetOnce};

static HOOK: SetOnce<HookChoice> = SetOnce::new();

/// The capacity asked for: 2^bits distinct stacks.
pub(crate) fn bits() -> u32 {
    // The kernel gives a reference to the value up to Linux 7.2, the value itself from 7.3 on.
    *Borrow::<u32>::borrow(&module_parameters::bits.value())
}

/// How the kernel is to be hooked, as the parameter says.
pub(crate) fn hook() -> HookChoice {
    HOOK.copy().unwrap_or(HookChoice::Auto)
}

/// Sets the parameter. Context: process, while the module is being loaded.
///
/// # Safety
///
/// `val` is null or a string, as `struct kernel_param_ops.set` is called.
unsafe extern "C" fn set_hook(val: *const c_char, _param: *const bindings::kernel_param) -> c_int {
    if val.is_null() {
        return EINVAL.to_errno();
    }
    // SAFETY: By the requirement, `val` is a string.
    let choice = match unsafe { CStr::from_char_ptr(val) }.to_bytes() {
        b"auto" => HookChoice::Auto,
        b"jump" => HookChoice::Jump,
        b"kprobe" => HookChoice::Kprobe,
        _ => {
            pr_err!("hook is one of auto, jump and kprobe\n");
            return EINVAL.to_errno();
        }
    };
    if HOOK.populate(choice) {
        0
    } else {
        EEXIST.to_errno()
    }
}

static HOOK_OPS: bindings::kernel_param_ops = bindings::kernel_param_ops {
    flags: 0,
    set: Some(set_hook),
    get: None,
    free: None,
};

#[link_section = "__param"]
#[used(compiler)]
static HOOK_PARAM: KernelParam = KernelParam::new(bindings::kernel_param {
    name: kernel::str::as_char_ptr_in_const_context(c"hook"),
    mod_: (&raw const bindings::__this_module).cast_mut(),
    ops: core::ptr::from_ref(&HOOK_OPS),
    perm: 0,
    level: -1,
    flags: 0,
    __bindgen_anon_1: bindings::kernel_param__bindgen_ty_1 {
        arg: core::ptr::null_mut(),
    },
});

/// What `modinfo` shows.
macro_rules! modinfo {
    ($name:ident, $text:literal) => {
        #[link_section = ".modinfo"]
        #[used(compiler)]
        static $name: [u8; $text.len()] = *$text;
    };
}

modinfo!(HOOK_TYPE, b"parmtype=hook:charp\0");
modinfo!(
    HOOK_TEXT,
    b"parm=hook:How to reach __ftrace_trace_stack: auto (default), jump or kprobe\0"
);
