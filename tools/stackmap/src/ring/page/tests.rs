// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pages made by hand, in both byte orders.

use super::*;

const HEADER: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: char overwrite;\toffset:8;\tsize:1;\tsigned:0;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;
";

pub(crate) fn layout(order: Order) -> Layout {
    Layout::parse(HEADER, order).unwrap()
}

/// A page with these bytes as its records.
pub(crate) fn page(order: Order, time: u64, flags: u32, data: &[u8]) -> Vec<u8> {
    let mut page = double(order, time).to_vec();
    page.extend(double(order, u64::from(data.len() as u32 | flags)));
    page.extend(data);
    page
}

/// A record with a length in its word.
pub(crate) fn record(order: Order, delta: u32, data: &[u8]) -> Vec<u8> {
    assert!(data.len() <= 28 * 4 && data.len().is_multiple_of(4));
    [&head(order, data.len() as u32 / 4, delta)[..], data].concat()
}

fn double(order: Order, number: u64) -> [u8; 8] {
    match order {
        Order::Little => number.to_le_bytes(),
        Order::Big => number.to_be_bytes(),
    }
}

fn head(order: Order, kind: u32, delta: u32) -> [u8; 4] {
    order.word(match order {
        Order::Little => kind | delta << 5,
        Order::Big => kind << 27 | delta,
    })
}

/// A word of its own behind the head.
fn long(order: Order, kind: u32, delta: u32, word: u32, data: &[u8]) -> Vec<u8> {
    [&head(order, kind, delta)[..], &order.word(word), data].concat()
}

fn read(order: Order, page: Vec<u8>) -> Result<Vec<(u64, Vec<u8>)>, Damage> {
    let mut cursor = Cursor::new(layout(order), page)?;
    let mut records = Vec::new();
    while let Some(record) = cursor.next_record()? {
        records.push((record.time, cursor.page()[record.data].to_vec()));
    }
    Ok(records)
}

#[test]
fn records_have_their_times_and_data() {
    for order in [Order::Little, Order::Big] {
        let long_data = [7; 200];
        let data = [
            record(order, 5, &[1; 8]),
            // What was discarded counts no time.
            long(order, PADDING, 100, 12, &[0; 8]),
            long(order, TIME_EXTEND, 3, 2, &[]),
            record(order, 1, &[2; 4]),
            long(order, 0, 10, 204, &long_data),
            long(order, TIME_STAMP, 9, 1 << 10, &[]),
            record(order, 0, &[3; 4]),
            // Nothing follows.
            head(order, PADDING, 0).to_vec(),
            record(order, 0, &[4; 4]),
        ];
        let records = read(order, page(order, 1000, 0, &data.concat())).unwrap();
        let extended = 1005 + 3 + (2 << 27) + 1;
        let want = [
            (1005, vec![1; 8]),
            (extended, vec![2; 4]),
            (extended + 10, long_data.to_vec()),
            ((1 << 37) + 9, vec![3; 4]),
        ];
        assert_eq!(records, want, "{order:?}");
    }
}

#[test]
fn discarded_records_are_zeroed() {
    for order in [Order::Little, Order::Big] {
        let end = [&head(order, PADDING, 0)[..], b"stale"].concat();
        let data = [
            long(order, PADDING, 1, 12, b"a secret"),
            record(order, 1, b"kept"),
            // Without room for data.
            long(order, PADDING, 1, 4, &[]),
            end,
        ];
        let mut cursor = Cursor::new(layout(order), page(order, 0, 0, &data.concat())).unwrap();
        while cursor.next_record().unwrap().is_some() {}
        let left = String::from_utf8_lossy(cursor.page());
        assert!(left.contains("kept"), "{order:?}");
        assert!(!left.contains("secret") && !left.contains("stale"));
    }
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
    for order in [Order::Little, Order::Big] {
        let data = record(order, 0, &[1; 4]);
        let missed = |flags, more: &[u8]| {
            let mut page = page(order, 0, flags, &data);
            page.extend(more);
            Cursor::new(layout(order), page).map(|cursor| cursor.missed)
        };
        assert_eq!(missed(0, &[]), Ok(Missed::None));
        assert_eq!(missed(MISSED, &[]), Ok(Missed::Some));
        let count = double(order, 4198);
        assert_eq!(
            missed(MISSED | MISSED_STORED, &count),
            Ok(Missed::Count(4198))
        );
        assert!(missed(MISSED | MISSED_STORED, &count[1..]).is_err());
        assert_eq!(read(order, page(order, 0, MISSED, &data)).unwrap().len(), 1);
    }
}

#[test]
fn a_page_with_inconsistent_sizes_is_refused() {
    let order = Order::Little;
    let good = page(
        order,
        0,
        0,
        &[record(order, 1, &[1; 8]), record(order, 1, &[2; 8])].concat(),
    );
    assert_eq!(read(order, good.clone()).unwrap().len(), 2);
    for len in 0..good.len() {
        assert!(read(order, good[..len].to_vec()).is_err(), "{len}");
    }
    for lying in [
        long(order, 0, 1, u32::MAX, &[0; 8]),
        long(order, PADDING, 1, u32::MAX, &[0; 8]),
        head(order, 28, 1).to_vec(),
        head(order, TIME_EXTEND, 1).to_vec(),
    ] {
        assert!(read(order, page(order, 0, 0, &lying)).is_err(), "{lying:?}");
    }
    // A length of nothing still leads on.
    assert_eq!(read(order, page(order, 0, 0, &[0; 16])).unwrap().len(), 2);
}

#[test]
fn other_headers_are_read_or_refused() {
    let small = HEADER
        .replace("offset:8;\tsize:8", "offset:8;\tsize:4")
        .replace("offset:16;\tsize:4080", "offset:12;\tsize:4084");
    let layout = Layout::parse(&small, Order::Big).unwrap();
    assert_eq!((layout.long, layout.page_size()), (4, 4096));
    for (from, to) in [
        ("timestamp", "time"),
        ("size:4080", "size:99999999999"),
        ("offset:16", "offset:8"),
        ("size:4080", "size:0"),
        ("offset:8;\tsize:8", "offset:8;\tsize:2"),
    ] {
        assert!(
            Layout::parse(&HEADER.replace(from, to), Order::Little).is_err(),
            "{to}"
        );
    }
}
