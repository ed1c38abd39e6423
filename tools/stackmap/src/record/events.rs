// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of events, looked up before anything is changed.

use crate::{
    error::{Error, Result},
    filter::EventGlob,
    tracefs::Tracefs,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

/// The longest filter that the kernel takes, in bytes.
const MAX_FILTER: usize = 4095;

/// How alike a mistyped name and the one that is suggested are at least, of 1.
const ALIKE: f64 = 0.85;

/// Tracers that instances do not have.
const TRACERS: [&str; 3] = ["blk", "branch", "mmiotrace"];

/// What `-e` selects, and the `--filter` that follows it; or an event that ends the recording.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Selected {
    /// `system:event`, `event` or `system`, with wildcards.
    pub event: String,
    /// What their fields must be, in the kernel's syntax.
    pub filter: Option<String>,
}

/// What `-e` means on this kernel.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Events {
    /// The words to write to `set_event`, which takes names and whole systems, but no other
    /// patterns.
    pub(super) words: Vec<String>,
    /// Each of the events, as `system:event`.
    pub(super) names: BTreeSet<String>,
    /// The filters of those that have one.
    pub(super) filters: BTreeMap<String, String>,
}

impl Events {
    /// Looks up each of `wanted`: `system:event` or `system/event`, `event`, or `system`, each with
    /// wildcards. A word that matches no event is an error. Of an event that several of them select,
    /// all is recorded that one of them selects.
    pub(super) fn find(tracefs: &Tracefs, wanted: &[Selected]) -> Result<Self> {
        let mut events = Self::default();
        if wanted.is_empty() {
            return Ok(events);
        }
        let available = tracefs.read("available_events")?;
        let available: Vec<_> = available
            .lines()
            .filter_map(|line| line.trim().split_once(':'))
            .collect();
        for selected in wanted {
            events.add(selected, &available)?;
        }
        Ok(events)
    }

    fn add(&mut self, selected: &Selected, available: &[(&str, &str)]) -> Result {
        let word = &selected.event;
        let glob = EventGlob::new(word).map_err(Error::Refused)?;
        let found: Vec<_> = available
            .iter()
            .filter(|(system, event)| glob.matches(Some(system), event))
            .map(|(system, event)| format!("{system}:{event}"))
            .collect();
        if found.is_empty() {
            return Err(missing(word, available));
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
        for name in found {
            self.filter(&name, selected.filter.as_deref());
            self.names.insert(name);
        }
        Ok(())
    }

    /// One more selects an event, with this filter or without one.
    fn filter(&mut self, name: &str, filter: Option<&str>) {
        match (filter, self.filters.get_mut(name)) {
            (Some(new), Some(filter)) if new != filter => {
                *filter = format!("({filter}) || ({new})");
            }
            (Some(new), None) if !self.names.contains(name) => {
                self.filters.insert(name.to_owned(), new.to_owned());
            }
            // All of it is recorded.
            (None, Some(_)) => drop(self.filters.remove(name)),
            _ => {}
        }
    }
}

/// The path of a file of an event, which is given as `system:event`.
pub(super) fn file_of(event: &str, file: &str) -> String {
    format!("events/{}/{file}", event.replacen(':', "/", 1))
}

/// What the kernel said of the filter of an event. `file` is what its file says then: the filter, a
/// line that marks the place, and what is wrong there.
pub(super) fn explain_filter(error: Error, event: &str, filter: &str, file: &str) -> Error {
    let Error::Io { error, .. } = &error else {
        return error;
    };
    let wrong = file
        .lines()
        .find_map(|line| line.strip_prefix("parse_error: "));
    let fields = file_of(event, "format");
    let (what, hint) = match wrong {
        Some("Field not found") => (
            format!("{event} has no field \"{}\"", marked(filter, file)),
            format!("{fields} in tracefs has the fields"),
        ),
        Some(wrong) => (
            format!("the kernel refuses the filter of {event}: {wrong}"),
            format!("{fields} in tracefs has the fields; text is in quotation marks"),
        ),
        None if filter.len() > MAX_FILTER => (
            format!(
                "the filter of {event} has {} bytes: the kernel takes at most {MAX_FILTER}",
                filter.len()
            ),
            "several recordings with a part of it each".to_owned(),
        ),
        None => (
            format!("the kernel refuses the filter of {event}: {error}"),
            "a filter is like \"bytes_req > 100 && common_pid != 1\"".to_owned(),
        ),
    };
    let mut text = what;
    if wrong.is_some() {
        let is_shown = |line: &&str| !line.trim().is_empty() && !line.starts_with("parse_error: ");
        let shown = file.lines().filter(is_shown);
        let shown = shown.flat_map(|line| ["\n    ", line]);
        text.extend(shown);
    }
    Error::Refused(format!("{text}\n  hint: {hint}"))
}

/// The word of a filter that ends where a line of `file` marks the place.
fn marked<'a>(filter: &'a str, file: &str) -> &'a str {
    let mark = file
        .lines()
        .find_map(|line| line.strip_suffix('^').filter(|line| line.trim().is_empty()));
    let end = mark.map_or(0, str::len);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let before = filter.get(..end).unwrap_or(filter);
    let before = before.trim_end_matches(|c| !is_word(c));
    let start = before.rfind(|c| !is_word(c)).map_or(0, |blank| blank + 1);
    before.get(start..).unwrap_or_default()
}

