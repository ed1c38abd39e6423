// SPDX-License-Identifier: MIT OR Apache-2.0

//! Records become events with their stacks.

use super::{
    fields::{self, About, Fields},
    format::{Format, Head, Special},
    page::Missed,
    stream::Pages,
    tasks::Tasks,
};
use crate::{
    capture::{is_asleep, Manifest},
    error::Result,
    source::Loaded,
    stack_map_bin::Stack,
    symbols::texts::ByNumber,
    trace::{Binds, Cookie, Event, Flags, Pairs, Sides, StackRef, Time},
};
use std::{io::Read, ops::Range, rc::Rc};

/// How many functions are kept with their names.
const MAX_KEPT: usize = 1 << 16;

/// What is the same for all events of a trace.
#[derive(Debug)]
pub struct Trace {
    /// The formats of the events.
    pub about: Rc<About>,
    /// Their tasks.
    pub tasks: Tasks,
    /// Whether times are in nanoseconds.
    pub nanos: bool,
}

/// Clocks that do not count nanoseconds.
const OTHER_CLOCKS: [&str; 3] = ["counter", "uptime", "x86-tsc"];

impl Trace {
    /// Whether the times of a clock are in nanoseconds.
    pub fn counts_nanos(clock: &str) -> bool {
        !OTHER_CLOCKS.contains(&clock)
    }

    /// A time of the trace.
    pub fn time(&self, time: u64) -> Time {
        match self.nanos {
            true => Time::Nanos(time),
            false => Time::Ticks(time),
        }
    }

    /// The format of an event.
    pub fn format(&self, head: &Head) -> Option<&Rc<Format>> {
        self.about.formats.get(head.id)
    }

    /// Returns which user stack each entry into the kernel had. Nothing is read if there can be none. Of a recording, the
    /// stacks of tasks that slept are those that its recorder read, and not another one.
    pub fn binds(&self, mut pages: Pages<impl Read>, manifest: Option<&Manifest>) -> Result<Binds> {
        let mut binds = Binds::default();
        if !self.about.formats.have(Special::UserStackId) {
            return Ok(binds);
        }
        while let Some((_, mut cursor)) = pages.next_page()? {
            if cursor.missed != Missed::None {
                binds.lost(cursor.time());
            }
            // What is damaged is found again, and counted, when the events are read.
            while let Ok(Some(record)) = cursor.next_record() {
                let data = &cursor.page()[record.data.clone()];
                let Some(head) = self.about.formats.head(data) else {
                    continue;
                };
                let Some(format) = self.format(&head) else {
                    continue;
                };
                match format.special {
                    Special::UserStackId => {
                        if let [Some(id), Some(cookie)] = format.special_numbers(data) {
                            if is_own(cookie, head.pid, manifest) {
                                binds.bind(record.time, cookie, id as u32);
                            }
                        }
                    }
                    Special::StackId => {
                        if let [_, Some(cookie)] = format.special_numbers(data) {
                            binds.event(head.pid as u32, record.time, cookie);
                        }
                    }
                    _ => {}
                }
            }
            pages.recycle(cursor);
        }
        binds.finish();
        Ok(binds)
    }

    /// Returns a task as it is at a time, in a recording with this manifest.
    fn named(&self, pid: i32, time: u64, manifest: Option<&Manifest>) -> NamedTask {
        let (comm, span) = self.tasks.comm(pid, time);
        let (tgid, of_tgid) = self.tasks.tgid(pid, time);
        // A child of the recorder belongs to it until exec, which renames it.
        let is_renamed = span.start == 0 && span.end != u64::MAX;
        NamedTask {
            own: manifest.is_some_and(|manifest| {
                manifest.recorder.contains(&tgid.unwrap_or(pid as u32))
                    || is_renamed && manifest.children.contains(&pid)
            }),
            comm: comm.into(),
            span: span.start.max(of_tgid.start)..span.end.min(of_tgid.end),
            tgid,
        }
    }

    /// The fields of an event.
    pub fn fields(&self, head: &Head, data: Vec<u8>) -> Fields {
        Fields {
            about: self.about.clone(),
            format: self.format(head).cloned(),
            data,
        }
    }
}

/// Returns whether a stack is bound to this cookie for the recording, by this task.
fn is_own(cookie: Cookie, pid: i32, manifest: Option<&Manifest>) -> bool {
    let recorder = manifest.map_or(&[][..], |manifest| &manifest.recorder);
    !is_asleep(cookie) || recorder.is_empty() || recorder.contains(&pid.cast_unsigned())
}

/// A task with the name that it has for some time.
struct NamedTask {
    comm: Rc<str>,
    span: Range<u64>,
    tgid: Option<u32>,
    /// Whether it is the recorder.
    own: bool,
}

/// Takes records in the order of time and gives events out with their stacks.
pub struct Decoder<'a> {
    trace: &'a Trace,
    /// Knows their user stacks.
    binds: &'a Binds,
    loaded: &'a Loaded,
    pairs: Pairs,
    functions: ByNumber<u64, Rc<str>>,
    /// The tasks as they were last.
    tasks: ByNumber<u32, NamedTask>,
    ips: Vec<u64>,
    /// The memory of the data of an event, for the next one.
    spare: Vec<u8>,
    /// Of each stack of the map, whether tracing itself caused its events.
    own: Vec<bool>,
    /// Records that are no events.
    pub damaged: u64,
}

