// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was allocated and not freed before the trace ended.

use super::{left_out, First, Step, Trail};
use crate::{
    gaps::Gaps,
    notes::{count_of, Note},
    tally::{Count, Tally},
    trace::Time,
    weight::{duration, Unit},
};
use std::collections::BTreeMap;

/// Where something begins: the pair, the other numbers of its key, and the first one.
type Place = (u32, Box<[u64]>, u64);

/// Something that was allocated.
struct Alloc {
    first: First,
    /// How many numbers it takes, and how many of them are not freed.
    len: u64,
    left: u64,
}

/// A part of something that is not freed: how many numbers, and the number of the [`Alloc`].
#[derive(Clone, Copy)]
struct Part {
    len: u64,
    alloc: usize,
}

/// What is not freed, while a trace is read.
#[derive(Default)]
struct Memory {
    allocs: Vec<Alloc>,
    parts: BTreeMap<Place, Part>,
    /// Parts of how many others were allocated again, so that they were freed before.
    nr_unseen: u64,
    /// How many were freed that were not allocated in the trace.
    nr_unknown: u64,
}

impl Memory {
    fn add(&mut self, step: Step) {
        let (start, rest) = step.id.split_first().unwrap_or((&0, &[]));
        let (start, rest): (u64, Box<[u64]>) = (*start, rest.into());
        let freed = self.free(step.pair, &rest, start, step.len);
        let Some(first) = step.first else {
            self.nr_unknown += u64::from(freed == 0);
            return;
        };
        self.nr_unseen += freed;
        let part = Part {
            len: step.len,
            alloc: self.allocs.len(),
        };
        self.allocs.push(Alloc {
            first,
            len: step.len,
            left: step.len,
        });
        self.parts.insert((step.pair, rest, start), part);
    }

    /// Frees `len` numbers from `start` on. Returns of how many parts.
    fn free(&mut self, pair: u32, rest: &[u64], start: u64, len: u64) -> u64 {
        // Ranges have their last number, as there may be none behind it.
        let last = |from: u64, len: u64| from.saturating_add(len.saturating_sub(1));
        let end = last(start, len);
        let place = |from| (pair, Box::from(rest), from);
        let mut freed = 0;
        loop {
            let mut below = self.parts.range(place(0)..=place(end));
            let Some(((_, _, from), part)) = below.next_back() else {
                return freed;
            };
            let (from, part) = (*from, *part);
            let until = last(from, part.len);
            if until < start {
                return freed;
            }
            self.parts.remove(&place(from));
            freed += 1;
            let alloc = &mut self.allocs[part.alloc];
            let mut keep = |from: u64, len: u64| {
                if len > 0 {
                    let alloc = part.alloc;
                    self.parts.insert(place(from), Part { len, alloc });
                }
                len
            };
            let before = keep(from, start.saturating_sub(from));
            let behind = keep(end.saturating_add(1), until.saturating_sub(end));
            alloc.left = alloc.left.saturating_sub(part.len - (before + behind));
            if from <= start {
                return freed;
            }
        }
    }
}

/// What was not freed.
pub struct Leaks {
    /// By stack; the times are those of the allocations.
    pub tally: Tally,
    /// When the trace ended.
    pub end: Time,
    /// How many allocations there were.
    pub nr_allocs: u64,
    notes: Vec<Note>,
}

