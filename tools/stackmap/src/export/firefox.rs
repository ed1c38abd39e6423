// SPDX-License-Identifier: MIT OR Apache-2.0

//! Profiles for <https://profiler.firefox.com>: each task a track, each event a sample with its
//! stack and a marker with its fields.
//!
//! Such a profile has a table of columns for each track, so nothing can be written before all
//! events are read. Until then, an event is a small record in memory, and its fields are in a
//! temporary file. Then the tables are built and written track by track.

use super::{stacks::Stacks, unnamed};
use crate::{
    error::{Error, Result},
    folded::{Kind, Names},
    notes::Note,
    output::{JsonText, Progress},
    source::Loaded,
    symbols::Place,
    tally::{Key, Keys},
    trace::{Event, Sides},
};
use serde_json::{json, Value};
use std::{
    borrow::Cow,
    collections::HashMap,
    fs::File,
    io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write},
};

/// The version of the processed profile format, and that of the Gecko profile format.
const VERSION: u32 = 55;
const GECKO_VERSION: u32 = 24;

/// The categories of frames; [`category`] returns an index into this table.
const CATEGORIES: [(&str, &str); 5] = [
    ("Other", "grey"),
    ("Kernel", "orange"),
    ("Module", "green"),
    ("Unknown", "grey"),
    ("User", "yellow"),
];

fn category(kind: Kind) -> u32 {
    match kind {
        Kind::Group => 0,
        Kind::Kernel => 1,
        Kind::Module => 2,
        Kind::Address | Kind::Missing => 3,
        Kind::User | Kind::UserAddress => 4,
    }
}

/// An event, without its fields.
#[derive(Clone, Copy)]
struct Record {
    thread: u32,
    name: u32,
    key: Key,
    /// What it is counted by.
    weight: u64,
    nanos: u64,
    /// The offset in the temporary file of the CPU, the length of the fields, and the fields.
    offset: u64,
}

/// A profile that grows event by event.
pub struct Builder<'a> {
    loaded: &'a Loaded,
    addresses: bool,
    title: String,
    /// Of each track: the PID and the name of its task.
    threads: Vec<(u32, String)>,
    thread_numbers: HashMap<(u32, String), u32>,
    /// The names of the events.
    names: Names,
    keys: Keys,
    records: Vec<Record>,
    fields: BufWriter<File>,
    /// The length of the temporary file, in bytes.
    len: u64,
    /// The time of the first event, in nanoseconds.
    begin: Option<u64>,
}

impl<'a> Builder<'a> {
    /// A profile without events, called `name`. `addresses`: whether it shows kernel addresses.
    pub fn new(loaded: &'a Loaded, name: &str, addresses: bool) -> Result<Self> {
        let fields = tempfile::tempfile().map_err(failed)?;
        Ok(Self {
            loaded,
            addresses,
            title: name.to_owned(),
            threads: Vec::new(),
            thread_numbers: HashMap::new(),
            names: Names::default(),
            keys: Keys::default(),
            records: Vec::new(),
            fields: BufWriter::with_capacity(256 << 10, fields),
            len: 0,
            begin: None,
        })
    }

