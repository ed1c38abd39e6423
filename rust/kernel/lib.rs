// SPDX-License-Identifier: GPL-2.0

//! The facade of the bundled build: what `src/` uses of the crate `kernel` of Linux 7.2, with its paths and signatures,
//! over C, so that the module needs no `CONFIG_RUST`.
//!
//! Each file names the upstream file that it mirrors. An item that `src/` does not use does not belong here.

#![no_std]

pub mod alloc;
pub mod bindings;
pub mod error;
pub mod ffi;
pub mod fmt;
pub mod fs;
pub mod init;
pub mod module_param;
pub mod prelude;
pub mod print;
pub mod seq_file;
pub mod str;
pub mod sync;
pub mod task;
pub mod time;
pub mod types;
pub mod uaccess;

/// The loaded module, as [`Module::init`] gets it. Upstream: `rust/kernel/lib.rs`, from 7.3 on `module.rs`.
pub struct ThisModule(());

/// The value that [`module!`] passes to [`Module::init`]. Upstream: `rust/macros/module.rs`, a static of each module.
#[doc(hidden)]
pub static THIS_MODULE: ThisModule = ThisModule(());

/// A module: made when it is loaded, dropped when it is unloaded. Upstream: `rust/kernel/lib.rs`, from 7.3 on
/// `module.rs`.
pub trait Module: Sized + Sync + Send {
    /// Initialises the module. Context: process. An error is the errno of `insmod`.
    fn init(module: &'static ThisModule) -> error::Result<Self>;
}

/// Stops the kernel's current task, as `BUG()` does. Upstream: `rust/kernel/lib.rs`.
#[cfg(target_os = "none")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    pr_emerg!("{}\n", info);
    // SAFETY: It has no precondition.
    unsafe { bindings::rust_helper_BUG() }
}
