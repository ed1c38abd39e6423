// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is at offsets in one file: finding the file, and what says which functions it has.

use super::{
    binaries::Binary,
    elf::{Facts, Kind},
    files::{candidates, open, Candidate},
    functions::{Function, Functions},
    segments::{address, Segment},
};
use crate::symbols::lookup_address;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fmt,
    fs::File,
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
};

/// Where files are that the debug files of systems name.
const SYSTEM: [&str; 2] = ["/usr/lib/debug", "/lib/debug"];
/// The code that a signal handler returns to, in machine code.
const SIGNAL_RETURNS: [&[u8]; 4] = [
    // mov $15, %rax; syscall
    b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05",
    // mov $173, %eax; int $0x80
    b"\xb8\xad\0\0\0\xcd\x80",
    // pop %eax; mov $119, %eax; int $0x80
    b"\x58\xb8\x77\0\0\0\xcd\x80",
    // mov x8, #139; svc #0
    b"\x68\x11\x80\xd2\x01\0\0\xd4",
];
/// The longest of them, in bytes.
const SIGNAL_RETURN: usize = 9;
/// How such code is called where there is none to read.
const SIGNAL_RETURN_NAMES: [&str; 3] = [
    "__restore_rt",
    "__kernel_rt_sigreturn",
    "__kernel_sigreturn",
];
/// Instructions that enter the kernel (x86): `syscall`, `int $0x80`, `sysenter`.
const ENTRIES: [[u8; 2]; 3] = [[0x0f, 0x05], [0xcd, 0x80], [0x0f, 0x34]];

/// What is asked of one file.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Request {
    /// Which one.
    pub(super) of: Of,
    /// Its executable segments, if they were recorded.
    pub(super) segments: Option<Vec<Segment>>,
    /// Whether debug information is read.
    pub(super) debug: bool,
    /// Directories with debug files.
    pub(super) debug_dirs: Vec<OsString>,
    /// A file without a build-id is the one at its path if it has not changed since, in seconds since
    /// 1970.
    pub(super) unchanged_since: Option<i64>,
    /// Offsets in the file, and whether each is exact, rather than a return address.
    pub(super) frames: Vec<(u64, bool)>,
}

/// What is looked into.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Of {
    /// A file.
    Binary {
        /// See [`Binary::build_id`].
        build_id: Option<String>,
        /// The inode number.
        ino: u64,
        /// The size, in bytes.
        size: u64,
        /// See [`Binary::path`].
        path: OsString,
    },
    /// The image of a vDSO.
    Image(Vec<u8>),
}

impl From<&Binary> for Of {
    fn from(binary: &Binary) -> Self {
        Of::Binary {
            build_id: binary.build_id.clone(),
            ino: binary.ino,
            size: binary.size,
            path: binary.path.clone().into(),
        }
    }
}

/// What is said of a file.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Answer {
    /// What is at the next frame.
    At(Place),
    /// Nothing can be said of any frame.
    Missing(Missing),
}

/// What is at a frame.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Place {
    /// The function, after those that were inlined into it; none: it is not known.
    pub(super) functions: Vec<Function>,
    /// Whether a signal handler returns there: after it is the code that the signal interrupted.
    pub(super) signal_return: bool,
}

/// Why no frame in a file has a name.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
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
    /// It was found, and could not be read to the end: frames that were named before have their names.
    Damaged,
}

/// After the name of the file and a colon.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Missing::NoBuildId => "no build-id",
            Missing::NotFound => "file not found",
            Missing::OtherFile => "the file there is another one",
            Missing::NoSegments => "only a debug file found, and the segments are not known",
            Missing::NoNames => "no symbols",
            Missing::Damaged => "damaged, or too large to read its names",
        })
    }
}

/// Answers a request: for each frame, in their order, or once that all are missing.
pub(super) fn answer(request: &Request, say: &mut dyn FnMut(Answer)) {
    match Found::new(request) {
        Ok(found) => {
            for (offset, exact) in &request.frames {
                say(Answer::At(found.place(*offset, *exact)));
            }
        }
        Err(why) => say(Answer::Missing(why)),
    }
}

