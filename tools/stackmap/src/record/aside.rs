// SPDX-License-Identifier: MIT OR Apache-2.0

//! Settings of others in tracefs that would leave events out of a recording, or end it.
//!
//! Filters of events, of CPUs and of processes leave events out in silence; triggers and function
//! commands switch tracing or events off, or swap the buffer. They are put aside for the recording
//! and restored afterwards. Histogram triggers leave no events out and stay: removed, they would
//! lose their counts.

use super::{
    cpus,
    events::{file_of, Events},
    limits,
    write::{filter, Write},
};
use crate::{error::Result, output::say, tracefs::Tracefs};
use std::collections::{BTreeMap, BTreeSet};

/// Files with the PIDs that are recorded, or not recorded.
const PIDS: [&str; 4] = [
    "set_event_pid",
    "set_event_notrace_pid",
    "set_ftrace_pid",
    "set_ftrace_notrace_pid",
];
/// Options that a recording needs: without them the latest events, or the names of tasks, are lost.
const OPTIONS: [(&str, &str); 2] = [("options/overwrite", "1"), ("options/record-cmd", "1")];
/// Triggers that only count: they stay.
const COUNTERS: [&str; 4] = ["hist", "enable_hist", "disable_hist", "inspect"];

/// What is put aside.
#[derive(Debug, Default)]
pub(super) struct Aside {
    away: Vec<Write>,
    back: Vec<Write>,
    found: BTreeMap<String, String>,
}

impl Aside {
    /// Finds the settings to put aside. `cpus` are recorded, and events; `functions`: function calls,
    /// too.
    pub(super) fn read(
        tracefs: &Tracefs,
        events: &Events,
        functions: bool,
        cpus: &[u32],
    ) -> Result<Self> {
        let mut aside = Self::default();
        aside.read_pids(tracefs)?;
        aside.read_cpus(tracefs, cpus)?;
        for (option, wanted) in OPTIONS {
            if tracefs.has(option) {
                let value = tracefs.read(option)?;
                if value.trim() != wanted {
                    aside.replace(option, wanted, value.trim());
                }
            }
        }
        aside.read_filters(tracefs, &events.names)?;
        aside.read_triggers(tracefs)?;
        aside.read_functions(tracefs, functions)?;
        Ok(aside)
    }

    /// Puts the settings aside.
    pub(super) fn put_away(&self, tracefs: &Tracefs) -> Result {
        if !self.found.is_empty() {
            let files: Vec<_> = self.found.keys().map(String::as_str).collect();
            say(format_args!(
                "note: put aside for the recording: {}",
                files.join(", ")
            ));
        }
        self.away.iter().try_for_each(|write| write.run(tracefs))
    }

    /// The writes that restore the settings.
    pub(super) fn back(&self) -> impl Iterator<Item = &Write> {
        self.back.iter()
    }

    /// The files that had such settings, and their contents.
    pub(super) fn found(&self) -> &BTreeMap<String, String> {
        &self.found
    }

    fn replace(&mut self, file: &str, by: &str, old: &str) {
        self.away.push(Write::new(file, by));
        self.back.push(Write::new(file, old));
        self.note(file, old);
    }

    fn note(&mut self, file: &str, text: &str) {
        let found = self.found.entry(file.to_owned()).or_default();
        if !found.is_empty() {
            found.push('\n');
        }
        found.push_str(text);
    }

    fn read_pids(&mut self, tracefs: &Tracefs) -> Result {
        for file in PIDS {
            if !tracefs.has(file) {
                continue;
            }
            let text = tracefs.read(file)?;
            // "no pid" is what an empty set_ftrace_pid says.
            let pids = text.lines().filter(|pid| pid.parse::<u32>().is_ok());
            let pids: Vec<_> = pids.collect();
            if pids.is_empty() {
                continue;
            }
            self.away.push(Write::new(file, ""));
            self.back.push(Write::new(file, ""));
            for pid in pids {
                self.back.push(Write::append(file, pid));
                self.note(file, pid);
            }
        }
        Ok(())
    }

    fn read_cpus(&mut self, tracefs: &Tracefs, wanted: &[u32]) -> Result {
        let file = limits::CPUS;
        if !tracefs.has(file) {
            return Ok(());
        }
        let text = tracefs.read(file)?;
        if cpus::lacks_one(text.trim(), wanted) {
            self.replace(file, &cpus::mask(wanted), text.trim());
        }
        Ok(())
    }

    fn read_filters(&mut self, tracefs: &Tracefs, events: &BTreeSet<String>) -> Result {
        let filtered = with_some(tracefs, "show_event_filters")?;
        for event in events {
            if filtered.as_ref().is_some_and(|some| !some.contains(event)) {
                continue;
            }
            let file = file_of(event, "filter");
            // An event that was removed meanwhile has no filter.
            let Ok(text) = tracefs.read(&file) else {
                continue;
            };
            let text = text.trim();
            // Several lines are an error message of the kernel: such a filter is not active.
            if !text.is_empty() && text != "none" && !text.contains('\n') {
                self.replace(&file, "0", text);
            }
        }
        Ok(())
    }

