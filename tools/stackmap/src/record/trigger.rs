// SPDX-License-Identifier: MIT OR Apache-2.0

//! What ends a flight recorder: an event whose fields match, or tracing that somebody switches off.
//!
//! A `traceoff` trigger would lose the stack of the event itself, which follows it in the buffer.
//! So the kernel only counts the event, in a histogram with a name of its own, and a thread looks at
//! the count.

use super::events::{file_of, Events, Selected};
use crate::{
    error::{Error, Result},
    output::safe,
    tracefs::Tracefs,
    user::live::since_boot,
};
use std::{
    io, process,
    str::FromStr,
    thread::sleep,
    time::{Duration, Instant},
};

/// How often the counts are looked at. So much longer the recording goes on: the event has its
/// stacks by then.
const INTERVAL: Duration = Duration::from_millis(50);
/// What separates an event from the condition, as in the kernel's triggers.
const IF: &str = " if ";

/// Reads an event that ends the recording.
impl FromStr for Selected {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The kernel would take a second line for another trigger.
        let text = text.replace('\n', " ");
        let (event, filter) = match text.split_once(IF) {
            Some((event, filter)) => (event, Some(filter.trim())),
            None => (&*text, None),
        };
        let event = event.trim();
        if event.is_empty() || event.contains(char::is_whitespace) || filter == Some("") {
            return Err(
                "a trigger is EVENT or EVENT if EXPR, such as 'kmem:kmalloc if bytes_req > 4096'"
                    .to_owned(),
            );
        }
        Ok(Self {
            event: event.to_owned(),
            filter: filter.map(str::to_owned),
        })
    }
}

impl std::fmt::Display for Selected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.filter {
            Some(filter) => write!(f, "{}{IF}{filter}", self.event),
            None => f.write_str(&self.event),
        }
    }
}

/// The events that end a recording, on this kernel.
#[derive(Debug, Default)]
pub(super) struct Triggers(Vec<Watched>);

/// One of them.
#[derive(Clone, Debug)]
struct Watched {
    /// With the event as `system:event`.
    trigger: Selected,
    /// The name of its histogram.
    name: String,
}

/// What a flight recorder waits for; it returns the event that occurred, or [`None`] if tracing is
/// off.
pub(super) type Watch = Box<dyn FnOnce() -> Option<String> + Send>;

impl Triggers {
    /// Looks them up. `events` gets those that `-e` does not select, or not always, so that the event
    /// is in the capture.
    pub(super) fn find(
        tracefs: &Tracefs,
        triggers: &[Selected],
        events: &mut Vec<Selected>,
    ) -> Result<Self> {
        let selected = Events::find(tracefs, events)?;
        // Histograms of one name are one, in all instances; and a container may have the same id.
        let now = since_boot().as_nanos();
        let mut found = Vec::new();
        for trigger in triggers {
            let names = Events::find(tracefs, std::slice::from_ref(trigger))?.names;
            let mut names = names.into_iter();
            let (Some(event), None) = (names.next(), names.next()) else {
                return Err(Error::Refused(format!(
                    "--on-trigger \"{}\" is more than one event\n  hint: one --on-trigger for each of them, as \
                     system:event",
                    trigger.event
                )));
            };
            if !tracefs.has(&file_of(&event, "hist")) {
                return Err(Error::Refused(format!(
                    "--on-trigger needs a kernel with CONFIG_HIST_TRIGGERS, to count {event}"
                )));
            }
            if !selected.names.contains(&event) || selected.filters.contains_key(&event) {
                events.push(trigger.clone());
            }
            found.push(Watched {
                name: format!("stackmap_{}_{now}_{}", process::id(), found.len()),
                trigger: Selected {
                    event,
                    filter: trigger.filter.clone(),
                },
            });
        }
        Ok(Self(found))
    }

    /// Begins to count.
    pub(super) fn set(&self, tracefs: &Tracefs) -> Result {
        self.0.iter().try_for_each(|watched| {
            let command = format!("{}\n", watched.command());
            let set = tracefs.append(&watched.file("trigger"), &command);
            set.map_err(|error| watched.explain(error, tracefs))
        })
    }

    /// What waits until one of them occurs and `after` has passed, or tracing is off.
    pub(super) fn watch(&self, tracefs: &Tracefs, after: Duration) -> Watch {
        let (all, tracefs) = (self.0.clone(), tracefs.clone());
        Box::new(move || loop {
            sleep(INTERVAL);
            if is_off(&tracefs) {
                return None;
            }
            let occurred = |watched: &&Watched| {
                let text = tracefs.read(&watched.file("hist"));
                text.is_ok_and(|text| hits(&text, &watched.mark()) > 0)
            };
            if let Some(watched) = all.iter().find(occurred) {
                let begun = Instant::now();
                sleep(INTERVAL);
                while begun.elapsed() < after && !is_off(&tracefs) {
                    sleep(INTERVAL.min(after.saturating_sub(begun.elapsed())));
                }
                return Some(watched.trigger.to_string());
            }
        })
    }
}

