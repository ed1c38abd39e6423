// SPDX-License-Identifier: MIT OR Apache-2.0

//! What became hotter from one recording to another.
//!
//! Stacks are matched by the names of their functions: neither ids nor addresses last from one
//! boot to another.

use crate::{
    error::Result,
    folded::{Folded, Frames, Names},
    notes::count_of,
    output::{safe, Out, ERROR, GOOD, TITLE},
    table::percent,
    weight::Unit,
};
use std::{collections::HashMap, fmt, io::Write};

/// What is compared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum Measure {
    /// Shares of all events: recordings may differ in length
    #[default]
    Share,
    /// Events per second
    Rate,
    /// Numbers of events
    Total,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::Share => "share",
            Measure::Rate => "rate",
            Measure::Total => "total",
        })
    }
}

/// A recording, as far as it matters to what is compared.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// What it is called.
    pub name: &'a str,
    /// All of its events, or what they weigh.
    pub total: u64,
    /// What that is in.
    pub unit: &'a Unit,
    /// How long it took, in seconds; 0 if that is not known.
    pub seconds: f64,
}

impl Side<'_> {
    /// What `count` events are by a measure.
    fn measure(&self, measure: Measure, count: u64) -> f64 {
        match measure {
            Measure::Share => percent(count, self.total),
            Measure::Rate if self.seconds > 0.0 => count as f64 / self.seconds,
            Measure::Rate => 0.0,
            Measure::Total => count as f64,
        }
    }
}

/// Something that was seen in one recording or the other, or in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Change<'a> {
    /// A stack, outermost frame first; or one function.
    pub frames: Frames<'a>,
    /// How often, before and after.
    pub counts: [u64; 2],
    /// The same by the measure that is compared.
    pub values: [f64; 2],
}

impl Change<'_> {
    /// By how much it has grown.
    pub fn growth(&self) -> f64 {
        self.values[1] - self.values[0]
    }
}

/// How often each function was on a stack; once for each stack, however often it is there.
pub fn by_function(folded: &Folded, names: &Names) -> Folded {
    let mut counts = vec![0u64; names.len()];
    // The number of the last stack that a function was seen on.
    let mut last = vec![usize::MAX; names.len()];
    for (number, (frames, count)) in folded.iter().enumerate() {
        for frame in frames.iter().map(|frame| frame as usize) {
            if std::mem::replace(&mut last[frame], number) != number {
                counts[frame] = counts[frame].saturating_add(count);
            }
        }
    }
    let mut functions = Folded::default();
    for (number, count) in counts.into_iter().enumerate() {
        if last[number] != usize::MAX {
            functions.push([number as u32], count);
        }
    }
    functions.sort(names);
    functions
}

/// All changes, the greatest first; both are in order.
pub fn changes<'a>(
    before: &'a Folded,
    after: &'a Folded,
    sides: [Side<'_>; 2],
    names: &Names,
    measure: Measure,
) -> Vec<Change<'a>> {
    let earlier: HashMap<Frames<'_>, u64> = before.iter().collect();
    let later: HashMap<Frames<'_>, u64> = after.iter().collect();
    let change = |frames: Frames<'a>, counts: [u64; 2]| Change {
        frames,
        counts,
        values: [0, 1].map(|side| sides[side].measure(measure, counts[side])),
    };
    let of_after = after.iter().map(|(frames, count)| {
        let then = earlier.get(&frames).copied().unwrap_or(0);
        change(frames, [then, count])
    });
    let gone = before
        .iter()
        .filter(|(frames, _)| !later.contains_key(frames));
    let gone = gone.map(|(frames, count)| change(frames, [count, 0]));
    let mut changes: Vec<_> = of_after.chain(gone).collect();
    let ranks = names.ranks();
    changes.sort_by(|a, b| {
        let greater = b.growth().abs().total_cmp(&a.growth().abs());
        greater.then_with(|| a.frames.compare(b.frames, &ranks))
    });
    changes
}

