// SPDX-License-Identifier: MIT OR Apache-2.0

//! Takes the ring buffer: its pages, unchanged, and the files that describe them.
//!
//! Reading a page removes it from the kernel's buffer. So all pages are kept here in memory,
//! packed, until the capture is written; after a failure they can be written elsewhere.

use super::{
    cpu_buffer::CpuBuffer,
    processes,
    spool::Spool,
    wait::{Signals, INTERRUPTED},
    window::Window,
};
use crate::{
    capture::{member, reserve, Room, Writer, PACKING},
    error::{Error, Result},
    notes::count_of,
    output::{warn, Progress},
    ring::{
        format::{Format, Formats, Special, Value},
        page::{Cursor, Layout, Record},
        show::Show,
        stream::write_page,
        tasks::{Tasks, MAX_NAMES},
        Damage, Order,
    },
    tracefs::Tracefs,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
};
use zip::ZipWriter;

/// The path from an instance to the top level, which has the files that an instance lacks.
const TOP: &str = "../..";

/// A ring buffer that was taken.
pub(super) struct Buffer {
    /// An archive with the pages in it.
    packed: Packed,
    header_page: String,
    header_event: String,
    printk_formats: String,
    /// The descriptions of the events that are there, by their names.
    formats: BTreeMap<String, String>,
    tasks: Tasks,
    /// Addresses in the buffer that need names, and whether each address is exact.
    pub(super) frames: BTreeSet<(u64, bool)>,
    /// How many events of each CPU were streamed.
    pub(super) streamed: BTreeMap<u32, u64>,
    /// How many events of each CPU were left out, and when the others begin.
    pub(super) left_out: BTreeMap<u32, (u64, Option<u64>)>,
}

/// Where the pages are until the capture is written.
enum Packed {
    Memory(Vec<u8>),
    /// What was streamed may be more than fits into memory.
    File(File),
}

/// What is collected while pages are read.
struct Seen {
    formats: Formats,
    keep_fields: bool,
    ids: BTreeSet<u16>,
    pids: BTreeSet<i32>,
    frames: BTreeSet<(u64, bool)>,
    streamed: BTreeMap<u32, u64>,
    left_out: BTreeMap<u32, (u64, Option<u64>)>,
}

/// The layout of the pages of a ring buffer, from `events/header_page`.
pub(super) struct Header {
    text: String,
    layout: Layout,
}

impl Header {
    /// Reads it.
    pub(super) fn read(tracefs: &Tracefs) -> Result<Self> {
        let text = tracefs.read("events/header_page")?;
        let layout = Layout::parse(&text, Order::NATIVE)
            .map_err(|damage| odd(tracefs, "events/header_page", damage))?;
        Ok(Self { text, layout })
    }

    /// The layout.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
}

impl Buffer {
    /// Takes the buffers of `cpus`, after what was streamed of them; packed, that is at most `size`
    /// bytes. `window`: what of it is kept. `keep_fields`: with the fields of events, which hold what
    /// processes read and wrote. A second signal aborts this.
    pub(super) fn take(
        tracefs: &Tracefs,
        cpus: &[u32],
        header: Header,
        (mut spool, room, size): (Spool, Room, u64),
        window: Option<&Window>,
        keep_fields: bool,
        signals: &Signals,
    ) -> Result<Self> {
        let Header { text, layout } = header;
        let mut seen = Seen {
            formats: Formats::new(Order::NATIVE, layout.long),
            keep_fields,
            ids: BTreeSet::new(),
            pids: BTreeSet::new(),
            frames: BTreeSet::new(),
            streamed: BTreeMap::new(),
            left_out: BTreeMap::new(),
        };
        let mut texts = BTreeMap::new();
        let enabled = tracefs.read("set_event")?;
        let enabled = enabled.lines().filter_map(|line| line.split_once(':'));
        let enabled = enabled.map(|(system, name)| (system.to_owned(), name.to_owned()));
        for (system, name) in events_of(tracefs, "ftrace").into_iter().chain(enabled) {
            seen.describe(tracefs, &system, &name, &mut texts);
        }
        let sources = cpus.iter().map(|cpu| {
            let streamed = spool.remove(cpu).filter(|taken| taken.len() > 0);
            let begin = window.map(|window| window.begin(*cpu));
            CpuBuffer::open(tracefs, *cpu, &layout, streamed, begin)
        });
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let packed = match beside(&sources, &room, size) {
            Some(file) => Packed::File(drain(file, sources, &layout, &mut seen, signals)?),
            None => {
                let memory = io::Cursor::new(Vec::new());
                let packed = drain(memory, sources, &layout, &mut seen, signals)?;
                Packed::Memory(packed.into_inner())
            }
        };
        seen.describe_rest(tracefs, &mut texts);
        texts.retain(|id, _| seen.ids.contains(id));
        let formats = texts.into_values().map(|(system, name, text)| {
            let path = format!("events/{system}/{name}/format");
            let own = seen.is_stripped(special(&system, &name));
            (path, if own { without_fields(&text) } else { text })
        });
        let mut tasks = tasks(tracefs, &seen.pids);
        let forgotten = tasks.bound();
        if forgotten > 0 {
            let tasks = count_of(forgotten as u64, "task");
            warn(format_args!(
                "the names of {tasks} are not kept: a capture has at most {MAX_NAMES} names of tasks"
            ));
        }
        Ok(Self {
            packed,
            header_page: text,
            header_event: tracefs.read("events/header_event").unwrap_or_default(),
            printk_formats: match keep_fields {
                true => of_top(tracefs, "printk_formats"),
                false => String::new(),
            },
            formats: formats.collect(),
            tasks,
            frames: seen.frames,
            streamed: seen.streamed,
            left_out: seen.left_out,
        })
    }

