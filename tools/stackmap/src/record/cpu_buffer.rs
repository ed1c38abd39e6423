// SPDX-License-Identifier: MIT OR Apache-2.0

//! Takes the pages of the buffer of a CPU, one after the other: what was streamed, then what the
//! kernel has.

use super::spool::{next_page, Taken};
use crate::{
    error::{Error, Result},
    output::warn,
    ring::page::{Cursor, Layout},
    tracefs::Tracefs,
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
};

/// The errno for the buffer of a CPU that was never online.
const ENODEV: i32 = 19;

/// The buffer of a CPU.
pub(super) struct CpuBuffer {
    pub(super) cpu: u32,
    pub(super) path: String,
    file: File,
    layout: Layout,
    /// The pages that were streamed, which come first.
    pub(super) streamed: Option<Box<dyn Read>>,
    /// What is older than this is left out, until there is something that is not.
    begin: Option<u64>,
    /// How many records that were.
    pub(super) older: u64,
    /// When the first page begins that is not left out.
    pub(super) first: Option<u64>,
    /// The page that is next, and when it begins.
    pub(super) page: Vec<u8>,
    pub(super) time: u64,
}

impl CpuBuffer {
    /// That of `cpu`, with what was streamed of it, from the time `begin` on.
    pub(super) fn open(
        tracefs: &Tracefs,
        cpu: u32,
        layout: &Layout,
        streamed: Option<Taken>,
        begin: Option<u64>,
    ) -> Result<Self> {
        let path = format!("per_cpu/cpu{cpu}/trace_pipe_raw");
        let full = tracefs.path(&path);
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&full);
        Ok(Self {
            cpu,
            file: file.map_err(|error| Error::read(&full, error))?,
            path: full.display().to_string(),
            layout: *layout,
            streamed: match streamed {
                Some(taken) => Some(Box::new(taken.read()?)),
                None => None,
            },
            begin,
            older: 0,
            first: None,
            page: Vec::new(),
            time: 0,
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
            self.layout.set_missed(&mut page);
        }
        self.begin = None;
        // One that has no time is left out like any that is damaged.
        self.time = self.layout.time_of(&page).unwrap_or_default();
        self.first.get_or_insert(self.time);
        self.page = page;
        !self.page.is_empty()
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

    fn next_page(&mut self) -> Vec<u8> {
        self.next_streamed().unwrap_or_else(|| self.next_live())
    }

    /// The next page that was streamed.
    fn next_streamed(&mut self) -> Option<Vec<u8>> {
        let page = next_page(self.streamed.as_mut()?);
        match page {
            Ok(page) if !page.is_empty() => return Some(page),
            Ok(_) => {}
            Err(error) => warn(format_args!(
                "what was streamed of CPU {}: {error}: the rest of it is skipped",
                self.cpu
            )),
        }
        self.streamed = None;
        None
    }

    /// The next page that the kernel has; an empty one is none.
    fn next_live(&mut self) -> Vec<u8> {
        let mut page = vec![0; self.layout.page_size()];
        let len = loop {
            match self.file.read(&mut page) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) if error.raw_os_error() == Some(ENODEV) => break 0,
                Err(error) => {
                    warn(format_args!("{}: {error}: the rest is skipped", self.path));
                    break 0;
                }
            }
        };
        page.truncate(len);
        page
    }
}
