// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a recording is limited to: processes, CPUs, events that pass a filter, and the time until an
//! event.

use super::{
    cpus,
    events::{self, file_of, Events},
    processes::{Processes, Wait},
    trigger::Triggers,
    Options,
};
use crate::{error::Result, kernel, tracefs::Tracefs};

/// The mask of the CPUs that record.
const CPUS: &str = "tracing_cpumask";
/// The threads whose events, or whose calls of functions, are recorded, and the option that adds
/// what they start.
const EVENTS: (&str, &str) = ("set_event_pid", "options/event-fork");
const FUNCTIONS: (&str, &str) = ("set_ftrace_pid", "options/function-fork");

/// What a recording is limited to.
#[derive(Debug)]
pub(super) struct Limits<'a> {
    processes: Processes,
    /// The files of tracefs that limit it to them.
    lists: Vec<(&'static str, &'static str)>,
    cpus: Option<Vec<u32>>,
    events: &'a Events,
    /// What ends it.
    pub(super) triggers: Triggers,
}

impl<'a> Limits<'a> {
    /// What `options` limit it to. `events` are recorded, until one of `triggers`.
    pub(super) fn find(
        tracefs: &Tracefs,
        options: &Options,
        events: &'a Events,
        triggers: Triggers,
    ) -> Result<Self> {
        let processes = Processes::find(&options.pid)?;
        let lists = [
            (EVENTS, !options.events.0.is_empty()),
            (FUNCTIONS, !options.function.is_empty()),
        ];
        let lists = lists
            .into_iter()
            .filter(|(_, recorded)| *recorded && !processes.is_empty());
        let cpus = match options.cpu.is_empty() {
            true => None,
            false => {
                let cpus = cpus::select(&options.cpu, &super::save::cpus(tracefs)?)?;
                cpus::check_online(&cpus, &kernel::online_cpus())?;
                Some(cpus)
            }
        };
        Ok(Self {
            lists: lists.map(|(files, _)| files).collect(),
            processes,
            cpus,
            events,
            triggers,
        })
    }

    /// The CPUs that record; [`None`]: all.
    pub(super) fn cpus(&self) -> Option<&[u32]> {
        self.cpus.as_deref()
    }

    /// The ids of the processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.pids()
    }

    /// Limits the recording.
    pub(super) fn set(&self, tracefs: &Tracefs) -> Result {
        for (list, fork) in &self.lists {
            tracefs.write(fork, "1")?;
            self.processes.add_to(tracefs, list)?;
        }
        if let Some(cpus) = &self.cpus {
            tracefs.write(CPUS, &cpus::mask(cpus))?;
        }
        for (event, filter) in &self.events.filters {
            let file = file_of(event, "filter");
            tracefs.write(&file, filter).map_err(|error| {
                let now = tracefs.read(&file).unwrap_or_default();
                events::explain_filter(error, event, filter, &now)
            })?;
        }
        Ok(())
    }

    /// What waits until all processes have ended, if the recording is limited to some.
    pub(super) fn end(&self, tracefs: &Tracefs) -> Result<Option<Wait>> {
        let list = self.lists.first();
        list.map(|(list, _)| self.processes.end(tracefs, list))
            .transpose()
    }
}