    /// Adds an event, unless it has no weight.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>) -> Result {
        let Ok(weight) = self.loaded.weight.of(event) else {
            return Ok(());
        };
        let begin = *self.begin.get_or_insert(event.time.value());
        let fields = event.fields.export(&self.loaded.symbols, self.addresses);
        let fields = fields.as_bytes();
        let len = fields.len() as u32;
        for bytes in [&event.cpu.to_ne_bytes()[..], &len.to_ne_bytes(), fields] {
            self.fields.write_all(bytes).map_err(failed)?;
        }
        let record = Record {
            thread: self.thread(event),
            name: self.names.number(&event.name, Kind::Group),
            offset: self.len,
            key: self.keys.key(sides),
            weight,
            nanos: event.time.value().saturating_sub(begin),
        };
        self.records.push(record);
        self.len += 8 + u64::from(len);
        Ok(())
    }

    fn thread(&mut self, event: &Event) -> u32 {
        // The idle tasks of all CPUs have the id 0.
        let name = match event.pid {
            0 => format!("{} on CPU {}", event.comm, event.cpu),
            _ => event.comm.clone(),
        };
        let next = self.threads.len() as u32;
        let thread = (event.pid, name);
        if let Some(number) = self.thread_numbers.get(&thread) {
            return *number;
        }
        self.threads.push(thread.clone());
        self.thread_numbers.insert(thread, next);
        next
    }

    /// Writes the profile.
    pub fn write(mut self, notes: &[Note], out: &mut impl Write) -> Result {
        self.fields.flush().map_err(failed)?;
        // The events of each track, in the order of the trace.
        self.records
            .sort_unstable_by_key(|record| (record.thread, record.offset));
        let Self {
            loaded,
            addresses,
            threads,
            names,
            keys,
            records,
            fields,
            ..
        } = &self;
        out.write_all(b"{\"meta\":")?;
        serde_json::to_writer(JsonText(&mut *out), &self.meta(notes))
            .map_err(std::io::Error::from)?;
        out.write_all(b",\"libs\":[],\"threads\":[")?;
        let mut texts = Texts::new(fields.get_ref())?;
        let mut stacks = Stacks::new(loaded, *addresses, keys, name_of_frame(*addresses));
        let mut progress = Progress::new("writing events", Some(records.len() as u64));
        let mut done = 0;
        for events in records.chunk_by(|one, other| one.thread == other.thread) {
            if done > 0 {
                out.write_all(b",")?;
            }
            let (pid, name) = &threads[events[0].thread as usize];
            let mut table = Table::new(events, &mut stacks);
            out.write_all(b"\n{\"name\":")?;
            serde_json::to_writer(JsonText(&mut *out), name).map_err(std::io::Error::from)?;
            write!(
                out,
                ",\"tid\":\"{pid}\",\"pid\":\"0\",\"processName\":\"Linux\",\
                 \"processType\":\"default\",\"isMainThread\":false,\"processStartupTime\":0.0,\
                 \"processShutdownTime\":null,\"registerTime\":{},\"unregisterTime\":null,\
                 \"showMarkersInTimeline\":false,\"pausedRanges\":[],",
                millis(events[0].nanos),
            )?;
            table.write_samples(events, out)?;
            table.write_markers(events, names, &mut texts, &mut stacks.names, out)?;
            table.write_tables(&stacks.names, out)?;
            out.write_all(b"}")?;
            done += events.len();
            progress.set(done as u64);
        }
        write!(
            out,
            "\n],\"pages\":[],\"profilerOverhead\":[],\"counters\":[]}}"
        )?;
        Ok(())
    }

    fn meta(&self, notes: &[Note]) -> Value {
        let warnings: Vec<_> = notes.iter().map(|note| &note.text[..]).collect();
        let manifest = self.loaded.manifest.as_ref();
        // The time in the manifest is that of the end.
        let start = manifest.map_or(0.0, |manifest| {
            manifest.time as f64 * 1e3 - manifest.duration_ns as f64 / 1e6
        });
        let categories = CATEGORIES
            .map(|(name, color)| json!({"name": name, "color": color, "subcategories": ["Other"]}));
        json!({
            "categories": categories,
            "debug": false,
            "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
            "interval": 1.0,
            "preprocessedProfileVersion": VERSION,
            "processType": 0,
            "product": match warnings.is_empty() {
                true => self.title.clone(),
                false => format!("stackmap ({})", warnings.join("; ")),
            },
            "oscpu": manifest.map(|manifest| {
                format!("Linux {} {}", manifest.release, manifest.machine)
            }),
            "sampleUnits": {"eventDelay": "ms", "threadCPUDelta": "µs", "time": "ms"},
            "startTime": start,
            "symbolicated": true,
            "pausedRanges": [],
            "version": GECKO_VERSION,
            "usesOnlyOneStackType": true,
            "sourceCodeIsNotOnSearchfox": true,
            "markerSchema": [{
                "name": "ftrace",
                "display": ["marker-chart", "marker-table"],
                "tooltipLabel": "{marker.name}",
                "tableLabel": "{marker.data.fields}",
                "fields": [
                    {"key": "fields", "label": "Fields", "format": "string", "searchable": true},
                    {"key": "cpu", "label": "CPU", "format": "integer"},
                ],
            }],
        })
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("use a temporary file for the fields of events", error)
}

