// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap folded` and `stackmap flame`: stacks for flame graphs, and the graphs themselves.

use super::args::{Input, WeightArgs};
use crate::{
    error::Result,
    events, flame,
    folded::{self, Folded as Stacks, Names},
    notes::Notes,
    output::{self, Access, Out, Progress},
    source::{Loaded, Source},
    tally::{By, Tally},
    weight::Unit,
};
use clap::Args;
use std::{
    io::Write,
    path::{Path, PathBuf},
};

const FOLDED_EXAMPLES: &str = "\
examples:
  stackmap folded | flamegraph.pl > out.svg
  stackmap folded --by comm a.data > a.folded     for speedscope or ui.perfetto.dev
  stackmap folded --event 'sys_enter_*'           system calls only";

/// Print stacks in folded form, one line each
#[derive(Args, Debug)]
#[command(before_help = FOLDED_EXAMPLES)]
pub(super) struct Folded {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    by: ByArgs,
}

/// How stacks are counted.
#[derive(Args, Debug)]
pub(super) struct ByArgs {
    /// What the first frame of each stack names; "stack" adds no such frame
    #[arg(long, value_name = "KEY", default_value = "event")]
    by: By,
    #[command(flatten)]
    weight: WeightArgs,
    /// Count the references since the map was reset, not the events in the trace
    #[arg(long, conflicts_with_all = ["Filter", "WeightArgs"])]
    pub(super) map: bool,
}

const FLAME_EXAMPLES: &str = "\
examples:
  stackmap flame -o out.svg                  open it in a browser: click to zoom, Ctrl-F to search
  stackmap flame --by comm -o tasks.svg      one tower for each task
  stackmap flame --pid 144 -o one.svg        one process or thread
  stackmap flame --kernel -o kernel.svg      without the user stacks
  stackmap flame --inverted -o - a.data      innermost frames first, to standard output";

/// Draw a flame graph: programs, and what they do in the kernel
#[derive(Args, Debug)]
#[command(before_help = FLAME_EXAMPLES)]
pub(super) struct Flame {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    by: ByArgs,
    /// File to write, - for standard output
    #[arg(short, long, value_name = "SVG")]
    output: PathBuf,
    /// Title of the graph [default: the name of FILE]
    #[arg(long)]
    title: Option<String>,
    /// Draw stacks from their innermost frames, to show the callers of a function rather than
    /// what it calls
    #[arg(long)]
    inverted: bool,
    /// Show the address of a frame without a name; only the owner can read the file then
    #[arg(long)]
    addresses: bool,
}

impl ByArgs {
    /// Counts the events of a source.
    pub(super) fn count(
        &self,
        source: &mut Source,
        loaded: &mut Loaded,
        notes: &mut Notes,
    ) -> Result<(Tally, By)> {
        self.weight.set(source, loaded)?;
        if self.map || matches!(source, Source::Raw { .. }) {
            let (stacks, key) = loaded.map();
            let mut tally = Tally::default();
            tally.add_map(stacks, key);
            return Ok((tally, By::Stack));
        }
        Ok((events::tally(source, loaded, notes, self.by)?, self.by))
    }
}

/// Names the stacks that were counted.
pub(super) fn fold(
    tally: &Tally,
    by: By,
    source: &mut Source,
    loaded: &mut Loaded,
    names: &mut Names,
) -> Result<Stacks> {
    let mut progress = Progress::new("naming stacks", Some(tally.len() as u64));
    let mut progress = |done| progress.set(done);
    folded::fold(tally, by, source, loaded, names, &mut progress)
}

impl Folded {
    pub(super) fn run(self) -> Result {
        // Those of a map are counted by the map.
        let (mut source, mut loaded) = self.input.open(!self.by.map)?;
        let mut notes = Notes::default();
        let (tally, by) = self.by.count(&mut source, &mut loaded, &mut notes)?;
        notes.require_events(&source.name(), &loaded)?;
        let mut names = Names::default();
        let stacks = fold(&tally, by, &mut source, &mut loaded, &mut names)?;
        let mut out = Out::stdout();
        folded::write(&stacks, &names, &mut out)?;
        out.finish()?;
        output::say_notes(&notes.lines(Some(&loaded)));
        Ok(())
    }
}

impl Flame {
    pub(super) fn run(self) -> Result {
        // Those of a map are counted by the map.
        let (mut source, mut loaded) = self.input.open(!self.by.map)?;
        let mut notes = Notes::default();
        let (tally, by) = self.by.count(&mut source, &mut loaded, &mut notes)?;
        notes.require_events(&source.name(), &loaded)?;
        let total = tally.total();
        let mut about = notes.nr_events(total.events);
        if *tally.unit() != Unit::Events {
            about = format!("{about}, {}", tally.unit().text(total.weight));
        }
        let unit = tally.unit().of_folded().to_owned();
        let mut names = Names::default();
        let mut stacks = fold(&tally, by, &mut source, &mut loaded, &mut names)?;
        if self.inverted {
            stacks.invert(by != By::Stack, &names);
        }
        let look = flame::Look {
            title: self.title.unwrap_or_else(|| title(&source)),
            subtitle: Some(subtitle(&loaded, &about)),
            unit,
            inverted: self.inverted,
            addresses: self.addresses,
        };
        // Drawn before the file is touched: what cannot be drawn leaves no empty file behind.
        let mut svg = Vec::new();
        flame::draw(&stacks, &names, &look, &mut svg)?;
        let mut out = Out::file(&self.output, access(self.addresses))?;
        out.write_all(&svg)?;
        out.finish()?;
        output::say_notes(&notes.lines(Some(&loaded)));
        Ok(())
    }
}

/// The title of what is drawn, which may be sent to others: the name of a file without its directories.
pub(super) fn title(source: &Source) -> String {
    let name = source.name();
    match Path::new(&name).file_name() {
        Some(file) => file.to_string_lossy().into_owned(),
        None => name,
    }
}

/// Who may read a file: addresses tell where the kernel lies.
pub(super) fn access(addresses: bool) -> Access {
    match addresses {
        true => Access::Owner,
        false => Access::Umask,
    }
}

/// Where events are from.
pub(super) fn about(loaded: &Loaded, events: &str) -> String {
    match &loaded.manifest {
        Some(manifest) => {
            let seconds = manifest.duration_ns as f64 / 1e9;
            format!("{events} in {seconds:.3} s, Linux {}", manifest.release)
        }
        None => events.to_owned(),
    }
}

fn subtitle(loaded: &Loaded, events: &str) -> String {
    let about = about(loaded, events);
    let legend = match loaded.user.is_empty() {
        true => flame::LEGEND,
        false => flame::LEGEND_USER,
    };
    format!("{about} ({legend})")
}
