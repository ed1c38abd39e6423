// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is counted of pairs, and what is not, and why.

use super::{
    join::{End, Joiner, Pair, Step, Waker},
    rules::Part,
    By, Pairs, Preset, PREEMPTED, UNKNOWN,
};
use crate::{
    gaps::Gaps,
    notes::{count_of, Note},
    output::safe,
    tally::{Count, Key, Tally},
    trace::{Time, UserRef},
    weight::{duration, Unit},
};
use std::collections::HashSet;

/// Waits that are counted together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Row {
    /// The number of the name of the group.
    pub(super) group: u32,
    /// The stacks that the task waited in.
    pub(super) key: Key,
    pub(super) waker: Waker,
}

/// How often, and how long, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Split {
    pub(super) waits: u64,
    /// Until the tasks were woken up, or to the end if that is not known; from then on; and in waits of tasks that
    /// could have run on.
    pub(super) times: [u64; 3],
    pub(super) longest: u64,
}

impl Split {
    /// All of it.
    pub(super) fn total(&self) -> u64 {
        self.times.iter().copied().fold(0, u64::saturating_add)
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.waits += other.waits;
        for (time, other) in self.times.iter_mut().zip(other.times) {
            *time = time.saturating_add(other);
        }
        self.longest = self.longest.max(other.longest);
    }
}

/// What is not counted, by its reason.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct LeftOut {
    /// Records are missing.
    pub(super) unknown: Count,
    /// Begins again without an end.
    pub(super) again: Count,
    /// Has not ended when the trace ends.
    pub(super) open: Count,
    /// Began before the trace.
    pub(super) before: Count,
    /// Is younger than what is asked for.
    pub(super) younger: Count,
    /// Last events that end nothing.
    pub(super) nr_alone: u64,
}

impl Pairs {
    /// Brings first and last events together. Pairs during which records are missing are not known: the last event may
    /// be one of another first one.
    pub fn join(&mut self, gaps: &Gaps) {
        let mut steps = std::mem::take(&mut self.steps);
        // Events are given out when their stacks are, so those of two CPUs are not in order.
        let is_before =
            |step: &Step| step.part == Part::First && self.firsts[step.number as usize].is_before;
        steps.sort_by_key(|step| (!is_before(step), step.time));
        let unit = match (self.preset, self.rules.has_sizes()) {
            (Preset::Leaks { .. }, false) => Unit::Events,
            (Preset::Leaks { .. }, true) => Unit::Bytes,
            _ => Unit::Nanos,
        };
        self.tally = Tally::of(unit, std::mem::take(&mut self.keys));
        let firsts = std::mem::take(&mut self.firsts);
        let middles = std::mem::take(&mut self.middles);
        let nr_wanted = firsts.iter().filter(|first| first.is_wanted).count();
        let joiner = Joiner::new(&firsts, &middles, gaps);
        let end = self.end.map_or(0, Time::value);
        let nr_alone = joiner.join(&steps, end, &mut |pair| self.count(&pair));
        self.nr_wanted = nr_wanted as u64;
        // Of what begins, a filter may have left out all that these would be of.
        self.left_out.nr_alone = if nr_wanted == firsts.len() {
            nr_alone
        } else {
            0
        };
        self.has_wakings = !middles.is_empty();
        let times = self.times.values_mut();
        times.for_each(|times| times.sort_unstable());
        for (row, split) in &self.waits {
            let count = Count {
                events: split.waits,
                weight: split.total(),
                ..Count::default()
            };
            let group = self.names.get(row.group).0;
            self.tally.add_to(group, row.key, &count);
        }
    }

    /// Counts a pair, or why it is not.
    fn count(&mut self, pair: &Pair) {
        let first = &pair.first;
        let time = pair.until.saturating_sub(pair.since);
        let weight = match self.preset {
            Preset::Leaks { .. } => {
                let size = u128::from(first.size) * u128::from(pair.len) / u128::from(pair.of);
                u64::try_from(size).unwrap_or(u64::MAX)
            }
            _ => time,
        };
        let count = Count::one(weight, Time::Nanos(pair.since));
        let left_out = &mut self.left_out;
        let sum = match (self.preset, pair.end) {
            (Preset::Leaks { .. }, End::Again) => &mut left_out.again,
            (Preset::Leaks { .. }, End::Last) => return,
            _ if !first.is_wanted => return,
            // It ran again before the first event.
            (_, End::Again) if first.is_before => return,
            (Preset::Waits { .. }, End::Again) => &mut left_out.unknown,
            (Preset::Latencies, End::Again) => &mut left_out.again,
            (Preset::Latencies, End::Trace) => &mut left_out.open,
            _ if !pair.is_known => &mut left_out.unknown,
            (Preset::Waits { unfinished: false }, End::Trace) => &mut left_out.open,
            (Preset::Waits { unfinished: false }, _) if first.is_before => &mut left_out.before,
            (Preset::Waits { .. }, _) => return self.wait(pair, time),
            (Preset::Leaks { older }, _) if time < older => &mut left_out.younger,
            (preset, _) => {
                if preset == Preset::Latencies {
                    self.times.entry(first.group).or_default().push(time);
                }
                let group = self.names.get(first.group).0;
                return self.tally.add_to(group, first.key, &count);
            }
        };
        sum.merge(&count);
    }

