// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap export`: recordings in the formats of other programs.

use super::{
    args::{Global, Input, WeightArgs},
    folded::{access, title},
};
#[cfg(feature = "parquet")]
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
    trace::{Event, Sides},
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
  stackmap export --format perfetto -o out.gz     load it at https://ui.perfetto.dev
  stackmap export --format json a.data | jq '.events[0]'
  stackmap export --format trace.dat -o trace.dat && trace-cmd report";

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
    #[cfg(feature = "parquet")]
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
    /// A profile of OpenTelemetry (OTLP), whose format is alpha
    #[cfg(feature = "otlp")]
    Otlp,
    /// The whole recording, as JSON
    Json,
    /// A file for trace-cmd and KernelShark, with full stacks; it always has kernel addresses
    #[value(name = "trace.dat")]
    TraceDat,
    /// A directory of tables for databases: events, stacks, frames, captures
    #[cfg(feature = "parquet")]
    Parquet,
}

impl Export {
    pub(super) fn run(self, global: &Global) -> Result {
        let to_terminal = self.output == Path::new("-") && io::stdout().is_terminal();
        let binary = match self.format {
            Format::Pprof => Some("pprof profile"),
            Format::Perfetto => Some("Perfetto trace"),
            #[cfg(feature = "otlp")]
            Format::Otlp => Some("OTLP profile"),
            Format::TraceDat => Some("trace.dat"),
            _ => None,
        };
        #[cfg(feature = "parquet")]
        self.check_tables()?;
        if let Some(what) = binary.filter(|_| to_terminal) {
            return Err(Error::Refused(format!(
                "a {what} is binary and is not written to a terminal\n  hint: -o FILE"
            )));
        }
        let (mut source, mut loaded) = self.input.open(global)?;
        self.weight.set(&source, &mut loaded)?;
        let has_fields = match self.format {
            Format::Json => Some("json"),
            Format::TraceDat => Some("trace.dat"),
            #[cfg(feature = "parquet")]
            Format::Parquet => Some("parquet"),
            _ => None,
        };
        if let Some(format) = has_fields.filter(|_| loaded.weight != Weight::One) {
            return Err(Error::Refused(format!(
                "--weight adds up, and --format {format} has all fields of each event instead"
            )));
        }
        if let Format::Firefox | Format::Perfetto | Format::TraceDat = self.format {
            // Each has clocks of its own.
            source.require_one("a timeline is drawn")?;
        }
        #[cfg(feature = "parquet")]
        if self.format == Format::Parquet {
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
            #[cfg(feature = "otlp")]
            Format::Otlp => {
                let profile = profile(&mut source, &loaded, &mut notes, addresses)?;
                profile.write_otlp(&notes.lines(Some(&loaded)), &mut out)?;
            }
            Format::Firefox => {
                let mut builder = firefox::Builder::new(&loaded, &title(&source), addresses)?;
                events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
                    builder.event(event, sides)
                })?;
                builder.write(&notes.lines(Some(&loaded)), &mut out)?;
            }
            Format::Perfetto => {
                let mut writer = perfetto::Writer::new(&mut out, &loaded, addresses)?;
                events::for_each(&mut source, &loaded, &mut notes, &mut |event, sides| {
                    writer.event(event, sides)
                })?;
                writer.finish(&notes.lines(Some(&loaded)))?;
            }
            Format::Json => {
                let mut writer = json::Writer::new(&mut out, &loaded, addresses)?;
                let mut event =
                    |event: &Event, sides: Sides<'_>, ips: &[u64]| writer.event(event, sides, ips);
                if source.has_ring() {
                    events::for_each_with_frames(&mut source, &loaded, &mut notes, &mut event)?;
                } else if !matches!(source, Source::Raw { .. }) {
                    events::for_each(&mut source, &loaded, &mut notes, &mut |of, sides| {
                        event(of, sides, &[])
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
            #[cfg(feature = "parquet")]
            Format::Parquet => {}
        }
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

#[cfg(feature = "parquet")]
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
        let mut writer = parquet::Writer::new(&self.output, access, loaded, options)?;
        if source.has_ring() {
            let mut all = Vec::new();
            for number in 0..source.nr_recordings() {
                source.select(number)?;
                all.push(source.ring()?.0.about);
            }
            writer.describe(all.iter().map(|about| &about.formats));
            events::for_each_with_frames(source, loaded, &mut notes, &mut |event, sides, ips| {
                writer.event(event, sides, ips)
            })?;
        } else {
            events::for_each(source, loaded, &mut notes, &mut |event, sides| {
                writer.event(event, sides, &[])
            })?;
        }
        writer.finish()?;
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
    events::for_each_with_frames(source, loaded, notes, &mut |event, sides, ips| {
        writer.event(event, sides, ips)
    })?;
    if writer.cut != 0 {
        let cut = writer.cut;
        output::warn(format_args!(
            "{cut} stacks or events are cut: a page of the buffer holds no more"
        ));
    }
    writer.finish(texts, &trace.tasks, out)
}