/// Whether tracing is switched off.
pub(super) fn is_off(tracefs: &Tracefs) -> bool {
    tracefs.read("tracing_on").is_ok_and(|on| on.trim() == "0")
}

impl Watched {
    fn file(&self, file: &str) -> String {
        file_of(&self.trigger.event, file)
    }

    /// The trigger as the kernel takes it.
    fn command(&self) -> String {
        let condition = self.trigger.filter.iter();
        let condition: String = condition.flat_map(|filter| [IF, filter]).collect();
        format!("{}keys=common_pid{condition}", self.mark())
    }

    /// How it begins, which no other does.
    fn mark(&self) -> String {
        format!("hist:name={}:", self.name)
    }

    /// What the kernel says of a condition.
    fn explain(&self, error: Error, tracefs: &Tracefs) -> Error {
        let Error::Io { error: io, .. } = &error else {
            return error;
        };
        if io.kind() != io::ErrorKind::InvalidInput {
            return error;
        }
        let log = tracefs.read("error_log").unwrap_or_default();
        let said = last_error(&log).into_iter();
        let said: String = said.map(|line| format!("\n    {}", safe(line))).collect();
        Error::Refused(format!(
            "the kernel refuses --on-trigger \"{}\"{said}\n  hint: {} in tracefs has the fields",
            self.trigger,
            self.file("format")
        ))
    }
}

/// How often an event was counted in the histogram that begins so; `text` is all that its file has.
fn hits(text: &str, mark: &str) -> u64 {
    let mut infos = text.split("# trigger info: ");
    let block = infos.find(|block| block.starts_with(mark));
    let mut lines = block.unwrap_or_default().lines();
    let number = lines.find_map(|line| line.trim().strip_prefix("Hits: "));
    number
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or_default()
}

/// The lines of the last error in `error_log`: what is wrong, the command, a mark below it.
fn last_error(log: &str) -> Vec<&str> {
    let lines: Vec<_> = log.lines().collect();
    let last = lines.iter().rposition(|line| line.starts_with('['));
    let Some(last) = last else {
        return Vec::new();
    };
    let mut found = lines[last..].to_vec();
    if let Some((_, what)) = found[0].split_once("] ") {
        found[0] = what;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_has_an_event_and_perhaps_a_condition() {
        let parse = |text: &str| text.parse::<Selected>();
        for (text, event, filter) in [
            ("kmem:kfree", "kmem:kfree", None),
            (" kfree if ptr == 0 ", "kfree", Some("ptr == 0")),
            ("a:b if c == \"x if y\"", "a:b", Some("c == \"x if y\"")),
            ("a:b if x > 1 &&\ny", "a:b", Some("x > 1 && y")),
        ] {
            let filter = filter.map(str::to_owned);
            let event = event.to_owned();
            assert_eq!(parse(text), Ok(Selected { event, filter }));
        }
        for text in ["", " ", "a:b if ", " if x", "a b", "a:b unless c", "a\nb"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn no_two_histograms_have_one_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("events/a/b")).unwrap();
        for (file, text) in [
            ("trace", ""),
            ("available_events", "a:b\n"),
            ("events/a/b/hist", ""),
        ] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let tracefs = Tracefs::find(Some(dir.path())).unwrap();
        let trigger: Selected = "a:b".parse().unwrap();
        let two = || {
            Triggers::find(
                &tracefs,
                &[trigger.clone(), trigger.clone()],
                &mut Vec::new(),
            )
        };
        let found = [two().unwrap(), two().unwrap()];
        let names = found.iter().flat_map(|found| &found.0);
        let names: std::collections::BTreeSet<_> = names.map(|watched| &watched.name).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }

    #[test]
    fn hits_are_those_of_the_own_histogram() {
        let block = |name: &str, hits: u64| {
            format!(
                "# event histogram\n#\n# trigger info: hist:name={name}:keys=common_pid:\
                 vals=hitcount:sort=hitcount:size=2048 if x [active]\n#\n\n\
                 {{ common_pid: 1 }} hitcount: 9\n\n\
                 Totals:\n    Hits: {hits}\n    Entries: 1\n    Dropped: 0\n\n\n"
            )
        };
        let text = block("other", 7) + &block("mine", 3) + &block("mine2", 5);
        assert_eq!(hits(&text, "hist:name=mine:"), 3);
        assert_eq!(hits(&text, "hist:name=mine2:"), 5);
        assert_eq!(hits(&text, "hist:name=min:"), 0);
        assert_eq!(hits("", "hist:name=mine:"), 0);
    }

    #[test]
    fn the_last_error_is_shown() {
        let log = "[   1.2] hist:x: error: Old\n  Command: old\n           ^\n\
                   [   3.4] event filter parse error: error: Field not found\n  Command: b > 1\n           ^\n";
        let want = [
            "event filter parse error: error: Field not found",
            "  Command: b > 1",
            "           ^",
        ];
        assert_eq!(last_error(log), want);
        assert!(last_error("").is_empty());
    }
}
