// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap export --format trace.dat`: what is in the file. `readers` has trace-cmd read it.

use super::tool::{data, mode, run, Dir, Members};
use stackmap::{
    capture::member,
    ring::{
        page::{Cursor, Layout},
        stream,
    },
};
use std::{collections::BTreeMap, fs};

/// Returns what is exported.
fn export(arguments: &str) -> Vec<u8> {
    run(format!("export --format trace.dat {arguments}"))
        .well()
        .stdout
}

/// What is in a file.
pub(crate) struct Dat {
    layout: Layout,
    /// The pages of each CPU.
    pages: BTreeMap<u32, Vec<Vec<u8>>>,
    /// The formats, by their names.
    formats: BTreeMap<String, String>,
}

impl Dat {
    pub(crate) fn new(file: &[u8]) -> Self {
        let header = String::from_utf8_lossy(file);
        let begin = header.find("\tfield: u64 timestamp").unwrap();
        let layout = Layout::parse(&header[begin..begin + 300]).unwrap();
        let table = memchr::memmem::find(file, b"flyrecord\0").unwrap() + 10;
        let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let of_cpu = |cpu: u32| {
            let at = table + 16 * cpu as usize;
            let (offset, size) = (number(at), number(at + 8));
            assert_eq!(offset % layout.page_size(), 0);
            let pages = file[offset..offset + size].chunks(layout.page_size());
            (cpu, pages.map(<[u8]>::to_vec).collect())
        };
        let texts = header.split("name: ").skip(1).filter_map(|text| {
            let name = text.lines().next()?;
            let (format, _) = text.split_once("\nprint fmt: ")?;
            let print = text[format.len() + 1..].lines().next()?;
            Some((name.to_owned(), format!("name: {format}\n{print}\n")))
        });
        Self {
            layout,
            pages: (0..2).map(of_cpu).collect(),
            formats: texts.collect(),
        }
    }

    /// The number of the events of this name.
    fn id(&self, name: &str) -> u16 {
        let (_, rest) = self.formats[name].split_once("\nID: ").unwrap();
        rest.lines().next().unwrap().parse().unwrap()
    }

    /// All records, those of each CPU in their order.
    pub(crate) fn records(&self) -> Vec<(u32, u64, Vec<u8>)> {
        let mut records = Vec::new();
        for (cpu, pages) in &self.pages {
            for page in pages {
                let mut cursor = Cursor::new(self.layout, page.clone()).unwrap();
                while let Some(record) = cursor.next_record().unwrap() {
                    records.push((*cpu, record.time, cursor.page()[record.data].to_vec()));
                }
            }
        }
        records
    }

    /// Those of the events of this name.
    pub(crate) fn of(&self, name: &str) -> Vec<(u32, u64, Vec<u8>)> {
        if !self.formats.contains_key(name) {
            return Vec::new();
        }
        let id = self.id(name).to_le_bytes();
        let mut records = self.records();
        records.retain(|(_, _, data)| data[..2] == id);
        records
    }
}

#[test]
fn ids_become_whole_stacks() {
    let dir = Dir::new();
    let out = dir.at("trace.dat");
    let count = |arguments: &str| {
        export(&format!("-o {out} user.data {arguments}"));
        let read = Dat::new(&fs::read(&out).unwrap());
        for ids in ["stack_id", "stack_id_user", "user_stack_id"] {
            assert!(read.of(ids).is_empty());
        }
        let [kernel, user] = ["kernel_stack", "user_stack"].map(|name| read.of(name).len());
        [read.records().len() - kernel - user, kernel, user]
    };
    assert_eq!(count("--kernel"), [34, 34, 0]);
    assert_eq!(count("--user"), [34, 0, 23]);
    let [events, kernel, _] = count("--comm known");
    assert!(events > 0 && events < 34 && events == kernel);
    // It has addresses of the kernel, wanted or not.
    assert_eq!(mode(&out), 0o600);
    assert_eq!(count(""), [34, 34, 23]);
    assert_eq!(export("user.data"), fs::read(&out).unwrap());
}

/// A capture with full stacks: that of the file that a capture with ids was written as.
#[test]
fn full_stacks_stay() {
    let read = Dat::new(&export("--kernel user.data"));
    let pages = read.pages.iter();
    let pages = pages.flat_map(|(cpu, pages)| pages.iter().map(move |page| (*cpu, page)));
    let mut pages: Vec<_> = pages.collect();
    pages.sort_by_key(|(_, page)| read.layout.time_of(page).unwrap());
    let mut stream = Vec::new();
    for (cpu, page) in pages {
        let used = read.layout.used(page).unwrap();
        stream::write_page(&mut stream, cpu, &page[..used]).unwrap();
    }
    let dir = Dir::new();
    let path = dir.at("capture");
    let mut capture = Members::read(data("user.data"));
    let format = read.formats["kernel_stack"].clone().into_bytes();
    let name = "events/ftrace/kernel_stack/format".to_owned();
    capture.members.insert(name, format);
    capture.members.insert(member::PAGES.to_owned(), stream);
    capture.write(&path);
    let again = Dat::new(&export(&path));
    assert_eq!(read.of("kernel_stack").len(), 34);
    assert_eq!(again.records(), read.records());
}