/// Why no frame can have a name, if there is no file to look into. None is read.
pub(super) fn nowhere(request: &Request) -> Option<Missing> {
    let Of::Binary { build_id, path, .. } = &request.of else {
        return None;
    };
    let mut candidates = candidates(path, build_id.as_deref(), &request.dirs()).into_iter();
    match candidates.any(|candidate| open(&candidate.path).is_some()) {
        true => None,
        false => Some(request.not_found()),
    }
}

impl Request {
    fn dirs(&self) -> Vec<PathBuf> {
        self.debug_dirs.iter().map(PathBuf::from).collect()
    }

    fn not_found(&self) -> Missing {
        match &self.of {
            Of::Binary { build_id, .. } if build_id.is_none() => Missing::NoBuildId,
            _ => Missing::NotFound,
        }
    }
}

/// The files that were found for one.
struct Found {
    /// Best first.
    functions: Vec<Functions>,
    segments: Vec<Segment>,
    /// The one that has the code.
    code: Option<File>,
}

/// Where code is, and how much.
fn addresses(segments: &[Segment]) -> impl Iterator<Item = (u64, u64)> + use<'_> {
    segments.iter().map(|segment| (segment.vaddr, segment.size))
}

/// A file that was found.
struct Opened {
    /// Whether it is below [`SYSTEM`], where only root puts files.
    of_system: bool,
    size: u64,
    file: File,
    facts: Facts,
}

impl Opened {
    /// Whether it has debug information that may be read.
    fn has_debug(&self) -> bool {
        // What a file of anybody names is not opened, and nothing that is looked for in its directory.
        let elsewhere = self.facts.is_elsewhere || (self.facts.links && !self.of_system);
        self.facts.kind == Some(Kind::Debug) && !elsewhere
    }
}

impl Found {
    fn new(request: &Request) -> Result<Self, Missing> {
        match &request.of {
            Of::Image(image) => Self::image(image).ok_or(Missing::NoNames),
            Of::Binary { .. } => Self::binary(request),
        }
    }

    fn image(image: &[u8]) -> Option<Self> {
        let mut file = tempfile::tempfile().ok()?;
        file.write_all(image).ok()?;
        Some(Self {
            segments: Facts::read(&file)?.segments,
            functions: vec![Functions::new(file.try_clone().ok()?, false, &[])],
            code: Some(file),
        })
    }

    fn binary(request: &Request) -> Result<Self, Missing> {
        let (mut files, mut why) = Self::open(request);
        if files.is_empty() {
            return Err(why);
        }
        let Of::Binary { size, .. } = request.of else {
            return Err(why);
        };
        // Of files with this build-id, the one that ran has its size.
        files.sort_by_key(|file| (file.facts.is_separate, file.size != size));
        let segments = match &request.segments {
            Some(segments) => segments.clone(),
            None => {
                let segments = files.iter().map(|file| &file.facts.segments);
                let known = segments.into_iter().find(|segments| !segments.is_empty());
                known.cloned().unwrap_or_default()
            }
        };
        files.retain(|file| {
            // What was done to a file after it was linked may have moved its content.
            let is_same = file.facts.is_separate
                || segments.is_empty()
                || addresses(&file.facts.segments).eq(addresses(&segments));
            if !is_same {
                why = Missing::OtherFile;
            }
            is_same
        });
        if files.is_empty() {
            return Err(why);
        }
        let has_code = |file: &&Opened| !file.facts.is_separate && file.facts.segments == segments;
        let code = files.iter().find(has_code);
        let code = code.and_then(|code| code.file.try_clone().ok());
        files.retain(|file| file.facts.kind.is_some());
        if files.is_empty() {
            return Err(Missing::NoNames);
        }
        if segments.is_empty() {
            return Err(Missing::NoSegments);
        }
        files.sort_by_key(|file| (!file.has_debug(), file.facts.kind));
        let dirs = request.debug_dirs.iter().map(PathBuf::from);
        let dirs: Vec<_> = dirs.chain(SYSTEM.map(PathBuf::from)).collect();
        let functions = files.into_iter().map(|opened| {
            let debug = request.debug && opened.has_debug();
            Functions::new(opened.file, debug, &dirs)
        });
        Ok(Self {
            functions: functions.collect(),
            segments,
            code,
        })
    }

