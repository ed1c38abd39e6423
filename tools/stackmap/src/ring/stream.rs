// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pages of all CPUs in one stream, as a capture has them.
//!
//! Before each page are two words: its CPU and its length in bytes. Pages are in the order of their first times, so one pass gives all records in
//! the order of time and needs the memory of a few pages per CPU.

use super::{
    number,
    page::{Cursor, Layout, Missed, Record},
    Damage,
};
use crate::{
    error::{Error, Result},
    files::read_full,
    symbols::texts::ByNumber,
};
use std::{
    cmp::Reverse,
    collections::{binary_heap::PeekMut, BinaryHeap, VecDeque},
    io::{self, Read, Write},
};

/// A CPU number above this is no CPU number.
const MAX_CPU: u32 = 1 << 16;
/// The most pages that wait for earlier records: this many, plus as many for each CPU. An ordered
/// stream needs two for each CPU.
const MAX_WAITING: usize = 64;
const MAX_WAITING_OF_CPU: usize = 4;
/// The most bytes of pages that wait.
const MAX_WAITING_BYTES: usize = 256 << 20;

/// Writes a page.
pub fn write_page(out: &mut (impl Write + ?Sized), cpu: u32, page: &[u8]) -> io::Result<()> {
    out.write_all(&cpu.to_le_bytes())?;
    out.write_all(&(page.len() as u32).to_le_bytes())?;
    out.write_all(page)
}

/// Reads pages.
pub struct Pages<R> {
    input: R,
    layout: Layout,
    source: String,
    offset: u64,
    /// The memory of a page that was read.
    spare: Vec<u8>,
}

impl<R: Read> Pages<R> {
    /// Of `input`, which is called `source` in errors.
    pub fn new(input: R, layout: Layout, source: &str) -> Self {
        Self {
            input,
            layout,
            source: source.to_owned(),
            offset: 0,
            spare: Vec::new(),
        }
    }

    /// How many bytes were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Takes the memory of a page, for a later one.
    pub fn recycle(&mut self, cursor: Cursor) {
        self.spare = cursor.into_page();
    }

    /// The next page and its CPU; [`None`] at the end.
    pub fn next_page(&mut self) -> Result<Option<(u32, Cursor)>> {
        let start = self.offset;
        let mut head = [0; 8];
        match self.fill(&mut head)? {
            0 => return Ok(None),
            8 => {}
            _ => return Err(self.damage(start, Damage("the stream is truncated inside a page"))),
        }
        let [cpu, len] = [&head[..4], &head[4..]].map(|bytes| number(bytes).unwrap_or_default());
        if cpu > MAX_CPU.into() || len > self.layout.page_size() as u64 {
            return Err(self.damage(start, Damage("this is not the header of a page")));
        }
        let mut page = std::mem::take(&mut self.spare);
        page.resize(len as usize, 0);
        if self.fill(&mut page)? < page.len() {
            return Err(self.damage(start, Damage("the stream is truncated inside a page")));
        }
        let cursor = Cursor::new(self.layout, page).map_err(|damage| self.damage(start, damage))?;
        Ok(Some((cpu as u32, cursor)))
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let len = read_full(&mut self.input, buffer)
            .map_err(|(_, error)| Error::reading(&self.source, self.offset, error))?;
        self.offset += len as u64;
        Ok(len)
    }

    fn damage(&self, offset: u64, damage: Damage) -> Error {
        Error::input_at(&self.source, offset, damage.to_string())
    }
}

/// A record: its time, its CPU, and where its data begin and end in their page.
type Next = Reverse<(u64, u32, usize, usize)>;

/// Gives the records of all CPUs in the order of time.
pub struct Records<R> {
    pages: Pages<R>,
    /// The page that was read last. No later page of the stream begins before it.
    ahead: Option<(u32, Cursor)>,
    queues: ByNumber<u32, VecDeque<Cursor>>,
    /// The next record of each CPU that has one.
    next: BinaryHeap<Next>,
    waiting: usize,
    waiting_bytes: usize,
    /// Whether the first of them was returned.
    has_given: bool,
    /// Records that are missing, as far as their number is known.
    pub lost: u64,
}

impl<R: Read> Records<R> {
    /// Those of `pages`.
    pub fn new(pages: Pages<R>) -> Self {
        Self {
            pages,
            ahead: None,
            queues: ByNumber::default(),
            next: BinaryHeap::new(),
            waiting: 0,
            waiting_bytes: 0,
            has_given: false,
            lost: 0,
        }
    }

    /// How many bytes were read.
    pub fn offset(&self) -> u64 {
        self.pages.offset()
    }

    /// The next record: its CPU, its time and its data.
    pub fn next_record(&mut self) -> Result<Option<(u32, u64, &[u8])>> {
        if self.has_given {
            self.has_given = false;
            self.pass_first()?;
        }
        loop {
            if self.ahead.is_none() {
                self.ahead = self.pages.next_page()?;
            }
            let first = self.next.peek().map(|Reverse((time, ..))| *time);
            match (&self.ahead, first) {
                (None, None) => return Ok(None),
                (Some((_, page)), Some(first)) if first < page.time() || self.is_full() => break,
                (None, Some(_)) => break,
                (Some(_), _) => self.admit()?,
            }
        }
        let Some(Reverse((time, cpu, start, end))) = self.next.peek().copied() else {
            return Ok(None);
        };
        self.has_given = true;
        let page = self.queues.get(&cpu).and_then(VecDeque::front);
        let data = page.map_or(&[][..], |cursor| &cursor.page()[start..end]);
        Ok(Some((cpu, time, data)))
    }

    /// Whether no more pages are to wait.
    fn is_full(&self) -> bool {
        self.waiting > MAX_WAITING + MAX_WAITING_OF_CPU * self.queues.len()
            || self.waiting_bytes > MAX_WAITING_BYTES
    }

    /// Adds the page that was read last to the queue of its CPU.
    fn admit(&mut self) -> Result {
        let Some((cpu, cursor)) = self.ahead.take() else {
            return Ok(());
        };
        if let Missed::Count(lost) = cursor.missed {
            self.lost = self.lost.saturating_add(lost);
        }
        self.waiting += 1;
        self.waiting_bytes += cursor.capacity();
        let queue = self.queues.entry(cpu).or_default();
        queue.push_back(cursor);
        if queue.len() == 1 {
            let next = self.next_of(cpu)?;
            self.next.extend(next);
        }
        Ok(())
    }

    /// Puts the record that follows the first one on its CPU in its place.
    fn pass_first(&mut self) -> Result {
        let first = self.next.peek().map(|Reverse((_, cpu, ..))| *cpu);
        let next = first.map(|cpu| self.next_of(cpu)).transpose()?.flatten();
        match (self.next.peek_mut(), next) {
            (Some(mut first), Some(next)) => *first = next,
            (Some(first), None) => drop(PeekMut::pop(first)),
            (None, _) => {}
        }
        Ok(())
    }

    /// Finds the next record of a CPU.
    fn next_of(&mut self, cpu: u32) -> Result<Option<Next>> {
        let Some(queue) = self.queues.get_mut(&cpu) else {
            return Ok(None);
        };
        while let Some(cursor) = queue.front_mut() {
            let record = cursor.next_record();
            let record = record.map_err(|damage| self.pages.damage(self.pages.offset, damage))?;
            if let Some(Record { time, data }) = record {
                return Ok(Some(Reverse((time, cpu, data.start, data.end))));
            }
            self.waiting -= 1;
            self.waiting_bytes -= cursor.capacity();
            if let Some(cursor) = queue.pop_front() {
                self.pages.recycle(cursor);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
