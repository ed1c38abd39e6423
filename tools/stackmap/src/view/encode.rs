// SPDX-License-Identifier: MIT OR Apache-2.0

//! The data of a page: tables, and the columns of the events.
//!
//! A number is in LEB128: 7 bits a byte, the lowest first, the highest bit set on all but the last byte. A
//! text is its length in bytes and UTF-8. A table is the number of its rows, and the rows. In this order:
//!
//! - a text: what is said of all events, in JSON
//! - the names of frames: what each is (a [`Kind`] as a number), and its text
//! - the tree of stacks: of each node how far back its parent is (0: it has none), and the number of its name
//! - the names of events: texts
//! - tasks: the id and the name of each
//! - the events, in the order of time, column by column: the time since the event before, in microseconds
//!   or ticks; the CPU; the number of its name; of its task; of the innermost node of its stack, counted from
//!   1 (0: none); and what it weighs, unless it is one event
//!
//! All of it is compressed by gzip, which browsers decompress. `page/data.js` reads it.

use crate::folded::Kind;
use std::{
    collections::HashMap,
    hash::Hash,
    io::{self, Write},
};

/// Values by number, each once.
#[derive(Debug)]
pub(super) struct Texts<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
    /// The number of the last one: events in a row have much in common.
    last: u32,
}

impl<T> Default for Texts<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashMap::new(),
            last: 0,
        }
    }
}

impl<T: Clone + Eq + Hash> Texts<T> {
    /// The number of a value.
    pub(super) fn number(&mut self, value: &T) -> u32 {
        if self.values.get(self.last as usize) == Some(value) {
            return self.last;
        }
        self.last = match self.numbers.get(value) {
            Some(number) => *number,
            None => {
                let number = self.values.len() as u32;
                self.values.push(value.clone());
                self.numbers.insert(value.clone(), number);
                number
            }
        };
        self.last
    }

    /// The value behind a number.
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)
    }

    /// All of them, by number.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.values.iter()
    }
}

/// An event.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Row {
    /// When, in microseconds or ticks.
    pub(super) time: u64,
    /// What it is counted by.
    pub(super) weight: u64,
    /// Its CPU.
    pub(super) cpu: u32,
    /// The number of its name.
    pub(super) event: u32,
    /// The number of its task.
    pub(super) task: u32,
    /// The number of its stack.
    pub(super) stack: u32,
}

/// The data of a page.
#[derive(Debug, Default)]
pub(super) struct Columns(Vec<u8>);

