// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notes at the end of a result: what is missing in it, and why.

use crate::{
    filter::Filtered,
    output::safe,
    source::{Loaded, Missing},
    trace::Losses,
    user::User,
    weight::Unweighed,
};
use std::collections::BTreeSet;

/// So many files are named.
const MAX_LISTED: usize = 3;

/// What is missing in a result.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Notes {
    /// Events whose id is from before a reset of the map.
    pub stale: u64,
    /// Events whose id is of another load of the module than the stacks.
    pub gone: u64,
    /// Events whose id the map does not have.
    pub unknown: u64,
    /// The events were read from text, in which names can look like events.
    pub text: bool,
    /// Events with a full stack in place of an id.
    pub whole: u64,
    /// Events without a stack.
    pub without: u64,
    /// User stacks of events.
    pub user: UserNotes,
    /// What the trace says is missing.
    pub losses: Losses,
    /// Frames that nothing names, and all frames.
    pub unnamed: (u64, u64),
    /// What a filter has kept, if there is one. All else is of these events, but for the losses.
    pub filtered: Option<Filtered>,
    /// Events that a filter has kept and that have no weight. All else is of the others.
    pub unweighed: Unweighed,
}

/// How many events have which user stack.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct UserNotes {
    /// One that is known.
    pub bound: u64,
    /// One that the map did not keep.
    pub not_kept: u64,
    /// None yet: the task was in the kernel when the trace ended.
    pub pending: u64,
    /// One that the trace does not tell any more.
    pub lost: u64,
    /// One that is from before a reset of the map.
    pub stale: u64,
    /// One that is of another load of the module than the stacks.
    pub gone: u64,
    /// One that the map does not have.
    pub unknown: u64,
    /// None.
    pub none: u64,
}

impl UserNotes {
    /// Whether there is any.
    pub fn is_any(&self) -> bool {
        self.bound + self.not_kept + self.pending + self.lost + self.unresolved() > 0
    }

    /// Adds those of one more recording.
    fn add(&mut self, other: Self) {
        let Self {
            bound,
            not_kept,
            pending,
            lost,
            stale,
            gone,
            unknown,
            none,
        } = other;
        self.bound += bound;
        self.not_kept += not_kept;
        self.pending += pending;
        self.lost += lost;
        self.stale += stale;
        self.gone += gone;
        self.unknown += unknown;
        self.none += none;
    }

    /// How many have an id and no stack.
    pub fn unresolved(&self) -> u64 {
        self.stale + self.gone + self.unknown
    }

    /// Counts events whose user stack is missing.
    pub fn missing(&mut self, missing: Missing, nr_events: u64) {
        match missing {
            Missing::Stale => self.stale += nr_events,
            Missing::Gone => self.gone += nr_events,
            Missing::Unknown => self.unknown += nr_events,
        }
    }
}

/// A note, and whether it says that a result is not complete.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// Something is missing.
    pub warning: bool,
    /// What.
    pub text: String,
}

impl Notes {
    /// Adds those of one more recording.
    pub fn add(&mut self, other: Self) {
        let Self {
            stale,
            gone,
            unknown,
            text,
            whole,
            without,
            user,
            losses,
            unnamed,
            filtered,
            unweighed,
        } = other;
        self.stale += stale;
        self.gone += gone;
        self.unknown += unknown;
        self.text |= text;
        self.whole += whole;
        self.without += without;
        self.user.add(user);
        self.losses.lost = self.losses.lost.saturating_add(losses.lost);
        self.losses.orphans += losses.orphans;
        self.unnamed.0 += unnamed.0;
        self.unnamed.1 += unnamed.1;
        self.filtered = match (self.filtered.take(), filtered) {
            (Some(before), Some(more)) => Some(before.and(more)),
            (before, more) => before.or(more),
        };
        self.unweighed.add(unweighed);
    }

    /// Counts events whose stack is missing.
    pub fn missing(&mut self, missing: Missing, nr_events: u64) {
        match missing {
            Missing::Stale => self.stale += nr_events,
            Missing::Gone => self.gone += nr_events,
            Missing::Unknown => self.unknown += nr_events,
        }
    }

    /// How many events there are, in words, and if there is a filter, of how many.
    pub fn nr_events(&self, nr_events: u64) -> String {
        match &self.filtered {
            Some(filtered) => format!("{nr_events} of {}", count_of(filtered.all, "event")),
            None => count_of(nr_events, "event"),
        }
    }

