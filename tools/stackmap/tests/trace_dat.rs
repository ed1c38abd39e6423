// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap export --format trace.dat`: what is in the file. `readers` has trace-cmd read it.

use stackmap::{
    capture::{member, Capture, Writer},
    ring::{
        page::{Cursor, Layout},
        stream,
    },
    stack_map_bin::Order,
};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn export(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stackmap"))
        .args(["export", "--format", "trace.dat"])
        .args(arguments)
        .current_dir(data("."))
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What is in a file.
struct Dat {
    layout: Layout,
    /// The pages of each CPU.
    pages: BTreeMap<u32, Vec<Vec<u8>>>,
    /// The formats, by their names.
    formats: BTreeMap<String, String>,
}

impl Dat {
    fn new(file: &[u8]) -> Self {
        let header = String::from_utf8_lossy(file);
        let begin = header.find("\tfield: u64 timestamp").unwrap();
        let layout = Layout::parse(&header[begin..begin + 300], Order::Little).unwrap();
        let table = memchr::memmem::find(file, b"flyrecord\0").unwrap() + 10;
        let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let of_cpu = |cpu: u32| {
            let at = table + 16 * cpu as usize;
            let (offset, size) = (number(at), number(at + 8));
            assert_eq!(offset % layout.page_size(), 0);
            let pages = file[offset..offset + size].chunks(layout.page_size());
            (cpu, pages.map(<[u8]>::to_vec).collect())
        };
        let texts = header.split("name: ").skip(1).map(|text| {
            let name = text.lines().next().unwrap();
            let (format, _) = text.split_once("\nprint fmt: ").unwrap();
            let print = text[format.len() + 1..].lines().next().unwrap();
            (name.to_owned(), format!("name: {format}\n{print}\n"))
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
    fn records(&self) -> Vec<(u32, u64, Vec<u8>)> {
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
    fn of(&self, name: &str) -> Vec<(u32, u64, Vec<u8>)> {
        let id = self.id(name).to_le_bytes();
        let mut records = self.records();
        records.retain(|(_, _, data)| data[..2] == id);
        records
    }
}

#[test]
fn ids_become_whole_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace.dat");
    let name = out.to_str().unwrap();
    let count = |arguments: &[&str]| {
        let output = export(&[&["-o", name, "user.data"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let read = Dat::new(&fs::read(&out).unwrap());
        for ids in ["stack_id", "stack_id_user", "user_stack_id"] {
            assert!(read.of(ids).is_empty());
        }
        let [kernel, user] = ["kernel_stack", "user_stack"].map(|name| read.of(name).len());
        [read.records().len() - kernel - user, kernel, user]
    };
    assert_eq!(count(&[]), [41, 41, 25]);
    assert_eq!(count(&["--kernel"]), [41, 41, 0]);
    assert_eq!(count(&["--user"]), [41, 0, 25]);
    let some = count(&["--comm", "known"]);
    assert!(
        some[0] > 0 && some[0] < 41 && some[0] == some[1],
        "{some:?}"
    );
    // It has addresses of the kernel, wanted or not.
    assert_eq!(
        fs::metadata(&out).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let piped = export(&["user.data"]);
    count(&[]);
    assert_eq!(piped.stdout, fs::read(&out).unwrap());
}

/// A capture with full stacks: that of the file that a capture with ids was written as.
#[test]
fn full_stacks_stay() {
    let dir = tempfile::tempdir().unwrap();
    let read = Dat::new(&export(&["--kernel", "user.data"]).stdout);
    let mut pages: Vec<_> = read.pages.iter().collect::<Vec<_>>();
    pages.retain(|(_, pages)| !pages.is_empty());
    let mut of_all: Vec<_> = pages
        .into_iter()
        .flat_map(|(cpu, pages)| pages.iter().map(move |page| (*cpu, page)))
        .collect();
    of_all.sort_by_key(|(_, page)| read.layout.time_of(page).unwrap());
    let mut stream = Vec::new();
    for (cpu, page) in of_all {
        let used = read.layout.used(page).unwrap();
        stream::write_page(&mut stream, &read.layout, cpu, &page[..used]).unwrap();
    }
    let path = dir.path().join("capture");
    let mut old = Capture::open(&data("user.data")).unwrap();
    let mut writer = Writer::create(&path).unwrap();
    let mut copied = vec![
        member::HEADER_PAGE.to_owned(),
        member::HEADER_EVENT.to_owned(),
        member::TASKS.to_owned(),
        member::PRINTK_FORMATS.to_owned(),
        member::KALLSYMS.to_owned(),
        member::MODULES.to_owned(),
        member::STACK_MAP_BIN.to_owned(),
        member::STAT.to_owned(),
        member::STAT_BEFORE.to_owned(),
    ];
    let systems = [("sched", "sched_wakeup"), ("sched", "sched_process_exit")];
    let systems = systems
        .iter()
        .chain(&[("syscalls", "sys_enter_getpriority")]);
    copied.extend(systems.map(|(system, name)| format!("events/{system}/{name}/format")));
    for name in &copied {
        let mut content = Vec::new();
        old.member(name).unwrap().read_to_end(&mut content).unwrap();
        writer.member(name, &mut &content[..]).unwrap();
    }
    let format = read.formats["kernel_stack"].as_bytes();
    let name = "events/ftrace/kernel_stack/format";
    writer.member(name, &mut &format[..]).unwrap();
    writer.member(member::PAGES, &mut &stream[..]).unwrap();
    writer.finish(old.manifest()).unwrap();

    let again = export(&[path.to_str().unwrap()]);
    assert!(again.status.success(), "{}", stderr(&again));
    let again = Dat::new(&again.stdout);
    assert_eq!(read.of("kernel_stack").len(), 41);
    assert_eq!(again.records(), read.records());
}

#[test]
fn a_binary_ring_buffer_is_needed() {
    for file in ["before.data", "stack_map_bin"] {
        let output = export(&[file]);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(text.contains("has no binary ring buffer"), "{text}");
        assert!(text.contains("hint: record a capture"), "{text}");
    }
}
