// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap resolve`: a filter that puts stacks back.

use super::args::{Global, SymbolArgs};
use crate::{
    capture,
    error::{Error, Result},
    notes::count_of,
    output::{self, Out},
    resolve::{Format, Resolver},
    source::{Loaded, Source},
};
use clap::Args;
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Stacks younger than this are not read again.
const FRESH: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
examples:
  cat /sys/kernel/tracing/trace_pipe | stackmap resolve      the trace of the running kernel, live
  stackmap resolve stackmap.data > trace.txt                 the trace of a capture, with stacks
  trace-cmd report | stackmap resolve --map stack_map_bin --kallsyms kallsyms
  stackmap resolve --inline < trace | grep vfs_read          each stack on one line";

/// Replace the ids in the text of a trace by their stacks
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Resolve {
    /// Text of trace, trace_pipe or "trace-cmd report", or a capture [default: standard input]
    file: Option<PathBuf>,
    /// Capture or copy of stack_map_bin with the stacks [default: FILE if it is a capture, else
    /// the running kernel's]
    #[arg(long, short, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Print a stack on the line of its id, not on lines of its own
    #[arg(long)]
    inline: bool,
    /// Print offsets into functions, too
    #[arg(long)]
    offsets: bool,
    #[command(flatten)]
    symbols: SymbolArgs,
}

impl Resolve {
    pub(super) fn run(self, global: &Global) -> Result {
        let file = self.file.as_deref().filter(|path| *path != Path::new("-"));
        let capture = file.map(is_capture).transpose()?.unwrap_or(false);
        let map = match (&self.map, capture) {
            (Some(map), _) => Some(map.as_path()),
            (None, true) => file,
            (None, false) => None,
        };
        let mut source = Source::open(map, global.tracefs())?;
        let mut loaded = self.symbols.load(&mut source)?;
        if let (Some(path), true, true) = (file, capture, self.map.is_some()) {
            loaded.trace_load = Source::open(Some(path), None)?.trace_load();
        }
        let mut out = Out::stdout();
        let format = Format {
            inline: self.inline,
            offsets: self.offsets,
        };

        // Only a running kernel has newer stacks.
        let live = matches!(source, Source::Live(_));
        let mut read = Instant::now();
        let mut reload = || -> Result<Option<Loaded>> {
            if !live || read.elapsed() < FRESH {
                return Ok(None);
            }
            let mut source = Source::open(None, global.tracefs())?;
            let loaded = self.symbols.load(&mut source)?;
            read = Instant::now();
            Ok(Some(loaded))
        };
        let mut resolver = Resolver::new(loaded, format, &mut reload);
        match file {
            Some(path) if capture => {
                let mut source = Source::open(Some(path), None)?;
                let (trace, pages, _) = source.ring()?;
                let binds = trace.binds(pages, None)?;
                let (trace, pages, size) = source.ring()?;
                resolver.records(&trace, pages, size, &binds, &mut out)?;
            }
            Some(path) => {
                let input = File::open(path).map_err(|error| Error::read(path, error))?;
                let size = input.metadata().ok().map(|metadata| metadata.len());
                let name = path.display().to_string();
                resolver.run(input, size.filter(|size| *size > 0), &name, &mut out)?;
            }
            None => resolver.run(io::stdin().lock(), None, "standard input", &mut out)?,
        }
        out.finish()?;
        output::say_notes(&resolver.notes.lines(Some(resolver.loaded())));
        if resolver.unread > 0 {
            output::warn(format_args!(
                "{} not resolved: the format is not that of trace, trace_pipe or \"trace-cmd report\"",
                count_of(resolver.unread, "line with an id")
            ));
        }
        Ok(())
    }
}

fn is_capture(path: &Path) -> Result<bool> {
    let mut magic = Vec::new();
    File::open(path)
        .and_then(|file| file.take(4).read_to_end(&mut magic))
        .map_err(|error| Error::read(path, error))?;
    Ok(magic == capture::MAGIC)
}
