// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings as JSON, for programs of the user's own.
//!
//! ```json
//! {
//!   "format": "stackmap-export", "version": 1, "manifest": { ... } or null,
//!   "stacks": [{"id": 42, "stable_id": "0123...", "stable": true, "frames": [{"function": "schedule", "offset": 72, ...}, ...]}, ...],
//!   "events": [{"time": "3.319031", "event": "kmalloc", "fields": "bytes_req=64 ...",
//!               "values": {"bytes_req": 64, ...}, "stack": 42, ...}, ...],
//!   "notes": [{"warning": true, "text": "..."}, ...]
//! }
//! ```
//!
//! `values` are the fields as they were recorded; they are not there if no format describes the event.
//! Frames are innermost first. `ip` of a frame and `kaslr_base` of the manifest are there only if
//! addresses were asked for; a value that may be one is `(address)` otherwise. `stack` of an event
//! is the id of one of `stacks`; the id of a stack that is not there stands in `missing` instead.
//! With user stacks there is also `user_stacks`, and `user_stack` of an event, or `user_missing`, which
//! says why there is none. `file_offset` is in bytes, in the file with this `build_id`; `path` is that
//! of the recording.
//! `frames` of an event are those of its full stack, if it has no id.
//! `stable_id` is the same on every machine, if the stack is `stable`: [`stable`](crate::stable). `symbol`
//! of a frame is the name in kallsyms, where `function` is another one.

use super::unnamed;
use crate::{
    capture::Manifest,
    error::Result,
    notes::Note,
    output::{JsonText, Progress},
    source::Loaded,
    stable::{Identity, StableIds},
    stack_map_bin,
    symbols::{self, Place},
    trace::{Event, Sides, StackRef, UserRef},
    user::{words::At, User, UserFrame},
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
    #[serde(flatten)]
    identity: Option<Identity>,
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
    function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<&'a str>,
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

/// A user stack.
#[derive(Serialize)]
pub(crate) struct UserStack<'a> {
    id: u32,
    ref_count: u32,
    #[serde(flatten)]
    identity: Option<Identity>,
    end: String,
    frames: Vec<UserFields<'a>>,
}

impl<'a> UserStack<'a> {
    /// A stack of `user`, with its names.
    pub(crate) fn new(
        stack: &stack_map_bin::Stack<'a>,
        user: &'a User,
        ids: &mut StableIds<'_>,
    ) -> Self {
        let frames = user.stack(stack.ips).flat_map(|which| user.frames(which));
        Self {
            id: stack.id,
            ref_count: stack.ref_count,
            identity: ids.user(stack.id),
            end: user.end(stack.ips).to_string(),
            frames: frames.map(|frame| UserFields::new(&frame, user)).collect(),
        }
    }
}

/// A frame of a user stack.
#[derive(Serialize)]
pub(super) struct UserFields<'a> {
    pub(super) function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) build_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) inlined: bool,
}

impl<'a> UserFields<'a> {
    /// What is exported of a frame.
    pub(super) fn new(frame: &UserFrame<'a>, user: &'a User) -> Self {
        let named = frame.named;
        let source = frame.source();
        let index = match frame.at {
            At::File { index, .. } => Some(index),
            At::Address { .. } => None,
        };
        let binary = index.and_then(|index| user.binaries.get(index));
        let (file_offset, address, process) = match frame.at {
            At::File { offset, .. } => (Some(offset), None, None),
            At::Address { address, process } => (None, Some(address), process),
        };
        Self {
            function: frame.function(),
            offset: named
                .filter(|named| !named.inlined)
                .map(|named| named.offset),
            path: binary.map(|binary| binary.path.to_string_lossy()),
            build_id: index.and_then(|index| user.build_id(index)),
            file_offset,
            address: address.map(|address| format!("0x{address:x}")),
            process: process.map(|process| process.tgid),
            file: source.map(|source| &source.file[..]),
            line: source.map(|source| source.line),
            inlined: named.is_some_and(|named| named.inlined),
        }
    }
}

