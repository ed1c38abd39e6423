// SPDX-License-Identifier: MIT OR Apache-2.0

//! What commands have in common that bring pairs of events together.

use super::{
    args::{Global, Input},
    folded::{access, fold, title},
};
use crate::{
    error::{Error, Result},
    events,
    filter::{number, Selection},
    flame,
    folded::{self, Names},
    gaps::Gaps,
    notes::Notes,
    output::{self, Out},
    pairs::{self, KeyField, Limits, Pairs, Preset},
    report,
    source::{Loaded, Source},
    trace::{Event, Sides, StackRef},
};
use clap::Args;
use std::{io::Write, path::PathBuf};

/// In the help, events that are chosen are apart.
const PAIR: &str = "Events (without these, all pairs of the kernel's events that are known)";

/// One pair of events.
#[derive(Args, Debug)]
pub(super) struct PairArgs {
    /// Event that begins: system:event or event
    #[arg(long, help_heading = PAIR, value_name = "EVENT", value_parser = pairs::event_name, requires = "to")]
    from: Option<String>,
    /// Event that ends what has begun
    #[arg(long, help_heading = PAIR, value_name = "EVENT", value_parser = pairs::event_name, requires = "from")]
    to: Option<String>,
    /// Fields that are the same in both events: FIELD, or FIRST=LAST if their names differ; common_pid is
    /// the thread, common_tgid its process, common_cpu the CPU
    #[arg(long, help_heading = PAIR, value_name = "FIELD[,FIELD...]", value_delimiter = ',')]
    #[arg(value_parser = pairs::key_field, requires = "from", default_value = "common_pid")]
    key: Vec<KeyField>,
}

impl PairArgs {
    /// The first event, the last one and the key, if they were chosen.
    pub(super) fn chosen(&self) -> Option<(String, String, &[KeyField])> {
        Some((self.from.clone()?, self.to.clone()?, &self.key))
    }

    /// Returns the names of the first event and the last one, if they were chosen.
    pub(super) fn events(&self) -> Option<[String; 2]> {
        Some([self.from.clone()?, self.to.clone()?])
    }
}

/// How the result is shown.
#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    /// Number of frames to show of each stack; 0 shows all
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 0)]
    pub(super) depth: usize,
    /// Draw a flame graph by time (leaks: by bytes) into this file, - for standard output
    #[arg(long, value_name = "SVG", conflicts_with = "folded")]
    flame: Option<PathBuf>,
    /// Write folded stacks with microseconds (leaks: bytes) into this file, which only its owner can read; - for standard
    /// output
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
}

/// Returns the options of record for the events of pairs.
fn events_of(pairs: &Pairs) -> String {
    if let Some([from, to]) = &pairs.chosen {
        return format!("-e {from} -e {to}");
    }
    let events = match pairs.preset() {
        Preset::Waits { .. } => "-e sched:sched_switch -e sched:sched_waking",
        Preset::Latencies => {
            "-e block:block_rq_issue -e block:block_rq_complete, or -e 'syscalls:sys_*_read'"
        }
        Preset::Leaks { .. } => "-e kmem:kmalloc -e kmem:kfree -e 'kmem:kmem_cache_*'",
    };
    events.to_owned()
}

/// Fills `pairs` from what is to be read, and shows them.
pub(super) fn run(
    input: &Input,
    global: &Global,
    mut pairs: Pairs,
    limits: Limits,
    show: &ShowArgs,
) -> Result {
    let (mut source, mut loaded) = input.open(true)?;
    let mut notes = Notes::default();
    read(&mut source, &mut loaded, &mut notes, &mut pairs)?;
    notes.require_events(&source.name(), &loaded)?;
    if show.flame.is_some() || show.folded.is_some() {
        return show.draw(&pairs, source, loaded, &notes);
    }
    let sections = report::sections(pairs.tally(), pairs.by(), limits.stacks);
    let mut users = pairs.users();
    users.extend(report::users(&sections));
    loaded.read_users(&mut source, &users)?;
    let mut out = Out::paged(global.pager());
    report::write_head(&mut out, &source.name(), loaded.manifest.as_ref())?;
    pairs.write(&mut out, &sections, &loaded, limits)?;
    let mut lines = notes.lines(Some(&loaded));
    lines.extend(pairs.notes());
    out.notes(&lines)?;
    out.finish()
}

