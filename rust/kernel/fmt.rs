// SPDX-License-Identifier: GPL-2.0

//! Formatting. Upstream: `rust/kernel/fmt.rs`.

pub use core::fmt::{Arguments, Display, Formatter, Result, Write};
