// SPDX-License-Identifier: GPL-2.0

//! An ELF file, and where it describes a function.

use super::{
    super::rule::Rule,
    cursor::{encoding, Cursor},
    description::{end_of, Cie},
    File, Machine, Unknown,
};

/// Program headers that are looked at.
const HEADERS_MAX: u16 = 64;
/// Segments of a file that are loaded, at most.
const LOADS_MAX: usize = 16;

/// Bytes of the first instructions of a program, at most.
const START_MAX: u64 = 64;

/// Bytes of generated code at least.
const GENERATED_MIN: u64 = 8192;
/// What its functions are aligned to; what others are, at least where breakpoints are between them.
const ALIGNED: u64 = 64;
const PADDED: u64 = 16;
/// How far a function of generated code reaches, at most, in units of the latter.
const GENERATED_MAX: u64 = 256;

/// Entries of the table of functions that are read at once, as they are near to each other.
const NEAR: u64 = 8;

/// Section headers that are looked at.
const SECTIONS_MAX: u16 = 128;
/// Descriptions that a search looks at. A head that is read counts as more.
const SEARCHED_MAX: u32 = 16_384;
const NEW_HEAD: u32 = 8;
/// The heads that a search remembers.
const HEADS: usize = 4;

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PROGRAM_HEADER: u16 = 56;
const SECTION_HEADER: u16 = 64;

/// A part of a file that is loaded.
#[derive(Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) size: u64,
}

/// Where the headers of sections are.
#[derive(Clone, Copy)]
struct Sections {
    offset: u64,
    nr: u16,
    /// The one of their names.
    names: u16,
}

/// What the headers of a file say.
pub struct Elf {
    loads: [Load; LOADS_MAX],
    nr_loads: usize,
    /// Where the program begins.
    entry: u64,
    /// The table of functions, if there is one.
    table: Option<FunctionTable>,
    sections: Sections,
}

/// The sorted table of functions, `.eh_frame_hdr`.
#[derive(Clone, Copy)]
struct FunctionTable {
    /// What its words are relative to.
    base: u64,
    /// The offset of the first entry, and their number.
    entries: u64,
    nr: u64,
}

/// A file, and the address that is looked for.
pub(super) struct Image<'f, F> {
    pub(super) file: &'f F,
    elf: &'f Elf,
    /// The address in the terms of the file.
    pub(super) address: u64,
}

impl Elf {
    /// Reads the headers of a file.
    pub fn read(file: &impl File, machine: &Machine) -> Result<Self, Unknown> {
        let mut cursor = Cursor::new(file, 0);
        let magic = cursor.bytes::<6>()?;
        // 64 bits, the low byte first.
        if magic != *b"\x7fELF\x02\x01" {
            return Err(Unknown::NoElf);
        }
        cursor.seek(18);
        if cursor.u16()? != machine.elf {
            return Err(Unknown::NoElf);
        }
        cursor.seek(24);
        let (entry, headers, sections) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        cursor.seek(54);
        let (size, nr) = (cursor.u16()?, cursor.u16()?.min(HEADERS_MAX));
        if size != PROGRAM_HEADER {
            return Err(Unknown::Damaged);
        }
        let (size, nr_sections, names) = (cursor.u16()?, cursor.u16()?, cursor.u16()?);
        let sections = Sections {
            offset: sections,
            nr: match size {
                SECTION_HEADER => nr_sections.min(SECTIONS_MAX),
                _ => 0,
            },
            names,
        };
        let mut elf = Self {
            loads: [Load::default(); LOADS_MAX],
            nr_loads: 0,
            entry,
            table: None,
            sections,
        };
        let mut table = None;
        cursor.seek(headers);
        for _ in 0..nr {
            let (kind, _flags) = (cursor.u32()?, cursor.u32()?);
            let (start, address) = (cursor.u64()?, cursor.u64()?);
            let (_physical, size) = (cursor.u64()?, cursor.u64()?);
            let (_memory, _align) = (cursor.u64()?, cursor.u64()?);
            let part = Load {
                offset: start,
                address,
                size,
            };
            match kind {
                PT_LOAD => {
                    *elf.loads.get_mut(elf.nr_loads).ok_or(Unknown::TooLong)? = part;
                    elf.nr_loads += 1;
                }
                PT_GNU_EH_FRAME if size != 0 => table = Some(part),
                _ => {}
            }
        }
        if let Some(part) = table {
            elf.table = FunctionTable::read(&mut cursor, part)?;
        }
        Ok(elf)
    }

