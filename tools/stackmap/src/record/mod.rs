// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recording: everything that is on is on for as long as it takes, and then as it was before.
//!
//! What tracefs has to be given back is written down first, as a list of writes ([`Undo`]), and
//! given to a second process ([`guard`]) that does them should this one die of anything at all.
//! Then the buffer is emptied, events, functions and options are set, and tracing goes on; after
//! the command, the time or a signal it goes off, and one file with everything is written.

mod buffer;
mod events;
pub mod guard;
mod load;
mod save;
mod steps;
mod undo;
mod wait;

pub use steps::{Fault, Step};
pub use undo::Undo;

use crate::{
    capture::Recorded,
    error::{Error, Result},
    kernel,
    output::say,
    tracefs::Tracefs,
};
use std::{ffi::OsString, path::PathBuf, time::Duration};
use wait::{Signals, Stopped};

/// What to record, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Events, as `set_event` takes them.
    pub events: Vec<String>,
    /// Functions, as `set_ftrace_filter` takes them.
    pub functions: Vec<String>,
    /// How long, if no command runs.
    pub duration: Option<Duration>,
    /// The size of the ring buffer of each CPU, in KiB.
    pub buffer_kb: Option<u64>,
    /// The file to write.
    pub output: PathBuf,
    /// The command to run.
    pub command: Vec<OsString>,
    /// The module to load if none is there.
    pub module: Option<PathBuf>,
    /// Whether the map is emptied first.
    pub reset: bool,
    /// Whether tracing that somebody else has set up is put aside.
    pub force: bool,
    /// Whether only those names are kept that the stacks need.
    pub slim: bool,
    /// Whether the fields of events and the arguments of the command are left out.
    pub no_args: bool,
    /// What goes wrong, for tests.
    pub fault: Option<Fault>,
}

/// What the text of a trace must be like, so that it can be read again; and the only form of
/// functions' names in it that ids lead to, too. Kernels have some or all of these options.
const FORMAT: [(&str, &str); 11] = [
    ("options/raw", "0"),
    ("options/hex", "0"),
    ("options/bin", "0"),
    ("options/fields", "0"),
    ("options/verbose", "0"),
    ("options/latency-format", "0"),
    ("options/context-info", "1"),
    ("options/print-parent", "1"),
    ("options/func-args", "0"),
    ("options/sym-offset", "0"),
    ("options/sym-addr", "0"),
];

impl Options {
    /// Records. The exit status of the command, if there was one, becomes that of the process.
    pub fn run(&self, tracefs: Option<&std::path::Path>) -> Result {
        let tracefs = Tracefs::find(tracefs)?;
        events::check(&tracefs, &self.events)?;
        if !self.functions.is_empty() {
            self.check_function_tracer(&tracefs)?;
        }
        load::ensure(&tracefs, self.module.as_deref())?;
        self.check_unused(&tracefs)?;
        let signals = Signals::catch()?;
        // What can fail for reasons of the user's fails before anything is changed.
        let writer = crate::capture::Writer::create(&self.output)?;

        let undo = Undo::read(&tracefs, self, writer.unfinished())?;
        let guard = guard::Guard::start(&undo)?;
        let recorded = self
            .before(Step::Guarded, &signals)
            .and_then(|()| self.record(&tracefs, &signals, writer));
        let restored = undo.run(&tracefs, recorded.is_ok());
        let restored = restored.and(self.after(Step::Restored, &signals));
        guard.dismiss();
        let stopped = recorded?;
        restored?;
        match stopped.exit_status() {
            0 => Ok(()),
            status => Err(Error::Status(status)),
        }
    }

    fn record(
        &self,
        tracefs: &Tracefs,
        signals: &Signals,
        writer: crate::capture::Writer,
    ) -> Result<Stopped> {
        self.prepare(tracefs, signals)?;
        let modules = std::fs::read(kernel::MODULES).unwrap_or_default();
        let before = tracefs.read("stack_map_stat")?;
        let load_id = tracefs.load_id()?;
        let begun = std::time::Instant::now();
        tracefs.write("tracing_on", "1")?;
        self.before(Step::Running, signals)?;
        let stopped = wait::wait(&self.command, self.duration, signals);
        tracefs.write("tracing_on", "0")?;
        let duration = begun.elapsed();
        let stopped = stopped?;
        self.after(Step::Ended, signals)?;
        let saved = save::Saved {
            options: self,
            duration,
            modules_before: &modules,
            stat_before: &before,
            load_id_before: load_id,
        };
        saved.write(tracefs, signals, writer)?;
        self.after(Step::Written, signals)?;
        stopped.say();
        Ok(stopped)
    }

