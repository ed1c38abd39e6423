// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs for people: tables, histograms, stacks, and folded stacks for flame graphs.

use super::{count::Split, join::Waker, By, Pairs, Preset, INTERRUPT, PREEMPTED, UNKNOWN};
use crate::{
    error::Result,
    folded::{Folded, Kind, Known, Names},
    notes::count_of,
    output::{safe, Out, DIM, TITLE},
    report::{self, Detail, Look},
    source::Loaded,
    symbols::{frames, Frame},
    table::{percent, table, Column},
    tally::{self, Group, Key, Step, Tally},
    weight::{duration, Unit},
};
use std::{cmp::Reverse, collections::HashMap, io::Write};

/// How many characters the longest bar of a histogram has.
const BAR: u128 = 40;

/// The columns of waits, and those of other pairs.
const TITLES: [&str; 2] = [
    "waits,share,blocked,runnable,preempted,longest",
    "pairs,share,average,50 %,90 %,99 %,longest",
];

/// How much is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Stacks of each group.
    pub stacks: usize,
    /// Wakers of each stack.
    pub wakers: usize,
    /// Frames of each stack; 0: all.
    pub depth: usize,
    /// Whether histograms are shown.
    pub histogram: bool,
}

impl Pairs {
    /// What was counted.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// By what stacks are grouped.
    pub fn by(&self) -> tally::By {
        // All waits are in one group then.
        match self.by.is_stack() && !self.preset.is_waits() {
            true => tally::By::Stack,
            false => tally::By::Event,
        }
    }

    /// How much there is of all.
    pub fn about(&self) -> String {
        let total = self.tally.total();
        match self.preset {
            Preset::Waits { .. } => {
                let mut split = Split::default();
                self.waits.values().for_each(|wait| split.merge(wait));
                let (waits, time) = (count_of(total.events, "wait"), duration(total.weight));
                let [blocked, runnable, preempted] = split.times.map(duration);
                format!("{waits}, {time}: {blocked} blocked, {runnable} runnable, {preempted} preempted")
            }
            Preset::Latencies => {
                let pairs = count_of(total.events, "pair");
                format!("{pairs}, {}", duration(total.weight))
            }
            Preset::Leaks { .. } => {
                let all = count_of(self.nr_wanted, "allocation");
                let about = format!("{} of {all} outstanding", total.events);
                match self.tally.unit() {
                    Unit::Events => about,
                    unit => format!("{about}, {}", unit.text(total.weight)),
                }
            }
        }
    }

    /// What a flame graph shows.
    pub fn subtitle(&self) -> String {
        let total = self.tally.total();
        match self.preset {
            Preset::Waits { .. } => format!(
                "{} of waiting in {}: from \"--\" up, who woke the task up (orange: the kernel, green: modules, \
                 yellow: user space, blue: others)",
                duration(total.weight),
                count_of(total.events, "wait")
            ),
            _ => self.about(),
        }
    }

