// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions in the symbol tables of an ELF file.
//!
//! A symbol without a size names its own address only: what lies after it may be a function whose
//! symbol was stripped, or the procedure linkage table.

use super::{
    elf::{unpacked, Reader, DEBUGDATA},
    gopclntab,
};
use object::{
    elf::{
        FileHeader32, FileHeader64, SectionType, SHN_UNDEF, SHN_XINDEX, SHT_DYNSYM, SHT_SYMTAB,
        STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE,
    },
    read::{
        elf::{FileHeader, Rela, SectionHeader, SectionTable, Sym},
        ReadRef,
    },
    Endianness, FileKind,
};
use std::fs::File;

/// More than the symbol tables of any file have, in bytes.
const MAX_TABLES: u64 = 2 << 30;
/// How many functions around an address are looked at.
const MAX_AROUND: usize = 1024;

/// The symbol tables of a file, the best one first.
#[derive(Default)]
pub(super) struct Symbols {
    tables: Vec<Table>,
}

/// What a symbol says of an address.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Symbol<'a> {
    /// Its name.
    pub(super) name: &'a [u8],
    /// Its first address.
    pub(super) start: u64,
    /// How long it is, in bytes; [`None`]: unknown.
    pub(super) size: Option<u64>,
}

struct Table {
    /// Ordered by [`Entry::key`].
    entries: Vec<Entry>,
    names: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    /// 0: unknown.
    size: u64,
    name: u32,
    /// Of several names of a function, the one with the highest rank is shown.
    rank: u16,
}

impl Symbols {
    /// Those of a file; none if it is damaged.
    pub(super) fn read(file: &File) -> Self {
        let mut symbols = Self::default();
        if let Some(reader) = Reader::new(file, MAX_TABLES) {
            symbols.add(&reader, true);
        }
        symbols
    }

    fn add<'a, R: ReadRef<'a>>(&mut self, data: R, is_whole: bool) -> Option<()> {
        match FileKind::parse(data).ok()? {
            FileKind::Elf32 => self.parse::<FileHeader32<Endianness>, R>(data, is_whole),
            FileKind::Elf64 => self.parse::<FileHeader64<Endianness>, R>(data, is_whole),
            _ => None,
        }
    }

    /// `is_whole`: what is in `.gnu_debugdata` has no such section itself.
    fn parse<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
        &mut self,
        data: R,
        is_whole: bool,
    ) -> Option<()> {
        let header = H::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, data).ok()?;
        let table = |of| Table::read::<H, R>(&sections, endian, data, of);
        self.tables.extend(table(SHT_SYMTAB));
        let packed = sections.section_by_name(endian, DEBUGDATA);
        if let (true, Some((_, section))) = (is_whole, packed) {
            let unpacked = section.data(endian, data).ok().and_then(unpacked);
            if let Some(unpacked) = unpacked {
                self.add(&unpacked[..], false);
            }
        }
        let of_go = [&b".gopclntab"[..], b".data.rel.ro.gopclntab"];
        let mut of_go = of_go
            .iter()
            .filter_map(|name| sections.section_by_name(endian, name));
        let of_go = match of_go.next() {
            Some((_, section)) => section.data(endian, data).ok().map(|table| (table, 0)),
            None => linked_by_c(&sections, endian, data),
        };
        let of_go = of_go.and_then(|(table, text)| Table::of_go(table, text));
        self.tables.extend(of_go);
        self.tables.extend(table(SHT_DYNSYM));
        Some(())
    }

    /// The function at an address.
    pub(super) fn at(&self, address: u64) -> Option<Symbol<'_>> {
        self.tables.iter().find_map(|table| table.at(address))
    }
}

