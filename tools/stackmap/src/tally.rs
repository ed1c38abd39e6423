// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counts events by what they have in common, and by stack.

use crate::{
    source::{Loaded, Missing},
    stacks::Stacks,
    symbols::{
        texts::{number_of, InOrder},
        Frame,
    },
    trace::{Event, Sides, StackRef, Time, UserRef},
    user::{UserFrame, WhichFrame},
    weight::{Unit, Weight},
};
use indexmap::IndexSet;
use std::{borrow::Cow, cmp::Reverse};

/// Up to this many stacks are searched linearly.
const MAX_COMPARED: usize = 16;

/// What events of a group have in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum By {
    /// The event.
    Event,
    /// The name of the task.
    Comm,
    /// The task: its name and its id.
    Pid,
    /// The CPU.
    Cpu,
    /// The stack, whatever the event.
    Stack,
}

impl By {
    /// The name of the group that an event is in.
    pub fn name_of(self, event: &Event) -> Cow<'_, str> {
        match self {
            By::Event => Cow::Borrowed(&event.name),
            By::Comm => Cow::Borrowed(&event.comm),
            By::Pid => Cow::Owned(format!("{}-{}", event.comm, event.pid)),
            By::Cpu => Cow::Owned(format!("CPU {}", event.cpu)),
            By::Stack => Cow::Borrowed(""),
        }
    }
}

/// The stack of the kernel, among those of one [`Keys`].
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kernel {
    /// It has this id.
    Id(u32),
    /// It was in the trace; the number is that of the [`Keys`].
    Whole(u32),
    /// There is none.
    #[default]
    None,
}

/// The stacks of an event, among those of one [`Keys`].
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// That of the kernel.
    pub kernel: Kernel,
    /// The one that led there.
    pub user: UserRef,
}

impl Key {
    /// There is none.
    pub const NONE: Self = Self {
        kernel: Kernel::None,
        user: UserRef::None,
    };

    /// The user stack with this id.
    pub fn of_user_id(id: u32) -> Self {
        Self {
            kernel: Kernel::None,
            user: UserRef::Id(id),
        }
    }

    /// The stack of the kernel with this id.
    pub fn of_id(id: u32) -> Self {
        Self {
            kernel: Kernel::Id(id),
            user: UserRef::None,
        }
    }
}

/// Stacks of events as keys: full stacks have numbers.
#[derive(Debug, Default)]
pub struct Keys {
    wholes: IndexSet<Vec<u64>>,
}

