// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long it takes from each first event to the last one.

use super::{left_out, First, Trail};
use crate::{
    error::Result,
    folded::Names,
    gaps::Gaps,
    notes::{count_of, Note},
    output::{safe, Out, DIM, TITLE},
    table::{percent, table, Column},
    tally::{Count, Tally},
    weight::{duration, Unit},
};
use std::{
    cmp::Reverse,
    collections::{hash_map::Entry, HashMap},
    io::Write,
};

/// How many characters the longest bar of a histogram has.
const BAR: u128 = 40;

/// The lengths of pairs.
pub struct Latencies {
    /// By stack of the first event.
    pub tally: Tally,
    /// By the number of the group, in nanoseconds, in order.
    times: HashMap<u32, Vec<u64>>,
    names: Names,
    notes: Vec<Note>,
}

/// Brings first and last events together. Pairs during which records are missing are not known: the last event may be one
/// of another first one.
pub fn latencies(mut trail: Trail<'_>, gaps: &Gaps) -> Latencies {
    let mut open: HashMap<(u32, Box<[u64]>), First> = HashMap::new();
    let mut tally = Tally::of(Unit::Nanos, std::mem::take(&mut trail.keys));
    let steps = trail.take_steps();
    let is_filtered = Trail::is_filtered(&steps);
    let mut times = HashMap::<u32, Vec<u64>>::new();
    let (mut nr_unknown, mut nr_replaced, mut nr_last) = (0, 0, 0);
    for step in steps {
        let entry = open.entry((step.pair, step.id));
        let first = match (step.first, entry) {
            (Some(first), Entry::Vacant(entry)) => {
                entry.insert(first);
                continue;
            }
            (Some(_), Entry::Occupied(_)) if step.goes_on => continue,
            (Some(first), Entry::Occupied(mut entry)) => {
                nr_replaced += u64::from(entry.insert(first).is_wanted);
                continue;
            }
            (None, Entry::Vacant(_)) => {
                nr_last += 1;
                continue;
            }
            (None, Entry::Occupied(entry)) => entry.remove(),
        };
        if !first.is_wanted {
            continue;
        }
        let since = first.time.value();
        if gaps.overlap(since, step.time) {
            nr_unknown += 1;
            continue;
        }
        let time = step.time.saturating_sub(since);
        times.entry(first.group).or_default().push(time);
        let count = Count::one(time, first.time);
        tally.add_to(trail.names.get(first.group).0, first.key, &count);
    }
    times.values_mut().for_each(|times| times.sort_unstable());
    let mut notes = trail.notes();
    if nr_unknown > 0 {
        let unknown = count_of(nr_unknown, "pair");
        notes.push(Note {
            warning: true,
            text: format!("not counted: {unknown}: records of that time are missing"),
        });
    }
    let nr_open = open.values().filter(|first| first.is_wanted).count() as u64;
    for (nr, what, why) in [
        (nr_open, "first event", "the last one is not in the trace"),
        (
            nr_replaced,
            "first event",
            "another one of the same key came before the last one",
        ),
        (
            // Of what begins, a filter may have left out all that these would be of.
            if is_filtered { 0 } else { nr_last },
            "last event",
            "the first one is not in the trace",
        ),
    ] {
        notes.extend(left_out(nr, what, why));
    }
    Latencies {
        tally,
        times,
        names: trail.names,
        notes,
    }
}

/// The least of `times`, which are in order, that `share` of them are not above.
fn quantile(times: &[u64], share: f64) -> u64 {
    let rank = (times.len() as f64 * share).ceil() as usize;
    let last = times.len().saturating_sub(1);
    times
        .get(rank.saturating_sub(1).min(last))
        .copied()
        .unwrap_or(0)
}

fn sum(times: &[u64]) -> u64 {
    times.iter().copied().fold(0, u64::saturating_add)
}

impl Latencies {
    /// What is said of the result.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The groups, those first that took longest in all.
    fn groups(&self) -> Vec<(&str, &[u64])> {
        let groups = self.times.iter();
        let mut groups: Vec<_> = groups
            .map(|(group, times)| (self.names.get(*group).0, &times[..]))
            .collect();
        groups.sort_by_key(|(name, times)| (Reverse(sum(times)), *name));
        groups
    }

