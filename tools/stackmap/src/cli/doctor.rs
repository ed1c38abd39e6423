// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap doctor`: whether the module works on this kernel, and what to do.

use super::args::Global;
use crate::{
    doctor::{System, Verdict},
    error::{Error, Result},
    output::{safe, Out, DIM, ERROR, GOOD, WARNING},
};
use clap::Args;
use std::io::{self, Write};

const EXAMPLES: &str = "\
examples:
  stackmap doctor            before the module is loaded, or if it does not load
  stackmap doctor --json     for a program";

const NOTES: &str = "\
The exit status is 1 if the module cannot work.";

/// Check whether the module works on this kernel, and say what to do
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES, after_help = NOTES)]
pub(super) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(super) fn run(self, global: &Global) -> Result {
        let checks = System::running(global.tracefs()).check();
        let mut out = Out::stdout();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &checks).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            for check in &checks {
                let (style, label) = match check.verdict {
                    Verdict::Good => (GOOD, "ok"),
                    Verdict::Note => (DIM, "note"),
                    Verdict::Warning => (WARNING, "warning"),
                    Verdict::Bad => (ERROR, "bad"),
                };
                let label = out.style(style, format!("{label:>7}"));
                writeln!(out, "{label}  {}: {}", check.what, safe(&check.found))?;
                if let Some(advice) = &check.advice {
                    for line in advice.lines() {
                        writeln!(out, "         {}", safe(line.trim()))?;
                    }
                }
            }
        }
        out.finish()?;
        match checks.iter().any(|check| check.verdict == Verdict::Bad) {
            true => Err(Error::Status(1)),
            false => Ok(()),
        }
    }
}
