// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line.

mod args;
mod diff;
mod doctor;
mod dump;
mod export;
mod folded;
mod generate;
mod latency;
mod leaks;
mod offcpu;
mod pairs;
mod recover;
mod report;
mod resolve;
mod stat;
mod top;
mod view;

use crate::{
    error::{Error, Result},
    output,
    record::{self, guard},
    user::child,
};
use args::Global;
use clap::{Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
examples:
  stackmap record -e kmem:kmalloc -- ls     record while a command runs, into stackmap.data
  stackmap report                           what was recorded: events, and their hottest stacks
  stackmap flame -o out.svg                 the same as a flame graph
  stackmap view                             the events over time, in the browser
  stackmap top                              the hottest stacks of the running kernel, live
  stackmap resolve < trace_pipe             replace the ids in a trace by stacks
  stackmap doctor                           whether the module works here, and what to do";

/// Records, resolves and reports the kernel and user stacks that the stackmap module replaced by ids.
#[derive(Debug, Parser)]
#[command(name = "stackmap", version, before_help = EXAMPLES, max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::Options),
    Recover(recover::Recover),
    Save(recover::Save),
    Report(report::Report),
    Resolve(resolve::Resolve),
    Dump(dump::Dump),
    Folded(folded::Folded),
    Flame(folded::Flame),
    Diff(diff::Diff),
    View(view::View),
    Export(export::Export),
    Offcpu(offcpu::Offcpu),
    Latency(latency::Latency),
    Leaks(leaks::Leaks),
    Top(top::Top),
    Stat(stat::StatArgs),
    Reset(stat::Reset),
    Doctor(doctor::Doctor),
    Completions(generate::Completions),
    Manual(generate::Manual),
    #[command(name = guard::COMMAND, hide = true)]
    GuardRecording {
        name: String,
        top: PathBuf,
    },
    #[command(name = child::COMMAND, hide = true)]
    NameFrames,
}

/// Runs the command that the arguments of the process name.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.global.set_color();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, Error::BrokenPipe | Error::Status(_)) {
                output::say_error(&error);
            }
            ExitCode::from(error.exit_status())
        }
    }
}

impl Cli {
    fn run(self) -> Result {
        let global = &self.global;
        match self.command {
            Command::Record(options) => options.run(global.tracefs()),
            Command::Recover(recover) => recover.run(global),
            Command::Save(save) => save.run(global),
            Command::Report(report) => report.run(global),
            Command::Resolve(resolve) => resolve.run(global),
            Command::Dump(dump) => dump.run(global),
            Command::Folded(folded) => folded.run(),
            Command::Flame(flame) => flame.run(),
            Command::Diff(diff) => diff.run(global),
            Command::View(view) => view.run(),
            Command::Export(export) => export.run(),
            Command::Offcpu(offcpu) => offcpu.run(global),
            Command::Latency(latency) => latency.run(global),
            Command::Leaks(leaks) => leaks.run(global),
            Command::Top(top) => top.run(global),
            Command::Stat(stat) => stat.run(global),
            Command::Reset(reset) => reset.run(global),
            Command::Doctor(doctor) => doctor.run(global),
            Command::Completions(completions) => completions.run(),
            Command::Manual(manual) => manual.run(),
            Command::GuardRecording { name, top } => guard::main(&name, &top),
            Command::NameFrames => child::main(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