impl<'a> Decoder<'a> {
    /// One that has seen nothing yet. `binds` are those of the whole trace.
    pub fn new(trace: &'a Trace, binds: &'a Binds, loaded: &'a Loaded) -> Self {
        let is_own = |stack: Stack<'_>| loaded.symbols.is_own(stack.ips);
        Self {
            trace,
            binds,
            loaded,
            pairs: Pairs::default(),
            functions: ByNumber::default(),
            tasks: ByNumber::default(),
            ips: Vec::new(),
            spare: Vec::new(),
            own: loaded.stacks.iter().map(is_own).collect(),
            damaged: 0,
        }
    }

    /// Stacks without an event before them.
    pub fn orphans(&self) -> u64 {
        self.pairs.orphans
    }

    /// Takes a record; `out` gets the events that are complete by it.
    pub fn record(
        &mut self,
        cpu: u32,
        time: u64,
        data: &[u8],
        out: &mut impl FnMut(&Event, Sides<'_>) -> Result,
    ) -> Result {
        let trace = self.trace;
        let Some(head) = trace.about.formats.head(data) else {
            self.damaged += 1;
            return Ok(());
        };
        let format = trace.format(&head);
        let flags = Flags::recorded(head.flags, head.preempt_count);
        let pid = head.pid as u32;
        let name = match format {
            None => format!("event {}", head.id).into(),
            Some(format) => match format.special {
                Special::StackId => {
                    let [id, cookie] = format.special_numbers(data);
                    let user = self.binds.user(pid, time, cookie);
                    return match (self.pairs.take(cpu, pid, flags, out)?, id) {
                        (Some(mut event), Some(id)) => {
                            event.own |= !event.flags.interrupts && self.is_own(id as u32);
                            out(&event, Sides::of_id(id as u32, user))?;
                            self.spare = event.fields.data;
                            Ok(())
                        }
                        (Some(event), None) => out(&event, StackRef::None.into()),
                        (None, _) => Ok(()),
                    };
                }
                Special::KernelStack => {
                    return match self.pairs.take(cpu, pid, flags, out)? {
                        Some(mut event) => {
                            trace.about.formats.frames(format, data, &mut self.ips);
                            event.own |=
                                !event.flags.interrupts && self.loaded.symbols.is_own(&self.ips);
                            out(&event, StackRef::Whole(&self.ips).into())
                        }
                        None => Ok(()),
                    };
                }
                Special::UserStackId | Special::UserStack => return Ok(()),
                Special::Function => {
                    let [function, _] = format.special_numbers(data);
                    self.function(function.unwrap_or_default())
                }
                _ => format.name.clone(),
            },
        };
        let manifest = self.loaded.manifest.as_ref();
        let named = || trace.named(head.pid, time, manifest);
        let task = self.tasks.entry(pid).or_insert_with(named);
        if !task.span.contains(&time) {
            *task = named();
        }
        let mut copy = std::mem::take(&mut self.spare);
        copy.clear();
        copy.extend_from_slice(data);
        let event = Event {
            name,
            fields: trace.fields(&head, copy),
            comm: task.comm.clone(),
            pid,
            tgid: task.tgid,
            cpu,
            time: trace.time(time),
            flags,
            own: !flags.interrupts && task.own,
        };
        self.pairs.push(event, out)
    }

    /// Gives out the events that still wait for a stack, at the end of the trace.
    pub fn finish(&mut self, out: &mut impl FnMut(&Event, Sides<'_>) -> Result) -> Result {
        self.pairs.finish(out)
    }

    /// Returns whether tracing itself caused events with a stack of the map.
    fn is_own(&self, id: u32) -> bool {
        let index = self.loaded.stack_index(id);
        index.is_some_and(|index| self.own[index])
    }

    /// The name of the event that a call of a function is.
    fn function(&mut self, ip: u64) -> Rc<str> {
        if self.functions.len() > MAX_KEPT {
            self.functions.clear();
        }
        let symbols = &self.loaded.symbols;
        let name = self.functions.entry(ip).or_insert_with(|| {
            let mut name = String::new();
            fields::function(symbols, ip, false, &mut name);
            name.push_str("()");
            name.into()
        });
        name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_that_another_recorder_has_read_are_left_out() {
        let manifest = Manifest {
            recorder: vec![7, 8],
            ..Manifest::default()
        };
        let asleep = 99 << 32 | 1 << 30;
        assert!(is_own(asleep, 7, Some(&manifest)));
        assert!(!is_own(asleep, 9, Some(&manifest)));
        assert!(is_own(asleep + 1, 9, Some(&manifest)));
        // In a PID namespace the recorder is not known.
        assert!(is_own(asleep, 9, Some(&Manifest::default())));
        assert!(is_own(asleep, 9, None));
    }
}
