// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names for frames of user stacks.
//!
//! A frame in a file is looked up in the file and in its separate debug files, wherever those are
//! found that have the same build-id; one in no file, in what its process says of generated code.
//! A frame that nothing names has no name: nothing is guessed.

use super::{
    binaries::{Binaries, VDSO, VDSO32},
    child,
    elf::{build_id, is_64},
    functions::Function,
    lookup::{self, Answer, Of, Place, Request},
    perf_map,
    segments::Recorded,
    words::{At, Process},
    ByFrame, WhichFrame,
};
use crate::symbols::{lookup_address, SourceLine};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    rc::Rc,
};

pub use lookup::Missing;

/// How many frames are looked up between two reports of progress.
const BATCH: u64 = 256;
/// More than the names of any recording need, in bytes. What files say beyond it is not kept.
const MAX_NAMES: usize = 512 << 20;
/// What a name takes besides its characters, in bytes.
const TEXT: usize = 64;
/// What names a frame of a user stack.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Named {
    /// The name of the function. It may have any character in it.
    pub function: Option<Rc<str>>,
    /// How far the frame is after the beginning of the function; for an inlined one: of that it
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
    /// If the stacks are those of the running system: the time of the earliest, in seconds since 1970. A
    /// file without a build-id is then the one at its path, if that has its inode number and its size
    /// and has not changed since.
    pub since: Option<i64>,
    /// Whether files are read in a process of their own, which has limits. The program can be started
    /// for that: it is this one, and runs [`child::main`](super::child::main).
    pub apart: bool,
}

/// Where names come from, and what was looked up.
#[derive(Default)]
pub struct Names {
    places: Places,
    segments: Recorded,
    /// By index.
    vdsos: HashMap<u32, Vec<u8>>,
    vdso_ids: HashMap<u32, String>,
    perf_maps: HashMap<Process, Vec<u8>>,
    /// Innermost first.
    frames: ByFrame<Box<[Named]>>,
    signal_returns: ByFrame<()>,
    missing: BTreeMap<u32, Missing>,
    texts: Texts,
}

impl Names {
    /// No names yet.
    pub fn new(places: Places) -> Self {
        Self {
            places,
            ..Self::default()
        }
    }

    /// With the segments of executables that were recorded.
    pub fn with_segments(self, segments: Recorded) -> Self {
        Self { segments, ..self }
    }

    /// Adds the image of a vDSO that has this index among the files.
    pub fn set_vdso(&mut self, index: u32, image: Vec<u8>) {
        self.vdso_ids.extend(build_id(&image).map(|id| (index, id)));
        self.vdsos.insert(index, image);
    }

    /// The build-id of a vDSO whose image is known.
    pub fn vdso_id(&self, index: u32) -> Option<&str> {
        self.vdso_ids.get(&index).map(|id| &id[..])
    }

    /// Adds what a process says of the code that it generated: its `/tmp/perf-PID.map`.
    pub fn add_perf_map(&mut self, process: Process, text: Vec<u8>) {
        self.perf_maps.insert(process, text);
        let is_other =
            |at: &At| !matches!(at, At::Address { process: Some(of), .. } if *of == process);
        self.frames.retain_others(is_other);
    }

    /// What is at a frame, innermost first, inlined functions included; none before
    /// [`prime`](Self::prime) saw it, or if nothing names it.
    pub fn frames(&self, frame: WhichFrame) -> &[Named] {
        self.frames.get(frame).map_or(&[], |frames| frames)
    }

    /// Whether a signal handler returns to a frame that was looked up: after it is the code that the
    /// signal interrupted.
    pub fn is_signal_return(&self, frame: WhichFrame) -> bool {
        self.signal_returns.get(frame).is_some()
    }

    /// How many such frames there are.
    pub fn nr_signal_returns(&self) -> usize {
        self.signal_returns.len()
    }

