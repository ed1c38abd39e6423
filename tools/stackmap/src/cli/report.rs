// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap report`: what was recorded, for people.

use super::{
    args::{Global, Input, WeightArgs},
    folded::fold,
};
use crate::{
    error::{Error, Result},
    events,
    filter::{number, Glob},
    folded::Names,
    notes::Notes,
    output::{self, Out},
    report,
    source::{Loaded, Source},
    tally::{By, Tally},
    tree::{self, Root, Tree},
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
  stackmap report --tree --by comm       what each task calls, as a tree
  stackmap report --callers 'kfree*'     who calls such functions";

/// In the help, what is of trees is apart.
const TREES: &str = "Trees";

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
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 5)]
    top: usize,
    /// Number of frames to show of each stack; 0 shows all
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 0)]
    depth: usize,
    /// Show a tree of calls in place of stacks: what functions call, from the outermost on
    #[arg(long, help_heading = TREES)]
    tree: bool,
    /// Begin the tree with innermost functions, and show their callers
    #[arg(long, help_heading = TREES, requires = "tree")]
    inverted: bool,
    /// Show who calls this function, as a tree; FUNC has the wildcards * and ?
    #[arg(long, help_heading = TREES, value_name = "FUNC", value_parser = Glob::of_name)]
    #[arg(conflicts_with = "tree")]
    callers: Option<Glob>,
    /// Show what this function calls, as a tree
    #[arg(long, help_heading = TREES, value_name = "FUNC", value_parser = Glob::of_name)]
    #[arg(conflicts_with_all = ["tree", "callers"])]
    callees: Option<Glob>,
    /// Leave out branches of a tree that have a smaller share of their group, in percent
    #[arg(long, help_heading = TREES, value_name = "PERCENT", default_value_t = 0.5)]
    #[arg(value_parser = parse_percent)]
    min: f64,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("not a number from 0 to 100".to_owned()),
    }
}

impl Report {
    pub(super) fn run(self, global: &Global) -> Result {
        let (mut source, mut loaded) = self.input.open(true)?;
        self.weight.set(&source, &mut loaded)?;
        let mut notes = Notes::default();
        // By stack, the events that led to each are shown.
        let by = match self.by {
            By::Stack => By::Event,
            by => by,
        };
        let tally = events::tally(&mut source, &loaded, &mut notes, by)?;
        notes.require_events(&source.name(), &loaded)?;
        if let Some(root) = self.root() {
            return self.write_trees(root, global, source, loaded, &tally, &notes);
        }
        let sections = report::sections(&tally, self.by, self.top);
        loaded.read_users(&mut source, &report::users(&sections))?;

        let mut out = Out::paged(global.pager());
        report::write_head(&mut out, &source.name(), loaded.manifest.as_ref())?;
        report::write(
            &mut out, &tally, &sections, self.by, &loaded, &notes, self.depth,
        )?;
        out.notes(&notes.lines(Some(&loaded)))?;
        out.finish()
    }

    /// Where a tree begins, if one is wanted.
    fn root(&self) -> Option<Root> {
        let callers = self.callers.clone().map(Root::Callers);
        let callees = self.callees.clone().map(Root::Callees);
        let tree = self.tree.then_some(match self.inverted {
            true => Root::Innermost,
            false => Root::Outermost,
        });
        callers.or(callees).or(tree)
    }

    fn write_trees(
        &self,
        root: Root,
        global: &Global,
        mut source: Source,
        mut loaded: Loaded,
        tally: &Tally,
        notes: &Notes,
    ) -> Result {
        let mut names = Names::default();
        let stacks = fold(tally, self.by, &mut source, &mut loaded, &mut names)?;
        let trees = tree::trees(&stacks, self.by != By::Stack, &root, &names);
        let notes_of = notes.lines(Some(&loaded));
        let function = self.callers.as_ref().or(self.callees.as_ref());
        if let (true, Some(function)) = (trees.is_empty(), function) {
            output::say_notes(&notes_of);
            let what = format!("no stack has the function \"{function}\"");
            return Err(Error::input(source.name(), what));
        }
        let mut out = Out::paged(global.pager());
        report::write_head(&mut out, &source.name(), loaded.manifest.as_ref())?;
        report::write_total(&mut out, tally, notes)?;
        if let Some(function) = function {
            let sum = trees.iter().map(Tree::sum).fold(0, u64::saturating_add);
            let sum = tally.unit().text(sum);
            writeln!(out, "{sum} with {function} on the stack")?;
        }
        let limits = tree::Limits {
            share: self.min,
            depth: self.depth,
        };
        tree::write(&mut out, &trees, &names, tally.unit(), limits)?;
        out.notes(&notes_of)?;
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::parse_percent;

    #[test]
    fn a_percentage_is_from_0_to_100() {
        for (text, want) in [("0", 0.0), ("0.5", 0.5), ("100", 100.0)] {
            assert_eq!(parse_percent(text), Ok(want));
        }
        for text in ["", "-1", "100.1", "nan", "inf", "1%"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }
}
