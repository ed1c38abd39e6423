// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was recorded, for people: groups of events, and the hottest stacks of each.

use crate::{
    capture::Manifest,
    error::Result,
    notes::count_of,
    output::{safe, Out, DIM, NUMBER, TITLE},
    source::Loaded,
    table::{percent, table, Column},
    tally::{By, Count, Group, Key, Style, Tally},
};
use std::io::Write;

/// How much of it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Stacks of each group.
    pub top: usize,
    /// Frames of each stack; 0 is all.
    pub depth: usize,
}

/// What one line of the summary, and one section after it, is about.
struct Section<'a> {
    /// The group; or, by stack, its number.
    title: String,
    total: Count,
    stacks: Vec<(Key, Count)>,
    /// By stack, the events that led there.
    events: Vec<(&'a str, Count)>,
}

/// Writes the report.
pub fn write(out: &mut Out, tally: &Tally, by: By, loaded: &Loaded, limits: Limits) -> Result {
    let total = tally.total();
    let nr_stacks = count_stacks(tally);
    writeln!(
        out,
        "{}, {}",
        count_of(total.events, "event"),
        count_of(nr_stacks, "different stack")
    )?;
    if total.events == 0 {
        return Ok(());
    }
    let sections = match by {
        By::Stack => by_stack(tally, limits.top),
        _ => by_group(tally),
    };
    if by != By::Stack {
        writeln!(out, "\n{}", summary(&sections, by, total.events).trim_end())?;
    }
    for section in &sections {
        write_section(out, section, tally, loaded, limits, total.events)?;
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
    let mut what = Vec::new();
    for (title, words) in [
        ("events", &recorded.events),
        ("functions", &recorded.functions),
        ("command", &recorded.command),
    ] {
        if !words.is_empty() {
            what.push(format!("{title}: {}", safe(&words.join(" "))));
        }
    }
    Ok(writeln!(out, "{}", what.join("; "))?)
}

fn count_stacks(tally: &Tally) -> u64 {
    let mut keys: Vec<Key> = tally
        .iter()
        .map(|(_, key, _)| key)
        .filter(|key| *key != Key::None)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys.len() as u64
}

fn by_group(tally: &Tally) -> Vec<Section<'_>> {
    let groups = tally.groups().into_iter();
    let section = |group: Group<'_>| Section {
        title: group.name.to_owned(),
        total: group.total,
        stacks: group.stacks,
        events: Vec::new(),
    };
    groups.map(section).collect()
}

/// The tally is by event and then by stack; the result is by stack and then by event.
fn by_stack(tally: &Tally, top: usize) -> Vec<Section<'_>> {
    let mut stacks: std::collections::HashMap<Key, Section<'_>> = Default::default();
    for (event, key, count) in tally.iter() {
        let section = stacks.entry(key).or_insert_with(|| Section {
            title: String::new(),
            total: Count::default(),
            stacks: Vec::new(),
            events: Vec::new(),
        });
        section.total.merge(count);
        section.events.push((event, *count));
    }
    let mut sections: Vec<_> = stacks.into_iter().collect();
    sections.sort_by_key(|(key, section)| (std::cmp::Reverse(section.total.events), *key));
    sections.truncate(top);
    for (number, (key, section)) in sections.iter_mut().enumerate() {
        section.title = format!("#{}", number + 1);
        section.stacks = vec![(*key, section.total)];
        section
            .events
            .sort_by(|a, b| b.1.events.cmp(&a.1.events).then(a.0.cmp(b.0)));
    }
    sections.into_iter().map(|(_, section)| section).collect()
}

fn summary(sections: &[Section<'_>], by: By, all: u64) -> String {
    let title = match by {
        By::Event | By::Stack => "event",
        By::Comm => "comm",
        By::Cpu => "cpu",
    };
    let columns = [
        Column::Text(title),
        Column::Number("events"),
        Column::Number("share"),
        Column::Number("stacks"),
        Column::Number("first"),
        Column::Number("last"),
    ];
    let rows = sections.iter().map(|section| {
        let (first, last) = times(&section.total);
        let stacks = section.stacks.iter().filter(|(key, _)| *key != Key::None);
        vec![
            section.title.clone(),
            section.total.events.to_string(),
            format!("{:.1} %", percent(section.total.events, all)),
            stacks.count().to_string(),
            first,
            last,
        ]
    });
    table(&columns, rows)
}

fn times(count: &Count) -> (String, String) {
    match count.span {
        Some((first, last)) => (first.to_string(), last.to_string()),
        None => ("-".to_owned(), "-".to_owned()),
    }
}

fn write_section(
    out: &mut Out,
    section: &Section<'_>,
    tally: &Tally,
    loaded: &Loaded,
    limits: Limits,
    all: u64,
) -> Result {
    let title = out.style(TITLE, safe(&section.title).into_owned());
    match section.events.is_empty() {
        true => writeln!(
            out,
            "\n{title}: {}",
            count_of(section.total.events, "event")
        )?,
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
        true => section.total.events,
        false => all,
    };
    for (key, count) in section.stacks.iter().take(limits.top) {
        let share = out.style(NUMBER, format!("{:5.1} %", percent(count.events, whole)));
        let (first, last) = times(count);
        let id = match key {
            Key::Id(id) => format!("stack_id {id}"),
            Key::Whole(_) => "full stack".to_owned(),
            Key::None => "no stack".to_owned(),
        };
        let when = match first == last {
            true => first,
            false => format!("{first} to {last}"),
        };
        let about = out.style(DIM, format!("{id}, {when}"));
        writeln!(out, " {share}  {:>6}  {about}", count.events)?;
        let mut nr = 0;
        let mut frames = Vec::new();
        tally.frames(*key, loaded, Style::Full, &mut |frame| {
            nr += 1;
            if limits.depth == 0 || nr <= limits.depth {
                frames.push(frame);
            }
        });
        for frame in &frames {
            writeln!(out, "                  {}", safe(frame))?;
        }
        if nr > frames.len() {
            let more = out.style(DIM, format!("... {} more", nr - frames.len()));
            writeln!(out, "                  {more}")?;
        }
    }
    let hidden = section.stacks.len().saturating_sub(limits.top);
    if hidden > 0 {
        let events: u64 = section.stacks[limits.top..]
            .iter()
            .map(|(_, count)| count.events)
            .sum();
        let more = format!(
            " ... {} more, with {} (--top)",
            count_of(hidden as u64, "stack"),
            count_of(events, "event")
        );
        writeln!(out, "{}", out.style(DIM, more))?;
    }
    Ok(())
}