    /// Writes a line for each group; with its histogram, if that is wanted.
    pub fn write(&self, out: &mut Out, title: &str, has_histograms: bool) -> Result {
        let columns = [
            Column::Text(title),
            Column::Number("pairs"),
            Column::Number("share"),
            Column::Number("average"),
            Column::Number("50 %"),
            Column::Number("90 %"),
            Column::Number("99 %"),
            Column::Number("longest"),
        ];
        let all = self.tally.total().weight;
        let groups = self.groups();
        let rows = groups.iter().map(|(name, times)| {
            let mut row = vec![
                (*name).to_owned(),
                times.len().to_string(),
                format!("{:.1} %", percent(sum(times), all)),
                duration(sum(times) / times.len().max(1) as u64),
            ];
            let shares = [0.5, 0.9, 0.99, 1.0];
            row.extend(shares.map(|share| duration(quantile(times, share))));
            row
        });
        writeln!(out, "\n{}", table(&columns, rows).trim_end())?;
        if has_histograms {
            for (name, times) in groups {
                let name = out.style(TITLE, safe(name).into_owned());
                writeln!(out, "\n{name}:")?;
                write_histogram(out, times)?;
            }
        }
        Ok(())
    }
}

/// Writes how many of the times, which are in order, are between two powers of two.
fn write_histogram(out: &mut Out, times: &[u64]) -> Result {
    let power = |time: u64| time.max(1).ilog2();
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return Ok(());
    };
    let mut counts = vec![0u64; (power(*last) - power(*first) + 1) as usize];
    for time in times {
        counts[(power(*time) - power(*first)) as usize] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(1);
    for (power, count) in (power(*first)..).zip(counts) {
        let from = if power == 0 { 0 } else { 1 << power };
        let until = 1u64.checked_shl(power + 1).map_or("".to_owned(), duration);
        let len = (u128::from(count) * BAR).div_ceil(u128::from(most)) as usize;
        let bar = match len {
            0 => String::new(),
            len => format!("  {}", out.style(DIM, "#".repeat(len))),
        };
        let from = duration(from);
        writeln!(out, " {from:>9} to {until:<9} {count:>8}{bar}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        folded::Kind,
        output::Access,
        pairs::{By, Rules, Step},
        tally::Key,
        trace::Time,
    };

    #[test]
    fn quantiles_are_times_that_there_were() {
        let times: Vec<u64> = (1..=200).collect();
        for (share, want) in [(0.0, 1), (0.5, 100), (0.9, 180), (0.99, 198), (1.0, 200)] {
            assert_eq!(quantile(&times, share), want, "{share}");
        }
        assert_eq!(quantile(&[7], 0.5), 7);
        assert_eq!(quantile(&[1, 2, 3], 0.5), 2);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    type Found = (Vec<(String, Vec<u64>)>, Vec<String>);

    /// The groups with their times, and the notes, of steps: when, the key, and the group of what begins.
    fn found(steps: &[(u64, u64, Option<&str>)], goes_on: bool, gaps: &Gaps) -> Found {
        let mut rules = Rules::latencies();
        let mut trail = Trail::new(&mut rules, By::Field("x".to_owned()), 4096);
        for (time, id, group) in steps {
            let first = group.map(|group| First {
                time: Time::Nanos(*time),
                group: trail.names.number(group, Kind::Group),
                key: Key::NONE,
                size: 1,
                is_wanted: group != "unwanted",
            });
            trail.steps.push(Step {
                time: *time,
                pair: 0,
                id: [*id].into(),
                len: 1,
                first,
                goes_on: goes_on && first.is_some(),
            });
        }
        let latencies = latencies(trail, gaps);
        let groups = latencies.groups().into_iter();
        let groups = groups.map(|(name, times)| (name.to_owned(), times.to_vec()));
        let notes = latencies.notes().iter();
        let notes = notes.map(|note| note.text.replace("not counted: ", ""));
        (groups.collect(), notes.collect())
    }

    fn groups(groups: &[(&str, &[u64])]) -> Vec<(String, Vec<u64>)> {
        let groups = groups.iter();
        groups
            .map(|(name, times)| ((*name).to_owned(), times.to_vec()))
            .collect()
    }

    #[test]
    fn what_has_the_same_key_is_a_pair() {
        let none = Gaps::default();
        // Those of two CPUs are not in order.
        let steps = [
            (30, 1, None),
            (10, 1, Some("a")),
            (12, 2, Some("b")),
            (13, 2, None),
            (40, 1, Some("a")),
            (45, 1, None),
        ];
        let want = groups(&[("a", &[5, 20]), ("b", &[1])]);
        assert_eq!(found(&steps, false, &none), (want, vec![]));
    }

    #[test]
    fn what_is_alone_is_not_counted() {
        let none = Gaps::default();
        let mut steps = vec![
            (1, 9, None),
            (2, 1, Some("a")),
            (5, 1, Some("a")),
            (6, 1, None),
            (7, 2, Some("a")),
        ];
        let notes = [
            "1 first event: the last one is not in the trace",
            "1 first event: another one of the same key came before the last one",
            "1 last event: the first one is not in the trace",
        ];
        let notes = notes.map(str::to_owned).to_vec();
        let (anew, on) = (groups(&[("a", &[1])]), groups(&[("a", &[4])]));
        assert_eq!(found(&steps, false, &none), (anew, notes.clone()));
        let without = vec![notes[0].clone(), notes[2].clone()];
        assert_eq!(found(&steps, true, &none), (on.clone(), without));
        // Of what is not wanted, and of what may be the end of it, nothing is said.
        steps.extend([
            (8, 3, Some("unwanted")),
            (9, 3, None),
            (10, 3, Some("unwanted")),
        ]);
        assert_eq!(found(&steps, true, &none), (on, vec![notes[0].clone()]));
    }

    #[test]
    fn groups_that_took_as_long_are_in_the_order_of_names() {
        const LONG: u64 = u64::MAX / 2 + 1;
        let mut steps = vec![(0, 1, Some("z")), (0, 2, Some("z")), (0, 3, Some("a"))];
        // Those of a map are in no order.
        let names = ["g", "f", "e", "d", "c", "b"];
        steps.extend((10..).zip(names).map(|(id, name)| (0, id, Some(name))));
        steps.extend((10..16).map(|id| (7, id, None)));
        steps.extend([1, 2, 3].map(|id| (LONG, id, None)));
        let mut want = vec![("z", &[LONG; 2][..]), ("a", &[LONG])];
        want.extend(names.iter().rev().map(|name| (*name, &[7][..])));
        let found = found(&steps, false, &Gaps::default());
        assert_eq!(found, (groups(&want), vec![]));
    }

    #[test]
    fn names_of_groups_do_not_control_the_terminal() {
        let mut times = HashMap::new();
        let mut names = Names::default();
        times.insert(names.number("a\x1b[2J", Kind::Group), vec![5]);
        let latencies = Latencies {
            tally: Tally::default(),
            times,
            names,
            notes: Vec::new(),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut out = Out::file(&path, Access::Umask).unwrap();
        latencies.write(&mut out, "by", true).unwrap();
        out.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("a\u{fffd}[2J").count(), 2, "{text:?}");
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn pairs_with_missing_records_are_not_known() {
        let gaps = Gaps::new(vec![(10, 20)]);
        let steps = [
            (5, 1, Some("a")),
            (15, 1, None),
            (12, 2, Some("a")),
            (25, 2, None),
            (21, 3, Some("a")),
            (29, 3, None),
        ];
        let notes = vec!["2 pairs: records of that time are missing".to_owned()];
        assert_eq!(found(&steps, false, &gaps), (groups(&[("a", &[8])]), notes));
    }

    #[test]
    fn histograms_have_all_powers_between() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut out = Out::file(&path, Access::Umask).unwrap();
        write_histogram(&mut out, &[0, 1, 1023, 1024, 5000, 5001, u64::MAX]).unwrap();
        out.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let rows: Vec<_> = text.lines().collect();
        assert_eq!(rows.len(), 64);
        let bar = "#".repeat(BAR as usize);
        let half = "#".repeat(BAR as usize / 2);
        assert_eq!(rows[0], format!("         0 to 2 ns             2  {bar}"));
        assert_eq!(rows[1], "      2 ns to 4 ns             0");
        assert_eq!(rows[9], format!("    512 ns to 1.0 us           1  {half}"));
        assert_eq!(
            rows[10],
            format!("    1.0 us to 2.0 us           1  {half}")
        );
        assert_eq!(rows[12], format!("    4.1 us to 8.2 us           2  {bar}"));
        assert!(rows[63].ends_with(&format!(" 1  {half}")), "{}", rows[63]);
    }
}
