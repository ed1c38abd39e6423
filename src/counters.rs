// SPDX-License-Identifier: GPL-2.0

//! All that is counted, as `stack_map_stat` shows it.
//!
//! One rule for all counters: they are never written by a reset, which only remembers what they were.
//! So whoever counts meanwhile needs no care, and what is shown is what came since.

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
    /// What it says of an event.
    pub(crate) kind: Kind,
    source: Source,
}

/// What a counter says of an event.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Kind {
    /// It has an id.
    Success,
    /// It has a full stack, for this reason.
    Drop,
    /// What ids have saved.
    Saved,
    /// How its stack was walked: frames by a rule, frames that the kernel's unwinder was asked for, by
    /// reason, and whole stacks that it walked; then what `verify=1` has found.
    Walk,
}

/// Who counts.
enum Source {
    /// The map, which has the same rule.
    Map(map::Counter),
    /// Somebody else, since the module was loaded; and what that was at the last reset.
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

    /// What was counted since the last reset. Context: process.
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

/// Begins to count anew. Context: process, with the reset of the map.
pub(crate) fn reset() {
    for counter in &COUNTERS {
        if let Source::SinceLoad(since_load, before) = &counter.source {
            before.store(since_load(), Ordering::Relaxed);
        }
    }
}
