// SPDX-License-Identifier: MIT OR Apache-2.0

//! A recording, from the moment when its changes can be undone until it is saved.

use super::{
    account::Account,
    aside::Aside,
    buffer::Header,
    clocks,
    events::{self, Events},
    instance,
    limits::Limits,
    lock,
    save::{cpus, Saved},
    spool::{self, Spool, Streaming},
    trigger,
    wait::{self, Ends, Signals, Stopped},
    window::Window,
    Options, Step, FORMAT, TGIDS,
};
use crate::{
    capture::{Clocks, Writer},
    error::{Error, Result},
    kernel,
    output::{say, warn},
    tracefs::Tracefs,
    user::live::since_boot,
};
use std::{
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// What a recording works on.
pub(super) struct Session<'a> {
    pub(super) options: &'a Options,
    pub(super) tracefs: &'a Tracefs,
    pub(super) signals: &'a Signals,
    pub(super) events: &'a Events,
    pub(super) limits: &'a Limits<'a>,
    pub(super) aside: &'a Aside,
    pub(super) user: Option<&'a Account>,
    /// Whether user stacks are recorded, if the kernel can.
    pub(super) wants_user: bool,
}

/// Where a recording failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nothing was recorded, or the recording was discarded.
    Lost(Error),
    /// The buffer has a recording that could not be saved.
    Unsaved(Error),
    /// It is saved.
    Saved(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Lost(error)
    }
}

