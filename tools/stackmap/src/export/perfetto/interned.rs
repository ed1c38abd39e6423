// SPDX-License-Identifier: MIT OR Apache-2.0

//! What packets name by number: names, and the stacks of events.

use super::{
    super::{
        proto::{Line, Location},
        tables::Tables,
    },
    messages::{Callstack, Frame, InternedBytes, InternedData, Mapping, Name, KERNEL},
};
use crate::{
    source::Loaded,
    symbols::texts::number_of,
    tally::{Key, Keys},
    trace::Sides,
};
use indexmap::IndexSet;
use std::{collections::HashMap, mem::take, path::Path};

/// Texts with their numbers.
#[derive(Default)]
pub(super) struct Texts {
    texts: IndexSet<String>,
    /// How many of them a packet has.
    nr_taken: usize,
}

impl Texts {
    /// The number of a text.
    pub(super) fn number(&mut self, text: &str) -> u64 {
        u64::from(number_of(&mut self.texts, text)) + 1
    }

    /// Returns the entries that no packet has yet, and marks them as written.
    fn take(&mut self) -> Vec<Name> {
        let first = std::mem::replace(&mut self.nr_taken, self.texts.len());
        let name = |(iid, name): (u64, &String)| Name {
            iid,
            name: name.clone(),
        };
        let new = self.texts.iter().skip(first);
        (first as u64 + 1..).zip(new).map(name).collect()
    }
}

/// Names of events and of what they have.
#[derive(Default)]
pub(super) struct Names {
    /// Systems of events.
    pub(super) categories: Texts,
    /// Names of events.
    pub(super) events: Texts,
    /// Names of fields.
    pub(super) fields: Texts,
}

/// Entries with their numbers.
pub(super) struct Interned<'a> {
    keys: Keys,
    tables: Tables<'a>,
    pub(super) names: Names,
    functions: Texts,
    sources: Texts,
    paths: Texts,
    build_ids: Texts,
    /// The numbers of stacks.
    callstacks: HashMap<Key, u64>,
    /// Of each location the number of its first frame, and how many it has.
    frames: Vec<(u64, u64)>,
    nr_frames: u64,
    nr_mappings: usize,
    /// What no packet has yet, but for texts.
    new: InternedData,
}

impl<'a> Interned<'a> {
    /// None; with addresses of the kernel only if they are wanted.
    pub(super) fn new(loaded: &'a Loaded, addresses: bool) -> Self {
        Self {
            keys: Keys::default(),
            tables: Tables::new(loaded, addresses),
            names: Names::default(),
            functions: Texts::default(),
            sources: Texts::default(),
            paths: Texts::default(),
            build_ids: Texts::default(),
            callstacks: HashMap::new(),
            frames: Vec::new(),
            nr_frames: 0,
            nr_mappings: 0,
            new: InternedData::default(),
        }
    }

    /// What no packet has yet, which now one has.
    pub(super) fn take(&mut self) -> Option<InternedData> {
        let names = &mut self.names;
        let new = InternedData {
            event_categories: names.categories.take(),
            event_names: names.events.take(),
            debug_annotation_names: names.fields.take(),
            function_names: self.functions.take(),
            source_paths: self.sources.take(),
            mapping_paths: self.paths.take(),
            ..take(&mut self.new)
        };
        (new != InternedData::default()).then_some(new)
    }

    /// The number of the stacks of an event; 0: it has none.
    pub(super) fn callstack(&mut self, sides: Sides<'_>) -> u64 {
        let key = self.keys.key(sides);
        if key == Key::NONE {
            return 0;
        }
        if let Some(iid) = self.callstacks.get(&key) {
            return *iid;
        }
        let mut frame_ids = Vec::new();
        for id in self.tables.locations_of(key, &self.keys) {
            self.add_locations();
            let (first, len) = self.frames[id as usize - 1];
            frame_ids.extend(first..first + len);
        }
        frame_ids.reverse();
        // One without frames is an error to Perfetto.
        let iid = match frame_ids.is_empty() {
            true => 0,
            false => self.callstacks.len() as u64 + 1,
        };
        self.callstacks.insert(key, iid);
        if iid != 0 {
            self.new.callstacks.push(Callstack { iid, frame_ids });
        }
        iid
    }