#[derive(Serialize)]
struct JsonEvent<'a, V> {
    time: String,
    event: &'a str,
    fields: String,
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
    frames: Option<Vec<String>>,
    #[serde(flatten)]
    identity: Option<Identity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_stack: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_missing: Option<MissingStack>,
}

#[derive(Serialize)]
struct MissingStack {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    why: &'static str,
}

/// Writes a recording as it is read.
pub struct Writer<'a, W: Write> {
    out: &'a mut W,
    loaded: &'a Loaded,
    ids: StableIds<'a>,
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
        let shown = |manifest: &Manifest| Manifest {
            kaslr_base: manifest.kaslr_base.clone().filter(|_| addresses),
            ..manifest.clone()
        };
        json(out, &loaded.manifest.as_ref().map(shown))?;
        write!(out, ",\n\"stacks\": [")?;
        let mut separator = "\n";
        let mut ids = StableIds::new(loaded);
        let mut progress = Progress::new("writing stacks", Some(loaded.stacks.len() as u64));
        for (done, stack) in loaded.stacks.iter().enumerate() {
            progress.set(done as u64);
            write!(out, "{separator}")?;
            separator = ",\n";
            let frames = loaded.symbols.stack(stack.ips).flat_map(|at| {
                let frames = loaded.symbols.frames(at.ip, at.exact);
                let symbol = match loaded.symbols.raw_place(at.ip, at.exact) {
                    Place::Symbol(symbol) => Some(symbol.name),
                    Place::Trampoline | Place::Unknown => None,
                };
                frames.map(move |frame| Frame {
                    ip: addresses.then(|| format!("0x{:x}", frame.ip)),
                    function: frame.name(),
                    symbol: symbol.filter(|symbol| !frame.inlined && frame.name() != Some(symbol)),
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
                identity: ids.kernel(stack.id),
                frames: frames.collect(),
            };
            json(out, &stack)?;
        }
        write!(out, "\n],\n")?;
        if !loaded.user.stacks.is_empty() {
            write!(out, "\"user_stacks\": [")?;
            let mut separator = "\n";
            for stack in loaded.user.stacks.iter() {
                write!(out, "{separator}")?;
                separator = ",\n";
                let stack = UserStack::new(&stack, &loaded.user, &mut ids);
                json(out, &stack)?;
            }
            write!(out, "\n],\n")?;
        }
        write!(out, "\"events\": [")?;
        Ok(Self {
            out,
            loaded,
            ids,
            addresses,
            first: true,
        })
    }

    /// Writes an event.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>) -> Result {
        let loaded = self.loaded;
        let id = match sides.kernel {
            StackRef::Id(id) => Some(id),
            _ => None,
        };
        let why = loaded.lacks_stack(sides.kernel);
        let (mut frames, mut identity) = (None, None);
        if let StackRef::Whole(ips) = sides.kernel {
            let symbols = &loaded.symbols;
            let shown = symbols.stack(ips);
            let shown = shown.flat_map(|at| symbols.frames(at.ip, at.exact));
            let name = |frame: symbols::Frame<'_>| match frame.place {
                Place::Unknown => unnamed(frame.ip, self.addresses),
                _ => frame.plain().to_string(),
            };
            frames = Some(shown.map(name).collect());
            identity = Some(self.ids.full(ips));
        }
        let user_id = match sides.user {
            UserRef::Id(id) => Some(id),
            _ => None,
        };
        let user_why = loaded.lacks_user_stack(sides.user);
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
                stack: id.filter(|_| why.is_none()),
                missing: why.map(|why| MissingStack { id, why }),
                frames,
                identity,
                user_stack: user_id.filter(|_| user_why.is_none()),
                user_missing: user_why.map(|why| MissingStack { id: user_id, why }),
            },
        )
    }

    /// Writes the part after the events.
    pub fn finish(self, notes: &[Note]) -> Result {
        write!(self.out, "\n],\n\"notes\": ")?;
        json(self.out, &notes)?;
        Ok(self.out.write_all(b"\n}\n")?)
    }
}

fn json(out: &mut impl Write, value: &impl Serialize) -> Result {
    Ok(serde_json::to_writer(JsonText(out), value).map_err(io::Error::from)?)
}
