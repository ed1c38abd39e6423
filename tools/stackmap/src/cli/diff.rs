// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap diff`: what became hotter.

use super::{
    args::{Global, SymbolArgs},
    folded::{access, fold, ByArgs},
};
use crate::{
    capture::{Filtered, Recorded},
    diff::{self, Measure, Side},
    error::{Error, Result},
    filter::{number, Filter},
    flame::{self, Scale},
    folded::{Folded, Names},
    notes::{Note, Notes},
    output::{self, Out},
    source::Source,
    user::binaries::Binaries,
    weight::Unit,
};
use clap::{Args, ValueEnum};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
examples:
  stackmap diff before.data after.data                  stacks whose share of events changed most
  stackmap diff --compare rate before.data after.data   stacks whose events per second changed most
  stackmap diff --of function before.data after.data    functions, wherever they are on a stack
  stackmap diff --comm ls before.data after.data        the events of ls in both
  stackmap diff --flame out.svg before.data after.data  a flame graph, too (red: more, blue: less)";

/// Compare two captures: show which stacks or functions became hotter
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Diff {
    /// The earlier recording: a capture or a copy of stack_map_bin
    before: PathBuf,
    /// The later recording: a capture or a copy of stack_map_bin
    after: PathBuf,
    /// Compare stacks or functions
    #[arg(long, value_name = "KIND", default_value = "stack")]
    of: Of,
    /// Number to compare
    #[arg(long, value_name = "WHAT", default_value = "share")]
    compare: Measure,
    /// Number of changes to show
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 10)]
    top: usize,
    /// Also draw the difference as a flame graph; - is standard output, in place of the text
    #[arg(long, value_name = "SVG")]
    flame: Option<PathBuf>,
    /// In the flame graph, show the address of a frame without a name; only the owner can read the
    /// file then
    #[arg(long, requires = "flame")]
    addresses: bool,
    #[command(flatten)]
    by: ByArgs,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    symbols: SymbolArgs,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Of {
    /// Whole stacks
    Stack,
    /// Functions
    Function,
}

/// What was read of a capture.
struct Read {
    name: String,
    stacks: Folded,
    unit: Unit,
    /// How long it took, in seconds; 0 if that is not known.
    seconds: f64,
    recorded: Option<Recorded>,
    notes: Vec<Note>,
    /// Why no event of it is compared, if there are some.
    unmatched: Result,
}

impl Read {
    fn side(&self) -> Side<'_> {
        Side {
            name: &self.name,
            total: self.stacks.total(),
            unit: &self.unit,
            seconds: self.seconds,
        }
    }
}

impl Diff {
    pub(super) fn run(self, global: &Global) -> Result {
        let mut names = Names::default();
        let open = |path: &Path| Source::open(Some(path), global.tracefs());
        let (mut before, mut after) = (open(&self.before)?, open(&self.after)?);
        let binaries = [before.binaries()?, after.binaries()?];
        // First the later one: of two clones of a function, its name is shown.
        let mut after = self.read(&self.after, after, &binaries, &mut names)?;
        let mut before = self.read(&self.before, before, &binaries, &mut names)?;
        if after.unmatched.is_err() {
            std::mem::replace(&mut before.unmatched, Ok(()))?;
        }
        // Compilers make other clones of functions in another build.
        let numbers = names.canonical();
        for side in [&mut before, &mut after] {
            side.stacks.rename(&numbers, &names);
        }
        let mut text_follows = true;
        if let Some(path) = &self.flame {
            self.draw(path, &before, &after, &names)?;
            text_follows = path != Path::new("-");
        }
        if let Some(warning) = recorded_differ(&before, &after) {
            output::warn(warning);
        }
        if text_follows {
            self.write(global, &before, &after, &names)?;
        }
        for side in [&before, &after] {
            for note in &side.notes {
                output::say(format_args!("{}:", side.name));
                output::say_notes(std::slice::from_ref(note));
            }
        }
        Ok(())
    }

