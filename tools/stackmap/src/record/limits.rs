// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a recording is limited to: processes, CPUs, events that pass a filter, and the time until an
//! event.

use super::{
    cpus,
    events::{self, file_of, Events},
    processes::{Processes, Wait},
    trigger::Triggers,
    write::Write,
    Options,
};
use crate::{error::Result, tracefs::Tracefs};

/// The mask of the CPUs that record.
pub(super) const CPUS: &str = "tracing_cpumask";
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
        let processes = Processes::find(&options.pids)?;
        let lists = [
            (EVENTS, !options.events.is_empty()),
            (FUNCTIONS, !options.functions.is_empty()),
        ];
        let lists = lists
            .into_iter()
            .filter(|(_, recorded)| *recorded && !processes.is_empty());
        let cpus = match options.cpus.is_empty() {
            true => None,
            false => Some(cpus::select(&options.cpus, &super::save::cpus(tracefs)?)?),
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

    /// The writes that undo this, before what others had set is restored.
    pub(super) fn undo(&self, tracefs: &Tracefs) -> Result<Vec<Write>> {
        let mut writes: Vec<_> = self.triggers.undo().collect();
        for (list, fork) in &self.lists {
            // First, or it would add to the list of others.
            writes.push(Write::new(fork, tracefs.read(fork)?.trim()));
            writes.push(Write::new(list, ""));
        }
        if self.cpus.is_some() {
            writes.push(Write::new(CPUS, tracefs.read(CPUS)?.trim()));
        }
        for event in self.events.filters.keys() {
            writes.push(Write::new(&file_of(event, "filter"), "0"));
        }
        Ok(writes)
    }

    /// What waits until all processes have ended, if the recording is limited to some.
    pub(super) fn end(&self, tracefs: &Tracefs) -> Result<Option<Wait>> {
        let list = self.lists.first();
        list.map(|(list, _)| self.processes.end(tracefs, list))
            .transpose()
    }
}
