// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recording: sets tracefs up, records, saves a capture, and restores tracefs.
//!
//! A recording has its buffer for itself ([`lock`]). First, the writes that restore tracefs are
//! listed ([`Undo`]) and given to a second process ([`guard`]), which does them if this process
//! dies. Then the buffer is emptied, settings of others that would cut the recording are put
//! [`aside`], events, functions and options are set, and tracing is switched on. Meanwhile a thread
//! takes pages to disk ([`spool`]). After the command, the time, a signal or an event that ends it
//! ([`trigger`]), tracing is switched off. When room for the capture is reserved, the buffer is read,
//! which empties it, and the capture is written.

mod account;
mod aside;
mod buffer;
mod clocks;
mod cpu_buffer;
mod cpus;
mod events;
#[cfg(feature = "fault")]
mod fault;
pub mod guard;
mod instance;
mod label;
mod limits;
mod load;
mod lock;
mod loss;
mod processes;
mod save;
mod session;
mod spool;
mod steps;
mod trigger;
mod undo;
mod user;
mod wait;
mod window;
mod write;

pub use events::Selected;
#[cfg(feature = "fault")]
pub use fault::Fault;
pub use label::{Label, MAX_LABELS};
pub use steps::Step;
pub use trigger::Trigger;
pub use undo::Undo;

use crate::{
    capture::{Filtered, Recorded, Writer},
    error::{Error, Result},
    filter::CpuRange,
    notes::count_of,
    output::{is_replaced, say},
    tracefs::Tracefs,
};
use account::Account;
use aside::Aside;
use events::Events;
use instance::Place;
use limits::Limits;
use lock::{Lock, Switch};
use session::{Failed, Session};
use std::{ffi::OsString, path::PathBuf, time::Duration};
use trigger::Triggers;
use undo::Recording;
use wait::Signals;

/// What to record, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Events.
    pub events: Vec<Selected>,
    /// Functions, as `set_ftrace_filter` takes them.
    pub functions: Vec<String>,
    /// The processes that are recorded, by the ids of their threads; none: all.
    pub pids: Vec<u32>,
    /// The CPUs that record; none: all.
    pub cpus: Vec<CpuRange>,
    /// How long, if no command runs.
    pub duration: Option<Duration>,
    /// The size of the ring buffer of each CPU, in KiB.
    pub buffer_kb: Option<u64>,
    /// Whether the buffer is written to disk while the recording runs.
    pub stream: bool,
    /// How much of its end is kept; [`None`]: all.
    pub last: Option<Duration>,
    /// What ends it.
    pub triggers: Vec<Trigger>,
    /// How long it goes on after such an event.
    pub after: Duration,
    /// The instance to record into, which is made if it is not there.
    pub instance: Option<String>,
    /// The file to write.
    pub output: PathBuf,
    /// The command to run.
    pub command: Vec<OsString>,
    /// The user whose rights the command has, if not those of this process.
    pub user: Option<String>,
    /// The module file to load if the module is not loaded.
    pub module: Option<PathBuf>,
    /// Whether user stacks are recorded, too, if the kernel can.
    pub user_stacks: bool,
    /// Whether the map is emptied first.
    pub reset: bool,
    /// Whether tracing settings that are in use are put aside.
    pub force: bool,
    /// Whether the names of all symbols are kept, not only of those that the capture needs.
    pub all_symbols: bool,
    /// Whether the fields of events and the arguments of the command are left out.
    pub no_args: bool,
    /// Whether what tells who recorded, and where, is left out.
    pub anonymous: bool,
    /// What the user says of the recording.
    pub labels: Vec<Label>,
    /// A fault to inject, for tests.
    #[cfg(feature = "fault")]
    pub fault: Option<Fault>,
}

/// Options that the text of a trace must have so that it can be read again, with function names in
/// the form that ids resolve to. A kernel has some or all of these options.
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

/// The option by which the kernel remembers which process a thread belongs to.
const TGIDS: &str = "options/record-tgid";

