// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap report`: what was recorded, for people.

use super::args::{Global, Input, WeightArgs};
use crate::{
    error::Result,
    events,
    notes::Notes,
    output::{self, Out},
    report,
    tally::By,
};
use clap::Args;
use std::io::Write;

const EXAMPLES: &str = "\
examples:
  stackmap report                        each event, and its hottest stacks
  stackmap report --by comm a.data       each task
  stackmap report --by stack --top 3     the three hottest stacks of all
  stackmap report --comm ls --cpu 0-3    the events of ls on these CPUs
  stackmap report --stack '^ext4_'       the events with such a function on their stack
  stackmap report --weight bytes_alloc   by bytes, not by events: kmem:kmalloc has such a field
  stackmap report --live                 what is in the running kernel's buffer now";

/// Show events with their stacks: counts, shares, first and last times
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Report {
    #[command(flatten)]
    input: Input,
    /// How to group events
    #[arg(
        long,
        value_name = "KEY",
        default_value = "event",
        hide_possible_values = false
    )]
    by: By,
    #[command(flatten)]
    weight: WeightArgs,
    /// Number of stacks to show of each group
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Number of frames to show of each stack; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: usize,
}

impl Report {
    pub(super) fn run(self, global: &Global) -> Result {
        let (mut source, mut loaded) = self.input.open_some(global, true)?;
        self.weight.set(&source, &mut loaded)?;
        let mut notes = Notes::default();
        // By stack, the events that led to each are shown.
        let by = match self.by {
            By::Stack => By::Event,
            by => by,
        };
        let tally = events::tally(&mut source, &loaded, &mut notes, by)?;
        if notes.is_unmatched() {
            output::say_notes(&notes.lines(Some(&loaded)));
            return Ok(());
        }
        let sections = report::sections(&tally, self.by, self.top);
        loaded.read_users(&mut source, &report::users(&sections))?;

        let mut out = Out::paged(global.pager());
        report::write_head(&mut out, &source.name(), loaded.manifest.as_ref())?;
        report::write(
            &mut out, &tally, &sections, self.by, &loaded, &notes, self.depth,
        )?;
        let notes = notes.lines(Some(&loaded));
        if !notes.is_empty() {
            writeln!(out)?;
            out.notes(&notes)?;
        }
        out.finish()
    }
}