    /// All files that are the one that was asked for, and why there is none.
    fn open(request: &Request) -> (Vec<Opened>, Missing) {
        let Of::Binary { build_id, path, .. } = &request.of else {
            return (Vec::new(), Missing::NoNames);
        };
        let mut why = request.not_found();
        let mut files = Vec::new();
        for Candidate { path, itself } in candidates(path, build_id.as_deref(), &request.dirs()) {
            let Some(file) = open(&path) else {
                continue;
            };
            let facts = Facts::read(&file);
            let facts = facts.filter(|facts| request.is_for(itself, &file, facts));
            match (facts, file.metadata()) {
                (Some(facts), Ok(metadata)) => files.push(Opened {
                    of_system: SYSTEM.iter().any(|dir| path.starts_with(dir)),
                    size: metadata.len(),
                    file,
                    facts,
                }),
                _ if itself && why == Missing::NotFound => why = Missing::OtherFile,
                _ => {}
            }
        }
        (files, why)
    }

    fn place(&self, offset: u64, exact: bool) -> Place {
        let bytes = self.bytes(offset);
        let signal_return = self.is_signal_return(offset, exact, &bytes);
        // The place that a handler returns to is called by nothing: what lies before it is another
        // function.
        let exact = exact || signal_return;
        let functions = self.functions(offset, exact).unwrap_or_default();
        let begins = |function: &Function| exact && function.offset == 0;
        let entered = bytes
            .before
            .last_chunk()
            .is_some_and(|last| ENTRIES.contains(last));
        if entered && !signal_return && functions.last().is_some_and(begins) {
            // Either code was interrupted here, or a function before it ends with a system call that
            // does not return.
            return Place::default();
        }
        Place {
            functions,
            signal_return,
        }
    }

    fn functions(&self, offset: u64, exact: bool) -> Option<Vec<Function>> {
        let looked_up = lookup_address(offset, exact);
        let address = address(&self.segments, looked_up)?;
        let behind = offset - looked_up;
        self.functions
            .iter()
            .find_map(|file| file.at(address, behind))
    }

    fn is_signal_return(&self, offset: u64, exact: bool, bytes: &Around) -> bool {
        let is_code = SIGNAL_RETURNS.iter().any(|code| match exact {
            false => bytes.behind.starts_with(code),
            // What is interrupted may be at any of the instructions.
            true => (0..code.len()).any(|done| {
                let (first, rest) = code.split_at(done);
                bytes.before.ends_with(first) && bytes.behind.starts_with(rest)
            }),
        });
        let has_name = || {
            let functions = self.functions(offset, true).unwrap_or_default();
            functions.last().is_some_and(|function| {
                let name = function.name.as_deref().unwrap_or_default();
                function.offset == 0 && SIGNAL_RETURN_NAMES.contains(&name)
            })
        };
        is_code || has_name()
    }

    /// The code around an offset.
    fn bytes(&self, offset: u64) -> Around {
        let start = offset.saturating_sub(SIGNAL_RETURN as u64);
        let before = (offset - start) as usize;
        let mut bytes = vec![0; before + SIGNAL_RETURN];
        let mut len = 0;
        while let (Some(file), true) = (&self.code, len < bytes.len()) {
            match file.read_at(&mut bytes[len..], start + len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes.truncate(len);
        let behind = bytes.split_off(before.min(len));
        Around {
            before: bytes,
            behind,
        }
    }
}

/// Some bytes before an address, and after it.
struct Around {
    before: Vec<u8>,
    behind: Vec<u8>,
}

impl Request {
    /// Whether a file is the one that was recorded, or one of its debug files.
    fn is_for(&self, itself: bool, file: &File, facts: &Facts) -> bool {
        let Of::Binary {
            build_id,
            ino,
            size,
            ..
        } = &self.of
        else {
            return false;
        };
        if let Some(build_id) = build_id {
            return facts.is(build_id);
        }
        let is_same = |metadata: std::fs::Metadata| {
            let is_old = |since| metadata.ctime() < since;
            metadata.ino() == *ino
                && metadata.len() == *size
                && self.unchanged_since.is_some_and(is_old)
        };
        itself && file.metadata().is_ok_and(is_same)
    }
}
