// SPDX-License-Identifier: MIT OR Apache-2.0

//! Brings the events of pairs together, in the order of their times.
//!
//! What is open is kept by its key: a pair and numbers, of which the first one may be the first of a range, as pages
//! are allocated together and freed one by one.

use super::rules::Part;
use crate::{gaps::Gaps, symbols::texts::ByNumber, tally::Key};
use std::collections::BTreeMap;

/// A key but for how far it goes: the number of the pair and of the rest of the key, and its first number.
type Place = (u32, u64);

/// An event of a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) time: u64,
    /// The first number of the key.
    pub(super) start: u64,
    /// The number of the pair and of the rest of the key.
    pub(super) space: u32,
    /// How many numbers from the first one on, as a power of two.
    pub(super) order: u8,
    pub(super) part: Part,
    /// Among the first events or the middle ones, which it is.
    pub(super) number: u32,
}

/// What begins with a first event.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) key: Key,
    /// How much it is of.
    pub(super) size: u64,
    /// The number of the name of its group.
    pub(super) group: u32,
    /// One that is not wanted has its last event all the same.
    pub(super) is_wanted: bool,
    /// Whether middle events are of any meaning: a task sleeps.
    pub(super) is_blocked: bool,
    /// Whether it goes on if it begins again.
    pub(super) goes_on: bool,
    /// Whether it began before the trace.
    pub(super) is_before: bool,
    /// Whether it is known to have no last event.
    pub(super) slept_on: bool,
}

/// What happens between a first and a last event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Middle {
    pub(super) key: Key,
    /// The number of the name of the task that did it.
    pub(super) comm: u32,
}

/// Who did it: the number of the task's name, or of what stands for none, and its stacks.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Waker {
    pub(super) comm: u32,
    pub(super) key: Key,
}

/// How something that has begun ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    /// With its last event.
    Last,
    /// It begins again, so that its last event is missing.
    Again,
    /// The trace ends before.
    Trace,
}

/// Something that has begun, or a part of it, and how it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) first: First,
    pub(super) since: u64,
    pub(super) until: u64,
    /// The first middle event.
    pub(super) middle: Option<(u64, Waker)>,
    pub(super) end: End,
    /// Whether no records are missing between its ends.
    pub(super) is_known: bool,
    /// How many numbers it is of, of how many.
    pub(super) len: u64,
    pub(super) of: u64,
}

/// What is open, or a part of it.
#[derive(Clone, Copy)]
struct Open {
    first: u32,
    since: u64,
    middle: Option<(u64, Waker)>,
    len: u64,
    of: u64,
}

/// What is open while the events go by.
pub(super) struct Joiner<'a> {
    firsts: &'a [First],
    middles: &'a [Middle],
    gaps: &'a Gaps,
    open: BTreeMap<Place, Open>,
    /// Middle events of what has not begun: a task that is about to leave its CPU is woken up.
    early: ByNumber<Place, (u64, Waker)>,
}

impl Step {
    fn place(&self) -> Place {
        (self.space, self.start)
    }

    fn len(&self) -> u64 {
        1 << self.order
    }
}

impl<'a> Joiner<'a> {
    pub(super) fn new(firsts: &'a [First], middles: &'a [Middle], gaps: &'a Gaps) -> Self {
        Self {
            firsts,
            middles,
            gaps,
            open: BTreeMap::new(),
            early: ByNumber::default(),
        }
    }

    /// Gives `out` all that begins in `steps`, which are in order, and its end; `end` is that of the trace. Returns how
    /// many last events end nothing.
    pub(super) fn join(mut self, steps: &[Step], end: u64, out: &mut dyn FnMut(Pair)) -> u64 {
        let mut nr_alone = 0;
        for step in steps {
            match step.part {
                Part::First => self.first(step, out),
                Part::Middle => self.middle(step),
                Part::Last => {
                    let early = self.early.remove(&step.place());
                    nr_alone += u64::from(!self.close(step, End::Last, early, out));
                }
            }
        }
        // Parts of the same are added up. Who came before it began has not ended it.
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        open.sort_unstable_by_key(|open| open.first);
        for parts in open.chunk_by(|one, other| one.first == other.first) {
            let len = parts.iter().map(|part| part.len).sum();
            out(self.pair(Open { len, ..parts[0] }, End::Trace, None, end));
        }
        nr_alone
    }

    fn first(&mut self, step: &Step, out: &mut dyn FnMut(Pair)) {
        let first = &self.firsts[step.number as usize];
        if first.goes_on && self.open.contains_key(&step.place()) {
            return;
        }
        self.close(step, End::Again, None, out);
        if !first.is_wanted {
            self.early.remove(&step.place());
        }
        let open = Open {
            first: step.number,
            since: step.time,
            middle: None,
            len: step.len(),
            of: step.len(),
        };
        self.open.insert(step.place(), open);
    }

    fn middle(&mut self, step: &Step) {
        let Middle { comm, key } = self.middles[step.number as usize];
        let middle = (step.time, Waker { comm, key });
        let open = self.open.get_mut(&step.place());
        let open = open.map(|open| (&self.firsts[open.first as usize], open));
        match open {
            Some((first, open)) if first.is_wanted => {
                if first.is_blocked {
                    open.middle.get_or_insert(middle);
                }
            }
            _ => drop(self.early.insert(step.place(), middle)),
        }
    }

    /// Ends what is open of the numbers of `step`. Returns whether anything is.
    fn close(
        &mut self,
        step: &Step,
        end: End,
        early: Option<(u64, Waker)>,
        out: &mut dyn FnMut(Pair),
    ) -> bool {
        // Ranges have their last number, as there may be none after it.
        let last = |from: u64, len: u64| from.saturating_add(len - 1);
        let (from, to) = (step.start, last(step.start, step.len()));
        let mut is_any = false;
        loop {
            let mut below = self.open.range((step.space, 0)..=(step.space, to));
            let Some((&(space, start), &open)) = below.next_back() else {
                return is_any;
            };
            let until = last(start, open.len);
            if until < from {
                return is_any;
            }
            self.open.remove(&(space, start));
            is_any = true;
            let (before, after) = (from.saturating_sub(start), until.saturating_sub(to));
            for (start, len) in [(start, before), (to.saturating_add(1), after)] {
                if len > 0 {
                    self.open.insert((space, start), Open { len, ..open });
                }
            }
            let len = open.len - before - after;
            out(self.pair(Open { len, ..open }, end, early, step.time));
            if start <= from {
                return is_any;
            }
        }
    }

    fn pair(&self, open: Open, end: End, early: Option<(u64, Waker)>, until: u64) -> Pair {
        let since = open.since;
        let early = early.filter(|(time, _)| !self.gaps.overlap(*time, since));
        let first = self.firsts[open.first as usize];
        Pair {
            first,
            since,
            until,
            middle: open.middle.or(early.map(|(_, waker)| (since, waker))),
            end,
            is_known: first.slept_on || !self.gaps.overlap(since, until),
            len: open.len,
            of: open.of,
        }
    }
}