    /// Whether there were events, and none is counted.
    pub fn is_unmatched(&self) -> bool {
        let filtered = self.filtered.as_ref();
        self.unweighed.is_all()
            || filtered.is_some_and(|filtered| filtered.kept == 0 && filtered.all > 0)
    }

    /// The notes, in words; `loaded` is what the result was made from.
    pub fn lines(&self, loaded: Option<&Loaded>) -> Vec<Note> {
        let mut notes = Vec::new();
        if let Some(filtered) = &self.filtered {
            notes.extend(filtered.lines().map(|text| Note {
                warning: false,
                text,
            }));
        }
        if let Some(loaded) = loaded {
            let lines = self.unweighed.lines(&loaded.weight);
            notes.extend(lines.into_iter().map(|text| Note {
                warning: false,
                text,
            }));
        }
        let mut warn = |count: u64, text: String| {
            if count > 0 {
                notes.push(Note {
                    warning: true,
                    text,
                });
            }
        };
        warn(
            self.unknown,
            format!(
                "{}: the map has no such stack",
                events(self.unknown, "have an unknown id")
            ),
        );
        warn(
            self.stale,
            format!(
                "{}: the map was reset between these events and the reading of the stacks",
                events(self.stale, "have a stale id")
            ),
        );
        warn(
            self.gone,
            format!(
                "{}: the module was reloaded between these events and the reading of the stacks",
                events(self.gone, "have an id of another load")
            ),
        );
        warn(
            self.losses.lost,
            format!(
                "{} overwritten in the ring buffer before they were read: use a larger buffer \
                 (record -b)",
                count_of(self.losses.lost, "record")
            ),
        );
        warn(
            self.losses.orphans,
            format!(
                "{} without an event: the event was overwritten, or the stack never had one",
                count_of(self.losses.orphans, "stack")
            ),
        );
        let user = &self.user;
        for (count, what, why) in [
            (user.unknown, "an unknown", "the map has no such stack"),
            (
                user.stale,
                "a stale",
                "the map was reset before the stacks were read",
            ),
            (
                user.gone,
                "another load's",
                "the module was reloaded before the stacks were read",
            ),
        ] {
            let verb = format!("have {what} user stack id");
            warn(count, format!("{}: {why}", events(count, &verb)));
        }
        warn(
            user.lost,
            format!(
                "{}: what tells it was overwritten, or tracing was off",
                events(user.lost, "have lost their user stack")
            ),
        );
        warn(
            user.not_kept,
            format!(
                "{}: the module did not keep it",
                events(user.not_kept, "have no user stack")
            ),
        );
        warn(
            user.pending,
            format!(
                "{}: the task was in the kernel still",
                events(user.pending, "have no user stack yet")
            ),
        );
        let manifest = loaded.and_then(|loaded| loaded.manifest.as_ref());
        warn(
            manifest
                .is_some_and(|manifest| manifest.modules_changed)
                .into(),
            "modules were loaded or unloaded during the recording: addresses in them may have no \
             name"
                .to_owned(),
        );
        if let Some((after, before)) = loaded.and_then(|loaded| loaded.stat.as_ref()) {
            let stat = match before {
                Some(before) => &after.since(before),
                None => after,
            };
            for (count, reason) in stat.drops() {
                warn(
                    count,
                    format!("{} recorded: {reason}", count_of(count, "full stack")),
                );
            }
        }
        let (unnamed, frames) = self.unnamed;
        let symbols = loaded.is_some_and(|loaded| !loaded.symbols.is_empty());
        if symbols && unnamed > 0 {
            warn(
                unnamed,
                format!("{unnamed} of {frames} frames have no name"),
            );
        }
        if let Some(files) = loaded.and_then(|loaded| files_without_names(&loaded.user)) {
            notes.push(Note {
                warning: false,
                text: format!(
                    "user frames in {files} have no names: the files, or their symbols, are not here \
                     (--debug-dir)"
                ),
            });
        }
        if self.text {
            notes.push(Note {
                warning: false,
                text: "read from the text of a trace, in which the name of a file or a task can \
                       look like an event"
                    .to_owned(),
            });
        }
        for (count, text) in [
            (self.whole, "have a full stack"),
            (self.without, "have no stack"),
        ] {
            if count > 0 {
                notes.push(Note {
                    warning: false,
                    text: events(count, text),
                });
            }
        }
        notes
    }
}

