// SPDX-License-Identifier: MIT OR Apache-2.0

//! The old state of tracefs, as the writes that restore it.

use super::{
    aside::Aside,
    events,
    limits::Limits,
    lock::{self, Before, Switch},
    spool,
    write::{filter, Write},
    Options, FORMAT, TGIDS,
};
use crate::{
    error::{Error, Result},
    output::warn,
    tracefs::Tracefs,
};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

/// The instances whose stacks become ids.
pub(super) const INSTANCES: &str = "stack_map_instances";

/// The writes that undo a recording, in their order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Undo {
    root: PathBuf,
    writes: Vec<Write>,
    /// What the switches of the module were before any recording.
    switches: Vec<Before>,
    /// What is undone of an instance.
    instance: Instance,
    /// The unfinished file of the capture; it is removed if it still has this name.
    unfinished: Option<PathBuf>,
}

/// What a recording has done to the instance that it records into.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Instance {
    /// It is taken off the list, by this name.
    pub(super) unlist: Option<String>,
    /// It was made for the recording.
    pub(super) remove: bool,
}

/// What becomes of the recording that the buffer holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Recording {
    /// It is saved: the buffer is emptied.
    Empty,
    /// It is not worth keeping.
    Ignore,
    /// The buffer holds the only copy: tracing stays off.
    Keep,
}