    /// Writes how much there is of all, a table of the groups, and `sections`.
    pub fn write(
        &self,
        out: &mut Out,
        sections: &[Group<'_>],
        loaded: &Loaded,
        limits: Limits,
    ) -> Result {
        let total = self.tally.total();
        let mut about = self.about();
        if let (Preset::Leaks { .. }, Some(end), Some(oldest)) =
            (self.preset, self.end, total.first)
        {
            let age = duration(end.value().saturating_sub(oldest.value()));
            about = format!("{about}; the oldest is {age} old");
        }
        writeln!(out, "{about}")?;
        if total.events == 0 {
            return Ok(());
        }
        let wakers = Wakers::new(self, loaded, limits);
        let mut look = Look {
            group: None,
            what: "pair",
            unit: self.tally.unit(),
            ages_at: None,
            depth: limits.depth,
            detail: None,
        };
        match self.preset {
            Preset::Waits { .. } => {
                look.what = "wait";
                look.detail = Some(&wakers);
                if !self.by.is_stack() {
                    self.write_table(out, false)?;
                }
            }
            Preset::Latencies => self.write_table(out, limits.histogram)?,
            Preset::Leaks { .. } => {
                look.what = "allocation";
                look.group = (!self.by.is_stack()).then(|| self.by.title());
                look.ages_at = self.end;
            }
        }
        report::write_sections(out, &self.tally, sections, loaded, look)
    }

    /// Writes a line for each group: how often, its share, and times; then the histograms, if they are wanted.
    fn write_table(&self, out: &mut Out, has_histograms: bool) -> Result {
        let name = |group: u32| self.names.get(group).0;
        let mut splits: HashMap<&str, Split> = HashMap::new();
        for (row, split) in &self.waits {
            splits.entry(name(row.group)).or_default().merge(split);
        }
        let times = self
            .times
            .iter()
            .map(|(group, times)| (name(*group), times));
        let times: HashMap<_, _> = times.collect();
        let (title, titles) = match (self.preset.is_waits(), &self.by) {
            (true, By::Key(tally::By::Pid)) => ("task", TITLES[0]),
            (true, by) => (by.title(), TITLES[0]),
            (false, by) => (by.title(), TITLES[1]),
        };
        let mut columns = vec![Column::Text(title)];
        columns.extend(titles.split(',').map(Column::Number));
        let all = self.tally.total().weight;
        let groups = self.tally.groups(0);
        let rows = groups.iter().map(|group| {
            let total = &group.total;
            let share = format!("{:.1} %", percent(total.weight, all));
            let mut row = vec![group.name.to_string(), total.events.to_string(), share];
            if let Some(split) = splits.get(&*group.name) {
                row.extend(split.times.map(duration));
                row.push(duration(split.longest));
            }
            if let Some(times) = times.get(&*group.name) {
                row.push(duration(total.weight / total.events.max(1)));
                let shares = [0.5, 0.9, 0.99, 1.0];
                row.extend(shares.map(|share| duration(quantile(times, share))));
            }
            row
        });
        writeln!(out, "\n{}", table(&columns, rows).trim_end())?;
        for group in groups.iter().filter(|_| has_histograms) {
            let title = out.style(TITLE, safe(&group.name).into_owned());
            writeln!(out, "\n{title}:")?;
            write_histogram(out, times.get(&*group.name).map_or(&[], |times| times))?;
        }
        Ok(())
    }

    /// Folds waits, by microseconds: the group, then the stack that a task waited in, and on top of it the one
    /// that woke it up, with the outermost frame last.
    pub fn fold_waits(&self, loaded: &Loaded, names: &mut Names) -> Folded {
        let mut folded = Folded::default();
        let mut known = Known::new(|frame: &Frame<'_>| frame.plain().to_string());
        let mut push = |key: Key, names: &mut Names, to: &mut Vec<u32>| {
            let mut push = |step: Step<'_>| known.push(&step, loaded, names, to);
            self.tally.keys().walk(key, loaded, &mut push);
        };
        let (mut frames, mut inner) = (Vec::new(), Vec::new());
        for (row, split) in &self.waits {
            frames.clear();
            if !self.by.is_stack() {
                frames.push(names.number(self.names.get(row.group).0, Kind::Group));
            }
            inner.clear();
            push(row.key, names, &mut inner);
            frames.extend(inner.drain(..).rev());
            let mut add = |frames: &[u32], end: Option<u32>, nanos: u64| {
                if nanos >= 1_000 {
                    folded.push(frames.iter().copied().chain(end), nanos / 1_000);
                }
            };
            let runnable = names.number("(runnable)", Kind::Group);
            add(&frames, Some(runnable), split.times[1]);
            let preempted = names.number("(preempted)", Kind::Group);
            add(&frames, Some(preempted), split.times[2]);
            let Waker { comm, key } = row.waker;
            if comm != UNKNOWN && comm != PREEMPTED {
                frames.push(names.number("--", Kind::Group));
                let from = frames.len();
                push(key, names, &mut frames);
                let mut waker = frames[from..].iter();
                let entry = waker.position(|frame| is_entry(names.get(*frame).0));
                if let (INTERRUPT, Some(entry)) = (comm, entry) {
                    frames.truncate(from + entry + 1);
                }
                frames.push(names.number(self.names.get(comm).0, Kind::Group));
            }
            add(&frames, None, split.times[0]);
        }
        folded.sort(names);
        folded
    }
}

/// Who ended the waits of each group in each stack.
struct Wakers<'a> {
    pairs: &'a Pairs,
    loaded: &'a Loaded,
    limits: Limits,
    rows: HashMap<(&'a str, Key), Vec<(Waker, Split)>>,
}

impl<'a> Wakers<'a> {
    fn new(pairs: &'a Pairs, loaded: &'a Loaded, limits: Limits) -> Self {
        let mut rows: HashMap<_, Vec<_>> = HashMap::new();
        for (row, split) in &pairs.waits {
            let group = pairs.names.get(row.group).0;
            rows.entry((group, row.key))
                .or_default()
                .push((row.waker, *split));
        }
        for rows in rows.values_mut() {
            rows.sort_unstable_by_key(|(waker, split)| (Reverse(split.total()), *waker));
        }
        Self {
            pairs,
            loaded,
            limits,
            rows,
        }
    }

    fn rows<'b>(&'b self, group: &'b str, key: Key) -> &'b [(Waker, Split)] {
        self.rows.get(&(group, key)).map_or(&[], |rows| rows)
    }

    /// How the waits in a stack ended, if the trace says it, with the waker's frames; those first that took longest.
    fn ended(&self, group: &str, key: Key) -> Vec<(Waker, Split, Vec<String>)> {
        let mut all: Vec<(Waker, Split, Vec<String>)> = Vec::new();
        let mut numbers = HashMap::new();
        for (waker, split) in self.rows(group, key) {
            let frames = match waker.comm {
                UNKNOWN => continue,
                PREEMPTED => Vec::new(),
                _ => self.frames(*waker),
            };
            let number = *numbers
                .entry((waker.comm, frames.clone()))
                .or_insert(all.len());
            match all.get_mut(number) {
                Some((_, sum, _)) => sum.merge(split),
                None => all.push((*waker, *split, frames)),
            }
        }
        all.sort_by_key(|(_, split, _)| Reverse(split.total()));
        all
    }

    /// The stack of a waker. Of an interrupt, without what it interrupted.
    fn frames(&self, waker: Waker) -> Vec<String> {
        let mut frames = Vec::new();
        let mut is_inside = true;
        let keys = self.pairs.tally.keys();
        keys.parts(waker.key, self.loaded, &mut |part| {
            if is_inside {
                frames.push(report::text(&part));
            }
            is_inside &= waker.comm != INTERRUPT || !is_entry(&frames[frames.len() - 1]);
        });
        frames
    }
}

impl Detail for Wakers<'_> {
    fn has_titles(&self) -> bool {
        !self.pairs.by.is_stack()
    }

    fn about(&self, group: &str, key: Key) -> String {
        let mut sum = Split::default();
        self.rows(group, key)
            .iter()
            .for_each(|(_, split)| sum.merge(split));
        format!(
            "{}, longest {}",
            count_of(sum.waits, "wait"),
            duration(sum.longest)
        )
    }

    fn write(&self, out: &mut Out, group: &str, key: Key) -> Result {
        let ended = self.ended(group, key);
        for (waker, split, frames) in ended.iter().take(self.limits.wakers) {
            let name = safe(self.pairs.names.get(waker.comm).0);
            let title = format!("{name}: {}", count_of(split.waits, "wait"));
            let times = split.times.map(duration);
            let title = match waker.comm {
                PREEMPTED => format!("{title}, {}", times[2]),
                _ => format!(
                    "woken up by {title}, {} blocked, {} runnable",
                    times[0], times[1]
                ),
            };
            writeln!(out, "                {}", out.style(DIM, title))?;
            report::write_frames(out, frames, self.limits.depth)?;
        }
        let hidden = ended.len().saturating_sub(self.limits.wakers);
        if hidden > 0 {
            let more = format!("... {} more (--wakers)", count_of(hidden as u64, "waker"));
            writeln!(out, "                {}", out.style(DIM, more))?;
        }
        Ok(())
    }
}

/// Whether a frame is the entry of an interrupt: what comes after it was interrupted.
fn is_entry(frame: &str) -> bool {
    frames::is_entry(frame.split(['+', ' ']).next().unwrap_or(frame))
}

/// The least of `times`, which are in order, that `share` of them are not above.
pub(super) fn quantile(times: &[u64], share: f64) -> u64 {
    let rank = (times.len() as f64 * share).ceil() as usize;
    let last = times.len().saturating_sub(1);
    let time = times.get(rank.saturating_sub(1).min(last));
    time.copied().unwrap_or(0)
}

/// Writes how many of the times, which are in order, are between two powers of two.
pub(super) fn write_histogram(out: &mut Out, times: &[u64]) -> Result {
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
