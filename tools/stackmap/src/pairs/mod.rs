// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs of events: of each first event, the last one that belongs to it.
//!
//! What belongs together has the same key, numbers in the fields of both: the task that leaves its CPU and comes back,
//! the address of what is allocated and freed, the sector of a request. [`Rules`] says which events those are, and
//! [`Pairs`] collects them, brings them together in the order of their times, and counts them. A [`Preset`] says what
//! of that is counted: waits, latencies, or what is left.

mod count;
mod join;
mod rules;
mod show;

pub use rules::{event_name, key_field, KeyField, Rules, Size};
pub use show::Limits;

use crate::{
    folded::{Kind, Names},
    output::safe,
    source::Loaded,
    symbols::texts::number_of,
    tally::{self, Key, Keys, Tally},
    trace::{Event, Sides, Time},
    user::cut,
};
use count::{LeftOut, Row, Split};
use indexmap::IndexSet;
use join::{First, Middle, Step};
use rules::{Part, Role};
use std::{borrow::Cow, collections::HashMap, rc::Rc};

/// What stands for the value of a field that an event does not have.
const NO_VALUE: &str = "(none)";

/// What stands where the name of a waker would, if none woke the task up, if the trace does not say who, and if it was
/// an interrupt. They are the first names of a trail, so that their indices are their numbers.
const NO_TASKS: [&str; 3] = ["(preempted)", "(unknown)", "(interrupt)"];
const PREEMPTED: u32 = 0;
const UNKNOWN: u32 = 1;
const INTERRUPT: u32 = 2;

/// The bits of `prev_state` that are of a task that does not run on: `TASK_REPORT` and `TASK_IDLE`. Above them
/// is one that says that it was preempted.
const BLOCKED: u64 = 0xff;
/// Those of a task that ends: `EXIT_DEAD` and `EXIT_ZOMBIE`.
const ENDS: u64 = 0x30;

/// The size of pages of captures that do not say it, in bytes: they are of x86.
const PAGE_SIZE: u64 = 4096;

/// What is counted of pairs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Preset {
    /// How long tasks are off their CPUs, and who wakes them up.
    Waits {
        /// Those that last to the end of the trace are counted up to there.
        unfinished: bool,
    },
    /// How long it takes from each first event to the last one.
    #[default]
    Latencies,
    /// What has no last event.
    Leaks {
        /// What is younger at the end, in nanoseconds, is left out.
        older: u64,
    },
}

impl Preset {
    /// Whether these are waits.
    pub fn is_waits(self) -> bool {
        matches!(self, Preset::Waits { .. })
    }
}

/// What first events of a group have in common.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum By {
    /// What events have.
    Key(tally::By),
    /// Who woke the task up.
    #[default]
    Waker,
    /// The value of the field with this name.
    Field(String),
}

impl By {
    /// Reads a key or the name of a field.
    pub fn new(text: &str) -> Result<Self, String> {
        match <tally::By as clap::ValueEnum>::from_str(text, false) {
            Ok(by) => Ok(By::Key(by)),
            Err(_) if text.is_empty() => Err("no key".to_owned()),
            Err(_) => Ok(By::Field(text.to_owned())),
        }
    }

    /// The same of waits, which have a waker, too.
    pub fn of_wait(text: &str) -> Result<Self, String> {
        match text {
            "waker" => Ok(By::Waker),
            text => Self::new(text),
        }
    }

    fn is_stack(&self) -> bool {
        *self == By::Key(tally::By::Stack)
    }

    /// The title of a column of them.
    fn title(&self) -> &str {
        match self {
            By::Key(by) => by.group().unwrap_or("event"),
            By::Waker => "waker",
            By::Field(field) => field,
        }
    }
}

/// The events of pairs, and what is counted of them.
#[derive(Default)]
pub struct Pairs {
    preset: Preset,
    rules: Rules,
    /// The first and the last event, if the command line names them.
    pub chosen: Option<[String; 2]>,
    by: By,
    steps: Vec<Step>,
    firsts: Vec<First>,
    middles: Vec<Middle>,
    keys: Keys,
    names: Names,
    /// In bytes.
    pub page_size: u64,
    /// Texts in keys.
    texts: IndexSet<String>,
    /// The pairs with all numbers of the key but the first.
    spaces: IndexSet<Box<[u64]>>,
    /// The last event of the trace.
    end: Option<Time>,
    /// Events that lack a field, and which the first one is.
    nr_without: u64,
    lacking: Option<String>,
    nr_last: usize,
    /// Whether a first event has the field that groups have in common; if none has, what one of them has.
    has_groups: bool,
    fields_of_first: Option<String>,
    /// By group and by the stack of the first event.
    tally: Tally,
    /// Waits by how they ended.
    waits: HashMap<Row, Split>,
    /// The lengths of other pairs, by the number of the group, in order.
    times: HashMap<u32, Vec<u64>>,
    left_out: LeftOut,
    /// How many first events a filter has kept.
    nr_wanted: u64,
    /// Whether the trace says who woke tasks up.
    has_wakings: bool,
}

