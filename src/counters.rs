// SPDX-License-Identifier: GPL-2.0

//! What is counted outside the map, as `stack_map_stat` shows it.
//!
//! One rule for all counters, those of the map included: they are never written by a reset, which
//! only remembers what they were. So whoever counts meanwhile needs no care, and what is shown is
//! what came since.

use crate::{
    record, shim,
    unwind::{self, walk::Found},
};
use core::sync::atomic::{AtomicU64, Ordering};

/// One counter.
pub(crate) struct Counter {
    /// Its line in `stack_map_stat`, without the value.
    pub(crate) key: &'static str,
    /// What was counted since the module was loaded.
    ever: fn() -> u64,
    /// What was counted before the last reset.
    before: AtomicU64,
}

impl Counter {
    const fn new(key: &'static str, ever: fn() -> u64) -> Self {
        Self {
            key,
            ever,
            before: AtomicU64::new(0),
        }
    }

    /// What was counted since the last reset. Context: process.
    pub(crate) fn total(&self) -> u64 {
        (self.ever)().saturating_sub(self.before.load(Ordering::Relaxed))
    }
}

/// Reasons of a full stack that the map does not know.
pub(crate) static DROPS: [Counter; 4] = [
    Counter::new("drop_nested:", shim::nested),
    Counter::new("drop_missed:", shim::missed),
    Counter::new("drop_unwatched:", record::unwatched),
    Counter::new("drop_foreign:", record::foreign),
];

/// How stacks were walked: frames by a rule, frames that the kernel's unwinder was asked for, by
/// reason, and whole stacks that it walked; then what `verify=1` has found.
pub(crate) static UNWINDING: [Counter; 11] = [
    Counter::new("unwind_replaced:", unwind::nr_replaced),
    Counter::new("unwind_fast:", || unwind::count(Found::Fast)),
    Counter::new("unwind_slow_new:", || unwind::count(Found::New)),
    Counter::new("unwind_slow_text:", || unwind::count(Found::Text)),
    Counter::new("unwind_slow_odd:", || unwind::count(Found::Odd)),
    Counter::new("unwind_slow_regs:", || unwind::count(Found::Registers)),
    Counter::new("unwind_slow_return:", || unwind::count(Found::Return)),
    Counter::new("unwind_slow_stack:", || unwind::count(Found::Stack)),
    Counter::new("unwind_slow_whole:", || unwind::count(Found::Whole)),
    Counter::new("unwind_verified:", shim::verified),
    Counter::new("unwind_mismatches:", shim::mismatches),
];

/// Begins to count anew. Context: process, with the reset of the map.
pub(crate) fn reset() {
    for counter in DROPS.iter().chain(&UNWINDING) {
        counter.before.store((counter.ever)(), Ordering::Relaxed);
    }
}
