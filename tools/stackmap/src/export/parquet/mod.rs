// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings as tables for databases: a directory of Parquet files.
//!
//! ```text
//! DIR/events/system=kmem/event=kmalloc/part-0.parquet
//! DIR/stacks/part-0.parquet
//! DIR/frames/part-0.parquet
//! DIR/captures/part-0.parquet
//! ```
//!
//! `Documentation/fleet.rst` has the columns. Rows are collected until there are [`MAX_ROWS`] of one table, or all
//! together take [`MAX_SIZE`]; then a file is written with them. So no file is open for long, however many
//! kinds of events there are, and the memory is bounded.

mod columns;
mod stacks;
mod table;

use crate::{
    capture::Manifest,
    error::Result,
    output::{Access, Directory},
    ring::{decode::Trace, format::Formats},
    source::{Loaded, Missing},
    stable::{Identity, StableId, StableIds},
    symbols::texts::ByNumber,
    trace::{Event, Sides, StackRef, UserRef},
};
use blake2::{digest::consts::U16, Blake2b, Digest};
use columns::{columns, word, Kinds, MAX_COLUMNS};
use stacks::{Stack, FRAMES, STACKS};
use std::{
    collections::{HashMap, HashSet},
    path::Path,
    rc::Rc,
};
use table::{Cell, Kind, Table};

/// So many rows has a file at most. As all bounds here, it is a smaller one in unit tests.
const MAX_ROWS: usize = if cfg!(test) { 1 << 9 } else { 1 << 19 };
/// What all rows that are not written yet take, in numbers of 8 bytes.
const MAX_SIZE: usize = if cfg!(test) { 1 << 16 } else { 8 << 20 };
/// So many kinds of events have files of their own.
const MAX_PARTITIONS: usize = if cfg!(test) { 32 } else { 4096 };
/// Where the rest of them is.
const OTHER: &str = "other";
/// The system of an event of which none is known.
const UNKNOWN_SYSTEM: &str = "unknown";

/// The columns of all events.
const COMMON: [(&str, Kind); 13] = [
    ("capture", Kind::INT),
    ("number", Kind::LONG),
    ("time", Kind::LONG),
    ("real_time_ns", Kind::LONG),
    ("cpu", Kind::INT),
    ("pid", Kind::LONG),
    ("tgid", Kind::LONG),
    ("comm", Kind::Text),
    ("name", Kind::Text),
    ("stack_id", Kind::Text),
    ("stack_missing", Kind::Text),
    ("user_stack_id", Kind::Text),
    ("user_stack_missing", Kind::Text),
];
/// `system` and `event` stand in the names of directories, and `text` is only there if it was asked for.
const OTHER_COMMON: [&str; 3] = ["system", "event", "text"];

/// Whether a column of all events is called so.
fn is_common(name: &str) -> bool {
    COMMON.iter().any(|(common, _)| *common == name) || OTHER_COMMON.contains(&name)
}

/// The columns of `captures`.
const CAPTURES: [(&str, Kind); 17] = [
    ("capture", Kind::INT),
    ("host", Kind::Text),
    ("boot_id", Kind::Text),
    ("labels", Kind::Map),
    ("release", Kind::Text),
    ("machine", Kind::Text),
    ("build_id", Kind::Text),
    ("tool", Kind::Text),
    ("clock", Kind::Text),
    ("begin_time", Kind::LONG),
    ("end_time", Kind::LONG),
    ("begin_real_time_ns", Kind::LONG),
    ("end_real_time_ns", Kind::LONG),
    ("clock_error_ns", Kind::LONG),
    ("duration_ns", Kind::LONG),
    ("lost_events", Kind::LONG),
    ("page_size", Kind::LONG),
];

/// What is written, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Addresses of the kernel, too.
    pub addresses: bool,
    /// The fields of events as text, too.
    pub text: bool,
}

/// The files of one table.
struct Files {
    /// The directory that they are in.
    dir: String,
    table: Table,
    nr_files: u32,
}

impl Files {
    fn new(dir: String, columns: impl IntoIterator<Item = (String, Kind)>) -> Self {
        Self {
            dir,
            table: Table::new(columns),
            nr_files: 0,
        }
    }

    fn of(dir: &str, columns: &[(&str, Kind)]) -> Self {
        let columns = columns
            .iter()
            .map(|(name, kind)| ((*name).to_owned(), *kind));
        Self::new(dir.to_owned(), columns)
    }

    /// Writes a file of the rows that there are.
    fn write(&mut self, dir: &mut Directory) -> Result {
        let (file, path) = dir.file(&self.dir, &format!("part-{}.parquet", self.nr_files))?;
        self.nr_files += 1;
        self.table.write(file, &path)
    }

