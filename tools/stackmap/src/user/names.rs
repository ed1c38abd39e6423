// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names for frames of user stacks.
//!
//! A frame in a file is looked up in the file and in its separate debug files, wherever those are
//! found that have the same build-id; one in no file, in what its process says of generated code.
//! A frame that nothing names has no name: nothing is guessed.

use super::{
    binaries::{Binaries, Binary, VDSO, VDSO32},
    elf::{Facts, Kind},
    files::{candidates, open, Candidate},
    functions::Functions,
    perf_map::PerfMap,
    segments::{address, Segment},
    words::{At, Process},
    ByFrame, WhichFrame,
};
use crate::symbols::{lookup_address, SourceLine};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    fs::File,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// How many frames are looked up between two reports of progress.
const BATCH: u64 = 256;
/// Where files are that the debug files of systems name.
const SYSTEM: [&str; 2] = ["/usr/lib/debug", "/lib/debug"];

/// What names a frame of a user stack.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Named {
    /// The name of the function. It may have any character in it.
    pub function: Option<String>,
    /// How far the frame is behind the beginning of the function; for an inlined one: of that it
    /// was inlined into.
    pub offset: u64,
    /// How long that function is, if that is known.
    pub size: Option<u64>,
    /// Whether the compiler inlined this function into that of the next frame.
    pub inlined: bool,
    /// The line of source code.
    pub source: Option<SourceLine>,
    /// Where the frame is.
    pub place: At,
}

/// Where files with names are looked for.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Directories with debug files, or with a copy of the system that was recorded.
    pub debug_dirs: Vec<PathBuf>,
    /// Whether the stacks are those of the running system: a file without a build-id is then the
    /// one at its path, if that has its inode number and its size.
    pub here: bool,
}

/// Why no frame in a file has a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Missing {
    /// It has no build-id, so no file can be known to be it.
    NoBuildId,
    /// It is nowhere.
    NotFound,
    /// It is nowhere, and at its path is another one.
    OtherFile,
    /// A debug file was found, but not where the executable is loaded.
    NoSegments,
    /// It was found, and has no names.
    NoNames,
}

/// Behind the name of the file and a colon.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Missing::NoBuildId => "no build-id",
            Missing::NotFound => "file not found",
            Missing::OtherFile => "the file there is another one",
            Missing::NoSegments => "only a debug file found, and the segments are not known",
            Missing::NoNames => "no symbols",
        })
    }
}

/// Where names come from, and what was looked up.
#[derive(Default)]
pub struct Names {
    places: Places,
    /// By build-id.
    segments: BTreeMap<String, Vec<Segment>>,
    /// By index.
    vdsos: HashMap<u32, File>,
    perf_maps: HashMap<Process, PerfMap>,
    /// Innermost first.
    frames: ByFrame<Box<[Named]>>,
    missing: BTreeMap<u32, Missing>,
}

/// The files that were found for one.
struct Found {
    /// Best first.
    functions: Vec<Functions>,
    segments: Vec<Segment>,
}

impl Names {
    /// No names yet.
    pub fn new(places: Places) -> Self {
        Self {
            places,
            ..Self::default()
        }
    }

    /// With the segments of executables, by build-id, that were recorded.
    pub fn with_segments(self, segments: BTreeMap<String, Vec<Segment>>) -> Self {
        Self { segments, ..self }
    }

