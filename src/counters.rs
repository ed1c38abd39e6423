// SPDX-License-Identifier: GPL-2.0

//! The counters that `stack_map_stat` shows.
//!
//! One rule for all counters: a reset does not write them, it only remembers their values. So
//! counting needs no synchronisation with a reset, and the values shown are those since the last
//! reset.

use crate::{
    map::{self, Map},
    record, shim,
    unwind::{self, walk::WalkCounter},
};
use core::sync::atomic::{AtomicU64, Ordering};

/// One counter.
pub(crate) struct Counter {
    /// Its line in `stack_map_stat`, without the value.
    pub(crate) key: &'static str,
    /// The meaning of the counter.
    pub(crate) kind: Kind,
    source: Source,
}

/// The meaning of a counter.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Events with an id.
    Success,
    /// Events with a full stack, by reason.
    Drop,
    /// Bytes that ids have saved.
    Saved,
    /// How stacks were walked: frames by rules, frames by the kernel's unwinder (by reason), and
    /// stacks that the kernel's unwinder walked as a whole; then the results of `verify=1`.
    Walk,
}

/// Where a counter is kept.
enum Source {
    /// In the map, which subtracts the values at the last reset itself.
    Map(map::Counter),
    /// Elsewhere: a function that returns the count since load, and the count at the last reset.
    SinceLoad(fn() -> u64, AtomicU64),
}

impl Counter {
    const fn of_map(key: &'static str, kind: Kind, counter: map::Counter) -> Self {
        Self {
            key,
            kind,
            source: Source::Map(counter),
        }
    }

    const fn new(key: &'static str, kind: Kind, since_load: fn() -> u64) -> Self {
        Self {
            key,
            kind,
            source: Source::SinceLoad(since_load, AtomicU64::new(0)),
        }
    }

    /// The count since the last reset. Context: process.
    pub(crate) fn total(&self, map: Option<&Map>) -> u64 {
        match &self.source {
            Source::Map(counter) => map.map_or(0, |map| map.total(*counter)),
            Source::SinceLoad(since_load, before) => {
                since_load().saturating_sub(before.load(Ordering::Relaxed))
            }
        }
    }
}

/// All of them, in the order in which they are shown.
pub(crate) static COUNTERS: [Counter; 24] = {
    use map::Counter as OfMap;
    use Kind::*;

    [
        Counter::of_map("hits:", Success, OfMap::Hits),
        Counter::of_map("inserts:", Success, OfMap::Inserts),
        Counter::of_map("drop_full:", Drop, OfMap::DropFull),
        Counter::of_map("drop_pool:", Drop, OfMap::DropPool),
        Counter::of_map("drop_growing:", Drop, OfMap::DropGrowing),
        Counter::of_map("drop_probe:", Drop, OfMap::DropProbe),
        Counter::of_map("drop_contended:", Drop, OfMap::DropContended),
        Counter::of_map("drop_reset:", Drop, OfMap::DropReset),
        Counter::new("drop_nested:", Drop, || {
            shim::stackmap_stack_nested() as u64
        }),
        Counter::new("drop_missed:", Drop, || shim::stackmap_hook_missed() as u64),
        Counter::new("drop_unwatched:", Drop, record::unwatched),
        Counter::new("drop_foreign:", Drop, record::foreign),
        Counter::of_map("bytes_saved:", Saved, OfMap::BytesSaved),
        Counter::new("unwind_replaced:", Walk, unwind::nr_replaced),
        Counter::new("unwind_fast:", Walk, || unwind::count(WalkCounter::Fast)),
        Counter::new("unwind_slow_new:", Walk, || unwind::count(WalkCounter::New)),
        Counter::new("unwind_slow_text:", Walk, || {
            unwind::count(WalkCounter::Text)
        }),
        Counter::new("unwind_slow_odd:", Walk, || unwind::count(WalkCounter::Odd)),
        Counter::new("unwind_slow_regs:", Walk, || {
            unwind::count(WalkCounter::Registers)
        }),
        Counter::new("unwind_slow_return:", Walk, || {
            unwind::count(WalkCounter::Return)
        }),
        Counter::new("unwind_slow_stack:", Walk, || {
            unwind::count(WalkCounter::Stack)
        }),
        Counter::new("unwind_slow_whole:", Walk, || {
            unwind::count(WalkCounter::Whole)
        }),
        Counter::new("unwind_verified:", Walk, unwind::verified),
        Counter::new("unwind_mismatches:", Walk, unwind::mismatches),
    ]
};

/// Restarts all counters that are not in the map. Context: process, together with a map reset.
pub(crate) fn reset() {
    for counter in &COUNTERS {
        if let Source::SinceLoad(since_load, before) = &counter.source {
            before.store(since_load(), Ordering::Relaxed);
        }
    }
}