    /// The files whose frames have no names, by their index, and why. A vDSO is never among
    /// them.
    pub fn missing(&self) -> impl Iterator<Item = (u32, Missing)> + use<'_> {
        self.missing.iter().map(|(index, why)| (*index, *why))
    }

    /// Whether the frames of a file have no names.
    pub fn is_missing(&self, index: u32) -> bool {
        self.missing.contains_key(&index)
    }

    /// Looks all of `wanted` up that are not known yet.
    /// `progress` is called now and then with the number of frames that are done.
    pub fn prime(
        &mut self,
        wanted: impl Iterator<Item = WhichFrame>,
        binaries: &Binaries,
        progress: &mut dyn FnMut(u64),
    ) {
        let mut in_files = Vec::new();
        let mut generated = BTreeMap::<Option<Process>, Vec<WhichFrame>>::new();
        for frame in wanted {
            match frame.at {
                _ if self.frames.get(frame).is_some() => {}
                At::File { index, .. } if self.is_missing(index) => {}
                At::File { .. } => in_files.extend(frame.number()),
                At::Address { process, .. } => generated.entry(process).or_default().push(frame),
            }
        }
        for (process, frames) in generated {
            self.name_generated(process, &frames);
        }
        // By file and offset, for the sake of the caches of what reads DWARF.
        in_files.sort_unstable();
        in_files.dedup();
        let parts = |number: &u64| WhichFrame::of_number(*number);
        let mut done = 0;
        for frames in in_files.chunk_by(|one, other| parts(one).0 == parts(other).0) {
            let (index, _) = parts(&frames[0]);
            let offsets = frames.iter().map(|number| parts(number).1).collect();
            self.name_file(index, offsets, binaries, &mut |nr| {
                if done % BATCH == 0 {
                    progress(done);
                }
                done += nr;
            });
        }
    }

    fn name_generated(&mut self, process: Option<Process>, frames: &[WhichFrame]) {
        let map = process.and_then(|process| self.perf_maps.get(&process));
        let looked_up = |frame: &WhichFrame| match frame.at {
            At::Address { address, .. } => lookup_address(address, frame.exact),
            At::File { .. } => 0,
        };
        let wanted = frames.iter().map(looked_up).collect();
        let found = map.map(|text| perf_map::look_up(text, wanted));
        for frame in frames {
            let looked_up = looked_up(frame);
            let code = found.as_ref().and_then(|found| found.get(&looked_up));
            let function = code.map(|code| Function {
                name: Some(code.name.to_string()),
                offset: looked_up - code.start + u64::from(!frame.exact),
                size: Some(code.size),
                ..Function::default()
            });
            self.set(*frame, function.into_iter().collect());
        }
    }

    /// Names frames in the file with this index. `progress` is called with a number of frames.
    fn name_file(
        &mut self,
        index: u32,
        offsets: Vec<(u64, bool)>,
        binaries: &Binaries,
        progress: &mut dyn FnMut(u64),
    ) {
        let of = match self.vdsos.get(&index) {
            Some(image) => Some(Of::Image(image.clone())),
            None if index == VDSO || index == VDSO32 => None,
            None => binaries.get(index).map(Of::from),
        };
        let Some(of) = of else {
            // A table that is read later may have it.
            return;
        };
        let mut request = Request {
            segments: self.segments.get(index).cloned(),
            of,
            debug: true,
            debug_dirs: self.places.debug_dirs.iter().map(Into::into).collect(),
            unchanged_since: self.places.since,
            frames: offsets,
        };
        let apart = self.places.apart;
        // A process for each file that is nowhere would be a long way to say so.
        let mut missing = lookup::nowhere(&request);
        // Symbols are simpler than debug information.
        for debug in [true, false] {
            if missing.is_some() || request.frames.is_empty() {
                break;
            }
            request.debug = debug;
            let mut done = 0;
            let mut say = |answer| match answer {
                Answer::Missing(why) => missing = Some(why),
                Answer::At(place) => {
                    if let Some((offset, exact)) = request.frames.get(done) {
                        self.place(at(index, *offset, *exact), place);
                        progress(1);
                        done += 1;
                    }
                }
            };
            match apart {
                true => child::ask(&request, &mut say),
                false => lookup::answer(&request, &mut say),
            }
            request.frames.drain(..done);
        }
        if !request.frames.is_empty() {
            missing = missing.or(Some(Missing::Damaged));
        }
        // Frames of files that are missing have no names anyway.
        let is_vdso = self.vdsos.contains_key(&index) || index == VDSO || index == VDSO32;
        for (offset, exact) in request.frames {
            if is_vdso {
                self.set(at(index, offset, exact), Vec::new());
            }
            progress(1);
        }
        if !is_vdso {
            self.missing.extend(missing.map(|why| (index, why)));
        }
    }

    fn place(&mut self, frame: WhichFrame, place: Place) {
        if place.signal_return {
            self.signal_returns.insert(frame, ());
        }
        self.set(frame, place.functions);
    }

    fn set(&mut self, frame: WhichFrame, functions: Vec<Function>) {
        let texts = &mut self.texts;
        let named = functions.into_iter().map(|function| {
            let line = function.source.map(|SourceLine { file, line }| {
                let file = texts.keep(&file)?;
                Some(SourceLine { file, line })
            });
            let source = line.map_or(Some(None), |line| line.map(Some))?;
            let name = function.name.map(|name| texts.keep(&name));
            Some(Named {
                function: name.map_or(Some(None), |name| name.map(Some))?,
                offset: function.offset,
                size: function.size,
                inlined: function.inlined,
                source,
                place: frame.at,
            })
        });
        let named: Option<Box<[_]>> = named.collect();
        let named = named.filter(|named| texts.take(size_of_val(&**named)));
        self.frames.insert(frame, named.unwrap_or_default());
    }
}

/// The index of a vDSO among the files by its image: the 64-bit or the 32-bit one; [`None`]: it is none.
pub fn vdso_index(image: &[u8]) -> Option<u32> {
    is_64(image).map(|is_64| if is_64 { VDSO } else { VDSO32 })
}

fn at(index: u32, offset: u64, exact: bool) -> WhichFrame {
    let at = At::File { index, offset };
    WhichFrame { at, exact }
}

/// Texts, each once.
#[derive(Default)]
struct Texts {
    texts: HashSet<Rc<str>>,
    /// How many bytes were taken.
    taken: usize,
}

impl Texts {
    /// A text; [`None`]: there is no space for more.
    fn keep(&mut self, text: &str) -> Option<Rc<str>> {
        if let Some(kept) = self.texts.get(text) {
            return Some(kept.clone());
        }
        let text = self
            .take(text.len() + TEXT)
            .then(|| Rc::<str>::from(text))?;
        self.texts.insert(text.clone());
        Some(text)
    }

    fn take(&mut self, size: usize) -> bool {
        let taken = self.taken + size;
        let has_room = taken <= MAX_NAMES;
        if has_room {
            self.taken = taken;
        }
        has_room
    }
}

#[cfg(test)]
mod tests;
