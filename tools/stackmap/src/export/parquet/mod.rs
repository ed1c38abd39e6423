// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures as tables for databases: Parquet files, in directories that name their capture.
//!
//! ```text
//! DIR/captures/capture=KEY/part.parquet
//! DIR/stacks/capture=KEY/part.parquet
//! DIR/frames/capture=KEY/part.parquet
//! DIR/events/capture=KEY/part.parquet
//! ```
//!
//! `Documentation/fleet.rst` has the columns, which are the same for all captures. Rows are written when there
//! are many of them, so the memory is bounded.

mod partition;
mod stacks;
mod table;

use crate::{
    capture::Manifest,
    error::Result,
    output::Access,
    ring::decode::Trace,
    source::Loaded,
    stable::{Identity, StableId, StableIds},
    symbols::texts::ByNumber,
    trace::{Event, Sides, StackRef, UserRef},
};
use partition::Partition;
use stacks::{Stack, FRAMES, STACKS};
use std::{collections::HashSet, path::Path};
use table::{Cell, Kind, Table};

/// More fields than an event of a kernel has.
const MAX_FIELDS: usize = 256;

/// The columns of `events`.
const EVENTS: [(&str, Kind); 18] = [
    ("number", Kind::Long),
    ("system", Kind::Text),
    ("event", Kind::Text),
    ("name", Kind::Text),
    ("time", Kind::Long),
    ("real_time_ns", Kind::Long),
    ("cpu", Kind::Int),
    ("pid", Kind::Long),
    ("tgid", Kind::Long),
    ("comm", Kind::Text),
    ("stack_id", Kind::Text),
    ("stack_missing", Kind::Text),
    ("user_stack_id", Kind::Text),
    ("user_stack_missing", Kind::Text),
    ("fields", Kind::Numbers),
    ("text", Kind::Text),
    ("host", Kind::Text),
    ("plumbing", Kind::Flag),
];

/// The columns of `captures`.
const CAPTURES: [(&str, Kind); 16] = [
    ("host", Kind::Text),
    ("boot_id", Kind::Text),
    ("labels", Kind::Texts),
    ("release", Kind::Text),
    ("machine", Kind::Text),
    ("build_id", Kind::Text),
    ("tool", Kind::Text),
    ("clock", Kind::Text),
    ("begin_time", Kind::Long),
    ("end_time", Kind::Long),
    ("begin_real_time_ns", Kind::Long),
    ("end_real_time_ns", Kind::Long),
    ("clock_error_ns", Kind::Long),
    ("duration_ns", Kind::Long),
    ("lost_events", Kind::Long),
    ("page_size", Kind::Long),
];

/// What is written, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Addresses of the kernel, too.
    pub addresses: bool,
    /// The fields of events as text, too.
    pub text: bool,
}

/// Writes a capture as it is read.
pub struct Writer<'a> {
    loaded: &'a Loaded,
    manifest: &'a Manifest,
    options: Options,
    partition: Partition,
    ids: StableIds<'a>,
    nr_events: u64,
    captures: Table,
    stacks: Table,
    frames: Table,
    events: Table,
    /// The ids of stacks in maps as texts, and those of all stacks that are written.
    kernel: ByNumber<u32, String>,
    user: ByNumber<u32, String>,
    written: HashSet<StableId>,
}

impl<'a> Writer<'a> {
    /// Begins the partition `key` of the tables in `path`.
    pub fn new(
        path: &Path,
        key: &str,
        access: Access,
        (loaded, manifest): (&'a Loaded, &'a Manifest),
        options: Options,
    ) -> Result<Self> {
        let mut partition = Partition::create(path, key, access)?;
        Ok(Self {
            loaded,
            manifest,
            options,
            captures: Table::new(partition.file("captures")?, &CAPTURES)?,
            stacks: Table::new(partition.file("stacks")?, &STACKS)?,
            frames: Table::new(partition.file("frames")?, &FRAMES)?,
            events: Table::new(partition.file("events")?, &EVENTS)?,
            partition,
            ids: StableIds::new(loaded),
            nr_events: 0,
            kernel: ByNumber::default(),
            user: ByNumber::default(),
            written: HashSet::new(),
        })
    }

