// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events joined with their stacks.
//!
//! The kernel writes a stack behind its event: on the same CPU, from the same task, with the same
//! flags. An interrupt may come between the two and write events of its own; its flags differ. So
//! each CPU has a few events that wait for their stacks, and a stack belongs to the last of them
//! that it fits. An event that is skipped has no stack.

use super::{
    binds::Binds,
    line::{Body, Line, Time, UserSide},
};
use crate::{ring::fields::Fields, symbols::texts::ByNumber};
use std::rc::Rc;

/// Interrupts nest no deeper than this, one event each.
const MAX_WAITING: usize = 8;
/// More frames than any kernel prints of one stack.
const MAX_FRAMES: usize = 4096;

/// An event of a trace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// The name of the event; of a call that the function tracer saw, `function()`.
    pub name: String,
    /// Its fields.
    pub fields: Fields,
    /// The name of the task.
    pub comm: String,
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
    /// What it is of.
    pub recording: Recording,
}

/// A recording, of several that were merged, or the only one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recording {
    /// Which, from 0.
    pub number: u32,
    /// The name of the machine; empty: not known.
    pub host: Rc<str>,
}

impl Event {
    /// Its system, if that is known: a text says only of calls what they are.
    pub fn system(&self) -> Option<&str> {
        let function = self.name.ends_with("()").then_some("ftrace");
        self.fields.system().or(function)
    }
}

/// The stack of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StackRef<'a> {
    /// It is in the map.
    Id(u32),
    /// It is in the trace: its frames, innermost first.
    Whole(&'a [String]),
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
pub struct Sides<'a, U = UserRef> {
    /// That of the kernel.
    pub kernel: StackRef<'a>,
    /// The one that led there.
    pub user: U,
}

impl Sides<'_> {
    /// There are none.
    pub const NONE: Self = Self {
        kernel: StackRef::None,
        user: UserRef::None,
    };
}

impl<U> Sides<'_, U> {
    /// An id with its user stack.
    pub fn of_id(id: u32, user: U) -> Self {
        Self {
            kernel: StackRef::Id(id),
            user,
        }
    }
}

