// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tables of an ELF file say: whose file it is, where it is loaded, and what names it has.

use super::segments::{Segment, MAX_SEGMENTS};
use object::{
    elf::{
        FileHeader32, FileHeader64, ELF_NOTE_GNU, NT_GNU_BUILD_ID, PF_X, PT_LOAD, SHF_EXECINSTR,
        SHT_NOBITS,
    },
    read::{
        elf::{CompressionHeader, FileHeader, NoteIterator, ProgramHeader, SectionHeader},
        ReadCache, ReadRef,
    },
    Endianness, FileKind, Object,
};
use std::{cell::Cell, fs::File, io::Read, ops::Range};
use xz2::{read::XzDecoder, stream::Stream};

/// More than the tables of any file, in bytes; symbols are not among them.
const MAX_READ: u64 = 64 << 20;
/// More than the compressed sections of any file have, in bytes: the file may be anybody's.
const MAX_UNPACKED: u64 = 1 << 30;
/// The same of a table of symbols in `.gnu_debugdata`.
const MAX_DEBUGDATA: u64 = 64 << 20;
/// The section with a compressed table of symbols.
pub(super) const DEBUGDATA: &[u8] = b".gnu_debugdata";
/// What a string counts for: `ReadCache` reads no longer ones.
const STRING: u64 = 4096;

/// What names of functions a file has.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Kind {
    /// Debug information.
    Debug,
    /// A table of symbols.
    Symbols,
    /// Only what other files may call.
    Dynamic,
}

/// What is known of an ELF file.
#[derive(Debug)]
pub(super) struct Facts {
    build_id: Option<String>,
    /// Its executable segments, as far as they can be trusted.
    pub(super) segments: Vec<Segment>,
    /// The best names that it has.
    pub(super) kind: Option<Kind>,
    /// Whether the file was separated from an executable, and has no code.
    pub(super) is_separate: bool,
    /// Whether it says which other files belong to it.
    pub(super) links: bool,
    /// Whether it says which file has its debug information.
    pub(super) is_elsewhere: bool,
}

/// The build-id of an ELF file in memory, in hexadecimal digits.
pub(super) fn build_id(content: &[u8]) -> Option<String> {
    let file = object::File::parse(content).ok()?;
    let id = file.build_id().ok()??;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether addresses of an ELF file have 64 bits; [`None`]: it is none.
pub(super) fn is_64(content: &[u8]) -> Option<bool> {
    match FileKind::parse(content).ok()? {
        FileKind::Elf32 => Some(false),
        FileKind::Elf64 => Some(true),
        _ => None,
    }
}

impl Facts {
    /// Those of a file; [`None`]: it is no ELF file, or a damaged one.
    pub(super) fn read(file: &File) -> Option<Self> {
        let reader = Reader::new(file, MAX_READ)?;
        match FileKind::parse(&reader).ok()? {
            FileKind::Elf32 => Self::parse::<FileHeader32<Endianness>>(&reader),
            FileKind::Elf64 => Self::parse::<FileHeader64<Endianness>>(&reader),
            _ => None,
        }
    }

    /// Whether the file has this build-id.
    pub(super) fn is(&self, build_id: &str) -> bool {
        self.build_id.as_deref() == Some(build_id)
    }

    fn parse<H: FileHeader<Endian = Endianness>>(reader: &Reader) -> Option<Self> {
        let header = H::parse(reader).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, reader).ok()?;
        let segments = header.program_headers(endian, reader).ok()?;

        let mut build_id = None;
        let mut kind = None;
        let mut links = false;
        let mut is_separate = false;
        let mut is_elsewhere = false;
        let mut left = Some(MAX_UNPACKED);
        for section in sections.iter() {
            let is_there = section.sh_type(endian) != SHT_NOBITS;
            is_separate |= !is_there && section.sh_flags(endian).contains(SHF_EXECINSTR);
            if build_id.is_none() {
                build_id = id(section.notes(endian, reader).ok()?, endian)?;
            }
            if !is_there {
                continue;
            }
            if let Some((header, ..)) = section.compression(endian, reader).ok()? {
                left = left.and_then(|left| left.checked_sub(header.ch_size(endian).into()));
            }
            let name = sections.section_name(endian, section).ok()?;
            let found = match name {
                b".debug_info" => Some(Kind::Debug),
                b".symtab" | DEBUGDATA | b".go.buildinfo" => Some(Kind::Symbols),
                b".dynsym" => Some(Kind::Dynamic),
                name => {
                    links |= is_link(name);
                    is_elsewhere |= matches!(name, b".gnu_debuglink" | b".debug_sup");
                    None
                }
            };
            kind = kind.into_iter().chain(found).min();
        }
        for segment in segments {
            if build_id.is_none() {
                build_id = id(segment.notes(endian, reader).ok()?, endian)?;
            }
        }
        Some(Self {
            build_id,
            segments: executable::<H>(segments, endian, is_separate),
            kind: left.and(kind),
            is_separate,
            links,
            is_elsewhere,
        })
    }
}

