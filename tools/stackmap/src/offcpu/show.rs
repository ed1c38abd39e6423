// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits for people: tables and stacks, and folded stacks for flame graphs.

use super::{By, Cause, Left, Stack, Sum, Waits, Waker};
use crate::{
    error::Result,
    folded::{kind_of_text, Folded, Kind, Known, Names},
    notes::{count_of, Note},
    output::{safe, Out, DIM, NUMBER, TITLE},
    report,
    source::Loaded,
    symbols::{frames, Frame},
    table::{percent, table, Column},
    tally::{Key, Step},
    trace::UserRef,
    weight::duration,
};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    io::Write,
};

/// How much of each group is shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Stacks of each group.
    pub stacks: usize,
    /// Wakers of each stack.
    pub wakers: usize,
    /// Frames of each stack; 0: all.
    pub depth: usize,
}

/// The user stacks that waits have.
pub fn users(waits: &Waits) -> HashSet<u32> {
    let keys = waits.rows.keys().flat_map(|row| {
        let waker = match row.cause {
            Cause::Blocked(Some(waker)) => Some(waker.key),
            _ => None,
        };
        [Some(row.key), waker]
    });
    let ids = keys.flatten().filter_map(|key| match key.user {
        UserRef::Id(id) => Some(id),
        _ => None,
    });
    ids.collect()
}

/// Writes a table of the groups, and the stacks of each.
pub fn write(out: &mut Out, waits: &Waits, loaded: &Loaded, limits: Limits) -> Result {
    let total = waits.total();
    writeln!(
        out,
        "{}, {}: {} blocked, {} runnable, {} preempted",
        count_of(total.waits, "wait"),
        duration(total.total()),
        duration(total.blocked),
        duration(total.runnable),
        duration(total.preempted),
    )?;
    let groups = waits.groups();
    let is_grouped = waits.by != By::Stack;
    if groups.is_empty() {
        return Ok(());
    }
    if is_grouped {
        let title = match waits.by {
            By::Comm | By::Stack => "comm",
            By::Pid => "task",
            By::Waker => "waker",
        };
        let rows = groups
            .iter()
            .map(|group| row(group.name, &group.sum, total.total()));
        writeln!(out, "\n{}", table(&columns(title), rows).trim_end())?;
    }
    for group in &groups {
        if is_grouped {
            let name = out.style(TITLE, safe(group.name).into_owned());
            let waits = count_of(group.sum.waits, "wait");
            writeln!(out, "\n{name}: {waits}, {}", duration(group.sum.total()))?;
        } else {
            writeln!(out)?;
        }
        for stack in group.stacks.iter().take(limits.stacks) {
            write_stack(out, stack, group.sum.total(), waits, loaded, limits)?;
        }
        let hidden = group.stacks.iter().skip(limits.stacks);
        let (mut nr, mut time) = (0, 0u64);
        for stack in hidden {
            nr += 1;
            time = time.saturating_add(stack.sum.total());
        }
        if nr > 0 {
            let more = format!(
                " ... {} more, with {} (--top)",
                count_of(nr, "stack"),
                duration(time)
            );
            writeln!(out, "{}", out.style(DIM, more))?;
        }
    }
    Ok(())
}

fn columns(title: &'static str) -> [Column<'static>; 7] {
    [
        Column::Text(title),
        Column::Number("waits"),
        Column::Number("share"),
        Column::Number("blocked"),
        Column::Number("runnable"),
        Column::Number("preempted"),
        Column::Number("longest"),
    ]
}

fn row(name: &str, sum: &Sum, all: u64) -> Vec<String> {
    vec![
        name.to_owned(),
        sum.waits.to_string(),
        format!("{:.1} %", percent(sum.total(), all)),
        duration(sum.blocked),
        duration(sum.runnable),
        duration(sum.preempted),
        duration(sum.longest),
    ]
}

fn write_stack(
    out: &mut Out,
    stack: &Stack,
    whole: u64,
    waits: &Waits,
    loaded: &Loaded,
    limits: Limits,
) -> Result {
    let sum = &stack.sum;
    let share = out.style(NUMBER, format!("{:5.1} %", percent(sum.total(), whole)));
    let about = format!(
        "{}, longest {}, {}",
        count_of(sum.waits, "wait"),
        duration(sum.longest),
        report::ids(stack.key)
    );
    let about = out.style(DIM, about);
    writeln!(out, " {share}  {:>8}  {about}", duration(sum.total()))?;
    report::write_stacks(out, stack.key, &waits.keys, loaded, limits.depth)?;
    let wakers = wakers(stack, waits, loaded);
    for waker in wakers.iter().take(limits.wakers) {
        let name = safe(waits.waker(waker.cause));
        let sum = &waker.sum;
        let mut title = format!("{name}: {}", count_of(sum.waits, "wait"));
        match waker.cause {
            Cause::Blocked(_) => {
                let times = [sum.blocked, sum.runnable].map(duration);
                title = format!(
                    "woken up by {title}, {} blocked, {} runnable",
                    times[0], times[1]
                );
            }
            Cause::Preempted => title = format!("{title}, {}", duration(sum.preempted)),
        }
        writeln!(out, "                {}", out.style(DIM, title))?;
        report::write_frames(out, &waker.frames, limits.depth)?;
    }
    let hidden = wakers.len().saturating_sub(limits.wakers);
    if hidden > 0 {
        let more = format!("... {} more (--wakers)", count_of(hidden as u64, "waker"));
        writeln!(out, "                {}", out.style(DIM, more))?;
    }
    Ok(())
}