impl Leaks {
    /// What is said of the result.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

/// Brings allocations and frees together. Of what was allocated before records are missing, it is not known whether it was
/// freed. `older`: what is younger at the end, in nanoseconds, is left out.
pub fn leaks(mut trail: Trail<'_>, gaps: &Gaps, older: u64) -> Leaks {
    let end = trail.end.unwrap_or(Time::Nanos(0));
    let mut memory = Memory::default();
    let steps = trail.take_steps();
    let is_filtered = Trail::is_filtered(&steps);
    for step in steps {
        memory.add(step);
    }
    let unit = match trail.rules.has_sizes {
        true => Unit::Bytes,
        false => Unit::Events,
    };
    let mut notes = trail.notes();
    let mut tally = Tally::of(unit.clone(), std::mem::take(&mut trail.keys));
    let (mut unknown, mut younger) = (Count::default(), Count::default());
    let mut nr_allocs = 0;
    for alloc in &memory.allocs {
        let First {
            time,
            group,
            key,
            size,
            is_wanted,
        } = alloc.first;
        nr_allocs += u64::from(is_wanted);
        if alloc.left == 0 || !is_wanted {
            continue;
        }
        let left = u128::from(size) * u128::from(alloc.left) / u128::from(alloc.len);
        let count = Count::one(u64::try_from(left).unwrap_or(u64::MAX), time);
        if gaps.overlap(time.value(), end.value()) {
            unknown.merge(&count);
        } else if end.value().saturating_sub(time.value()) < older {
            younger.merge(&count);
        } else {
            tally.add_to(trail.names.get(group).0, key, &count);
        }
    }
    let sum = |count: &Count| {
        let nr = count_of(count.events, "allocation");
        match unit {
            Unit::Events => nr,
            _ => format!("{nr} of {}", unit.text(count.weight)),
        }
    };
    if unknown.events > 0 {
        let unknown = sum(&unknown);
        notes.push(Note {
            warning: true,
            text: format!(
                "not counted: {unknown}: records behind them are missing, so they may have been freed"
            ),
        });
    }
    if younger.events > 0 {
        let (younger, older) = (sum(&younger), duration(older));
        notes.push(Note {
            warning: false,
            text: format!("not counted: {younger}: younger than {older} (--older)"),
        });
    }
    if memory.nr_unseen > 0 {
        let unseen = count_of(memory.nr_unseen, "allocation");
        notes.push(Note {
            warning: false,
            text: format!(
                "{unseen} freed without an event, as something else was allocated there later: \
                 others that are freed so look outstanding"
            ),
        });
    }
    let why = "what they free was allocated before the trace, or without an event";
    if !is_filtered {
        notes.extend(left_out(memory.nr_unknown, "free", why));
    }
    Leaks {
        tally,
        end,
        nr_allocs,
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Key;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn step(pair: u32, rest: u64, start: u64, len: u64, size: Option<u64>) -> Step {
        let first = size.map(|size| First {
            time: Time::Nanos(0),
            group: 0,
            key: Key::NONE,
            size,
            is_wanted: true,
        });
        Step {
            time: 0,
            pair,
            id: [start, rest].into(),
            len,
            first,
            goes_on: false,
        }
    }

    /// How much is left of each allocation.
    fn left(steps: &[(bool, u32, u64, u64, u64)]) -> (Vec<u64>, u64, u64) {
        let mut memory = Memory::default();
        for (is_first, pair, rest, start, len) in steps {
            memory.add(step(*pair, *rest, *start, *len, is_first.then_some(1)));
        }
        // What is left of each is what its parts have.
        let mut sums = vec![0; memory.allocs.len()];
        for part in memory.parts.values() {
            sums[part.alloc] += part.len;
        }
        let left: Vec<_> = memory.allocs.iter().map(|alloc| alloc.left).collect();
        assert_eq!(left, sums);
        (left, memory.nr_unseen, memory.nr_unknown)
    }

    /// The same, number by number.
    fn left_by_numbers(steps: &[(bool, u32, u64, u64, u64)]) -> Vec<u64> {
        let mut owners = HashMap::new();
        let mut left: Vec<u64> = Vec::new();
        for (is_first, pair, rest, start, len) in steps {
            let place = |number| (*pair, *rest, number);
            let numbers = *start..start + len;
            for number in numbers.clone() {
                if let Some(owner) = owners.remove(&place(number)) {
                    left[owner] -= 1;
                }
            }
            if *is_first {
                owners.extend(numbers.map(|number| (place(number), left.len())));
                left.push(*len);
            }
        }
        left
    }

    #[test]
    fn what_is_freed_in_parts_is_left_in_parts() {
        let alloc = |start, len| (true, 0, 0, start, len);
        let free = |start, len| (false, 0, 0, start, len);
        assert_eq!(left(&[alloc(8, 4), free(8, 4)]), (vec![0], 0, 0));
        assert_eq!(left(&[alloc(8, 4), free(9, 1)]), (vec![3], 0, 0));
        assert_eq!(left(&[alloc(8, 4), free(0, 9)]), (vec![3], 0, 0));
        assert_eq!(left(&[alloc(8, 4), free(12, 1)]), (vec![4], 0, 1));
        assert_eq!(left(&[alloc(8, 4), free(7, 1)]), (vec![4], 0, 1));
        let both = [alloc(8, 4), alloc(12, 4), free(10, 4)];
        assert_eq!(left(&both), (vec![2, 2], 0, 0));
        // The same numbers of another pair, and with another key.
        let others = [(true, 1, 0, 8, 1), (true, 0, 5, 8, 1), free(8, 1)];
        assert_eq!(left(&others), (vec![1, 1], 0, 1));
    }

    #[test]
    fn what_is_allocated_again_was_freed() {
        let again = [(true, 0, 0, 8, 1), (true, 0, 0, 8, 1)];
        assert_eq!(left(&again), (vec![0, 1], 1, 0));
    }

    proptest! {
        #[test]
        fn parts_are_counted_as_numbers_are(
            steps in prop::collection::vec((any::<bool>(), 0..2u32, 0..2u64, 0..24u64, 1..9u64), 0..60)
        ) {
            prop_assert_eq!(left(&steps).0, left_by_numbers(&steps));
        }
    }
}
