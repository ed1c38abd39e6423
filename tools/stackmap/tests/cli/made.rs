// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes captures of a few events.

use super::tool::Members;
use stackmap::{
    capture::{member, Manifest},
    stack_map_bin::{self, LoadId, Order, Stack},
};
use std::collections::BTreeMap;

/// Returns a `stack_map_bin` with these stacks, by their ids.
pub(crate) fn bin(load_id: Option<LoadId>, stacks: &[(u32, &[u64])]) -> Vec<u8> {
    let stacks = stacks.iter().map(|(id, ips)| Stack {
        id: *id,
        ref_count: 1,
        ips,
    });
    let mut bin = Vec::new();
    stack_map_bin::write(&mut bin, Order::Little, load_id, stacks).unwrap();
    bin
}

/// What differs between such captures.
#[derive(Default)]
pub(crate) struct Text<'a> {
    /// The records in their order, a line for each: `comm-pid (tgid) [cpu] flags time: event: fields`, in
    /// which the thread group may be missing, the third flag says what interrupts (`h`, `s`, `Z`), or `<stack_id N>` or `<stack trace> ADDRESS...` in place of
    /// the event. An event has one field, `fields`.
    pub(crate) trace: &'a str,
    pub(crate) stack_map_bin: &'a [u8],
    pub(crate) kallsyms: &'a [u8],
}

/// Returns what is in such a capture.
pub(crate) fn capture(text: &Text<'_>, manifest: &Manifest) -> Members {
    let records = Records::new(text.trace);
    let tasks = serde_json::json!({ "comms": records.comms, "tgids": records.tgids }).to_string();
    let formats = records.events.iter().map(|(event, number)| {
        let (system, fields) = match &event[..] {
            STACK_ID => ("ftrace", "int stack_id;\toffset:8;\tsize:4;\tsigned:1;"),
            KERNEL_STACK => (
                "ftrace",
                "int size;\toffset:8;\tsize:4;\tsigned:1;\n\
                 \tfield:unsigned long caller[];\toffset:16;\tsize:0;\tsigned:0;",
            ),
            _ => (
                "test",
                "__data_loc char[] fields;\toffset:8;\tsize:4;\tsigned:0;",
            ),
        };
        let format = format!("name: {event}\nID: {number}\nformat:\n{COMMON}\n\tfield:{fields}\n");
        (format!("events/{system}/{event}/format"), format.into())
    });
    let mut members: BTreeMap<String, Vec<u8>> = formats.collect();
    for (name, content) in [
        (member::PAGES, &records.pages[..]),
        (member::HEADER_PAGE, HEADER_PAGE.as_bytes()),
        (member::HEADER_EVENT, b""),
        (member::PRINTK_FORMATS, b""),
        (member::TASKS, tasks.as_bytes()),
        (member::STACK_MAP_BIN, text.stack_map_bin),
        (member::STAT, b"bits: 14\n"),
        (member::KALLSYMS, text.kallsyms),
        (member::MODULES, b""),
    ] {
        members.insert(name.to_owned(), content.to_vec());
    }
    let manifest = manifest.clone();
    Members { manifest, members }
}

pub(crate) const HEADER_PAGE: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;
";
pub(crate) const COMMON: &str = "\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
";
const STACK_ID: &str = "stack_id";
const KERNEL_STACK: &str = "kernel_stack";

/// The records of a ring buffer.
struct Records {
    /// A page for each.
    pages: Vec<u8>,
    events: BTreeMap<String, u16>,
    comms: BTreeMap<i32, String>,
    tgids: BTreeMap<i32, u32>,
}

impl Records {
    fn new(trace: &str) -> Self {
        let mut records = Self {
            pages: Vec::new(),
            events: [(STACK_ID, 1), (KERNEL_STACK, 2)]
                .map(|(name, number)| (name.to_owned(), number))
                .into(),
            comms: BTreeMap::new(),
            tgids: BTreeMap::new(),
        };
        trace.lines().for_each(|line| records.add(line));
        records
    }

    fn add(&mut self, line: &str) {
        let (head, body) = line.split_once(": ").unwrap();
        let (task, rest) = head.rsplit_once(" [").unwrap();
        let (cpu, rest) = rest.split_once(']').unwrap();
        let (task, tgid) = match task.strip_suffix(')') {
            Some(task) => task.rsplit_once(" (").unwrap(),
            None => (task, ""),
        };
        let (comm, pid) = task.rsplit_once('-').unwrap();
        let pid = pid.parse::<u32>().unwrap() as i32;
        self.comms.insert(pid, comm.trim_start().to_owned());
        self.tgids.extend(tgid.parse().map(|tgid| (pid, tgid)));
        let (shown, time) = rest.trim_start().split_once(' ').unwrap_or(("", rest));
        let flags = match shown.as_bytes().get(2) {
            Some(b'h') => 0x08,
            Some(b's') => 0x10,
            Some(b'Z') => 0x40,
            _ => 0u8,
        };
        let (secs, micros) = time.trim_start().split_once('.').unwrap();
        let [secs, micros] = [secs, micros].map(|digits| digits.parse::<u64>().unwrap());

        let (number, fields) = if let Some(id) = body.strip_prefix("<stack_id ") {
            let id: i32 = id.strip_suffix('>').unwrap().parse().unwrap();
            (1, id.to_le_bytes().to_vec())
        } else if let Some(ips) = body.strip_prefix("<stack trace> ") {
            let ips = ips
                .split(' ')
                .map(|ip| u64::from_str_radix(ip, 16).unwrap());
            let ips: Vec<_> = ips.flat_map(u64::to_le_bytes).collect();
            (
                2,
                [&(ips.len() as u64 / 8).to_le_bytes()[..], &ips].concat(),
            )
        } else {
            let (event, fields) = body.split_once(": ").unwrap();
            let next = self.events.len() as u16 + 1;
            let number = self.events.entry(event.to_owned()).or_insert(next);
            let place = (fields.len() as u32 + 1) << 16 | 12;
            let text = [&place.to_le_bytes(), fields.as_bytes(), b"\0"].concat();
            (*number, text)
        };
        let mut data = [&number.to_le_bytes(), &[flags, 0][..], &pid.to_le_bytes()].concat();
        data.extend(fields);
        data.resize(data.len().next_multiple_of(4), 0);
        // The length is in the word after the head.
        let len = data.len() as u32 + 4;
        let page = [
            &((secs * 1_000_000 + micros) * 1000).to_le_bytes()[..],
            &(u64::from(len) + 4).to_le_bytes(),
            &[0; 4],
            &len.to_le_bytes(),
            &data,
        ];
        let page = page.concat();
        let cpu: u32 = cpu.parse().unwrap();
        let len = page.len() as u32;
        self.pages
            .extend([&cpu.to_le_bytes()[..], &len.to_le_bytes(), &page].concat());
    }
}