/// How waits in a stack ended.
struct Ended {
    cause: Cause,
    sum: Sum,
    /// The stack of the waker. Of an interrupt, without what it interrupted.
    frames: Vec<String>,
}

/// How the waits in a stack ended, if the trace says it; those first that took longest.
fn wakers(stack: &Stack, waits: &Waits, loaded: &Loaded) -> Vec<Ended> {
    let mut all: Vec<Ended> = Vec::new();
    let mut numbers: HashMap<(Option<u32>, Vec<String>), usize> = HashMap::new();
    for (cause, sum) in &stack.causes {
        let (comm, frames) = match cause {
            Cause::Blocked(None) => continue,
            Cause::Blocked(Some(waker)) => (waker.comm, frames_of(waker, waits, loaded)),
            Cause::Preempted => (None, Vec::new()),
        };
        let number = *numbers.entry((comm, frames.clone())).or_insert(all.len());
        match all.get_mut(number) {
            Some(ended) => ended.sum.merge(sum),
            None => all.push(Ended {
                cause: *cause,
                sum: *sum,
                frames,
            }),
        }
    }
    all.sort_by_key(|ended| Reverse(ended.sum.total()));
    all
}

fn frames_of(waker: &Waker, waits: &Waits, loaded: &Loaded) -> Vec<String> {
    let mut frames = Vec::new();
    let mut is_inside = true;
    waits.keys.parts(waker.key, loaded, &mut |part| {
        if is_inside {
            frames.push(report::text(&part));
        }
        is_inside &= waker.comm.is_some() || !is_entry(&frames[frames.len() - 1]);
    });
    frames
}

/// Whether a frame is the entry of an interrupt: behind it is what was interrupted.
fn is_entry(frame: &str) -> bool {
    frames::is_entry(frame.split(['+', ' ']).next().unwrap_or(frame))
}

/// What is not in the sums, and why.
pub(super) fn notes(waits: &Waits) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut note = |warning, left: Left, why: &str| {
        if left.waits > 0 {
            let waits = count_of(left.waits, "wait");
            let text = format!("{waits} of {} not counted: {why}", duration(left.time));
            notes.push(Note { warning, text });
        }
    };
    note(true, waits.unknown, "records of that time are missing");
    let why = "the tasks still waited when the trace ended (--unfinished counts them)";
    note(false, waits.unfinished, why);
    if !waits.has_wakings {
        notes.push(Note {
            warning: false,
            text: format!(
                "no sched:{} in the trace: it does not say who woke tasks up, and when",
                super::WAKING
            ),
        });
    }
    notes
}

/// Folds the waits, by microseconds: the group, then the stack that a task waited in, and on top of it the one
/// that woke it up, with the outermost frame last.
pub fn fold(waits: &Waits, loaded: &Loaded, names: &mut Names) -> Folded {
    let mut folded = Folded::default();
    let mut known = Known::new(|frame: &Frame<'_>| frame.plain().to_string());
    let mut push = |key: Key, names: &mut Names, to: &mut Vec<u32>| {
        waits.keys.walk(key, loaded, &mut |step| match step {
            Step::Text(text) => to.push(names.number(text, kind_of_text(text))),
            step => known.push(&step, loaded, names, to),
        });
    };
    let (mut frames, mut inner) = (Vec::new(), Vec::new());
    for (row, sum) in &waits.rows {
        frames.clear();
        if waits.by != By::Stack {
            frames.push(names.number(waits.name(row.group), Kind::Group));
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
        add(&frames, Some(runnable), sum.runnable);
        let preempted = names.number("(preempted)", Kind::Group);
        add(&frames, Some(preempted), sum.preempted);
        if let Cause::Blocked(Some(waker)) = row.cause {
            frames.push(names.number("--", Kind::Group));
            let from = frames.len();
            push(waker.key, names, &mut frames);
            let entry = frames[from..]
                .iter()
                .position(|frame| is_entry(names.get(*frame).0));
            if let (None, Some(entry)) = (waker.comm, entry) {
                frames.truncate(from + entry + 1);
            }
            frames.push(names.number(waits.waker(row.cause), Kind::Group));
        }
        add(&frames, None, sum.blocked);
    }
    folded.sort(names);
    folded
}

/// What a flame graph shows.
pub fn subtitle(waits: &Waits) -> String {
    let total = waits.total();
    format!(
        "{} of waiting in {}: from \"--\" up, who woke the task up (orange: the kernel, green: modules, yellow: \
         user space, blue: others)",
        duration(total.total()),
        count_of(total.waits, "wait")
    )
}
