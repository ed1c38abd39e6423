// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of events, looked up before anything is changed.

use crate::{
    error::{Error, Result},
    filter::EventGlob,
    tracefs::Tracefs,
};
use std::{collections::BTreeSet, io};

/// What `-e` means on this kernel.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Events {
    /// The words to write to `set_event`, which takes names and whole systems, but no other
    /// patterns.
    pub(super) words: Vec<String>,
    /// Each of the events, as `system:event`.
    pub(super) names: BTreeSet<String>,
}

impl Events {
    /// Looks up each of `wanted`: `system:event` or `system/event`, `event`, or `system`, each with
    /// wildcards. A word that matches no event is an error.
    pub(super) fn find(tracefs: &Tracefs, wanted: &[String]) -> Result<Self> {
        let mut events = Self::default();
        if wanted.is_empty() {
            return Ok(events);
        }
        let available = tracefs.read("available_events")?;
        let available: Vec<_> = available
            .lines()
            .filter_map(|line| line.trim().split_once(':'))
            .collect();
        for word in wanted {
            events.add(word, &available)?;
        }
        Ok(events)
    }

    fn add(&mut self, word: &str, available: &[(&str, &str)]) -> Result {
        let glob = EventGlob::new(word).map_err(Error::Refused)?;
        let found: Vec<_> = available
            .iter()
            .filter(|(system, event)| glob.matches(Some(system), event))
            .map(|(system, event)| format!("{system}:{event}"))
            .collect();
        if found.is_empty() {
            return Err(missing(word));
        }
        let words = match glob.is_name() || glob.is_whole_system() {
            true => vec![word.replacen('/', ":", 1)],
            false => found.clone(),
        };
        for word in words {
            if !self.words.contains(&word) {
                self.words.push(word);
            }
        }
        self.names.extend(found);
        Ok(())
    }
}

/// What the kernel said of an event, in words.
pub(super) fn explain(error: Error, event: &str) -> Error {
    match error {
        Error::Io { error, .. } if error.kind() == io::ErrorKind::InvalidInput => missing(event),
        error => error,
    }
}

fn missing(event: &str) -> Error {
    Error::Refused(format!(
        "there is no event \"{event}\"\n  hint: available_events in tracefs lists them, as \
         system:event"
    ))
}

/// The events that are recorded. `set_event` also lists those that are on for a trigger only, whose
/// `enable` is `0*`.
pub(super) fn on(tracefs: &Tracefs) -> Result<Vec<String>> {
    let listed = tracefs.read("set_event")?;
    let is_recorded = |event: &&str| {
        let enable = format!("events/{}/enable", event.replacen(':', "/", 1));
        !tracefs
            .read(&enable)
            .is_ok_and(|enable| enable.starts_with('0'))
    };
    let events = listed.lines().filter(is_recorded);
    Ok(events.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AVAILABLE: &str = "\
sched:sched_switch
sched:sched_wakeup
syscalls:sys_enter_read
syscalls:sys_exit_read
syscalls:sys_enter_write
odd:sched
";

    fn find(wanted: &[&str]) -> Result<Events> {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("trace", ""), ("available_events", AVAILABLE)] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let wanted: Vec<_> = wanted.iter().map(ToString::to_string).collect();
        Events::find(&Tracefs::find(Some(dir.path())).unwrap(), &wanted)
    }

    fn words(wanted: &[&str]) -> Vec<String> {
        find(wanted).unwrap().words
    }

    #[test]
    fn wildcards_are_expanded() {
        let enters = ["syscalls:sys_enter_read", "syscalls:sys_enter_write"];
        assert_eq!(words(&["syscalls:sys_enter_*"]), enters);
        assert_eq!(words(&["sys_enter_*"]), enters);
        assert_eq!(words(&["sys?alls/sys_enter_*"]), enters);
        assert_eq!(
            words(&["syscalls:*_read"]),
            [enters[0], "syscalls:sys_exit_read"]
        );
        assert_eq!(words(&["*:sched_[sx]*"]), ["sched:sched_switch"]);
        // A pattern of systems has all of their events.
        assert_eq!(
            words(&["sche*"]),
            ["sched:sched_switch", "sched:sched_wakeup", "odd:sched"]
        );
        // Duplicates are removed.
        assert_eq!(words(&["sys_enter_*", "syscalls:sys_enter_read"]), enters);
    }

    #[test]
    fn patterns_of_the_kernel_are_unchanged() {
        for word in ["sched:*", "sched:", "sched", "sched:sched_switch"] {
            assert_eq!(words(&[word]), [word]);
        }
        assert_eq!(words(&["sched/sched_switch"]), ["sched:sched_switch"]);
        let names = find(&["sched"]).unwrap().names;
        let names: Vec<_> = names.into_iter().collect();
        assert_eq!(
            names,
            ["odd:sched", "sched:sched_switch", "sched:sched_wakeup"]
        );
        assert_eq!(find(&["sched:*"]).unwrap().names.len(), 2);
    }

    #[test]
    fn missing_events_are_named() {
        for word in [
            "nothing",
            "sched:nothing",
            "sched:no*",
            "no*:*",
            "",
            " ",
            ":",
            "!sched:sched_switch",
            "sched:sched_switch sched:sched_wakeup",
        ] {
            let error = find(&["sched", word]).unwrap_err().to_string();
            assert!(error.contains(&format!("no event \"{word}\"")), "{error}");
        }
        let error = find(&["sched:[a"]).unwrap_err().to_string();
        assert!(
            error.contains("\"sched:[a\" is not a valid pattern"),
            "{error}"
        );
        assert!(find(&[]).unwrap().words.is_empty());
    }

    #[test]
    fn events_enabled_for_a_trigger_are_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "set_event",
            "kmem:kmalloc\nkmem:kfree\nsched:sched_switch\n",
        );
        write("events/kmem/kmalloc/enable", "1\n");
        write("events/kmem/kfree/enable", "1*\n");
        write("events/sched/sched_switch/enable", "0*\n");
        write("trace", "");
        let tracefs = Tracefs::find(Some(root)).unwrap();
        assert_eq!(on(&tracefs).unwrap(), ["kmem:kmalloc", "kmem:kfree"]);
    }
}