impl Options {
    /// Records. The exit status of the command, if there was one, becomes that of the process.
    pub fn run(mut self, tracefs: Option<&std::path::Path>) -> Result {
        let user = self.user.as_deref().map(Account::find).transpose()?;
        let tracefs = Tracefs::find(tracefs)?;
        let triggers = Triggers::find(&tracefs, &self.triggers, &mut self.events)?;
        let events = Events::find(&tracefs, &self.events)?;
        if !self.functions.is_empty() {
            self.check_function_tracer(&tracefs)?;
        }
        let limits = Limits::find(&tracefs, &self, &events, triggers)?;
        load::ensure(&tracefs, self.module.as_deref())?;
        // Mistakes of the user are found before anything is changed. Opening a FIFO waits for its
        // reader; here a signal still ends the wait.
        let stream = match is_replaced(&self.output) {
            true => None,
            false => Some(Writer::create(&self.output)?),
        };
        let signals = Signals::catch()?;

        let place = Place::find(tracefs, self.instance.as_deref())?;
        let tracefs = place.tracefs();
        let lock = Lock::take(tracefs)?;
        self.check_unused(tracefs)?;
        if self.last.is_some() {
            window::check(tracefs)?;
        }
        let writer = match stream {
            Some(writer) => writer,
            None => Writer::create(&self.output)?,
        };
        let all = save::cpus(tracefs)?;
        let cpus = limits.cpus().unwrap_or(&all);
        let aside = Aside::read(tracefs, &events, !self.functions.is_empty(), cpus)?;
        let wants_user = self.user_stacks && tracefs.has(lock::USER);
        let switches = [(lock::IDS, true), (lock::USER, wants_user)];
        let switches = switches.iter().filter(|(_, wanted)| *wanted);
        let switches = switches.map(|(name, _)| Switch::on(tracefs, name));
        let switches = switches.collect::<Result<Vec<_>>>()?;
        let undo = Undo::read(
            tracefs,
            &self,
            (&limits, &aside),
            &switches,
            place.undo()?,
            writer.unfinished().as_deref(),
        )?;
        let guard = guard::Guard::start(&undo, &lock, &switches)?;
        let tracefs = place.settle();
        let session = Session {
            options: &self,
            tracefs: &tracefs,
            signals: &signals,
            events: &events,
            limits: &limits,
            aside: &aside,
            user: user.as_ref(),
            wants_user,
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
        let restored = undo.run(&tracefs, &switches, left);
        let restored = restored.and(self.after(Step::Restored, &signals));
        guard.dismiss();
        let stopped = recorded?;
        restored?;
        match stopped.exit_status() {
            0 => Ok(()),
            status => Err(Error::Status(status)),
        }
    }

    /// Whether it keeps what was before something happens.
    fn is_flight(&self) -> bool {
        self.last.is_some() || !self.triggers.is_empty()
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

    /// Refuses to take over tracing that is in use.
    fn check_unused(&self, tracefs: &Tracefs) -> Result {
        let tracer = tracefs.read("current_tracer")?;
        let nr_events = events::on(tracefs)?.len();
        let events = format!("{} enabled", count_of(nr_events as u64, "event"));
        let used = match tracer.trim() {
            "nop" if nr_events == 0 => None,
            "nop" => Some(events),
            tracer => Some(format!("tracer {tracer}, {events}")),
        };
        match used {
            Some(used) if !self.force => Err(Error::Refused(format!(
                "tracing is in use: {used}\n  hint: --force puts these settings aside and restores \
                 them afterwards; the events in the buffer are lost"
            ))),
            Some(used) => {
                say(format_args!("note: put aside for the recording: {used}"));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn recorded(&self, limits: &Limits<'_>) -> Recorded {
        let lossy = |word: &OsString| word.to_string_lossy().into_owned();
        let words = match self.no_args {
            true => 1,
            false => usize::MAX,
        };
        let events = self.events.iter();
        let filters = events.clone().filter_map(|selected| {
            Some(Filtered {
                event: selected.event.clone(),
                filter: selected.filter.clone()?,
            })
        });
        let cpus: Vec<_> = self.cpus.iter().map(CpuRange::to_string).collect();
        Recorded {
            events: events.map(|selected| selected.event.clone()).collect(),
            functions: self.functions.clone(),
            filters: filters.collect(),
            pids: limits.pids(),
            cpus: cpus.join(","),
            triggers: self.triggers.iter().map(Trigger::to_string).collect(),
            last_ns: self
                .last
                .map(|last| u64::try_from(last.as_nanos()).unwrap_or(u64::MAX)),
            command: self.command.iter().take(words).map(lossy).collect(),
            instance: None,
        }
    }

    /// At a step before anything was recorded. A pending signal aborts the recording.
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
        #[cfg(feature = "fault")]
        if let Some(fault) = &self.fault {
            return fault.at(step, signals);
        }
        let _ = (step, signals);
        Ok(())
    }
}
