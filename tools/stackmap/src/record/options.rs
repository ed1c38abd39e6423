// SPDX-License-Identifier: MIT OR Apache-2.0

//! The arguments of `stackmap record`.

use super::{selected::Events, Label, Selected};
use crate::{
    capture::DEFAULT_CAPTURE,
    filter::{number, CpuRange},
};
use clap::{ArgGroup, Args};
use std::{ffi::OsString, path::PathBuf, time::Duration};

const EXAMPLES: &str = "\
examples:
  stackmap record -e kmem:kmalloc,kmem:kfree -- ls  record while a command runs
  stackmap record -e 'sched:*' -d 5                 record for 5 seconds
  stackmap record -e block:block_rq_issue           record until Ctrl-C
  stackmap record -f vfs_read -f 'ext4_*' -d 0.5    record calls of functions
  stackmap record -l 'syscalls:sys_enter_*'         list the events that match
  stackmap record -e 'syscalls:sys_enter_*' -d 1    record them
  stackmap record -e 'sched:*' -p 1234 -d 5         record a process and its children
  stackmap record -e kmem:kmalloc --filter 'bytes_req > 4096' -C 0-3
                                                    record only such events, on four CPUs
  stackmap record -e kmem:kfree -b 8192 -o a.data   with 8 MiB of buffer for each CPU
  stackmap record -e 'sched:*' --last 5 --on-trigger 'block:block_rq_complete if error != 0'
                                                    keep the 5 seconds before that happened
  stackmap record -e 'sched:*' -d 5 --label service=web --label version=1.4
                                                    say what was recorded
  stackmap record -e 'sched:*' -- runuser -u ann -- make
                                                    run the command as the user ann";

const NOTES: &str = "\
A recording has an instance of ftrace for itself, which is removed when it ends. Other tracing goes \
on as it is, and several recordings can run at the same time. If record is killed, another process \
saves the capture; if it cannot, \"stackmap recover\" does.

The exit status is that of COMMAND: 128 plus the signal that killed it, 127 if it does not exist, 126 if \
it cannot be run. Without COMMAND, or if SECS ended the recording, it is 0. It is 1 if the capture cannot be written, and 130 \
if a signal came before anything was recorded, or a second one before the capture was written.";

/// Record events with their stacks, into one file that resolves anywhere
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES, after_help = NOTES)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["event", "function", "list"]))]
pub struct Options {
    #[command(flatten)]
    pub(super) events: Events,
    /// Function whose calls to record, as set_ftrace_filter takes it
    #[arg(short, long, value_name = "FUNC")]
    pub(super) function: Vec<String>,
    /// List the events that PATTERN matches, or all, and record nothing
    #[arg(short, long, value_name = "PATTERN", num_args = 0..=1, default_missing_value = "*:*")]
    #[arg(conflicts_with_all = ["event", "function", "command"])]
    pub(super) list: Option<String>,
    /// Record only these processes with all their threads, and the children that they start from now
    /// on; the recording ends when all of these have ended. COMMAND only says how long
    #[arg(short, long, value_name = "PID[,PID...]", value_delimiter = ',')]
    #[arg(value_parser = parse_pid)]
    pub(super) pid: Vec<u32>,
    /// Record only on these CPUs: 0-3,5
    #[arg(short = 'C', long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = CpuRange::new)]
    pub(super) cpu: Vec<CpuRange>,
    /// Record for SECS seconds; a COMMAND that is still running is terminated
    #[arg(short, long, value_name = "SECS", value_parser = parse_seconds)]
    pub(super) duration: Option<Duration>,
    /// Size of the ring buffer of each CPU, in KiB
    #[arg(short, long, value_name = "KB", value_parser = parse_kib)]
    pub(super) buffer_size: Option<u64>,
    /// Keep the latest records that the ring buffer holds, and write nothing to disk until the end;
    /// without this the buffer is written to disk while the recording runs
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Keep only the last SECS seconds of the recording, which also ends when tracing is switched off;
    /// implies --overwrite
    #[arg(long, value_name = "SECS", value_parser = parse_seconds)]
    pub(super) last: Option<Duration>,
    /// End the recording when EVENT occurs, or when it occurs and EXPR is true of its fields:
    /// 'sched:sched_switch if next_prio < 100'; can be repeated; implies --overwrite
    #[arg(long, value_name = "EVENT[ if EXPR]")]
    pub(super) on_trigger: Vec<Selected>,
    /// Record for SECS seconds more after the event of --on-trigger
    #[arg(long, value_name = "SECS", value_parser = parse_seconds, requires = "on_trigger")]
    pub(super) after: Option<Duration>,
    /// Clock of the trace: mono is that of clock_gettime(CLOCK_MONOTONIC)
    #[arg(long, value_name = "NAME", default_value = "mono")]
    pub(super) clock: String,
    /// File to create or replace; a device or a FIFO is written to, - is standard output
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CAPTURE)]
    pub(super) output: PathBuf,
    /// Keep the names of all symbols, not only of those that the stacks and events need: some MiB more
    #[arg(long)]
    pub(super) all_symbols: bool,
    /// Leave out the fields of events, which hold what processes read, write and run, and the
    /// arguments of COMMAND
    #[arg(long)]
    pub(super) no_args: bool,
    /// Write a label into the capture, such as service=web; can be repeated. report shows labels
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) label: Vec<Label>,
    /// Leave out what tells who recorded, and where: the host's name, the boot id, names of tasks,
    /// directories of programs outside of the system's, perf maps, and all that --no-args leaves out
    #[arg(long)]
    pub(super) anonymous: bool,
    /// Do not record which user stacks led to the events; without this they are recorded where the kernel can
    #[arg(long)]
    pub(super) no_user: bool,
    /// Module file to load if the module is not loaded [default: modprobe stackmap]
    #[arg(long, value_name = "KO")]
    pub(super) module: Option<PathBuf>,
    /// Command to run, with its arguments; the recording ends with it
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(super) command: Vec<OsString>,
}

/// Reads a number of seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("\"{text}\" is not a number"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{text} is not a number of seconds"))
}

fn parse_pid(text: &str) -> Result<u32, String> {
    match number(text)? {
        0 => Err("0 is not the id of a process".to_owned()),
        pid => Ok(pid),
    }
}

fn parse_kib(text: &str) -> Result<u64, String> {
    match number(text)? {
        size @ 1..=0x1_0000_0000 => Ok(size),
        _ => Err("the size is between 1 and 4294967296".to_owned()),
    }
}

impl Options {
    /// Whether it keeps what was before something happens.
    pub(super) fn is_flight(&self) -> bool {
        self.last.is_some() || !self.on_trigger.is_empty()
    }

    /// Whether the buffer is written to disk while the recording runs.
    pub(super) fn streams(&self) -> bool {
        !self.overwrite && !self.is_flight()
    }

    /// Whether the fields of events and the arguments of the command are left out.
    pub(super) fn hides_args(&self) -> bool {
        self.no_args || self.anonymous
    }
}
