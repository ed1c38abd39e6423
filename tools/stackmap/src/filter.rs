// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which events of a trace are wanted.
//!
//! An event is kept if it fits every option that is given, and of an option that is repeated one
//! of its values; options that begin with `--not-` leave out what fits one of theirs. [`Filter`] compares what an event has of its own, numbers before texts.
//! [`Selection`] is a filter at work on one trace, and knows of each stack whether it matches.

mod pattern;
mod range;
mod selection;

pub use pattern::{EventGlob, Glob};
pub use range::{number, CpuRange, TimeRange};
pub use selection::{Filtered, Selection};

use crate::trace::Event;
use clap::Args;
use regex::Regex;

/// In the help, filters are apart.
const FILTERS: &str = "Filters (an event is to fit all that are given, and one value of each)";

/// What events are to fit. An option without values is not given.
#[derive(Args, Clone, Debug, Default)]
pub struct Filter {
    /// Only events of tasks with this name (the kernel keeps 15 bytes of it), with the wildcards *
    /// and ?: --comm 'kworker*'
    #[arg(id = "comm", long, help_heading = FILTERS, value_name = "NAME", value_parser = Glob::of_name)]
    pub comms: Vec<Glob>,
    /// Only events of these threads: --pid 144,150. The id of a process selects all of its threads,
    /// in a capture without ids of processes its first thread
    #[arg(id = "pid", long, help_heading = FILTERS, value_name = "N[,N...]", value_delimiter = ',')]
    #[arg(value_parser = number::<u32>)]
    pub pids: Vec<u32>,
    /// Only events on these CPUs: --cpu 0-3,5
    #[arg(id = "cpu", long, help_heading = FILTERS, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = CpuRange::new)]
    pub cpus: Vec<CpuRange>,
    /// Only these events: system:event, event or system, with the wildcards *, ? and [a-z], as
    /// record -e has them; calls by the name of the function: --event 'syscalls:sys_enter_*'
    #[arg(id = "event", long, help_heading = FILTERS, value_name = "EVENT", value_parser = EventGlob::new)]
    pub events: Vec<EventGlob>,
    /// Only events from time A to time B, in seconds as report shows times; without A from the
    /// first event, without B to the last: --time 8.76..8.770009
    #[arg(id = "time", long, help_heading = FILTERS, value_name = "A..B", value_parser = TimeRange::new)]
    pub times: Vec<TimeRange>,
    /// Only events with a frame that matches, by the name of its function or by the line that
    /// report shows of it; with --kernel or --user only on that stack: --stack '^vfs_read$'
    #[arg(id = "stack", long, help_heading = FILTERS, value_name = "REGEX", value_parser = Regex::new)]
    pub stacks: Vec<Regex>,
    /// No events of tasks with this name; that of the idle tasks is <idle>: --not-comm '<idle>'
    #[arg(id = "not-comm", long, help_heading = FILTERS, value_name = "NAME", value_parser = Glob::of_name)]
    pub not_comms: Vec<Glob>,
    /// No events of these threads or processes
    #[arg(id = "not-pid", long, help_heading = FILTERS, value_name = "N[,N...]", value_delimiter = ',')]
    #[arg(value_parser = number::<u32>)]
    pub not_pids: Vec<u32>,
    /// Not these events: --not-event 'sched:sched_stat_*'
    #[arg(id = "not-event", long, help_heading = FILTERS, value_name = "EVENT", value_parser = EventGlob::new)]
    pub not_events: Vec<EventGlob>,
    /// Whether events that tracing itself caused are left out.
    #[arg(skip)]
    pub hides_own: bool,
}

impl Filter {
    /// Whether every event is kept.
    pub fn is_empty(&self) -> bool {
        self.options().next().is_none()
    }

    /// Whether stacks are compared.
    pub fn has_stacks(&self) -> bool {
        !self.stacks.is_empty()
    }

    /// The options that are given.
    fn options(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--comm", !self.comms.is_empty()),
            ("--pid", !self.pids.is_empty()),
            ("--cpu", !self.cpus.is_empty()),
            ("--event", !self.events.is_empty()),
            ("--time", !self.times.is_empty()),
            ("--stack", !self.stacks.is_empty()),
            ("--not-comm", !self.not_comms.is_empty()),
            ("--not-pid", !self.not_pids.is_empty()),
            ("--not-event", !self.not_events.is_empty()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(option, _)| option)
    }

    /// Whether an event fits, whatever its stacks.
    pub fn fits(&self, event: &Event) -> bool {
        let is_pid = |pid: &u32| *pid == event.pid || Some(*pid) == event.tgid;
        fits_any(&self.cpus, |cpus| cpus.has(event.cpu))
            && fits_any(&self.pids, is_pid)
            && fits_any(&self.times, |times| times.has(event.time))
            && fits_any(&self.comms, |comm| comm.matches(&event.comm))
            && fits_any(&self.events, |glob| is_event(glob, event))
            && !self.not_pids.iter().any(is_pid)
            && !self.not_comms.iter().any(|comm| comm.matches(&event.comm))
            && !self.not_events.iter().any(|glob| is_event(glob, event))
    }
}

fn is_event(glob: &EventGlob, event: &Event) -> bool {
    // A call of a function is shown with parentheses.
    let function = event.name.strip_suffix("()");
    let mut names = [&event.name[..]].into_iter().chain(function);
    names.any(|name| glob.matches(event.system(), name))
}

/// Whether one of the values fits, or none is given.
fn fits_any<T>(values: &[T], fits: impl Fn(&T) -> bool) -> bool {
    values.is_empty() || values.iter().any(fits)
}

#[cfg(test)]
mod tests;
