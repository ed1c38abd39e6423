// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events joined with their stacks.
//!
//! The kernel writes a stack after its event: on the same CPU, from the same task, with the same
//! flags. An interrupt may come between the two and write events of its own; its flags differ. So
//! each CPU has a few events that wait for their stacks, and a stack belongs to the last of them
//! that it fits. An event that is skipped has no stack.

use super::Time;
use crate::{error::Result, ring::fields::Fields, symbols::texts::ByNumber};
use std::rc::Rc;

/// Interrupts nest no deeper than this, one event each.
const MAX_WAITING: usize = 8;

/// An event of a trace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// The name of the event; of a call that the function tracer saw, `function()`.
    pub name: Rc<str>,
    /// Its fields.
    pub fields: Fields,
    /// The name of the task.
    pub comm: Rc<str>,
    /// The id of the task.
    pub pid: u32,
    /// The id of its process, if the trace has it.
    pub tgid: Option<u32>,
    /// The CPU.
    pub cpu: u32,
    /// When.
    pub time: Time,
    /// What the CPU was doing.
    pub flags: Flags,
    /// Whether tracing itself caused it: the recorder, or the module.
    pub own: bool,
}

impl Event {
    /// Its system, if that is known.
    pub fn system(&self) -> Option<&str> {
        self.fields.system()
    }
}

#[cfg(test)]
impl Event {
    /// Returns an event of the task 1 on CPU 0, for tests.
    pub(crate) fn example(name: &str, fields: Fields) -> Self {
        Self {
            name: name.into(),
            fields,
            comm: "task".into(),
            pid: 1,
            tgid: None,
            cpu: 0,
            time: Time::Nanos(1),
            flags: Flags::default(),
            own: false,
        }
    }
}

/// The stack of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StackRef<'a> {
    /// It is in the map.
    Id(u32),
    /// It is in the trace: its frames, innermost first.
    Whole(&'a [u64]),
    /// There is none.
    None,
}

/// The user stack of an event.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum UserRef {
    /// It is in the map of user stacks.
    Id(u32),
    /// The map did not keep it.
    NotKept,
    /// Its task was in the kernel still when the trace ended.
    Pending,
    /// The trace does not say which it is.
    Lost,
    /// There is none: the event is of the kernel itself, or none was asked for.
    #[default]
    None,
}

impl UserRef {
    /// The user stack with this id; 0: the map did not keep it.
    pub fn of_id(id: u32) -> Self {
        match id {
            0 => UserRef::NotKept,
            id => UserRef::Id(id),
        }
    }
}

/// The stacks of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sides<'a> {
    /// That of the kernel.
    pub kernel: StackRef<'a>,
    /// The one that led there.
    pub user: UserRef,
}

impl Sides<'_> {
    /// There are none.
    pub const NONE: Self = Self {
        kernel: StackRef::None,
        user: UserRef::None,
    };

    /// An id with its user stack.
    pub fn of_id(id: u32, user: UserRef) -> Self {
        Self {
            kernel: StackRef::Id(id),
            user,
        }
    }
}

impl<'a> From<StackRef<'a>> for Sides<'a> {
    fn from(kernel: StackRef<'a>) -> Self {
        Self {
            kernel,
            user: UserRef::None,
        }
    }
}

/// What a trace says that it does not hold.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Losses {
    /// Events that were overwritten before anybody read them.
    pub lost: u64,
    /// Stacks without an event before them: that was overwritten.
    pub orphans: u64,
}

/// What a trace says of interrupts and preemption: an event and its stack have the same.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    bytes: [u8; 2],
    /// Whether it interrupted the task: an interrupt, a softirq or an NMI.
    pub interrupts: bool,
}

impl Flags {
    /// The bits of `enum trace_flag_type` that stand for a hard interrupt, a softirq and an NMI.
    const INTERRUPTS: u8 = 0x08 | 0x10 | 0x40;

    /// Those of a record.
    pub fn recorded(flags: u8, preempt_count: u8) -> Self {
        Self {
            bytes: [flags, preempt_count],
            interrupts: flags & Self::INTERRUPTS != 0,
        }
    }
}

/// Events that wait for their stacks.
#[derive(Default)]
pub struct Pairs {
    waiting: ByNumber<u32, Vec<Event>>,
    /// Stacks without an event before them.
    pub orphans: u64,
}

impl Pairs {
    /// Takes an event. `out` gets those that it shows to be without a stack.
    pub fn push(
        &mut self,
        event: Event,
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result,
    ) -> Result {
        // An event from where another one waits: that one was without a stack.
        let waiting = self.waiting.entry(event.cpu).or_default();
        let same = |other: &Event| other.pid == event.pid && other.flags == event.flags;
        let from = match waiting.iter().rposition(same) {
            Some(at) => at,
            None if waiting.len() == MAX_WAITING => 0,
            None => waiting.len(),
        };
        let done = waiting.split_off(from);
        waiting.push(event);
        done.iter()
            .try_for_each(|event| out(event, StackRef::None.into()))
    }

    /// The event that a stack belongs to. Later events have no stack and are given out.
    pub fn take(
        &mut self,
        cpu: u32,
        pid: u32,
        flags: Flags,
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result,
    ) -> Result<Option<Event>> {
        let waiting = self.waiting.entry(cpu).or_default();
        let same = |other: &Event| other.pid == pid && other.flags == flags;
        let Some(at) = waiting.iter().rposition(same) else {
            self.orphans += 1;
            return Ok(None);
        };
        let passed = waiting.split_off(at + 1);
        let event = waiting.pop();
        passed
            .iter()
            .try_for_each(|event| out(event, StackRef::None.into()))?;
        Ok(event)
    }

    /// Gives out what still waits, at the end of the trace.
    pub fn finish(&mut self, out: &mut impl FnMut(&Event, Sides<'_>) -> Result) -> Result {
        let mut left: Vec<_> = self
            .waiting
            .drain()
            .flat_map(|(_, waiting)| waiting)
            .collect();
        left.sort_by_key(|event| (event.time.value(), event.cpu));
        left.iter()
            .try_for_each(|event| out(event, StackRef::None.into()))
    }
}
