// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap top`: the hottest stacks of the running kernel.

use super::args::Global;
use crate::{
    error::{Error, Result},
    filter::number,
    output::{Out, WARNING},
    record::parse_seconds,
    source::SymbolFiles,
    table::{table, Column},
    top::{draw, Model, Reaction, Sampler, Sort},
    tracefs::Tracefs,
};
use clap::Args;
use ratatui::{
    crossterm::event::{self, Event, KeyEventKind},
    DefaultTerminal,
};
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::{
    io::{self, IsTerminal, Write},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    thread::sleep,
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
examples:
  stackmap top                      live; something must record ids, such as stackmap record
  stackmap top --filter ext4        stacks with ext4 in a name
  stackmap top --once --sort total  one snapshot, as without a terminal";

/// Show the hottest stacks of the running kernel, live
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Top {
    /// Column to sort by
    #[arg(long, value_name = "KEY", default_value = "rate")]
    sort: Sort,
    /// Show only stacks with TEXT in a name
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
    /// Seconds between two updates
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print one snapshot and exit, also on a terminal
    #[arg(long)]
    once: bool,
    /// Number of stacks in a snapshot
    #[arg(long, value_name = "N", value_parser = number::<usize>, default_value_t = 20)]
    top: usize,
    /// Also show the frames of tracing itself, which are the innermost ones of a stack
    #[arg(long)]
    plumbing: bool,
    /// Show user stacks in place of those of the kernel
    #[arg(long)]
    user: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_seconds(text)?;
    let is_enough = interval >= Duration::from_millis(50);
    is_enough
        .then_some(interval)
        .ok_or_else(|| format!("{text} is less than 0.05 seconds"))
}

/// Waits for something from the terminal. A signal ends that early.
fn poll(wait: Duration) -> io::Result<bool> {
    match event::poll(wait) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        result => result,
    }
}

impl Top {
    pub(super) fn run(self, global: &Global) -> Result {
        let tracefs = Tracefs::find(global.tracefs())?;
        let files = SymbolFiles {
            apart: true,
            ..SymbolFiles::default()
        };
        let mut sampler = Sampler::new(tracefs, self.user, files)?;
        let mut model = Model {
            sort: self.sort,
            filter: self.filter.clone(),
            // Nothing of a user stack is.
            plumbing: self.plumbing || self.user,
            ..Model::default()
        };
        model.update(sampler.sample()?);
        if self.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            sleep(self.interval);
            model.update(sampler.sample()?);
            return self.snapshot(&model);
        }
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&ended))
                .map_err(|error| Error::io("catch signals", error))?;
        }
        let mut terminal =
            ratatui::try_init().map_err(|error| Error::io("set the terminal up", error))?;
        let result = self.live(&mut terminal, &mut sampler, &mut model, &ended);
        ratatui::restore();
        if result.is_err() {
            // What was seen last is not lost.
            self.snapshot(&model)?;
        }
        result
    }

    fn live(
        &self,
        terminal: &mut DefaultTerminal,
        sampler: &mut Sampler,
        model: &mut Model,
        ended: &AtomicBool,
    ) -> Result {
        let failed = |error| Error::io("use the terminal", error);
        let mut next = Instant::now() + self.interval;
        while !ended.load(Ordering::Relaxed) {
            terminal.draw(|frame| draw(model, frame)).map_err(failed)?;
            let mut wait = next.saturating_duration_since(Instant::now());
            // All pending keys are handled before the screen is drawn again.
            while poll(wait).map_err(failed)? {
                wait = Duration::ZERO;
                // Other events, such as a new size of the terminal, only need a redraw.
                if let Event::Key(key) = event::read().map_err(failed)? {
                    if key.kind != KeyEventKind::Release && model.key(key) == Reaction::Quit {
                        return Ok(());
                    }
                }
            }
            if Instant::now() >= next {
                model.update(sampler.sample()?);
                next = Instant::now() + self.interval;
            }
        }
        Ok(())
    }

    fn snapshot(&self, model: &Model) -> Result {
        let mut out = Out::stdout();
        let sample = &model.sample;
        for (off, what) in [
            (!sample.stackmap && !self.user, "options/stackmap is off"),
            (
                !sample.stackmap && self.user,
                "options/stackmap-user is off",
            ),
            (!sample.tracing, "tracing is off"),
        ] {
            if off {
                let label = out.style(WARNING, "WARNING:");
                writeln!(out, "{label} {what}: only instances count")?;
            }
        }
        let columns = [
            Column::Number("rate/s"),
            Column::Number("total"),
            Column::Number("id"),
            Column::Text("stack, innermost first"),
        ];
        let rows = model.rows();
        let rows = rows.iter().take(self.top).map(|row| {
            let frames = row.visible(model.plumbing).map(|(_, frame)| frame);
            let frames: Vec<_> = frames.collect();
            vec![
                format!("{:.0}", row.rate),
                row.total.to_string(),
                row.id.to_string(),
                frames.join(" < "),
            ]
        });
        write!(out, "{}", table(&columns, rows))?;
        out.finish()
    }
}
