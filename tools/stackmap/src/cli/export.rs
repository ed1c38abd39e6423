// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap export`: recordings in the formats of other programs.

use super::{
    args::{Input, WeightArgs},
    folded::{access, title},
};
use crate::export::parquet;
use crate::{
    capture::Described,
    error::{Error, Result},
    events,
    export::{firefox, json, perfetto, pprof, trace_dat},
    notes::Notes,
    output::{self, Out},
    ring::page::Layout,
    source::{Loaded, Source},
    weight::Weight,
};
use clap::{Args, ValueEnum};
use flate2::{write::GzEncoder, Compression};
use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
examples:
  stackmap export --format pprof -o out.pb.gz && go tool pprof -http : out.pb.gz
  stackmap export --format firefox -o out.json.gz load it at https://profiler.firefox.com
  stackmap export --format firefox --time 8.77..8.78 -o out.json
  stackmap export --format perfetto -o out.gz     load it at https://ui.perfetto.dev
  stackmap export --format json a.data | jq '.events[0]'
  stackmap export --format trace.dat -o trace.dat && trace-cmd report
  stackmap export --format parquet -o tables      adds the capture to those in the directory";

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
    /// File to write, - for standard output; a directory for parquet
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Write kernel addresses, too; only the owner can read the file then
    #[arg(long)]
    addresses: bool,
    /// Write the fields of events as text, too, for parquet
    #[arg(long)]
    text: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Format {
    /// A profile for pprof (go tool pprof, speedscope, ui.perfetto.dev)
    Pprof,
    /// A profile for profiler.firefox.com
    Firefox,
    /// A trace for ui.perfetto.dev: tracks of tasks and CPUs, events with their stacks
    Perfetto,
    /// The whole recording, as JSON
    Json,
    /// A file for trace-cmd and KernelShark, with full stacks; it always has kernel addresses
    #[value(name = "trace.dat")]
    TraceDat,
    /// Tables for databases: a partition of this capture in a directory that may have others
    Parquet,
}

impl Export {
    pub(super) fn run(self) -> Result {
        let to_terminal = self.output == Path::new("-") && io::stdout().is_terminal();
        let binary = match self.format {
            Format::Pprof => Some("pprof profile"),
            Format::Perfetto => Some("Perfetto trace"),
            Format::TraceDat => Some("trace.dat"),
            _ => None,
        };
        self.check_tables()?;
        if let Some(what) = binary.filter(|_| to_terminal) {
            return Err(Error::Refused(format!(
                "a {what} is binary and is not written to a terminal\n  hint: -o FILE"
            )));
        }
        let (mut source, mut loaded) = self.input.open(false)?;
        self.weight.set(&source, &mut loaded)?;
        let has_fields = match self.format {
            Format::Json => Some("json"),
            Format::TraceDat => Some("trace.dat"),
            Format::Parquet => Some("parquet"),
            _ => None,
        };
        if let Some(format) = has_fields.filter(|_| loaded.weight != Weight::One) {
            return Err(Error::Refused(format!(
                "--weight adds up, and --format {format} has all fields of each event instead"
            )));
        }
        if self.format == Format::Parquet {
            // What tracing itself caused ends waits and frees memory, too: a column says so.
            loaded.filter.hides_own = false;
            return self.write_tables(&mut source, &loaded);
        }
        let mut notes = Notes::default();
        // Its events are as the kernel recorded them.
        let addresses = self.addresses || self.format == Format::TraceDat;
        let dat = match self.format {
            Format::TraceDat => Some(source.described()?),
            _ => None,
        };
        let mut out = Out::file(&self.output, access(addresses))?;
        match self.format {
            Format::Pprof => {
                let profile = profile(&mut source, &loaded, &mut notes, addresses)?;
                profile.write(&notes.lines(Some(&loaded)), &mut out)?;
            }
            Format::Firefox => {
                let mut builder = firefox::Builder::new(&loaded, &title(&source), addresses);
                events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
                    builder.event(event, sides)
                })?;
                let notes = notes.lines(Some(&loaded));
                if self.output.extension() == Some("gz".as_ref()) {
                    let mut packed = GzEncoder::new(&mut out, Compression::default());
                    builder.write(&notes, &mut packed)?;
                    packed.finish()?;
                } else {
                    builder.write(&notes, &mut out)?;
                }
            }
            Format::Perfetto => {
                // A CPU also runs what is hidden.
                let hides_own = loaded.filter.hides_own;
                loaded.filter.hides_own &= !perfetto::has_switches(&loaded);
                let (mut writer, mut own) =
                    (perfetto::Writer::new(&mut out, &loaded, addresses)?, 0);
                events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
                    let is_hidden = hides_own && event.own;
                    own += u64::from(is_hidden);
                    writer.event(event, sides, is_hidden)
                })?;
                notes.own = notes.own.max(own);
                writer.finish(&notes.lines(Some(&loaded)))?;
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
            Format::TraceDat => {
                if let Some((texts, layout)) = dat {
                    write_trace_dat(&mut source, &loaded, &mut notes, (&texts, layout), &mut out)?;
                }
            }
            // They are no single file.
            Format::Parquet => {}
        }
        notes.require_events(&source.name(), &loaded)?;
        out.finish()?;
        output::say_notes(&notes.lines(Some(&loaded)));
        Ok(())
    }
}

