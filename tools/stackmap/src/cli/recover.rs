// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap recover` and `stackmap save`: captures of what was recorded before.

use super::args::Global;
use crate::{capture::DEFAULT_CAPTURE, error::Result, record::recover};
use clap::Args;
use std::path::PathBuf;

const RECOVER_EXAMPLES: &str = "\
examples:
  stackmap recover --list              what recorders that were killed have left
  stackmap recover                     save the only recording
  stackmap recover stackmap-2f1b7c9d -o out.data
  stackmap recover --remove stackmap-2f1b7c9d";

const RECOVER_NOTES: &str = "\
If record is killed, a second process saves the capture. If that is killed, too, or has no space \
for the capture, there is something to recover: the pages that were streamed to disk, and the \
instance with its buffer. After a reboot, or if the module was unloaded, the ids have no stacks.";

/// Make a capture of what a recorder that was killed has left
#[derive(Args, Debug)]
#[command(before_help = RECOVER_EXAMPLES, after_help = RECOVER_NOTES)]
pub(super) struct Recover {
    /// Recording to save [default: the only one]
    name: Option<String>,
    /// File to write [default: that of the recording]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// List the recordings
    #[arg(long, conflicts_with_all = ["name", "output", "remove"])]
    list: bool,
    /// Remove the recording NAME, and do not save it
    #[arg(long, requires = "name", conflicts_with = "output")]
    remove: bool,
}

impl Recover {
    pub(super) fn run(&self, global: &Global) -> Result {
        let name = self.name.as_deref();
        match (self.list, self.remove, name) {
            (true, ..) => recover::list(global.tracefs()),
            (_, true, Some(name)) => recover::remove(global.tracefs(), name),
            _ => recover::recover(global.tracefs(), name, self.output.as_deref()),
        }
    }
}

const SAVE_EXAMPLES: &str = "\
examples:
  stackmap save -o boot.data           what the top level has recorded, since the system started
  stackmap save --instance mine        what an instance has";

/// Make a capture of a buffer that others record into; this empties the buffer
#[derive(Args, Debug)]
#[command(before_help = SAVE_EXAMPLES)]
pub(super) struct Save {
    /// Instance whose buffer to save [default: the top level's]
    #[arg(short, long, value_name = "NAME")]
    instance: Option<String>,
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_CAPTURE)]
    output: PathBuf,
}

impl Save {
    pub(super) fn run(&self, global: &Global) -> Result {
        recover::save_buffer(global.tracefs(), self.instance.as_deref(), &self.output)
    }
}
