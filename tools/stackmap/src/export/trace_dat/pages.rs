// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pages of a ring buffer, written as the kernel writes them: what `ring/page.rs` reads.

use crate::ring::page::Layout;

/// Kinds of records, and how many bits the time delta has; as in `events/header_event`.
const TIME_EXTEND: u32 = 30;
const DELTA_BITS: u32 = 27;
/// A record of more words than this has its length in a word of its own.
const MAX_SHORT: usize = 28;
/// Bytes of the header of a long record, and of a time of its own before a record.
const LONG_HEAD: usize = 8;
const EXTEND: usize = 8;

/// The pages of one CPU.
pub(super) struct Pages {
    layout: Layout,
    page: Vec<u8>,
    /// The time of the last record.
    time: u64,
}

impl Pages {
    /// None yet.
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            page: Vec::new(),
            time: 0,
        }
    }

    /// The longest event that a page can hold, in bytes.
    pub(super) fn max_len(layout: &Layout) -> usize {
        (layout.page_size() - layout.header_len()).saturating_sub(LONG_HEAD) & !3
    }

    /// Adds an event of at most [`max_len`](Self::max_len) bytes; one from before the last one gets the time of
    /// that. Gives `out` the page before, if that is full.
    pub(super) fn add<E>(
        &mut self,
        time: u64,
        data: &[u8],
        out: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let len = data.len().next_multiple_of(4);
        let is_short = (1..=MAX_SHORT).contains(&(len / 4));
        let mut delta = time.saturating_sub(self.time);
        self.time += delta;
        let extend = if delta >> DELTA_BITS == 0 { 0 } else { EXTEND };
        if self.page.len() + extend + LONG_HEAD + len > self.layout.page_size() {
            self.finish(out)?;
        }
        if self.page.is_empty() {
            self.begin();
            delta = 0;
        }
        if delta >> DELTA_BITS != 0 {
            self.head(TIME_EXTEND, delta as u32 & ((1 << DELTA_BITS) - 1));
            self.word((delta >> DELTA_BITS) as u32);
            delta = 0;
        }
        match is_short {
            true => self.head(len as u32 / 4, delta as u32),
            false => {
                self.head(0, delta as u32);
                self.word(len as u32 + 4);
            }
        }
        let end = self.page.len() + len;
        self.page.extend_from_slice(data);
        self.page.resize(end, 0);
        Ok(())
    }

    /// Gives `out` the last page, if it has any event.
    pub(super) fn finish<E>(&mut self, out: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if self.page.is_empty() {
            return Ok(());
        }
        self.layout.set_len(&mut self.page);
        self.page.resize(self.layout.page_size(), 0);
        out(&self.page)?;
        self.page.clear();
        Ok(())
    }

    fn begin(&mut self) {
        self.page.resize(self.layout.header_len(), 0);
        self.layout.set_time(&mut self.page, self.time);
    }

    fn head(&mut self, kind: u32, delta: u32) {
        self.word(delta << 5 | kind);
    }

    fn word(&mut self, word: u32) {
        self.page.extend_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::page::Cursor;

    const HEADER: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

    fn written(layout: Layout, events: &[(u64, Vec<u8>)]) -> Vec<Vec<u8>> {
        let (mut pages, mut writer) = (Vec::new(), Pages::new(layout));
        let mut keep = |page: &[u8]| {
            pages.push(page.to_vec());
            Ok::<_, ()>(())
        };
        for (time, data) in events {
            writer.add(*time, data, &mut keep).unwrap();
        }
        writer.finish(&mut keep).unwrap();
        pages
    }

    #[test]
    fn what_is_written_is_read_back() {
        let layout = Layout::parse(HEADER).unwrap();
        let max = Pages::max_len(&layout);
        let deltas = [0, 1, 1 << 27, (1 << 27) - 1, 1 << 40, 1 << 27];
        let lens = [4, 8, 112, 116, 2000, 1936, 12, max, 64, max - 16];
        let mut time = 1 << 58;
        let events: Vec<_> = (0..3000)
            .map(|n| {
                time += deltas[n % deltas.len()];
                (time, vec![n as u8; lens[n / 7 % lens.len()]])
            })
            .collect();
        let pages = written(layout, &events);
        let mut read = Vec::new();
        for page in pages {
            assert_eq!(page.len(), layout.page_size());
            let mut cursor = Cursor::new(layout, page).unwrap();
            while let Some(record) = cursor.next_record().unwrap() {
                read.push((record.time, cursor.page()[record.data].to_vec()));
            }
        }
        assert!(read == events);
    }

    #[test]
    fn a_record_with_a_time_of_its_own_fits() {
        let layout = Layout::parse(HEADER).unwrap();
        for (delta, nr_pages) in [(1, 1), (1 << 27, 2)] {
            let events = [(0, vec![1; 4056]), (delta, vec![2; 8])];
            assert_eq!(written(layout, &events).len(), nr_pages);
        }
    }

    #[test]
    fn time_does_not_go_back() {
        let layout = Layout::parse(HEADER).unwrap();
        let [page] = &written(layout, &[(9, vec![1; 4]), (3, vec![2; 4])])[..] else {
            panic!();
        };
        let mut cursor = Cursor::new(layout, page.clone()).unwrap();
        let mut time = || cursor.next_record().unwrap().unwrap().time;
        assert_eq!([time(), time()], [9, 9]);
    }
}