    /// Ends a row of a table that takes little by itself.
    fn end_row(&mut self, dir: &mut Directory) -> Result {
        self.table.end_row();
        match self.table.len() >= MAX_ROWS || self.table.size() >= MAX_SIZE {
            true => self.write(dir),
            false => Ok(()),
        }
    }

    /// Writes what is left; a table without rows is a file, too.
    fn finish(&mut self, dir: &mut Directory) -> Result {
        match self.table.len() > 0 || self.nr_files == 0 {
            true => self.write(dir),
            false => Ok(()),
        }
    }
}

/// Where events of a kind go: the number of their files, and of each field the column.
struct Plan {
    files: usize,
    columns: Vec<(usize, usize)>,
}

/// Writes a recording as it is read.
pub struct Writer<'a> {
    loaded: &'a Loaded,
    options: Options,
    dir: Directory,
    ids: StableIds<'a>,
    /// What the captures say about themselves.
    manifests: Vec<&'a Manifest>,
    /// The files of events, and which of them a system and an event have.
    events: Vec<Files>,
    by_name: HashMap<(String, String), usize>,
    /// By the capture and the number of a format; and by the name, of an event without one.
    plans: HashMap<(u32, u16), Rc<Plan>>,
    by_text: HashMap<String, Rc<Plan>>,
    nr_events: u64,
    /// What the rows of events take that are not written yet.
    size: usize,
    stacks: Files,
    frames: Files,
    /// The ids of stacks in maps as texts, and those of all stacks that are written.
    kernel: ByNumber<u32, String>,
    user: ByNumber<u32, String>,
    written: HashSet<StableId>,
}

impl<'a> Writer<'a> {
    /// Makes the directory `path`.
    pub fn new(path: &Path, access: Access, loaded: &'a Loaded, options: Options) -> Result<Self> {
        Ok(Self {
            loaded,
            options,
            dir: Directory::create(path, access)?,
            ids: StableIds::new(loaded),
            manifests: match &loaded.recordings[..] {
                [] => loaded.manifest.iter().collect(),
                several => several.iter().collect(),
            },
            events: Vec::new(),
            by_name: HashMap::new(),
            plans: HashMap::new(),
            by_text: HashMap::new(),
            nr_events: 0,
            size: 0,
            stacks: Files::of("stacks", &STACKS),
            frames: Files::of("frames", &FRAMES),
            kernel: ByNumber::default(),
            user: ByNumber::default(),
            written: HashSet::new(),
        })
    }

