// SPDX-License-Identifier: MIT OR Apache-2.0

//! Gives the sections of a relocatable ELF file addresses, as a linker does.
//!
//! In the file of a module every section begins at 0, and where its debug information speaks of
//! addresses there are zeros, to be filled in by relocations. Here each section that is loaded gets
//! a place of its own, symbols move with it, and the relocations of all other sections are done:
//! then the file can be asked as any other.

use object::{
    elf::{
        FileHeader64, Rela64, RelocationType, SectionFlags, SectionHeader64, SectionType, Sym64,
        ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_AARCH64, EM_X86_64, ET_DYN, ET_REL, R_AARCH64_ABS32,
        R_AARCH64_ABS64, R_X86_64_32, R_X86_64_32S, R_X86_64_64, SHF_ALLOC, SHF_COMPRESSED,
        SHT_RELA, SHT_SYMTAB,
    },
    pod::{from_bytes_mut, slice_from_bytes_mut, Pod},
    LittleEndian, U16, U64,
};

type Le = LittleEndian;
const LE: Le = LittleEndian;

/// The address of the first section, so that no address is 0.
const FIRST: u64 = 0x1000;

/// Relocates the file in `bytes`. [`None`]: it is not relocatable, or truncated.
pub(super) fn relocate(bytes: &mut [u8]) -> Option<()> {
    let (header, _) = from_bytes_mut::<FileHeader64<Le>>(bytes).ok()?;
    let ident = &header.e_ident;
    let known = ident.magic == ELFMAG && ident.class == ELFCLASS64 && ident.data == ELFDATA2LSB;
    if !known || header.e_type.get(LE) != ET_REL {
        return None;
    }
    let machine = header.e_machine.get(LE);
    let (offset, count) = (header.e_shoff.get(LE), header.e_shnum.get(LE));
    header.e_type = U16::new(LE, ET_DYN);

    let headers = table::<SectionHeader64<Le>>(bytes, offset, count.into())?;
    let mut end = FIRST;
    for section in headers.iter_mut().filter(|section| is_loaded(section)) {
        let start = end.checked_next_multiple_of(section.sh_addralign.get(LE).max(1))?;
        section.sh_addr = U64::new(LE, start);
        end = start.checked_add(section.sh_size.get(LE))?;
    }
    let sections = headers.to_vec();

    let mut values = Vec::new();
    for section in of_type(&sections, SHT_SYMTAB) {
        for symbol in content::<Sym64<Le>>(bytes, section)? {
            let home = sections.get(usize::from(symbol.st_shndx.get(LE).0));
            let start = home.map_or(0, |section| section.sh_addr.get(LE));
            let value = start.wrapping_add(symbol.st_value.get(LE));
            symbol.st_value = U64::new(LE, value);
            values.push(value);
        }
    }
    for section in of_type(&sections, SHT_RELA) {
        let target = sections.get(section.sh_info.get(LE) as usize)?;
        let compressed = has(target, SHF_COMPRESSED);
        if is_loaded(target) || compressed {
            continue;
        }
        let relocations = content::<Rela64<Le>>(bytes, section)?.to_vec();
        let target = content::<u8>(bytes, target)?;
        for relocation in relocations {
            let info = relocation.r_info.get(LE);
            let symbol = *values.get((info >> 32) as usize)?;
            let value = symbol.wrapping_add_signed(relocation.r_addend.get(LE));
            let width = match (machine, RelocationType(info as u32)) {
                (EM_X86_64, R_X86_64_64) | (EM_AARCH64, R_AARCH64_ABS64) => 8,
                (EM_X86_64, R_X86_64_32 | R_X86_64_32S) | (EM_AARCH64, R_AARCH64_ABS32) => 4,
                _ => continue,
            };
            let at = usize::try_from(relocation.r_offset.get(LE)).ok()?;
            let place = target.get_mut(at..at.checked_add(width)?)?;
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
    Some(())
}

fn is_loaded(section: &SectionHeader64<Le>) -> bool {
    has(section, SHF_ALLOC)
}

fn has(section: &SectionHeader64<Le>, flag: SectionFlags) -> bool {
    section.sh_flags.get(LE).0 & flag.0 != 0
}

fn of_type(
    sections: &[SectionHeader64<Le>],
    kind: SectionType,
) -> impl Iterator<Item = &SectionHeader64<Le>> {
    sections
        .iter()
        .filter(move |section| section.sh_type.get(LE) == kind)
}

/// What a section holds.
fn content<'a, T: Pod>(bytes: &'a mut [u8], section: &SectionHeader64<Le>) -> Option<&'a mut [T]> {
    let count = section.sh_size.get(LE) / size_of::<T>() as u64;
    table(bytes, section.sh_offset.get(LE), count)
}

fn table<T: Pod>(bytes: &mut [u8], offset: u64, count: u64) -> Option<&mut [T]> {
    let bytes = bytes.get_mut(usize::try_from(offset).ok()?..)?;
    let (table, _) = slice_from_bytes_mut(bytes, usize::try_from(count).ok()?).ok()?;
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_relocatable_stays_as_it_is() {
        let exe = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut head = exe[..4096].to_vec();
        assert_eq!(relocate(&mut head), None);
        assert_eq!(head, exe[..4096]);
        assert_eq!(relocate(&mut []), None);
        assert_eq!(relocate(&mut [0x7f; 64]), None);
    }
}
