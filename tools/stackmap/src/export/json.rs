// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings as JSON, for programs of the user's own.
//!
//! ```json
//! {
//!   "format": "stackmap-export", "version": 1, "manifest": { ... } or null,
//!   "stacks": [{"id": 42, "frames": [{"function": "schedule", "offset": 72, ...}, ...]}, ...],
//!   "events": [{"time": "3.319031", "event": "kmalloc", "fields": "bytes_req=64 ...",
//!               "values": {"bytes_req": 64, ...}, "stack": 42, ...}, ...],
//!   "notes": [{"warning": true, "text": "..."}, ...]
//! }
//! ```
//!
//! `values` are the fields as they were recorded; they are not there if only a text is known.
//! Frames are innermost first. `ip` of a frame and `kaslr_base` of the manifest are there only if
//! addresses were asked for; a value that may be one is `(address)` otherwise. `stack` of an event
//! is the id of one of `stacks`; the id of a stack that is not there stands in `missing` instead.
//! `frames` of an event are those of its full stack, if it has no id.

use super::whole_frame;
use crate::{
    error::Result,
    notes::Note,
    output::{JsonText, Progress},
    source::{Loaded, Missing},
    trace::{Event, StackRef},
};
use serde::Serialize;
use std::{
    borrow::Cow,
    io::{self, Write},
};

#[derive(Serialize)]
struct Stack<'a> {
    id: u32,
    ref_count: u32,
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
    function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inlined: bool,
}

#[derive(Serialize)]
struct JsonEvent<'a, V> {
    time: String,
    event: &'a str,
    fields: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<V>,
    comm: &'a str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tgid: Option<u32>,
    cpu: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<MissingStack>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<Vec<Cow<'a, str>>>,
}

#[derive(Serialize)]
struct MissingStack {
    id: u32,
    why: &'static str,
}

#[derive(Serialize)]
struct JsonNote<'a> {
    warning: bool,
    text: &'a str,
}

/// Writes a recording as it is read.
pub struct Writer<'a, W: Write> {
    out: &'a mut W,
    loaded: &'a Loaded,
    addresses: bool,
    first: bool,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Writes the part before the events; addresses of the kernel only on request.
    pub fn new(out: &'a mut W, loaded: &'a Loaded, addresses: bool) -> Result<Self> {
        write!(
            out,
            "{{\n\"format\": \"stackmap-export\", \"version\": 1,\n\"manifest\": "
        )?;
        let mut manifest = loaded.manifest.clone();
        if let Some(manifest) = manifest.as_mut().filter(|_| !addresses) {
            manifest.kaslr_base = None;
        }
        json(out, &manifest)?;
        write!(out, ",\n\"stacks\": [")?;
        let mut separator = "\n";
        let mut progress = Progress::new("writing stacks", Some(loaded.stacks.len() as u64));
        for (done, stack) in loaded.stacks.iter().enumerate() {
            progress.set(done as u64);
            write!(out, "{separator}")?;
            separator = ",\n";
            let frames = loaded.symbols.stack(stack.ips).flat_map(|at| {
                let frames = loaded.symbols.frames(at.ip, at.exact);
                frames.map(|frame| Frame {
                    ip: addresses.then(|| format!("0x{:x}", frame.ip)),
                    function: frame.name(),
                    offset: frame.offset(),
                    module: frame.module(),
                    file: frame.source.map(|source| &source.file[..]),
                    line: frame.source.map(|source| source.line),
                    inlined: frame.inlined,
                })
            });
            let stack = Stack {
                id: stack.id,
                ref_count: stack.ref_count,
                frames: frames.collect(),
            };
            json(out, &stack)?;
        }
        write!(out, "\n],\n\"events\": [")?;
        Ok(Self {
            out,
            loaded,
            addresses,
            first: true,
        })
    }

    /// Writes an event.
    pub fn event(&mut self, event: &Event, stack: StackRef<'_>) -> Result {
        let (mut known, mut missing, mut frames) = (None, None, None);
        match stack {
            StackRef::Id(id) if self.loaded.stack(id).is_some() => known = Some(id),
            StackRef::Id(id) => {
                let why = match self.loaded.missing(id) {
                    Missing::Stale => "stale",
                    Missing::Gone => "gone",
                    Missing::Unknown => "unknown",
                };
                missing = Some(MissingStack { id, why });
            }
            StackRef::Whole(whole) => {
                let visible = self.loaded.symbols.visible(whole).iter();
                let shown = visible.map(|frame| whole_frame(frame, self.addresses));
                frames = Some(shown.collect());
            }
            StackRef::None => {}
        }
        self.out
            .write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        json(
            self.out,
            &JsonEvent {
                time: event.time.to_string(),
                event: &event.name,
                fields: event.fields.export(&self.loaded.symbols, self.addresses),
                values: event.fields.values(self.addresses),
                comm: &event.comm,
                pid: event.pid,
                tgid: event.tgid,
                cpu: event.cpu,
                stack: known,
                missing,
                frames,
            },
        )
    }

    /// Writes the part after the events.
    pub fn finish(self, notes: &[Note]) -> Result {
        write!(self.out, "\n],\n\"notes\": ")?;
        let notes: Vec<_> = notes
            .iter()
            .map(|note| JsonNote {
                warning: note.warning,
                text: &note.text,
            })
            .collect();
        json(self.out, &notes)?;
        Ok(self.out.write_all(b"\n}\n")?)
    }
}

fn json(out: &mut impl Write, value: &impl Serialize) -> Result {
    Ok(serde_json::to_writer(JsonText(out), value).map_err(io::Error::from)?)
}
