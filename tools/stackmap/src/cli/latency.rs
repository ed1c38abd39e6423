// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap latency`: the time between two events.

use super::{
    args::{Global, Input},
    pairs::{self, PairArgs, ShowArgs},
};
use crate::{
    error::Result,
    filter::number,
    pairs::{By, Limits, Pairs, Preset, Rules},
};
use clap::Args;

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
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 3)]
    top: usize,
    #[command(flatten)]
    show: ShowArgs,
}

impl Latency {
    pub(super) fn run(self, global: &Global) -> Result {
        let rules = match self.pair.chosen() {
            Some((from, to, key)) => Rules::latency(from, to, key),
            None => Rules::latencies(),
        };
        let limits = Limits {
            stacks: self.top,
            depth: self.show.depth,
            histogram: self.histogram,
            ..Limits::default()
        };
        let mut pairs = Pairs::new(Preset::Latencies, rules, self.by);
        pairs.chosen = self.pair.events();
        pairs::run(&self.input, global, pairs, limits, &self.show)
    }
}
