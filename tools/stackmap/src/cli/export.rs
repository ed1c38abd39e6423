// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap export`: recordings in the formats of other programs.

use super::{
    args::{Global, Input, WeightArgs},
    folded::access,
};
use crate::{
    error::{Error, Result},
    events,
    export::{firefox, json, pprof},
    notes::Notes,
    output::{self, Out},
    source::Source,
    weight::Weight,
};
use clap::{Args, ValueEnum};
use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
examples:
  stackmap export --format pprof -o out.pb.gz && go tool pprof -http : out.pb.gz
  stackmap export --format firefox -o out.json    load it at https://profiler.firefox.com
  stackmap export --format firefox --time 8.77..8.78 -o out.json
  stackmap export --format json a.data | jq '.events[0]'";

/// Write a recording in the format of another program
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Export {
    #[command(flatten)]
    input: Input,
    /// Format to write
    #[arg(long, value_name = "FORMAT")]
    format: Format,
    #[command(flatten)]
    weight: WeightArgs,
    /// File to write, - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Write kernel addresses, too; only the owner can read the file then
    #[arg(long)]
    addresses: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Format {
    /// A profile for pprof (go tool pprof, speedscope, ui.perfetto.dev)
    Pprof,
    /// A profile for profiler.firefox.com
    Firefox,
    /// The whole recording, as JSON
    Json,
}

impl Export {
    pub(super) fn run(self, global: &Global) -> Result {
        let to_terminal = self.output == Path::new("-") && io::stdout().is_terminal();
        if to_terminal && self.format == Format::Pprof {
            return Err(Error::Refused(
                "a pprof profile is binary and is not written to a terminal\n  hint: -o FILE"
                    .to_owned(),
            ));
        }
        let (mut source, mut loaded) = self.input.open(global)?;
        self.weight.set(&source, &mut loaded)?;
        if self.format == Format::Json && loaded.weight != Weight::One {
            let what = "--format json has all fields of each event, and adds nothing up";
            return Err(Error::Refused(what.to_owned()));
        }
        let mut notes = Notes::default();
        let addresses = self.addresses;
        let mut out = Out::file(&self.output, access(addresses))?;
        match self.format {
            Format::Pprof => {
                let mut builder = pprof::Builder::new(&loaded, addresses);
                match source {
                    Source::Raw { .. } => builder.map(),
                    _ => {
                        events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
                            builder.event(event, sides);
                            Ok(())
                        })?
                    }
                }
                builder.write(&notes.lines(Some(&loaded)), &mut out)?;
            }
            Format::Firefox => {
                let mut builder = firefox::Builder::new(&loaded, &source.name(), addresses)?;
                events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
                    builder.event(event, sides)
                })?;
                builder.write(&notes.lines(Some(&loaded)), &mut out)?;
            }
            Format::Json => {
                let mut writer = json::Writer::new(&mut out, &loaded, addresses)?;
                if !matches!(source, Source::Raw { .. }) {
                    events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
                        writer.event(event, sides)
                    })?;
                }
                writer.finish(&notes.lines(Some(&loaded)))?;
            }
        }
        out.finish()?;
        output::say_notes(&notes.lines(Some(&loaded)));
        Ok(())
    }
}