/// The events of a source, or the stacks of a map, as samples.
fn profile<'a>(
    source: &mut Source,
    loaded: &'a Loaded,
    notes: &mut Notes,
    addresses: bool,
) -> Result<pprof::Builder<'a>> {
    let mut builder = pprof::Builder::new(loaded, addresses);
    match source {
        Source::Raw { .. } => builder.map(),
        _ => events::for_each(source, loaded, notes, &mut |event, sides| {
            builder.event(event, sides);
            Ok(())
        })?,
    }
    Ok(builder)
}

impl Export {
    /// Refuses what only one of tables and files can be.
    fn check_tables(&self) -> Result {
        let refused = match self.format {
            Format::Parquet if self.output == Path::new("-") => {
                "--format parquet writes a directory\n  hint: -o DIR"
            }
            Format::Parquet => return Ok(()),
            _ if self.text => "--text is for --format parquet",
            _ => return Ok(()),
        };
        Err(Error::Refused(refused.to_owned()))
    }

    fn write_tables(&self, source: &mut Source, loaded: &Loaded) -> Result {
        let options = parquet::Options {
            addresses: self.addresses,
            text: self.text,
        };
        let mut notes = Notes::default();
        let access = access(self.addresses);
        let (Some(capture), Some(manifest)) = (source.capture(), &loaded.manifest) else {
            return Err(Error::input(
                source.name(),
                "only captures are written as tables\n  hint: stackmap record",
            ));
        };
        let key = capture.content_hash()?;
        let of = (loaded, manifest);
        let mut writer = parquet::Writer::new(&self.output, &key, access, of, options)?;
        events::for_each(source, loaded, &mut notes, &mut |event, sides| {
            writer.event(event, sides)
        })?;
        // Tables without rows replace those that have some.
        writer.finish()?;
        notes.require_events(&source.name(), loaded)?;
        output::say_notes(&notes.lines(Some(loaded)));
        Ok(())
    }
}

fn write_trace_dat(
    source: &mut Source,
    loaded: &Loaded,
    notes: &mut Notes,
    (texts, layout): (&Described, Layout),
    out: &mut Out,
) -> Result {
    let (trace, ..) = source.ring()?;
    let mut writer = trace_dat::Writer::new(loaded, layout, &trace.about.formats)?;
    events::for_each(source, loaded, notes, &mut |event, sides| {
        writer.event(event, sides)
    })?;
    if writer.cut != 0 {
        let cut = writer.cut;
        output::warn(format_args!(
            "{cut} stacks or events are cut: a page of the buffer holds no more"
        ));
    }
    writer.finish(texts, &trace.tasks, out)
}