impl Pairs {
    /// None yet.
    pub fn new(preset: Preset, rules: Rules, by: By) -> Self {
        let mut names = Names::default();
        for name in NO_TASKS {
            names.number(name, Kind::Group);
        }
        Self {
            preset,
            rules,
            by,
            names,
            page_size: PAGE_SIZE,
            ..Self::default()
        }
    }

    /// What is counted.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// Takes an event with its stacks. `keeps` says of one that begins something whether a filter keeps it.
    pub fn add(
        &mut self,
        event: &Event,
        sides: Sides<'_>,
        loaded: &Loaded,
        keeps: &mut dyn FnMut(&Event) -> bool,
    ) {
        self.end = Some(self.end.map_or(event.time, |end| end.max(event.time)));
        let roles = self.rules.roles(event);
        if roles.is_empty() {
            return;
        }
        // Where nothing tells the names of tasks by time, the switch has that of the task that leaves its CPU.
        let mut event = Cow::Borrowed(event);
        if self.preset.is_waits() {
            let comm = event.fields.string("prev_comm").map(Rc::<str>::from);
            if let Some(comm) = comm.filter(|comm| *comm != event.comm) {
                event.to_mut().comm = comm;
            }
        }
        let is_first = roles.iter().any(|role| role.part == Part::First);
        let is_wanted = !is_first || keeps(&event);
        for role in &*roles {
            if self.take(role, &event, sides, loaded, is_wanted).is_none() {
                self.without(role, &event);
            }
        }
    }

    /// Takes the switch of a task that waits since before the trace, and does all the time if it `slept_on`. `keeps` says
    /// whether a filter keeps it.
    pub fn add_sleeper(
        &mut self,
        event: &Event,
        slept_on: bool,
        sides: Sides<'_>,
        loaded: &Loaded,
        keeps: &mut dyn FnMut(&Event) -> bool,
    ) {
        self.end.get_or_insert(event.time);
        let first = First {
            key: self.keys.key(sides),
            size: 1,
            group: match self.by {
                By::Key(tally::By::Comm) => self.comm(&event.comm),
                _ => self.group(event, &event.name, loaded),
            },
            is_wanted: keeps(event),
            is_blocked: true,
            goes_on: false,
            is_before: true,
            slept_on,
        };
        self.steps.push(Step {
            time: event.time.value(),
            start: event.pid.into(),
            // The only pair there is, without more of a key.
            space: number_of(&mut self.spaces, &[0][..]),
            order: 0,
            part: Part::First,
            number: self.firsts.len() as u32,
        });
        self.firsts.push(first);
    }

    /// Takes an event in a role of it. [`None`]: it lacks a field.
    fn take(
        &mut self,
        role: &Role,
        event: &Event,
        sides: Sides<'_>,
        loaded: &Loaded,
        is_wanted: bool,
    ) -> Option<()> {
        let (space, start) = self.place(role, event)?;
        if role.is_nothing(start, event) {
            return Some(());
        }
        let (order, size) = self.size(role, event)?;
        let is_waits = self.preset.is_waits();
        let number = match role.part {
            Part::First => {
                let state = match is_waits {
                    true => event.fields.number("prev_state")?,
                    false => 0,
                };
                let is_wanted = is_wanted && state & ENDS == 0;
                let first = First {
                    key: match is_wanted {
                        true => self.keys.key(sides),
                        false => Key::NONE,
                    },
                    size,
                    group: match self.by {
                        By::Key(tally::By::Comm) if is_waits => self.comm(&event.comm),
                        _ => self.group(event, &role.name, loaded),
                    },
                    is_wanted,
                    is_blocked: state & BLOCKED != 0,
                    goes_on: role.goes_on,
                    is_before: false,
                    slept_on: false,
                };
                self.firsts.push(first);
                self.firsts.len() - 1
            }
            Part::Middle => {
                let key = self.keys.key(sides);
                let comm = match event.flags.interrupts {
                    true => INTERRUPT,
                    false => self.comm(&event.comm),
                };
                self.middles.push(Middle { key, comm });
                self.middles.len() - 1
            }
            Part::Last => {
                self.nr_last += 1;
                0
            }
        };
        self.steps.push(Step {
            time: event.time.value(),
            start,
            space,
            order,
            part: role.part,
            number: number as u32,
        });
        Some(())
    }

    /// The number of a task's name. One that looks like something else is in quotes.
    fn comm(&mut self, comm: &str) -> u32 {
        match NO_TASKS.contains(&comm) {
            true => self.names.number(&format!("\"{comm}\""), Kind::Group),
            false => self.names.number(comm, Kind::Group),
        }
    }

