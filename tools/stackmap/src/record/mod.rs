// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recording: everything that is on is on for as long as it takes, and then as it was before.
//!
//! A recording has its buffer for itself ([`lock`]). What tracefs has to be given back is written
//! down first, as a list of writes ([`Undo`]), and given to a second process ([`guard`]) that does
//! them should this one die of anything at all. Then the buffer is emptied, what others have left
//! is put [`aside`], events, functions and options are set, and tracing goes on; after the command,
//! the time or a signal it goes off, and one file with everything is written. Only then is the
//! buffer emptied.

mod aside;
mod buffer;
mod events;
pub mod guard;
mod instance;
mod load;
mod lock;
mod loss;
mod save;
mod session;
mod steps;
mod undo;
mod wait;

pub use steps::{Fault, Step};
pub use undo::Undo;

use crate::{
    capture::{Recorded, Writer},
    error::{Error, Result},
    output::{is_replaced, say},
    tracefs::Tracefs,
};
use aside::Aside;
use events::Events;
use instance::Place;
use lock::{Lock, Switch};
use session::{Failed, Session};
use std::{ffi::OsString, path::PathBuf, time::Duration};
use undo::Recording;
use wait::Signals;

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
    /// The instance to record into, which is made if it is not there.
    pub instance: Option<String>,
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
        let events = Events::find(&tracefs, &self.events)?;
        if !self.functions.is_empty() {
            self.check_function_tracer(&tracefs)?;
        }
        load::ensure(&tracefs, self.module.as_deref())?;
        // What can fail for reasons of the user's fails before anything is changed. To open a FIFO
        // is to wait for its reader: a signal still ends that.
        let stream = match is_replaced(&self.output) {
            true => None,
            false => Some(Writer::create(&self.output)?),
        };
        let signals = Signals::catch()?;

        let place = Place::find(tracefs, self.instance.as_deref())?;
        let tracefs = place.tracefs();
        let lock = Lock::take(tracefs)?;
        self.check_unused(tracefs)?;
        let writer = match stream {
            Some(writer) => writer,
            None => Writer::create(&self.output)?,
        };
        let aside = Aside::read(tracefs, &events, !self.functions.is_empty())?;
        let switch = Switch::on(tracefs)?;
        let undo = Undo::read(
            tracefs,
            self,
            &aside,
            switch.before(),
            place.undo()?,
            writer.unfinished().as_deref(),
        )?;
        let guard = guard::Guard::start(&undo, &lock, &switch)?;
        let tracefs = place.settle();
        let session = Session {
            options: self,
            tracefs: &tracefs,
            signals: &signals,
            events: &events,
            aside: &aside,
        };
        let recorded = self
            .before(Step::Guarded, &signals)
            .map_err(Failed::from)
            .and_then(|()| session.record(writer));
        let (left, recorded) = match recorded {
            Ok(stopped) => (Recording::Empty, Ok(stopped)),
            Err(Failed::Lost(error)) => (Recording::Ignore, Err(error)),
            Err(Failed::Saved(error)) => (Recording::Empty, Err(error)),
            Err(Failed::Unsaved(error)) => (Recording::Keep, Err(error)),
        };
        let restored = undo.run(&tracefs, &switch, left);
        let restored = restored.and(self.after(Step::Restored, &signals));
        guard.dismiss();
        let stopped = recorded?;
        restored?;
        match stopped.exit_status() {
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

    /// Tracing that somebody else has set up is not ours to take.
    fn check_unused(&self, tracefs: &Tracefs) -> Result {
        let tracer = tracefs.read("current_tracer")?;
        let nr_events = events::enabled(tracefs)?.len();
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
            instance: None,
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
