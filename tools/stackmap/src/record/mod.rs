// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recording: makes an instance of ftrace, records into it, saves a capture, and removes the instance.
//!
//! The settings of the top level and of other instances stay as they are. A second process, the [`guard`], finishes
//! the recording if this process dies. What it needs to know is in a file ([`recording`]). While the instance records, a thread
//! takes pages to disk ([`spool`]). After the command, the time, a signal or an event that ends it ([`trigger`]), tracing is
//! switched off in the instance. When space for the capture is reserved, the rest of the buffer is read, and the capture is
//! written ([`save`]). [`recover`] does the same with what a recorder has left.

mod bpf;
mod buffer;
mod clocks;
mod comms;
mod cpu_buffer;
mod cpus;
mod events;
pub mod guard;
mod instance;
mod label;
mod limits;
mod load;
mod loss;
mod modules;
mod options;
mod processes;
mod recording;
pub mod recover;
mod save;
mod selected;
mod session;
mod settings;
mod sleepers;
mod spool;
mod tasks;
mod trigger;
mod user;
mod wait;
mod watch;
mod window;

pub use events::Selected;
pub use label::Label;
pub(crate) use options::parse_seconds;
pub use options::Options;

use crate::{
    capture::{Filtered, Recorded, Writer},
    error::{Error, Result},
    filter::CpuRange,
    kernel,
    output::{is_replaced, say, Out},
    tracefs::Tracefs,
};
use events::Events;
use guard::Guard;
use instance::Instance;
use limits::Limits;
use recording::Recording;
use session::{Failed, Session};
use std::{ffi::OsString, io::Write, path::Path};
use trigger::Triggers;
use wait::Signals;

impl Options {
    /// Records. The exit status of the command, if there was one, becomes that of the process.
    pub fn run(mut self, tracefs: Option<&Path>) -> Result {
        let top = Tracefs::find(tracefs)?;
        if let Some(event) = self.list {
            let (mut out, filter) = (Out::stdout(), None);
            for name in Events::find(&top, &[Selected { event, filter }])?.names {
                writeln!(out, "{name}")?;
            }
            return out.finish();
        }
        kernel::require_addresses()?;
        if let Some(name) = top.instance_name() {
            return Err(Error::Refused(format!(
                "--tracefs is an instance, {name}, and record makes one of its own\n  hint: \"stackmap save --instance \
                 {name}\" makes a capture of what it has"
            )));
        }
        let triggers = Triggers::find(&top, &self.on_trigger, &mut self.events.0)?;
        let events = Events::find(&top, &self.events.0)?;
        if !self.function.is_empty() {
            self.check_function_tracer(&top)?;
        }
        if self.last.is_some() {
            window::check(&self.clock)?;
        }
        let limits = Limits::find(&top, &self, &events, triggers)?;
        load::ensure(&top, self.module.as_deref())?;
        // Mistakes of the user are found before anything is changed. Opening a FIFO waits for its
        // reader; here a signal still ends the wait.
        let stream = match is_replaced(&self.output) {
            true => None,
            false => Some(Writer::create(&self.output)?),
        };
        let signals = Signals::catch()?;
        recover::look(&top);
        let writer = match stream {
            Some(writer) => writer,
            None => Writer::create(&self.output)?,
        };
        let mut recording = Recording::new(&self, &limits);
        let guard = Guard::start(recording.name(), top.root())?;
        match kernel::has_initial_pids() {
            true => recording.recorder.push(guard.id()),
            false => {
                recording.recorder.clear();
                say("note: in a PID namespace, events of record itself are shown, and only tasks that start, are renamed or \
                     end during the recording have names");
            }
        }
        let stopped = match Instance::create(&top, recording.name()) {
            Ok(instance) => {
                let session = Session {
                    options: &self,
                    top: &top,
                    instance: &instance,
                    signals: &signals,
                    events: &events,
                    limits: &limits,
                };
                let (guard, result) = session.run(&mut recording, writer, guard);
                let finished = match &result {
                    Err(Failed::Kept(_)) => Ok(()),
                    _ => {
                        recording.remove_files();
                        instance.remove()
                    }
                };
                guard.dismiss();
                let result = result.map_err(|failed| match failed {
                    Failed::Lost(error) | Failed::Kept(error) => error,
                });
                result.and_then(|stopped| finished.map(|()| stopped))
            }
            Err(error) => {
                guard.dismiss();
                Err(error)
            }
        };
        match stopped?.exit_status() {
            0 => Ok(()),
            status => Err(Error::Status(status)),
        }
    }

    fn check_function_tracer(&self, tracefs: &Tracefs) -> Result {
        let tracers = tracefs.read("available_tracers")?;
        if tracers
            .split_ascii_whitespace()
            .any(|tracer| tracer == "function")
        {
            return Ok(());
        }
        Err(Error::Refused(
            "this kernel cannot trace functions: it lacks CONFIG_FUNCTION_TRACER".to_owned(),
        ))
    }

    fn recorded(&self, limits: &Limits<'_>) -> Recorded {
        let lossy = |word: &OsString| word.to_string_lossy().into_owned();
        let words = match self.hides_args() {
            true => 1,
            false => usize::MAX,
        };
        let events = self.events.0.iter();
        let filters = events.clone().filter_map(|selected| {
            Some(Filtered {
                event: selected.event.clone(),
                filter: selected.filter.clone()?,
            })
        });
        let cpus: Vec<_> = self.cpu.iter().map(CpuRange::to_string).collect();
        Recorded {
            events: events.map(|selected| selected.event.clone()).collect(),
            functions: self.function.clone(),
            filters: filters.collect(),
            pids: limits.pids(),
            cpus: cpus.join(","),
            triggers: self.on_trigger.iter().map(Selected::to_string).collect(),
            last_ns: self
                .last
                .map(|last| u64::try_from(last.as_nanos()).unwrap_or(u64::MAX)),
            command: self.command.iter().take(words).map(lossy).collect(),
            instance: None,
        }
    }
}
