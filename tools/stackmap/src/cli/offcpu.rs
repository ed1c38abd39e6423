// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap offcpu`: where tasks wait, how long, and who wakes them up.

use super::{
    args::{Global, Input},
    folded::{access, title},
};
use crate::{
    error::{Error, Result},
    events,
    filter::{Filter, Selection},
    flame,
    folded::{self, Names},
    gaps::Gaps,
    notes::Notes,
    offcpu::{self, By, Limits, Trail, Waits},
    output::{self, Out},
    report,
    source::{Loaded, Source},
    trace::Time,
};
use clap::Args;
use std::{io::Write, path::PathBuf};

const EXAMPLES: &str = "\
examples:
  stackmap record -e sched:sched_switch -e sched:sched_waking -- make
  stackmap offcpu                        each task: how long it waited, where, and for whom
  stackmap offcpu --by waker --top 3     who let others wait
  stackmap offcpu --comm make            the waits of make, whoever ended them
  stackmap offcpu --flame off.svg        a flame graph by time: the sleeper below, its waker above
  stackmap offcpu --folded - a.data      the same as folded stacks, in microseconds";

/// Show where tasks wait: off their CPUs, by stack, with who woke them up
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Offcpu {
    #[command(flatten)]
    input: Input,
    /// How to group waits
    #[arg(long, value_name = "KEY", default_value = "comm")]
    by: By,
    /// Number of stacks to show of each group
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Number of wakers to show of each stack
    #[arg(long, value_name = "N", default_value_t = 1)]
    wakers: usize,
    /// Number of frames to show of each stack; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Count waits that last to the end of the trace, up to there
    #[arg(long)]
    unfinished: bool,
    /// Draw a flame graph by time into this file, - for standard output
    #[arg(long, value_name = "SVG", conflicts_with = "folded")]
    flame: Option<PathBuf>,
    /// Write folded stacks with microseconds into this file, which only its owner can read; - for standard output
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
}

impl Offcpu {
    pub(super) fn run(self, global: &Global) -> Result {
        let (mut source, mut loaded) = self.input.open_some(global, true)?;
        let mut notes = Notes::default();
        let filter = std::mem::take(&mut loaded.filter);
        let waits = self.waits(&mut source, &loaded, &filter, &mut notes)?;
        let drawn = self.flame.as_ref().or(self.folded.as_ref());
        if drawn.is_none() && notes.is_unmatched() {
            output::say_notes(&notes.lines(Some(&loaded)));
            return Ok(());
        }
        loaded.read_users(&mut source, &offcpu::users(&waits))?;
        let mut lines = notes.lines(Some(&loaded));
        lines.extend(waits.notes());
        let Some(path) = drawn else {
            let mut out = Out::paged(global.pager());
            report::write_head(&mut out, &source.name(), loaded.manifest.as_ref())?;
            let limits = Limits {
                stacks: self.top,
                wakers: self.wakers,
                depth: self.depth,
            };
            offcpu::write(&mut out, &waits, &loaded, limits)?;
            if !lines.is_empty() {
                writeln!(out)?;
                out.notes(&lines)?;
            }
            return out.finish();
        };
        let mut names = Names::default();
        let stacks = offcpu::fold(&waits, &loaded, &mut names);
        let mut text = Vec::new();
        match self.flame.is_some() {
            true => {
                let look = flame::Look {
                    title: title(&source),
                    subtitle: Some(offcpu::subtitle(&waits)),
                    unit: "us".to_owned(),
                    ..flame::Look::default()
                };
                let drawn = flame::draw(&stacks, &names, &look, &mut text);
                // Why there is nothing to draw.
                drawn.inspect_err(|_| output::say_notes(&lines))?;
            }
            false => folded::write(&stacks, &names, &mut text)?,
        }
        // Folded stacks have the addresses of frames without a name.
        let mut out = Out::file(path, access(self.folded.is_some()))?;
        out.write_all(&text)?;
        out.finish()?;
        output::say_notes(&lines);
        Ok(())
    }

    /// The waits that begin with an event that the filter keeps.
    fn waits(
        &self,
        source: &mut Source,
        loaded: &Loaded,
        filter: &Filter,
        notes: &mut Notes,
    ) -> Result<Waits> {
        if !source.has_ring() {
            return Err(Error::input(
                source.name(),
                "it has no binary records, in which waits are found\n  hint: stackmap record -e \
                 sched:sched_switch -e sched:sched_waking",
            ));
        }
        source.require_one("waits are found")?;
        let gaps = Gaps::of(source.ring()?.1)?;
        let mut trail = Trail::default();
        let mut selection = Selection::by(filter, loaded);
        let mut clock = None;
        events::for_each(source, loaded, notes, &mut |event, sides| {
            clock = Some(event.time);
            let is_wanted =
                !offcpu::is_switch(event) || selection.keeps(&offcpu::renamed(event), sides);
            trail.add(event, sides, is_wanted);
            Ok(())
        })?;
        notes.filtered = selection.finish();
        if !trail.has_switches() {
            return Err(Error::input(
                source.name(),
                "it has no sched:sched_switch\n  hint: stackmap record -e sched:sched_switch -e \
                 sched:sched_waking",
            ));
        }
        if let Some(Time::Ticks(_)) = clock {
            return Err(Error::input(
                source.name(),
                "its clock does not count nanoseconds, so no wait has a length",
            ));
        }
        Ok(trail.waits(self.by, &gaps, self.unfinished))
    }
}