/// Reads the events of pairs, and joins them.
fn read(source: &mut Source, loaded: &mut Loaded, notes: &mut Notes, pairs: &mut Pairs) -> Result {
    // What ends something is wanted if its beginning is.
    let filter = std::mem::take(&mut loaded.filter);
    let hint = format!("\n  hint: stackmap record {}", events_of(pairs));
    let (_, pages, _) = source.ring()?;
    let gaps = Gaps::of(pages)?;
    let manifest = loaded.manifest.as_ref();
    if let Some(page_size) = manifest.and_then(|manifest| manifest.page_size) {
        pairs.page_size = page_size;
    }
    let mut selection = Selection::by(&filter, loaded);
    events::for_each(source, loaded, notes, &mut |event, sides| {
        let keeps = &mut |event: &Event| selection.keeps(event, sides);
        pairs.add(event, sides, loaded, keeps);
        Ok(())
    })?;
    let begin = loaded
        .manifest
        .as_ref()
        .and_then(|manifest| manifest.clocks.begin);
    if let (true, Some(begin), Some(capture)) = (pairs.preset().is_waits(), begin, source.capture())
    {
        let sleepers = capture.sleepers()?;
        let (trace, pages, _) = source.ring()?;
        let binds = trace.binds(pages, loaded.manifest.as_ref())?;
        for sleeper in sleepers {
            let kernel = match sleeper.stack.is_empty() {
                true => StackRef::None,
                false => StackRef::Whole(&sleeper.stack),
            };
            let user = binds.user(sleeper.pid as u32, begin.trace, sleeper.cookie());
            let sides = loaded.shown.of(Sides { kernel, user });
            let keeps = &mut |event: &Event| selection.keeps(event, sides);
            let switch = sleeper.switch(&trace, begin.trace);
            pairs.add_sleeper(&switch, sleeper.slept_on, sides, loaded, keeps);
        }
    }
    notes.own = selection.own;
    notes.filtered = selection.finish();
    let complete = pairs.is_complete(&hint);
    complete.map_err(|missing| Error::input(source.name(), missing))?;
    pairs.join(&gaps);
    Ok(())
}

impl ShowArgs {
    /// Draws or folds what was pairs.
    fn draw(&self, pairs: &Pairs, mut source: Source, mut loaded: Loaded, notes: &Notes) -> Result {
        let mut names = Names::default();
        let tally = pairs.tally();
        let stacks = match pairs.preset().is_waits() {
            true => {
                loaded.read_users(&mut source, &pairs.users())?;
                pairs.fold_waits(&loaded, &mut names)
            }
            false => fold(tally, pairs.by(), &mut source, &mut loaded, &mut names)?,
        };
        let mut lines = notes.lines(Some(&loaded));
        lines.extend(pairs.notes());
        let mut text = Vec::new();
        let path = match (&self.flame, &self.folded) {
            (Some(path), _) => {
                let look = flame::Look {
                    title: title(&source),
                    subtitle: Some(pairs.subtitle()),
                    unit: tally.unit().of_folded().to_owned(),
                    ..flame::Look::default()
                };
                let drawn = flame::draw(&stacks, &names, &look, &mut text);
                // Why there is nothing to draw.
                drawn.inspect_err(|_| output::say_notes(&lines))?;
                path
            }
            (None, Some(path)) => {
                folded::write(&stacks, &names, &mut text)?;
                path
            }
            (None, None) => return Ok(()),
        };
        // Folded stacks have the addresses of frames without a name.
        let mut out = Out::file(path, access(self.folded.is_some()))?;
        out.write_all(&text)?;
        out.finish()?;
        output::say_notes(&lines);
        Ok(())
    }
}
