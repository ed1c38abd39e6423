// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap leaks`: what was allocated and not freed.

use super::{
    args::{Global, Input},
    pairs::{self, PairArgs, ShowArgs},
};
use crate::{
    error::Result,
    filter::number,
    pairs::{By, Limits, Pairs, Preset, Rules, Size},
    record::parse_seconds,
};
use clap::Args;
use std::time::Duration;

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
    /// Field of the first event with its number of bytes
    #[arg(long, value_name = "FIELD", requires = "from")]
    size: Option<String>,
    /// Leave out what is younger than this when the trace ends, in seconds
    #[arg(long, value_name = "SECS", value_parser = parse_seconds)]
    older: Option<Duration>,
    /// How to group allocations: event, comm, pid, cpu, stack, or a field of the first event
    #[arg(long, value_name = "KEY", default_value = "event", value_parser = By::new)]
    by: By,
    /// Number of stacks to show of each group
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 5)]
    top: usize,
    #[command(flatten)]
    show: ShowArgs,
}

impl Leaks {
    pub(super) fn run(self, global: &Global) -> Result {
        let size = self.size.map_or(Size::One, Size::Field);
        let rules = match self.pair.chosen() {
            Some((from, to, key)) => Rules::resource(from, to, key, size),
            None => Rules::memory(),
        };
        let older = self.older.unwrap_or_default().as_nanos();
        let older = u64::try_from(older).unwrap_or(u64::MAX);
        let limits = Limits {
            stacks: self.top,
            depth: self.show.depth,
            ..Limits::default()
        };
        let mut pairs = Pairs::new(Preset::Leaks { older }, rules, self.by);
        pairs.chosen = self.pair.events();
        pairs::run(&self.input, global, pairs, limits, &self.show)
    }
}
