// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes the pages of a ring buffer into a capture, unchanged, and the files that describe them.

use super::{
    cpu_buffer::CpuBuffer,
    spool::Spool,
    tasks::{self, Running},
    wait::{Signals, INTERRUPTED},
    window::Window,
};
use crate::{
    capture::{member, Writer},
    error::{Error, Result},
    notes::count_of,
    output::{warn, Progress},
    ring::{
        comms::RecordedComms,
        format::{Format, Formats, Special, Value, COMMON_LEN},
        page::{Cursor, Layout, Record},
        show::Show,
        stream::write_page,
        tasks::MAX_NAMES,
        Damage,
    },
    tracefs::Tracefs,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

/// A ring buffer whose pages are in files.
pub(super) struct Buffer<'a> {
    /// Where its descriptions are: the instance, or the top level.
    pub(super) tracefs: &'a Tracefs,
    pub(super) header: &'a Header,
    pub(super) spool: &'a Spool,
    /// What of it is kept; [`None`]: all.
    pub(super) window: Option<&'a Window>,
    /// Whether the fields of events are kept, which hold what processes read and wrote.
    pub(super) keep_fields: bool,
    /// Whether tasks have numbers in place of names.
    pub(super) hide_tasks: bool,
    /// The processes of the threads that ran at the beginning.
    pub(super) threads: &'a BTreeMap<i32, u32>,
    /// Tasks that get names although they may have no event.
    pub(super) named: &'a [i32],
    pub(super) running: &'a Running,
    pub(super) comms: &'a RecordedComms,
}

/// What was found in the pages that were written.
pub(super) struct Written {
    /// Addresses that need names, and whether each address is exact.
    pub(super) frames: BTreeSet<(u64, bool)>,
    pub(super) cpus: BTreeMap<u32, WrittenCpu>,
}

/// The same of a CPU.
#[derive(Clone, Copy, Default)]
pub(super) struct WrittenCpu {
    /// How many events were written.
    pub(super) events: u64,
    /// How many records were written, and how many of them were taken while the buffer recorded.
    pub(super) entries: u64,
    pub(super) streamed: u64,
    /// How many records were left out, and when the others begin.
    pub(super) older: u64,
    pub(super) first: Option<u64>,
    /// When the last record was.
    pub(super) last: u64,
    /// How many pages were damaged, and whether any of them followed the last one that was written.
    pub(super) skipped: u64,
    is_cut: bool,
}

/// What is collected while pages are read.
struct Seen {
    formats: Formats,
    keep_fields: bool,
    /// Of the last page.
    nr_events: u64,
    ids: BTreeSet<u16>,
    pids: BTreeSet<i32>,
    frames: BTreeSet<(u64, bool)>,
}

/// The layout of the pages of a ring buffer, from `events/header_page`.
pub(super) struct Header {
    text: String,
    layout: Layout,
}

impl Header {
    /// Reads it.
    pub(super) fn read(tracefs: &Tracefs) -> Result<Self> {
        let file = "events/header_page";
        let text = tracefs.read(file)?;
        let layout = Layout::parse(&text).map_err(|damage| {
            Error::input(tracefs.path(file).display().to_string(), damage.to_string())
        })?;
        Ok(Self { text, layout })
    }

    /// The layout.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
}