    /// `binaries`: those of both captures.
    fn read(
        &self,
        path: &Path,
        mut source: Source,
        binaries: &[Binaries; 2],
        names: &mut Names,
    ) -> Result<Read> {
        let mut loaded = self
            .symbols
            .load_some(&mut source, &self.filter, !self.by.map)?;
        let name = path.display().to_string();
        loaded.user.binaries.compare(&name, binaries.each_ref());
        let mut notes = Notes::default();
        let (tally, by) = self.by.count(&mut source, &mut loaded, &mut notes)?;
        let manifest = loaded.manifest.as_ref();
        let seconds = manifest.map_or(0.0, |manifest| manifest.duration_ns as f64 / 1e9);
        if self.compare == Measure::Rate && seconds <= 0.0 {
            let what = "the duration of this recording is not known, so it has no rates\n  hint: \
                        give a capture of \"stackmap record\", or use --compare total";
            return Err(Error::input(name, what));
        }
        Ok(Read {
            unit: tally.unit().clone(),
            stacks: fold(&tally, by, &mut source, &mut loaded, names)?,
            seconds,
            recorded: loaded
                .manifest
                .as_ref()
                .map(|manifest| manifest.recorded.clone()),
            notes: notes.lines(Some(&loaded)),
            unmatched: notes.require_events(&name, &loaded),
            name,
        })
    }

    fn write(&self, global: &Global, before: &Read, after: &Read, names: &Names) -> Result {
        let sides = [before.side(), after.side()];
        let (one, other);
        let stacks = match self.of {
            Of::Stack => [&before.stacks, &after.stacks],
            Of::Function => {
                one = diff::by_function(&before.stacks, names);
                other = diff::by_function(&after.stacks, names);
                [&one, &other]
            }
        };
        let changes = diff::changes(stacks[0], stacks[1], sides, names, self.compare);
        let mut out = Out::paged(global.pager());
        diff::write(&mut out, names, sides, self.compare, &changes, self.top)?;
        out.finish()
    }

    fn draw(&self, path: &Path, before: &Read, after: &Read, names: &Names) -> Result {
        let what = match self.compare {
            Measure::Share => "share",
            Measure::Rate => "number per second",
            Measure::Total => "number",
        };
        let scale = match self.compare {
            Measure::Share => Scale::Shares,
            Measure::Rate => Scale::Before(after.seconds / before.seconds),
            Measure::Total => Scale::Before(1.0),
        };
        let look = flame::Look {
            title: format!("{} -> {}", before.name, after.name),
            subtitle: Some(format!(
                "red: a greater {what} than before; blue: a smaller one"
            )),
            inverted: false,
            addresses: self.addresses,
            ..flame::Look::default()
        };
        let mut svg = Vec::new();
        let (before, after) = (&before.stacks, &after.stacks);
        flame::draw_difference(before, after, names, scale, &look, &mut svg)?;
        let mut out = Out::file(path, access(self.addresses))?;
        out.write_all(&svg)?;
        out.finish()
    }
}

/// What was recorded of events: all of some, and what passes a filter.
fn events(recorded: &Recorded) -> Vec<String> {
    let filters = &recorded.filters;
    let is_filtered = |word: &&String| filters.iter().any(|filtered| filtered.event == **word);
    let events = recorded.events.iter().filter(|word| !is_filtered(word));
    let filtered = filters.iter().map(Filtered::text);
    events.cloned().chain(filtered).collect()
}

/// What to say if two captures recorded different things.
fn recorded_differ(before: &Read, after: &Read) -> Option<String> {
    let (one, other) = (before.recorded.as_ref()?, after.recorded.as_ref()?);
    let only = |read: &Read, of: &Recorded, not: &Recorded| {
        let missing = |all: &[String], there: &[String]| -> Vec<String> {
            let all = all.iter().filter(|word| !there.contains(word));
            all.cloned().collect()
        };
        let mut words = missing(&events(of), &events(not));
        let functions = missing(&of.functions, &not.functions);
        words.extend(functions.iter().map(|function| format!("{function}()")));
        (!words.is_empty()).then(|| format!("only in {}: {}", read.name, words.join(" ")))
    };
    let cpus = |recorded: &Recorded| match &recorded.cpus[..] {
        "" => "all CPUs".to_owned(),
        cpus => format!("only CPUs {cpus}"),
    };
    let cpus = (one.cpus != other.cpus).then(|| {
        format!(
            "{} in {}, {} in {}",
            cpus(one),
            before.name,
            cpus(other),
            after.name
        )
    });
    let parts = [only(before, one, other), only(after, other, one), cpus];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let parts = parts.join("; ");
    (!parts.is_empty()).then(|| format!("the captures recorded different events: {parts}"))
}
