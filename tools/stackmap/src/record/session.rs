// SPDX-License-Identifier: MIT OR Apache-2.0

//! A recording, from when all that it changes can be undone until it is saved.

use super::{
    aside::Aside,
    events::{self, Events},
    instance,
    save::Saved,
    wait::{self, Signals, Stopped},
    Options, Step, FORMAT,
};
use crate::{
    capture::Writer,
    error::{Error, Result},
    kernel,
    output::{say, warn},
    tracefs::Tracefs,
};
use std::{
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// What it has to do with.
pub(super) struct Session<'a> {
    pub(super) options: &'a Options,
    pub(super) tracefs: &'a Tracefs,
    pub(super) signals: &'a Signals,
    pub(super) events: &'a Events,
    pub(super) aside: &'a Aside,
}

/// Where a recording failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// There is nothing to keep, or nobody wants it.
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
        let map_before = tracefs.map_state()?;
        let map = tracefs.open("stack_map_bin")?;
        let begun = Instant::now();
        tracefs.write("tracing_on", "1")?;
        options.before(Step::Running, signals)?;
        let stopped = wait::wait(&options.command, options.duration, signals);
        let switched_off = tracefs.read("tracing_on").is_ok_and(|on| on.trim() == "0");
        tracefs.write("tracing_on", "0")?;
        let duration = begun.elapsed();
        let stopped = stopped?;
        options.after(Step::Ended, signals)?;
        let saved = Saved {
            options,
            duration,
            modules_before: &modules,
            stat_before: &stat,
            map_before,
            map: &map,
            switched_off,
            put_aside: self.aside.found(),
            instance: tracefs.instance_name(),
        };
        self.save(&saved, writer)?;
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
        tracefs.write("trace", "")?;
        instance::list(tracefs)?;
        if options.reset {
            reset(tracefs)?;
        }
        options.before(Step::Emptied, signals)?;
        for (option, value) in FORMAT {
            // Those of a tracer are there while it is on, with older kernels.
            if tracefs.has(option) && tracefs.read(option)?.trim() != value {
                tracefs.write(option, value)?;
            }
        }
        tracefs.write("options/stackmap", "1")?;
        tracefs.write("options/stacktrace", "1")?;
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

    /// Saves it with `writer`; if that fails, in another directory, or where the user says.
    fn save(&self, saved: &Saved<'_>, writer: Writer) -> Result<(), Failed> {
        let write = |writer| {
            self.options.after(Step::Saving, self.signals)?;
            saved.write(self.tracefs, self.signals, writer)
        };
        let first = match write(writer) {
            Ok(()) => return Ok(()),
            Err(error @ Error::Status(_)) => return Err(Failed::Lost(error)),
            Err(error) => error,
        };
        warn(&first);
        let file = file_name();
        let mut elsewhere = elsewhere().into_iter().map(|dir| dir.join(&file));
        let mut ask = || ask();
        while let Some(path) = elsewhere.next().or_else(&mut ask) {
            match Writer::create(&path).and_then(write) {
                Ok(()) => {
                    let path = path.display();
                    let error = format!(
                        "the recording is in {path}, as it could not be written to {}",
                        self.options.output.display()
                    );
                    return Err(Failed::Saved(Error::Refused(error)));
                }
                Err(error @ Error::Status(_)) => return Err(Failed::Lost(error)),
                Err(error) => warn(error),
            }
        }
        let root = self.tracefs.root().display();
        Err(Failed::Unsaved(Error::Refused(format!(
            "the recording could not be saved, and is still in the buffer; tracing stays off\n  \
             hint: \"stackmap resolve {root}/trace > FILE\" saves its text with the stacks, as long \
             as the module is loaded; then echo 1 > {root}/tracing_on"
        ))))
    }
}

/// Empties the map.
fn reset(tracefs: &Tracefs) -> Result {
    tracefs.write("stack_map", "reset").map_err(|error| match error {
        Error::Io { error, .. } if error.kind() == io::ErrorKind::ResourceBusy => Error::Refused(
            "the map cannot be emptied while it is in use: tracing is on at the top level or in an \
             instance that stack_map_instances lists\n  hint: without --reset the counts of the map \
             go on"
                .to_owned(),
        ),
        error => error,
    })
}

/// Where a recording is saved that cannot be saved where it should.
fn elsewhere() -> Vec<PathBuf> {
    let dirs = [std::env::temp_dir(), "/var/tmp".into(), "/dev/shm".into()];
    dirs.into_iter().filter(|dir| dir.is_dir()).collect()
}

/// A name that nothing has.
fn file_name() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = time.map_or(0, |time| time.as_secs());
    format!("stackmap-{time}-{}.data", std::process::id())
}

/// Asks whoever is at the terminal for a file; [`None`]: nobody is, or none is given.
fn ask() -> Option<PathBuf> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return None;
    }
    say("save the recording as (an empty line leaves it in the buffer):");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).ok()?;
    let line = line.trim_end_matches('\n');
    (!line.is_empty()).then(|| Path::new(line).to_owned())
}
