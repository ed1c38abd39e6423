// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap leaks`: what was allocated and not freed.

use super::{
    args::{Global, Input},
    pairs::{self, DrawArgs, PairArgs, Read},
};
use crate::{
    error::Result,
    notes::count_of,
    output::{self, Out},
    pairs::{leaks, By, Rules, Size},
    report::{self, Look},
    tally,
    weight::{duration, Unit},
};
use clap::Args;
use std::{io::Write, time::Duration};

const EXAMPLES: &str = "\
examples:
  stackmap record -e kmem:kmalloc -e kmem:kfree -e 'kmem:kmem_cache_*' -d 10
  stackmap leaks                         what is outstanding at the end, by stack, with its age
  stackmap leaks --older 2               only what is older than two seconds
  stackmap leaks --by name               by slab cache: what kmem_cache_alloc calls its name
  stackmap leaks --flame leaks.svg       a flame graph by bytes
  stackmap leaks --from sys_exit_openat --to sys_enter_close --key ret=fd,common_tgid";

/// Show what was allocated and not freed: bytes, age and stack
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Leaks {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    pair: PairArgs,
    /// Field of the first event that says how many bytes it is of
    #[arg(long, value_name = "FIELD", requires = "from")]
    size: Option<String>,
    /// Leave out what is younger than this when the trace ends, in seconds
    #[arg(long, value_name = "SECS", value_parser = super::record::parse_seconds)]
    older: Option<Duration>,
    /// How to group allocations: event, comm, pid, cpu, stack, or a field of the first event
    #[arg(long, value_name = "KEY", default_value = "event", value_parser = By::new)]
    by: By,
    /// Number of stacks to show of each group
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Number of frames to show of each stack; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: usize,
    #[command(flatten)]
    draw: DrawArgs,
}

impl Leaks {
    pub(super) fn run(self, global: &Global) -> Result {
        let size = self.size.clone().map_or(Size::One, Size::Field);
        let mut rules = match self.pair.chosen() {
            Some((from, to, key)) => Rules::resource(from, to, key, size),
            None => Rules::memory(),
        };
        let hint = "-e kmem:kmalloc -e kmem:kfree -e 'kmem:kmem_cache_*'";
        let Read {
            mut source,
            mut loaded,
            notes,
            gaps,
            trail,
        } = pairs::read(&self.input, global, &mut rules, &self.by, hint)?;
        let older = self.older.unwrap_or_default().as_nanos();
        let older = u64::try_from(older).unwrap_or(u64::MAX);
        let leaks = leaks::leaks(trail, &gaps, older);
        let mut lines = notes.lines(Some(&loaded));
        if notes.is_unmatched() && !self.draw.is_given() {
            output::say_notes(&lines);
            return Ok(());
        }
        lines.extend_from_slice(leaks.notes());
        let tally = &leaks.tally;
        let total = tally.total();
        let mut about = format!(
            "{} of {} outstanding",
            total.events,
            count_of(leaks.nr_allocs, "allocation")
        );
        if *tally.unit() != Unit::Events {
            about = format!("{about}, {}", tally.unit().text(total.weight));
        }
        if self.draw.is_given() {
            return self
                .draw
                .write(source, loaded, tally, &self.by, about, &lines);
        }
        let sections = report::sections(tally, self.by.shown(), self.top);
        loaded.read_users(&mut source, &report::users(&sections))?;
        let mut out = Out::paged(global.pager());
        report::write_head(&mut out, &source.name(), loaded.manifest.as_ref())?;
        if let Some((oldest, _)) = total.span {
            let age = duration(leaks.end.value().saturating_sub(oldest.value()));
            about = format!("{about}; the oldest is {age} old");
        }
        writeln!(out, "{about}")?;
        if total.events > 0 {
            let look = Look {
                group: (self.by.shown() != tally::By::Stack).then(|| self.by.title()),
                what: "allocation",
                unit: tally.unit(),
                ages_at: Some(leaks.end),
                depth: self.depth,
            };
            report::write_sections(&mut out, tally, &sections, &loaded, look)?;
        }
        if !lines.is_empty() {
            writeln!(out)?;
            out.notes(&lines)?;
        }
        out.finish()
    }
}
