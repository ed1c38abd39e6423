// SPDX-License-Identifier: MIT OR Apache-2.0

//! The columns of the fields of events.
//!
//! A field has the column of its name; what no column can be called is `_`. A name that the columns
//! of all events have, or another field of the event, gets `field_` in front: SQL does not tell upper from
//! lower case. A column has one type wherever it is, so that all events are one table: the type that holds the
//! numbers of all fields that it is of.

use super::{is_common, table::Kind};
use crate::ring::format::Format;
use std::collections::{HashMap, HashSet};

/// What stands before a name that is taken.
const PREFIX: &str = "field_";
/// Longer names are cut.
const MAX_NAME: usize = 128;
/// No event has more columns for its fields: a kernel's has some ten.
pub(super) const MAX_COLUMNS: usize = 256;

/// What the columns that were met hold, by name.
#[derive(Debug, Default)]
pub(super) struct Kinds(HashMap<String, Kind>);

impl Kinds {
    /// Takes the fields of an event.
    pub(super) fn add(&mut self, format: &Format) {
        for (index, name) in columns(format) {
            let Some(kind) = kind(format, index) else {
                continue;
            };
            let known = self.0.entry(name).or_insert(kind);
            *known = known.widened(kind);
        }
    }

    /// What a column holds.
    pub(super) fn get(&self, name: &str) -> Kind {
        self.0.get(name).copied().unwrap_or(Kind::Wide)
    }
}

fn kind(format: &Format, index: usize) -> Option<Kind> {
    let field = format.fields.get(index)?;
    Some(Kind::Number {
        bits: field.number_bits()?,
        signed: field.signed,
    })
}

/// The fields of an event that are numbers, by their index, and the columns of those.
pub(super) fn columns(format: &Format) -> Vec<(usize, String)> {
    let mut columns: Vec<(usize, String)> = Vec::new();
    let mut taken = HashSet::new();
    for (index, field) in format.fields.iter().enumerate() {
        if field.number_bits().is_none() || columns.len() == MAX_COLUMNS {
            continue;
        }
        let mut name = word(&field.name);
        let is_taken = |name: &str| {
            let small = name.to_ascii_lowercase();
            is_common(&small) || taken.contains(&small)
        };
        while is_taken(&name) {
            name.insert_str(0, PREFIX);
        }
        taken.insert(name.to_ascii_lowercase());
        columns.push((index, name));
    }
    columns
}

/// A name as one that columns and directories can have.
pub(super) fn word(name: &str) -> String {
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() => c,
        _ => '_',
    };
    let word: String = name.chars().take(MAX_NAME).map(plain).collect();
    match word.as_bytes().first() {
        Some(first) if !first.is_ascii_digit() => word,
        _ => format!("_{word}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for (name, want) in [
            ("bytes_req", "bytes_req"),
            ("a b;c", "a_b_c"),
            ("../x", "___x"),
            ("", "_"),
            ("1x", "_1x"),
            ("h\u{e9}", "h_"),
            ("Up", "Up"),
        ] {
            assert_eq!(word(name), want);
        }
        assert_eq!(word(&"x".repeat(1000)).len(), MAX_NAME);
    }
}
