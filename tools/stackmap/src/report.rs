// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was recorded, for people: groups of events, and the hottest stacks of each.

use crate::{
    capture::Manifest,
    error::Result,
    notes::{count_of, Notes},
    output::{safe, Out, DIM, NUMBER, TITLE},
    source::Loaded,
    table::{percent, table, Column},
    tally::{By, Count, Group, Kernel, Key, Keys, Part, Tally},
    trace::UserRef,
};
use std::{collections::HashSet, io::Write};

/// What one line of the summary, and one section after it, is about.
pub struct Section<'a> {
    /// The group; or, by stack, its number.
    title: String,
    total: Count,
    nr_keys: usize,
    nr_stacks: usize,
    top: Vec<(Key, Count)>,
    /// By stack, the events that led there.
    events: Vec<(&'a str, Count)>,
}

/// The sections of a report, with the first `top` stacks of each group.
pub fn sections(tally: &Tally, by: By, top: usize) -> Vec<Section<'_>> {
    match by {
        By::Stack => by_stack(tally, top),
        _ => by_group(tally, top),
    }
}

/// The user stacks that are shown.
pub fn users(sections: &[Section<'_>]) -> HashSet<u32> {
    let keys = sections.iter().flat_map(|section| &section.top);
    let ids = keys.filter_map(|(key, _)| match key.user {
        UserRef::Id(id) => Some(id),
        _ => None,
    });
    ids.collect()
}

/// Writes the report. `depth`: frames of each stack; 0 is all.
pub fn write(
    out: &mut Out,
    tally: &Tally,
    sections: &[Section<'_>],
    by: By,
    loaded: &Loaded,
    notes: &Notes,
    depth: usize,
) -> Result {
    let total = tally.total();
    let nr_stacks = count_stacks(tally);
    write!(
        out,
        "{}, {}",
        notes.nr_events(total.events),
        count_of(nr_stacks, "different stack")
    )?;
    let user = notes.user;
    match user.is_any() {
        true => {
            write!(
                out,
                "; user stacks: {} bound, {} pending, {} lost, {} not kept, {} without",
                user.bound, user.pending, user.lost, user.not_kept, user.none
            )?;
            match user.unresolved() {
                0 => writeln!(out)?,
                unresolved => writeln!(out, ", {unresolved} of an id without a stack")?,
            }
        }
        false => writeln!(out)?,
    }
    if total.events == 0 {
        return Ok(());
    }
    if by != By::Stack {
        writeln!(out, "\n{}", summary(sections, by, total.events).trim_end())?;
    }
    for section in sections {
        write_section(out, section, tally, loaded, depth, total.events)?;
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
        .filter(|key| *key != Key::NONE)
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys.len() as u64
}

fn by_group(tally: &Tally, top: usize) -> Vec<Section<'_>> {
    let groups = tally.groups(top).into_iter();
    let section = |group: Group<'_>| Section {
        title: group.name.to_owned(),
        total: group.total,
        nr_keys: group.nr_keys,
        nr_stacks: group.nr_stacks,
        top: group.top,
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
            nr_keys: 1,
            nr_stacks: 1,
            top: Vec::new(),
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
        section.top = vec![(*key, section.total)];
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
        By::Pid => "comm-pid",
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
        vec![
            section.title.clone(),
            section.total.events.to_string(),
            format!("{:.1} %", percent(section.total.events, all)),
            section.nr_stacks.to_string(),
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
    depth: usize,
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
    for (key, count) in &section.top {
        let share = out.style(NUMBER, format!("{:5.1} %", percent(count.events, whole)));
        let (first, last) = times(count);
        let id = ids(*key);
        let when = match first == last {
            true => first,
            false => format!("{first} to {last}"),
        };
        let about = out.style(DIM, format!("{id}, {when}"));
        writeln!(out, " {share}  {:>6}  {about}", count.events)?;
        write_stacks(out, *key, tally.keys(), loaded, depth)?;
    }
    let hidden = section.nr_keys - section.top.len();
    if hidden > 0 {
        let shown: u64 = section.top.iter().map(|(_, count)| count.events).sum();
        let events = section.total.events.saturating_sub(shown);
        let more = format!(
            " ... {} more, with {} (--top)",
            count_of(hidden as u64, "stack"),
            count_of(events, "event")
        );
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
        Part::Text(text) | Part::Missing(text) => return (*text).to_owned(),
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