    /// Triggers of all events: those of events that are not recorded run, too.
    fn read_triggers(&mut self, tracefs: &Tracefs) -> Result {
        let events = match with_some(tracefs, "show_event_triggers")? {
            Some(events) => events,
            None if tracefs.has("available_events") => tracefs
                .read("available_events")?
                .lines()
                .map(str::to_owned)
                .collect(),
            None => return Ok(()),
        };
        for event in events {
            let file = file_of(&event, "trigger");
            let Ok(text) = tracefs.read(&file) else {
                continue;
            };
            for line in text.lines() {
                if let Some(command) = trigger(line) {
                    // Without a truncation, which removes histograms.
                    self.away.push(Write::append(&file, &command.away));
                    self.back.push(Write::append(&file, &command.back));
                    self.note(&file, line.trim());
                }
            }
        }
        Ok(())
    }

    fn read_functions(&mut self, tracefs: &Tracefs, functions: bool) -> Result {
        let file = "set_ftrace_filter";
        if tracefs.has(file) {
            for line in tracefs.read(file)?.lines() {
                if let Some(command) = function_command(line) {
                    self.away.push(Write::append(file, &command.away));
                    self.back.push(Write::append(file, &command.back));
                    self.note(file, line.trim());
                }
            }
        }
        let file = "set_ftrace_notrace";
        if functions && tracefs.has(file) {
            let text = tracefs.read(file)?;
            let functions: Vec<_> = text.lines().filter_map(filter).collect();
            if !functions.is_empty() {
                self.away.push(Write::new(file, ""));
                self.back.push(Write::new(file, ""));
            }
            for function in functions {
                self.back.push(Write::append(file, &function));
                self.note(file, &function);
            }
        }
        Ok(())
    }
}

/// The events that a list of the kernel's has, if it has such a list: each stands at the beginning
/// of a line.
fn with_some(tracefs: &Tracefs, list: &str) -> Result<Option<BTreeSet<String>>> {
    if !tracefs.has(list) {
        return Ok(None);
    }
    let text = tracefs.read(list)?;
    let events = text
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().next())
        .filter(|word| matches!(word.split_once(':'), Some((system, event)) if !system.is_empty() && !event.is_empty()));
    Ok(Some(events.map(str::to_owned).collect()))
}

/// The text that removes a trigger or a function command, and the text that sets it again.
#[derive(Debug, Eq, PartialEq)]
struct Command {
    away: String,
    back: String,
}

/// The trigger in a line of `trigger`, unless it only counts.
fn trigger(line: &str) -> Option<Command> {
    let line = line.trim();
    let name = line.split([':', ' ']).next()?;
    if name.is_empty() || name.starts_with('#') || COUNTERS.contains(&name) {
        return None;
    }
    let (head, condition) = match line.split_once(" if ") {
        Some((head, condition)) => (head, format!(" if {condition}")),
        None => (line, String::new()),
    };
    let (head, count) = counted(head);
    let count = count.map_or(String::new(), |count| format!(":{count}"));
    Some(Command {
        away: format!("!{head}"),
        back: format!("{head}{count}{condition}"),
    })
}

/// The command in a line of `set_ftrace_filter`, if it is one: `schedule:traceoff:unlimited`.
fn function_command(line: &str) -> Option<Command> {
    let line = line.trim();
    let (function, command) = line.split_once(':')?;
    if function.starts_with('#') || command.starts_with("mod:") {
        return None;
    }
    let (head, count) = counted(line);
    // The kernel tells a command with a count from one without.
    let (zero, count) = match count {
        Some(count) => (":0", format!(":{count}")),
        None => ("", String::new()),
    };
    Some(Command {
        away: format!("!{head}{zero}"),
        back: format!("{head}{count}"),
    })
}

/// What is shown as `traceoff:unlimited` or `traceoff:count=3`, and how often it may still run.
fn counted(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((head, "unlimited")) => (head, None),
        Some((head, last)) => match last.strip_prefix("count=") {
            Some(count) => (head, Some(count)),
            None => (text, None),
        },
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(away: &str, back: &str) -> Option<Command> {
        Some(Command {
            away: away.to_owned(),
            back: back.to_owned(),
        })
    }

    #[test]
    fn triggers_are_removed_and_restored() {
        for (line, away, back) in [
            ("traceoff:unlimited", "!traceoff", "traceoff"),
            ("traceoff:count=3", "!traceoff", "traceoff:3"),
            (
                "snapshot:count=1 if comm == \"a if b\"",
                "!snapshot",
                "snapshot:1 if comm == \"a if b\"",
            ),
            (
                "disable_event:kmem:kfree:unlimited if ptr > 0",
                "!disable_event:kmem:kfree",
                "disable_event:kmem:kfree if ptr > 0",
            ),
        ] {
            assert_eq!(trigger(line), command(away, back));
        }
        for line in [
            "# Available triggers:",
            "",
            "hist:keys=pid:vals=hitcount:sort=hitcount:size=2048 [active]",
            "enable_hist:kmem:kfree:unlimited",
        ] {
            assert_eq!(trigger(line), None);
        }
    }

    #[test]
    fn function_commands_are_not_filters() {
        for (line, away, back) in [
            (
                "schedule:traceoff:unlimited",
                "!schedule:traceoff",
                "schedule:traceoff",
            ),
            (
                "schedule:traceoff:count=2",
                "!schedule:traceoff:0",
                "schedule:traceoff:2",
            ),
            (
                "kfree:enable_event:sched:sched_switch:unlimited",
                "!kfree:enable_event:sched:sched_switch",
                "kfree:enable_event:sched:sched_switch",
            ),
        ] {
            assert_eq!(function_command(line), command(away, back));
        }
        for line in ["#### all functions enabled ####", "vfs_read", "x:mod:ext4"] {
            assert_eq!(function_command(line), None);
        }
    }
}
