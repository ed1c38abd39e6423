// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap record`: one recording into one file.

use super::args::{Global, DEFAULT_CAPTURE};
use crate::{
    error::Result,
    record::{Fault, Options},
};
use clap::{ArgGroup, Args};
use std::{ffi::OsString, path::PathBuf, time::Duration};

const EXAMPLES: &str = "\
examples:
  stackmap record -e kmem:kmalloc -- ls -l          record while a command runs
  stackmap record -e 'sched:*' -d 5                 record for 5 seconds
  stackmap record -e block:block_rq_issue           record until Ctrl-C
  stackmap record -f vfs_read -f 'ext4_*' -d 0.5    record calls of functions
  stackmap record -e 'syscalls:sys_enter_*' -d 1    all that a pattern matches
  stackmap record -e kmem:kfree -b 8192 -o a.data   with 8 MiB of buffer for each CPU
  stackmap record -e kmem:kfree --instance mine     beside what others trace";

const NOTES: &str = "\
Everything in tracefs that the recording changes is as it was before when it ends, also after
Ctrl-C, after an error, and if stackmap itself is killed. What the trace buffer held before is
lost. One recording at a time has a buffer; --instance makes another one. The exit status is that
of COMMAND (127 if there is none of that name, 126 if it cannot be run), 0 if SECS were over before
it was, and 130 if a signal came before anything was recorded.";

/// Record events with their stacks, into one file that resolves anywhere
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES, after_help = NOTES)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["event", "function"]))]
pub(super) struct Record {
    /// Event to record: system:event, event or system, each with wildcards (* ? [a-z])
    #[arg(short, long, value_name = "EVENT")]
    event: Vec<String>,
    /// Function whose calls to record, as set_ftrace_filter takes it
    #[arg(short, long, value_name = "FUNC")]
    function: Vec<String>,
    /// Record for SECS seconds; a COMMAND that still runs is ended then
    #[arg(short, long, value_name = "SECS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Ring buffer for each CPU, in KiB
    #[arg(short, long, value_name = "KB", value_parser = clap::value_parser!(u64).range(1..))]
    buffer_size: Option<u64>,
    /// Record into the instance NAME, which is made and removed again if it is not there
    #[arg(short, long, value_name = "NAME")]
    instance: Option<String>,
    /// File to write; a device, a pipe or a link is written to, - is standard output
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CAPTURE)]
    output: PathBuf,
    /// Keep only those kernel names that the stacks need: a smaller file
    #[arg(long)]
    slim: bool,
    /// Leave out the fields of events, which hold what processes read, write and run, and the
    /// arguments of COMMAND
    #[arg(long)]
    no_args: bool,
    /// Empty the map first, so that its counts are of this recording alone
    #[arg(long)]
    reset: bool,
    /// Put aside what somebody else traces, and back afterwards
    #[arg(long)]
    force: bool,
    /// File to load the module from, if it is not loaded; else modprobe finds it
    #[arg(long, value_name = "KO")]
    module: Option<PathBuf>,
    /// Go wrong at a step, for tests
    #[arg(long, hide = true, value_name = "STEP:KIND")]
    fault: Option<Fault>,
    /// Command to run; the recording ends with it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl Record {
    pub(super) fn run(self, global: &Global) -> Result {
        let options = Options {
            events: self.event,
            functions: self.function,
            duration: self.duration,
            buffer_kb: self.buffer_size,
            instance: self.instance,
            output: self.output,
            command: self.command,
            module: self.module,
            reset: self.reset,
            force: self.force,
            slim: self.slim,
            no_args: self.no_args,
            fault: self.fault,
        };
        options.run(global.tracefs())
    }
}
