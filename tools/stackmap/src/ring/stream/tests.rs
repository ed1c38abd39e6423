// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pages of several CPUs.

use super::*;
use crate::ring::page::tests::{layout, page, record};

/// The pages, each of a CPU, with the times of its records after its own.
fn stream(pages: &[(u32, u64, &[u32])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (cpu, time, deltas) in pages {
        let records = deltas.iter().map(|delta| record(*delta, &[*cpu as u8; 4]));
        let page = page(*time, 0, &records.collect::<Vec<_>>().concat());
        write_page(&mut bytes, *cpu, &page).unwrap();
    }
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<(u32, u64)>> {
    let mut records = Records::new(Pages::new(bytes, layout(), "input"));
    let mut read = Vec::new();
    while let Some((cpu, time, data)) = records.next_record()? {
        assert_eq!(data, [cpu as u8; 4]);
        read.push((cpu, time));
    }
    Ok(read)
}

#[test]
fn records_come_in_the_order_of_time() {
    let bytes = stream(&[
        (0, 10, &[0, 5, 20]),
        (1, 12, &[1, 1, 100]),
        (0, 40, &[0, 1]),
        (2, 41, &[]),
        (1, 200, &[0]),
    ]);
    let want = [
        (0, 10),
        (1, 13),
        (1, 14),
        (0, 15),
        (0, 35),
        (0, 40),
        (0, 41),
        (1, 114),
        (1, 200),
    ];
    assert_eq!(read(&bytes).unwrap(), want);
}

#[test]
fn a_page_has_nothing_of_the_one_whose_memory_it_has() {
    let mut bytes = stream(&[(0, 1, &[0; 3])]);
    write_page(&mut bytes, 0, &page(2, 0, &record(0, &[0; 8]))[..20]).unwrap();
    let mut pages = Pages::new(&bytes[..], layout(), "input");
    let (_, first) = pages.next_page().unwrap().unwrap();
    pages.recycle(first);
    assert!(pages.next_page().is_err());
}

#[test]
fn at_the_same_time_the_lower_cpu_comes_first() {
    let bytes = stream(&[(1, 5, &[0, 0]), (0, 5, &[0])]);
    assert_eq!(read(&bytes).unwrap(), [(0, 5), (1, 5), (1, 5)]);
}

#[test]
fn a_stream_out_of_order_is_read_in_bounded_memory() {
    let far: Vec<(u32, u64, &[u32])> = (0..1000).map(|_| (0, 0, &[1 << 20][..])).collect();
    let bytes = stream(&far);
    let mut records = Records::new(Pages::new(&bytes[..], layout(), "input"));
    let mut count = 0;
    while records.next_record().unwrap().is_some() {
        assert!(records.waiting <= MAX_WAITING + MAX_WAITING_OF_CPU + 1);
        count += 1;
    }
    assert_eq!(count, 1000);
}

#[test]
fn large_pages_of_many_cpus_wait_in_bounded_memory() {
    const PAGE: usize = 15 << 20;
    let text = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\n\tfield: local_t commit;\toffset:8;\tsize:8;\n\
                \tfield: char data;\toffset:16;\tsize:15728640;\n";
    let layout = Layout::parse(text).unwrap();
    let data = record(1 << 20, &[1; 4]);
    let mut page = page(0, 0, &data);
    page.resize(PAGE, 0);
    let mut bytes = Vec::new();
    for cpu in 0..40 {
        write_page(&mut bytes, cpu, &page).unwrap();
    }
    let mut records = Records::new(Pages::new(&bytes[..], layout, "input"));
    let mut count = 0;
    while records.next_record().unwrap().is_some() {
        assert!(records.waiting_bytes <= MAX_WAITING_BYTES + PAGE);
        count += 1;
    }
    assert_eq!(count, 40);
}

#[test]
fn truncated_streams_are_refused() {
    let bytes = stream(&[(0, 10, &[0, 5])]);
    assert!(read(&[]).unwrap().is_empty());
    for len in 1..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "{len}");
    }
    let mut huge = bytes.clone();
    huge[4..8].fill(0xff);
    assert!(read(&huge).is_err());
}
