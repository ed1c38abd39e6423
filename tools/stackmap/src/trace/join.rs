// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events joined with their stacks.
//!
//! The kernel writes a stack behind its event: on the same CPU, from the same task, with the same
//! flags. An interrupt may come between the two and write events of its own; its flags differ. So
//! each CPU has a few events that wait for their stacks, and a stack belongs to the last of them
//! that it fits. What is passed over then has none.

use super::line::{Body, Line, Time};
use std::collections::HashMap;

/// Interrupts nest no deeper than this, one event each.
const MAX_WAITING: usize = 8;
/// More frames than any kernel prints of one stack.
const MAX_FRAMES: usize = 4096;

/// An event of a trace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// The name of the event; of a call that the function tracer saw, `function()`.
    pub name: String,
    /// Its fields, as the kernel printed them.
    pub fields: String,
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

/// What a trace says that it does not hold.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Losses {
    /// Events that were overwritten before anybody read them.
    pub lost: u64,
    /// Stacks without an event before them: that was overwritten.
    pub orphans: u64,
}

struct Waiting {
    event: Event,
    flags: Vec<u8>,
}

/// Takes a trace line by line and gives its events out with their stacks.
#[derive(Default)]
pub struct Joiner {
    waiting: HashMap<u32, Vec<Waiting>>,
    /// The event whose whole stack is being read.
    open: Option<Event>,
    frames: Vec<String>,
    /// Whether frames are those of a stack that nobody wants.
    skipping: bool,
    losses: Losses,
}

impl Joiner {
    /// One that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the trace has said that it does not hold.
    pub fn losses(&self) -> Losses {
        self.losses
    }

    /// Takes a line without its newline; `out` gets the events that are complete by it.
    pub fn line<E>(
        &mut self,
        text: &[u8],
        out: &mut impl FnMut(&Event, StackRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(frame) = frame(text) {
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
        out: &mut impl FnMut(&Event, StackRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.close(out)?;
        let mut left: Vec<_> = self
            .waiting
            .drain()
            .flat_map(|(_, waiting)| waiting)
            .collect();
        left.sort_by_key(|waiting| waiting.event.time.value());
        left.iter()
            .try_for_each(|waiting| out(&waiting.event, StackRef::None))
    }

    fn parsed<E>(
        &mut self,
        line: &Line<'_>,
        out: &mut impl FnMut(&Event, StackRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (name, fields) = match line.body {
            Body::Event { name, fields } => (lossy(name), fields),
            Body::Function { name, caller } => (format!("{}()", lossy(name)), caller),
            Body::StackId(id) => {
                return match self.take(line, out)? {
                    Some(event) => out(&event, StackRef::Id(id)),
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
        };
        let event = Event {
            name,
            fields: lossy(fields),
            comm: lossy(line.comm),
            pid: line.pid,
            tgid: line.tgid,
            cpu: line.cpu,
            time: line.time,
        };
        // An event from where another one waits: that one was without a stack.
        let waiting = self.waiting.entry(line.cpu).or_default();
        let same = |other: &Waiting| other.event.pid == line.pid && other.flags == line.flags;
        let from = match waiting.iter().rposition(same) {
            Some(at) => at,
            None if waiting.len() == MAX_WAITING => 0,
            None => waiting.len(),
        };
        let done: Vec<_> = waiting.drain(from..).collect();
        waiting.push(Waiting {
            event,
            flags: line.flags.to_vec(),
        });
        done.iter()
            .try_for_each(|waiting| out(&waiting.event, StackRef::None))
    }

    /// The event that a stack belongs to. Those behind it are without one, and go out.
    fn take<E>(
        &mut self,
        line: &Line<'_>,
        out: &mut impl FnMut(&Event, StackRef<'_>) -> Result<(), E>,
    ) -> Result<Option<Event>, E> {
        let waiting = self.waiting.entry(line.cpu).or_default();
        let same = |other: &Waiting| other.event.pid == line.pid && other.flags == line.flags;
        let Some(at) = waiting.iter().rposition(same) else {
            self.losses.orphans += 1;
            return Ok(None);
        };
        let mut taken = waiting.drain(at..);
        let event = taken.next().map(|waiting| waiting.event);
        let passed: Vec<_> = taken.collect();
        passed
            .iter()
            .try_for_each(|waiting| out(&waiting.event, StackRef::None))?;
        Ok(event)
    }

    /// Ends the stack whose frames were being read.
    fn close<E>(
        &mut self,
        out: &mut impl FnMut(&Event, StackRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.skipping = false;
        let result = match self.open.take() {
            Some(event) => out(&event, StackRef::Whole(&self.frames)),
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