    /// Gives the tasks numbers in place of their names.
    pub(super) fn hide_tasks(&mut self) {
        self.tasks.number();
    }

    /// Adds it to a capture.
    pub(super) fn write(&self, to: &mut Writer) -> Result {
        match &self.packed {
            Packed::Memory(packed) => to.copy(io::Cursor::new(packed))?,
            Packed::File(file) => to.copy(file)?,
        }
        to.member(member::HEADER_PAGE, &mut self.header_page.as_bytes())?;
        to.member(member::HEADER_EVENT, &mut self.header_event.as_bytes())?;
        to.member(member::PRINTK_FORMATS, &mut self.printk_formats.as_bytes())?;
        for (path, text) in &self.formats {
            to.member(path, &mut text.as_bytes())?;
        }
        let tasks = serde_json::to_vec(&self.tasks).map_err(io::Error::from)?;
        to.member(member::TASKS, &mut &tasks[..])?;
        Ok(())
    }
}

/// A file for what is packed of `sources`, of at most `size` bytes, if pages were streamed and there
/// is room.
fn beside(sources: &[CpuBuffer], room: &Room, size: u64) -> Option<File> {
    if sources.iter().all(|source| source.streamed.is_none()) {
        return None;
    }
    let file = room.beside().ok()?;
    reserve(&file, size).ok()?;
    Some(file)
}

/// Reads all pages, in the order of their times, and packs them.
fn drain<W: io::Write + io::Seek>(
    to: W,
    mut sources: Vec<CpuBuffer>,
    layout: &Layout,
    seen: &mut Seen,
    signals: &Signals,
) -> Result<W> {
    // The first signal may have ended the recording; one more aborts the reading.
    let limit = signals.count().max(1);
    // From here on the kernel has less and less of it: whatever is wrong, the rest is kept.
    let advance = |source: &mut CpuBuffer, left_out: &mut BTreeMap<_, _>| {
        let more = source.advance();
        left_out.insert(source.cpu, (source.older, source.first));
        more
    };
    sources.retain_mut(|source| advance(source, &mut seen.left_out));
    let mut zip = ZipWriter::new(to);
    let failed = |error| Error::io("pack the ring buffer", error);
    zip.start_file(member::PAGES, PACKING.large_file(true))
        .map_err(|error| failed(error.into()))?;
    let mut progress = Progress::bytes("reading the ring buffer", None);
    let mut done = 0;
    while let Some(first) = (0..sources.len()).min_by_key(|index| sources[*index].time) {
        if signals.count() > limit {
            return Err(Error::Status(INTERRUPTED));
        }
        let source = &mut sources[first];
        match seen.page(layout, std::mem::take(&mut source.page)) {
            Ok((page, nr_records)) => {
                if source.streamed.is_some() {
                    *seen.streamed.entry(source.cpu).or_default() += nr_records;
                }
                write_page(&mut zip, layout, source.cpu, &page).map_err(failed)?;
                done += page.len() as u64;
                progress.set(done);
            }
            Err(damage) => warn(format_args!(
                "{}: {damage}: the page is skipped",
                source.path
            )),
        }
        if !advance(source, &mut seen.left_out) {
            sources.swap_remove(first);
        }
    }
    zip.finish().map_err(|error| failed(error.into()))
}

impl Seen {
    /// Reads the description of an event, if it is there.
    fn describe(
        &mut self,
        tracefs: &Tracefs,
        system: &str,
        name: &str,
        texts: &mut BTreeMap<u16, (String, String, String)>,
    ) {
        let path = format!("events/{system}/{name}/format");
        // Events appear and disappear with their modules.
        if let Ok(text) = tracefs.read(&path) {
            match self.formats.add(system, &text) {
                Ok(id) => drop(texts.insert(id, (system.to_owned(), name.to_owned(), text))),
                Err(damage) => warn(format_args!(
                    "{path}: {damage}: these events are recorded by number only, without name and \
                     fields"
                )),
            }
        }
    }