/// Nanoseconds in milliseconds.
fn millis(nanos: u64) -> Value {
    json!(nanos as f64 / 1e6)
}

fn name_of_frame(addresses: bool) -> impl Fn(&crate::symbols::Frame<'_>) -> String {
    move |frame| match (frame.place, frame.source) {
        (Place::Unknown, _) => unnamed(frame.ip, addresses),
        (_, Some(source)) => format!("{} ({source})", frame.plain()),
        (_, None) => frame.plain().to_string(),
    }
}

/// The fields of events, from the temporary file.
struct Texts {
    file: BufReader<File>,
    at: u64,
    text: Vec<u8>,
}

impl Texts {
    fn new(file: &File) -> Result<Self> {
        let file = file.try_clone().map_err(failed)?;
        Ok(Self {
            file: BufReader::with_capacity(16 << 10, file),
            at: u64::MAX,
            text: Vec::new(),
        })
    }

    /// The CPU and the fields of an event.
    fn get(&mut self, offset: u64) -> Result<(u32, Cow<'_, str>)> {
        match i64::try_from(offset.wrapping_sub(self.at)) {
            Ok(0) => {}
            // Most are near the last one.
            Ok(ahead) if self.at != u64::MAX => self.file.seek_relative(ahead).map_err(failed)?,
            _ => {
                let start = SeekFrom::Start(offset);
                self.file.seek(start).map_err(failed)?;
            }
        }
        let mut number = || {
            let mut bytes = [0; 4];
            self.file.read_exact(&mut bytes).map_err(failed)?;
            Ok::<_, Error>(u32::from_ne_bytes(bytes))
        };
        let (cpu, len) = (number()?, number()?);
        self.text.resize(len as usize, 0);
        self.file.read_exact(&mut self.text).map_err(failed)?;
        self.at = offset + 8 + u64::from(len);
        Ok((cpu, String::from_utf8_lossy(&self.text)))
    }
}

/// The tables of a track.
struct Table {
    /// The last node of each stack.
    nodes: HashMap<Key, u32>,
    /// Of each node: its parent node plus 1 (0: none), and its frame.
    stacks: Vec<(u32, u32)>,
    /// The functions by number, as the track has them.
    frames: Vec<u32>,
    /// For each name its string, as the track has them.
    strings: HashMap<u32, u32>,
    /// The names of the strings.
    order: Vec<u32>,
}

impl Table {
    /// The stacks of a track.
    fn new<F: Fn(&crate::symbols::Frame<'_>) -> String>(
        events: &[Record],
        stacks: &mut Stacks<'_, F>,
    ) -> Self {
        let keys = events.iter().map(|event| event.key);
        let tree = stacks.tree(keys.filter(|key| *key != Key::NONE).collect());
        let mut table = Self {
            nodes: tree.leaves,
            stacks: Vec::with_capacity(tree.nodes.len()),
            frames: Vec::new(),
            strings: HashMap::new(),
            order: Vec::new(),
        };
        let mut functions = HashMap::new();
        for (prefix, frame) in tree.nodes {
            let function = *functions.entry(frame).or_insert_with(|| {
                table.frames.push(frame);
                table.frames.len() as u32 - 1
            });
            table.stacks.push((prefix, function));
        }
        table
    }

    /// The string of a name.
    fn string(&mut self, name: u32) -> u32 {
        let next = self.order.len() as u32;
        let order = &mut self.order;
        *self.strings.entry(name).or_insert_with(|| {
            order.push(name);
            next
        })
    }

    fn write_samples(&self, events: &[Record], out: &mut impl Write) -> Result {
        let len = events.len();
        write!(
            out,
            "\"samples\":{{\"length\":{len},\"weightType\":\"samples\""
        )?;
        let stacks = events.iter().map(|event| self.nodes.get(&event.key));
        let mut last = 0;
        let deltas = events.iter().map(|event| {
            let before = std::mem::replace(&mut last, event.nanos);
            json!((event.nanos as f64 - before as f64) / 1e6)
        });
        column(out, "stack", stacks)?;
        column(out, "timeDeltas", deltas)?;
        column(out, "weight", events.iter().map(|event| event.weight))?;
        column(out, "threadCPUDelta", (0..len).map(|_| 0))?;
        Ok(out.write_all(b"},")?)
    }

