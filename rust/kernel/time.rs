// SPDX-License-Identifier: GPL-2.0

//! Spans of time. Upstream: `rust/kernel/time.rs` and `time/delay.rs`.

/// A span of time, in milliseconds.
#[derive(Clone, Copy)]
pub struct Delta(u32);

impl Delta {
    /// Returns a span of milliseconds; 0 if it is negative.
    pub const fn from_millis(millis: i64) -> Self {
        Self(if millis < 0 { 0 } else { millis as u32 })
    }
}

/// Sleeping.
pub mod delay {
    use super::Delta;
    use crate::bindings;

    /// Sleeps at least as long as `delta`, by msleep(), so at least a jiffy. Context: process, may sleep.
    pub fn fsleep(delta: Delta) {
        // SAFETY: It has no precondition but the context.
        unsafe { bindings::msleep(delta.0) }
    }
}
