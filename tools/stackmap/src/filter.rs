// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which events of a trace are wanted.
//!
//! An event is kept if it fits every option that is given, and of an option that is repeated one
//! of its values. [`Filter`] compares what an event has of its own, numbers before texts.
//! [`Selection`] is a filter at work on one trace, and knows of each stack whether it matches.

mod pattern;
mod range;
mod selection;

pub use pattern::{EventGlob, Glob};
pub use range::{CpuRange, TimeRange};
pub use selection::{Filtered, Selection};

use crate::trace::Event;
use regex::Regex;
use std::collections::HashMap;

/// What events are to fit. An option without values is not given.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The name of the task.
    pub comms: Vec<Glob>,
    /// The id of the task, or of its process.
    pub pids: Vec<u32>,
    /// The CPU.
    pub cpus: Vec<CpuRange>,
    /// The event.
    pub events: Vec<EventGlob>,
    /// When.
    pub times: Vec<TimeRange>,
    /// A frame of one of its stacks.
    pub stacks: Vec<Regex>,
    /// The systems of events by name, for texts, which do not have them.
    pub systems: Option<HashMap<String, Vec<String>>>,
}

impl Filter {
    /// Whether every event is kept.
    pub fn is_empty(&self) -> bool {
        self.options().next().is_none()
    }

    /// Whether stacks are compared.
    pub fn has_stacks(&self) -> bool {
        !self.stacks.is_empty()
    }

    /// Whether the systems of events are compared.
    pub fn has_systems(&self) -> bool {
        self.events.iter().any(EventGlob::has_system)
    }

    /// The options that are given.
    fn options(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--comm", !self.comms.is_empty()),
            ("--pid", !self.pids.is_empty()),
            ("--cpu", !self.cpus.is_empty()),
            ("--event", !self.events.is_empty()),
            ("--time", !self.times.is_empty()),
            ("--stack", !self.stacks.is_empty()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(option, _)| option)
    }

    /// Keeps the systems of events, which `available` lists as `system:event`, a line each.
    pub fn set_systems(&mut self, available: &str) {
        let mut systems = HashMap::<String, Vec<String>>::new();
        for (system, event) in available.lines().filter_map(|line| line.split_once(':')) {
            let of = systems.entry(event.to_owned()).or_default();
            of.push(system.to_owned());
        }
        self.systems = Some(systems);
    }

    /// Whether an event fits, whatever its stacks.
    pub fn fits(&self, event: &Event) -> bool {
        fits_any(&self.cpus, |cpus| cpus.has(event.cpu))
            && fits_any(&self.pids, |pid| {
                *pid == event.pid || Some(*pid) == event.tgid
            })
            && fits_any(&self.times, |times| times.has(event.time))
            && fits_any(&self.comms, |comm| comm.matches(&event.comm))
            && fits_any(&self.events, |glob| self.is_event(glob, event))
    }

    fn is_event(&self, glob: &EventGlob, event: &Event) -> bool {
        let is_of = |system: Option<&str>| {
            // A call of a function is shown with parentheses.
            let function = event.name.strip_suffix("()");
            glob.matches(system, &event.name)
                || function.is_some_and(|function| glob.matches(system, function))
        };
        let listed = self.systems.as_ref();
        match event.system() {
            Some(system) => is_of(Some(system)),
            None => match listed.and_then(|systems| systems.get(&event.name)) {
                Some(systems) => systems.iter().any(|system| is_of(Some(system))),
                None => is_of(None),
            },
        }
    }
}

/// Whether one of the values fits, or none is given.
fn fits_any<T>(values: &[T], fits: impl Fn(&T) -> bool) -> bool {
    values.is_empty() || values.iter().any(fits)
}

#[cfg(test)]
mod tests;
