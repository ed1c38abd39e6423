// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was recorded, for people: groups of events, and the hottest stacks of each.

use crate::{
    capture::{Filtered, Manifest},
    error::Result,
    notes::{count_of, Notes},
    output::{safe, Out, DIM, NUMBER, TITLE},
    source::Loaded,
    table::{percent, table, Column},
    tally::{By, Count, Group, Kernel, Key, Keys, Part, Tally},
    trace::{Time, UserRef},
    weight::{duration, Unit},
};
use std::{collections::HashSet, io::Write};

/// What sections say of stacks in place of when their events were.
pub trait Detail {
    /// Whether sections have titles.
    fn has_titles(&self) -> bool;
    /// What stands before the ids of a stack of a section.
    fn about(&self, section: &str, key: Key) -> String;
    /// Writes what stands below its frames.
    fn write(&self, out: &mut Out, section: &str, key: Key) -> Result;
}

/// How a report is shown.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// What groups have in common; [`None`]: each is one stack.
    pub group: Option<&'a str>,
    /// What is counted, one of it.
    pub what: &'static str,
    /// What shares are of.
    pub unit: &'a Unit,
    /// The times of events are shown as their ages at this time.
    pub ages_at: Option<Time>,
    /// Frames of each stack; 0 is all.
    pub depth: usize,
    /// What else there is to say of stacks.
    pub detail: Option<&'a dyn Detail>,
}

impl By {
    /// What groups have in common, as the title of a column.
    pub(crate) fn group(self) -> Option<&'static str> {
        match self {
            By::Event => Some("event"),
            By::Comm => Some("comm"),
            By::Pid => Some("comm-pid"),
            By::Cpu => Some("cpu"),
            By::Stack => None,
        }
    }
}

/// The sections of a report, with the first `top` stacks of each group.
pub fn sections(tally: &Tally, by: By, top: usize) -> Vec<Group<'_>> {
    match by {
        By::Stack => by_stack(tally, top),
        _ => tally.groups(top),
    }
}

