// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pages that were taken from the buffer of a CPU, one after the other.

use super::spool::{next_page, Taken};
use crate::{
    error::Result,
    output::warn,
    ring::page::{Cursor, Layout},
};
use std::io::Read;

/// The buffer of a CPU.
pub(super) struct CpuBuffer<'a> {
    pub(super) cpu: u32,
    layout: Layout,
    pages: Box<dyn Read + 'a>,
    /// How many bytes were read, and how many of all were taken while the buffer recorded.
    read: u64,
    streamed: u64,
    /// What is older than this is left out, until there is something that is not.
    begin: Option<u64>,
    /// How many records that were.
    pub(super) older: u64,
    /// When the first page begins that is not left out.
    pub(super) first: Option<u64>,
    /// The page that is next, and when it begins.
    pub(super) page: Vec<u8>,
    pub(super) time: u64,
    /// Whether what is left of the pages cannot be read.
    pub(super) is_cut: bool,
}

impl<'a> CpuBuffer<'a> {
    /// Opens what was taken of `cpu`, from the time `begin` on.
    pub(super) fn open(
        cpu: u32,
        layout: &Layout,
        taken: &'a Taken,
        begin: Option<u64>,
    ) -> Result<Self> {
        Ok(Self {
            cpu,
            layout: *layout,
            pages: Box::new(taken.read()?),
            read: 0,
            streamed: taken.streamed(),
            begin,
            older: 0,
            first: None,
            page: Vec::new(),
            time: 0,
            is_cut: false,
        })
    }

    /// Reads the next page; says whether there was one.
    pub(super) fn advance(&mut self) -> bool {
        let mut page = self.next_page();
        while let Some(nr_records) = self.nr_older(&page) {
            self.older += nr_records;
            page = self.next_page();
        }
        if self.older > 0 && self.first.is_none() {
            // As if the buffer had held no more.
            match self.begin.filter(|_| page.is_empty() && !self.is_cut) {
                Some(begin) => page = self.layout.gap(begin),
                None => self.layout.set_missed(&mut page),
            }
        }
        self.begin = None;
        // One that has no time is left out like any that is damaged.
        self.time = self.layout.time_of(&page).unwrap_or_default();
        self.first.get_or_insert(self.time);
        self.page = page;
        !self.page.is_empty()
    }

    /// Returns whether the page that is next was taken while the buffer recorded.
    pub(super) fn is_streamed(&self) -> bool {
        self.read <= self.streamed
    }

    /// How many records a page has, if all are too old.
    fn nr_older(&self, page: &[u8]) -> Option<u64> {
        let begin = self.begin.filter(|_| !page.is_empty())?;
        let mut cursor = Cursor::new(self.layout, page.to_vec()).ok()?;
        let mut nr_records = 0;
        while cursor.next_record().ok()?.is_some() {
            nr_records += 1;
        }
        (cursor.time() < begin).then_some(nr_records)
    }

    /// Reads a page; an empty one is none.
    fn next_page(&mut self) -> Vec<u8> {
        let page = next_page(&mut self.pages).unwrap_or_else(|error| {
            warn(format_args!(
                "the pages of CPU {}: {error}: the rest of them is skipped",
                self.cpu
            ));
            self.is_cut = true;
            Vec::new()
        });
        self.read += 4 + page.len() as u64;
        page
    }
}
