// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap diff`: what became hotter.

use super::{
    args::{Global, SymbolArgs},
    folded::ByArgs,
};
use crate::{
    diff::{self, Folded},
    error::Result,
    flame,
    folded::{fold, line},
    notes::Notes,
    output::{self, Out},
    source::Source,
};
use clap::{Args, ValueEnum};
use std::{
    io::Write,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
examples:
  stackmap diff before.data after.data                  stacks whose share has changed most
  stackmap diff --of function before.data after.data    functions, wherever they are on a stack
  stackmap diff --flame out.svg before.data after.data  a flame graph, too: red is more, blue less";

/// Show what became hotter from one capture to another
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Diff {
    /// Capture or copy of stack_map_bin to compare with
    before: PathBuf,
    /// Capture or copy of stack_map_bin to compare
    after: PathBuf,
    /// What to compare
    #[arg(long, value_name = "KIND", default_value = "stack")]
    of: Of,
    /// Changes to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Draw a flame graph into a file, - for standard output in place of the text
    #[arg(long, value_name = "SVG")]
    flame: Option<PathBuf>,
    #[command(flatten)]
    by: ByArgs,
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

impl Diff {
    pub(super) fn run(self, global: &Global) -> Result {
        let (before, before_notes) = self.read(&self.before, global)?;
        let (after, after_notes) = self.read(&self.after, global)?;
        let mut text_follows = true;
        if let Some(path) = &self.flame {
            self.draw(path, &before, &after)?;
            text_follows = path != Path::new("-");
        }
        if text_follows {
            self.write(&before, &after)?;
        }
        for (path, notes) in [(&self.before, before_notes), (&self.after, after_notes)] {
            for note in notes {
                output::say(format_args!("{}:", path.display()));
                output::say_notes(&[note]);
            }
        }
        Ok(())
    }

    fn read(&self, path: &Path, global: &Global) -> Result<(Folded, Vec<crate::notes::Note>)> {
        let mut source = Source::open(Some(path), global.tracefs())?;
        let loaded = self.symbols.load(&mut source)?;
        let mut notes = Notes::default();
        let (tally, by) = self.by.count(&mut source, &loaded, &mut notes)?;
        Ok((fold(&tally, by, &loaded), notes.lines(Some(&loaded))))
    }

    fn write(&self, before: &Folded, after: &Folded) -> Result {
        let total = |folded: &Folded| folded.values().copied().fold(0, u64::saturating_add);
        let totals = [total(before), total(after)];
        let changes = match self.of {
            Of::Stack => diff::changes(before, after, totals),
            Of::Function => {
                let [before, after] = [before, after].map(diff::by_function);
                diff::changes(&before, &after, totals)
            }
        };
        let names = [&self.before, &self.after].map(|path| path.display().to_string());
        let mut out = Out::stdout();
        diff::write(&mut out, [&names[0], &names[1]], totals, &changes, self.top)?;
        out.finish()
    }

    fn draw(&self, path: &Path, before: &Folded, after: &Folded) -> Result {
        let lines = |folded: &Folded| -> Vec<String> {
            let lines = folded.iter().map(|(frames, count)| line(frames, *count));
            lines.collect()
        };
        let look = flame::Look {
            title: format!("{} -> {}", self.before.display(), self.after.display()),
            subtitle: Some("red: a greater share than before; blue: a smaller one".to_owned()),
            inverted: false,
        };
        let mut svg = Vec::new();
        flame::draw_difference(&lines(before), &lines(after), &look, &mut svg)?;
        let mut out = Out::file(path)?;
        out.write_all(&svg)?;
        out.finish()
    }
}