    /// Says what the fields of all events are, by capture.
    pub fn describe<'f>(&mut self, captures: impl IntoIterator<Item = &'f Formats>) {
        let captures: Vec<&Formats> = captures.into_iter().collect();
        let mut kinds = Kinds::default();
        let all = captures.iter().flat_map(|formats| formats.iter());
        // What events of a name have in all captures.
        let mut names: HashMap<(String, String), Vec<String>> = HashMap::new();
        for format in all {
            kinds.add(format);
            let key = (word(&format.system), word(&format.name));
            let names = names.entry(key).or_default();
            for (_, column) in columns(format) {
                let is_there = names.iter().any(|name| name.eq_ignore_ascii_case(&column));
                if !is_there && names.len() < MAX_COLUMNS {
                    names.push(column);
                }
            }
        }
        for (capture, formats) in (0..).zip(&captures) {
            for format in formats.iter() {
                let key = (word(&format.system), word(&format.name));
                let names = names.get(&key).map_or(&[][..], Vec::as_slice);
                let fields = names.iter().map(|name| (name.clone(), kinds.get(name)));
                let (files, has_fields) = self.files(key, fields.collect());
                let mut plan = Plan {
                    files,
                    columns: Vec::new(),
                };
                if has_fields {
                    for (index, column) in columns(format) {
                        let same = |name: &String| name.eq_ignore_ascii_case(&column);
                        if let Some(at) = names.iter().position(same) {
                            plan.columns.push((index, self.nr_common() + at));
                        }
                    }
                }
                self.plans.insert((capture, format.id), Rc::new(plan));
            }
        }
    }

    /// How many columns all events have.
    fn nr_common(&self) -> usize {
        COMMON.len() + usize::from(self.options.text)
    }

    /// The number of the files of a system and an event, which have these columns for fields; and
    /// whether they do.
    fn files(&mut self, key: (String, String), fields: Vec<(String, Kind)>) -> (usize, bool) {
        if let Some(number) = self.by_name.get(&key) {
            return (*number, true);
        }
        let other = (OTHER.to_owned(), OTHER.to_owned());
        if self.events.len() >= MAX_PARTITIONS && key != other {
            return (self.files(other, Vec::new()).0, false);
        }
        let common = COMMON
            .iter()
            .map(|(name, kind)| ((*name).to_owned(), *kind));
        let text = self.options.text.then(|| ("text".to_owned(), Kind::Text));
        let dir = format!("events/system={}/event={}", key.0, key.1);
        let number = self.events.len();
        self.events
            .push(Files::new(dir, common.chain(text).chain(fields)));
        self.by_name.insert(key, number);
        (number, true)
    }

    /// Where an event goes.
    fn plan(&mut self, event: &Event) -> Rc<Plan> {
        let format = event.fields.format();
        let plan = format.and_then(|format| self.plans.get(&(event.recording.number, format.id)));
        if let Some(plan) = plan.or_else(|| self.by_text.get(&event.name)) {
            return plan.clone();
        }
        let system = event.system().unwrap_or(UNKNOWN_SYSTEM);
        // Each function has an event of its own name in a text.
        let name = match event.name.ends_with("()") {
            true => "function",
            false => &event.name,
        };
        let (files, _) = self.files((word(system), word(name)), Vec::new());
        let plan = Rc::new(Plan {
            files,
            columns: Vec::new(),
        });
        if self.by_text.len() < MAX_PARTITIONS {
            self.by_text.insert(event.name.clone(), plan.clone());
        }
        plan
    }

    /// Writes an event. `ips`: the frames of its full stack, if they are known.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>, ips: &[u64]) -> Result {
        let (stack, missing) = self.kernel_stack(sides.kernel, ips)?;
        let (user_stack, user_missing) = self.user_stack(sides.user)?;
        let plan = self.plan(event);
        let capture = event.recording.number;
        let time = event.time.value();
        let manifest = self.manifests.get(capture as usize);
        let real_time = manifest.and_then(|manifest| {
            let nanos = Trace::counts_nanos(&manifest.clock);
            manifest.clocks.realtime(time, nanos)
        });
        let loaded = self.loaded;
        let Options { addresses, text } = self.options;
        let table = &mut self.events[plan.files].table;
        let before = table.size();
        let mut set = |column: usize, cell: Option<Cell<'_>>| {
            if let Some(cell) = cell {
                table.set(column, cell);
            }
        };
        let number = |number: u64| Some(Cell::Number(number.into()));
        set(0, number(capture.into()));
        set(1, number(self.nr_events));
        set(2, number(time));
        set(3, real_time.and_then(number));
        set(4, number(event.cpu.into()));
        set(5, number(event.pid.into()));
        set(6, event.tgid.and_then(|tgid| number(tgid.into())));
        set(7, Some(Cell::Text(&event.comm)));
        set(8, Some(Cell::Text(&event.name)));
        let of_map = |id: Option<Known>, map: &ByNumber<u32, String>| match id? {
            Known::InMap(id) => map.get(&id).cloned(),
            Known::Full(id) => Some(id.to_string()),
        };
        let stack = of_map(stack, &self.kernel);
        let user_stack = of_map(user_stack, &self.user);
        set(9, stack.as_deref().map(Cell::Text));
        set(10, missing.map(Cell::Text));
        set(11, user_stack.as_deref().map(Cell::Text));
        set(12, user_missing.map(Cell::Text));
        if text {
            let fields = event.fields.export(&loaded.symbols, addresses);
            set(13, Some(Cell::Text(&fields)));
        }
        for (field, column) in &plan.columns {
            let value = event.fields.exported(*field, addresses);
            set(*column, value.map(Cell::Number));
        }
        table.end_row();
        self.nr_events += 1;
        let is_full = table.len() >= MAX_ROWS;
        self.size = self.size.saturating_add(table.size()) - before;
        if is_full {
            self.write(plan.files)?;
        }
        while self.size > MAX_SIZE {
            let sizes = self.events.iter().map(|files| files.table.size());
            let Some((largest, _)) = sizes.enumerate().max_by_key(|(_, size)| *size) else {
                break;
            };
            self.write(largest)?;
        }
        Ok(())
    }

    /// Writes a file of the events that wait for it.
    fn write(&mut self, files: usize) -> Result {
        let files = &mut self.events[files];
        self.size -= files.table.size();
        files.write(&mut self.dir)
    }

    /// What stack of the kernel an event has, or why there is none.
    fn kernel_stack(
        &mut self,
        stack: StackRef<'_>,
        ips: &[u64],
    ) -> Result<(Option<Known>, Option<&'static str>)> {
        match stack {
            StackRef::Id(id) => {
                let Some(known) = self.loaded.stack(id) else {
                    return Ok((None, Some(why(self.loaded.missing(id)))));
                };
                if !self.kernel.contains_key(&id) {
                    if let Some(identity) = self.ids.kernel(id) {
                        self.kernel.insert(id, identity.stable_id.to_string());
                        self.stack(identity, &Stack::Kernel(known.ips))?;
                    }
                }
                Ok((Some(Known::InMap(id)), None))
            }
            StackRef::Whole(whole) => {
                let identity = match ips {
                    [] => self.ids.text(whole).unwrap_or_else(|| id_of_names(whole)),
                    ips => self.ids.full(ips),
                };
                let stack = match ips {
                    [] => Stack::Text(whole),
                    ips => Stack::Kernel(ips),
                };
                self.stack(identity, &stack)?;
                Ok((Some(Known::Full(identity.stable_id)), None))
            }
            StackRef::None => Ok((None, None)),
        }
    }

    /// The same of its user stack.
    fn user_stack(&mut self, user: UserRef) -> Result<(Option<Known>, Option<&'static str>)> {
        Ok(match user {
            UserRef::Id(id) => {
                let Some(known) = self.loaded.user_stack(id) else {
                    return Ok((None, Some(why(self.loaded.missing_user(id)))));
                };
                if !self.user.contains_key(&id) {
                    if let Some(identity) = self.ids.user(id) {
                        self.user.insert(id, identity.stable_id.to_string());
                        self.stack(identity, &Stack::User(known.ips))?;
                    }
                }
                (Some(Known::InMap(id)), None)
            }
            UserRef::NotKept => (None, Some("not kept")),
            UserRef::Pending => (None, Some("pending")),
            UserRef::Lost => (None, Some("lost")),
            UserRef::None => (None, None),
        })
    }

    /// Writes a stack, if it is not written yet.
    fn stack(&mut self, identity: Identity, stack: &Stack<'_>) -> Result {
        if !self.written.insert(identity.stable_id) {
            return Ok(());
        }
        let tables = [&mut self.stacks, &mut self.frames];
        let addresses = self.options.addresses;
        stack.write(identity, self.loaded, addresses, tables, &mut self.dir)
    }

    /// Writes what is left, and gives the directory its name.
    pub fn finish(mut self) -> Result {
        for files in 0..self.events.len() {
            if self.events[files].table.len() > 0 {
                self.write(files)?;
            }
        }
        let mut captures = Files::of("captures", &CAPTURES);
        for (number, manifest) in (0..).zip(&self.manifests) {
            capture(&mut captures.table, number, manifest);
            captures.end_row(&mut self.dir)?;
        }
        for files in [&mut self.stacks, &mut self.frames, &mut captures] {
            files.finish(&mut self.dir)?;
        }
        self.dir.finish()
    }
}