impl Columns {
    fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Adds a text.
    pub(super) fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    /// Adds the names of frames.
    pub(super) fn names<'a>(&mut self, names: impl Iterator<Item = (&'a str, Kind)>) {
        let names: Vec<_> = names.collect();
        self.number(names.len() as u64);
        for (name, kind) in names {
            self.number(kind as u64);
            self.text(name.as_bytes());
        }
    }

    /// Adds the tree of stacks: of each node its parent plus 1, which comes before it, and its name.
    pub(super) fn tree(&mut self, nodes: &[(u32, u32)]) {
        self.number(nodes.len() as u64);
        for (index, (parent, name)) in nodes.iter().enumerate() {
            let back = match parent {
                0 => 0,
                parent => (index as u64 + 1).saturating_sub((*parent).into()),
            };
            self.number(back);
            self.number((*name).into());
        }
    }

    /// Adds texts.
    pub(super) fn strings<'a>(&mut self, texts: impl ExactSizeIterator<Item = &'a String>) {
        self.number(texts.len() as u64);
        for text in texts {
            self.text(text.as_bytes());
        }
    }

    /// Adds the ids and the names of tasks.
    pub(super) fn tasks<'a>(&mut self, tasks: impl ExactSizeIterator<Item = &'a (u32, String)>) {
        self.number(tasks.len() as u64);
        for (pid, comm) in tasks {
            self.number((*pid).into());
            self.text(comm.as_bytes());
        }
    }

    /// Adds events, in the order of time. `leaf`: the innermost node of a stack plus 1.
    pub(super) fn rows(&mut self, rows: &[Row], leaf: impl Fn(u32) -> u32, weighted: bool) {
        self.number(rows.len() as u64);
        let mut last = rows.first().map_or(0, |row| row.time);
        for row in rows {
            self.number(row.time.saturating_sub(last));
            last = row.time;
        }
        let columns: [&dyn Fn(&Row) -> u32; 4] =
            [&|row| row.cpu, &|row| row.event, &|row| row.task, &|row| {
                leaf(row.stack)
            }];
        for column in columns {
            rows.iter().for_each(|row| self.number(column(row).into()));
        }
        if weighted {
            rows.iter().for_each(|row| self.number(row.weight));
        }
    }

    /// Writes them.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads what was encoded, as the page does.
    struct Reader<'a>(&'a [u8]);

    impl Reader<'_> {
        fn number(&mut self) -> u64 {
            let mut number = 0;
            for (at, byte) in self.0.iter().enumerate() {
                number |= u64::from(byte & 0x7f) << (7 * at);
                if byte & 0x80 == 0 {
                    self.0 = &self.0[at + 1..];
                    break;
                }
            }
            number
        }

        fn text(&mut self) -> String {
            let len = self.number() as usize;
            let (text, rest) = self.0.split_at(len);
            self.0 = rest;
            String::from_utf8(text.to_vec()).unwrap()
        }

        fn table<T>(&mut self, mut row: impl FnMut(&mut Self) -> T) -> Vec<T> {
            let len = self.number();
            (0..len).map(|_| row(self)).collect()
        }
    }

    #[test]
    fn tables_are_read_back() {
        let names = [
            ("<script>", Kind::Kernel),
            ("", Kind::Missing),
            ("ü", Kind::User),
        ];
        let nodes = [(0, 2), (1, 0), (2, 1), (1, 7), (0, 2), (5, 1)];
        let texts = ["a".repeat(200), "\u{202e}\n".to_owned()];
        let tasks = [(0, "swapper".to_owned()), (u32::MAX, "a b".to_owned())];
        let mut columns = Columns::default();
        columns.text(b"{}");
        columns.names(names.iter().copied());
        columns.tree(&nodes);
        columns.strings(texts.iter());
        columns.tasks(tasks.iter());
        let mut bytes = Vec::new();
        columns.write(&mut bytes).unwrap();
        let mut reader = Reader(&bytes);
        assert_eq!(reader.text(), "{}");
        let read = reader.table(|reader| (reader.number(), reader.text()));
        let want = names.map(|(name, kind)| (kind as u64, name.to_owned()));
        assert_eq!(read, want);
        let mut index = 0;
        let read = reader.table(|reader| {
            index += 1;
            let parent = match reader.number() {
                0 => 0,
                back => index - back,
            };
            (parent as u32, reader.number() as u32)
        });
        assert_eq!(read, nodes);
        assert_eq!(reader.table(Reader::text), texts);
        let read = reader.table(|reader| (reader.number() as u32, reader.text()));
        assert_eq!(read, tasks);
        assert!(reader.0.is_empty());
    }

    #[test]
    fn values_have_a_number_each() {
        let mut texts = Texts::default();
        let numbers = ["a", "a", "b", "a", "b", "c"].map(|text| texts.number(&text.to_owned()));
        assert_eq!(numbers, [0, 0, 1, 0, 1, 2]);
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(texts.get(2).map(String::as_str), Some("c"));
        assert_eq!(texts.get(3), None);
    }

    proptest! {
        #[test]
        fn events_are_read_back(
            rows in prop::collection::vec((any::<u64>(), any::<u64>(), any::<[u32; 4]>()), 0..50),
            weighted in any::<bool>(),
        ) {
            let rows = rows.into_iter().map(|(time, weight, [cpu, event, task, stack])| Row {
                time, weight, cpu, event, task, stack,
            });
            let mut rows: Vec<Row> = rows.collect();
            rows.sort_by_key(|row| row.time);
            let mut columns = Columns::default();
            columns.rows(&rows, |stack| stack ^ 1, weighted);
            let mut reader = Reader(&columns.0);
            let len = reader.number() as usize;
            prop_assert_eq!(len, rows.len());
            let mut read = vec![Row::default(); len];
            let mut time = rows.first().map_or(0, |row| row.time);
            for row in &mut read {
                time += reader.number();
                row.time = time;
            }
            read.iter_mut().for_each(|row| row.cpu = reader.number() as u32);
            read.iter_mut().for_each(|row| row.event = reader.number() as u32);
            read.iter_mut().for_each(|row| row.task = reader.number() as u32);
            read.iter_mut().for_each(|row| row.stack = reader.number() as u32 ^ 1);
            match weighted {
                true => read.iter_mut().for_each(|row| row.weight = reader.number()),
                false => read.iter_mut().zip(&rows).for_each(|(row, of)| row.weight = of.weight),
            }
            prop_assert_eq!(read, rows);
            prop_assert!(reader.0.is_empty());
        }
    }
}
