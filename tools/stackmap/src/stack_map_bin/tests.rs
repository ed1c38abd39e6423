// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the reader takes, and what it refuses.

use super::*;

const LOAD_ID: u32 = 0x8765_4321;

const STACKS: &[(u32, u32, &[u64])] = &[
    (42, 1337, &[0xffff_ffff_8100_0000, 0xffff_ffff_8100_1234]),
    (7, 1, &[]),
    (i32::MAX as u32, i32::MAX as u32, &[0x7fff_ffff]),
];

fn sample(order: Order) -> Vec<u8> {
    let mut bytes = Vec::new();
    let stacks = STACKS
        .iter()
        .map(|&(id, ref_count, ips)| Stack { id, ref_count, ips });
    write(&mut bytes, order, LoadId::new(LOAD_ID), stacks).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<(u32, u32, Vec<u64>)>> {
    let mut reader = Reader::new(bytes, "sample")?;
    let mut stacks = Vec::new();
    while let Some(stack) = reader.next_stack()? {
        stacks.push((stack.id, stack.ref_count, stack.ips.to_vec()));
    }
    Ok(stacks)
}

/// The message and the offset of the error that `bytes` lead to.
fn refusal(bytes: &[u8]) -> (String, u64) {
    match read(bytes).unwrap_err() {
        Error::Input {
            offset: Some(offset),
            what,
            ..
        } => (what, offset),
        error => panic!("not an input error with an offset: {error:?}"),
    }
}

fn patched(at: usize, word: u32) -> Vec<u8> {
    let mut bytes = sample(Order::Little);
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    bytes
}

#[test]
fn reads_either_byte_order() {
    for order in [Order::Little, Order::Big] {
        let bytes = sample(order);
        let reader = Reader::new(&bytes[..], "").unwrap();
        assert_eq!(reader.load_id(), LoadId::new(LOAD_ID));
        let stacks = read(&bytes).unwrap();
        assert_eq!(stacks.len(), STACKS.len());
        for (got, want) in stacks.iter().zip(STACKS) {
            assert_eq!((got.0, got.1, &got.2[..]), *want);
        }
    }
}

#[test]
fn a_file_without_a_load_id_has_none() {
    let bytes = patched(12, 0);
    assert_eq!(read(&bytes).unwrap().len(), STACKS.len());
    assert_eq!(Reader::new(&bytes[..], "").unwrap().load_id(), None);
}

#[test]
fn refuses_every_truncation() {
    let bytes = sample(Order::Little);
    for end in 0..bytes.len() {
        let (what, offset) = refusal(&bytes[..end]);
        assert_eq!(offset, end as u64, "{what}");
        assert!(
            what.contains("ends inside") || what.contains("empty"),
            "{what}"
        );
    }
}

#[test]
fn refuses_inconsistent_headers() {
    let (what, offset) = refusal(&patched(0, 0x1234_5678));
    assert!(what.contains("0x12345678"), "{what}");
    assert_eq!(offset, 0);
    for (at, word, text) in [
        (4, 1, "version 1"),
        (4, 3, "version 3"),
        (8, u32::MAX, "4294967295 stacks"),
        (16, 1 << 31, "more than 31 bits"),
        (20, u32::MAX, "says 4294967295 frames"),
        (28, 9, "reserved word of stack 42"),
    ] {
        let (what, offset) = refusal(&patched(at, word));
        assert!(what.contains(text), "{what}");
        assert_eq!(offset, at as u64, "{what}");
    }
    let (what, offset) = refusal(&patched(8, STACKS.len() as u32 - 1));
    assert!(what.contains("data after the last of 2"), "{what}");
    assert_eq!(offset, 64);
    let (what, _) = refusal(&patched(8, STACKS.len() as u32 + 1));
    assert!(what.contains("inside stack 4 of 4"), "{what}");
}

#[test]
fn a_frame_count_that_covers_the_next_stack_is_refused() {
    let (_, offset) = refusal(&patched(20, 100));
    assert_eq!(offset, sample(Order::Little).len() as u64);
}

#[test]
fn does_not_allocate_by_the_header_alone() {
    let mut bytes = sample(Order::Little)[..16].to_vec();
    bytes[8..12].copy_from_slice(&MAX_STACKS.to_le_bytes());
    let mut reader = Reader::new(&bytes[..], "").unwrap();
    assert!(reader.next_stack().is_err());
    assert!(reader.raw.capacity() <= MAX_DEPTH as usize * 8);
}