impl<'a, U: Default> From<StackRef<'a>> for Sides<'a, U> {
    fn from(kernel: StackRef<'a>) -> Self {
        Self {
            kernel,
            user: U::default(),
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
    bytes: [u8; 8],
    /// Whether it interrupted the task: an interrupt, a softirq or an NMI.
    pub interrupts: bool,
}

impl Flags {
    /// The bits of `enum trace_flag_type` that stand for a hard interrupt, a softirq and an NMI.
    const INTERRUPTS: u8 = 0x08 | 0x10 | 0x40;

    /// Those of a record.
    pub fn recorded(flags: u8, preempt_count: u8) -> Self {
        Self {
            interrupts: flags & Self::INTERRUPTS != 0,
            ..Self::of(&[flags, preempt_count])
        }
    }

    /// Those that a text shows: `d.h2.`.
    pub fn shown(text: &[u8]) -> Self {
        Self {
            interrupts: matches!(text.get(2), Some(b'Z' | b'z' | b'H' | b'h' | b's')),
            ..Self::of(text)
        }
    }

    fn of(text: &[u8]) -> Self {
        let mut bytes = [0; 8];
        let len = text.len().min(bytes.len());
        bytes[..len].copy_from_slice(&text[..len]);
        Self {
            bytes,
            interrupts: false,
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
    pub fn push<U: Default, E>(
        &mut self,
        event: Event,
        out: &mut impl FnMut(&Event, Sides<'_, U>) -> Result<(), E>,
    ) -> Result<(), E> {
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
    pub fn take<U: Default, E>(
        &mut self,
        cpu: u32,
        pid: u32,
        flags: Flags,
        out: &mut impl FnMut(&Event, Sides<'_, U>) -> Result<(), E>,
    ) -> Result<Option<Event>, E> {
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
    pub fn finish<U: Default, E>(
        &mut self,
        out: &mut impl FnMut(&Event, Sides<'_, U>) -> Result<(), E>,
    ) -> Result<(), E> {
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

/// Takes a trace line by line and gives its events out with their stacks.
pub struct Joiner<'a> {
    binds: &'a Binds,
    pairs: Pairs,
    /// The event whose full stack is being read.
    open: Option<Event>,
    frames: Vec<String>,
    /// Whether the frames belong to a stack that is skipped.
    skipping: bool,
    losses: Losses,
}

impl<'a> Joiner<'a> {
    /// One that has seen nothing yet. `binds`: those of the whole trace.
    pub fn new(binds: &'a Binds) -> Self {
        Self {
            binds,
            pairs: Pairs::default(),
            open: None,
            frames: Vec::new(),
            skipping: false,
            losses: Losses::default(),
        }
    }

    /// What the trace has said that it does not hold.
    pub fn losses(&self) -> Losses {
        Losses {
            orphans: self.pairs.orphans,
            ..self.losses
        }
    }

    /// Takes a line without its newline; `out` gets the events that are complete by it.
    pub fn line<E>(
        &mut self,
        text: &[u8],
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // A task may be called as frames begin; its lines are longer.
        let frame = frame(text).filter(|_| Line::parse_padded(text).is_none());
        if let Some(frame) = frame {
            if self.open.is_some() && !self.skipping && self.frames.len() < MAX_FRAMES {
                self.frames.push(lossy(frame));
            }
            return Ok(());
        }
        self.close(out)?;
        match Line::parse(text) {
            Some(line) => self.parsed(&line, out),
            None => {
                self.losses.lost += lost(text).unwrap_or(0);
                Ok(())
            }
        }
    }

    /// Gives out what still waits, at the end of the trace.
    pub fn finish<E>(
        &mut self,
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.close(out)?;
        self.pairs.finish(out)
    }

    fn parsed<E>(
        &mut self,
        line: &Line<'_>,
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (name, fields) = match line.body {
            Body::Event { name, fields } => (lossy(name), fields),
            Body::Function { name, caller } => (format!("{}()", lossy(name)), caller),
            Body::Syscall {
                name,
                enter,
                fields,
            } => {
                let which = if enter { "enter" } else { "exit" };
                (format!("sys_{which}_{}", lossy(name)), fields)
            }
            Body::StackId(id, user) => {
                let user = self.user(line, user);
                return match self.take(line, out)? {
                    Some(event) => out(&event, Sides::of_id(id, user)),
                    None => Ok(()),
                };
            }
            Body::KernelStack => {
                self.open = self.take(line, out)?;
                return Ok(());
            }
            Body::UserStack => {
                self.skipping = true;
                return Ok(());
            }
            Body::UserStackId { .. } => return Ok(()),
        };
        let event = Event {
            name,
            fields: lossy(fields).into(),
            comm: lossy(line.comm),
            pid: line.pid,
            tgid: line.tgid,
            cpu: line.cpu,
            time: line.time,
            flags: Flags::shown(line.flags),
            recording: Default::default(),
        };
        self.pairs.push(event, out)
    }

    /// The user stack of a line that has an id.
    fn user(&self, line: &Line<'_>, user: UserSide) -> UserRef {
        self.binds.user(line.pid, line.time.value(), user)
    }

    /// The event that a stack belongs to.
    fn take<E>(
        &mut self,
        line: &Line<'_>,
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result<(), E>,
    ) -> Result<Option<Event>, E> {
        let flags = Flags::shown(line.flags);
        self.pairs.take(line.cpu, line.pid, flags, out)
    }

    /// Ends the stack whose frames were being read.
    fn close<E>(
        &mut self,
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.skipping = false;
        let result = match self.open.take() {
            Some(event) => out(&event, StackRef::Whole(&self.frames).into()),
            None => Ok(()),
        };
        self.frames.clear();
        result
    }
}

/// The frame on a line ` => name` or, of trace-cmd, `=> name (address)`.
fn frame(text: &[u8]) -> Option<&[u8]> {
    let frame = text.trim_ascii_start().strip_prefix(b"=> ")?;
    match frame.iter().rposition(|byte| *byte == b'(') {
        Some(at) if frame.ends_with(b")") && at > 0 => Some(frame[..at].trim_ascii_end()),
        _ => Some(frame.trim_ascii_end()),
    }
}

/// How many events a line says are lost: `CPU:1 [LOST 4198 EVENTS]`, or the header's
/// `# entries-in-buffer/entries-written: 653/173134`.
fn lost(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(rest) = text.strip_prefix("# entries-in-buffer/entries-written: ") {
        let (held, written) = rest.split_ascii_whitespace().next()?.split_once('/')?;
        return written.parse::<u64>().ok()?.checked_sub(held.parse().ok()?);
    }
    let rest = text.strip_prefix("CPU:")?;
    let (_, rest) = rest.split_once(" [LOST ")?;
    rest.split_once(' ')?.0.parse().ok()
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests;