    fn write_markers(
        &mut self,
        events: &[Record],
        event_names: &Names,
        texts: &mut Texts,
        names: &mut Names,
        out: &mut impl Write,
    ) -> Result {
        let len = events.len();
        write!(out, "\"markers\":{{\"length\":{len}")?;
        let times = events.iter().map(|event| millis(event.nanos));
        column(out, "category", (0..len).map(|_| 0))?;
        column(out, "phase", (0..len).map(|_| 0))?;
        column(out, "startTime", times)?;
        column(out, "endTime", (0..len).map(|_| json!(0.0)))?;
        let strings = events.iter().map(|event| {
            let (name, kind) = event_names.get(event.name);
            self.string(names.number(name, kind))
        });
        column(out, "name", strings)?;
        write!(out, ",\"data\":[")?;
        for (index, event) in events.iter().enumerate() {
            if index > 0 {
                out.write_all(b",")?;
            }
            write!(out, "{{\"type\":\"ftrace\",")?;
            if let Some(node) = self.nodes.get(&event.key) {
                write!(out, "\"cause\":{{\"stack\":{node}}},")?;
            }
            let (cpu, text) = texts.get(event.offset)?;
            write!(out, "\"cpu\":{cpu},\"fields\":")?;
            serde_json::to_writer(JsonText(&mut *out), &text).map_err(std::io::Error::from)?;
            out.write_all(b"}")?;
        }
        Ok(out.write_all(b"]},")?)
    }

    fn write_tables(&mut self, names: &Names, out: &mut impl Write) -> Result {
        let frames = std::mem::take(&mut self.frames);
        let strings: Vec<_> = frames.iter().map(|frame| self.string(*frame)).collect();
        let categories = frames.iter().map(|frame| category(names.get(*frame).1));
        let len = frames.len() as u32;
        let all = |value: Value| (0..len).map(move |_| value.clone());
        write!(out, "\"frameTable\":{{\"length\":{len}")?;
        column(out, "address", all(json!(-1)))?;
        column(out, "inlineDepth", all(json!(0)))?;
        column(out, "category", categories)?;
        column(out, "subcategory", all(json!(0)))?;
        column(out, "func", 0..len)?;
        column(out, "nativeSymbol", all(Value::Null))?;
        column(out, "innerWindowID", all(json!(0)))?;
        column(out, "line", all(Value::Null))?;
        column(out, "column", all(Value::Null))?;
        write!(out, "}},\"funcTable\":{{\"length\":{len}")?;
        column(out, "name", strings)?;
        column(out, "isJS", all(json!(false)))?;
        column(out, "relevantForJS", all(json!(false)))?;
        column(out, "resource", all(json!(-1)))?;
        column(out, "fileName", all(Value::Null))?;
        column(out, "lineNumber", all(Value::Null))?;
        column(out, "columnNumber", all(Value::Null))?;
        write!(out, "}},\"stackTable\":{{\"length\":{}", self.stacks.len())?;
        let prefix = self.stacks.iter().map(|(prefix, _)| prefix.checked_sub(1));
        column(out, "prefix", prefix)?;
        column(out, "frame", self.stacks.iter().map(|(_, frame)| *frame))?;
        write!(
            out,
            "}},\"nativeSymbols\":{{\"length\":0,\"address\":[],\"functionSize\":[],\"libIndex\":\
             [],\"name\":[]}},\"resourceTable\":{{\"length\":0,\"lib\":[],\"name\":[],\"host\":[],\
             \"type\":[]}}"
        )?;
        let texts = self.order.iter().map(|name| names.get(*name).0);
        column(out, "stringArray", texts)
    }
}

/// Writes a column of a table, after a comma: it is not the first one.
fn column<T: serde::Serialize>(
    out: &mut impl Write,
    name: &str,
    values: impl IntoIterator<Item = T>,
) -> Result {
    write!(out, ",\"{name}\":[")?;
    for (index, value) in values.into_iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        serde_json::to_writer(JsonText(&mut *out), &value).map_err(std::io::Error::from)?;
    }
    Ok(out.write_all(b"]")?)
}
