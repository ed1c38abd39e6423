// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pages made by hand.

use super::*;

const HEADER: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: char overwrite;\toffset:8;\tsize:1;\tsigned:0;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;
";

pub(crate) fn layout() -> Layout {
    Layout::parse(HEADER).unwrap()
}

/// A page with these bytes as its records.
pub(crate) fn page(time: u64, flags: u32, data: &[u8]) -> Vec<u8> {
    let mut page = time.to_le_bytes().to_vec();
    page.extend(u64::from(data.len() as u32 | flags).to_le_bytes());
    page.extend(data);
    page
}

/// A record with a length in its word.
pub(crate) fn record(delta: u32, data: &[u8]) -> Vec<u8> {
    assert!(data.len() <= 28 * 4 && data.len().is_multiple_of(4));
    [&head(data.len() as u32 / 4, delta)[..], data].concat()
}

fn head(kind: u32, delta: u32) -> [u8; 4] {
    (kind | delta << 5).to_le_bytes()
}

/// A word of its own after the head.
fn long(kind: u32, delta: u32, word: u32, data: &[u8]) -> Vec<u8> {
    [&head(kind, delta)[..], &word.to_le_bytes(), data].concat()
}

fn read(page: Vec<u8>) -> Result<Vec<(u64, Vec<u8>)>, Damage> {
    let mut cursor = Cursor::new(layout(), page)?;
    let mut records = Vec::new();
    while let Some(record) = cursor.next_record()? {
        records.push((record.time, cursor.page()[record.data].to_vec()));
    }
    Ok(records)
}

#[test]
fn records_have_their_times_and_data() {
    let long_data = [7; 200];
    let data = [
        record(5, &[1; 8]),
        // What was discarded counts no time.
        long(PADDING, 100, 12, &[0; 8]),
        long(TIME_EXTEND, 3, 2, &[]),
        record(1, &[2; 4]),
        long(0, 10, 204, &long_data),
        long(TIME_STAMP, 9, 1 << 10, &[]),
        record(0, &[3; 4]),
        // Nothing follows.
        head(PADDING, 0).to_vec(),
        record(0, &[4; 4]),
    ];
    let records = read(page(1000, 0, &data.concat())).unwrap();
    let extended = 1005 + 3 + (2 << 27) + 1;
    let want = [
        (1005, vec![1; 8]),
        (extended, vec![2; 4]),
        (extended + 10, long_data.to_vec()),
        ((1 << 37) + 9, vec![3; 4]),
    ];
    assert_eq!(records, want);
}

#[test]
fn discarded_records_are_zeroed() {
    let end = [&head(PADDING, 0)[..], b"stale"].concat();
    let data = [
        long(PADDING, 1, 12, b"a secret"),
        record(1, b"kept"),
        // Without space for data.
        long(PADDING, 1, 4, &[]),
        end,
    ];
    let mut cursor = Cursor::new(layout(), page(0, 0, &data.concat())).unwrap();
    while cursor.next_record().unwrap().is_some() {}
    let left = String::from_utf8_lossy(cursor.page());
    assert!(left.contains("kept"));
    assert!(!left.contains("secret") && !left.contains("stale"));
}

#[test]
fn a_time_stamp_takes_its_highest_bits_from_before() {
    let before = 0x0800_0000_0000_0005;
    assert_eq!(with_highest_bits(7, before), 0x0800_0000_0000_0007);
    // They have changed since.
    assert_eq!(with_highest_bits(4, before), 0x1000_0000_0000_0004);
    assert_eq!(with_highest_bits(7, 5), 7);
}

#[test]
fn lost_events_are_reported() {
    let data = record(0, &[1; 4]);
    let missed = |flags, more: &[u8]| {
        let mut page = page(0, flags, &data);
        page.extend(more);
        Cursor::new(layout(), page).map(|cursor| cursor.missed)
    };
    assert_eq!(missed(0, &[]), Ok(Missed::None));
    assert_eq!(missed(MISSED, &[]), Ok(Missed::Some));
    let count = 4198u64.to_le_bytes();
    assert_eq!(
        missed(MISSED | MISSED_STORED, &count),
        Ok(Missed::Count(4198))
    );
    assert!(missed(MISSED | MISSED_STORED, &count[1..]).is_err());
    assert_eq!(read(page(0, MISSED, &data)).unwrap().len(), 1);
}

#[test]
fn a_page_with_inconsistent_sizes_is_refused() {
    let good = page(0, 0, &[record(1, &[1; 8]), record(1, &[2; 8])].concat());
    assert_eq!(read(good.clone()).unwrap().len(), 2);
    for len in 0..good.len() {
        assert!(read(good[..len].to_vec()).is_err(), "{len}");
    }
    for lying in [
        long(0, 1, u32::MAX, &[0; 8]),
        long(PADDING, 1, u32::MAX, &[0; 8]),
        head(28, 1).to_vec(),
        head(TIME_EXTEND, 1).to_vec(),
    ] {
        assert!(read(page(0, 0, &lying)).is_err(), "{lying:?}");
    }
    // A length of nothing still leads on.
    assert_eq!(read(page(0, 0, &[0; 16])).unwrap().len(), 2);
}

#[test]
fn other_headers_are_read_or_refused() {
    let small = HEADER
        .replace("offset:8;\tsize:8", "offset:8;\tsize:4")
        .replace("offset:16;\tsize:4080", "offset:12;\tsize:4084");
    assert!(Layout::parse(&small).is_err());
    let large = HEADER.replace("size:4080", "size:65520");
    assert_eq!(Layout::parse(&large).unwrap().page_size(), 1 << 16);
    for (from, to) in [
        ("timestamp", "time"),
        ("size:4080", "size:99999999999"),
        ("offset:16", "offset:8"),
        ("size:4080", "size:0"),
        ("offset:8;\tsize:8", "offset:8;\tsize:2"),
    ] {
        assert!(Layout::parse(&HEADER.replace(from, to)).is_err(), "{to}");
    }
}
