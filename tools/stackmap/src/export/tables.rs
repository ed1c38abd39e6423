// SPDX-License-Identifier: MIT OR Apache-2.0

//! What stacks are made of, in tables as pprof has them: locations, functions, mappings, texts.
//!
//! The kernel and each module are mappings, which begin at 0 unless addresses were asked for: then it
//! shows where they lie.

use super::{
    proto::{Function, Line, Location, Mapping, Profile},
    unnamed,
};
use crate::{
    source::Loaded,
    symbols::{self, texts::number_of, Frame, TRAMPOLINE_NAME},
    tally::{Key, Keys, Step},
    user::{words::At, UserFrame, WhichFrame},
};
use indexmap::IndexSet;
use std::collections::HashMap;

/// The mapping of the kernel itself.
const KERNEL: &str = "[kernel.kallsyms]";

/// What makes two locations one.
#[derive(Clone, Eq, Hash, PartialEq)]
enum Place {
    /// An address, and whether it is exact: then it is looked up elsewhere.
    Address(u64, bool),
    /// A frame of a user stack.
    User(WhichFrame),
    /// A name without an address.
    Name(String),
}

/// Tables that grow stack by stack.
pub(super) struct Tables<'a> {
    loaded: &'a Loaded,
    addresses: bool,
    /// Has the tables but for that of texts, and nothing else.
    pub(super) profile: Profile,
    strings: IndexSet<String>,
    functions: HashMap<(String, String), u64>,
    locations: HashMap<Place, u64>,
    mappings: HashMap<String, u64>,
    /// The mappings of files, by their index: files of the same path may differ.
    files: HashMap<u32, u64>,
}

impl<'a> Tables<'a> {
    /// Empty ones; with addresses of the kernel only if they are wanted.
    pub(super) fn new(loaded: &'a Loaded, addresses: bool) -> Self {
        let mut tables = Self {
            loaded,
            addresses,
            profile: Profile::default(),
            strings: IndexSet::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            mappings: HashMap::new(),
            files: HashMap::new(),
        };
        tables.string("");
        tables.mapping(None);
        tables
    }

    /// Whether a mapping is that of the kernel or of a module.
    pub(super) fn is_of_kernel(&self, mapping: u64) -> bool {
        self.mappings.values().any(|id| *id == mapping)
    }

    /// The locations of a key, innermost first. There is one in any case: some readers drop samples
    /// without.
    pub(super) fn locations_of(&mut self, key: Key, keys: &Keys) -> Vec<u64> {
        let loaded = self.loaded;
        let mut ids = Vec::new();
        keys.walk(key, loaded, &mut |step| {
            ids.push(match step {
                Step::Kernel(ip, exact) => self.location(ip, exact),
                Step::User(which) => self.user_location(which),
                Step::Missing(text) => self.text_location(text),
            });
        });
        ids
    }

    /// The number of the location of a frame of a user stack: an offset in a file.
    fn user_location(&mut self, which: WhichFrame) -> u64 {
        let place = Place::User(which);
        if let Some(id) = self.locations.get(&place) {
            return *id;
        }
        let frames: Vec<_> = self.loaded.user.frames(which).collect();
        let named = frames.iter().filter(|frame| frame.named.is_some());
        let mut line: Vec<_> = named.map(|frame| self.user_line(frame)).collect();
        let (mapping_id, address) = match which.at {
            At::File { index, offset } => (self.file_mapping(index), offset),
            At::Address { .. } => {
                if line.is_empty() {
                    line.extend(frames.iter().map(|frame| self.user_line(frame)));
                }
                (0, 0)
            }
        };
        self.add_location(place, mapping_id, address, line)
    }

    fn user_line(&mut self, frame: &UserFrame<'_>) -> Line {
        let source = frame.source();
        let file = source.map_or("", |source| &source.file);
        Line {
            function_id: self.function(&frame.plain(), file),
            line: source.map_or(0, |source| source.line.into()),
        }
    }

    /// The number of the mapping of a file: all of it, from its first byte on.
    fn file_mapping(&mut self, index: u32) -> u64 {
        if let Some(id) = self.files.get(&index) {
            return *id;
        }
        let loaded = self.loaded;
        let binary = loaded.user.binaries.get(index);
        let name = match binary {
            Some(binary) => binary.path.display().to_string(),
            None => loaded.user.binaries.name(index),
        };
        let id = self.profile.mapping.len() as u64 + 1;
        let filename = self.string(&name);
        let build_id = binary.and_then(|binary| binary.build_id.as_deref());
        let build_id = self.string(build_id.unwrap_or_default());
        self.profile.mapping.push(Mapping {
            id,
            memory_start: 0,
            memory_limit: binary.map_or(0, |binary| binary.size),
            filename,
            build_id,
            has_functions: !loaded.user.names.is_missing(index),
            ..Mapping::default()
        });
        self.files.insert(index, id);
        id
    }