impl Buffer<'_> {
    /// Adds it to a capture. A second signal aborts this.
    pub(super) fn write(&self, to: &mut Writer, signals: &Signals) -> Result<Written> {
        let Self { tracefs, .. } = *self;
        let mut seen = Seen {
            formats: Formats::default(),
            keep_fields: self.keep_fields,
            nr_events: 0,
            ids: BTreeSet::new(),
            pids: self.named.iter().copied().collect(),
            frames: BTreeSet::new(),
        };
        let mut texts = BTreeMap::new();
        let enabled = tracefs.read("set_event")?;
        let enabled = enabled.lines().filter_map(|line| line.split_once(':'));
        let enabled = enabled.map(|(system, name)| (system.to_owned(), name.to_owned()));
        for (system, name) in events_of(tracefs, "ftrace").into_iter().chain(enabled) {
            seen.describe(tracefs, &system, &name, &mut texts);
        }
        let cpus = self.write_pages(to, &mut seen, signals)?;
        seen.describe_rest(tracefs, &mut texts);
        texts.retain(|id, _| seen.ids.contains(id));
        for (system, name, text) in texts.into_values() {
            let text = match seen.is_stripped(Special::of(&system, &name)) {
                true => without_fields(&text),
                false => text,
            };
            to.member(
                &format!("events/{system}/{name}/format"),
                &mut text.as_bytes(),
            )?;
        }
        to.member(member::HEADER_PAGE, &mut self.header.text.as_bytes())?;
        let header_event = tracefs.read("events/header_event").unwrap_or_default();
        to.member(member::HEADER_EVENT, &mut header_event.as_bytes())?;
        let printk = match self.keep_fields {
            true => tracefs.read("printk_formats").unwrap_or_default(),
            false => String::new(),
        };
        to.member(member::PRINTK_FORMATS, &mut printk.as_bytes())?;
        self.write_tasks(to, &seen.pids)?;
        Ok(Written {
            frames: seen.frames,
            cpus,
        })
    }

    fn write_tasks(&self, to: &mut Writer, pids: &BTreeSet<i32>) -> Result {
        let mut tasks = tasks::find(self.tracefs, pids, self.threads, self.running, self.comms);
        let forgotten = tasks.bound();
        if forgotten > 0 {
            let tasks = count_of(forgotten as u64, "task");
            warn(format_args!(
                "the names of {tasks} are not kept: a capture has at most {MAX_NAMES} names of tasks"
            ));
        }
        if self.hide_tasks {
            tasks.number();
        }
        let tasks = serde_json::to_vec(&tasks).map_err(io::Error::from)?;
        to.member(member::TASKS, &mut &tasks[..])?;
        Ok(())
    }

    /// Writes all pages, in the order of their times.
    fn write_pages(
        &self,
        to: &mut Writer,
        seen: &mut Seen,
        signals: &Signals,
    ) -> Result<BTreeMap<u32, WrittenCpu>> {
        let layout = self.header.layout;
        // The first signal may have ended the recording; one more aborts this.
        let limit = signals.count().max(1);
        let sources = self.spool.iter().map(|(cpu, taken)| {
            let begin = self.window.map(|window| window.begin(*cpu));
            CpuBuffer::open(*cpu, &layout, taken, begin)
        });
        let mut sources = sources.collect::<Result<Vec<_>>>()?;
        let mut written: BTreeMap<u32, WrittenCpu> = BTreeMap::new();
        let advance = |source: &mut CpuBuffer<'_>, written: &mut BTreeMap<u32, WrittenCpu>| {
            let more = source.advance();
            let cpu = written.entry(source.cpu).or_default();
            (cpu.older, cpu.first) = (source.older, source.first);
            cpu.skipped += u64::from(source.is_cut);
            cpu.is_cut |= source.is_cut;
            more
        };
        sources.retain_mut(|source| advance(source, &mut written));
        let mut progress = Progress::bytes("writing the ring buffer", None);
        let mut done = 0;
        to.begin(member::PAGES)?;
        while let Some(first) = (0..sources.len()).min_by_key(|index| sources[*index].time) {
            if signals.count() > limit {
                return Err(Error::Status(INTERRUPTED));
            }
            let source = &mut sources[first];
            match seen.page(&layout, std::mem::take(&mut source.page)) {
                Ok((mut page, nr_records, last)) => {
                    let cpu = written.entry(source.cpu).or_default();
                    if std::mem::take(&mut cpu.is_cut) {
                        layout.set_missed(&mut page);
                    }
                    cpu.events += seen.nr_events;
                    cpu.entries += nr_records;
                    if source.is_streamed() {
                        cpu.streamed += nr_records;
                    }
                    cpu.last = last;
                    to.add(|zip| write_page(zip, source.cpu, &page))?;
                    done += page.len() as u64;
                    progress.set(done);
                }
                Err(damage) => {
                    warn(format_args!(
                        "CPU {}: {damage}: the page is skipped",
                        source.cpu
                    ));
                    let cpu = written.entry(source.cpu).or_default();
                    (cpu.skipped, cpu.is_cut) = (cpu.skipped + 1, true);
                }
            }
            if !advance(source, &mut written) {
                sources.swap_remove(first);
            }
        }
        let last = written
            .values()
            .map(|cpu| cpu.last)
            .max()
            .unwrap_or_default();
        for (cpu, _) in written.iter().filter(|(_, written)| written.is_cut) {
            let page = layout.gap(last);
            to.add(|zip| write_page(zip, *cpu, &page))?;
        }
        Ok(written)
    }
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

    /// Looks at the records of a page; returns what of it is kept, how many there are, and when the last one was.
    fn page(&mut self, layout: &Layout, mut page: Vec<u8>) -> Result<(Vec<u8>, u64, u64), Damage> {
        page.truncate(layout.used(&page)?);
        let mut cursor = Cursor::new(*layout, page)?;
        let mut nr_records = 0;
        self.nr_events = 0;
        while let Some(record) = cursor.next_record()? {
            self.record(&mut cursor, &record);
            nr_records += 1;
        }
        Ok((cursor.page().to_vec(), nr_records, cursor.time()))
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
        self.nr_events += u64::from(!special.is_stack());
        if self.is_stripped(special) {
            let from = COMMON_LEN.min(data.len());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{
        format::tests::describe,
        page::tests::{layout, page, record},
    };

    /// What is left of the records of an event of `system` with this name, 7.
    fn passed(system: &str, name: &str, keep_fields: bool) -> (Vec<u8>, Seen) {
        let mut formats = Formats::default();
        let field = "\tfield:int stack_id;\toffset:8;\tsize:4;\tsigned:1;\n";
        let text = describe(field, "\"%d\", REC->stack_id");
        let text = text.replace("name: x", &format!("name: {name}"));
        formats.add(system, &text).unwrap();
        let mut seen = Seen {
            formats,
            keep_fields,
            nr_events: 0,
            ids: BTreeSet::new(),
            pids: BTreeSet::new(),
            frames: BTreeSet::new(),
        };
        let mut data = [0; 16];
        (data[0], data[4]) = (7, 42);
        data[8..].copy_from_slice(b"a secret");
        let page = page(0, 0, &record(1, &data));
        let mut cursor = Cursor::new(layout(), page).unwrap();
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
        let fields = "\tfield:unsigned long one;\toffset:8;\tsize:8;\tsigned:0;\n\
                      \tfield:long two;\toffset:16;\tsize:8;\tsigned:1;\n\
                      \tfield:unsigned long more[2];\toffset:24;\tsize:16;\tsigned:0;\n\
                      \tfield:unsigned long number;\toffset:40;\tsize:8;\tsigned:0;\n";
        let print = "\"%pS %ps %pS %lu\", REC->one, REC->two, REC->more, REC->number";
        let mut formats = Formats::default();
        let id = formats.add("sys", &describe(fields, print)).unwrap();
        let format = formats.get(id).cloned().unwrap();
        let mut seen = Seen {
            formats,
            keep_fields: true,
            nr_events: 0,
            ids: BTreeSet::new(),
            pids: BTreeSet::new(),
            frames: BTreeSet::new(),
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
