// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notes at the end of a result: what is missing in it, and why.

use crate::{
    error::{Error, Result},
    filter::Filtered,
    output::safe,
    source::{Loaded, Missing},
    stat::Stat,
    trace::Losses,
    user::User,
    weight::Unweighed,
};
use serde::Serialize;
use std::collections::BTreeSet;

/// At most this many files are named.
const MAX_LISTED: usize = 3;

/// What is missing in a result.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Notes {
    /// Events whose id has no stack.
    pub missing: MissingStacks,
    /// Events with a full stack in place of an id.
    pub whole: u64,
    /// Events without a stack.
    pub without: u64,
    /// User stacks of events.
    pub user: UserNotes,
    /// What the trace says is missing.
    pub losses: Losses,
    /// Events that are hidden, as tracing itself caused them. All else is of the others.
    pub own: u64,
    /// What a filter has kept, if there is one. All else is of these events, but for the losses.
    pub filtered: Option<Filtered>,
    /// Events that a filter has kept and that have no weight. All else is of the others.
    pub unweighed: Unweighed,
}

/// How many ids have no stack, by its reason.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MissingStacks {
    /// They are from before a reset of the map.
    pub stale: u64,
    /// They are of another load of the module than the stacks.
    pub gone: u64,
    /// The map does not have them.
    pub unknown: u64,
}

impl MissingStacks {
    /// Counts one.
    pub fn count(&mut self, missing: Missing) {
        match missing {
            Missing::Stale => self.stale += 1,
            Missing::Gone => self.gone += 1,
            Missing::Unknown => self.unknown += 1,
        }
    }

    /// All of them.
    pub fn sum(&self) -> u64 {
        self.stale + self.gone + self.unknown
    }
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
    /// One whose id has no stack.
    pub missing: MissingStacks,
    /// None.
    pub none: u64,
}

impl UserNotes {
    /// Whether there is any.
    pub fn is_any(&self) -> bool {
        self.bound + self.not_kept + self.pending + self.lost + self.missing.sum() > 0
    }
}

/// A note, and whether it says that a result is not complete.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Note {
    /// Something is missing.
    pub warning: bool,
    /// What.
    pub text: String,
}

impl Notes {
    /// How many events there are, in words, and if there is a filter, of how many.
    pub fn nr_events(&self, nr_events: u64) -> String {
        match &self.filtered {
            Some(filtered) => format!("{nr_events} of {}", count_of(filtered.all, "event")),
            None => count_of(nr_events, "event"),
        }
    }

    /// Refuses a result without events if `source` has some, and says what these have.
    pub fn require_events(&self, source: &str, loaded: &Loaded) -> Result {
        let filtered = self.filtered.iter().filter(|_| self.own == 0);
        let mut why: Vec<_> = filtered.filter_map(Filtered::line).collect();
        if self.unweighed.is_all() {
            why.extend(self.unweighed.lines(&loaded.weight));
        }
        match why.is_empty() {
            true => Ok(()),
            false => Err(Error::input(source, why.join("; "))),
        }
    }

    /// The notes, in words; `loaded` is what the result was made from.
    pub fn lines(&self, loaded: Option<&Loaded>) -> Vec<Note> {
        let note = |warning: bool| move |text: String| Note { warning, text };
        let filtered = self.filtered.iter().filter_map(Filtered::line);
        let unweighed = loaded.map(|loaded| self.unweighed.lines(&loaded.weight));
        let mut notes: Vec<_> = filtered
            .chain(unweighed.into_iter().flatten())
            .map(note(false))
            .collect();
        notes.extend(self.warnings(loaded).into_iter().map(note(true)));
        let files = loaded.and_then(|loaded| files_without_names(&loaded.user));
        let files = files.map(|files| {
            format!(
                "user frames in {files} have no names: the files, or their symbols, are not here (--debug-dir)"
            )
        });
        let others = [
            (self.whole, "have a full stack"),
            (self.without, "have no stack"),
        ];
        let others = others.into_iter().filter(|(count, _)| *count > 0);
        let others = others.map(|(count, verb)| events(count, verb));
        let own = count_of(self.own, "event");
        let own = format!("not shown: {own} that tracing itself caused (--plumbing shows them)");
        let own = (self.own > 0).then_some(own);
        notes.extend(files.into_iter().chain(others).chain(own).map(note(false)));
        notes
    }