/// Writes the first `top` of `changes`.
pub fn write(
    out: &mut Out,
    names: &Names,
    sides: [Side<'_>; 2],
    measure: Measure,
    changes: &[Change<'_>],
    top: usize,
) -> Result {
    for (label, side) in [("before", sides[0]), ("after", sides[1])] {
        let name = out.style(TITLE, safe(side.name).into_owned());
        let events = side.unit.text(side.total);
        write!(out, "{label:>8}: {name}, {events}")?;
        match measure {
            Measure::Rate => writeln!(out, " in {:.3} s", side.seconds)?,
            _ => writeln!(out)?,
        }
    }
    let changed = changes.iter().filter(|change| change.growth() != 0.0);
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() {
        writeln!(out, "\nno {measure} has changed")?;
        return Ok(());
    }
    // A difference of percentages is not one in percent.
    let (unit, difference) = match measure {
        Measure::Share => ("%", " pp"),
        Measure::Rate => ("/s", "/s"),
        Measure::Total => ("", ""),
    };
    let digits = match measure {
        Measure::Total => 0,
        _ => 2,
    };
    let title = |title: &str, unit: &str, width: usize| {
        let blanks = width + unit.len() - title.len();
        format!("{:blanks$}{title}", "")
    };
    let titles = [
        title("change", difference, 9),
        title("before", unit, 9),
        title("after", unit, 9),
    ];
    let titles = titles.join("  ");
    writeln!(out, "\n{titles}  {}", safe(sides[1].unit.title()))?;
    for change in changed.iter().take(top) {
        let growth = change.growth();
        let style = if growth > 0.0 { ERROR } else { GOOD };
        let shown = out.style(style, format!("{growth:+9.digits$}{difference}"));
        let [before, after] = change.values;
        let [nr_before, nr_after] = change.counts;
        let mut frames = change.frames.iter().rev().map(|frame| names.get(frame).0);
        let innermost = frames.next().unwrap_or("");
        writeln!(
            out,
            "{shown}  {before:9.digits$}{unit}  {after:9.digits$}{unit}  {nr_before} -> {nr_after}  {}",
            safe(innermost)
        )?;
        for frame in frames {
            writeln!(out, "{:1$}  {2}", "", titles.len(), safe(frame))?;
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
    use crate::folded::tests::folded;

    fn text(frames: Frames<'_>, names: &Names) -> String {
        let frames = frames.iter().map(|frame| names.get(frame).0);
        frames.collect::<Vec<_>>().join(";")
    }

    fn sides(totals: [u64; 2], seconds: [f64; 2]) -> [Side<'static>; 2] {
        [0, 1].map(|side| Side {
            unit: &Unit::Events,
            name: "",
            total: totals[side],
            seconds: seconds[side],
        })
    }

    #[test]
    fn a_function_counts_once_for_a_stack() {
        let mut names = Names::default();
        let stacks = folded(&[("a,b,a", 2), ("a,c", 3)], &mut names);
        let functions = by_function(&stacks, &names);
        let shown = functions
            .iter()
            .map(|(frames, count)| (text(frames, &names), count));
        let want = [("a", 5), ("b", 2), ("c", 3)];
        assert!(shown.eq(want.map(|(name, count)| (name.to_owned(), count))));
    }

    #[test]
    fn clones_of_a_function_are_the_same_function() {
        let mut names = Names::default();
        let mut before = folded(&[("a.llvm.12,b", 3), ("a,b.isra.0", 4)], &mut names);
        let mut after = folded(&[("a.llvm.345,b.cold", 14)], &mut names);
        let numbers = names.canonical();
        for side in [&mut before, &mut after] {
            side.rename(&numbers, &names);
        }
        let sides = sides([7, 14], [0.0, 0.0]);
        let changes = changes(&before, &after, sides, &names, Measure::Share);
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].counts, changes[0].growth()), ([7, 14], 0.0));
        assert_eq!(text(changes[0].frames, &names), "a.llvm.12;b");
    }

    #[test]
    fn empty_captures_can_be_compared() {
        let mut names = Names::default();
        let nothing = Folded::default();
        let one = folded(&[("a", 1)], &mut names);
        let sides = sides([0, 1], [0.0, 0.0]);
        assert!(changes(&nothing, &nothing, sides, &names, Measure::Share).is_empty());
        for (measure, growth) in [(Measure::Share, 100.0), (Measure::Rate, 0.0)] {
            let changes = changes(&nothing, &one, sides, &names, measure);
            assert_eq!(changes[0].growth(), growth);
        }
    }
}