    fn loads(&self) -> &[Load] {
        self.loads.get(..self.nr_loads).unwrap_or_default()
    }
}

impl FunctionTable {
    /// Reads the head of the table. [`None`]: it has another form.
    fn read<F: File>(cursor: &mut Cursor<'_, F>, part: Load) -> Result<Option<Self>, Unknown> {
        cursor.seek(part.offset);
        let [version, start, count, table] = cursor.bytes()?;
        if version != 1 || count != encoding::U32 || table != encoding::TABLE {
            return Ok(None);
        }
        cursor.pointer(start)?;
        let nr = u64::from(cursor.u32()?);
        if nr > part.size / 8 {
            return Err(Unknown::Damaged);
        }
        Ok(Some(Self {
            base: part.address,
            entries: cursor.at(),
            nr,
        }))
    }
}

impl Elf {
    /// Returns the same without the table of functions: then they are searched.
    pub fn without_table(&self) -> Self {
        Self {
            table: None,
            ..*self
        }
    }
}

impl<'f, F: File> Image<'f, F> {
    /// Returns the image of a file at the address that an offset is loaded at.
    pub(super) fn new(elf: &'f Elf, file: &'f F, offset: u64) -> Result<Self, Unknown> {
        let at = |load: &Load| offset.wrapping_sub(load.offset);
        let mut loads = elf.loads().iter().rev();
        let load = loads.find(|load| offset >= load.offset && at(load) < load.size);
        let load = load.ok_or(Unknown::NoFunction)?;
        let address = load.address.wrapping_add(at(load));
        Ok(Self { file, elf, address })
    }