    /// Reads the formats of recorded events that are not enabled: another user may have enabled
    /// them.
    fn describe_rest(
        &mut self,
        tracefs: &Tracefs,
        texts: &mut BTreeMap<u16, (String, String, String)>,
    ) {
        if self.ids.iter().all(|id| texts.contains_key(id)) {
            return;
        }
        for system in names_in(tracefs, "events") {
            for (system, name) in events_of(tracefs, &system) {
                let id = tracefs.read(&format!("events/{system}/{name}/id"));
                let id = id.ok().and_then(|id| id.trim().parse().ok());
                if id.is_some_and(|id| self.ids.contains(&id) && !texts.contains_key(&id)) {
                    self.describe(tracefs, &system, &name, texts);
                }
            }
        }
    }

    /// Whether the fields of these events are left out.
    fn is_stripped(&self, special: Special) -> bool {
        let kept = matches!(
            special,
            Special::Function | Special::StackId | Special::KernelStack | Special::UserStackId
        );
        !self.keep_fields && !kept
    }

    /// Looks at the records of a page; returns what of it is kept, and how many there are.
    fn page(&mut self, layout: &Layout, mut page: Vec<u8>) -> Result<(Vec<u8>, u64), Damage> {
        page.truncate(layout.used(&page)?);
        let mut cursor = Cursor::new(*layout, page)?;
        let mut nr_records = 0;
        while let Some(record) = cursor.next_record()? {
            self.record(&mut cursor, &record);
            nr_records += 1;
        }
        Ok((cursor.page().to_vec(), nr_records))
    }

    fn record(&mut self, cursor: &mut Cursor, record: &Record) {
        let data = &mut cursor.page_mut()[record.data.clone()];
        let Some(head) = self.formats.head(data) else {
            return;
        };
        self.ids.insert(head.id);
        self.pids.insert(head.pid);
        let format = self.formats.get(head.id).cloned();
        let special = format
            .as_ref()
            .map_or(Special::None, |format| format.special);
        if self.is_stripped(special) {
            let from = self.formats.head_len().min(data.len());
            data[from..].fill(0);
            return;
        }
        if let Some(format) = format {
            self.addresses(&format, data);
        }
    }

    /// Collects the addresses that are shown by name.
    fn addresses(&mut self, format: &Format, data: &[u8]) {
        if format.special == Special::KernelStack {
            let mut frames = Vec::new();
            self.formats.frames(format, data, &mut frames);
            let frames = frames.iter().enumerate();
            self.frames
                .extend(frames.map(|(depth, ip)| (*ip, depth == 0)));
        }
        let function = format.special == Special::Function;
        for field in &format.fields {
            if function || matches!(field.show, Show::Symbol(_)) {
                let numbers = self.formats.value(field, data).map(numbers);
                let exact = numbers.into_iter().flatten().map(|ip| (ip, true));
                self.frames.extend(exact);
            }
        }
    }
}

/// The numbers in a value.
fn numbers(value: Value<'_>) -> Vec<u64> {
    match value {
        Value::Unsigned(number) => vec![number],
        Value::Signed(number) => vec![number as u64],
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        Value::Text(_) | Value::Bytes(_) => Vec::new(),
    }
}

fn special(system: &str, name: &str) -> Special {
    Special::of(system, name)
}