/// Returns Go's table in a position-independent file of C's linker, which puts it at the end of `.data.rel.ro`, and the address
/// where the code begins: the last relocation in the section sets it in the table's head.
fn linked_by_c<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
    sections: &SectionTable<'a, H, R>,
    endian: Endianness,
    data: R,
) -> Option<(&'a [u8], u64)> {
    let (_, section) = sections.section_by_name(endian, b".data.rel.ro")?;
    let (_, relocations) = sections.section_by_name(endian, b".rela.dyn")?;
    let (relocations, _) = relocations.rela(endian, data).ok()??;
    let start: u64 = section.sh_addr(endian).into();
    let data = section.data(endian, data).ok()?;
    let inside = relocations.iter().filter_map(|relocation| {
        let offset: u64 = relocation.r_offset(endian).into();
        let offset = usize::try_from(offset.checked_sub(start)?).ok()?;
        let addend: i64 = relocation.r_addend(endian).into();
        (offset < data.len()).then_some((offset, addend as u64))
    });
    let (offset, text) = inside.max()?;
    let table = data.get(offset.checked_sub(gopclntab::TEXT)?..)?;
    Some((table, text))
}

impl Table {
    fn read<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
        sections: &SectionTable<'a, H, R>,
        endian: Endianness,
        data: R,
        of: SectionType,
    ) -> Option<Self> {
        let section = sections
            .iter()
            .find(|section| section.sh_type(endian) == of)?;
        let symbols: &[H::Sym] = section.data_as_array(endian, data).ok()?;
        let strings = sections.section(section.link(endian)).ok()?;
        let names = strings.data(endian, data).ok()?.to_vec();
        let entries = symbols
            .iter()
            .filter_map(|symbol| Entry::new::<H>(symbol, endian, &names));
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable_by_key(Entry::key);
        Some(Self { entries, names })
    }

    /// Returns the functions of Go's table, of code that begins there; 0: the table says where.
    fn of_go(table: &[u8], text: u64) -> Option<Self> {
        let functions = gopclntab::functions(table, text)?;
        let entries = functions.map(|function| Entry {
            start: function.start,
            size: function.size,
            name: function.name,
            rank: 0,
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable_by_key(Entry::key);
        let names = gopclntab::names(table)?.to_vec();
        Some(Self { entries, names })
    }

    fn at(&self, address: u64) -> Option<Symbol<'_>> {
        let behind = self.entries.partition_point(|entry| entry.start <= address);
        let before = self.entries[..behind].iter().rev().take(MAX_AROUND);
        let own = before.clone().find(|entry| entry.has(address));
        let entry = own?;
        Some(Symbol {
            name: name(&self.names, entry.name)?,
            start: entry.start,
            size: (entry.size != 0).then_some(entry.size),
        })
    }
}

impl Entry {
    fn new<H: FileHeader<Endian = Endianness>>(
        symbol: &H::Sym,
        endian: Endianness,
        names: &[u8],
    ) -> Option<Self> {
        let section = symbol.st_shndx(endian);
        let is_there = section != SHN_UNDEF && (!section.is_special() || section == SHN_XINDEX);
        let is_typed = match symbol.st_type() {
            STT_FUNC | STT_GNU_IFUNC => true,
            STT_NOTYPE => false,
            _ => return None,
        };
        let offset = symbol.st_name(endian);
        let name = name(names, offset).filter(|_| is_there)?;
        // On Arm, these say whether there is code.
        if !is_typed && name.starts_with(b"$") {
            return None;
        }
        let size = symbol.st_size(endian).into();
        // As perf chooses: the name that people call it by.
        let underscores = name.iter().take_while(|byte| **byte == b'_').count();
        let rank = u16::from(size != 0) << 15
            | u16::from(is_typed) << 14
            | u16::from(symbol.st_bind() != STB_WEAK) << 13
            | u16::from(symbol.st_bind() == STB_GLOBAL) << 12
            | (15 - underscores.min(15) as u16) << 8
            | name.len().min(255) as u16;
        Some(Self {
            start: symbol.st_value(endian).into(),
            size,
            name: offset,
            rank,
        })
    }

    fn key(&self) -> (u64, u16, u32) {
        (self.start, self.rank, self.name)
    }

    fn has(&self, address: u64) -> bool {
        let behind = address - self.start;
        behind < self.size || behind == 0
    }
}

/// The string at an offset; [`None`]: there is none, or it is empty.
fn name(names: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = names.get(offset as usize..)?;
    let len = memchr::memchr(0, rest)?;
    (len > 0).then(|| &rest[..len])
}
