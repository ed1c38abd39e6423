// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where an executable is loaded: from offsets in the file to its addresses.
//!
//! A recording keeps the segments of executables, because a separate debug file does not have them.

use super::{
    binaries::{Binary, MAX_FILES},
    elf::Facts,
    files::open,
};
use serde::{
    de::{Error, SeqAccess, Visitor},
    Deserialize, Deserializer, Serialize,
};
use std::{fmt, fs::File, marker::PhantomData};

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

/// The segments of a file that was recorded, if it is still at its path. Two files can have the same
/// build-id, and then have different sizes if anything was moved in one.
pub fn segments_of(binary: &Binary) -> Option<Vec<Segment>> {
    let file = open(&binary.path)?;
    let is_same = |file: &File| {
        file.metadata()
            .is_ok_and(|metadata| metadata.len() == binary.size)
    };
    let facts = Facts::read(&file).filter(|_| is_same(&file))?;
    let is_it = facts.is(binary.build_id.as_deref()?) && !facts.segments.is_empty();
    is_it.then_some(facts.segments)
}

/// More executable segments than any file has.
pub(super) const MAX_SEGMENTS: usize = 64;
/// How long a segment is at most as JSON, and what is around those of a file, in bytes.
const SEGMENT_LEN: usize = 89;
const FILE_LEN: usize = 16;
/// How long [`Recorded`] is at most as JSON, in bytes.
pub const MAX_JSON: u64 = (MAX_FILES * (FILE_LEN + MAX_SEGMENTS * SEGMENT_LEN)) as u64;

/// The segments of executables in a recording, in the order of the indices of the files.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(from = "Files")]
pub struct Recorded(Vec<(u32, Vec<Segment>)>);

impl Recorded {
    /// Takes the segments of files in any order.
    pub fn new(segments: impl Iterator<Item = (u32, Vec<Segment>)>) -> Self {
        let mut segments: Vec<_> = segments.collect();
        segments.sort_by_key(|(index, _)| *index);
        Self(segments)
    }

    /// Returns the segments of the file with this index, if they were recorded.
    pub fn get(&self, index: u32) -> Option<&Vec<Segment>> {
        let at = self.0.binary_search_by_key(&index, |(of, _)| *of).ok()?;
        self.0.get(at).map(|(_, segments)| segments)
    }
}

type Files = Bounded<(u32, Bounded<Segment, MAX_SEGMENTS>), MAX_FILES>;

impl From<Files> for Recorded {
    fn from(files: Files) -> Self {
        let files = files.0.into_iter();
        Self::new(files.map(|(index, segments)| (index, segments.0)))
    }
}

/// Up to `MAX` elements: a capture may be anybody's, so all of it has limits.
struct Bounded<T, const MAX: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Elements(PhantomData))
    }
}

/// Reads [`Bounded`].
struct Elements<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
    type Value = Bounded<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up to {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = from.next_element()? {
            elements.push(element);
            if elements.len() > MAX {
                return Err(A::Error::custom(format!("more than {MAX} elements")));
            }
        }
        Ok(Bounded(elements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_too_many_files_are_refused() {
        let list = |files| format!("[{}[9,[]]]", "[1,[]],".repeat(files - 1));
        let error = serde_json::from_str::<Recorded>(&list(MAX_FILES + 1)).unwrap_err();
        assert!(error.to_string().starts_with("more than 8194 elements"));
        let all: Recorded = serde_json::from_str(&list(MAX_FILES)).unwrap();
        assert_eq!(all.get(9), Some(&Vec::new()));
        assert!(serde_json::from_str::<Recorded>("3").is_err());
        let of_one = |nr| format!("[[7,[{}[1,2,3]]]]", "[0,0,1],".repeat(nr - 1));
        let error = serde_json::from_str::<Recorded>(&of_one(MAX_SEGMENTS + 1)).unwrap_err();
        assert!(error.to_string().starts_with("more than 64 elements"));
        let all: Recorded = serde_json::from_str(&of_one(MAX_SEGMENTS)).unwrap();
        assert_eq!(all.get(7).map(Vec::len), Some(MAX_SEGMENTS));
    }

    #[test]
    fn what_can_be_recorded_can_be_read() {
        let longest = Segment {
            offset: u64::MAX,
            vaddr: u64::MAX,
            size: u64::MAX,
        };
        let of_file = (u32::MAX, vec![longest; MAX_SEGMENTS]);
        let len = |nr| {
            let recorded = Recorded(vec![of_file.clone(); nr]);
            serde_json::to_vec(&recorded).unwrap().len()
        };
        let each = len(3) - len(2);
        assert!((len(2) + each * (MAX_FILES - 2)) as u64 <= MAX_JSON);
    }

    #[test]
    fn segments_of_a_file_are_found_by_its_index() {
        let all: Recorded = serde_json::from_str("[[9,[[1,2,3]]],[4,[]],[7,[[4,5,6]]]]").unwrap();
        assert_eq!(all.get(9).unwrap()[0].offset, 1);
        assert_eq!(all.get(7).unwrap()[0].size, 6);
        assert_eq!((all.get(4).map(Vec::len), all.get(5)), (Some(0), None));
    }

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