    /// The number of the pair and of the rest of the key, and the first number of the key.
    fn place(&mut self, role: &Role, event: &Event) -> Option<(u32, u64)> {
        let texts = &mut self.texts;
        let mut which_texts = 0u64;
        let mut numbers = Vec::with_capacity(role.key.len() + 1);
        for (index, name) in role.key.iter().enumerate() {
            numbers.push(match &name[..] {
                "common_pid" => event.pid.into(),
                "common_cpu" => event.cpu.into(),
                "common_tgid" => event.tgid?.into(),
                name => match event.fields.signed(name) {
                    // As many bits, whether there is a sign or not.
                    Some(number) => number as u64,
                    None => {
                        let text = event.fields.string(name)?;
                        which_texts |= 1 << (index % 64);
                        number_of(texts, &*text).into()
                    }
                },
            });
        }
        // A text is no number, whatever its own number is.
        numbers.extend((which_texts != 0).then_some(which_texts));
        let start = std::mem::replace(numbers.first_mut()?, role.pair.into());
        Some((number_of(&mut self.spaces, &numbers[..]), start))
    }

    /// How many numbers it takes from the first one on, as a power of two, and how many bytes it is of.
    fn size(&self, role: &Role, event: &Event) -> Option<(u8, u64)> {
        let number = |field: &str| u64::try_from(event.fields.signed(field)?).ok();
        match &role.size {
            Size::One => Some((0, 1)),
            Size::Field(field) => Some((0, number(field)?)),
            Size::Pages(order) => {
                let order = u8::try_from(number(order)?).ok()?;
                let nr_pages = 1u64.checked_shl(order.into())?;
                Some((order, nr_pages.saturating_mul(self.page_size)))
            }
        }
    }

    /// Counts an event that lacks a field, and says of the first one which.
    fn without(&mut self, role: &Role, event: &Event) {
        self.nr_without += 1;
        let has = |field: &str| match field {
            "common_pid" | "common_cpu" => true,
            "common_tgid" => event.tgid.is_some(),
            field => event.fields.signed(field).is_some() || event.fields.string(field).is_some(),
        };
        self.lacking.get_or_insert_with(|| {
            let lacking = role.fields().filter(|field| !has(field));
            let mut lacking: Vec<_> = lacking.map(|field| format!("no {field}")).collect();
            if let (true, Some(field)) = (lacking.is_empty(), role.size_field()) {
                lacking.push(match event.fields.signed(field) {
                    None => format!("no number {field}"),
                    Some(number) if number < 0 => format!("a negative {field}"),
                    Some(_) => format!("an odd {field}"),
                });
            }
            let text = format!(
                "{} has {}; its fields with a number: {}",
                event.name,
                lacking.join(" and "),
                event.fields.numbers().join(", ")
            );
            safe(&text).into_owned()
        });
    }

    fn group(&mut self, event: &Event, name: &str, loaded: &Loaded) -> u32 {
        let text = match &self.by {
            // Of waits, the waker is known later.
            By::Key(tally::By::Stack) if self.preset.is_waits() => "".into(),
            By::Key(tally::By::Event | tally::By::Stack) | By::Waker => name.into(),
            By::Key(by) => by.name_of(event),
            By::Field(field) => {
                let text = match &field[..] {
                    "common_pid" => Some(event.pid.to_string()),
                    "common_cpu" => Some(event.cpu.to_string()),
                    "common_tgid" => event.tgid.map(|tgid| tgid.to_string()),
                    field => {
                        let text = event.fields.shown_value(field, &loaded.symbols);
                        text.map(|text| cut(&text))
                    }
                };
                self.has_groups |= text.is_some();
                if !self.has_groups && self.fields_of_first.is_none() {
                    let names = event.fields.names().join(", ");
                    self.fields_of_first = Some(format!("{} has {names}", event.name));
                }
                text.map_or(NO_VALUE.into(), Into::into)
            }
        };
        self.names.number(&text, Kind::Group)
    }

    /// Whether something begins and something ends, and how long that takes; otherwise, what is missing. `hint`: what to
    /// record.
    pub fn is_complete(&self, hint: &str) -> Result<(), String> {
        let (none, first, last) = match &self.chosen {
            Some([from, to]) => (format!("neither {from} nor {to}"), &from[..], &to[..]),
            None => ("none".to_owned(), "no first one", "no last one"),
        };
        let missing = match (self.preset, self.firsts.len(), self.nr_last) {
            _ if matches!(self.end, Some(Time::Ticks(_))) => {
                return Err(
                    "its clock does not count nanoseconds, so nothing has a length".to_owned(),
                );
            }
            (Preset::Waits { .. }, 0, 0) => {
                return Err(format!("it has no sched:sched_switch{hint}"));
            }
            (Preset::Waits { .. }, ..) | (_, 1.., 1..) => return Ok(()),
            (_, 0, 0) => &none[..],
            (_, 0, _) => first,
            (_, _, 0) => last,
        };
        Err(match &self.lacking {
            Some(lacking) => lacking.clone(),
            None if self.chosen.is_none() => {
                format!("it has {missing} of the events that belong together{hint}")
            }
            None if missing == none => format!("it has {none}{hint}"),
            None => format!("it has no {missing}{hint}"),
        })
    }
}

#[cfg(test)]
mod tests;
