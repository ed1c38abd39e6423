// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counts events by what they have in common, and by stack.

use crate::{
    source::{Loaded, Missing},
    stacks::Stacks,
    trace::{Event, StackRef, Time},
};
use std::{cmp::Reverse, collections::HashMap, fmt};

/// What events of a group have in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum By {
    /// The event.
    Event,
    /// The name of the task.
    Comm,
    /// The CPU.
    Cpu,
    /// The stack, whatever the event.
    Stack,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::Event => "event",
            By::Comm => "comm",
            By::Cpu => "cpu",
            By::Stack => "stack",
        })
    }
}

/// A stack, among those of one [`Tally`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Key {
    /// It has this id.
    Id(u32),
    /// It was in the trace; the number is the tally's own.
    Whole(u32),
    /// There is none.
    None,
}

/// What stands for the frames of an event without a stack.
pub const NO_STACK: &str = "(no stack)";

/// How often, and when.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Count {
    /// How often.
    pub events: u64,
    /// The first and the last time, if they are known.
    pub span: Option<(Time, Time)>,
}

impl Count {
    fn add(&mut self, events: u64, time: Option<Time>) {
        self.events = self.events.saturating_add(events);
        self.merge_span(time.map(|time| (time, time)));
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Count) {
        self.events = self.events.saturating_add(other.events);
        self.merge_span(other.span);
    }

    fn merge_span(&mut self, span: Option<(Time, Time)>) {
        let Some((from, to)) = span else { return };
        self.span = Some(match self.span {
            Some((first, last)) => (first.min(from), last.max(to)),
            None => (from, to),
        });
    }
}

/// Events that have something in common.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// What it is.
    pub name: &'a str,
    /// How often and when in all.
    pub total: Count,
    /// The same of each stack.
    pub stacks: Vec<(Key, Count)>,
}

/// Events counted by group and by stack.
#[derive(Default)]
pub struct Tally {
    groups: Vec<String>,
    group_numbers: HashMap<String, u32>,
    wholes: Vec<Vec<String>>,
    whole_numbers: HashMap<Vec<String>, u32>,
    counts: HashMap<(u32, Key), Count>,
}

impl Tally {
    /// Counts an event.
    pub fn add(&mut self, by: By, event: &Event, stack: StackRef<'_>) {
        let group = match by {
            By::Event => self.group(&event.name),
            By::Comm => self.group(&event.comm),
            By::Cpu => self.group(&format!("CPU {}", event.cpu)),
            By::Stack => self.group(""),
        };
        let key = match stack {
            StackRef::Id(id) => Key::Id(id),
            StackRef::Whole(frames) => self.whole(frames),
            StackRef::None => Key::None,
        };
        let count = self.counts.entry((group, key)).or_default();
        count.add(1, Some(event.time));
    }

    /// Counts every stack of a map as often as the map says that it was seen.
    pub fn add_map(&mut self, stacks: &Stacks) {
        let group = self.group("");
        for stack in stacks.iter().filter(|stack| stack.ref_count > 0) {
            let count = self.counts.entry((group, Key::Id(stack.id))).or_default();
            count.add(stack.ref_count.into(), None);
        }
    }

