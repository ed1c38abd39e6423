// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where an executable is loaded: from offsets in the file to its addresses.
//!
//! A recording keeps the segments of executables, because a separate debug file does not have them.

use super::{elf::Facts, files::open};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A part of a file that is loaded with the right to execute it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Segment {
    /// Where it begins in the file.
    pub offset: u64,
    /// The address of its beginning, as the file was linked.
    pub vaddr: u64,
    /// How long it is in the file.
    pub size: u64,
}

/// The address, as the file was linked, of what is at `offset` in the file.
pub fn address(segments: &[Segment], offset: u64) -> Option<u64> {
    segments.iter().find_map(|segment| {
        let behind = offset.checked_sub(segment.offset)?;
        match behind < segment.size {
            true => segment.vaddr.checked_add(behind),
            false => None,
        }
    })
}

/// The segments of the file at `path`, if it has this build-id, in lower-case hexadecimal digits.
pub fn segments_of(path: &Path, build_id: &str) -> Option<Vec<Segment>> {
    let facts = Facts::read(&open(path)?)?;
    (facts.is(build_id) && !facts.segments.is_empty()).then_some(facts.segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_has_the_address_of_its_segment() {
        let segment = |offset, vaddr, size| Segment {
            offset,
            vaddr,
            size,
        };
        let segments = [
            segment(0x1000, 0x40_1000, 0x200),
            segment(0x3000, 0x80_0000, 0x10),
            segment(u64::MAX - 1, 2, u64::MAX),
        ];
        let address = |offset| address(&segments, offset);
        assert_eq!(address(0x1000), Some(0x40_1000));
        assert_eq!(address(0x11ff), Some(0x40_11ff));
        assert_eq!(address(0x300f), Some(0x80_000f));
        assert_eq!(address(u64::MAX), Some(3));
        for outside in [0, 0xfff, 0x1200, 0x2fff, 0x3010] {
            assert_eq!(address(outside), None, "{outside:#x}");
        }
        assert_eq!(super::address(&[segment(0, u64::MAX, 9)], 1), None);
    }
}