    /// Adds an image of the vDSO, the 64-bit or the 32-bit one. What is none is ignored.
    pub fn set_vdso(&mut self, image: Vec<u8>) -> io::Result<()> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&image)?;
        if let Some(facts) = Facts::read(&file) {
            let index = match facts.is_64 {
                true => VDSO,
                false => VDSO32,
            };
            self.vdsos.insert(index, file);
        }
        Ok(())
    }

    /// Adds what a process says of the code that it generated: its `/tmp/perf-PID.map`.
    pub fn add_perf_map(&mut self, process: Process, text: &[u8]) {
        self.perf_maps.insert(process, PerfMap::parse(text));
        let is_other =
            |at: &At| !matches!(at, At::Address { process: Some(of), .. } if *of == process);
        self.frames.retain(|frame, _| is_other(&frame.at));
    }

    /// What is at a frame, innermost first, inlined functions included; none before
    /// [`prime`](Self::prime) saw it, or if nothing names it.
    pub fn frames(&self, frame: WhichFrame) -> &[Named] {
        self.frames.get(&frame).map_or(&[], |frames| frames)
    }

    /// The files whose frames have no names, by their index, and why. A vDSO is never among
    /// them.
    pub fn missing(&self) -> impl Iterator<Item = (u32, Missing)> + use<'_> {
        self.missing.iter().map(|(index, why)| (*index, *why))
    }

    /// Looks all of `wanted` up that are not known yet.
    /// `progress` is called now and then with the number of frames that are done.
    pub fn prime(
        &mut self,
        wanted: impl Iterator<Item = WhichFrame>,
        binaries: &Binaries,
        progress: &mut dyn FnMut(u64),
    ) {
        // By file and offset, for the sake of the caches of what reads DWARF.
        let mut by_file = BTreeMap::<u32, BTreeSet<(u64, bool)>>::new();
        let mut generated = BTreeSet::new();
        for frame in wanted {
            match frame.at {
                _ if self.frames.contains_key(&frame) => {}
                At::File { index, offset } => {
                    let offsets = by_file.entry(index).or_default();
                    offsets.insert((offset, frame.exact));
                }
                At::Address { .. } => {
                    generated.insert(frame);
                }
            }
        }
        for frame in generated {
            let named = self.generated(frame.at, frame.exact);
            self.frames.insert(frame, named.into_iter().collect());
        }
        let mut done = 0;
        for (index, offsets) in by_file {
            let found = self.find(index, binaries);
            if found.is_none() && !self.missing.contains_key(&index) {
                // A table that is read later may have it.
                continue;
            }
            for (offset, exact) in offsets {
                if done % BATCH == 0 {
                    progress(done);
                }
                done += 1;
                let at = At::File { index, offset };
                let frames = found
                    .as_ref()
                    .and_then(|found| found.frames(at, offset, exact));
                self.frames
                    .insert(WhichFrame { at, exact }, frames.unwrap_or_default());
            }
        }
    }

    fn generated(&self, at: At, exact: bool) -> Option<Named> {
        let At::Address { address, process } = at else {
            return None;
        };
        let map = self.perf_maps.get(&process?)?;
        let code = map.get(lookup_address(address, exact))?;
        Some(Named {
            function: Some(code.name.to_owned()),
            offset: address - code.start,
            size: Some(code.size),
            inlined: false,
            source: None,
            place: at,
        })
    }

    /// Finds the files for the one with this index.
    fn find(&mut self, index: u32, binaries: &Binaries) -> Option<Found> {
        if let VDSO | VDSO32 = index {
            let file = self.vdsos.get(&index)?.try_clone().ok()?;
            let segments = Facts::read(&file)?.segments;
            let functions = vec![Functions::new(file, false, &[])];
            return Some(Found {
                functions,
                segments,
            });
        }
        if self.missing.contains_key(&index) {
            return None;
        }
        let found = self.find_binary(binaries.get(index)?);
        found.map_err(|why| self.missing.insert(index, why)).ok()
    }

    fn find_binary(&self, binary: &Binary) -> Result<Found, Missing> {
        let recorded = binary
            .build_id
            .as_ref()
            .and_then(|id| self.segments.get(id));
        let mut segments = recorded.cloned().unwrap_or_default();
        let mut found = Vec::new();
        let mut why = match binary.build_id {
            Some(_) => Missing::NotFound,
            None => Missing::NoBuildId,
        };
        for candidate in candidates(binary, &self.places.debug_dirs) {
            let Some(file) = open(&candidate.path) else {
                continue;
            };
            let Some(facts) =
                Facts::read(&file).filter(|facts| self.is_of(binary, &candidate, &file, facts))
            else {
                if candidate.itself && why == Missing::NotFound {
                    why = Missing::OtherFile;
                }
                continue;
            };
            // What a file of anybody names is not opened.
            let debug = facts.kind == Some(Kind::Debug) && !(candidate.itself && facts.links);
            if !facts.segments.is_empty() {
                segments = facts.segments;
            }
            found.push((facts.kind, debug, file));
            if debug && !segments.is_empty() {
                break;
            }
        }
        if found.is_empty() {
            return Err(why);
        }
        found.retain(|(kind, ..)| kind.is_some());
        if found.is_empty() {
            return Err(Missing::NoNames);
        }
        if segments.is_empty() {
            return Err(Missing::NoSegments);
        }
        found.sort_by_key(|(kind, debug, _)| (!debug, *kind));
        let system = SYSTEM.iter().map(PathBuf::from);
        let dirs: Vec<_> = self
            .places
            .debug_dirs
            .iter()
            .cloned()
            .chain(system)
            .collect();
        let functions = found.into_iter();
        Ok(Found {
            functions: functions
                .map(|(_, debug, file)| Functions::new(file, debug, &dirs))
                .collect(),
            segments,
        })
    }

    /// Whether a file is the one that was recorded, or one of its debug files.
    fn is_of(&self, binary: &Binary, candidate: &Candidate, file: &File, facts: &Facts) -> bool {
        if let Some(build_id) = &binary.build_id {
            return facts.is(build_id);
        }
        let is_same = |metadata: std::fs::Metadata| {
            metadata.ino() == binary.ino && metadata.len() == binary.size
        };
        self.places.here && candidate.itself && file.metadata().is_ok_and(is_same)
    }
}

impl Found {
    fn frames(&self, place: At, offset: u64, exact: bool) -> Option<Box<[Named]>> {
        let looked_up = lookup_address(offset, exact);
        let address = address(&self.segments, looked_up)?;
        let behind = offset - looked_up;
        let functions = self.functions.iter().find_map(|file| file.at(address))?;
        let frames = functions.into_iter().map(|function| Named {
            function: function.name,
            offset: address.saturating_sub(function.start) + behind,
            size: function.size,
            inlined: function.inlined,
            source: function.source,
            place,
        });
        Some(frames.collect())
    }
}

#[cfg(test)]
mod tests;
