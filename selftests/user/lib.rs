// SPDX-License-Identifier: GPL-2.0

//! What the module knows of user stacks without asking the kernel, as it is in the module.

#[path = "../../src/user/calls.rs"]
pub mod calls;
#[path = "../../src/user/cfi/mod.rs"]
pub mod cfi;
#[path = "../../src/user/cookie.rs"]
pub mod cookie;
#[path = "../../src/user/decode/mod.rs"]
pub mod decode;
#[path = "../../src/user/encoded.rs"]
pub mod encoded;
#[path = "../../src/user/frame.rs"]
pub mod frame;
#[path = "../../src/user/rule.rs"]
pub mod rule;
#[path = "../../src/user/rules.rs"]
pub mod rules;
#[path = "../../src/user/step.rs"]
mod step;
#[path = "../../src/user/walk.rs"]
pub mod walk;

// What needs the kernel's memory and locks.
#[cfg(test)]
#[path = "../../src/user/binaries.rs"]
mod binaries;
#[cfg(test)]
#[path = "../../src/user/decoded.rs"]
mod decoded;
#[cfg(test)]
#[path = "../../src/user/file_table.rs"]
mod file_table;
#[cfg(test)]
mod files;
#[cfg(test)]
mod frames;
#[cfg(test)]
#[path = "../../src/user/shares.rs"]
mod shares;
#[cfg(test)]
mod shim;
#[cfg(test)]
mod store;
#[cfg(test)]
use stackmap_map as map;

use cfi::{learn, Elf, File, Unknown, X86_64};
use std::cell::Cell;

/// Bytes as a file.
pub struct Bytes<B>(pub B);

impl<B: AsRef<[u8]>> File for Bytes<B> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        let start = usize::try_from(offset).map_err(|_| Unknown::Damaged)?;
        let end = start.checked_add(bytes.len()).ok_or(Unknown::Damaged)?;
        bytes.copy_from_slice(self.0.as_ref().get(start..end).ok_or(Unknown::Damaged)?);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.0.as_ref().len() as u64
    }
}

/// A file of these bytes, which counts how often it is read.
struct Counted {
    bytes: Vec<u8>,
    reads: Cell<u32>,
}

impl File for Counted {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        self.reads.set(self.reads.get() + 1);
        let start = usize::try_from(offset).map_err(|_| Unknown::Damaged)?;
        let end = start.checked_add(bytes.len()).ok_or(Unknown::Damaged)?;
        bytes.copy_from_slice(self.bytes.get(start..end).ok_or(Unknown::Absent)?);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// More reads than any file may cause: each step of a program or of a search reads a few bytes.
const READS_MAX: u32 = 70_000;

/// Learns from a file that anybody may have made.
///
/// The first byte says what the bytes from the third on are: `.eh_frame_hdr` and all after it in a file that is one
/// segment, a whole file, or the sections that have Go's table, as Go's or C's linker writes them. The second byte says
/// where the instruction is.
///
/// # Panics
///
/// If a rule comes out that is none, or the file is read too often.
pub fn learn_hostile(input: &[u8]) -> Result<rule::Rule, Unknown> {
    const HEADERS: usize = 64 + 2 * 56;
    const SECTIONS: usize = HEADERS + 4 * 64;
    /// How long the names of sections are, and the section that is not the table's.
    const NAMES: usize = 24;
    const OTHER: usize = 192;

    let [form, at, rest @ ..] = input else {
        return Err(Unknown::Damaged);
    };
    let mut bytes = rest.to_vec();
    if form % 4 != 1 {
        bytes = vec![0; HEADERS];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18] = X86_64.elf as u8;
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, 2);
    }
    let mut segments = vec![];
    if form % 4 == 0 {
        let size = (HEADERS + rest.len()) as u64;
        segments = vec![
            (1_u32, 0_u64, size),
            (0x6474_e550, HEADERS as u64, rest.len() as u64),
        ];
    }
    if form % 4 > 1 {
        let start = SECTIONS + NAMES;
        segments = vec![(1, 0, (start + rest.len()) as u64)];
        bytes[40] = HEADERS as u8;
        (bytes[58], bytes[60], bytes[62]) = (64, 4, 3);
        bytes.resize(SECTIONS, 0);
        let (names, second) = match form % 4 {
            2 => (b"\0.gopclntab\0.go.module\0\0", 12),
            _ => (b"\0.data.rel.ro\0.rela.dyn\0", 14),
        };
        let table = rest.len().saturating_sub(OTHER);
        for (nr, (name, at, size)) in [
            (1, start + OTHER, table),
            (second, start, OTHER),
            (0, SECTIONS, NAMES),
        ]
        .into_iter()
        .enumerate()
        {
            let header = &mut bytes[HEADERS + 64 * (nr + 1)..][..64];
            header[0] = name;
            for (field, word) in [(16, at), (24, at), (32, size)] {
                header[field..field + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        bytes.extend_from_slice(names);
    }
    for (nr, (kind, offset, size)) in segments.into_iter().enumerate() {
        let header = &mut bytes[64 + 56 * nr..][..56];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        for (at, word) in [(8, offset), (16, offset), (32, size), (40, size)] {
            header[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    if form % 4 != 1 {
        bytes.extend_from_slice(rest);
    }
    let file = Counted {
        bytes,
        reads: Cell::new(0),
    };
    let found = learn(&file, &X86_64, u64::from(*at));
    if let Ok(rule) = found {
        assert_eq!(rule::Rule::from_bits(rule.bits()), Some(rule));
    }
    assert!(file.reads.get() < READS_MAX, "{} reads", file.reads.get());
    if found == Ok(rule::Rule::COMPUTED) {
        let elf = Elf::read(&file, &X86_64)?;
        let tracked = elf.track(&file, &X86_64, u64::from(*at), X86_64.sp);
        assert!(tracked?.computed.is_some());
    }
    found
}
