// SPDX-License-Identifier: MIT OR Apache-2.0

//! What tracefs was like, as the writes that make it so again.

use super::{Options, FORMAT};
use crate::{error::Result, output::warn, tracefs::Tracefs};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What stands in `set_ftrace_filter` when it is empty begins so.
const COMMENT: &str = "#";

/// The writes that undo a recording, in their order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Undo {
    root: PathBuf,
    writes: Vec<Write>,
    /// The file that is being written; if it still has this name, it is of no use.
    unfinished: PathBuf,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Write {
    file: String,
    text: String,
    append: bool,
}

impl Undo {
    /// Reads what tracefs is like now, as far as a recording with `options` changes it.
    /// `unfinished` is the file that is being written.
    pub(super) fn read(tracefs: &Tracefs, options: &Options, unfinished: &Path) -> Result<Self> {
        let mut undo = Self {
            root: tracefs.root().to_owned(),
            writes: Vec::new(),
            unfinished: std::path::absolute(unfinished).unwrap_or_else(|_| unfinished.to_owned()),
        };
        undo.write("tracing_on", "0");
        undo.read_events(tracefs)?;
        undo.read_tracer(tracefs, !options.functions.is_empty())?;
        if options.buffer_kb.is_some() {
            undo.read_buffers(tracefs)?;
        }
        for (option, wanted) in FORMAT {
            undo.read_option(tracefs, option, wanted)?;
        }
        for option in ["options/stacktrace", "options/stackmap", "tracing_on"] {
            undo.write(option, tracefs.read(option)?.trim());
        }
        Ok(undo)
    }

    fn read_events(&mut self, tracefs: &Tracefs) -> Result {
        self.write("set_event", "");
        for event in tracefs.read("set_event")?.lines() {
            self.append("set_event", event);
        }
        for file in ["set_event_pid", "set_ftrace_pid"] {
            if !tracefs.has(file) {
                continue;
            }
            let pids = tracefs.read(file)?;
            self.write(file, "");
            // "no pid" is what an empty set_ftrace_pid says.
            for pid in pids.lines().filter(|pid| pid.parse::<u32>().is_ok()) {
                self.append(file, pid);
            }
        }
        Ok(())
    }

    /// An option that is set to what is `wanted`, if it is there and something else.
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
                    self.append("set_ftrace_filter", &function);
                }
            }
        }
        let tracer = tracefs.read("current_tracer")?;
        self.write("current_tracer", tracer.trim());
        Ok(())
    }

    fn read_buffers(&mut self, tracefs: &Tracefs) -> Result {
        let all = tracefs.read("buffer_size_kb")?;
        if let Some(kb) = buffer_kb(&all) {
            self.write("buffer_size_kb", kb);
            return Ok(());
        }
        // "X": each CPU has its own.
        for cpu in super::save::cpus(tracefs)? {
            let file = format!("per_cpu/cpu{cpu}/buffer_size_kb");
            let size = tracefs.read(&file)?;
            if let Some(kb) = buffer_kb(&size) {
                self.write(&file, kb);
            }
        }
        Ok(())
    }

    fn write(&mut self, file: &str, text: &str) {
        self.writes.push(Write {
            file: file.to_owned(),
            text: text.to_owned(),
            append: false,
        });
    }

    fn append(&mut self, file: &str, text: &str) {
        self.writes.push(Write {
            file: file.to_owned(),
            text: format!("{text}\n"),
            append: true,
        });
    }

    /// Does all the writes, whatever becomes of each; returns the first error. `empty`: what the
    /// buffer holds is of no use any more.
    pub(super) fn run(&self, tracefs: &Tracefs, empty: bool) -> Result {
        let mut first = Ok(());
        for (nr, write) in self.writes.iter().enumerate() {
            if empty && nr + 1 == self.writes.len() {
                first = first.and(tracefs.write("trace", ""));
            }
            let result = match write.append {
                true => tracefs.append(&write.file, &write.text),
                false => tracefs.write(&write.file, &write.text),
            };
            if let Err(error) = &result {
                warn(format_args!("tracefs is not as it was before: {error}"));
            }
            first = first.and(result);
        }
        first
    }

    /// Does all the writes in the place of a process that could not.
    pub(super) fn run_for_the_dead(&self) -> Result {
        let tracefs = Tracefs::find(Some(&self.root))?;
        let result = self.run(&tracefs, false);
        // Mostly it is not there: it has got its name, or none yet.
        let _ = std::fs::remove_file(&self.unfinished);
        result
    }
}

/// A line of `set_ftrace_filter` as it can be written. Commands (`schedule:traceoff`) are no
/// part of the filter and stay by themselves.
fn filter(line: &str) -> Option<String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(COMMENT) || line.contains(':') {
        return None;
    }
    match line.split_once(" [") {
        Some((function, module)) => {
            let module = module.split(']').next().unwrap_or_default();
            Some(format!("{}:mod:{module}", function.trim()))
        }
        None => Some(line.split(' ').next().unwrap_or_default().to_owned()),
    }
}

/// The size in `1408` or, of a buffer that was never used, `7 (expanded: 1408)`.
fn buffer_kb(text: &str) -> Option<&str> {
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
    fn filters_are_written_as_they_are_meant() {
        assert_eq!(filter("vfs_read").as_deref(), Some("vfs_read"));
        assert_eq!(
            filter("p9_tag_alloc [9pnet]").as_deref(),
            Some("p9_tag_alloc:mod:9pnet")
        );
        assert_eq!(filter("#### all functions enabled ####"), None);
        assert_eq!(filter("schedule:traceoff:unlimited"), None);
        assert_eq!(filter(""), None);
    }

    #[test]
    fn sizes_of_buffers_are_read() {
        assert_eq!(buffer_kb("1408\n"), Some("1408"));
        assert_eq!(buffer_kb("7 (expanded: 1408)\n"), Some("1408"));
        assert_eq!(buffer_kb("X\n"), None);
    }
}