/// The format of an event with the common fields alone.
fn without_fields(text: &str) -> String {
    let kept = text.lines().filter(|line| {
        let line = line.trim_start();
        match line.strip_prefix("field:") {
            Some(field) => field.contains(" common_"),
            None => !line.starts_with("print fmt:"),
        }
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}

fn tasks(tracefs: &Tracefs, pids: &BTreeSet<i32>) -> Tasks {
    let read = |name: &str| {
        let read = |name: &str| fs::read(tracefs.path(name));
        read(name)
            .or_else(|_| read(&format!("{TOP}/{name}")))
            .unwrap_or_default()
    };
    let ask = |pid: i32| {
        let mut name = fs::read(format!("/proc/{pid}/comm")).ok()?;
        if name.ends_with(b"\n") {
            name.pop();
        }
        Some(name)
    };
    // A thread that ran all the time was not seen by the kernel when it came to its CPU.
    let process = |pid: i32| processes::tgid(u32::try_from(pid).ok()?);
    let tgids = read("saved_tgids");
    Tasks::new(
        pids,
        &read("saved_cmdlines"),
        &String::from_utf8_lossy(&tgids),
        ask,
        process,
    )
}

/// A file of the top level, also if this is an instance.
fn of_top(tracefs: &Tracefs, name: &str) -> String {
    let top = || tracefs.read(&format!("{TOP}/{name}"));
    tracefs.read(name).or_else(|_| top()).unwrap_or_default()
}

fn events_of(tracefs: &Tracefs, system: &str) -> Vec<(String, String)> {
    let names = names_in(tracefs, &format!("events/{system}")).into_iter();
    names.map(|name| (system.to_owned(), name)).collect()
}

/// The directories in one of tracefs.
fn names_in(tracefs: &Tracefs, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(tracefs.path(dir)).into_iter().flatten();
    let entries = entries.filter_map(io::Result::ok);
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn odd(tracefs: &Tracefs, path: &str, damage: Damage) -> Error {
    Error::input(tracefs.path(path).display().to_string(), damage.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{
        format::tests::describe,
        page::tests::{layout, page, record},
    };

    /// What is left of the records of an event of `system` with this name, 7.
    fn passed(system: &str, name: &str, keep_fields: bool) -> (Vec<u8>, Seen) {
        let order = Order::NATIVE;
        let mut formats = Formats::new(order, 8);
        let field = "\tfield:int stack_id;\toffset:8;\tsize:4;\tsigned:1;\n";
        let text = describe(field, "\"%d\", REC->stack_id");
        let text = text.replace("name: x", &format!("name: {name}"));
        formats.add(system, &text).unwrap();
        let mut seen = Seen {
            formats,
            keep_fields,
            ids: BTreeSet::new(),
            pids: BTreeSet::new(),
            frames: BTreeSet::new(),
            streamed: BTreeMap::new(),
            left_out: BTreeMap::new(),
        };
        let mut data = [0; 16];
        data[..2].copy_from_slice(&order.word(7)[if order == Order::Big { 2..4 } else { 0..2 }]);
        data[4..8].copy_from_slice(&order.word(42));
        data[8..].copy_from_slice(b"a secret");
        let page = page(order, 0, 0, &record(order, 1, &data));
        let mut cursor = Cursor::new(layout(order), page).unwrap();
        let found = cursor.next_record().unwrap().unwrap();
        seen.record(&mut cursor, &found);
        (cursor.page()[found.data.start + 8..].to_vec(), seen)
    }

    #[test]
    fn fields_are_removed_from_pages() {
        let (left, seen) = passed("sys", "x", false);
        assert_eq!(left, [0; 8]);
        assert!(seen.ids.contains(&7) && seen.pids.contains(&42));
        assert_eq!(passed("sys", "x", true).0, b"a secret");
        // Stacks are no fields; an event of another system is not what it is called.
        assert_eq!(passed("ftrace", "stack_id", false).0, b"a secret");
        assert_eq!(passed("sys", "stack_id", false).0, [0; 8]);
    }

    #[test]
    fn all_that_is_shown_by_name_gets_one() {
        let order = Order::NATIVE;
        let fields = "\tfield:unsigned long one;\toffset:8;\tsize:8;\tsigned:0;\n\
                      \tfield:long two;\toffset:16;\tsize:8;\tsigned:1;\n\
                      \tfield:unsigned long more[2];\toffset:24;\tsize:16;\tsigned:0;\n\
                      \tfield:unsigned long number;\toffset:40;\tsize:8;\tsigned:0;\n";
        let print = "\"%pS %ps %pS %lu\", REC->one, REC->two, REC->more, REC->number";
        let mut formats = Formats::new(order, 8);
        let id = formats.add("sys", &describe(fields, print)).unwrap();
        let format = formats.get(id).cloned().unwrap();
        let mut seen = Seen {
            formats,
            keep_fields: true,
            ids: BTreeSet::new(),
            pids: BTreeSet::new(),
            frames: BTreeSet::new(),
            streamed: BTreeMap::new(),
            left_out: BTreeMap::new(),
        };
        let address = |number: u64| 0xffff_ffff_8100_0000 + number;
        let mut data = vec![0; 8];
        (1..=5).for_each(|number| data.extend(address(number).to_ne_bytes()));
        seen.addresses(&format, &data);
        let frames: Vec<_> = seen.frames.into_iter().collect();
        assert_eq!(frames, [1, 2, 3, 4].map(|number| (address(number), true)));
    }

    #[test]
    fn a_description_without_fields_has_the_common_fields() {
        let text = "name: x\nID: 7\nformat:\n\tfield:int common_pid;\toffset:4;\n\n\
                    \tfield:int y;\toffset:8;\n\nprint fmt: \"%d\", REC->y\n";
        let want = "name: x\nID: 7\nformat:\n\tfield:int common_pid;\toffset:4;\n\n\n";
        assert_eq!(without_fields(text), want);
    }
}
