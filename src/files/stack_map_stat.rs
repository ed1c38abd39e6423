// SPDX-License-Identifier: GPL-2.0

//! `stack_map_stat`: counters, a line each, `key:` and a value.

use crate::{
    control,
    counters::{CounterKind, COUNTERS},
    map::Map,
    store,
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
    fn show(out: &Output<'_>) {
        let map = store::KERNEL.map();
        let map = map.as_deref();
        let bits = control::bits();
        let capacity = map.map_or(1 << bits, Map::capacity);
        let slots = map.map_or(2 << bits, Map::table_size);
        // Those that are added up are those that are shown.
        let totals = COUNTERS.each_ref().map(|counter| counter.total(map));
        let of = |kind| {
            COUNTERS
                .iter()
                .zip(totals)
                .filter(move |(counter, _)| counter.kind == kind)
        };
        let sum = |kind| of(kind).fold(0, |sum: u64, (_, total)| sum.saturating_add(total));
        let (successes, drops) = (sum(CounterKind::Success), sum(CounterKind::Drop));

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
        for kind in [CounterKind::Success, CounterKind::Drop, CounterKind::Saved] {
            of(kind).for_each(|(counter, total)| line(counter.key, total));
        }
        line("pool_bytes:", map.map_or(0, Map::pool_bytes));
        line("table_bytes:", map.map_or(0, Map::table_bytes));
        line("bits:", u64::from(bits));
        out.text(fmt!("{:<16}{}\n", "hook:", control::hook_name()));

        let line = |key: &str, value: u64| out.text(fmt!("{:<20}{}\n", key, value));
        out.text(fmt!("{:<16}{}\n", "unwind:", unwind::name()));
        line("unwind_rules:", unwind::nr_rules().into());
        of(CounterKind::Walk).for_each(|(counter, total)| line(counter.key, total));
    }
}

/// Returns the share of `part` in `whole`, rounded down, or [`None`] if `whole` is 0.
fn percent(part: u64, whole: u64) -> Option<u64> {
    // Dividing first where the product would not fit loses less than one percent of a percent.
    part.checked_mul(100)
        .and_then(|product| product.checked_div(whole))
        .or_else(|| part.checked_div(whole / 100))
}
