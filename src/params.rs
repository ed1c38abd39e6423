// SPDX-License-Identifier: GPL-2.0

//! The module's parameters: numbers, and words, which the kernel's `module!` has no type for.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

use crate::{hook::HookChoice, module_parameters, unwind::UnwindChoice};
use core::borrow::Borrow;
use kernel::{bindings, module_param::KernelParam, prelude::*, sync::SetOnce};

/// Returns the `bits` of the capacity: 2^bits distinct stacks.
pub(crate) fn bits() -> u32 {
    // The kernel gives a reference to the value up to Linux 7.2, the value itself from 7.3 on.
    *Borrow::<u32>::borrow(&module_parameters::bits.value())
}

/// Returns the `bits` of the capacity for user stacks: 2^user_bits.
pub(crate) fn user_bits() -> u32 {
    *Borrow::<u32>::borrow(&module_parameters::user_bits.value())
}

/// Returns whether each stack is compared with the one that the kernel's unwinder finds.
pub(crate) fn verify() -> bool {
    *Borrow::<u8>::borrow(&module_parameters::verify.value()) != 0
}

/// Returns how the kernel is to be hooked.
pub(crate) fn hook() -> HookChoice {
    HOOK.copy().unwrap_or(HookChoice::Auto)
}

/// Returns how stacks are to be walked.
pub(crate) fn unwind() -> UnwindChoice {
    UNWIND.copy().unwrap_or(UnwindChoice::Auto)
}

/// A parameter that is one of a few words.
macro_rules! word_param {
    ($static:ident, $set:ident, $param:ident, $name:literal, $type:ty, {
        $($word:literal => $choice:expr),* $(,)?
    }) => {
        static $static: SetOnce<$type> = SetOnce::new();

        /// Sets the parameter. Context: process, while the module is being loaded.
        ///
        /// # Safety
        ///
        /// `val` is null or a string, as `struct kernel_param_ops.set` is called.
        unsafe extern "C" fn $set(
            val: *const c_char,
            _param: *const bindings::kernel_param,
        ) -> c_int {
            if val.is_null() {
                return EINVAL.to_errno();
            }
            // SAFETY: By the requirement, `val` is a string.
            let val = unsafe { CStr::from_char_ptr(val) }.to_bytes();
            let words = [$(($word, $choice)),*];
            let Some((_, choice)) = words.iter().find(|(word, _)| word.as_bytes() == val) else {
                pr_err!("{}\n", concat!($name, " is one of:", $(" ", $word),*));
                return EINVAL.to_errno();
            };
            if $static.populate(*choice) {
                0
            } else {
                EEXIST.to_errno()
            }
        }

        #[link_section = "__param"]
        #[used(compiler)]
        static $param: KernelParam = KernelParam::new(bindings::kernel_param {
            name: concat!($name, "\0").as_ptr().cast(),
            mod_: (&raw const bindings::__this_module).cast_mut(),
            ops: {
                static OPS: bindings::kernel_param_ops = bindings::kernel_param_ops {
                    flags: 0,
                    set: Some($set),
                    get: None,
                    free: None,
                };
                &raw const OPS
            },
            perm: 0,
            level: -1,
            flags: 0,
            __bindgen_anon_1: bindings::kernel_param__bindgen_ty_1 {
                arg: core::ptr::null_mut(),
            },
        });
    };
}

word_param!(HOOK, set_hook, HOOK_PARAM, "hook", HookChoice, {
    "auto" => HookChoice::Auto,
    "jump" => HookChoice::Jump,
    "kprobe" => HookChoice::Kprobe,
});

word_param!(UNWIND, set_unwind, UNWIND_PARAM, "unwind", UnwindChoice, {
    "auto" => UnwindChoice::Auto,
    "cached" => UnwindChoice::Cached,
    "kernel" => UnwindChoice::Kernel,
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
modinfo!(UNWIND_TYPE, b"parmtype=unwind:charp\0");
modinfo!(
    UNWIND_TEXT,
    b"parm=unwind:How to walk a stack: auto (default), cached or kernel\0"
);
