// SPDX-License-Identifier: MIT OR Apache-2.0

//! Looks at the map now and then.

use super::{Names, Row};
use crate::{
    error::{Error, Result},
    kernel,
    source::{live_user, or_without, SymbolFiles, KERNEL_NAMES},
    stack_map_bin::{LoadId, Stack},
    stacks::Stacks,
    stat::Stat,
    symbols::{Place, Symbols},
    tracefs::Tracefs,
    user::User,
};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long names are not read again although some frames have none, as modules are loaded and
/// unloaded.
const NAMES_LAST: Duration = Duration::from_secs(10);

/// The counters and the stacks at one time.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The stacks, in no order.
    pub rows: Vec<Row>,
    /// The counters.
    pub stat: Stat,
    /// Stacks that were recorded as ids, in a second.
    pub ids_per_second: f64,
    /// Full stacks that were recorded, per second.
    pub drops_per_second: f64,
    /// Whether `options/stackmap` is on.
    pub stackmap: bool,
    /// Whether `tracing_on` is on.
    pub tracing: bool,
}

/// Looks at a map of a tracefs.
pub struct Sampler {
    tracefs: Tracefs,
    /// What frames of user stacks are named by.
    files: SymbolFiles,
    /// Whether it is that of user stacks.
    is_user: bool,
    symbols: Symbols,
    symbols_read: Instant,
    names: Names,
    /// The load of the module, and the generation of its ids.
    generation: (Option<LoadId>, Option<u32>),
    before: Option<(Instant, HashMap<u32, u32>, Stat)>,
}

impl Sampler {
    /// Begins to look. `is_user`: at the user stacks.
    pub fn new(tracefs: Tracefs, is_user: bool, files: SymbolFiles) -> Result<Self> {
        tracefs.require_stackmap()?;
        if is_user && !tracefs.has("stack_map_user_bin") {
            return Err(Error::Refused(
                "the loaded module is too old: it has no user stacks".to_owned(),
            ));
        }
        Ok(Self {
            tracefs,
            files,
            is_user,
            symbols: match is_user {
                true => Symbols::default(),
                false => or_without(KERNEL_NAMES, symbols(), true).unwrap_or_default(),
            },
            symbols_read: Instant::now(),
            names: Names::new(),
            generation: (None, None),
            before: None,
        })
    }

    /// Looks once. Rates are those since the last time.
    pub fn sample(&mut self) -> Result<Sample> {
        // What is missing is said before the screen is set up.
        let is_first = self.before.is_none();
        let stat = match self.is_user {
            true => self.tracefs.user_stat(),
            false => self.tracefs.stat(),
        };
        let stat = or_without("counters", stat, is_first).unwrap_or_default();
        let mut user = User::default();
        let stacks = match self.is_user {
            true => {
                user = live_user(&self.tracefs, &self.files, is_first)?;
                std::mem::take(&mut user.stacks)
            }
            false => self.tracefs.stacks()?,
        };
        let now = Instant::now();
        // What cannot be read is not said to be off.
        let is_on = |file| {
            self.tracefs
                .read(file)
                .map_or(true, |text| text.trim() == "1")
        };
        let option = match self.is_user {
            true => "options/stackmap-user",
            false => "options/stackmap",
        };
        let (stackmap, tracing) = (is_on(option), is_on("tracing_on"));

        // After a reset, or in another load, nothing that was seen before means anything.
        let generation = (stacks.load_id(), stacks.generation(stat.slot_bits()));
        if generation != self.generation {
            self.generation = generation;
            self.names.clear();
            if let Some((_, totals, _)) = &mut self.before {
                totals.clear();
            }
        }
        let seconds = self
            .before
            .as_ref()
            .map(|(then, ..)| (now - *then).as_secs_f64());
        let rate = |count: u64| match seconds {
            Some(seconds) if seconds > 0.0 => count as f64 / seconds,
            _ => 0.0,
        };
        match self.is_user {
            true => self.read_user_names(&stacks, user),
            false => self.read_names(&stacks),
        }
        let before = self.before.as_ref().map(|(_, totals, _)| totals);
        let row = |stack: Stack<'_>| {
            let total = stack.ref_count;
            let then = before
                .and_then(|totals| totals.get(&stack.id))
                .unwrap_or(&0);
            Row {
                id: stack.id,
                total,
                rate: rate(total.saturating_sub(*then).into()),
                frames: self.names.get(&stack.id).cloned().unwrap_or_default(),
            }
        };
        let rows = stacks.iter().map(row).collect();
        let grown = |key| {
            let then = self
                .before
                .as_ref()
                .and_then(|(_, _, stat)| stat.number(key));
            let now = stat.number(key).unwrap_or(0);
            rate(now.saturating_sub(then.unwrap_or(now)))
        };
        let (ids_per_second, drops_per_second) = match self.is_user {
            true => (grown("hits") + grown("inserts"), 0.0),
            false => (grown("successes"), grown("drops")),
        };
        let totals = stacks.iter().map(|stack| (stack.id, stack.ref_count));
        self.before = Some((now, totals.collect(), stat.clone()));
        Ok(Sample {
            rows,
            stat,
            ids_per_second,
            drops_per_second,
            stackmap,
            tracing,
        })
    }

    fn read_user_names(&mut self, stacks: &Stacks, mut user: User) {
        // Files are read for what is new alone.
        let new = stacks
            .iter()
            .filter(|stack| !self.names.contains_key(&stack.id));
        for stack in new {
            // There is no id twice.
            let _ = user.stacks.push(stack);
        }
        user.prime(&mut |_| {});
        for stack in user.stacks.iter() {
            let frames = user.stack(stack.ips).flat_map(|which| user.frames(which));
            let frames = frames.map(|frame| frame.to_string());
            self.names.insert(stack.id, frames.collect());
        }
    }

    fn read_names(&mut self, stacks: &Stacks) {
        let unnamed = |symbols: &Symbols| {
            let new = stacks
                .iter()
                .filter(|stack| !self.names.contains_key(&stack.id));
            new.flat_map(|stack| stack.ips.iter())
                .any(|ip| symbols.place(*ip, false) == Place::Unknown)
        };
        if self.symbols_read.elapsed() > NAMES_LAST && unnamed(&self.symbols) {
            self.symbols = symbols().unwrap_or_else(|_| std::mem::take(&mut self.symbols));
            self.symbols_read = Instant::now();
        }
        for stack in stacks.iter() {
            let symbols = &self.symbols;
            self.names.entry(stack.id).or_insert_with(|| {
                let frames = symbols.stack(stack.ips).flat_map(|at| {
                    let frames = symbols.frames(at.ip, at.exact);
                    frames.map(|frame| frame.to_string())
                });
                frames.collect::<Arc<[String]>>()
            });
        }
    }
}

fn symbols() -> Result<Symbols> {
    Ok(Symbols {
        kallsyms: Some(kernel::kallsyms()?),
        // Frames that are hidden later name the event.
        plumbing: true,
        ..Symbols::default()
    })
}
