// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap latency`: the time between two events.

use super::{
    args::{Global, Input},
    pairs::{self, DrawArgs, PairArgs, Read},
};
use crate::{
    error::Result,
    notes::count_of,
    output::{self, Out},
    pairs::{latency, By, Rules},
    report::{self, Look},
    weight::duration,
};
use clap::Args;
use std::io::Write;

const EXAMPLES: &str = "\
examples:
  stackmap record -e block:block_rq_issue -e block:block_rq_complete -d 10
  stackmap latency                       how long requests take, by the stack that issued them
  stackmap latency --by dev --histogram  each device, with a histogram
  stackmap latency --comm postgres       of one program
  stackmap latency --flame latency.svg   a flame graph by time
  stackmap latency --from sched_process_fork --to sched_process_exit --key child_pid=pid";

/// Show the time between two events: system calls, requests, interrupts, by the stack of the first event
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Latency {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    pair: PairArgs,
    /// How to group pairs: event, comm, pid, cpu, stack, or a field of the first event
    #[arg(long, value_name = "KEY", default_value = "event", value_parser = By::new)]
    by: By,
    /// Show how many pairs of each group take how long
    #[arg(long)]
    histogram: bool,
    /// Number of stacks to show of each group
    #[arg(long, value_name = "N", default_value_t = 3)]
    top: usize,
    /// Number of frames to show of each stack; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: usize,
    #[command(flatten)]
    draw: DrawArgs,
}

impl Latency {
    pub(super) fn run(self, global: &Global) -> Result {
        let mut rules = match self.pair.chosen() {
            Some((from, to, key)) => Rules::latency(from, to, key),
            None => Rules::latencies(),
        };
        let hint = "-e block:block_rq_issue -e block:block_rq_complete, or \
                    -e 'syscalls:sys_*_read'";
        let Read {
            mut source,
            mut loaded,
            notes,
            gaps,
            trail,
        } = pairs::read(&self.input, global, &mut rules, &self.by, hint)?;
        let latencies = latency::latencies(trail, &gaps);
        let mut lines = notes.lines(Some(&loaded));
        if notes.is_unmatched() && !self.draw.is_given() {
            output::say_notes(&lines);
            return Ok(());
        }
        lines.extend_from_slice(latencies.notes());
        let tally = &latencies.tally;
        let total = tally.total();
        let about = format!(
            "{}, {}",
            count_of(total.events, "pair"),
            duration(total.weight)
        );
        if self.draw.is_given() {
            return self
                .draw
                .write(source, loaded, tally, &self.by, about, &lines);
        }
        let sections = report::sections(tally, self.by.shown(), self.top);
        loaded.read_users(&mut source, &report::users(&sections))?;
        let mut out = Out::paged(global.pager());
        report::write_head(&mut out, &source.name(), loaded.manifest.as_ref())?;
        writeln!(out, "{about}")?;
        if total.events > 0 {
            latencies.write(&mut out, self.by.title(), self.histogram)?;
            let look = Look {
                group: None,
                what: "pair",
                unit: tally.unit(),
                ages_at: None,
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