/// A stack that is written.
#[derive(Clone, Copy)]
enum Known {
    /// It is in a map, with this id.
    InMap(u32),
    /// It is a full stack.
    Full(StableId),
}

/// What identifies a stack of which only the names are known, without offsets.
fn id_of_names(frames: &[String]) -> Identity {
    let mut hash = Blake2b::<U16>::new();
    hash.update(b"stackmap names 1\n");
    for frame in frames {
        hash.update(frame);
        hash.update(b"\n");
    }
    Identity {
        stable_id: StableId(hash.finalize().into()),
        stable: false,
    }
}

fn why(missing: Missing) -> &'static str {
    match missing {
        Missing::Stale => "stale",
        Missing::Gone => "gone",
        Missing::Unknown => "unknown",
    }
}

/// Sets the columns of a capture.
fn capture(table: &mut Table, number: u32, manifest: &Manifest) {
    let mut text = |column, text: Option<&str>| {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            table.set(column, Cell::Text(text));
        }
    };
    text(1, manifest.host.as_deref());
    text(2, manifest.boot_id.as_deref());
    text(4, Some(&manifest.release));
    text(5, Some(&manifest.machine));
    text(6, manifest.build_id.as_deref());
    text(7, Some(&manifest.tool));
    text(8, Some(&manifest.clock));
    let labels = manifest.labels.iter();
    let labels: Vec<_> = labels
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    table.set(3, Cell::Map(&labels));
    let mut number_in = |column, number: Option<u64>| {
        if let Some(number) = number {
            table.set(column, Cell::Number(number.into()));
        }
    };
    let (begin, end) = (manifest.clocks.begin, manifest.clocks.end);
    let both = [begin, end].into_iter().flatten();
    number_in(0, Some(number.into()));
    number_in(9, begin.map(|reading| reading.trace));
    number_in(10, end.map(|reading| reading.trace));
    number_in(11, begin.map(|reading| reading.realtime_ns));
    number_in(12, end.map(|reading| reading.realtime_ns));
    number_in(13, both.map(|reading| reading.error_ns).max());
    number_in(14, Some(manifest.duration_ns));
    number_in(15, Some(manifest.lost()));
    number_in(16, manifest.page_size);
}

#[cfg(test)]
mod tests;