/// A part of what a key stands for.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// A frame of the kernel.
    Kernel(Frame<'a>),
    /// A frame of a user stack.
    User(UserFrame<'a>),
    /// Placeholder for a missing stack.
    Missing(&'a str),
}

impl Keys {
    /// The key of an event's stacks.
    pub fn key(&mut self, sides: Sides<'_>) -> Key {
        Key {
            kernel: self.kernel(sides.kernel),
            user: sides.user,
        }
    }

    fn kernel(&mut self, stack: StackRef<'_>) -> Kernel {
        match stack {
            StackRef::Id(id) => Kernel::Id(id),
            StackRef::Whole(frames) => Kernel::Whole(number_of(&mut self.wholes, frames)),
            StackRef::None => Kernel::None,
        }
    }

    /// Gives `out` what a key stands for, innermost first.
    pub fn parts(&self, key: Key, loaded: &Loaded, out: &mut dyn FnMut(Part<'_>)) {
        self.walk(key, loaded, &mut |step| match step {
            Step::Kernel(ip, exact) => {
                for frame in loaded.symbols.frames(ip, exact) {
                    out(Part::Kernel(frame));
                }
            }
            Step::User(which) => {
                for frame in loaded.user.frames(which) {
                    out(Part::User(frame));
                }
            }
            Step::Missing(text) => out(Part::Missing(text)),
        });
    }

    /// The same, of frames that are not named yet.
    pub fn walk(&self, key: Key, loaded: &Loaded, out: &mut dyn FnMut(Step<'_>)) {
        self.walk_kernel(key, loaded, out);
        self.walk_user(key.user, loaded, out);
    }

    /// The kernel's side of it.
    pub fn walk_kernel(&self, key: Key, loaded: &Loaded, out: &mut dyn FnMut(Step<'_>)) {
        let mut frames = |ips: &[u64]| {
            let frames = loaded.symbols.stack(ips);
            frames.for_each(|at| out(Step::Kernel(at.ip, at.exact)));
        };
        match key.kernel {
            Kernel::Id(id) => match loaded.stack(id) {
                Some(stack) => frames(stack.ips),
                None => {
                    let name = missing_name("stack_id", id, loaded.missing(id));
                    out(Step::Missing(&name));
                }
            },
            Kernel::Whole(number) => frames(&self.wholes[number as usize]),
            // Where user stacks alone are wanted, that is all there is to say.
            Kernel::None if key.user == UserRef::None => out(Step::Missing(NO_STACK)),
            Kernel::None => {}
        }
    }

    /// The user side.
    pub fn walk_user(&self, user: UserRef, loaded: &Loaded, out: &mut dyn FnMut(Step<'_>)) {
        match user {
            UserRef::Id(id) => match loaded.user_stack(id) {
                Some(stack) => loaded
                    .user
                    .stack(stack.ips)
                    .for_each(|which| out(Step::User(which))),
                None => {
                    let name = missing_name("user_stack_id", id, loaded.missing_user());
                    out(Step::Missing(&name));
                }
            },
            UserRef::NotKept => out(Step::Missing(NOT_KEPT)),
            UserRef::Pending => out(Step::Missing(PENDING)),
            UserRef::Lost => out(Step::Missing(LOST)),
            UserRef::None => {}
        }
    }
}

/// A part of what a key stands for, not named yet.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// A frame of the kernel: its address, and whether that is exact.
    Kernel(u64, bool),
    /// A frame of a user stack.
    User(WhichFrame),
    /// Placeholder for a missing stack.
    Missing(&'a str),
}

/// What stands for the frames of an event without a stack.
pub const NO_STACK: &str = "(no stack)";
/// What stands for a user stack that the map did not keep.
pub const NOT_KEPT: &str = "<user stack not kept>";
/// What stands for a user stack that was not known yet when the trace ended.
pub const PENDING: &str = "<user stack pending>";
/// What stands for a user stack that the trace does not tell any more.
pub const LOST: &str = "<user stack lost>";

/// How often, how much, and when.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Count {
    /// How often.
    pub events: u64,
    /// What they weigh together.
    pub weight: u64,
    /// The first time, if it is known.
    pub first: Option<Time>,
    /// The number of the last one.
    pub last: u64,
}

impl Count {
    /// One event.
    pub fn one(weight: u64, time: Time) -> Self {
        Self {
            events: 1,
            weight,
            first: Some(time),
            last: time.value(),
        }
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Count) {
        self.events = self.events.saturating_add(other.events);
        self.weight = self.weight.saturating_add(other.weight);
        self.first = self.first.into_iter().chain(other.first).min();
        self.last = self.last.max(other.last);
    }
}

/// Events that have something in common.
#[derive(Clone, Debug, Default)]
pub struct Group<'a> {
    /// What it is; by stack, its number.
    pub name: Cow<'a, str>,
    /// How often and when in all.
    pub total: Count,
    /// How many different keys there are.
    pub nr_keys: usize,
    /// How many of them have a stack.
    pub nr_stacks: usize,
    /// The stacks that weigh most, and how often and when each was seen.
    pub top: Vec<(Key, Count)>,
    /// By stack, the events that led there.
    pub events: Vec<(&'a str, Count)>,
}

impl Group<'_> {
    /// What groups are ordered by.
    fn order(&self) -> (Reverse<u64>, &str) {
        (Reverse(self.total.weight), &self.name)
    }

    /// Orders the stacks, and forgets all but the first `top`.
    fn cut(&mut self, top: usize) {
        self.top
            .sort_unstable_by_key(|(key, count)| (Reverse(count.weight), *key));
        self.top.truncate(top);
    }
}

/// Events counted by group and by stack.
#[derive(Default)]
pub struct Tally {
    weight: Weight,
    unit: Unit,
    groups: IndexSet<String>,
    keys: Keys,
    /// By the number of the group and the stack.
    counts: InOrder<(u32, Key), Count>,
}

impl Tally {
    /// One of events.
    pub fn new(weight: &Weight) -> Self {
        Self {
            weight: weight.clone(),
            unit: weight.unit(),
            ..Self::default()
        }
    }

    /// One of what is weighed already and has such keys.
    pub fn of(unit: Unit, keys: Keys) -> Self {
        Self {
            unit,
            keys,
            ..Self::default()
        }
    }

    /// Adds to a stack of a group.
    pub fn add_to(&mut self, group: &str, key: Key, count: &Count) {
        let group = self.group(group);
        self.count(group, key, count);
    }

    /// What weights are in.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Counts an event, unless it has no weight.
    pub fn add(&mut self, by: By, event: &Event, sides: Sides<'_>) {
        let Ok(weight) = self.weight.of(event) else {
            return;
        };
        let group = self.group(&by.name_of(event));
        let key = self.keys.key(sides);
        self.count(group, key, &Count::one(weight, event.time));
    }

    /// Counts every stack of a map as often as the map says that it was seen. `key` is that of the
    /// stack with an id.
    pub fn add_map(&mut self, stacks: &Stacks, key: impl Fn(u32) -> Key) {
        let group = self.group("");
        for stack in stacks.iter().filter(|stack| stack.ref_count > 0) {
            let count = Count {
                events: stack.ref_count.into(),
                weight: stack.ref_count.into(),
                ..Count::default()
            };
            self.count(group, key(stack.id), &count);
        }
    }

    fn count(&mut self, group: u32, key: Key, count: &Count) {
        self.counts.entry((group, key)).or_default().merge(count);
    }

    /// Each group with the first `top` of its stacks: those groups first that weigh most, and so their
    /// stacks.
    pub fn groups(&self, top: usize) -> Vec<Group<'_>> {
        let mut groups: Vec<_> = self
            .groups
            .iter()
            .map(|name| Group {
                name: name.into(),
                ..Group::default()
            })
            .collect();
        for ((number, key), count) in &self.counts {
            let group = &mut groups[*number as usize];
            group.total.merge(count);
            group.nr_keys += 1;
            group.nr_stacks += usize::from(*key != Key::NONE);
            group.top.push((*key, *count));
            if group.top.len() >= top.saturating_mul(2).max(MAX_COMPARED) {
                group.cut(top);
            }
        }
        for group in &mut groups {
            group.cut(top);
        }
        groups.sort_by(|one, other| one.order().cmp(&other.order()));
        groups
    }

    /// Everything that was counted: the group, the stack, how often.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Key, &Count)> {
        let counts = self.counts.iter();
        counts.map(|((group, key), count)| (&self.groups[*group as usize][..], *key, count))
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
        self.counts.values().for_each(|count| total.merge(count));
        total
    }

    /// What the keys stand for.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    fn group(&mut self, name: &str) -> u32 {
        // Few groups are compared in less time than a name is hashed.
        let mut few = self.groups.iter().take(8);
        match few.position(|group| group == name) {
            Some(number) => number as u32,
            None => number_of(&mut self.groups, name),
        }
    }
}

/// What stands for a stack that is not there.
pub fn missing_name(what: &str, id: u32, missing: Missing) -> String {
    match missing {
        Missing::Stale => format!("<{what} {id}: stale, the map was reset>"),
        Missing::Gone => format!("<{what} {id}: gone, the module was reloaded>"),
        Missing::Unknown => format!("<{what} {id}: unknown>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::fields::Fields;

    #[test]
    fn groups_have_whole_names() {
        let loaded = Loaded::default();
        let mut tally = Tally::new(&loaded.weight);
        for comm in ["cat", "ca", "c", "cat"] {
            let event = Event {
                comm: comm.into(),
                ..Event::example("event", Fields::default())
            };
            tally.add(By::Comm, &event, StackRef::None.into());
        }
        let groups = tally.groups(9);
        let mut counts: Vec<_> = groups
            .iter()
            .map(|group| (&*group.name, group.total.weight))
            .collect();
        counts.sort();
        assert_eq!(counts, [("c", 1), ("ca", 1), ("cat", 2)]);
    }
}
