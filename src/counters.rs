// SPDX-License-Identifier: GPL-2.0

//! The counters that `stack_map_stat` shows.
//!
//! One rule for all counters: a reset does not write them, it only remembers their values. So
//! counting needs no synchronisation with a reset, and the values shown are those since the last
//! reset.

use crate::{
    map::{self, Map},
    record, shim,
    unwind::{self, WalkCounter},
};
use core::sync::atomic::{AtomicU64, Ordering};

/// One counter.
pub(crate) struct Counter {
    /// Its line in `stack_map_stat`, without the value.
    pub(crate) key: &'static str,
    /// The meaning of the counter.
    pub(crate) kind: CounterKind,
    source: Source,
}

/// The meaning of a counter.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum CounterKind {
    /// Events with an id.
    Success,
    /// Events without an id, by reason: they have a full stack.
    Drop,
    /// Bytes that ids have saved.
    Saved,
    /// How stacks were walked: frames by rules, frames by the kernel's unwinder (by reason), and
    /// stacks that the kernel's unwinder walked as a whole; then the results of `verify=1`.
    Walk,
    /// What became of its user stack; in `stack_map_user_stat`.
    User,
}

/// Where a counter is kept.
enum Source {
    /// In the map, which subtracts the values at the last reset itself.
    Map(map::MapCounter),
    /// Elsewhere: a function that returns the count since load, and the count at the last reset.
    SinceLoad(fn() -> u64, AtomicU64),
}

impl Counter {
    const fn of_map(key: &'static str, kind: CounterKind, counter: map::MapCounter) -> Self {
        Self {
            key,
            kind,
            source: Source::Map(counter),
        }
    }

    const fn new(key: &'static str, kind: CounterKind, since_load: fn() -> u64) -> Self {
        Self {
            key,
            kind,
            source: Source::SinceLoad(since_load, AtomicU64::new(0)),
        }
    }

    /// Returns the count since the last reset. Context: process.
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
    use map::MapCounter as OfMap;
    use CounterKind::*;

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
        Counter::new("unwind_slow_odd:", Walk, || {
            unwind::count(WalkCounter::Unsupported)
        }),
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

/// Those of user stacks.
pub(crate) static USER: [Counter; 43] = {
    use map::MapCounter as OfMap;
    use CounterKind::*;

    /// A counter of the C side.
    macro_rules! user {
        ($key:literal, $counter:ident) => {
            Counter::new($key, User, || {
                shim::stackmap_user_counted(shim::$counter) as u64
            })
        };
    }

    [
        user! { "requested:", STACKMAP_USER_REQUESTED },
        user! { "requested_again:", STACKMAP_USER_REQUESTED_AGAIN },
        user! { "in_nmi:", STACKMAP_USER_IN_NMI },
        user! { "not_user:", STACKMAP_USER_NOT_USER },
        user! { "refused:", STACKMAP_USER_REFUSED },
        user! { "late:", STACKMAP_USER_LATE },
        user! { "delivered:", STACKMAP_USER_DELIVERED },
        user! { "known:", STACKMAP_USER_KNOWN },
        user! { "bound:", STACKMAP_USER_BOUND },
        user! { "exec_flushed:", STACKMAP_USER_EXEC_FLUSHED },
        user! { "exec_stale:", STACKMAP_USER_EXEC_STALE },
        user! { "exec_late:", STACKMAP_USER_EXEC_LATE },
        user! { "exit_events:", STACKMAP_USER_EXIT_EVENTS },
        user! { "exit_bound:", STACKMAP_USER_EXIT_BOUND },
        user! { "exit_late:", STACKMAP_USER_EXIT_LATE },
        user! { "unbound:", STACKMAP_USER_UNBOUND },
        user! { "complete:", STACKMAP_USER_COMPLETE },
        user! { "cut_no_rule:", STACKMAP_USER_CUT_NO_RULE },
        user! { "cut_fault:", STACKMAP_USER_CUT_FAULT },
        user! { "cut_depth:", STACKMAP_USER_CUT_DEPTH },
        user! { "cut_fp:", STACKMAP_USER_CUT_FP },
        user! { "cut_no_memory:", STACKMAP_USER_CUT_NO_MEMORY },
        user! { "cut_bad_address:", STACKMAP_USER_CUT_BAD_ADDRESS },
        user! { "cut_no_cfi:", STACKMAP_USER_CUT_NO_CFI },
        user! { "cut_complex_cfi:", STACKMAP_USER_CUT_COMPLEX_CFI },
        user! { "guessed:", STACKMAP_USER_GUESSED },
        user! { "raw_frames:", STACKMAP_USER_RAW_FRAMES },
        user! { "binaries_full:", STACKMAP_USER_BINARIES_FULL },
        user! { "rules_learnt:", STACKMAP_USER_RULES_LEARNT },
        user! { "rules_none:", STACKMAP_USER_RULES_NONE },
        user! { "rules_absent:", STACKMAP_USER_RULES_ABSENT },
        user! { "tracked:", STACKMAP_USER_TRACKED },
        user! { "settled:", STACKMAP_USER_SETTLED },
        user! { "settle_lost:", STACKMAP_USER_SETTLE_LOST },
        Counter::of_map("hits:", User, OfMap::Hits),
        Counter::of_map("inserts:", User, OfMap::Inserts),
        Counter::of_map("drop_full:", User, OfMap::DropFull),
        Counter::of_map("drop_pool:", User, OfMap::DropPool),
        Counter::of_map("drop_growing:", User, OfMap::DropGrowing),
        Counter::of_map("drop_probe:", User, OfMap::DropProbe),
        Counter::of_map("drop_contended:", User, OfMap::DropContended),
        Counter::of_map("drop_reset:", User, OfMap::DropReset),
        user! { "drop_share:", STACKMAP_USER_DROP_SHARE },
    ]
};

/// Restarts all counters that are not in the map. Context: process, together with a map reset.
pub(crate) fn reset() {
    for counter in COUNTERS.iter().chain(&USER) {
        if let Source::SinceLoad(since_load, before) = &counter.source {
            before.store(since_load(), Ordering::Relaxed);
        }
    }
}
