// SPDX-License-Identifier: MIT OR Apache-2.0

//! A page of the ring buffer: its header, and the records after it.
//!
//! The header is described by `events/header_page`, the records by `events/header_event`: a word
//! with a type or length and a time delta, then data. The numbers in `header_event` are part of the
//! kernel's interface and the same in every kernel; kernels differ in the size of a page.

use super::{number, Damage};

/// A record without data: the end of the page, or a record that was discarded.
const PADDING: u32 = 29;
/// A time delta that does not fit into the word of a record.
const TIME_EXTEND: u32 = 30;
/// An absolute time, without its highest bits.
const TIME_STAMP: u32 = 31;
/// How many bits of the word the time delta has.
const DELTA_BITS: u32 = 27;
/// The bits that a [`TIME_STAMP`] lacks.
const STAMP_MISSING: u64 = 0xf800_0000_0000_0000;

/// Flags of the commit word: records are missing before the page; their number follows the last
/// record.
const MISSED: u32 = 1 << 31;
const MISSED_STORED: u32 = 1 << 30;

/// The size of a long, in bytes, on all machines that the module is for.
pub(crate) const LONG: usize = 8;

/// No page is larger, in bytes.
const MAX_PAGE: usize = 16 << 20;

/// The layout of a page: offsets and sizes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    time: usize,
    commit: usize,
    data: usize,
    size: usize,
}

impl Layout {
    /// Reads `events/header_page`.
    pub fn parse(text: &str) -> Result<Self, Damage> {
        let field = |name: &str| {
            let line = text.lines().find(|line| {
                let declared = line.split(';').next().unwrap_or_default();
                declared.trim_end().ends_with(&format!(" {name}"))
            });
            let number = |key: &str| {
                let (_, rest) = line?.split_once(key)?;
                rest.split(';').next()?.parse::<usize>().ok()
            };
            let (offset, size) = (number("offset:"), number("size:"));
            let sane = |number: &usize| *number <= MAX_PAGE;
            match (offset.filter(sane), size.filter(sane)) {
                (Some(offset), Some(size)) => Ok((offset, size)),
                _ => Err(Damage("the page header is not described")),
            }
        };
        let (time, time_size) = field("timestamp")?;
        let (commit, commit_size) = field("commit")?;
        let (data, size) = field("data")?;
        let fits = time + time_size <= data && commit + commit_size <= data && size >= 8;
        if time_size != 8 || commit_size != LONG || !fits {
            return Err(Damage("the description of the page header is not valid"));
        }
        Ok(Self {
            time,
            commit,
            data,
            size,
        })
    }

    /// The size of a page, in bytes.
    pub fn page_size(&self) -> usize {
        self.data + self.size
    }

    /// The size of the header of a page, in bytes.
    pub fn header_len(&self) -> usize {
        self.data
    }

    /// Sets the time at which the records of `page`, which has a header, begin.
    pub fn set_time(&self, page: &mut [u8], time: u64) {
        page[self.time..self.time + 8].copy_from_slice(&time.to_le_bytes());
    }

    /// Sets the length of the data of `page`, which has a header: to its end.
    pub fn set_len(&self, page: &mut [u8]) {
        let len = (page.len() - self.data) as u64;
        page[self.commit..self.commit + LONG].copy_from_slice(&len.to_le_bytes());
    }

    /// Says of `page` that records are missing before it, and not how many. Of a page without a header
    /// it says nothing.
    pub fn set_missed(&self, page: &mut [u8]) {
        let Ok((commit, _)) = self.commit_of(page) else {
            return;
        };
        let commit = u64::from(commit | MISSED) & !u64::from(MISSED_STORED);
        page[self.commit..self.commit + LONG].copy_from_slice(&commit.to_le_bytes());
    }

    /// Returns a page without records, with the flag that records before `time` are missing.
    pub fn gap(&self, time: u64) -> Vec<u8> {
        let mut page = vec![0; self.data];
        self.set_time(&mut page, time);
        self.set_missed(&mut page);
        page
    }

    /// How many bytes of `page` are used.
    pub fn used(&self, page: &[u8]) -> Result<usize, Damage> {
        let (commit, data) = self.commit_of(page)?;
        let stored = match commit & MISSED_STORED {
            0 => 0,
            _ => LONG,
        };
        Ok(self.data + data + stored)
    }

    /// The time at which the records of `page` begin.
    pub fn time_of(&self, page: &[u8]) -> Result<u64, Damage> {
        let bytes = page.get(self.time..self.time + 8).ok_or(SHORT)?;
        Ok(number(bytes).unwrap_or_default())
    }

    /// The flags of the commit word, and the length of the data.
    fn commit_of(&self, page: &[u8]) -> Result<(u32, usize), Damage> {
        let bytes = page.get(self.commit..self.commit + LONG).ok_or(SHORT)?;
        let commit = number(bytes).unwrap_or_default() as u32;
        let len = (commit & !(MISSED | MISSED_STORED)) as usize;
        match len <= page.len().saturating_sub(self.data) {
            true => Ok((commit, len)),
            false => Err(Damage("a page is shorter than its header says")),
        }
    }
}

