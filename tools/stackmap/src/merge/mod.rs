// SPDX-License-Identifier: MIT OR Apache-2.0

//! Merges captures of many machines into one.
//!
//! Stacks, files and names are kept once, whatever KASLR and the order of modules made of them:
//! functions get addresses that no kernel has ([`functions`]), stacks get new ids. The records of each
//! recording are copied with these ([`pages`]), beside its manifest. So the memory that this takes
//! grows with the distinct stacks, and not with the events.

mod files;
mod functions;
mod pages;
mod table;

use crate::{
    capture::{member, Capture, CpuStat, Manifest, Writer},
    error::{Error, Result},
    notes::count_of,
    output::warn,
    ring::stream::Pages,
    source::{Loaded, Source, SymbolFiles},
    stack_map_bin::{write, write_user, LoadId, Order},
};
use blake2::{
    digest::{
        consts::{U16, U4},
        Output,
    },
    Blake2b, Digest,
};
use files::{Files, FilesOf};
use functions::{Addresses, Functions};
use pages::{Change, Changed, Ids};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    path::Path,
};
use table::{Table, SLOT_BITS};

/// More captures than anybody has.
const MAX_CAPTURES: u32 = 1 << 20;

/// A capture that others are merged into.
pub struct Merger {
    writer: Writer,
    functions: Functions,
    stacks: Table,
    user_stacks: Table,
    files: Files,
    whole: Manifest,
    events: BTreeSet<String>,
    functions_of: BTreeSet<String>,
    cpus: BTreeMap<u32, CpuStat>,
    nr_inputs: u32,
    nr_records: u64,
    /// Which boots and loads the captures are of.
    origin: Blake2b<U4>,
    /// The recordings, by what they say of themselves.
    seen: HashSet<Output<Blake2b<U16>>>,
    /// How many were there already.
    nr_again: u64,
}

/// What was merged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Merged {
    /// How many recordings.
    pub captures: u32,
    /// Records of the ring buffers: events, their stacks, and others.
    pub records: u64,
    /// Distinct stacks of the kernel.
    pub stacks: usize,
    /// Distinct user stacks.
    pub user_stacks: usize,
    /// The size of the capture, in bytes.
    pub size: u64,
}

impl Merger {
    /// Into the capture that `writer` writes.
    pub fn new(writer: Writer) -> Self {
        Self {
            writer,
            functions: Functions::default(),
            stacks: Table::default(),
            user_stacks: Table::default(),
            files: Files::default(),
            whole: Manifest {
                generation: Some(0),
                slot_bits: Some(SLOT_BITS),
                slim: true,
                ..Manifest::default()
            },
            events: BTreeSet::new(),
            functions_of: BTreeSet::new(),
            cpus: BTreeMap::new(),
            nr_inputs: 0,
            nr_records: 0,
            origin: Blake2b::default(),
            seen: HashSet::new(),
            nr_again: 0,
        }
    }

    /// Adds the capture at `path`, which may be a merged one. After an error the result is of no use.
    pub fn add(&mut self, path: &Path) -> Result {
        let mut source = Source::open(Some(path), None)?;
        if !source.has_ring() {
            return Err(Error::input(
                source.name(),
                "only captures with the binary ring buffer can be merged",
            ));
        }
        let loaded = source.load(&SymbolFiles::default(), true)?;
        let Some(capture) = source.capture() else {
            return Ok(());
        };
        let mut ids = Ids::default();
        let mut addresses = Addresses::new(&loaded.symbols);
        for stack in loaded.stacks.iter() {
            let mut ips = stack.ips.to_vec();
            addresses.stack(&mut self.functions, &mut ips);
            let id = self.stacks.id(&ips, stack.ref_count)?;
            ids.kernel.insert(stack.id, id);
        }
        self.add_user(capture, &mut ids)?;
        for number in 0..capture.nr_recordings() {
            capture.select(number)?;
            self.add_recording(capture, &loaded, &ids)?;
        }
        self.nr_inputs += 1;
        Ok(())
    }

    fn add_user(&mut self, capture: &mut Capture, ids: &mut Ids) -> Result {
        if !capture.has(member::STACK_MAP_USER_BIN) {
            return Ok(());
        }
        let binaries = capture.binaries()?;
        let segments = capture.segments();
        let mut of = FilesOf {
            capture: self.nr_inputs,
            binaries: &binaries,
            segments: &segments,
            vdsos: capture.vdsos(&binaries)?.into_iter().collect(),
            indices: HashMap::new(),
            processes: HashMap::new(),
        };
        let (files, table) = (&mut self.files, &mut self.user_stacks);
        let mut failed = Ok(());
        capture.user_stacks(&mut |stack| {
            let words = files.words(&mut of, stack.ips);
            match table.id(&words, stack.ref_count) {
                Ok(id) => drop(ids.user.insert(stack.id, id)),
                Err(error) => failed = Err(error),
            }
        })?;
        failed?;
        for (old, new) in of.processes {
            if let Some(text) = capture.perf_map(old)? {
                self.writer.member(&member::perf_map(new), &mut &text[..])?;
            }
        }
        for (index, image) in std::mem::take(&mut self.files.vdsos) {
            self.writer.member(&member::vdso(index), &mut &image[..])?;
        }
        Ok(())
    }

