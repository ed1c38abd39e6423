// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names with wildcards: those of tasks and of events.

use glob::{Pattern, PatternError};
use std::fmt;

/// Characters that make the name of an event a pattern.
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// A name, or a pattern of names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Glob {
    /// This name.
    Name(String),
    /// What matches.
    Pattern(Pattern),
}

impl Glob {
    /// The name of a task or of a function, with the wildcards `*` and `?`. Brackets are part of the name.
    pub fn of_name(text: &str) -> Result<Self, String> {
        if !text.contains(['*', '?']) {
            return Ok(Glob::Name(text.to_owned()));
        }
        let mut pattern = String::new();
        for c in text.chars() {
            match c {
                '[' | ']' => pattern.extend(['[', c, ']']),
                // More than one mean a path to the crate.
                '*' if pattern.ends_with('*') => {}
                c => pattern.push(c),
            }
        }
        let pattern = Pattern::new(&pattern).map_err(|error| error.to_string())?;
        Ok(Glob::Pattern(pattern))
    }

    /// The name of an event or of a system, with the wildcards `*`, `?` and `[a-z]`.
    fn of_event(text: &str) -> Result<Self, PatternError> {
        Ok(match text.contains(WILDCARDS) {
            true => Glob::Pattern(Pattern::new(text)?),
            false => Glob::Name(text.to_owned()),
        })
    }

    /// Whether a name fits.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Glob::Name(wanted) => wanted == name,
            Glob::Pattern(pattern) => pattern.matches(name),
        }
    }

    fn is_all(&self) -> bool {
        matches!(self, Glob::Pattern(pattern) if pattern.as_str() == "*")
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Glob::Name(name) => name,
            Glob::Pattern(pattern) => pattern.as_str(),
        })
    }
}

/// A word that names events: `system:event` or `system/event`, `event`, or `system`, each with
/// wildcards.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EventGlob {
    /// [`None`]: the word is the name of an event or of a system.
    system: Option<Glob>,
    event: Glob,
}

impl EventGlob {
    /// Reads a word.
    pub fn new(word: &str) -> Result<Self, String> {
        let (system, event) = match word.split_once([':', '/']) {
            Some((system, "")) => (Some(system), "*"),
            Some((system, event)) => (Some(system), event),
            None => (None, word),
        };
        let glob = |text| {
            let glob = Glob::of_event(text);
            glob.map_err(|error| format!("\"{word}\" is not a valid pattern: {error}"))
        };
        Ok(Self {
            system: system.map(glob).transpose()?,
            event: glob(event)?,
        })
    }

    /// Whether it names an event. If the system is not known, the names alone are compared.
    pub fn matches(&self, system: Option<&str>, event: &str) -> bool {
        match (&self.system, system) {
            (Some(wanted), Some(system)) => wanted.matches(system) && self.event.matches(event),
            (None, Some(system)) => self.event.matches(system) || self.event.matches(event),
            (_, None) => self.event.matches(event),
        }
    }

    /// Whether it is all events of one system.
    pub fn is_whole_system(&self) -> bool {
        self.event.is_all() && matches!(self.system, Some(Glob::Name(_)))
    }

    /// Whether it has no wildcards.
    pub fn is_name(&self) -> bool {
        !matches!(self.system, Some(Glob::Pattern(_))) && matches!(self.event, Glob::Name(_))
    }
}