impl Session<'_> {
    /// Records, and saves it with `writer` or where else it can be saved.
    pub(super) fn record(&self, writer: Writer) -> Result<Stopped, Failed> {
        let Self {
            options,
            tracefs,
            signals,
            ..
        } = *self;
        self.prepare()?;
        let modules = kernel::modules_text().unwrap_or_default();
        let stat = tracefs.read("stack_map_stat")?;
        let user_stat = tracefs.read("stack_map_user_stat").ok();
        let map_before = tracefs.map_state()?;
        let map = tracefs.open("stack_map_bin")?;
        let ends = Ends {
            gone: self.limits.end(tracefs)?,
            watch: options
                .is_flight()
                .then(|| self.limits.triggers.watch(tracefs, options.after)),
        };
        let streaming = match options.stream {
            true => Some(self.stream(&writer)?),
            false => None,
        };
        let begin = clocks::read(tracefs);
        let (begun, begun_since_boot) = (Instant::now(), since_boot());
        tracefs.write("tracing_on", "1")?;
        // Not before: an event that nothing records yet would end the recording.
        self.limits.triggers.set(tracefs)?;
        options.before(Step::Running, signals)?;
        let stopped = wait::wait(&options.command, self.user, options.duration, ends, signals);
        let switched_off = trigger::is_off(tracefs);
        if !switched_off {
            self.settle();
        }
        let switched = tracefs.write("tracing_on", "0");
        let window = options.last.map(|last| Window::read(tracefs, last));
        let end = clocks::read(tracefs);
        let spool = streaming.map(Streaming::end).transpose()?;
        switched?;
        let duration = begun.elapsed();
        let (stopped, command) = stopped?;
        if let Some(command) = command {
            wait::end_command(command, signals);
        }
        options.after(Step::Ended, signals)?;
        let saved = Saved {
            options,
            limits: self.limits,
            duration,
            clocks: Clocks { begin, end },
            modules_before: &modules,
            stat_before: &stat,
            user_stat_before: user_stat.as_deref(),
            begun: begun_since_boot,
            map_before,
            map: &map,
            window: window.transpose()?,
            triggered: match &stopped {
                Stopped::Triggered(event) => Some(event),
                _ => None,
            },
            // A flight recorder ends by that, also after its event.
            switched_off: switched_off && !matches!(stopped, Stopped::Off | Stopped::Triggered(_)),
            put_aside: self.aside.found(),
            instance: tracefs.instance_name(),
        };
        self.save(&saved, spool.unwrap_or_default(), writer)?;
        options
            .after(Step::Written, signals)
            .map_err(Failed::Saved)?;
        stopped.say();
        Ok(stopped)
    }

    /// Sets everything but `tracing_on`.
    fn prepare(&self) -> Result {
        let Self {
            options,
            tracefs,
            signals,
            ..
        } = *self;
        tracefs.write("tracing_on", "0")?;
        options.before(Step::Stopped, signals)?;
        tracefs.write("current_tracer", "nop")?;
        tracefs.write("set_event", "")?;
        self.aside.put_away(tracefs)?;
        if let Some(kb) = options.buffer_kb {
            tracefs.write("buffer_size_kb", &kb.to_string())?;
        }
        let (percent, value) = spool::PERCENT;
        if options.stream && tracefs.has(percent) {
            tracefs.write(percent, value)?;
        }
        tracefs.write("trace", "")?;
        instance::list(tracefs)?;
        if options.reset {
            reset(tracefs)?;
        }
        options.before(Step::Emptied, signals)?;
        for (option, value) in FORMAT {
            // Older kernels have the options of a tracer only while it is on.
            if tracefs.has(option) && tracefs.read(option)?.trim() != value {
                tracefs.write(option, value)?;
            }
        }
        tracefs.write(lock::IDS, "1")?;
        if self.wants_user {
            self.ask_for_user_stacks();
        }
        tracefs.write("options/stacktrace", "1")?;
        self.ask_for_tgids();
        self.limits.set(tracefs)?;
        options.before(Step::Options, signals)?;
        if !options.functions.is_empty() {
            self.set_functions()?;
        }
        options.before(Step::Functions, signals)?;
        for event in &self.events.words {
            tracefs
                .append("set_event", &format!("{event}\n"))
                .map_err(|error| events::explain(error, event))?;
        }
        options.before(Step::Events, signals)
    }

    /// Without the ids of processes, a recording lacks only these.
    fn ask_for_tgids(&self) {
        if self.tracefs.has(TGIDS) {
            if let Err(error) = self.tracefs.write(TGIDS, "1") {
                warn(format_args!(
                    "threads are not recorded with their processes: {error}"
                ));
            }
        }
    }

    /// Turns user stacks on. Without them a recording is as good as it was before there were any.
    fn ask_for_user_stacks(&self) {
        let Err(error) = self.tracefs.write(lock::USER, "1") else {
            return;
        };
        let why = match &error {
            Error::Io { error, .. } if error.kind() == io::ErrorKind::Unsupported => {
                "this kernel has no user unwinder, dmesg says what is missing".to_owned()
            }
            Error::Io { error, .. } if error.kind() == io::ErrorKind::ResourceBusy => {
                "other tracers use all of the kernel's places".to_owned()
            }
            error => error.to_string(),
        };
        warn(format_args!("no user stacks are recorded: {why}"));
    }

    /// Binds the user stacks of tasks that stay in the kernel. It needs tracing to be on.
    fn settle(&self) {
        if !self.wants_user
            || !self
                .tracefs
                .read(lock::USER)
                .is_ok_and(|on| on.trim() == "1")
        {
            return;
        }
        if let Err(error) = self.tracefs.write("stack_map_user", "settle") {
            warn(format_args!("tasks that sleep have no user stack: {error}"));
        }
    }

    fn set_functions(&self) -> Result {
        let tracefs = self.tracefs;
        tracefs.write("set_ftrace_filter", "")?;
        for function in &self.options.functions {
            let written = tracefs.append("set_ftrace_filter", &format!("{function}\n"));
            written.map_err(|error| match error {
                Error::Io { error, .. } if error.kind() == io::ErrorKind::InvalidInput => {
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

    /// Begins to write the buffer to disk.
    fn stream(&self, writer: &Writer) -> Result<Streaming> {
        let layout = Header::read(self.tracefs)?.layout();
        Streaming::start(self.tracefs, &cpus(self.tracefs)?, layout, writer.room()?)
    }

    /// Saves it with `writer`; if that fails, in another directory, or where the user says. The
    /// buffer is read only when there is room for what is in it; from then on it is in memory.
    fn save(&self, saved: &Saved<'_>, spool: Spool, writer: Writer) -> Result<(), Failed> {
        let Self {
            tracefs, signals, ..
        } = *self;
        let is_streamed = spool.values().any(|taken| taken.len() > 0);
        let surroundings = saved
            .surroundings(tracefs, spool)
            .map_err(|error| self.unsaved(Some(&error), is_streamed))?;
        let size = surroundings.at_most(tracefs);
        let reserve = |writer: Writer| {
            self.options.after(Step::Saving, signals)?;
            writer.reserve(size)?;
            Ok(writer)
        };
        let reserved = first_that_works(writer, reserve);
        let (writer, mut moved) = match reserved? {
            Some(reserved) => reserved,
            // What was streamed is only here. Packed, it takes much less.
            None if is_streamed => {
                let writer = Writer::create(&self.options.output);
                (
                    writer.map_err(|error| self.unsaved(Some(&error), true))?,
                    false,
                )
            }
            None => return Err(self.unsaved(None, false)),
        };
        let collected =
            surroundings
                .collect(tracefs, signals, &writer)
                .map_err(|error| match error {
                    Error::Status(_) => Failed::Lost(error),
                    error => self.unsaved(Some(&error), is_streamed),
                })?;
        let write = |writer: Writer| {
            self.options.after(Step::Taken, signals)?;
            let path = writer.path().to_owned();
            collected.write(signals, writer)?;
            Ok(path)
        };
        let written = first_that_works(writer, write)?;
        let (path, moved_again) = written.ok_or_else(|| {
            Failed::Lost(Error::Refused(
                "the recording is lost: the ring buffer is emptied already, and no file could be \
                 written"
                    .to_owned(),
            ))
        })?;
        moved |= moved_again;
        if !moved {
            return Ok(());
        }
        Err(Failed::Saved(Error::Refused(format!(
            "the recording is in {}, as it could not be written to {}",
            path.display(),
            self.options.output.display()
        ))))
    }

    /// The buffer still has the recording, or the part of it that was not streamed.
    fn unsaved(&self, error: Option<&Error>, is_streamed: bool) -> Failed {
        if let Some(error) = error {
            warn(error);
        }
        let root = self.tracefs.root().display();
        let what = match is_streamed {
            true => "could not be saved: what was streamed is lost, and the rest",
            false => "could not be saved and",
        };
        Failed::Unsaved(Error::Refused(format!(
            "the recording {what} is still in the buffer; tracing stays off\n  \
             hint: while the module is loaded, \"stackmap resolve {root}/trace > FILE\" saves the \
             text with the stacks; then echo 1 > {root}/tracing_on"
        )))
    }
}

/// Does `work` with `first`; if that fails, with a file in another directory, or with a file that
/// the user names. Returns the result and whether another file was used; [`None`]: all have failed.
fn first_that_works<T>(
    first: Writer,
    mut work: impl FnMut(Writer) -> Result<T>,
) -> Result<Option<(T, bool)>> {
    let file = file_name();
    let mut elsewhere = elsewhere().into_iter().map(|dir| dir.join(&file));
    let mut next = Some(Ok(first));
    let mut moved = false;
    loop {
        let writer = match next.take() {
            Some(writer) => writer,
            None => match elsewhere.next().or_else(ask) {
                Some(path) => Writer::create(&path),
                None => return Ok(None),
            },
        };
        match writer.and_then(&mut work) {
            Ok(done) => return Ok(Some((done, moved))),
            Err(error @ Error::Status(_)) => return Err(error),
            Err(error) => warn(error),
        }
        moved = true;
    }
}

/// Why the map cannot be emptied, and what to do.
const MAP_IN_USE: &str = "\
    the map cannot be reset while it is in use: tracing is on at the top level or in an instance \
    that stack_map_instances lists\n  hint: without --reset, the counters keep their values";

/// Empties the map.
fn reset(tracefs: &Tracefs) -> Result {
    let emptied = tracefs.write("stack_map", "reset");
    emptied.map_err(|error| match error {
        Error::Io { error, .. } if error.kind() == io::ErrorKind::ResourceBusy => {
            Error::Refused(MAP_IN_USE.to_owned())
        }
        error => error,
    })
}

/// Directories for a recording that cannot be saved where the user asked.
fn elsewhere() -> Vec<PathBuf> {
    let dirs = [std::env::temp_dir(), "/var/tmp".into(), "/dev/shm".into()];
    dirs.into_iter().filter(|dir| dir.is_dir()).collect()
}

/// A file name that is not in use.
fn file_name() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = time.map_or(0, |time| time.as_secs());
    format!("stackmap-{time}-{}.data", std::process::id())
}

/// Asks the user at the terminal for a file; [`None`]: there is no terminal, or no file is given.
fn ask() -> Option<PathBuf> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return None;
    }
    say("file to save the recording to (an empty line discards it):");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).ok()?;
    let line = line.trim_end_matches('\n');
    (!line.is_empty()).then(|| Path::new(line).to_owned())
}
