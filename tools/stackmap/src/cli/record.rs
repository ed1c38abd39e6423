// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap record`: one recording into one file.

use super::{
    args::{Global, DEFAULT_CAPTURE},
    selected::Events,
};
#[cfg(feature = "fault")]
use crate::record::Fault;
use crate::{
    error::Result,
    filter::CpuRange,
    record::{Label, Options, Trigger},
};
use clap::{ArgGroup, Args};
use std::{ffi::OsString, path::PathBuf, time::Duration};

const EXAMPLES: &str = "\
examples:
  stackmap record -e kmem:kmalloc -- ls -l          record while a command runs
  stackmap record -e 'sched:*' -d 5                 record for 5 seconds
  stackmap record -e block:block_rq_issue           record until Ctrl-C
  stackmap record -f vfs_read -f 'ext4_*' -d 0.5    record calls of functions
  stackmap record -e 'syscalls:sys_enter_*' -d 1    record all events that match
  stackmap record -e 'sched:*' -p 1234 -d 5         record a process and its children
  stackmap record -e kmem:kmalloc --filter 'bytes_req > 4096' -C 0-3
                                                    only such events, on four CPUs
  stackmap record -e kmem:kfree -b 8192 -o a.data   with 8 MiB of buffer for each CPU
  stackmap record -e 'sched:*' --last 5 --on-trigger 'block:block_rq_complete if error != 0'
                                                    keep the 5 seconds before that happened
  stackmap record -e kmem:kfree --instance mine     record beside others, in an instance
  stackmap record -e 'sched:*' -d 5 --label service=web --label version=1.4
                                                    say what was recorded
  stackmap record -e 'sched:*' --user ann -- make   run the command as the user ann";

const NOTES: &str = "\
Everything that the recording changes in tracefs is restored when it ends, also after Ctrl-C,
after an error, and if stackmap itself is killed. The old contents of the trace buffer are lost.
Each buffer has one recording at a time; --instance uses a buffer of its own. The exit status is
that of COMMAND (127 if it does not exist, 126 if it cannot be run), 0 if the recording ended after
SECS, and 130 if a signal came before anything was recorded, or a second one before the capture was
written.";

/// Record events with their stacks, into one file that resolves anywhere
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES, after_help = NOTES)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["event", "function"]))]
pub(super) struct Record {
    #[command(flatten)]
    events: Events,
    /// Function whose calls to record, as set_ftrace_filter takes it
    #[arg(short, long, value_name = "FUNC")]
    function: Vec<String>,
    /// Record only these processes with all their threads, and the children that they start from now
    /// on; the recording ends when all of these have ended. COMMAND only says how long
    #[arg(short, long, value_name = "PID[,PID...]", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,
    /// Record only on these CPUs: 0-3,5
    #[arg(short = 'C', long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = CpuRange::new)]
    cpu: Vec<CpuRange>,
    /// Record for SECS seconds; a COMMAND that is still running is terminated
    #[arg(short, long, value_name = "SECS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Size of the ring buffer of each CPU, in KiB
    #[arg(short, long, value_name = "KB", value_parser = clap::value_parser!(u64).range(1..))]
    buffer_size: Option<u64>,
    /// Keep the latest records that the ring buffer holds, and write nothing to disk until the end;
    /// without this the buffer is written to disk while the recording runs
    #[arg(long)]
    overwrite: bool,
    /// What is done without --overwrite
    #[arg(long, hide = true, conflicts_with_all = ["overwrite", "last", "on_trigger"])]
    stream: bool,
    /// Keep only the last SECS seconds of the recording, which also ends when tracing is switched off;
    /// needs -e or -f, implies --overwrite
    #[arg(long, value_name = "SECS", value_parser = parse_seconds)]
    last: Option<Duration>,
    /// End the recording when EVENT occurs, or when it occurs and EXPR is true of its fields:
    /// 'sched:sched_switch if next_prio < 100'; can be repeated; needs -e or -f, implies --overwrite
    #[arg(long, value_name = "EVENT[ if EXPR]")]
    on_trigger: Vec<Trigger>,
    /// Record for SECS seconds more after the event of --on-trigger
    #[arg(long, value_name = "SECS", value_parser = parse_seconds, requires = "on_trigger")]
    after: Option<Duration>,
    /// Record into the instance NAME; if it does not exist, it is created, and removed afterwards
    #[arg(short, long, value_name = "NAME")]
    instance: Option<String>,
    /// File to write; a device, a FIFO or the target of a link is written to, - is standard output
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CAPTURE)]
    output: PathBuf,
    /// Keep the names of all symbols, not only of those that the stacks and events need: some MiB more
    #[arg(long)]
    all_symbols: bool,
    /// What is done without it, too
    #[arg(long, hide = true, conflicts_with = "all_symbols")]
    slim: bool,
    /// Leave out the fields of events, which hold what processes read, write and run, and the
    /// arguments of COMMAND
    #[arg(long)]
    no_args: bool,
    /// Write a label into the capture, such as service=web; can be repeated. report shows labels
    #[arg(long, value_name = "NAME=VALUE")]
    label: Vec<Label>,
    /// Leave out what tells who recorded, and where: the host's name, the boot id, names of tasks,
    /// directories of programs outside of the system's, perf maps, and all that --no-args leaves out
    #[arg(long)]
    anonymous: bool,
    /// Do not record which user stacks led to the events; without this they are recorded where the kernel can
    #[arg(long)]
    no_user: bool,
    /// Reset the map first, so that its counters count only this recording
    #[arg(long)]
    reset: bool,
    /// Put aside tracing settings that are in use, and restore them afterwards
    #[arg(long)]
    force: bool,
    /// Run COMMAND as the user NAME, with the user's groups, HOME, USER and LOGNAME
    #[arg(short, long, value_name = "NAME", requires = "command")]
    user: Option<String>,
    /// Module file to load if the module is not loaded [default: modprobe stackmap]
    #[arg(long, value_name = "KO")]
    module: Option<PathBuf>,
    /// Go wrong at a step, for tests
    #[cfg(feature = "fault")]
    #[arg(long, hide = true, value_name = "STEP:KIND")]
    fault: Option<Fault>,
    /// Command to run; the recording ends with it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl Record {
    pub(super) fn run(self, global: &Global) -> Result {
        Label::check(&self.label)?;
        let is_flight = self.last.is_some() || !self.on_trigger.is_empty();
        let options = Options {
            events: self.events.0,
            functions: self.function,
            pids: self.pid,
            cpus: self.cpu,
            duration: self.duration,
            buffer_kb: self.buffer_size,
            stream: !self.overwrite && !is_flight,
            last: self.last,
            triggers: self.on_trigger,
            after: self.after.unwrap_or_default(),
            instance: self.instance,
            output: self.output,
            command: self.command,
            user: self.user,
            module: self.module,
            user_stacks: !self.no_user,
            reset: self.reset,
            force: self.force,
            all_symbols: self.all_symbols,
            no_args: self.no_args || self.anonymous,
            anonymous: self.anonymous,
            labels: self.label,
            #[cfg(feature = "fault")]
            fault: self.fault,
        };
        options.run(global.tracefs())
    }
}