/// What the kernel said of an event, in words.
pub(super) fn explain(error: Error, event: &str) -> Error {
    match error {
        Error::Io { error, .. } if error.kind() == io::ErrorKind::InvalidInput => {
            missing(event, &[])
        }
        error => error,
    }
}

/// Returns the error for a word that matches none of the available events, with the name that is most like it.
fn missing(event: &str, available: &[(&str, &str)]) -> Error {
    if TRACERS.contains(&event) {
        return Error::Refused(format!(
            "{event} is a tracer, which only the top level of tracefs has, and record uses an instance\n  hint: \
             current_tracer starts it; \"stackmap save\" makes a capture of the top level"
        ));
    }
    let names = available
        .iter()
        .map(|(system, name)| match event.contains([':', '/']) {
            true => format!("{system}:{name}"),
            false => (*name).to_owned(),
        });
    let similar = names
        .map(|name| (strsim::jaro_winkler(event, &name), name))
        .filter(|(similarity, _)| *similarity > ALIKE)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    let hint = match similar {
        Some((_, name)) => format!("did you mean {name}? \"stackmap record -l\" lists all"),
        None => "\"stackmap record -l\" lists them, as system:event".to_owned(),
    };
    Error::Refused(format!("there is no event \"{event}\"\n  hint: {hint}"))
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

    fn selected(event: &str, filter: Option<&str>) -> Selected {
        Selected {
            event: event.to_owned(),
            filter: filter.map(str::to_owned),
        }
    }

    fn find(wanted: &[&str]) -> Result<Events> {
        let wanted: Vec<_> = wanted.iter().map(|word| selected(word, None)).collect();
        find_selected(&wanted)
    }

    fn find_selected(wanted: &[Selected]) -> Result<Events> {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("trace", ""), ("available_events", AVAILABLE)] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        Events::find(&Tracefs::find(Some(dir.path())).unwrap(), wanted)
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
        for (word, hint) in [
            ("sched_swich", "did you mean sched_switch?"),
            ("sched:sched_wakup", "did you mean sched:sched_wakeup?"),
            ("nothing", "\"stackmap record -l\" lists them"),
        ] {
            let error = find(&[word]).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
        let error = find(&["sched:[a"]).unwrap_err().to_string();
        assert!(
            error.contains("\"sched:[a\" is not a valid pattern"),
            "{error}"
        );
        assert!(find(&[]).unwrap().words.is_empty());
    }

    #[test]
    fn an_event_has_the_filters_of_all_that_select_it() {
        let filters = |wanted: &[(&str, Option<&str>)]| {
            let wanted = wanted
                .iter()
                .map(|(event, filter)| selected(event, *filter));
            let events = find_selected(&wanted.collect::<Vec<_>>()).unwrap();
            let filters = events.filters.into_iter();
            let filters = filters.map(|(event, filter)| format!("{event}: {filter}"));
            filters.collect::<Vec<_>>()
        };
        let (switch, wakeup) = ("sched:sched_switch", "sched:sched_wakeup");
        assert_eq!(
            filters(&[("sched:*", Some("a == 1")), ("sys_exit_read", None)]),
            [format!("{switch}: a == 1"), format!("{wakeup}: a == 1")]
        );
        // Selected without a filter, too, before or after.
        for wanted in [
            [("sched:*", Some("a == 1")), (wakeup, None)],
            [(wakeup, None), ("sched:*", Some("a == 1"))],
        ] {
            assert_eq!(filters(&wanted), [format!("{switch}: a == 1")]);
        }
        let wanted = [
            (switch, Some("a")),
            (switch, Some("b")),
            (wakeup, Some("a")),
        ];
        assert_eq!(
            filters(&wanted),
            [format!("{switch}: (a) || (b)"), format!("{wakeup}: a")]
        );
        assert_eq!(
            filters(&[(switch, Some("a")), (switch, Some("a"))]),
            [format!("{switch}: a")]
        );
    }

    #[test]
    fn the_kernel_says_what_is_wrong_with_a_filter() {
        let explain = |filter: &str, file: &str| {
            let error = io::Error::from_raw_os_error(22);
            explain_filter(Error::io("write", error), "kmem:kfree", filter, file).to_string()
        };
        let filter = "ptr != 0 && bytes > 1";
        let text = explain(
            filter,
            &format!("{filter}\n                 ^\nparse_error: Field not found\n"),
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "kmem:kfree has no field \"bytes\"",
                "    ptr != 0 && bytes > 1",
                "                     ^",
                "  hint: events/kmem/kfree/format in tracefs has the fields"
            ]
        );
        let text = explain("x", "x\n ^\nparse_error: Field not found\n");
        assert!(text.contains("no field \"x\""), "{text}");
        let text = explain("(ptr", "(ptr\n^\nparse_error: Too many '('\n");
        assert!(
            text.contains("filter of kmem:kfree: Too many '('\n    (ptr\n    ^\n"),
            "{text}"
        );
        let text = explain("x", "none\n");
        assert!(
            text.contains("filter of kmem:kfree: Invalid argument"),
            "{text}"
        );
        let text = explain(&"x".repeat(5000), "none\n");
        assert!(
            text.contains("has 5000 bytes: the kernel takes at most 4095"),
            "{text}"
        );
    }
}