/// The names of some files of which no frame has a name; [`None`]: there are none.
fn files_without_names(user: &User) -> Option<String> {
    let files = user.names.missing();
    // A name may have a line end in it.
    let name = |index| safe(&user.binaries.name(index)).to_string();
    let names: BTreeSet<_> = files.map(|(index, _)| name(index)).collect();
    let mut list: Vec<_> = names.iter().take(MAX_LISTED).cloned().collect();
    match names.len().checked_sub(MAX_LISTED) {
        Some(more @ 1..) => list.push(count_of(more as u64, "other file")),
        _ if list.is_empty() => return None,
        _ => {}
    }
    let last = list.pop()?;
    Some(match list.is_empty() {
        true => last,
        false => format!("{} and {last}", list.join(", ")),
    })
}

/// `1 event`, `2 events`.
pub fn count_of(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

fn events(count: u64, verb: &str) -> String {
    let verb = match count {
        1 => verb
            .replacen("have ", "has ", 1)
            .replacen("were ", "was ", 1)
            .replace("they", "it")
            .replace("their", "its"),
        _ => verb.to_owned(),
    };
    format!("{} {verb}", count_of(count, "event"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::binaries::Binaries;

    #[test]
    fn complete_results_have_no_notes() {
        assert!(Notes::default().lines(None).is_empty());
    }

    #[test]
    fn ids_of_users_are_notes_of_their_own() {
        let mut notes = Notes::default();
        for missing in [Missing::Unknown, Missing::Stale, Missing::Gone] {
            notes.user.missing(missing, 1);
        }
        assert_eq!(notes.user.unresolved(), 3);
        assert!(notes.user.is_any());
        let lines = notes.lines(None);
        let texts: Vec<_> = lines.iter().map(|note| &note.text[..]).collect();
        assert_eq!(
            texts,
            [
                "1 event has an unknown user stack id: the map has no such stack",
                "1 event has a stale user stack id: the map was reset before the stacks were read",
                "1 event has another load's user stack id: the module was reloaded before the stacks were read",
            ]
        );
    }

    #[test]
    fn files_without_names_are_listed() {
        use crate::user::{words::At, WhichFrame};
        for (paths, want) in [
            (&[][..], None),
            (&["/no/b"], Some("b")),
            (
                &["/no/b", "/no/a\\012\\033c"],
                Some("a\u{fffd}\u{fffd}c and b"),
            ),
            (&["/no/d", "/no/b", "/no/a", "/no/a"], Some("a, b and d")),
            (
                &["/no/d", "/no/c", "/no/b", "/no/a"],
                Some("a, b, c and 1 other file"),
            ),
        ] {
            let mut user = User::default();
            let lines = (2..)
                .zip(paths)
                .map(|(index, path)| format!("{index} 00 0:1 5 9 {path}\n"));
            user.binaries = Binaries::parse(lines.collect::<String>());
            let wanted = user.binaries.iter().map(|(index, _)| WhichFrame {
                at: At::File { index, offset: 7 },
                exact: true,
            });
            user.names.prime(wanted, &user.binaries, &mut |_| {});
            assert_eq!(files_without_names(&user).as_deref(), want, "{paths:?}");
        }
    }

    #[test]
    fn says_what_is_missing() {
        let notes = Notes {
            unknown: 1,
            stale: 2,
            gone: 4,
            whole: 3,
            losses: Losses {
                lost: 7,
                orphans: 1,
            },
            ..Notes::default()
        };
        let lines = notes.lines(None);
        let texts: Vec<_> = lines.iter().map(|note| &note.text[..]).collect();
        assert_eq!(
            texts,
            [
                "1 event has an unknown id: the map has no such stack",
                "2 events have a stale id: the map was reset between these events and the reading \
                 of the stacks",
                "4 events have an id of another load: the module was reloaded between these events \
                 and the reading of the stacks",
                "7 records overwritten in the ring buffer before they were read: use a larger \
                 buffer (record -b)",
                "1 stack without an event: the event was overwritten, or the stack never had one",
                "3 events have a full stack",
            ]
        );
        let warnings: Vec<_> = lines.iter().map(|note| note.warning).collect();
        assert_eq!(warnings, [true, true, true, true, true, false]);
    }
}
