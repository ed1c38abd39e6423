// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap offcpu`: where tasks wait, how long, and who wakes them up.

use super::{
    args::{Global, Input},
    pairs::{self, ShowArgs},
};
use crate::{
    error::Result,
    filter::number,
    pairs::{By, Limits, Pairs, Preset, Rules},
};
use clap::Args;

const EXAMPLES: &str = "\
examples:
  stackmap record -e sched:sched_switch -e sched:sched_waking -- make
  stackmap offcpu                        each task: how long it waited, where, and for whom
  stackmap offcpu --by waker --top 3     who let others wait
  stackmap offcpu --comm make            the waits of make, whoever ended them
  stackmap offcpu --flame off.svg        a flame graph by time: the sleeper below, its waker above
  stackmap offcpu --folded - a.data      the same as folded stacks, in microseconds";

/// Show where tasks wait: off their CPUs, by stack, with who woke them up
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Offcpu {
    #[command(flatten)]
    input: Input,
    /// How to group waits: comm, pid, waker, stack, event, cpu, or a field of the switch
    #[arg(long, value_name = "KEY", default_value = "comm", value_parser = By::of_wait)]
    by: By,
    /// Number of stacks to show of each group
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 5)]
    top: usize,
    /// Number of wakers to show of each stack
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 1)]
    wakers: usize,
    /// Count waits that last to the end of the trace, up to there, and those that had begun before it
    #[arg(long)]
    unfinished: bool,
    #[command(flatten)]
    show: ShowArgs,
}

impl Offcpu {
    pub(super) fn run(self, global: &Global) -> Result {
        let preset = Preset::Waits {
            unfinished: self.unfinished,
        };
        let limits = Limits {
            stacks: self.top,
            wakers: self.wakers,
            depth: self.show.depth,
            ..Limits::default()
        };
        let pairs = Pairs::new(preset, Rules::waits(), self.by);
        pairs::run(&self.input, global, pairs, limits, &self.show)
    }
}