    /// What is missing, in words.
    fn warnings(&self, loaded: Option<&Loaded>) -> Vec<String> {
        let of_events = |rows: &[(u64, &str, &str)]| -> Vec<String> {
            let rows = rows.iter().filter(|(count, ..)| *count > 0);
            let texts = rows.map(|(count, verb, why)| format!("{}: {why}", events(*count, verb)));
            texts.collect()
        };
        let (missing, user) = (self.missing, self.user);
        let (reset, reloaded) = ("the map was reset", "the module was reloaded");
        let between = "between these events and the reading of the stacks";
        let before = "before the stacks were read";
        let no_such = "the map has no such stack";
        let mut lines = of_events(&[
            (missing.unknown, "have an unknown id", no_such),
            (
                missing.stale,
                "have a stale id",
                &format!("{reset} {between}"),
            ),
            (
                missing.gone,
                "have an id of another load",
                &format!("{reloaded} {between}"),
            ),
        ]);
        let Losses { lost, orphans } = self.losses;
        if lost > 0 {
            lines.push(format!(
                "{} overwritten in the ring buffer before they were read: use a larger buffer (record -b)",
                count_of(lost, "record")
            ));
        }
        if orphans > 0 {
            lines.push(format!(
                "{} without an event: the event was overwritten, or the stack never had one",
                count_of(orphans, "stack")
            ));
        }
        let overwritten = "the event that binds it was overwritten, or tracing was off";
        lines.extend(of_events(&[
            (
                user.missing.unknown,
                "have an unknown user stack id",
                no_such,
            ),
            (
                user.missing.stale,
                "have a stale user stack id",
                &format!("{reset} {before}"),
            ),
            (
                user.missing.gone,
                "have another load's user stack id",
                &format!("{reloaded} {before}"),
            ),
            (user.lost, "have lost their user stack", overwritten),
            (
                user.not_kept,
                "have no user stack",
                "the module did not keep it",
            ),
            (
                user.pending,
                "have no user stack yet",
                "the task was in the kernel still",
            ),
        ]));
        let manifest = loaded.and_then(|loaded| loaded.manifest.as_ref());
        if manifest.is_some_and(|manifest| manifest.modules_changed) {
            let text = "modules were loaded or unloaded during the recording: addresses in them may have no name";
            lines.push(text.to_owned());
        }
        let skipped = manifest.map_or(0, |manifest| manifest.skipped_pages);
        if skipped > 0 {
            let pages = count_of(skipped, "page");
            lines.push(format!(
                "{pages} of the buffer, or more, were damaged: their records are missing"
            ));
        }
        // The counters of a capture are those of all that used the map.
        let live = loaded.filter(|loaded| loaded.manifest.is_none());
        let drops = live
            .and_then(|loaded| loaded.stat.as_ref())
            .map(Stat::drops);
        let drops = drops.into_iter().flatten();
        lines.extend(
            drops.map(|(count, why)| format!("{} recorded: {why}", count_of(count, "full stack"))),
        );
        let (unnamed, all) = loaded.map_or((0, 0), Loaded::unnamed);
        if unnamed > 0 {
            lines.push(format!(
                "{unnamed} of {all} addresses in stacks of the kernel have no name"
            ));
        }
        lines
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
    fn stacks_without_events_and_ids_of_users_have_notes() {
        let mut notes = Notes::default();
        for missing in [Missing::Unknown, Missing::Stale, Missing::Gone] {
            notes.user.missing.count(missing);
        }
        assert_eq!(notes.user.missing.sum(), 3);
        assert!(notes.user.is_any());
        notes.losses.orphans = 1;
        let lines = notes.lines(None);
        let texts: Vec<_> = lines.iter().map(|note| &note.text[..]).collect();
        assert_eq!(
            texts,
            [
                "1 stack without an event: the event was overwritten, or the stack never had one",
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
}