    /// Returns a cursor at an address.
    pub(super) fn at(&self, address: u64) -> Result<Cursor<'f, F>, Unknown> {
        let mut loads = self.elf.loads().iter();
        let load = loads.find(|load| address.wrapping_sub(load.address) < load.size);
        let load = load.ok_or(Unknown::Damaged)?;
        let offset = load.offset.checked_add(address.wrapping_sub(load.address));
        Ok(Cursor::new(self.file, offset.ok_or(Unknown::Damaged)?))
    }

    /// Returns the rule of the address, at this offset, which no function that is described has.
    ///
    /// Compilers that generate code when they are built, V8's for one, align functions and fill what is between
    /// with breakpoints, and generate much code at a time.
    pub(super) fn undescribed(&self, machine: &Machine, offset: u64) -> Result<Rule, Unknown> {
        let start = self.elf.entry;
        if start != 0 && self.address.wrapping_sub(start) < START_MAX {
            return Ok(Rule::START);
        }
        let begin = self.by_table().map_or(0, |(begin, _)| begin);
        if self.address.wrapping_sub(begin) < GENERATED_MIN {
            return Err(Unknown::NoFunction);
        }
        let breakpoints = machine.padding.ok_or(Unknown::NoFunction)?;
        let aligned = offset / PADDED * PADDED;
        for nr in 0..GENERATED_MAX {
            let mut padding = [0; 4];
            let end = aligned.checked_sub(PADDED * nr + 4);
            self.file
                .read(end.ok_or(Unknown::NoFunction)?, &mut padding)?;
            if padding == breakpoints {
                let is_aligned = (aligned - PADDED * nr) % ALIGNED == 0;
                return is_aligned
                    .then_some(Rule::GENERATED)
                    .ok_or(Unknown::NoFunction);
            }
        }
        Err(Unknown::NoFunction)
    }

    /// Returns the function that the address may be in, by the table: where it begins, and where its description is loaded.
    pub(super) fn by_table(&self) -> Result<(u64, u64), Unknown> {
        let FunctionTable { base, entries, nr } = self.elf.table.ok_or(Unknown::NoTable)?;
        let address = |word: [u8; 4]| base.wrapping_add(i32::from_le_bytes(word) as u64);
        // The last one that begins at the address or before it is among `nr` entries from `low` on.
        let (mut low, mut nr) = (0, nr);
        while nr > NEAR {
            let half = nr / 2;
            let mut word = [0; 4];
            self.file.read(entries + 8 * (low + half), &mut word)?;
            if address(word) <= self.address {
                low += half;
                nr -= half;
            } else {
                nr = half;
            }
        }
        let mut near = [0; 8 * NEAR as usize];
        let near = near.get_mut(..8 * nr as usize).unwrap_or_default();
        self.file.read(entries + 8 * low, near)?;
        let mut found = None;
        for entry in near.chunks_exact(8) {
            let [a, b, c, d, e, f, g, h] = *entry else {
                break;
            };
            let begin = address([a, b, c, d]);
            if begin > self.address {
                break;
            }
            found = Some((begin, address([e, f, g, h])));
        }
        found.ok_or(Unknown::NoFunction)
    }

    /// Returns where the description of the function is loaded that the address is in, by looking at each.
    pub(super) fn by_search(&self, machine: &Machine) -> Result<u64, Unknown> {
        let section = self.section(b".eh_frame\0")?;
        let loaded = |offset: u64| section.address.wrapping_add(offset - section.offset);
        let mut cursor = Cursor::new(self.file, section.offset);
        let mut heads: [Option<(u64, Option<Cie>)>; HEADS] = Default::default();
        let mut next = 0;
        let mut left = SEARCHED_MAX;
        loop {
            let start = cursor.at();
            if start - section.offset >= section.size {
                return Err(Unknown::NoFunction);
            }
            let end = end_of(&mut cursor)?;
            let here = cursor.at();
            let back = u64::from(cursor.u32()?);
            left = left.checked_sub(1).ok_or(Unknown::TooLong)?;
            // Otherwise it is what descriptions have in common.
            if back != 0 {
                let offset = here.checked_sub(back).ok_or(Unknown::Damaged)?;
                let is_known = |head: &Option<_>| matches!(head, Some((at, _)) if *at == offset);
                let known = match heads.iter().position(is_known) {
                    Some(known) => known,
                    None => {
                        left = left.checked_sub(NEW_HEAD).ok_or(Unknown::TooLong)?;
                        let new = Cie::read(&mut Cursor::new(self.file, offset), machine);
                        next = (next + 1) % HEADS;
                        heads[next] = Some((offset, expressible(new)?));
                        next
                    }
                };
                let field = loaded(cursor.at());
                let common = heads.get(known).and_then(|head| head.as_ref()?.1.as_ref());
                let range = match common {
                    Some(common) => expressible(common.range(&mut cursor, field))?,
                    // Other functions may be described otherwise.
                    None => None,
                };
                if range.is_some_and(|(begin, size)| self.address.wrapping_sub(begin) < size) {
                    return Ok(loaded(start));
                }
            }
            cursor.seek(end);
        }
    }

    /// Returns the section with a name, which ends with a zero.
    pub(super) fn section<const N: usize>(&self, wanted: &[u8; N]) -> Result<Load, Unknown> {
        let header = |nr: u16| {
            let at = u64::from(nr) * u64::from(SECTION_HEADER);
            let at = self.elf.sections.offset.checked_add(at);
            let mut cursor = Cursor::new(self.file, at.ok_or(Unknown::Damaged)?);
            let (name, _kind, _flags) = (cursor.u32()?, cursor.u32()?, cursor.u64()?);
            let (address, offset, size) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            let part = Load {
                offset,
                address,
                size,
            };
            Ok((name, part))
        };
        if self.elf.sections.names >= self.elf.sections.nr {
            return Err(Unknown::NoTable);
        }
        let (_, names) = header(self.elf.sections.names)?;
        for nr in 0..self.elf.sections.nr {
            let (name, part) = header(nr)?;
            let at = names.offset.checked_add(u64::from(name));
            let mut cursor = Cursor::new(self.file, at.ok_or(Unknown::Damaged)?);
            // The last name may be shorter.
            match cursor.bytes() {
                Ok(name) if name == *wanted => return Ok(part),
                Ok(_) | Err(Unknown::Damaged) => {}
                Err(reason) => return Err(reason),
            }
        }
        Err(Unknown::NoTable)
    }
}

/// Returns what was read, if a rule can express it.
fn expressible<T>(read: Result<T, Unknown>) -> Result<Option<T>, Unknown> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(Unknown::Inexpressible) => Ok(None),
        Err(reason) => Err(reason),
    }
}
