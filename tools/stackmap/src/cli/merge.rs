// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap merge`: many captures into one.

use crate::{
    capture::Writer,
    error::Result,
    merge::Merger,
    notes::count_of,
    output::{say, Progress},
};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
examples:
  stackmap merge -o all.data host-*.data            captures of several machines
  stackmap report all.data                          the events of all of them, by stack
  stackmap merge -o year.data may.data june.data    merged captures can be merged, too";

/// Merge captures into one that has each stack once
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Merge {
    /// Captures, with binary records; merged ones as well
    #[arg(value_name = "CAPTURE", required = true)]
    captures: Vec<PathBuf>,
    /// File to write; a device, a FIFO or the target of a link is written to, - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl Merge {
    pub(super) fn run(self) -> Result {
        let mut merger = Merger::new(Writer::create(&self.output)?);
        let total = self.captures.len() as u64;
        let mut progress = Progress::new("merging captures", Some(total));
        for (done, path) in self.captures.iter().enumerate() {
            progress.set(done as u64);
            merger.add(path)?;
        }
        let merged = merger.finish()?;
        drop(progress);
        let user = match merged.user_stacks {
            0 => String::new(),
            nr => format!(", {}", count_of(nr as u64, "user stack")),
        };
        say(format_args!(
            "{}: {}, {}, {}{user}, {} KiB",
            self.output.display(),
            count_of(merged.captures.into(), "capture"),
            count_of(merged.records, "record"),
            count_of(merged.stacks as u64, "stack"),
            merged.size.div_ceil(1024),
        ));
        Ok(())
    }
}