    /// Adds what is of one recording alone.
    fn add_recording(&mut self, capture: &mut Capture, loaded: &Loaded, ids: &Ids) -> Result {
        let number = self.whole.captures;
        if number == MAX_CAPTURES {
            let what = format!("a merged capture has at most {MAX_CAPTURES} captures");
            return Err(Error::Refused(what));
        }
        let place = |name: &str| member::of_capture(number, name);
        let (_, manifest) = capture.recording();
        let json = serde_json::to_vec_pretty(manifest).map_err(io::Error::from)?;
        let manifest = manifest.clone();
        if !self.seen.insert(Blake2b::digest(&json)) {
            self.nr_again += 1;
        }
        self.writer
            .member(&place(member::MANIFEST), &mut &json[..])?;
        for name in [
            member::HEADER_PAGE,
            member::HEADER_EVENT,
            member::PRINTK_FORMATS,
            member::TASKS,
        ] {
            if capture.has(name) {
                self.writer
                    .member(&place(name), &mut capture.member(name)?)?;
            }
        }
        for format in capture.described()?.formats {
            let (begin, end) = member::FORMATS;
            let name = format!("{begin}{}/{}{end}", format.system, format.name);
            self.writer.member(&place(&name), &mut &format.text[..])?;
        }
        let (trace, layout) = capture.ring()?;
        let name = capture.member_name(member::PAGES);
        let pages = Pages::new(capture.member(member::PAGES)?, layout, &name);
        let change = Change {
            loaded,
            formats: &trace.about.formats,
            ids,
            functions: &mut self.functions,
            addresses: Addresses::new(&loaded.symbols),
            nr_records: 0,
        };
        let mut pages = Changed::new(pages, layout, change);
        let written = self.writer.member(&place(member::PAGES), &mut pages);
        // What it says itself is more exact.
        self.nr_records += pages.end()?;
        written?;
        self.describe(&manifest);
        Ok(())
    }

    /// What the whole says of itself.
    fn describe(&mut self, one: &Manifest) {
        let load_id = one.load_id.map_or(0, LoadId::get);
        self.origin
            .update(one.boot_id.as_deref().unwrap_or_default());
        self.origin.update(load_id.to_le_bytes());
        let whole = &mut self.whole;
        let is_first = whole.captures == 0;
        whole.captures += 1;
        // What they have in common.
        for (whole, one) in [
            (&mut whole.release, &one.release),
            (&mut whole.machine, &one.machine),
            (&mut whole.clock, &one.clock),
        ] {
            match is_first {
                true => whole.clone_from(one),
                false if whole != one => whole.clear(),
                false => {}
            }
        }
        if is_first {
            whole.page_size = one.page_size;
        } else if whole.page_size != one.page_size {
            whole.page_size = None;
        }
        whole.time = whole.time.max(one.time);
        whole.duration_ns = whole.duration_ns.saturating_add(one.duration_ns);
        // So that each label of the whole is one of all of them.
        match is_first {
            true => whole.labels.clone_from(&one.labels),
            false => whole
                .labels
                .retain(|name, value| one.labels.get(name) == Some(value)),
        }
        if is_first {
            whole.host.clone_from(&one.host);
        } else if whole.host != one.host {
            whole.host = None;
        }
        whole.anonymous |= one.anonymous;
        whole.no_args |= one.no_args;
        whole.modules_changed |= one.modules_changed;
        whole.reset |= one.reset;
        whole.switched_off |= one.switched_off;
        self.events.extend(one.recorded.events.iter().cloned());
        self.functions_of
            .extend(one.recorded.functions.iter().cloned());
        for one in &one.cpus {
            let sum = self.cpus.entry(one.cpu).or_default();
            sum.add(one);
        }
    }

    /// Writes what all have in common.
    pub fn finish(self) -> Result<Merged> {
        let Self {
            mut writer,
            functions,
            stacks,
            user_stacks,
            files,
            mut whole,
            events,
            functions_of,
            cpus,
            nr_records,
            origin,
            nr_again,
            ..
        } = self;
        // So that a stack without a stable id is no stack of another merge.
        let load_id = LoadId::new(u32::from_le_bytes(origin.finalize().into()));
        if nr_again > 0 {
            warn(format_args!(
                "{} given more than once: their events count as often",
                count_of(nr_again, "capture")
            ));
        }
        if files.nr_left_out > 0 {
            warn(format_args!(
                "the frames of {} have no names: there are more files than a capture has room for",
                count_of(files.nr_left_out, "file")
            ));
        }
        if functions.nr_left_out > 0 {
            warn(format_args!(
                "the names of {} are lost: there are more functions than there is room for",
                count_of(functions.nr_left_out, "frame")
            ));
        }
        let mut bin = Vec::new();
        write(&mut bin, Order::NATIVE, load_id, stacks.iter())?;
        writer.member(member::STACK_MAP_BIN, &mut &bin[..])?;
        if user_stacks.len() > 0 {
            bin.clear();
            write_user(&mut bin, Order::NATIVE, load_id, user_stacks.iter())?;
            writer.member(member::STACK_MAP_USER_BIN, &mut &bin[..])?;
            writer.member(member::BINARIES, &mut files.lines())?;
            let segments = serde_json::to_vec(&files.segments()).map_err(io::Error::from)?;
            writer.member(member::SEGMENTS, &mut &segments[..])?;
        }
        drop(bin);
        let kallsyms = functions.kallsyms();
        for (name, text) in [
            (member::KALLSYMS, &kallsyms[..]),
            (member::MODULES, ""),
            (member::STAT, ""),
            (member::STAT_BEFORE, ""),
        ] {
            writer.member(name, &mut text.as_bytes())?;
        }
        whole.recorded.events = events.into_iter().collect();
        whole.recorded.functions = functions_of.into_iter().collect();
        whole.cpus = cpus.into_values().collect();
        let merged = Merged {
            captures: whole.captures,
            records: nr_records,
            stacks: stacks.len(),
            user_stacks: user_stacks.len(),
            size: writer.finish(&whole)?,
        };
        Ok(merged)
    }
}
