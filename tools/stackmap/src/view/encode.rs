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
use prost::encoding::encode_varint;
use std::{
    io::{self, Write},
    rc::Rc,
};

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
    fn number(&mut self, number: u64) {
        encode_varint(number, &mut self.0);
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
    pub(super) fn strings<'a>(&mut self, texts: impl ExactSizeIterator<Item = &'a Rc<str>>) {
        self.number(texts.len() as u64);
        for text in texts {
            self.text(text.as_bytes());
        }
    }

    /// Adds the ids and the names of tasks.
    pub(super) fn tasks<'a>(&mut self, tasks: impl ExactSizeIterator<Item = &'a (u32, Rc<str>)>) {
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
