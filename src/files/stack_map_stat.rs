// SPDX-License-Identifier: GPL-2.0

//! `stack_map_stat`: counters, a line each, `key:` and a value.

use crate::{
    control,
    counters::{DROPS, UNWINDING},
    map::{Counter, Map},
    record,
    tracefs::{File, Output, Single, Text},
    unwind,
};
use kernel::{bindings::umode_t, prelude::*};

pub(super) struct StackMapStat;

impl File for StackMapStat {
    const NAME: &'static CStr = c"stack_map_stat";
    const MODE: umode_t = 0o440;
    type Reader = Single<Self>;
}

impl Text for StackMapStat {
    fn show(out: &Output) {
        let map = record::map();
        let map = map.as_deref();
        let total = |counter| map.map_or(0, |map| map.total(counter));
        let bits = control::bits();
        let capacity = map.map_or(1 << bits, Map::capacity);
        let slots = map.map_or(2 << bits, Map::table_size);

        let (hits, inserts) = (total(Counter::Hits), total(Counter::Inserts));
        let successes = hits.saturating_add(inserts);
        let [nested, missed, unwatched, foreign] = DROPS
            .each_ref()
            .map(|counter| (counter.key, counter.total()));
        let reasons = [
            ("drop_full:", total(Counter::DropFull)),
            ("drop_pool:", total(Counter::DropPool)),
            ("drop_growing:", total(Counter::DropGrowing)),
            ("drop_probe:", total(Counter::DropProbe)),
            ("drop_contended:", total(Counter::DropContended)),
            ("drop_reset:", total(Counter::DropReset)),
            nested,
            missed,
            unwatched,
            foreign,
        ];
        let drops = reasons
            .iter()
            .fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));

        let line = |key: &str, value: u64| out.text(fmt!("{:<16}{}\n", key, value));
        out.text(fmt!(
            "{:<16}{} / {}\n",
            "entries:",
            map.map_or(0, Map::entries),
            capacity
        ));
        line("table_size:", slots as u64);
        line("successes:", successes);
        line("drops:", drops);
        if let Some(rate) = percent(successes, successes.saturating_add(drops)) {
            out.text(fmt!("{:<16}{}%\n", "success_rate:", rate));
        }

        line("hits:", hits);
        line("inserts:", inserts);
        for (key, n) in reasons {
            line(key, n);
        }
        line("bytes_saved:", total(Counter::BytesSaved));
        line("pool_bytes:", map.map_or(0, Map::pool_bytes));
        line("table_bytes:", map.map_or(0, Map::table_bytes));
        line("bits:", u64::from(bits));
        out.text(fmt!("{:<16}{}\n", "hook:", control::hook_name()));
        unwinding(out);
    }
}

/// How stacks were walked.
fn unwinding(out: &Output) {
    let line = |key: &str, value: u64| out.text(fmt!("{:<20}{}\n", key, value));
    out.text(fmt!("{:<16}{}\n", "unwind:", unwind::name()));
    line("unwind_rules:", unwind::nr_rules().into());
    for counter in &UNWINDING {
        line(counter.key, counter.total());
    }
}

/// The share of `part` in `whole`, rounded down. [`None`] if there is no whole.
fn percent(part: u64, whole: u64) -> Option<u64> {
    // Dividing first where the product would not fit loses less than one percent of a percent.
    part.checked_mul(100)
        .and_then(|product| product.checked_div(whole))
        .or_else(|| part.checked_div(whole / 100))
}