/// What is compressed, if it is no more than [`MAX_DEBUGDATA`].
pub(super) fn unpacked(data: &[u8]) -> Option<Vec<u8>> {
    let stream = Stream::new_stream_decoder(2 * MAX_DEBUGDATA, 0).ok()?;
    let mut decoder = XzDecoder::new_stream(data, stream).take(MAX_DEBUGDATA + 1);
    let mut unpacked = Vec::new();
    let size = decoder.read_to_end(&mut unpacked).ok()?;
    (size as u64 <= MAX_DEBUGDATA).then_some(unpacked)
}

/// Whether a section names another file.
fn is_link(section: &[u8]) -> bool {
    matches!(
        section,
        b".gnu_debuglink" | b".gnu_debugaltlink" | b".debug_sup"
    )
}

/// The build-id among notes; [`None`]: they are damaged.
fn id<H: FileHeader>(
    notes: Option<NoteIterator<'_, H>>,
    endian: H::Endian,
) -> Option<Option<String>> {
    let Some(mut notes) = notes else {
        return Some(None);
    };
    while let Some(note) = notes.next().ok()? {
        if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
            let bytes = note.desc().iter();
            return Some(Some(bytes.map(|byte| format!("{byte:02x}")).collect()));
        }
    }
    Some(None)
}

/// The executable segments.
///
/// `is_separate`: the file was separated from an executable, and has no code. `objcopy
/// --only-keep-debug` keeps the addresses and sizes in memory there, but makes the size in the file
/// that of what was kept, mostly 0, and then moves the offset. So an offset stays only in the first
/// segment, if that has the header of the file and with it offset 0. `eu-strip -f` changes nothing,
/// so that the sizes in the file and in memory are the same.
fn executable<H: FileHeader<Endian = Endianness>>(
    segments: &[H::ProgramHeader],
    endian: Endianness,
    is_separate: bool,
) -> Vec<Segment> {
    let loaded = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD);
    let found = loaded.enumerate().filter_map(|(index, segment)| {
        let offset = segment.p_offset(endian).into();
        let in_memory = segment.p_memsz(endian).into();
        let in_file = segment.p_filesz(endian).into();
        let size = match (is_separate, index, offset) {
            (false, ..) => in_file,
            (true, 0, 0) if in_file != 0 => in_memory,
            (true, ..) if in_file == in_memory => in_file,
            (true, ..) => return None,
        };
        let is_executable = segment.p_flags(endian).contains(PF_X);
        (is_executable && size != 0).then(|| Segment {
            offset,
            vaddr: segment.p_vaddr(endian).into(),
            size,
        })
    });
    found.take(MAX_SEGMENTS).collect()
}

/// Reads a file, but not more of it than a number of bytes. Nothing is mapped: a file can be truncated
/// at any time.
pub(super) struct Reader {
    cache: ReadCache<File>,
    left: Cell<u64>,
}

impl Reader {
    /// Reads no more than `most` of `file`.
    pub(super) fn new(file: &File, most: u64) -> Option<Self> {
        Some(Self {
            cache: ReadCache::new(file.try_clone().ok()?),
            left: Cell::new(most),
        })
    }

    fn take(&self, size: u64) -> Result<(), ()> {
        self.left.set(self.left.get().checked_sub(size).ok_or(())?);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for &'a Reader {
    fn len(self) -> Result<u64, ()> {
        (&self.cache).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.take(size)?;
        (&self.cache).read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.take(STRING)?;
        (&self.cache).read_bytes_at_until(range, delimiter)
    }
}
