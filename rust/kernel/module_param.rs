// SPDX-License-Identifier: GPL-2.0

//! Parameters of the module, and the macro [`module!`](crate::module). Upstream: `rust/kernel/module_param.rs` and
//! `rust/macros/module.rs`.

use crate::bindings;
use core::cell::UnsafeCell;

/// A `struct kernel_param` in the section `__param`.
#[repr(transparent)]
pub struct KernelParam(bindings::kernel_param);

// SAFETY: Only the kernel uses it.
unsafe impl Sync for KernelParam {}

impl KernelParam {
    /// Wraps the structure of C.
    pub const fn new(param: bindings::kernel_param) -> Self {
        Self(param)
    }
}

/// The value of a parameter, which the kernel writes before the module is initialised, and never again.
pub struct ModuleParamAccess<T>(UnsafeCell<T>);

// SAFETY: Nobody writes it while the module runs.
unsafe impl<T: Sync> Sync for ModuleParamAccess<T> {}

impl<T> ModuleParamAccess<T> {
    #[doc(hidden)]
    pub const fn new(default: T) -> Self {
        Self(UnsafeCell::new(default))
    }

    /// Returns the value, as up to Linux 7.2; in 7.3, `value()` returns a `T`, and `value_ref()` this.
    pub fn value(&self) -> &T {
        // SAFETY: Nobody writes it any more.
        unsafe { &*self.0.get() }
    }

    #[doc(hidden)]
    pub const fn as_ptr(&self) -> *mut T {
        self.0.get()
    }
}

/// A type of a parameter.
#[doc(hidden)]
pub trait ModuleParam {
    /// How C sets it.
    const OPS: *const bindings::kernel_param_ops;
}

impl ModuleParam for u32 {
    const OPS: *const bindings::kernel_param_ops = &raw const bindings::param_ops_uint;
}

impl ModuleParam for u8 {
    const OPS: *const bindings::kernel_param_ops = &raw const bindings::param_ops_byte;
}

/// Returns the bytes of a string.
#[doc(hidden)]
pub const fn bytes<const N: usize>(text: &str) -> [u8; N] {
    match text.as_bytes().first_chunk() {
        Some(bytes) => *bytes,
        None => panic!(),
    }
}

/// Puts strings, joined, into the section `.modinfo`.
#[doc(hidden)]
#[macro_export]
macro_rules! modinfo {
    ($($part:expr),*) => {
        const _: () = {
            #[link_section = ".modinfo"]
            #[used(compiler)]
            static INFO: [u8; concat!($($part,)* "\0").len()] =
                $crate::module_param::bytes(concat!($($part,)* "\0"));
        };
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! parmtype {
    ($name:expr, u32) => {
        $crate::modinfo!("parmtype=", $name, ":uint");
    };
    ($name:expr, u8) => {
        $crate::modinfo!("parmtype=", $name, ":byte");
    };
}

/// Declares the module: its type, its information, and its parameters, which are statics in `module_parameters`.
#[macro_export]
macro_rules! module {
    (
        type: $type:ident,
        name: $name:literal,
        authors: [$($author:literal),* $(,)?],
        description: $description:literal,
        license: $license:literal,
        params: {
            $($param:ident: $param_type:ident { default: $default:literal, description: $text:literal $(,)? }),* $(,)?
        } $(,)?
    ) => {
        $crate::modinfo!("license=", $license);
        $crate::modinfo!("description=", $description);
        $($crate::modinfo!("author=", $author);)*

        #[allow(non_upper_case_globals)]
        pub(crate) mod module_parameters {
            $(
                pub(crate) static $param: $crate::module_param::ModuleParamAccess<$param_type> =
                    $crate::module_param::ModuleParamAccess::new($default);
                $crate::parmtype!(stringify!($param), $param_type);
                $crate::modinfo!("parm=", stringify!($param), ":", $text);
                const _: () = {
                    #[link_section = "__param"]
                    #[used(compiler)]
                    static PARAM: $crate::module_param::KernelParam =
                        $crate::module_param::KernelParam::new($crate::bindings::kernel_param {
                            name: concat!(stringify!($param), "\0").as_ptr().cast(),
                            mod_: (&raw const $crate::bindings::__this_module).cast_mut(),
                            ops: <$param_type as $crate::module_param::ModuleParam>::OPS,
                            perm: 0,
                            level: -1,
                            flags: 0,
                            __bindgen_anon_1: $crate::bindings::kernel_param__bindgen_ty_1 {
                                arg: $param.as_ptr().cast(),
                            },
                        });
                };
            )*
        }

        /// The entry points that the kernel calls, once each.
        mod module_entry {
            use super::$type;
            use $crate::{ffi::c_int, Module};

            struct Slot(::core::cell::UnsafeCell<Option<$type>>);

            // SAFETY: Only `init_module` and `cleanup_module` use it, one after the other.
            unsafe impl Sync for Slot {}

            static MODULE: Slot = Slot(::core::cell::UnsafeCell::new(None));

            /// # Safety
            ///
            /// The kernel calls it once, before anything else of the module.
            #[no_mangle]
            #[link_section = ".init.text"]
            unsafe extern "C" fn init_module() -> c_int {
                match <$type as Module>::init(&$crate::THIS_MODULE) {
                    Ok(module) => {
                        // SAFETY: Nobody else uses it now.
                        unsafe { *MODULE.0.get() = Some(module) };
                        0
                    }
                    Err(error) => error.to_errno(),
                }
            }

            /// # Safety
            ///
            /// The kernel calls it once, after `init_module` has returned 0.
            #[no_mangle]
            #[link_section = ".exit.text"]
            unsafe extern "C" fn cleanup_module() {
                // SAFETY: Nobody else uses it now.
                unsafe { *MODULE.0.get() = None };
            }

            // objtool seals an entry that nothing refers to.
            #[link_section = ".init.data"]
            #[used(compiler)]
            static INIT: unsafe extern "C" fn() -> c_int = init_module;
            #[link_section = ".exit.data"]
            #[used(compiler)]
            static CLEANUP: unsafe extern "C" fn() = cleanup_module;
        }
    };
}
