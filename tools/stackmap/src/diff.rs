// SPDX-License-Identifier: MIT OR Apache-2.0

//! What became hotter from one recording to another.
//!
//! Stacks are matched by the names of their functions: neither ids nor addresses last from one
//! boot to another. What is compared is the share of all events, since recordings differ in length.

use crate::{
    error::Result,
    notes::count_of,
    output::{safe, Out, ERROR, GOOD, TITLE},
    table::percent,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::Write,
};

/// Folded stacks, outermost frame first, and how often each was seen.
pub type Folded = BTreeMap<Vec<String>, u64>;

/// Something that was seen in one recording or the other, or in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// A stack, outermost frame first; or one function.
    pub frames: Vec<String>,
    /// How often, before and after.
    pub counts: [u64; 2],
    /// Which part of all, in percent, before and after.
    pub shares: [f64; 2],
}

impl Change {
    /// By how many percentage points the share has grown.
    pub fn growth(&self) -> f64 {
        self.shares[1] - self.shares[0]
    }
}

/// How often each function was on a stack; once for each stack, however often it is there.
pub fn by_function(folded: &Folded) -> Folded {
    let mut functions: HashMap<&str, u64> = HashMap::new();
    for (frames, count) in folded {
        let distinct: BTreeSet<&str> = frames.iter().map(|frame| &frame[..]).collect();
        for frame in distinct {
            let total = functions.entry(frame).or_default();
            *total = total.saturating_add(*count);
        }
    }
    let functions = functions.into_iter();
    functions
        .map(|(function, count)| (vec![function.to_owned()], count))
        .collect()
}

/// All changes, the greatest first. `totals` are all events before and after.
pub fn changes(before: &Folded, after: &Folded, totals: [u64; 2]) -> Vec<Change> {
    let frames: BTreeSet<&Vec<String>> = before.keys().chain(after.keys()).collect();
    let change = |frames: &Vec<String>| {
        let count = |folded: &Folded| folded.get(frames).copied().unwrap_or(0);
        let counts = [count(before), count(after)];
        Change {
            frames: frames.clone(),
            counts,
            shares: [0, 1].map(|side| percent(counts[side], totals[side])),
        }
    };
    let mut changes: Vec<_> = frames.into_iter().map(change).collect();
    changes.sort_by(|a, b| {
        let greater = b.growth().abs().total_cmp(&a.growth().abs());
        greater.then_with(|| a.frames.cmp(&b.frames))
    });
    changes
}

/// Writes the first `top` of `changes`.
pub fn write(
    out: &mut Out,
    names: [&str; 2],
    totals: [u64; 2],
    changes: &[Change],
    top: usize,
) -> Result {
    for (label, side) in [("before", 0), ("after", 1)] {
        let name = out.style(TITLE, safe(names[side]).into_owned());
        writeln!(
            out,
            "{label:>8}: {name}, {}",
            count_of(totals[side], "event")
        )?;
    }
    let changed = changes.iter().filter(|change| change.growth() != 0.0);
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() {
        writeln!(out, "\nno share has changed")?;
        return Ok(());
    }
    writeln!(out, "\n   change    before     after  events")?;
    for change in changed.iter().take(top) {
        let growth = change.growth();
        let style = if growth > 0.0 { ERROR } else { GOOD };
        let shown = out.style(style, format!("{growth:+8.2}%"));
        let [before, after] = change.shares;
        let [nr_before, nr_after] = change.counts;
        let (innermost, outer) = match change.frames.split_last() {
            Some((innermost, outer)) => (&innermost[..], outer),
            None => ("", &[][..]),
        };
        writeln!(
            out,
            "{shown}  {before:7.2}%  {after:7.2}%  {nr_before} -> {nr_after}  {}",
            safe(innermost)
        )?;
        for frame in outer.iter().rev() {
            writeln!(out, "                                 {}", safe(frame))?;
        }
    }
    let hidden = changed.len().saturating_sub(top);
    if hidden > 0 {
        writeln!(
            out,
            "... {} more (--top)",
            count_of(hidden as u64, "change")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(lines: &[(&str, u64)]) -> Folded {
        let stack = |line: &str| line.split(';').map(str::to_owned).collect();
        lines
            .iter()
            .map(|(line, count)| (stack(line), *count))
            .collect()
    }

    #[test]
    fn shares_are_compared() {
        let before = folded(&[("a;b", 10), ("a;c", 10)]);
        let after = folded(&[("a;b", 300), ("a;d", 100)]);
        let changes = changes(&before, &after, [20, 400]);
        let shown: Vec<_> = changes
            .iter()
            .map(|change| (change.frames.join(";"), change.growth()))
            .collect();
        let want = [("a;c", -50.0), ("a;b", 25.0), ("a;d", 25.0)];
        assert_eq!(
            shown,
            want.map(|(stack, growth)| (stack.to_owned(), growth))
        );
    }

    #[test]
    fn a_function_counts_once_for_a_stack() {
        let functions = by_function(&folded(&[("a;b;a", 2), ("a;c", 3)]));
        assert_eq!(functions, folded(&[("a", 5), ("b", 2), ("c", 3)]));
    }

    #[test]
    fn nothing_may_be_compared_with_nothing() {
        assert!(changes(&Folded::new(), &Folded::new(), [0, 0]).is_empty());
        let changes = changes(&Folded::new(), &folded(&[("a", 1)]), [0, 1]);
        assert_eq!(changes[0].growth(), 100.0);
    }
}
