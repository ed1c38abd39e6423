// SPDX-License-Identifier: MIT OR Apache-2.0

//! What commands have in common that bring pairs of events together.

use super::{
    args::{Global, Input},
    folded::{access, fold, title},
};
use crate::{
    error::{Error, Result},
    events,
    filter::Selection,
    flame,
    folded::{self, Names},
    gaps::Gaps,
    notes::{Note, Notes},
    output::{self, Out},
    pairs::{By, EventName, KeyField, Rules, Trail},
    source::{Loaded, Source},
    tally::Tally,
    trace::Time,
};
use clap::Args;
use std::{io::Write, path::PathBuf};

/// That of captures that do not say it, in bytes: they are of x86.
const PAGE_SIZE: u64 = 4096;

/// In the help, events that are chosen are apart.
const PAIR: &str = "Events (without these, all pairs of the kernel's events that are known)";

/// One pair of events.
#[derive(Args, Debug)]
pub(super) struct PairArgs {
    /// Event that begins: system:event or event
    #[arg(long, help_heading = PAIR, value_name = "EVENT", value_parser = EventName::new)]
    #[arg(visible_alias = "alloc", requires = "to")]
    from: Option<EventName>,
    /// Event that ends what has begun
    #[arg(long, help_heading = PAIR, value_name = "EVENT", value_parser = EventName::new)]
    #[arg(visible_alias = "free", requires = "from")]
    to: Option<EventName>,
    /// Fields that are the same in both events: FIELD, or FIRST=LAST if their names differ; common_pid is
    /// the thread, common_tgid its process, common_cpu the CPU
    #[arg(long, help_heading = PAIR, value_name = "FIELD[,FIELD...]", value_delimiter = ',')]
    #[arg(value_parser = KeyField::new, requires = "from", default_value = "common_pid")]
    key: Vec<KeyField>,
}

impl PairArgs {
    /// The first event, the last one and the key, if they were chosen.
    pub(super) fn chosen(&self) -> Option<(EventName, EventName, &[KeyField])> {
        Some((self.from.clone()?, self.to.clone()?, &self.key))
    }
}

/// Where folded stacks go, if not into a table.
#[derive(Args, Debug)]
pub(super) struct DrawArgs {
    /// Draw a flame graph into this file, - for standard output
    #[arg(long, value_name = "SVG", conflicts_with = "folded")]
    flame: Option<PathBuf>,
    /// Write folded stacks into this file, which only its owner can read; - for standard output
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
}

impl DrawArgs {
    /// Whether there is to be no table.
    pub(super) fn is_given(&self) -> bool {
        self.flame.is_some() || self.folded.is_some()
    }

    /// Draws or folds what was added up.
    pub(super) fn write(
        &self,
        mut source: Source,
        mut loaded: Loaded,
        tally: &Tally,
        by: &By,
        subtitle: String,
        notes: &[Note],
    ) -> Result {
        let mut names = Names::default();
        let stacks = fold(tally, by.shown(), &mut source, &mut loaded, &mut names)?;
        let mut text = Vec::new();
        let path = match (&self.flame, &self.folded) {
            (Some(path), _) => {
                let look = flame::Look {
                    title: title(&source),
                    subtitle: Some(subtitle),
                    unit: tally.unit().of_folded().to_owned(),
                    ..flame::Look::default()
                };
                let drawn = flame::draw(&stacks, &names, &look, &mut text);
                // Why there is nothing to draw.
                drawn.inspect_err(|_| output::say_notes(notes))?;
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
        output::say_notes(notes);
        Ok(())
    }
}

/// What was read for pairs.
pub(super) struct Read<'a> {
    pub(super) source: Source,
    pub(super) loaded: Loaded,
    pub(super) notes: Notes,
    pub(super) gaps: Gaps,
    pub(super) trail: Trail<'a>,
}

/// Reads the events of pairs. `hint`: what to record.
pub(super) fn read<'a>(
    input: &Input,
    global: &Global,
    rules: &'a mut Rules,
    by: &By,
    hint: &str,
) -> Result<Read<'a>> {
    let (mut source, mut loaded) = input.open_some(global, true)?;
    // What ends something is wanted if its beginning is.
    let filter = std::mem::take(&mut loaded.filter);
    let hint = format!("\n  hint: stackmap record {hint}");
    if !source.has_ring() {
        let what = format!("it has no binary records, in which pairs are found{hint}");
        return Err(Error::input(source.name(), what));
    }
    source.require_one("pairs are found")?;
    let gaps = Gaps::of(source.ring()?.1)?;
    let mut notes = Notes::default();
    let page_size = loaded
        .manifest
        .as_ref()
        .and_then(|manifest| manifest.page_size);
    let mut trail = Trail::new(rules, by.clone(), page_size.unwrap_or(PAGE_SIZE));
    let mut selection = Selection::by(&filter, &loaded);
    events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
        let is_wanted = !trail.is_first(event) || selection.keeps(event, sides);
        trail.add(event, sides, &loaded, is_wanted);
        Ok(())
    })?;
    notes.filtered = selection.finish();
    if let Err(missing) = trail.is_complete(&hint) {
        return Err(Error::input(source.name(), missing));
    }
    if let Some(Time::Ticks(_)) = trail.end() {
        let what = "its clock does not count nanoseconds, so nothing has a length";
        return Err(Error::input(source.name(), what));
    }
    Ok(Read {
        source,
        loaded,
        notes,
        gaps,
        trail,
    })
}
