// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs of events: of each first event, the last one that belongs to it.
//!
//! What belongs together has the same key, numbers in the fields of both: the address of what is allocated
//! and freed, the sector of a request. [`Rules`] says which events those are, [`Trail`] collects them, and
//! [`leaks`] and [`latency`] bring them together in the order of their times.

pub mod latency;
pub mod leaks;
mod rules;

use rules::Role;
pub use rules::{EventName, KeyField, Rules, Size};

use crate::{
    folded::{Kind, Names},
    notes::{count_of, Note},
    output::safe,
    source::Loaded,
    tally::{self, Key, Keys},
    trace::{Event, Sides, Time},
    user::cut,
};
use std::collections::HashMap;

/// What stands for the value of a field that an event does not have.
const NO_VALUE: &str = "(none)";

/// What first events of a group have in common.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum By {
    /// What events have.
    Key(tally::By),
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

    /// How a tally of them is shown: by stack, or by groups.
    pub fn shown(&self) -> tally::By {
        match self {
            By::Key(tally::By::Stack) => tally::By::Stack,
            _ => tally::By::Event,
        }
    }

    /// The title of a column of them.
    pub fn title(&self) -> &str {
        match self {
            By::Key(by) => by.group().unwrap_or("event"),
            By::Field(field) => field,
        }
    }
}

/// A first event.
#[derive(Clone, Copy, Debug)]
struct First {
    time: Time,
    /// The number of the name of its group.
    group: u32,
    key: Key,
    /// How much it is of.
    size: u64,
    /// Whether it is wanted. One that is not has its last event all the same.
    is_wanted: bool,
}

/// An event of a pair.
#[derive(Clone, Debug)]
struct Step {
    time: u64,
    /// Which pair it is.
    pair: u32,
    /// What it has in common with the other one.
    id: Box<[u64]>,
    /// How many numbers from the first one of `id` on.
    len: u64,
    /// What begins; [`None`]: it ends.
    first: Option<First>,
    /// Whether it goes on if it has begun already.
    goes_on: bool,
}

/// The events of pairs.
pub struct Trail<'a> {
    rules: &'a mut Rules,
    by: By,
    steps: Vec<Step>,
    keys: Keys,
    names: Names,
    /// In bytes.
    page_size: u64,
    /// Texts in keys.
    texts: HashMap<String, u64>,
    /// The last event of the trace.
    end: Option<Time>,
    /// Events that lack a field, and which the first one is.
    nr_without: u64,
    lacking: Option<String>,
    nr_first: u64,
    nr_last: u64,
    /// Whether a first event has the field that groups have in common; if none has, what one of them has.
    has_groups: bool,
    fields_of_first: Option<String>,
}

impl<'a> Trail<'a> {
    /// One without events, of a machine whose pages have so many bytes.
    pub fn new(rules: &'a mut Rules, by: By, page_size: u64) -> Self {
        Self {
            rules,
            by,
            steps: Vec::new(),
            keys: Keys::default(),
            names: Names::default(),
            page_size,
            texts: HashMap::new(),
            end: None,
            nr_without: 0,
            lacking: None,
            nr_first: 0,
            nr_last: 0,
            has_groups: false,
            fields_of_first: None,
        }
    }

    /// Takes an event with its stacks. `is_wanted`: what begins with it is.
    pub fn add(&mut self, event: &Event, sides: Sides<'_>, loaded: &Loaded, is_wanted: bool) {
        self.end = Some(self.end.map_or(event.time, |end| end.max(event.time)));
        for role in &*self.rules.roles(event) {
            let Some(id) = self.id(role, event) else {
                self.without(role, event);
                continue;
            };
            let is_negative = || {
                let first = role
                    .key
                    .first()
                    .and_then(|field| event.fields.signed(field));
                first.is_some_and(|number| number < 0)
            };
            if role.is_nothing(id[0], is_negative()) {
                continue;
            }
            let Some((len, size)) = self.size(role, event) else {
                self.without(role, event);
                continue;
            };
            let pair = role.pair;
            let first = match role.is_first {
                true => {
                    self.nr_first += 1;
                    let group = self.group(event, &role.name, loaded);
                    Some(First {
                        time: event.time,
                        group,
                        key: match is_wanted {
                            true => self.keys.key(sides),
                            false => Key::NONE,
                        },
                        size,
                        is_wanted,
                    })
                }
                false => {
                    self.nr_last += 1;
                    None
                }
            };
            self.steps.push(Step {
                time: event.time.value(),
                pair,
                id,
                len,
                first,
                goes_on: role.goes_on,
            });
        }
    }

