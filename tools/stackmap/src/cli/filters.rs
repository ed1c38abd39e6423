// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arguments that say which events are wanted.

use crate::{
    error::{Error, Result},
    filter::{CpuRange, EventGlob, Filter, Glob, TimeRange},
    source::Source,
};
use clap::Args;
use regex::Regex;

const FILTERS: &str = "Filters (an event is to fit all that are given, and one value of each)";

/// Which events are wanted.
#[derive(Args, Debug, Default)]
pub(super) struct Filters {
    /// Only events of tasks with this name (the kernel keeps 15 bytes of it), with the wildcards *
    /// and ?: --comm 'kworker*'
    #[arg(long, help_heading = FILTERS, value_name = "NAME", value_parser = Glob::of_name)]
    comm: Vec<Glob>,
    /// Only events of these threads: --pid 144,150. The id of a process selects all of its threads
    /// if the trace has the ids of processes, as captures have (option record-tgid), otherwise its
    /// first thread
    #[arg(long, help_heading = FILTERS, value_name = "N[,N...]", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Only events on these CPUs: --cpu 0-3,5
    #[arg(long, help_heading = FILTERS, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = CpuRange::new)]
    cpu: Vec<CpuRange>,
    /// Only these events: system:event, event or system, with the wildcards *, ? and [a-z], as
    /// record -e has them; calls by the name of the function: --event 'syscalls:sys_enter_*'
    #[arg(long, help_heading = FILTERS, value_name = "EVENT", value_parser = EventGlob::new)]
    event: Vec<EventGlob>,
    /// Only events from time A to time B, in seconds as report shows times; without A from the
    /// first event, without B to the last: --time 8.76..8.770009
    #[arg(long, help_heading = FILTERS, value_name = "A..B", value_parser = TimeRange::new)]
    time: Vec<TimeRange>,
    /// Only events with a frame that matches, by the name of its function or by the line that
    /// report shows of it; with --kernel or --user only on that stack: --stack '^vfs_read$'
    #[arg(long, help_heading = FILTERS, value_name = "REGEX", value_parser = Regex::new)]
    stack: Vec<Regex>,
}

impl Filters {
    /// What is wanted of a source.
    pub(super) fn filter(&self, source: &Source) -> Result<Filter> {
        let mut filter = Filter {
            comms: self.comm.clone(),
            pids: self.pid.clone(),
            cpus: self.cpu.clone(),
            events: self.event.clone(),
            times: self.time.clone(),
            stacks: self.stack.clone(),
            systems: None,
        };
        if filter.is_empty() {
            return Ok(filter);
        }
        if matches!(source, Source::Raw { .. }) {
            let what = "a stack_map_bin has no events that could be filtered";
            return Err(Error::input(source.name(), what));
        }
        if !filter.events.is_empty() {
            if let Some(available) = source.available_events()? {
                filter.set_systems(&available);
            }
        }
        Ok(filter)
    }
}
