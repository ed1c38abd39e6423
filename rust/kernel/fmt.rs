// SPDX-License-Identifier: GPL-2.0

//! Formatting. Upstream: `rust/kernel/fmt.rs`, which has a `Display` of its own; here it is that of `core`.

pub use core::fmt::{Arguments, Display, Formatter, Result, Write};