    /// Writes an event.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>) -> Result {
        let stack = self.kernel_stack(sides.kernel)?;
        let user_stack = self.user_stack(sides.user)?;
        let missing = self.loaded.lacks_stack(sides.kernel);
        let user_missing = self.loaded.lacks_user_stack(sides.user);
        let time = event.time.value();
        let nanos = Trace::counts_nanos(&self.manifest.clock);
        let real_time = self.manifest.clocks.realtime(time, nanos);
        let Options { addresses, text } = self.options;
        let format = event.fields.format();
        let name = match event.name.ends_with("()") {
            true => "function",
            false => format.map_or(&event.name[..], |format| &format.name),
        };
        let shown = text.then(|| event.fields.export(&self.loaded.symbols, addresses));
        self.nr_events += 1;
        self.events.row([
            number(self.nr_events - 1),
            event.system().map(Cell::Text),
            Some(Cell::Text(name)),
            Some(Cell::Text(&event.name)),
            number(time),
            real_time.and_then(number),
            number(event.cpu),
            number(event.pid),
            event.tgid.and_then(number),
            Some(Cell::Text(&event.comm)),
            stack.as_deref().map(Cell::Text),
            missing.map(Cell::Text),
            user_stack.as_deref().map(Cell::Text),
            user_missing.map(Cell::Text),
            Some(Cell::Map(&numbers(event, addresses))),
            shown.as_deref().map(Cell::Text),
            self.manifest.host.as_deref().map(Cell::Text),
            Some(Cell::Flag(event.own)),
        ])
    }

    /// Returns the id of an event's stack of the kernel. Writes the stack if it is new.
    fn kernel_stack(&mut self, stack: StackRef<'_>) -> Result<Option<String>> {
        match stack {
            StackRef::Id(id) => {
                let new = self
                    .loaded
                    .stack(id)
                    .filter(|_| !self.kernel.contains_key(&id));
                if let Some((stack, identity)) =
                    new.and_then(|new| Some((new, self.ids.kernel(id)?)))
                {
                    self.kernel.insert(id, identity.stable_id.to_string());
                    self.stack(identity, &Stack::Kernel(stack.ips))?;
                }
                Ok(self.kernel.get(&id).cloned())
            }
            StackRef::Whole(ips) => {
                let identity = self.ids.full(ips);
                self.stack(identity, &Stack::Kernel(ips))?;
                Ok(Some(identity.stable_id.to_string()))
            }
            StackRef::None => Ok(None),
        }
    }

    /// Returns the id of its user stack in the same way.
    fn user_stack(&mut self, user: UserRef) -> Result<Option<String>> {
        let UserRef::Id(id) = user else {
            return Ok(None);
        };
        let new = self
            .loaded
            .user_stack(id)
            .filter(|_| !self.user.contains_key(&id));
        if let Some((stack, identity)) = new.and_then(|new| Some((new, self.ids.user(id)?))) {
            self.user.insert(id, identity.stable_id.to_string());
            self.stack(identity, &Stack::User(stack.ips))?;
        }
        Ok(self.user.get(&id).cloned())
    }

    /// Writes a stack, if it is not written yet.
    fn stack(&mut self, identity: Identity, stack: &Stack<'_>) -> Result {
        if !self.written.insert(identity.stable_id) {
            return Ok(());
        }
        let tables = [&mut self.stacks, &mut self.frames];
        stack.write(identity, self.loaded, self.options.addresses, tables)
    }

    /// Writes what is left, and puts the partition in its place.
    pub fn finish(mut self) -> Result {
        self.capture()?;
        for table in [self.captures, self.stacks, self.frames, self.events] {
            table.finish()?;
        }
        self.partition.finish()
    }

    /// Writes the row of the capture.
    fn capture(&mut self) -> Result {
        let manifest = self.manifest;
        let text = |text: Option<&'a str>| text.filter(|text| !text.is_empty()).map(Cell::Text);
        let labels = manifest.labels.iter();
        let labels: Vec<_> = labels
            .map(|(name, value)| (&name[..], Cell::Text(value)))
            .collect();
        let (begin, end) = (manifest.clocks.begin, manifest.clocks.end);
        let errors = [begin, end].into_iter().flatten();
        self.captures.row([
            text(manifest.host.as_deref()),
            text(manifest.boot_id.as_deref()),
            Some(Cell::Map(&labels)),
            text(Some(&manifest.release)),
            text(Some(&manifest.machine)),
            text(manifest.build_id.as_deref()),
            text(Some(&manifest.tool)),
            text(Some(&manifest.clock)),
            begin.and_then(|reading| number(reading.trace)),
            end.and_then(|reading| number(reading.trace)),
            begin.and_then(|reading| number(reading.realtime_ns)),
            end.and_then(|reading| number(reading.realtime_ns)),
            errors
                .map(|reading| reading.error_ns)
                .max()
                .and_then(number),
            number(manifest.duration_ns),
            number(manifest.lost()),
            manifest.page_size.and_then(number),
        ])
    }
}

/// A number in a table, which has 64 bits.
fn number<'a>(number: impl Into<u64>) -> Option<Cell<'a>> {
    Some(Cell::Number(number.into() as i64))
}

/// The fields of an event that are numbers, each name once.
fn numbers(event: &Event, addresses: bool) -> Vec<(&str, Cell<'static>)> {
    let mut numbers: Vec<(&str, Cell<'static>)> = Vec::new();
    let fields = event
        .fields
        .format()
        .map_or(&[][..], |format| &format.fields);
    for (index, field) in fields.iter().enumerate().take(MAX_FIELDS) {
        if field.number_bits().is_none() || numbers.iter().any(|(name, _)| *name == field.name) {
            continue;
        }
        if let Some(number) = event.fields.exported(index, addresses) {
            numbers.push((&field.name, Cell::Number(number as i64)));
        }
    }
    numbers
}

#[cfg(test)]
mod tests;