impl Undo {
    /// Reads what tracefs is like now, as far as a recording with `options` and `limits` changes it.
    /// `aside` is what it puts aside, `unfinished` the file that is being written.
    pub(super) fn read(
        tracefs: &Tracefs,
        options: &Options,
        (limits, aside): (&Limits<'_>, &Aside),
        switches: &[Switch],
        instance: Instance,
        unfinished: Option<&Path>,
    ) -> Result<Self> {
        let absolute = |path| std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        let mut undo = Self {
            root: absolute(tracefs.root()),
            writes: Vec::new(),
            switches: switches.iter().map(Switch::before).collect(),
            instance,
            unfinished: unfinished.map(absolute),
        };
        undo.write("tracing_on", "0");
        undo.read_events(tracefs)?;
        undo.read_tracer(tracefs, !options.functions.is_empty())?;
        if options.buffer_kb.is_some() {
            undo.read_buffers(tracefs)?;
        }
        if options.stream {
            let (file, percent) = spool::PERCENT;
            undo.read_option(tracefs, file, percent)?;
        }
        for (option, wanted) in FORMAT {
            undo.read_option(tracefs, option, wanted)?;
        }
        undo.read_option(tracefs, TGIDS, "1")?;
        undo.writes.extend(limits.undo(tracefs)?);
        undo.writes.extend(aside.back().cloned());
        let stacktrace = "options/stacktrace";
        undo.write(stacktrace, tracefs.read(stacktrace)?.trim());
        let on = tracefs.read("tracing_on")?;
        undo.writes.push(Write::costly("tracing_on", on.trim()));
        Ok(undo)
    }

    fn read_events(&mut self, tracefs: &Tracefs) -> Result {
        self.write("set_event", "");
        for event in events::on(tracefs)? {
            self.writes.push(Write::append("set_event", &event));
        }
        Ok(())
    }

    /// Sets an option to `wanted` if it exists and has another value.
    fn read_option(&mut self, tracefs: &Tracefs, option: &str, wanted: &str) -> Result {
        if tracefs.has(option) {
            let value = tracefs.read(option)?;
            if value.trim() != wanted {
                self.write(option, value.trim());
            }
        }
        Ok(())
    }

    fn read_tracer(&mut self, tracefs: &Tracefs, functions: bool) -> Result {
        self.write("current_tracer", "nop");
        if functions {
            let option = "options/func_stack_trace";
            let stacks = match tracefs.has(option) {
                true => tracefs.read(option)?,
                false => "0".to_owned(),
            };
            self.write(option, stacks.trim());
            self.write("set_ftrace_filter", "");
            for line in tracefs.read("set_ftrace_filter")?.lines() {
                if let Some(function) = filter(line) {
                    self.writes
                        .push(Write::append("set_ftrace_filter", &function));
                }
            }
        }
        let tracer = tracefs.read("current_tracer")?;
        self.writes
            .push(Write::costly("current_tracer", tracer.trim()));
        Ok(())
    }

    fn read_buffers(&mut self, tracefs: &Tracefs) -> Result {
        let all = tracefs.read("buffer_size_kb")?;
        if let Some(kb) = buffer_kb(&all) {
            self.writes.push(Write::costly("buffer_size_kb", kb));
            return Ok(());
        }
        // "X": each CPU has its own.
        for cpu in super::save::cpus(tracefs)? {
            let file = format!("per_cpu/cpu{cpu}/buffer_size_kb");
            let size = tracefs.read(&file)?;
            if let Some(kb) = buffer_kb(&size) {
                self.writes.push(Write::costly(&file, kb));
            }
        }
        Ok(())
    }

    fn write(&mut self, file: &str, text: &str) {
        self.writes.push(Write::new(file, text));
    }

    /// Does all the writes, even if some of them fail; returns the first error. `switches` are those of
    /// the module, open.
    pub(super) fn run(
        &self,
        tracefs: &Tracefs,
        switches: &[impl AsFd],
        recording: Recording,
    ) -> Result {
        let mut first = Ok(());
        let mut done = |result: Result| {
            if let Err(error) = &result {
                warn(format_args!("tracefs is not fully restored: {error}"));
            }
            if first.is_ok() {
                first = result;
            }
        };
        for (nr, write) in self.writes.iter().enumerate() {
            if recording == Recording::Empty && nr + 1 == self.writes.len() {
                done(tracefs.write("trace", ""));
            }
            if recording != Recording::Keep || !write.costly {
                done(write.run(tracefs));
            }
        }
        // User stacks go off first.
        for (before, switch) in self.switches.iter().zip(switches).rev() {
            done(lock::switch_back(tracefs, switch, before));
        }
        if recording != Recording::Keep {
            self.instance.run(tracefs, &mut done);
        }
        first
    }

    /// How many switches there are.
    pub(super) fn nr_switches(&self) -> usize {
        self.switches.len()
    }

    /// Does all the writes for a recording process that died.
    pub(super) fn run_for_the_dead(&self, switches: &[impl AsFd]) -> Result {
        if self.instance.remove && !self.root.exists() {
            // All was undone already.
            return Ok(());
        }
        let tracefs = Tracefs::find(Some(&self.root))?;
        let result = self.run(&tracefs, switches, Recording::Ignore);
        if let Some(unfinished) = &self.unfinished {
            // Mostly it is not there: it has got its name, or none yet.
            let _ = fs::remove_file(unfinished);
        }
        result
    }
}

impl Instance {
    fn run(&self, tracefs: &Tracefs, done: &mut impl FnMut(Result)) {
        if let Some(name) = &self.unlist {
            let listed = listed(tracefs, name);
            if let Ok(true) = listed {
                done(tracefs.append(INSTANCES, &format!("!{name}\n")));
            }
            done(listed.map(drop));
        }
        if self.remove {
            done(remove(tracefs.root()));
        }
    }
}

/// Whether the stacks of an instance become ids.
pub(super) fn listed(tracefs: &Tracefs, name: &str) -> Result<bool> {
    Ok(tracefs.read(INSTANCES)?.lines().any(|line| line == name))
}

/// Removes an instance.
pub(super) fn remove(path: &Path) -> Result {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|error| Error::io(format!("remove {}", path.display()), error)),
    }
}

/// The size in `1408` or, of a buffer that was never used, `7 (expanded: 1408)`.
pub(super) fn buffer_kb(text: &str) -> Option<&str> {
    let text = text.trim();
    let text = match text.split_once("(expanded: ") {
        Some((_, expanded)) => expanded.trim_end_matches(')'),
        None => text,
    };
    text.parse::<u64>().is_ok().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_buffers_are_read() {
        assert_eq!(buffer_kb("1408\n"), Some("1408"));
        assert_eq!(buffer_kb("7 (expanded: 1408)\n"), Some("1408"));
        assert_eq!(buffer_kb("X\n"), None);
    }
}
