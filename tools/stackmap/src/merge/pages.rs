// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pages of a recording with the ids and addresses of the merged capture.

use super::{
    functions::{Addresses, Functions},
    table::{STALE, UNKNOWN},
};
use crate::{
    error::{Error, Result},
    ring::{
        format::{Field, Format, Formats, Special},
        page::Layout,
        show::Show,
        stream::{write_page, Pages},
    },
    source::{Loaded, Missing},
};
use std::{
    collections::HashMap,
    io::{self, Read},
};

/// What ids of one capture have become.
#[derive(Default)]
pub(super) struct Ids {
    pub(super) kernel: HashMap<u32, u32>,
    pub(super) user: HashMap<u32, u32>,
}

impl Ids {
    fn kernel(&self, loaded: &Loaded, id: u32) -> u32 {
        let known = loaded.stack(id).and_then(|_| self.kernel.get(&id));
        known
            .copied()
            .unwrap_or_else(|| missing(loaded.missing(id)))
    }

    /// 0 is one that was not kept.
    fn user(&self, loaded: &Loaded, id: u32) -> u32 {
        let known = match id {
            0 => Some(&0),
            _ if loaded.has_user_stack(id) => self.user.get(&id),
            _ => None,
        };
        known
            .copied()
            .unwrap_or_else(|| missing(loaded.missing_user(id)))
    }
}

fn missing(missing: Missing) -> u32 {
    match missing {
        Missing::Unknown => UNKNOWN,
        Missing::Stale | Missing::Gone => STALE,
    }
}

/// What it takes to change the records of a recording.
pub(super) struct Change<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) formats: &'a Formats,
    pub(super) ids: &'a Ids,
    pub(super) functions: &'a mut Functions,
    pub(super) addresses: Addresses<'a>,
    /// How many records there were.
    pub(super) nr_records: u64,
}

impl Change<'_> {
    fn record(&mut self, data: &mut [u8]) {
        self.nr_records += 1;
        let formats = self.formats;
        let Some(head) = formats.head(data) else {
            return;
        };
        let Some(format) = formats.get(head.id).cloned() else {
            return;
        };
        let id = |format: &Format, name: &str| format.field(name).cloned();
        match format.special {
            Special::StackId => {
                if let Some(field) = id(&format, "stack_id") {
                    let (ids, loaded) = (self.ids, self.loaded);
                    formats.replace(&field, data, |id| ids.kernel(loaded, id as u32).into());
                }
            }
            Special::UserStackId => {
                if let Some(field) = id(&format, "user_stack_id") {
                    let (ids, loaded) = (self.ids, self.loaded);
                    formats.replace(&field, data, |id| ids.user(loaded, id as u32).into());
                }
            }
            Special::KernelStack => {
                let mut ips = Vec::new();
                formats.frames(&format, data, &mut ips);
                self.addresses.stack(self.functions, &mut ips);
                formats.replace_frames(&format, data, &ips);
            }
            _ => {
                let is_call = format.special == Special::Function;
                let is_address = |field: &&Field| is_call || matches!(field.show, Show::Symbol(_));
                for field in format.fields.iter().filter(is_address) {
                    let (functions, addresses) = (&mut self.functions, &mut self.addresses);
                    formats.replace(field, data, |ip| addresses.frame(functions, ip, true));
                }
            }
        }
    }
}

/// Pages that are changed while they are read.
pub(super) struct Changed<'a, R> {
    pages: Pages<R>,
    layout: Layout,
    change: Change<'a>,
    buffer: Vec<u8>,
    at: usize,
    /// Why there are no more.
    failed: Option<Error>,
}

impl<'a, R: Read> Changed<'a, R> {
    pub(super) fn new(pages: Pages<R>, layout: Layout, change: Change<'a>) -> Self {
        Self {
            pages,
            layout,
            change,
            buffer: Vec::new(),
            at: 0,
            failed: None,
        }
    }

    /// How many records were changed, or why not all of them.
    pub(super) fn end(self) -> Result<u64> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.change.nr_records),
        }
    }

    fn next_page(&mut self) -> Result<bool> {
        let Some((cpu, mut cursor)) = self.pages.next_page()? else {
            return Ok(false);
        };
        loop {
            let record = cursor.next_record();
            let record = record.map_err(|damage| self.pages.damaged(damage))?;
            let Some(record) = record else { break };
            self.change.record(&mut cursor.page_mut()[record.data]);
        }
        self.buffer.clear();
        self.at = 0;
        write_page(&mut self.buffer, &self.layout, cpu, cursor.page())?;
        Ok(true)
    }
}

impl<R: Read> Read for Changed<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.buffer.len() && self.failed.is_none() {
            match self.next_page() {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(error) => self.failed = Some(error),
            }
        }
        if self.failed.is_some() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let len = out.len().min(self.buffer.len() - self.at);
        out[..len].copy_from_slice(&self.buffer[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::functions::tests::symbols, *};
    use crate::ring::{format::tests::describe, Order};

    #[test]
    fn calls_are_of_the_functions_of_the_merged_capture() {
        let text = describe(
            "\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:unsigned long parent_ip;\toffset:16;\tsize:8;\tsigned:0;\n",
            "\"\"",
        );
        let mut formats = Formats::new(Order::Little, 8);
        let text = text.replace("name: x", "name: function");
        assert_eq!(formats.add("ftrace", &text), Ok(7));
        let loaded = Loaded {
            symbols: symbols(
                "ffffffff81000000 t foo\nffffffff81000100 t bar\nffffffff81000200 t end\n",
            ),
            ..Loaded::default()
        };
        let ids = Ids::default();
        let mut functions = Functions::default();
        let mut change = Change {
            loaded: &loaded,
            formats: &formats,
            ids: &ids,
            functions: &mut functions,
            addresses: Addresses::new(&loaded.symbols),
            nr_records: 0,
        };
        // A call is of the function that begins there, not of the one before.
        let words = [7, 0xffff_ffff_8100_0100_u64, 0xffff_ffff_8100_0008];
        let mut data = words.map(u64::to_le_bytes).concat();
        change.record(&mut data);
        assert_eq!(change.nr_records, 1);
        let merged = symbols(&functions.kallsyms());
        let found = [8, 16].map(|at| {
            let word = u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
            assert_eq!(word >> 52, 0xff0, "an address that no kernel has");
            let kallsyms = merged.kallsyms.as_ref().unwrap();
            let function = kallsyms.function(word, true).unwrap();
            (function.name.to_owned(), word - function.start)
        });
        assert_eq!(found, [("bar".to_owned(), 0), ("foo".to_owned(), 8)]);
    }
}