/// The user stacks that are shown.
pub fn users(sections: &[Group<'_>]) -> HashSet<u32> {
    let keys = sections.iter().flat_map(|section| &section.top);
    let ids = keys.filter_map(|(key, _)| match key.user {
        UserRef::Id(id) => Some(id),
        _ => None,
    });
    ids.collect()
}

/// Writes the report.
pub fn write(
    out: &mut Out,
    tally: &Tally,
    sections: &[Group<'_>],
    by: By,
    loaded: &Loaded,
    notes: &Notes,
    depth: usize,
) -> Result {
    write_total(out, tally, notes)?;
    if tally.is_empty() {
        return Ok(());
    }
    let look = Look {
        group: by.group(),
        what: "event",
        unit: tally.unit(),
        ages_at: None,
        depth,
        detail: None,
    };
    write_sections(out, tally, sections, loaded, look)
}

/// Writes how much there is of all.
pub fn write_total(out: &mut Out, tally: &Tally, notes: &Notes) -> Result {
    let total = tally.total();
    let nr_stacks = count_stacks(tally);
    write!(
        out,
        "{}, {}",
        notes.nr_events(total.events),
        count_of(nr_stacks, "different stack")
    )?;
    if *tally.unit() != Unit::Events {
        write!(out, ", {}", tally.unit().text(total.weight))?;
    }
    let user = notes.user;
    if user.is_any() {
        write!(
            out,
            "; user stacks: {} bound, {} pending, {} lost, {} not kept, {} without",
            user.bound, user.pending, user.lost, user.not_kept, user.none
        )?;
        if user.missing.sum() > 0 {
            write!(out, ", {} of an id without a stack", user.missing.sum())?;
        }
    }
    Ok(writeln!(out)?)
}

/// Writes a line for each section, and then the stacks of each.
pub fn write_sections(
    out: &mut Out,
    tally: &Tally,
    sections: &[Group<'_>],
    loaded: &Loaded,
    look: Look<'_>,
) -> Result {
    let all = tally.total().weight;
    if let Some(group) = look.group {
        writeln!(out, "\n{}", summary(sections, group, all, look).trim_end())?;
    }
    for section in sections {
        write_section(out, section, tally, loaded, all, look)?;
    }
    Ok(())
}

/// What the capture says about itself, in a line or two.
pub fn write_head(out: &mut Out, name: &str, manifest: Option<&Manifest>) -> Result {
    let name = out.style(TITLE, safe(name).into_owned());
    let Some(manifest) = manifest else {
        writeln!(out, "{name}: the running kernel")?;
        return Ok(());
    };
    let seconds = manifest.duration_ns as f64 / 1e9;
    writeln!(
        out,
        "{name}: Linux {} {}, {}, {seconds:.3} s",
        safe(&manifest.release),
        safe(&manifest.machine),
        count_of(manifest.cpus.len() as u64, "CPU"),
    )?;
    let recorded = &manifest.recorded;
    let mut what: Vec<_> = origin(manifest).collect();
    let pids = recorded.pids.iter().map(u32::to_string);
    for (title, text) in [
        ("events", recorded.events.join(" ")),
        ("functions", recorded.functions.join(" ")),
        ("filters", join(recorded.filters.iter().map(Filtered::text))),
        ("processes", join(pids)),
        ("CPUs", recorded.cpus.clone()),
        ("command", recorded.command.join(" ")),
        ("ended by", manifest.triggered.clone().unwrap_or_default()),
    ] {
        if !text.is_empty() {
            what.push(format!("{title}: {}", safe(&text)));
        }
    }
    Ok(writeln!(out, "{}", what.join("; "))?)
}

/// Where it was recorded, and what the user said of that.
pub(crate) fn origin(manifest: &Manifest) -> impl Iterator<Item = String> + use<'_> {
    let host = manifest.host.iter();
    let host = host.map(|host| format!("host: {}", safe(host)));
    let labels = manifest.labels.iter();
    let labels = join(labels.map(|(name, value)| format!("{name}={value}")));
    let labels = (!labels.is_empty()).then(|| format!("labels: {}", safe(&labels)));
    host.chain(labels)
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

fn count_stacks(tally: &Tally) -> u64 {
    let keys = tally.iter().map(|(_, key, _)| key);
    let mut keys: Vec<Key> = keys.filter(|key| *key != Key::NONE).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.len() as u64
}

/// The tally is by event and then by stack; the result is by stack and then by event.
fn by_stack(tally: &Tally, top: usize) -> Vec<Group<'_>> {
    let mut stacks: std::collections::HashMap<Key, Group<'_>> = Default::default();
    for (event, key, count) in tally.iter() {
        let section = stacks.entry(key).or_insert_with(|| Group {
            nr_keys: 1,
            nr_stacks: 1,
            ..Group::default()
        });
        section.total.merge(count);
        section.events.push((event, *count));
    }
    let mut sections: Vec<_> = stacks.into_iter().collect();
    sections.sort_by_key(|(key, section)| (std::cmp::Reverse(section.total.weight), *key));
    sections.truncate(top);
    for (number, (key, section)) in sections.iter_mut().enumerate() {
        section.name = format!("#{}", number + 1).into();
        section.top = vec![(*key, section.total)];
        section
            .events
            .sort_by(|a, b| b.1.weight.cmp(&a.1.weight).then(a.0.cmp(b.0)));
    }
    sections.into_iter().map(|(_, section)| section).collect()
}

fn summary(sections: &[Group<'_>], group: &str, all: u64, look: Look<'_>) -> String {
    let is_weighed = *look.unit != Unit::Events;
    let what = format!("{}s", look.what);
    let times = match look.ages_at {
        None => ["first", "last"],
        Some(_) => ["oldest", "youngest"],
    };
    let mut columns = vec![Column::Text(group), Column::Number(&what)];
    columns.extend(is_weighed.then(|| Column::Number(look.unit.title())));
    let rest = ["share", "stacks", times[0], times[1]];
    columns.extend(rest.map(Column::Number));
    let rows = sections.iter().map(|section| {
        let total = &section.total;
        let (first, last) = look.times(total);
        let mut row = vec![section.name.to_string(), total.events.to_string()];
        row.extend(is_weighed.then(|| look.unit.cell(total.weight)));
        row.extend([
            format!("{:.1} %", percent(total.weight, all)),
            section.nr_stacks.to_string(),
            first,
            last,
        ]);
        row
    });
    table(&columns, rows)
}

impl Look<'_> {
    /// When events were, the first and the last.
    fn times(&self, count: &Count) -> (String, String) {
        let text = |time: Time| match self.ages_at {
            None => time.to_string(),
            Some(end) => duration(end.value().saturating_sub(time.value())),
        };
        match count.first {
            Some(first) => (text(first), text(first.with(count.last))),
            None => ("-".to_owned(), "-".to_owned()),
        }
    }

    /// How often a stack was seen, its ids, and when it was.
    fn about(&self, key: Key, count: &Count) -> String {
        let (first, last) = self.times(count);
        let when = match first == last {
            true => first,
            false => format!("{first} to {last}"),
        };
        let events = match self.unit {
            Unit::Events => String::new(),
            Unit::Nanos => {
                let average = duration(count.weight / count.events.max(1));
                format!("{} of {average}, ", count_of(count.events, self.what))
            }
            _ => format!("{}, ", count_of(count.events, self.what)),
        };
        let age = if self.ages_at.is_some() { "age " } else { "" };
        format!("{events}{}, {age}{when}", ids(key))
    }

    /// How much, and how often if that is something else.
    fn amount(&self, count: &Count) -> String {
        let events = count_of(count.events, self.what);
        match self.unit {
            Unit::Events => events,
            unit => format!("{events}, {}", unit.text(count.weight)),
        }
    }
}

fn write_section(
    out: &mut Out,
    section: &Group<'_>,
    tally: &Tally,
    loaded: &Loaded,
    all: u64,
    look: Look<'_>,
) -> Result {
    let title = out.style(TITLE, safe(&section.name).into_owned());
    match section.events.is_empty() {
        true if look.detail.is_some_and(|detail| !detail.has_titles()) => writeln!(out)?,
        true => writeln!(out, "\n{title}: {}", look.amount(&section.total))?,
        false => {
            let events = section
                .events
                .iter()
                .map(|(event, count)| format!("{} {}", safe(event), count.events));
            let events: Vec<_> = events.collect();
            writeln!(out, "\n{title}: {}", events.join(", "))?;
        }
    }
    let whole = match section.events.is_empty() {
        true => section.total.weight,
        false => all,
    };
    for (key, count) in &section.top {
        let share = out.style(NUMBER, format!("{:5.1} %", percent(count.weight, whole)));
        let (about, width) = match look.detail {
            Some(detail) => {
                let about = detail.about(&section.name, *key);
                (format!("{about}, {}", ids(*key)), 8)
            }
            None => (look.about(*key, count), 6),
        };
        let about = out.style(DIM, about);
        let amount = look.unit.cell(count.weight);
        writeln!(out, " {share}  {amount:>width$}  {about}")?;
        write_stacks(out, *key, tally.keys(), loaded, look.depth)?;
        if let Some(detail) = look.detail {
            detail.write(out, &section.name, *key)?;
        }
    }
    let hidden = section.nr_keys - section.top.len();
    if hidden > 0 {
        let mut rest = Count {
            first: None,
            ..section.total
        };
        for (_, count) in &section.top {
            rest.events = rest.events.saturating_sub(count.events);
            rest.weight = rest.weight.saturating_sub(count.weight);
        }
        let rest = match look.detail {
            Some(_) => look.unit.text(rest.weight),
            None => look.amount(&rest),
        };
        let stacks = count_of(hidden as u64, "stack");
        let more = format!(" ... {stacks} more, with {rest} (--top)");
        writeln!(out, "{}", out.style(DIM, more))?;
    }
    Ok(())
}

/// What a key is.
pub(crate) fn ids(key: Key) -> String {
    let kernel = match key.kernel {
        Kernel::Id(id) => format!("stack_id {id}"),
        Kernel::Whole(_) => "full stack".to_owned(),
        Kernel::None => "no stack".to_owned(),
    };
    match (key.user, key.kernel) {
        (UserRef::Id(user), Kernel::None) => format!("user_stack_id {user}"),
        (UserRef::Id(user), _) => format!("{kernel}, user_stack_id {user}"),
        _ => kernel,
    }
}

/// Writes the first `depth` frames of each of the stacks that a key stands for; 0 is all.
pub(crate) fn write_stacks(
    out: &mut Out,
    key: Key,
    keys: &Keys,
    loaded: &Loaded,
    depth: usize,
) -> Result {
    let (mut kernel, mut user) = (Vec::new(), Vec::new());
    keys.parts(key, loaded, &mut |part| match part {
        Part::User(_) => user.push(text(&part)),
        Part::Missing(_) if !kernel.is_empty() => user.push(text(&part)),
        _ => kernel.push(text(&part)),
    });
    write_frames(out, &kernel, depth)?;
    if !user.is_empty() {
        let title = out.style(DIM, format!("user stack{}:", end_of(key, loaded)));
        writeln!(out, "                  {title}")?;
        write_frames(out, &user, depth)?;
    }
    Ok(())
}

/// Writes the first `depth` frames of a stack; 0 is all.
pub(crate) fn write_frames(out: &mut Out, frames: &[String], depth: usize) -> Result {
    let shown = match depth {
        0 => frames.len(),
        depth => depth.min(frames.len()),
    };
    for frame in &frames[..shown] {
        writeln!(out, "                  {}", safe(frame))?;
    }
    if shown < frames.len() {
        let more = out.style(DIM, format!("... {} more", frames.len() - shown));
        writeln!(out, "                  {more}")?;
    }
    Ok(())
}

/// A frame with all that is known of it.
pub fn text(part: &Part<'_>) -> String {
    let (text, source) = match part {
        Part::Kernel(frame) => (frame.to_string(), frame.source),
        Part::User(frame) => (frame.to_string(), frame.source()),
        Part::Missing(text) => return (*text).to_owned(),
    };
    match source {
        Some(source) => format!("{text} ({source})"),
        None => text,
    }
}

/// How the user stack of a key ends, for its title.
fn end_of(key: Key, loaded: &Loaded) -> String {
    let UserRef::Id(id) = key.user else {
        return String::new();
    };
    match loaded.user_stack(id) {
        Some(stack) => format!(", {}", loaded.user.end(stack.ips)),
        None => String::new(),
    }
}