    /// The numbers of the key.
    fn id(&mut self, role: &Role, event: &Event) -> Option<Box<[u64]>> {
        let texts = &mut self.texts;
        let mut which_texts = 0u64;
        let mut id = Vec::with_capacity(role.key.len());
        for (index, name) in role.key.iter().enumerate() {
            id.push(match &name[..] {
                "common_pid" => event.pid.into(),
                "common_cpu" => event.cpu.into(),
                "common_tgid" => event.tgid?.into(),
                name => match event.fields.signed(name) {
                    // As many bits, whether there is a sign or not.
                    Some(number) => number as u64,
                    None => {
                        let text = event.fields.string(name)?;
                        which_texts |= 1 << (index % 64);
                        let next = texts.len() as u64;
                        *texts.entry(text.into_owned()).or_insert(next)
                    }
                },
            });
        }
        // A text is no number, whatever its own number is.
        id.extend((which_texts != 0).then_some(which_texts));
        Some(id.into())
    }

    /// How many numbers it takes from the first one on, and how many bytes it is of.
    fn size(&self, role: &Role, event: &Event) -> Option<(u64, u64)> {
        let number = |field: &str| u64::try_from(event.fields.signed(field)?).ok();
        match &role.size {
            Size::One => Some((1, 1)),
            Size::Field(field) => Some((1, number(field)?)),
            Size::Pages(order) => {
                let order = u32::try_from(number(order)?).ok()?;
                let nr_pages = 1u64.checked_shl(order)?;
                Some((nr_pages, nr_pages.saturating_mul(self.page_size)))
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
            By::Key(tally::By::Event | tally::By::Stack) => name.into(),
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

    /// Whether something begins with an event.
    pub fn is_first(&mut self, event: &Event) -> bool {
        self.rules.roles(event).iter().any(|role| role.is_first)
    }

    /// Whether something begins and something ends; otherwise, what is missing. `hint`: what to record.
    pub fn is_complete(&self, hint: &str) -> Result<(), String> {
        let missing = match (self.nr_first, self.nr_last) {
            (0, 0) => "none",
            (0, _) => "no first one",
            (_, 0) => "no last one",
            _ => return Ok(()),
        };
        Err(match &self.lacking {
            Some(lacking) => lacking.clone(),
            None => format!("it has {missing} of the events that belong together{hint}"),
        })
    }

    /// The last event of the trace.
    pub fn end(&self) -> Option<Time> {
        self.end
    }

    /// The events in the order of their times. They are given out when their stacks are, so those of two CPUs are not
    /// in order.
    fn take_steps(&mut self) -> Vec<Step> {
        let mut steps = std::mem::take(&mut self.steps);
        steps.sort_by_key(|step| step.time);
        steps
    }

    /// Whether something of what begins is not wanted.
    fn is_filtered(steps: &[Step]) -> bool {
        let firsts = steps.iter().filter_map(|step| step.first.as_ref());
        firsts.into_iter().any(|first| !first.is_wanted)
    }

    /// What could not be compared.
    fn notes(&self) -> Vec<Note> {
        let why = self.lacking.as_deref().unwrap_or_default();
        let mut notes = left_out(self.nr_without, "event", why);
        if let (By::Field(field), false, Some(has)) =
            (&self.by, self.has_groups, &self.fields_of_first)
        {
            let text = format!("no first event has a field {field} (--by): {has}");
            let (warning, text) = (false, safe(&text).into_owned());
            notes.push(Note { warning, text });
        }
        notes
    }
}

/// A note on what is not counted, if there is anything.
fn left_out(nr: u64, what: &str, why: &str) -> Vec<Note> {
    let note = (nr > 0).then(|| Note {
        warning: false,
        text: format!("not counted: {}: {why}", count_of(nr, what)),
    });
    note.into_iter().collect()
}

#[cfg(test)]
mod tests;
