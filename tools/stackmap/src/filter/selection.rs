// SPDX-License-Identifier: MIT OR Apache-2.0

//! A filter at work on the events of one trace.

use super::{fits_any, Filter};
use crate::{
    notes::count_of,
    output::safe,
    report,
    source::Loaded,
    symbols::texts::ByNumber,
    tally::{Kernel, Key, Part},
    trace::{Event, Sides, StackRef, Time, UserRef},
    user::{ByFrame, WhichFrame},
};
use std::collections::{BTreeSet, HashMap};

/// Full stacks that are remembered, at most.
const MAX_WHOLE: usize = 1 << 14;
/// Values that are remembered of what events have, and that are named, at most.
const MAX_SEEN: usize = 256;
const MAX_LISTED: usize = 12;

/// How many events a filter has kept.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Filtered {
    /// How many.
    pub kept: u64,
    /// Of how many.
    pub all: u64,
    /// If none: the options, and what events have of what they ask for.
    pub why: String,
}

impl Filtered {
    /// What there is to say.
    pub fn line(&self) -> Option<String> {
        let none = self.kept == 0 && self.all > 0;
        none.then(|| {
            let events = count_of(self.all, "event");
            format!("none of {events} matches {}", self.why)
        })
    }
}

/// Selects events, and counts them.
pub struct Selection<'a> {
    filter: &'a Filter,
    loaded: &'a Loaded,
    /// Whether there is anything to compare.
    is_given: bool,
    kept: u64,
    all: u64,
    /// How many fit and are hidden, as tracing itself caused them. The others are counted.
    pub own: u64,
    seen: Seen,
    kernel: ByNumber<u32, bool>,
    user: ByNumber<u32, bool>,
    whole: HashMap<Vec<u64>, bool>,
    /// Return addresses, and exact addresses.
    addresses: [ByNumber<u64, bool>; 2],
    user_frames: ByFrame<bool>,
}

impl<'a> Selection<'a> {
    /// One by the filter in what was read of a trace.
    pub fn new(loaded: &'a Loaded) -> Self {
        Self::by(&loaded.filter, loaded)
    }

    /// One by another filter.
    pub fn by(filter: &'a Filter, loaded: &'a Loaded) -> Self {
        Self {
            filter,
            loaded,
            is_given: !filter.is_empty(),
            kept: 0,
            all: 0,
            own: 0,
            seen: Seen::default(),
            kernel: ByNumber::default(),
            user: ByNumber::default(),
            whole: HashMap::new(),
            addresses: Default::default(),
            user_frames: ByFrame::default(),
        }
    }

    /// Whether an event is kept that has these stacks.
    pub fn keeps(&mut self, event: &Event, sides: Sides<'_>) -> bool {
        let fits = !self.is_given || self.filter.fits(event) && self.fits_stacks(sides);
        if event.own && self.filter.hides_own {
            self.own += u64::from(fits);
            return false;
        }
        !self.is_given || self.count(event, fits)
    }

    /// Whether a stack of a map is kept.
    pub fn keeps_stack(&mut self, key: Key) -> bool {
        let kernel = match key.kernel {
            Kernel::Id(id) => StackRef::Id(id),
            _ => StackRef::None,
        };
        let user = key.user;
        self.fits_stacks(Sides { kernel, user })
    }

    fn count(&mut self, event: &Event, is_kept: bool) -> bool {
        self.all += 1;
        self.kept += u64::from(is_kept);
        if self.kept == 0 {
            self.seen.add(self.filter, event);
        }
        is_kept
    }

    /// What was kept; [`None`]: there is no filter.
    pub fn finish(self) -> Option<Filtered> {
        self.is_given.then(|| Filtered {
            kept: self.kept,
            all: self.all,
            why: match self.kept {
                0 => self.seen.text(self.filter),
                _ => String::new(),
            },
        })
    }

    fn fits_stacks(&mut self, sides: Sides<'_>) -> bool {
        !self.filter.has_stacks() || self.fits_kernel(sides.kernel) || self.fits_user(sides.user)
    }

    fn fits_kernel(&mut self, stack: StackRef<'_>) -> bool {
        match stack {
            StackRef::Id(id) => match self.kernel.get(&id) {
                Some(fits) => *fits,
                None => {
                    let stack = self.loaded.stack(id);
                    let fits = stack.is_some_and(|stack| self.fits_frames(stack.ips));
                    self.kernel.insert(id, fits);
                    fits
                }
            },
            StackRef::Whole(stack) => match self.whole.get(stack) {
                Some(fits) => *fits,
                None => {
                    let fits = self.fits_frames(stack);
                    if self.whole.len() == MAX_WHOLE {
                        self.whole.clear();
                    }
                    self.whole.insert(stack.to_vec(), fits);
                    fits
                }
            },
            StackRef::None => false,
        }
    }

