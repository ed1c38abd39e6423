// SPDX-License-Identifier: GPL-2.0

//! The kernel's log. Upstream: `rust/kernel/print.rs`, which formats with `%pA`: printk() has that with `CONFIG_RUST` only.

use crate::bindings;
use core::fmt::{self, Write};

/// The longest line, in bytes. The rest of a longer one is left out.
const LINE_MAX: usize = 512;

/// A line of the log.
struct Line {
    text: [u8; LINE_MAX],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = &mut self.text[self.len..];
        let len = text.len().min(rest.len());
        rest[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Prints a line at a level (`LOGLEVEL_ERR` and so on), after the module's name. Context: any.
#[doc(hidden)]
pub fn call_printk(level: u8, args: fmt::Arguments<'_>) {
    let mut line = Line {
        text: [0; LINE_MAX],
        len: 0,
    };
    // It never fails.
    let _ = line.write_fmt(args);
    // SAFETY: The text can be read for its length.
    unsafe { bindings::stackmap_rust_printk(level.into(), line.text.as_ptr(), line.len as i32) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! print_macro {
    ($level:literal, $($arg:tt)+) => {
        $crate::print::call_printk($level, ::core::format_args!($($arg)+))
    };
}

/// Prints at level `KERN_EMERG`.
#[macro_export]
macro_rules! pr_emerg {
    ($($arg:tt)*) => { $crate::print_macro!(0, $($arg)*) };
}

/// Prints at level `KERN_ERR`.
#[macro_export]
macro_rules! pr_err {
    ($($arg:tt)*) => { $crate::print_macro!(3, $($arg)*) };
}

/// Prints at level `KERN_WARNING`.
#[macro_export]
macro_rules! pr_warn {
    ($($arg:tt)*) => { $crate::print_macro!(4, $($arg)*) };
}

/// Prints at level `KERN_NOTICE`.
#[macro_export]
macro_rules! pr_notice {
    ($($arg:tt)*) => { $crate::print_macro!(5, $($arg)*) };
}

/// Prints at level `KERN_INFO`.
#[macro_export]
macro_rules! pr_info {
    ($($arg:tt)*) => { $crate::print_macro!(6, $($arg)*) };
}

/// Runs a statement the first time only. Upstream: `do_once_lite!`.
#[doc(hidden)]
#[macro_export]
macro_rules! do_once {
    ($print:expr) => {{
        static DONE: ::core::sync::atomic::AtomicBool =
            ::core::sync::atomic::AtomicBool::new(false);
        if !DONE.swap(true, ::core::sync::atomic::Ordering::Relaxed) {
            $print
        }
    }};
}

/// Prints at level `KERN_WARNING`, the first time only.
#[macro_export]
macro_rules! pr_warn_once {
    ($($arg:tt)*) => { $crate::do_once!($crate::pr_warn!($($arg)*)) };
}

/// Prints at level `KERN_INFO`, the first time only.
#[macro_export]
macro_rules! pr_info_once {
    ($($arg:tt)*) => { $crate::do_once!($crate::pr_info!($($arg)*)) };
}