    /// Counts a wait: blocked until the task is woken up, and runnable from then on.
    fn wait(&mut self, pair: &Pair, time: u64) {
        let none = |comm| Waker {
            comm,
            key: Key::NONE,
        };
        let (waker, times) = match (pair.first.is_blocked, pair.middle) {
            (false, _) => (none(PREEMPTED), [0, 0, time]),
            (true, None) => (none(UNKNOWN), [time, 0, 0]),
            (true, Some((at, waker))) => {
                let runnable = pair.until.saturating_sub(at);
                (waker, [time.saturating_sub(runnable), runnable, 0])
            }
        };
        let row = Row {
            group: match self.by {
                By::Waker => waker.comm,
                _ => pair.first.group,
            },
            key: pair.first.key,
            waker,
        };
        let split = Split {
            waits: 1,
            times,
            longest: time,
        };
        self.waits.entry(row).or_default().merge(&split);
    }

    /// The user stacks of waits, which are shown or folded with those of who ended them.
    pub fn users(&self) -> HashSet<u32> {
        let keys = self.waits.keys().flat_map(|row| [row.key, row.waker.key]);
        let ids = keys.filter_map(|key| match key.user {
            UserRef::Id(id) => Some(id),
            _ => None,
        });
        ids.collect()
    }

    /// What is not counted, and why.
    pub fn notes(&self) -> Vec<Note> {
        let LeftOut {
            unknown,
            again,
            open,
            before,
            younger,
            nr_alone,
        } = self.left_out;
        let mut notes = Vec::new();
        let mut note = |warning, nr: u64, text: String| {
            if nr > 0 {
                notes.push(Note { warning, text });
            }
        };
        let left_out = |what: String, why: &str| format!("not counted: {what}: {why}");
        let (nr, why) = (self.nr_without, self.lacking.as_deref());
        note(
            false,
            nr,
            left_out(count_of(nr, "event"), why.unwrap_or_default()),
        );
        if let (By::Field(field), false, Some(has)) =
            (&self.by, self.has_groups, &self.fields_of_first)
        {
            let text = format!("no first event has a field {field} (--by): {has}");
            note(false, 1, safe(&text).into_owned());
        }
        let missing = "records of that time are missing";
        match self.preset {
            Preset::Waits { .. } => {
                let left_out = |count: Count, why: &str| {
                    let waits = count_of(count.events, "wait");
                    format!("{waits} of {} not counted: {why}", duration(count.weight))
                };
                note(true, unknown.events, left_out(unknown, missing));
                let why = "the tasks still waited when the trace ended (--unfinished counts them)";
                note(false, open.events, left_out(open, why));
                let why =
                    "the tasks waited already when the recording began (--unfinished counts them)";
                note(false, before.events, left_out(before, why));
                let text = "no sched:sched_waking in the trace: it does not say who woke tasks up, and when";
                note(false, u64::from(!self.has_wakings), text.to_owned());
            }
            Preset::Latencies => {
                let again_why = "another one of the same key came before the last one";
                for (warning, nr, what, why) in [
                    (true, unknown.events, "pair", missing),
                    (
                        false,
                        open.events,
                        "first event",
                        "the last one is not in the trace",
                    ),
                    (false, again.events, "first event", again_why),
                    (
                        false,
                        nr_alone,
                        "last event",
                        "the first one is not in the trace",
                    ),
                ] {
                    note(warning, nr, left_out(count_of(nr, what), why));
                }
            }
            Preset::Leaks { older } => {
                let sum = |count: Count| {
                    let nr = count_of(count.events, "allocation");
                    match self.tally.unit() {
                        Unit::Events => nr,
                        unit => format!("{nr} of {}", unit.text(count.weight)),
                    }
                };
                let why = "records after them are missing, so they may have been freed";
                note(true, unknown.events, left_out(sum(unknown), why));
                let why = format!("younger than {} (--older)", duration(older));
                note(false, younger.events, left_out(sum(younger), &why));
                let text = "freed without an event, as something else was allocated there later: others that are \
                            freed so look outstanding";
                let nr = again.events;
                note(false, nr, format!("{} {text}", count_of(nr, "allocation")));
                let why = "what they free was allocated before the trace, or without an event";
                note(false, nr_alone, left_out(count_of(nr_alone, "free"), why));
            }
        }
        notes
    }
}
