// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counts events by what they have in common, and by stack.

use crate::{
    source::{Loaded, Missing},
    stacks::Stacks,
    symbols::{texts::ByNumber, Frame},
    trace::{Event, LateRef, Sides, StackRef, Time, UserRef},
    user::{UserFrame, WhichFrame},
    weight::{Unit, Weight},
};
use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{hash_map::Entry, HashMap},
    fmt,
};

/// As many stacks are compared one by one.
const MAX_COMPARED: usize = 16;

/// What stands for a machine that a capture does not name.
const NO_HOST: &str = "(unknown host)";

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
    /// The machine.
    Host,
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
            By::Host => match &*event.recording.host {
                "" => Cow::Borrowed(NO_HOST),
                host => Cow::Borrowed(host),
            },
            By::Stack => Cow::Borrowed(""),
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::Event => "event",
            By::Comm => "comm",
            By::Pid => "pid",
            By::Cpu => "cpu",
            By::Host => "host",
            By::Stack => "stack",
        })
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
    wholes: Vec<Vec<String>>,
    numbers: HashMap<Vec<String>, u32>,
}

/// A part of what a key stands for.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// A frame of the kernel.
    Kernel(Frame<'a>),
    /// A frame of a full stack, as it was in the trace.
    Text(&'a str),
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
            StackRef::Whole(frames) => Kernel::Whole(self.whole(frames)),
            StackRef::None => Kernel::None,
        }
    }

    fn whole(&mut self, frames: &[String]) -> u32 {
        if let Some(number) = self.numbers.get(frames) {
            return *number;
        }
        let number = self.wholes.len() as u32;
        self.wholes.push(frames.to_vec());
        self.numbers.insert(frames.to_vec(), number);
        number
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
            Step::Text(text) => out(Part::Text(text)),
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
        match key.kernel {
            Kernel::Id(id) => match loaded.stack(id) {
                Some(stack) => loaded
                    .symbols
                    .stack(stack.ips)
                    .for_each(|at| out(Step::Kernel(at.ip, at.exact))),
                None => {
                    let name = missing_name("stack_id", id, loaded.missing(id));
                    out(Step::Missing(&name));
                }
            },
            Kernel::Whole(number) => loaded
                .symbols
                .visible(&self.wholes[number as usize])
                .iter()
                .for_each(|frame| out(Step::Text(frame))),
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
                    let name = missing_name("user_stack_id", id, loaded.missing_user(id));
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
    /// A frame of a full stack, as it was in the trace.
    Text(&'a str),
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
    /// The first and the last time, if they are known.
    pub span: Option<(Time, Time)>,
}

impl Count {
    /// One event.
    pub fn one(weight: u64, time: Time) -> Self {
        Self {
            events: 1,
            weight,
            span: Some((time, time)),
        }
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Count) {
        self.events = self.events.saturating_add(other.events);
        self.weight = self.weight.saturating_add(other.weight);
        let Some((from, to)) = other.span else { return };
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
    /// How many different keys there are.
    pub nr_keys: usize,
    /// How many of them have a stack.
    pub nr_stacks: usize,
    /// The stacks that weigh most, and how often and when each was seen.
    pub top: Vec<(Key, Count)>,
}

impl Group<'_> {
    /// Orders the stacks, and forgets all but the first `top`.
    fn cut(&mut self, top: usize) {
        self.top
            .sort_unstable_by_key(|(key, count)| (Reverse(count.weight), *key));
        self.top.truncate(top);
    }
}

/// Events of one group and one stack of the kernel, whose user stack is not known yet.
struct Waiting {
    group: u32,
    kernel: Kernel,
    count: Count,
}

/// Events counted by group and by stack.
#[derive(Default)]
pub struct Tally {
    weight: Weight,
    unit: Unit,
    groups: Vec<String>,
    group_numbers: HashMap<String, u32>,
    /// The group of the last event.
    last_group: u32,
    keys: Keys,
    /// Where in `counts` a stack of a group is.
    rows: ByNumber<(u32, Key), u32>,
    counts: Vec<Count>,
    /// What waits for its user stack, by number.
    waiting: Vec<Vec<Waiting>>,
    nr_waiting: usize,
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
        let group = self.group_of(by, event);
        let key = self.keys.key(sides);
        self.count(group, key, &Count::one(weight, event.time));
    }

    /// Counts an event whose user stack may not be known yet.
    pub fn add_late(&mut self, by: By, event: &Event, sides: Sides<'_, LateRef>) {
        let Ok(weight) = self.weight.of(event) else {
            return;
        };
        let group = self.group_of(by, event);
        let kernel = self.keys.kernel(sides.kernel);
        let count = Count::one(weight, event.time);
        let number = match sides.user {
            LateRef::Known(user) => return self.count(group, Key { kernel, user }, &count),
            LateRef::Waits(number) => number as usize,
        };
        if self.waiting.len() <= number {
            self.waiting.resize_with(number + 1, Vec::new);
        }
        let waiting = &mut self.waiting[number];
        let same = |waiting: &&mut Waiting| waiting.group == group && waiting.kernel == kernel;
        match waiting.iter_mut().rev().take(MAX_COMPARED).find(same) {
            Some(waiting) => waiting.count.merge(&count),
            None => {
                self.nr_waiting += 1;
                waiting.push(Waiting {
                    group,
                    kernel,
                    count,
                });
            }
        }
    }

    /// What waits for the user stack of this number has this one. Returns how many events that are.
    pub fn bind(&mut self, number: u32, user: UserRef) -> u64 {
        let Some(waiting) = self.waiting.get_mut(number as usize) else {
            return 0;
        };
        let mut nr_events = 0;
        let mut waiting = std::mem::take(waiting);
        self.nr_waiting -= waiting.len();
        for Waiting {
            group,
            kernel,
            count,
        } in waiting.drain(..)
        {
            nr_events += count.events;
            self.count(group, Key { kernel, user }, &count);
        }
        // Another one will wait there.
        self.waiting[number as usize] = waiting;
        nr_events
    }

    /// How much waits.
    pub fn nr_waiting(&self) -> usize {
        self.nr_waiting
    }

    /// Counts every stack of a map as often as the map says that it was seen. `key` is that of the
    /// stack with an id.
    pub fn add_map(&mut self, stacks: &Stacks, key: impl Fn(u32) -> Key) {
        let group = self.group("");
        for stack in stacks.iter().filter(|stack| stack.ref_count > 0) {
            let count = Count {
                events: stack.ref_count.into(),
                weight: stack.ref_count.into(),
                span: None,
            };
            self.count(group, key(stack.id), &count);
        }
    }

    fn count(&mut self, group: u32, key: Key, count: &Count) {
        match self.rows.entry((group, key)) {
            Entry::Occupied(row) => self.counts[*row.get() as usize].merge(count),
            Entry::Vacant(row) => {
                row.insert(self.counts.len() as u32);
                self.counts.push(*count);
            }
        }
    }

    /// Each group with the first `top` of its stacks: those groups first that weigh most, and so their
    /// stacks.
    pub fn groups(&self, top: usize) -> Vec<Group<'_>> {
        let mut groups: Vec<_> = self
            .groups
            .iter()
            .map(|name| Group {
                name,
                total: Count::default(),
                nr_keys: 0,
                nr_stacks: 0,
                top: Vec::new(),
            })
            .collect();
        for ((number, key), row) in &self.rows {
            let count = self.counts[*row as usize];
            let group = &mut groups[*number as usize];
            group.total.merge(&count);
            group.nr_keys += 1;
            group.nr_stacks += usize::from(*key != Key::NONE);
            group.top.push((*key, count));
            if group.top.len() >= top.saturating_mul(2).max(MAX_COMPARED) {
                group.cut(top);
            }
        }
        for group in &mut groups {
            group.cut(top);
        }
        groups.sort_by_key(|group| (Reverse(group.total.weight), group.name));
        groups
    }

    /// Everything that was counted, in no order: the group, the stack, how often.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Key, &Count)> {
        self.rows.iter().map(|((group, key), row)| {
            let name = &self.groups[*group as usize][..];
            (name, *key, &self.counts[*row as usize])
        })
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
        for count in &self.counts {
            total.merge(count);
        }
        total
    }

    /// What the keys stand for.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    fn group_of(&mut self, by: By, event: &Event) -> u32 {
        self.group(&by.name_of(event))
    }

    fn group(&mut self, name: &str) -> u32 {
        let last = self.groups.get(self.last_group as usize);
        if last.is_none_or(|last| last != name) {
            self.last_group = self.find_group(name);
        }
        self.last_group
    }

    fn find_group(&mut self, name: &str) -> u32 {
        if let Some(number) = self.group_numbers.get(name) {
            return *number;
        }
        let number = self.groups.len() as u32;
        self.groups.push(name.to_owned());
        self.group_numbers.insert(name.to_owned(), number);
        number
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
mod tests;