    /// The number of a location that is known by name only.
    fn text_location(&mut self, name: &str) -> u64 {
        let place = Place::Name(name.to_owned());
        if let Some(id) = self.locations.get(&place) {
            return *id;
        }
        let line = Line {
            function_id: self.function(name, ""),
            line: 0,
        };
        self.add_location(place, 0, 0, vec![line])
    }

    /// The number of the location of a frame.
    fn location(&mut self, ip: u64, exact: bool) -> u64 {
        let place = Place::Address(ip, exact);
        if let Some(id) = self.locations.get(&place) {
            return *id;
        }
        let loaded = self.loaded;
        let mut lines = Vec::new();
        let mut module = None;
        for frame in loaded.symbols.frames(ip, exact) {
            module = frame.module();
            lines.extend(self.line(&frame));
        }
        if lines.is_empty() && !self.addresses {
            return self.text_location(&unnamed(ip, self.addresses));
        }
        let mapping_id = match module {
            None if ip == symbols::TRAMPOLINE_MARKER => 0,
            module => self.mapping(module),
        };
        let address = match (self.addresses, mapping_id) {
            (true, _) => ip,
            (false, 0) => 0,
            // The same distance as in memory.
            (false, _) => match self.range(module) {
                Some((start, _)) => ip.saturating_sub(start),
                None => 0,
            },
        };
        self.add_location(place, mapping_id, address, lines)
    }

    fn add_location(
        &mut self,
        place: Place,
        mapping_id: u64,
        address: u64,
        line: Vec<Line>,
    ) -> u64 {
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location {
            id,
            mapping_id,
            address,
            line,
        });
        self.locations.insert(place, id);
        id
    }

    fn line(&mut self, frame: &Frame<'_>) -> Option<Line> {
        let name = match frame.place {
            symbols::Place::Symbol(symbol) => symbol.name,
            symbols::Place::Trampoline => TRAMPOLINE_NAME,
            symbols::Place::Unknown => return None,
        };
        let file = frame.source.map_or("", |source| &source.file);
        if frame.source.is_some() {
            for mapping in &mut self.profile.mapping {
                mapping.has_filenames = true;
                mapping.has_line_numbers = true;
                mapping.has_inline_frames = true;
            }
        }
        Some(Line {
            function_id: self.function(name, file),
            line: frame.source.map_or(0, |source| source.line.into()),
        })
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let key = (name.to_owned(), file.to_owned());
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let id = self.profile.function.len() as u64 + 1;
        let text = self.string(name);
        let filename = self.string(file);
        self.profile.function.push(Function {
            id,
            name: text,
            system_name: text,
            filename,
        });
        self.functions.insert(key, id);
        id
    }

    /// The number of the mapping of a module, or of the kernel.
    fn mapping(&mut self, module: Option<&str>) -> u64 {
        let name = module.map_or(KERNEL.to_owned(), |module| format!("[{module}]"));
        if let Some(id) = self.mappings.get(&name) {
            return *id;
        }
        let loaded = self.loaded;
        let (start, end) = match self.range(module) {
            Some(range) if self.addresses => range,
            // How far the kernel reaches, to a module, tells where that lies.
            Some((start, end)) if module.is_some() => (0, end.saturating_sub(start)),
            _ => (0, 0),
        };
        let build_id = match (&loaded.manifest, module) {
            (Some(manifest), None) => manifest.build_id.clone().unwrap_or_default(),
            _ => String::new(),
        };
        let id = self.profile.mapping.len() as u64 + 1;
        let filename = self.string(&name);
        let build_id = self.string(&build_id);
        self.profile.mapping.push(Mapping {
            id,
            memory_start: start,
            memory_limit: end,
            filename,
            build_id,
            has_functions: !loaded.symbols.is_empty(),
            ..Mapping::default()
        });
        self.mappings.insert(name, id);
        id
    }

    /// Where a module, or the kernel, begins and ends, if that is known.
    fn range(&self, module: Option<&str>) -> Option<(u64, u64)> {
        let modules = &self.loaded.modules;
        let Some(module) = module else {
            // From where the kernel begins to the first module after it.
            let start = self.loaded.symbols.kallsyms.as_ref()?.text_base()?;
            let modules = modules.iter().map(|module| module.base);
            let end = modules.filter(|base| *base > start).min();
            return Some((start, end.unwrap_or(u64::MAX)));
        };
        let module = modules.get(module).filter(|module| module.base != 0)?;
        Some((module.base, module.base.saturating_add(module.size)))
    }

    pub(super) fn string(&mut self, text: &str) -> i64 {
        number_of(&mut self.strings, text).into()
    }

    /// Returns the text with this number.
    pub(super) fn text(&self, number: i64) -> &str {
        &self.strings[number as usize]
    }

    /// Returns the tables.
    pub(super) fn finish(self) -> Profile {
        Profile {
            string_table: self.strings.into_iter().collect(),
            ..self.profile
        }
    }
}