    fn fits_frames(&mut self, ips: &[u64]) -> bool {
        let Self {
            filter,
            loaded,
            addresses,
            ..
        } = self;
        loaded.symbols.stack(ips).any(|at| {
            let known = addresses[usize::from(at.exact)].entry(at.ip);
            *known.or_insert_with(|| {
                let mut frames = loaded.symbols.frames(at.ip, at.exact);
                frames.any(|frame| is_frame(filter, &Part::Kernel(frame)))
            })
        })
    }

    fn fits_user(&mut self, user: UserRef) -> bool {
        let UserRef::Id(id) = user else { return false };
        if let Some(fits) = self.user.get(&id) {
            return *fits;
        }
        let Self {
            filter,
            loaded,
            user_frames,
            ..
        } = self;
        let mut fits_frame = |which: WhichFrame| {
            *user_frames.get_or(which, || {
                let mut frames = loaded.user.frames(which);
                frames.any(|frame| is_frame(filter, &Part::User(frame)))
            })
        };
        let stack = loaded.user_stack(id);
        let fits = stack.is_some_and(|stack| loaded.user.stack(stack.ips).any(&mut fits_frame));
        self.user.insert(id, fits);
        fits
    }
}

/// Whether a frame matches: its name, or the line that a report shows of it.
pub(super) fn is_frame(filter: &Filter, part: &Part<'_>) -> bool {
    let name = match part {
        Part::Kernel(frame) => frame.name(),
        Part::User(frame) => frame.function(),
        Part::Missing(_) => return false,
    };
    let is_match = |text: &str| fits_any(&filter.stacks, |regex| regex.is_match(text));
    name.is_some_and(is_match) || is_match(&report::text(part))
}

/// What the events have of what is asked for, as long as none is kept.
#[derive(Default)]
struct Seen {
    comms: BTreeSet<String>,
    pids: BTreeSet<u32>,
    cpus: BTreeSet<u32>,
    events: BTreeSet<String>,
    span: Option<(Time, Time)>,
}

impl Seen {
    fn add(&mut self, filter: &Filter, event: &Event) {
        if !(filter.comms.is_empty() && filter.not_comms.is_empty()) {
            add_text(&mut self.comms, &event.comm);
        }
        if !(filter.pids.is_empty() && filter.not_pids.is_empty()) && self.pids.len() < MAX_SEEN {
            self.pids.extend([event.pid].into_iter().chain(event.tgid));
        }
        if !filter.cpus.is_empty() && self.cpus.len() < MAX_SEEN {
            self.cpus.insert(event.cpu);
        }
        if !(filter.events.is_empty() && filter.not_events.is_empty()) {
            match event.system() {
                Some(system) if !event.name.ends_with("()") => {
                    add_text(&mut self.events, &format!("{system}:{}", event.name));
                }
                _ => add_text(&mut self.events, &event.name),
            }
        }
        let (first, last) = self.span.unwrap_or((event.time, event.time));
        self.span = Some((first.min(event.time), last.max(event.time)));
    }

    /// The options, and what the events have of each.
    fn text(&self, filter: &Filter) -> String {
        let mut text = filter.options().collect::<Vec<_>>().join(" ");
        let numbers = |numbers: &BTreeSet<u32>| list(numbers.iter().map(u32::to_string));
        for (is_given, what, values) in [
            (
                !self.comms.is_empty(),
                "tasks",
                list(self.comms.iter().cloned()),
            ),
            (!self.pids.is_empty(), "pids", numbers(&self.pids)),
            (!self.cpus.is_empty(), "CPUs", numbers(&self.cpus)),
            (
                !self.events.is_empty(),
                "events",
                list(self.events.iter().cloned()),
            ),
        ] {
            if is_given {
                text.push_str(&format!("; {what}: {values}"));
            }
        }
        if let (false, Some((first, last))) = (filter.times.is_empty(), self.span) {
            text.push_str(&format!("; times: {first} to {last}"));
        }
        text
    }
}

fn add_text(texts: &mut BTreeSet<String>, text: &str) {
    if texts.len() < MAX_SEEN && !texts.contains(text) {
        texts.insert(text.to_owned());
    }
}

/// The first of some values.
fn list(values: impl ExactSizeIterator<Item = String>) -> String {
    let more = values.len().saturating_sub(MAX_LISTED);
    let mut listed: Vec<_> = values
        .take(MAX_LISTED)
        .map(|value| safe(&value).into_owned())
        .collect();
    if more > 0 {
        listed.push("...".to_owned());
    }
    listed.join(", ")
}