    /// Sets everything but `tracing_on`.
    fn prepare(&self, tracefs: &Tracefs, signals: &Signals) -> Result {
        tracefs.write("tracing_on", "0")?;
        self.before(Step::Stopped, signals)?;
        tracefs.write("current_tracer", "nop")?;
        for file in ["set_event", "set_event_pid", "set_ftrace_pid"] {
            if tracefs.has(file) {
                tracefs.write(file, "")?;
            }
        }
        if let Some(kb) = self.buffer_kb {
            tracefs.write("buffer_size_kb", &kb.to_string())?;
        }
        tracefs.write("trace", "")?;
        if self.reset {
            tracefs.write("stack_map", "reset")?;
        }
        self.before(Step::Emptied, signals)?;
        for (option, value) in FORMAT {
            // Those of a tracer are there while it is on, with older kernels.
            if tracefs.has(option) && tracefs.read(option)?.trim() != value {
                tracefs.write(option, value)?;
            }
        }
        tracefs.write("options/stackmap", "1")?;
        tracefs.write("options/stacktrace", "1")?;
        self.before(Step::Options, signals)?;
        if !self.functions.is_empty() {
            self.set_functions(tracefs)?;
        }
        self.before(Step::Functions, signals)?;
        for event in &self.events {
            tracefs
                .append("set_event", &format!("{event}\n"))
                .map_err(|error| events::explain(error, event))?;
        }
        self.before(Step::Events, signals)
    }

    fn set_functions(&self, tracefs: &Tracefs) -> Result {
        tracefs.write("set_ftrace_filter", "")?;
        for function in &self.functions {
            let written = tracefs.append("set_ftrace_filter", &format!("{function}\n"));
            written.map_err(|error| match error {
                Error::Io { error, .. } if error.kind() == std::io::ErrorKind::InvalidInput => {
                    Error::Refused(format!(
                        "there is no function \"{function}\" that can be traced\n  hint: {} lists \
                         them",
                        tracefs.path("available_filter_functions").display()
                    ))
                }
                error => error,
            })?;
        }
        // Functions that are traced without a filter would be all of them.
        tracefs.write("current_tracer", "function")?;
        tracefs.write("options/func_stack_trace", "1")
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

    /// Tracing that somebody else has set up is not ours to take.
    fn check_unused(&self, tracefs: &Tracefs) -> Result {
        let tracer = tracefs.read("current_tracer")?;
        let nr_events = tracefs.read("set_event")?.lines().count();
        let used = match tracer.trim() {
            "nop" if nr_events == 0 => None,
            "nop" => Some(format!("{nr_events} events are on")),
            tracer => Some(format!("the tracer {tracer} is on, and {nr_events} events")),
        };
        match used {
            Some(used) if !self.force => Err(Error::Refused(format!(
                "somebody is tracing already: {used}\n  hint: --force puts that aside, and back \
                 afterwards; what it has recorded so far is lost"
            ))),
            Some(used) => {
                say(format_args!("note: put aside for the recording: {used}"));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn recorded(&self) -> Recorded {
        let lossy = |word: &OsString| word.to_string_lossy().into_owned();
        let words = match self.no_args {
            true => 1,
            false => usize::MAX,
        };
        Recorded {
            events: self.events.clone(),
            functions: self.functions.clone(),
            command: self.command.iter().take(words).map(lossy).collect(),
        }
    }

    /// At a step before anything was recorded. A signal that has come until now ends it all.
    fn before(&self, step: Step, signals: &Signals) -> Result {
        self.after(step, signals)?;
        if signals.count() == 0 {
            return Ok(());
        }
        say("stackmap: interrupted before anything was recorded");
        Err(Error::Status(wait::INTERRUPTED))
    }

    /// At a step after which there is something to keep.
    fn after(&self, step: Step, signals: &Signals) -> Result {
        match &self.fault {
            Some(fault) => fault.at(step, signals),
            None => Ok(()),
        }
    }
}
