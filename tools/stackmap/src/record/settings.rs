// SPDX-License-Identifier: MIT OR Apache-2.0

//! The settings of an instance: all that decide what is recorded, and how.
//!
//! A new instance copies the options of the top level, so each option that matters is set here. These are not:
//! `record-cmd` and `record-tgid`, which the kernel switches for the events of all instances (`comms` has the names instead);
//! `trace_printk_dest`, which would take the messages of `trace_printk()` from the top level; and options for the text of a
//! trace.

use super::{events::file_of, guard, spool, Options};
use crate::{
    error::{Error, Result},
    tracefs::Tracefs,
};
use rustix::fs::{flock, FlockOperation};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
};

/// Options of an instance, of which a kernel has some or all.
const OPTIONS: [(&str, &str); 8] = [
    ("userstacktrace", "0"),
    ("overwrite", "1"),
    ("markers", "1"),
    ("disable_on_free", "0"),
    ("pause-on-trace", "0"),
    ("event-fork", "0"),
    ("function-fork", "0"),
    ("function-trace", "1"),
];
/// The option that records the stacks of function calls. Older kernels have one for all instances.
const FUNCTION_STACKS: &str = "options/func_stack_trace";
/// Options that change what is recorded of calls, which are left alone where one is for all instances.
const OWN_FUNCTION_OPTIONS: [&str; 2] = ["options/func-args", "options/func-no-repeats"];

/// Files that decide which records the buffer gets; to write to `trace_clock` also clears it.
const WATCHED: &str =
    "set_event set_event_pid set_ftrace_filter set_ftrace_notrace set_ftrace_pid \
                       current_tracer options/stacktrace tracing_cpumask trace_clock";

/// Returns what is in the files that decide which records the buffer gets, filters of enabled events included. Lists of
/// threads change as these start and end, and are left out, as are long texts such as that of `-f '*'`.
pub(super) fn watched(tracefs: &Tracefs) -> BTreeMap<String, String> {
    let text = |file: &str| tracefs.read(file).unwrap_or_default();
    let events = text("set_event");
    let filters = events.lines().map(|event| file_of(event, "filter"));
    let files = WATCHED.split_ascii_whitespace().map(str::to_owned);
    let texts = files.chain(filters).map(|file| (text(&file), file));
    let is_of_threads = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let is_fixed = |(text, file): &(String, String)| {
        text.len() < 1 << 16 && !(file.ends_with("_pid") && is_of_threads(text))
    };
    let fixed = texts.filter(is_fixed);
    fixed.map(|(text, file)| (file, text)).collect()
}

/// Sets the instance up, except for what limits a recording, functions and events.
pub(super) fn set(tracefs: &Tracefs, options: &Options) -> Result {
    set_buffer(tracefs, &options.clock, true)?;
    if let Some(kb) = options.buffer_size {
        tracefs.write("buffer_size_kb", &kb.to_string())?;
    }
    match options.streams() {
        true => set_streamed(tracefs),
        false => Ok(()),
    }
}

/// Makes the kernel wake the reader of a buffer that is streamed.
pub(super) fn set_streamed(tracefs: &Tracefs) -> Result {
    let (percent, value) = spool::PERCENT;
    match tracefs.has(percent) {
        true => tracefs.write(percent, value),
        false => Ok(()),
    }
}

/// Switches an instance off, and sets its clock and its options: whether events have `stacks` is one of them.
pub(super) fn set_buffer(tracefs: &Tracefs, clock: &str, stacks: bool) -> Result {
    tracefs.write("tracing_on", "0")?;
    tracefs
        .write("trace_clock", clock)
        .map_err(|error| match error {
            Error::Io { error, .. } if error.kind() == io::ErrorKind::InvalidInput => {
                Error::Refused(format!(
                    "there is no clock \"{clock}\"\n  hint: {} lists them",
                    tracefs.path("trace_clock").display()
                ))
            }
            error => error,
        })?;
    let stacks = ("stacktrace", if stacks { "1" } else { "0" });
    for (option, value) in OPTIONS.into_iter().chain([stacks]) {
        let option = format!("options/{option}");
        if tracefs.has(&option) {
            tracefs.write(&option, value)?;
        }
    }
    Ok(())
}

/// Records calls of `functions` with their stacks.
///
/// Where one option is for all instances, it is set only until the tracer has started, which keeps what it started with. It
/// is switched off by way of an instance without a tracer: the tracers of others would change with it.
pub(super) fn set_functions(
    top: &Tracefs,
    tracefs: &Tracefs,
    functions: &[String],
    tell: &mut dyn FnMut(u8),
) -> Result {
    tracefs.write("set_ftrace_filter", "")?;
    for function in functions {
        let written = tracefs.append("set_ftrace_filter", &format!("{function}\n"));
        written.map_err(|error| match error {
            Error::Io { error, .. } if error.kind() == io::ErrorKind::InvalidInput => {
                Error::Refused(format!(
                    "there is no function \"{function}\" that can be traced\n  hint: {} lists them",
                    tracefs.path("available_filter_functions").display()
                ))
            }
            error => error,
        })?;
    }
    // Without a filter, the tracer would record the calls of all functions.
    if tracefs
        .read("set_ftrace_filter")?
        .starts_with("#### all functions enabled")
    {
        return Err(Error::Refused(format!(
            "-f {} selects no function to be recorded",
            functions.join(" -f ")
        )));
    }
    let lock = lock(top)?;
    let is_on = |tracefs: &Tracefs| {
        tracefs
            .read(FUNCTION_STACKS)
            .is_ok_and(|on| on.trim() == "1")
    };
    let was_off = !is_on(top);
    if was_off {
        tell(guard::OPTION_ON);
    }
    tracefs.write(FUNCTION_STACKS, "1")?;
    let is_shared = was_off && is_on(top);
    let own = OWN_FUNCTION_OPTIONS
        .iter()
        .filter(|option| tracefs.has(option));
    for option in own.filter(|_| was_off && !is_shared) {
        tracefs.write(option, "0")?;
    }
    let _lock = lock.filter(|_| is_shared);
    let started = tracefs.write("current_tracer", "function");
    if is_shared {
        switch_off(top)?;
    }
    if was_off {
        tell(guard::OPTION_OFF);
    }
    started
}

/// Locks the option [`FUNCTION_STACKS`] against other recorders, which read, set and restore it, too. Waits for them.
pub(super) fn lock(top: &Tracefs) -> Result<Option<File>> {
    if !top.has(FUNCTION_STACKS) {
        return Ok(None);
    }
    let file = top.open(FUNCTION_STACKS)?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| Error::io(format!("lock {FUNCTION_STACKS}"), error.into()))?;
    Ok(Some(file))
}

/// Switches the option off for all instances, by way of a new one; where each instance has its own, that changes nothing.
pub(super) fn switch_off(top: &Tracefs) -> Result {
    // Not named like instances of recordings, which are removed when they are empty.
    let path = top.instance_path(&format!("stackmap_option-{}", std::process::id()));
    fs::create_dir(&path)
        .map_err(|error| Error::io(format!("create {}", path.display()), error))?;
    let written =
        Tracefs::find(Some(&path)).and_then(|tracefs| tracefs.write(FUNCTION_STACKS, "0"));
    let removed = fs::remove_dir(&path);
    written?;
    removed.map_err(|error| Error::io(format!("remove {}", path.display()), error))
}