    /// Each group with its stacks: groups with the most events first, and so their stacks.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<_> = self
            .groups
            .iter()
            .map(|name| Group {
                name,
                total: Count::default(),
                stacks: Vec::new(),
            })
            .collect();
        for ((number, key), count) in &self.counts {
            let group = &mut groups[*number as usize];
            group.total.merge(count);
            group.stacks.push((*key, *count));
        }
        for group in &mut groups {
            group
                .stacks
                .sort_by_key(|(key, count)| (Reverse(count.events), *key));
        }
        groups.sort_by_key(|group| (Reverse(group.total.events), group.name));
        groups
    }

    /// Everything that was counted, in no order: the group, the stack, how often.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Key, &Count)> {
        let name = |group: u32| &self.groups[group as usize][..];
        self.counts
            .iter()
            .map(move |((group, key), count)| (name(*group), *key, count))
    }

    /// How many different stacks of a group there are, in all groups.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// All events together.
    pub fn total(&self) -> Count {
        let mut total = Count::default();
        for count in self.counts.values() {
            total.merge(count);
        }
        total
    }

    /// Gives `out` the frames of a stack, innermost first, as `style` has them.
    pub fn frames(&self, key: Key, loaded: &Loaded, style: Style, out: &mut dyn FnMut(String)) {
        let id = match key {
            Key::None => return out(NO_STACK.to_owned()),
            Key::Whole(number) => {
                let frames = self.whole_frames(number, loaded);
                return frames.iter().for_each(|frame| out(frame.clone()));
            }
            Key::Id(id) => id,
        };
        let Some(stack) = loaded.stack(id) else {
            return out(missing_name(id, loaded.missing(id)));
        };
        for at in loaded.symbols.stack(stack.ips) {
            for frame in loaded.symbols.frames(at.ip, at.exact) {
                out(match (style, frame.source) {
                    (Style::Plain, _) => frame.plain().to_string(),
                    (Style::Full, None) => frame.to_string(),
                    (Style::Full, Some(source)) => format!("{frame} ({source})"),
                });
            }
        }
    }

    /// The frames of a full stack, innermost first, without those of tracing
    /// itself unless they are wanted.
    pub fn whole_frames(&self, number: u32, loaded: &Loaded) -> &[String] {
        loaded.symbols.visible(&self.wholes[number as usize])
    }

    fn group(&mut self, name: &str) -> u32 {
        if let Some(number) = self.group_numbers.get(name) {
            return *number;
        }
        let number = self.groups.len() as u32;
        self.groups.push(name.to_owned());
        self.group_numbers.insert(name.to_owned(), number);
        number
    }

    fn whole(&mut self, frames: &[String]) -> Key {
        if let Some(number) = self.whole_numbers.get(frames) {
            return Key::Whole(*number);
        }
        let number = self.wholes.len() as u32;
        self.wholes.push(frames.to_vec());
        self.whole_numbers.insert(frames.to_vec(), number);
        Key::Whole(number)
    }
}

/// How much of a frame is shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Style {
    /// The function and its module.
    Plain,
    /// The offset and the line of source code, too.
    Full,
}

/// What stands for a stack that is not there.
pub fn missing_name(id: u32, missing: Missing) -> String {
    match missing {
        Missing::Stale => format!("<stack_id {id}: stale, the map was reset>"),
        Missing::Gone => format!("<stack_id {id}: gone, the module was reloaded>"),
        Missing::Unknown => format!("<stack_id {id}: unknown>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, comm: &str, time: u64) -> Event {
        Event {
            name: name.to_owned(),
            fields: Default::default(),
            comm: comm.to_owned(),
            pid: 1,
            tgid: None,
            cpu: 0,
            time: Time::Ticks(time),
        }
    }

    #[test]
    fn counts_by_group_and_stack() {
        let mut tally = Tally::default();
        let whole = ["a".to_owned(), "b".to_owned()];
        tally.add(By::Event, &event("x", "c", 5), StackRef::Id(1));
        tally.add(By::Event, &event("y", "c", 1), StackRef::Id(1));
        tally.add(By::Event, &event("y", "c", 9), StackRef::Whole(&whole));
        tally.add(By::Event, &event("y", "d", 3), StackRef::Whole(&whole));
        tally.add(By::Event, &event("y", "d", 4), StackRef::None);

        let groups = tally.groups();
        assert_eq!(groups[0].name, "y");
        let span = Some((Time::Ticks(1), Time::Ticks(9)));
        assert_eq!(groups[0].total, Count { events: 4, span });
        let stacks: Vec<_> = groups[0]
            .stacks
            .iter()
            .map(|(key, count)| (*key, count.events))
            .collect();
        assert_eq!(
            stacks,
            [(Key::Whole(0), 2), (Key::Id(1), 1), (Key::None, 1)]
        );
        assert_eq!((groups[1].name, groups[1].total.events), ("x", 1));
        assert_eq!(tally.total().events, 5);
    }
}