const SHORT: Damage = Damage("a page is shorter than its header");

/// What is missing before a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Missed {
    /// Nothing.
    None,
    /// Records, but their number is not known.
    Some,
    /// This number of records.
    Count(u64),
}

/// The records of a page, one after the other. What was discarded between them is zeroed.
#[derive(Clone, Debug)]
pub struct Cursor {
    page: Vec<u8>,
    at: usize,
    end: usize,
    time: u64,
    /// What is missing before the first one.
    pub missed: Missed,
}

/// A record: when, and where in the page its data are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// The time, in units of the trace clock.
    pub time: u64,
    /// Its data: an event.
    pub data: std::ops::Range<usize>,
}

impl Cursor {
    /// At the beginning of `page`.
    pub fn new(layout: Layout, page: Vec<u8>) -> Result<Self, Damage> {
        let time = layout.time_of(&page)?;
        let (commit, len) = layout.commit_of(&page)?;
        let end = layout.data + len;
        let missed = match (commit & MISSED, commit & MISSED_STORED) {
            (0, _) => Missed::None,
            (_, 0) => Missed::Some,
            _ => match page.get(end..end + LONG) {
                Some(bytes) => Missed::Count(number(bytes).unwrap_or_default()),
                None => return Err(Damage("a page is shorter than its header says")),
            },
        };
        Ok(Self {
            page,
            at: layout.data,
            end,
            time,
            missed,
        })
    }

    /// The page.
    pub fn page(&self) -> &[u8] {
        &self.page
    }

    /// Returns how much memory the page takes, in bytes.
    pub fn capacity(&self) -> usize {
        self.page.capacity()
    }

    /// Returns the memory of the page.
    pub fn into_page(self) -> Vec<u8> {
        self.page
    }

    /// The page; only the data of records may be changed.
    pub fn page_mut(&mut self) -> &mut [u8] {
        &mut self.page
    }

    /// The time of the record that was read last.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// The next record; [`None`] at the end of the page.
    pub fn next_record(&mut self) -> Result<Option<Record>, Damage> {
        while self.at < self.end {
            let start = self.at;
            let (kind, delta) = self.head(start)?;
            match kind {
                PADDING if delta == 0 => {
                    self.page[start + 4..self.end].fill(0);
                    break;
                }
                // Discarded. The kernel does not count its time, either.
                PADDING => {
                    self.skip(4 + self.word(start + 4)? as usize)?;
                    if let Some(data) = self.page.get_mut(start + 8..self.at) {
                        data.fill(0);
                    }
                }
                TIME_EXTEND => {
                    let more = u64::from(self.word(start + 4)?) << DELTA_BITS;
                    self.time = self.time.wrapping_add(more + u64::from(delta));
                    self.skip(8)?;
                }
                TIME_STAMP => {
                    let high = u64::from(self.word(start + 4)?) << DELTA_BITS;
                    self.time = with_highest_bits(high + u64::from(delta), self.time);
                    self.skip(8)?;
                }
                kind => {
                    let (head, len) = match kind {
                        // The word that has the length is part of it.
                        0 => (8, (self.word(start + 4)? as usize).saturating_sub(4)),
                        kind => (4, kind as usize * 4),
                    };
                    self.skip(head + len)?;
                    self.time = self.time.wrapping_add(delta.into());
                    return Ok(Some(Record {
                        time: self.time,
                        data: start + head..start + head + len,
                    }));
                }
            }
        }
        self.at = self.end;
        Ok(None)
    }

    fn skip(&mut self, len: usize) -> Result<(), Damage> {
        if len > self.end - self.at {
            return Err(Damage("a record ends after the end of its page"));
        }
        self.at += len;
        Ok(())
    }

    /// The type or length of a record, and its time delta.
    fn head(&self, at: usize) -> Result<(u32, u32), Damage> {
        let word = self.word(at)?;
        Ok((word & 0x1f, word >> 5))
    }

    fn word(&self, at: usize) -> Result<u32, Damage> {
        let bytes = self.page.get(at..self.end).and_then(<[u8]>::first_chunk);
        let bytes = bytes.ok_or(Damage("a record ends after the end of its page"))?;
        Ok(u32::from_le_bytes(*bytes))
    }
}

/// Completes an absolute time with the highest bits of the time before it.
fn with_highest_bits(stamp: u64, before: u64) -> u64 {
    let stamp = stamp & !STAMP_MISSING;
    if before & STAMP_MISSING == 0 {
        return stamp;
    }
    let time = stamp | (before & STAMP_MISSING);
    match time < before {
        true => time.wrapping_add(1 << 59),
        false => time,
    }
}

#[cfg(test)]
pub(crate) mod tests;