    /// Adds the mappings and frames of locations that are new.
    fn add_locations(&mut self) {
        while let Some(location) = self.tables.profile.location.get(self.frames.len()) {
            let location = location.clone();
            self.add_mappings();
            let unnamed = [Line::default()];
            let lines = match &location.line[..] {
                [] => &unnamed,
                lines => lines,
            };
            self.frames.push((self.nr_frames + 1, lines.len() as u64));
            for line in lines {
                self.add_frame(&location, line);
            }
        }
    }

    /// Adds a frame: the function of a line.
    fn add_frame(&mut self, location: &Location, line: &Line) {
        let tables = &self.tables;
        let profile = &tables.profile;
        let text = |number| tables.text(number);
        let mapping = index(location.mapping_id).and_then(|index| profile.mapping.get(index));
        let function = index(line.function_id).and_then(|index| profile.function.get(index));
        let function_name_id = match function {
            Some(function) => self.functions.number(text(function.name)),
            None => {
                let file = mapping.map_or("", |mapping| text(mapping.filename));
                self.functions.number(&place(file, location.address))
            }
        };
        let source = function.map_or("", |function| text(function.filename));
        let source_path_iid = match source {
            "" => 0,
            source => self.sources.number(source),
        };
        let start = mapping.map_or(0, |mapping| mapping.memory_start);
        self.nr_frames += 1;
        self.new.frames.push(Frame {
            iid: self.nr_frames,
            function_name_id,
            // The first one has no path: readers before 2026 have no frame without a mapping.
            mapping_id: location.mapping_id + 1,
            rel_pc: Some(location.address.saturating_sub(start)),
            source_path_iid,
            line_number: u32::try_from(line.line).unwrap_or(0),
            kind: match tables.is_of_kernel(location.mapping_id) {
                true => KERNEL,
                false => 0,
            },
        });
    }

    fn add_mappings(&mut self) {
        let profile = &self.tables.profile;
        if self.nr_mappings == 0 {
            self.new.mappings.push(Mapping {
                iid: 1,
                ..Mapping::default()
            });
            self.nr_mappings = 1;
        }
        for mapping in &profile.mapping[self.nr_mappings - 1..] {
            let text = |number| self.tables.text(number);
            let path = text(mapping.filename);
            let path = self.paths.number(path.strip_prefix('/').unwrap_or(path));
            let build_id = match text(mapping.build_id) {
                "" => 0,
                digits => {
                    let iid = self.build_ids.number(digits);
                    for new in self.build_ids.take() {
                        self.new.build_ids.push(InternedBytes {
                            iid: new.iid,
                            str: bytes(&new.name),
                        });
                    }
                    iid
                }
            };
            self.new.mappings.push(Mapping {
                iid: mapping.id + 1,
                build_id,
                start: mapping.memory_start,
                end: mapping.memory_limit,
                path_string_ids: vec![path],
            });
            self.nr_mappings += 1;
        }
    }
}

/// Where the entry with this id is in its table; 0 is none.
fn index(id: u64) -> Option<usize> {
    usize::try_from(id).ok()?.checked_sub(1)
}

/// What a place is called that has no name: its file, or nothing, and the offset.
fn place(file: &str, offset: u64) -> String {
    let name = Path::new(file)
        .file_name()
        .map(|name| name.to_string_lossy());
    match name {
        Some(name) if !file.starts_with('[') => format!("{name}+0x{offset:x}"),
        _ => format!("0x{offset:x}"),
    }
}

/// The bytes of hexadecimal digits; of anything else, its own bytes.
fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    bytes
        .collect::<Option<_>>()
        .unwrap_or_else(|| digits.as_bytes().to_vec())
}
