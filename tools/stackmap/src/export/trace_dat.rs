// SPDX-License-Identifier: MIT OR Apache-2.0

//! `trace.dat` of trace-cmd, version 6, which KernelShark reads, too: trace-cmd.dat.v6(5).
//!
//! Events keep their records. Each id becomes the event that the kernel would have written, `ftrace:kernel_stack`
//! with all frames; the plugins of trace-cmd name the frames by the kallsyms in the file. User stacks become an
//! event of our own with names in it, as trace-cmd does not read files of programs.

mod pages;

use self::pages::Pages;
use crate::{
    capture::Described,
    error::{Error, Result},
    output::safe,
    ring::{
        format::{Formats, COMMON_LEN},
        page::{Layout, LONG},
        tasks::Tasks,
    },
    source::Loaded,
    trace::{Event, Sides, StackRef, UserRef},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    fmt::Write as _,
    fs::File,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
};

const MAGIC: &[u8] = b"\x17\x08\x44tracing6\0";
/// Options in the file.
const CPUSTAT: u16 = 2;
const TRACECLOCK: u16 = 4;
const UNAME: u16 = 5;
/// The number of `ftrace:kernel_stack` in all kernels.
const KERNEL_STACK: u16 = 4;
/// Events that wait for earlier ones of their CPU: more than interrupts nest.
const MAX_WAITING: usize = 64;
/// CPUs that a file may have: as many as the pages of a capture.
const MAX_CPUS: u32 = (1 << 16) + 1;

/// Writes a recording.
pub struct Writer<'a> {
    loaded: &'a Loaded,
    layout: Layout,
    kernel_stack: u16,
    user_stack: u16,
    cpus: BTreeMap<u32, Cpu>,
    /// The pages of all CPUs as they become full, and whose they are.
    pages: BufWriter<File>,
    owners: Vec<u32>,
    next: u64,
    /// Stacks that were cut, and events that were left out, as a page cannot hold them.
    pub cut: u64,
}

/// An event by its time and its number, and its records.
type Waiting = Reverse<(u64, u64, Vec<Vec<u8>>)>;

struct Cpu {
    pages: Pages,
    waiting: BinaryHeap<Waiting>,
}

impl<'a> Writer<'a> {
    /// Of the recording that `loaded` was read from.
    pub fn new(loaded: &'a Loaded, layout: Layout, formats: &Formats) -> Result<Self> {
        let failed = |error| Error::io("make a temporary file", error);
        let unused = |wanted: u16| {
            let mut ids = (wanted..=u16::MAX).chain(1..wanted);
            ids.find(|id| formats.get(*id).is_none())
        };
        let known = formats
            .iter()
            .find(|format| format.system == "ftrace" && &*format.name == "kernel_stack");
        let kernel_stack = match known {
            Some(format) => Some(format.id),
            None => unused(KERNEL_STACK),
        };
        let last = formats.iter().map(|format| format.id).max();
        let user_stack = unused(last.unwrap_or(0).max(KERNEL_STACK).saturating_add(1));
        let (Some(kernel_stack), Some(user_stack)) = (kernel_stack, user_stack) else {
            return Err(Error::Refused(
                "all numbers of events are in use".to_owned(),
            ));
        };
        Ok(Self {
            loaded,
            layout,
            kernel_stack,
            user_stack,
            cpus: BTreeMap::new(),
            pages: BufWriter::new(tempfile::tempfile().map_err(failed)?),
            owners: Vec::new(),
            next: 0,
            cut: 0,
        })
    }

    /// Adds an event with its stacks.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>) -> Result {
        let data = event.fields.data();
        if event.cpu >= MAX_CPUS {
            self.cut += 1;
            return Ok(());
        }
        let mut records = vec![data.to_vec()];
        let frames = match sides.kernel {
            StackRef::Id(id) => self.loaded.stack(id).map(|stack| stack.ips),
            StackRef::Whole(ips) => Some(ips),
            StackRef::None => None,
        };
        if let Some(frames) = frames {
            records.push(self.kernel_stack(data, frames));
        }
        if let UserRef::Id(id) = sides.user {
            records.extend(self.user_stack(data, id));
        }
        let all = records.len();
        records.retain(|record| record.len() <= Pages::max_len(&self.layout));
        self.cut += (all - records.len()) as u64;
        let layout = self.layout;
        let cpu = self.cpus.entry(event.cpu).or_insert_with(|| Cpu {
            pages: Pages::new(layout),
            waiting: BinaryHeap::new(),
        });
        cpu.waiting
            .push(Reverse((event.time.value(), self.next, records)));
        self.next += 1;
        if cpu.waiting.len() > MAX_WAITING {
            self.write_first(event.cpu)?;
        }
        Ok(())
    }

    /// The fields that all events have, of another kind of event than `data`. The type comes first.
    fn head(&self, data: &[u8], kind: u16) -> Vec<u8> {
        let mut head = vec![0; COMMON_LEN];
        let len = head.len().min(data.len());
        head[..len].copy_from_slice(&data[..len]);
        head[..2].copy_from_slice(&kind.to_le_bytes());
        head
    }

    fn kernel_stack(&mut self, data: &[u8], frames: &[u64]) -> Vec<u8> {
        let mut record = self.head(data, self.kernel_stack);
        let begin = (record.len() + 4).next_multiple_of(LONG);
        let space = Pages::max_len(&self.layout).saturating_sub(begin) / LONG;
        let kept = &frames[..frames.len().min(space)];
        self.cut += u64::from(kept.len() < frames.len());
        record.extend((kept.len() as u32).to_le_bytes());
        record.resize(begin, 0);
        record.extend(kept.iter().flat_map(|frame| frame.to_le_bytes()));
        record
    }

    fn user_stack(&mut self, data: &[u8], id: u32) -> Option<Vec<u8>> {
        let user = &self.loaded.user;
        let stack = self.loaded.user_stack(id)?;
        let mut record = self.head(data, self.user_stack);
        let space = Pages::max_len(&self.layout).saturating_sub(record.len() + 64);
        let mut text = String::from("<user stack trace>");
        let frames = user.stack(stack.ips).flat_map(|which| user.frames(which));
        for frame in frames {
            let line = format!("\n=> {frame}");
            if text.len() + line.len() > space {
                self.cut += 1;
                text.push_str("\n=> ...");
                break;
            }
            text.push('\n');
            text.push_str(&safe(&line[1..]));
        }
        // Writing into a string does not fail.
        let _ = write!(text, "\n({})", user.end(stack.ips));
        let begin = record.len() as u32 + 4;
        record.extend(((text.len() as u32 + 1) << 16 | begin).to_le_bytes());
        record.extend(text.as_bytes());
        record.push(0);
        Some(record)
    }

    /// Writes the first event of a CPU that waits.
    fn write_first(&mut self, number: u32) -> Result {
        let Some(cpu) = self.cpus.get_mut(&number) else {
            return Ok(());
        };
        let Some(Reverse((time, _, records))) = cpu.waiting.pop() else {
            return Ok(());
        };
        for record in records {
            let (pages, owners) = (&mut self.pages, &mut self.owners);
            cpu.pages.add(time, &record, |page| {
                owners.push(number);
                pages.write_all(page).map_err(failed)
            })?;
        }
        Ok(())
    }

    /// Writes the file; `texts` and `tasks` are those of the capture.
    pub fn finish(mut self, texts: &Described, tasks: &Tasks, out: &mut impl Write) -> Result {
        for number in self.cpus.keys().copied().collect::<Vec<_>>() {
            while self
                .cpus
                .get(&number)
                .is_some_and(|cpu| !cpu.waiting.is_empty())
            {
                self.write_first(number)?;
            }
            let (pages, owners) = (&mut self.pages, &mut self.owners);
            if let Some(cpu) = self.cpus.get_mut(&number) {
                cpu.pages.finish(|page| {
                    owners.push(number);
                    pages.write_all(page).map_err(failed)
                })?;
            }
        }
        let head = self.file_head(texts, tasks);
        let nr_cpus = self.nr_cpus();
        let page_size = self.layout.page_size() as u64;
        let begin = (head.len() as u64 + 16 * u64::from(nr_cpus)).next_multiple_of(page_size);
        let mut table = Table::default();
        table.bytes.extend(&head);
        let mut places: Vec<usize> = (0..self.owners.len()).collect();
        // Those of a CPU stay in their order.
        places.sort_by_key(|place| self.owners[*place]);
        let mut offset = begin;
        for number in 0..nr_cpus {
            let from = places.partition_point(|place| self.owners[*place] < number);
            let to = places.partition_point(|place| self.owners[*place] <= number);
            let size = (to - from) as u64 * page_size;
            table.double(offset);
            table.double(size);
            offset += size;
        }
        table.bytes.resize(begin as usize, 0);
        out.write_all(&table.bytes)?;
        let mut file = self
            .pages
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        let mut page = vec![0; page_size as usize];
        for place in places {
            let from = SeekFrom::Start(place as u64 * page_size);
            file.seek(from)
                .and_then(|_| file.read_exact(&mut page))
                .map_err(failed)?;
            out.write_all(&page)?;
        }
        Ok(())
    }

    /// One more than the highest number of a CPU that is known.
    fn nr_cpus(&self) -> u32 {
        let manifest = self.loaded.manifest.iter();
        let known = manifest.flat_map(|manifest| manifest.cpus.iter().map(|stat| stat.cpu));
        let last = known
            .chain(self.cpus.keys().copied())
            .filter(|cpu| *cpu < MAX_CPUS)
            .max();
        last.map_or(1, |last| last + 1)
    }

    /// All of the file before the table of CPUs.
    fn file_head(&self, texts: &Described, tasks: &Tasks) -> Vec<u8> {
        let mut table = Table::default();
        table.bytes.extend(MAGIC);
        // The byte order, and the size of a long.
        table.bytes.extend([0, LONG as u8]);
        table.word(self.layout.page_size() as u32);
        table.bytes.extend(b"header_page\0");
        table.sized(&texts.header_page);
        table.bytes.extend(b"header_event\0");
        table.sized(&texts.header_event);
        let mut systems: BTreeMap<&str, Vec<&[u8]>> = BTreeMap::new();
        for format in &texts.formats {
            if (&format.system[..], &format.name[..]) != ("ftrace", "kernel_stack") {
                systems
                    .entry(&format.system)
                    .or_default()
                    .push(&format.text);
            }
        }
        let (kernel_stack, user_stack) = self.own_formats(texts);
        systems.entry("ftrace").or_default().push(&kernel_stack);
        systems.entry("stackmap").or_default().push(&user_stack);
        let of_ftrace = systems.remove("ftrace").unwrap_or_default();
        table.word(of_ftrace.len() as u32);
        of_ftrace.iter().for_each(|text| table.sized(text));
        table.word(systems.len() as u32);
        for (system, events) in systems {
            table.bytes.extend(system.as_bytes());
            table.bytes.push(0);
            table.word(events.len() as u32);
            events.iter().for_each(|text| table.sized(text));
        }
        for text in [&texts.kallsyms, &texts.printk_formats] {
            table.word(text.len() as u32);
            table.bytes.extend(text);
        }
        let mut comms = String::new();
        for (pid, comm) in tasks.comms() {
            // Writing into a string does not fail.
            let _ = writeln!(comms, "{pid} {}", safe(comm));
        }
        table.sized(comms.as_bytes());
        table.word(self.nr_cpus());
        table.bytes.extend(b"options  \0");
        self.options(&mut table);
        table.bytes.extend(b"flyrecord\0");
        table.bytes
    }

    fn options(&self, table: &mut Table) {
        let mut option = |kind: u16, text: &str| {
            table.half(kind);
            table.word(text.len() as u32 + 1);
            table.bytes.extend(text.as_bytes());
            table.bytes.push(0);
        };
        if let Some(manifest) = &self.loaded.manifest {
            for stat in &manifest.cpus {
                // Entries are those that were left in the buffer.
                let text = format!(
                    "CPU: {}\nentries: 0\noverrun: {}\ndropped events: {}\n",
                    stat.cpu, stat.overrun, stat.dropped
                );
                option(CPUSTAT, &text);
            }
            option(TRACECLOCK, &format!(" [{}] ", safe(&manifest.clock)));
            let uname = format!(
                "Linux {} {}",
                safe(&manifest.release),
                safe(&manifest.machine)
            );
            option(UNAME, &uname);
        }
        table.half(0);
    }

    /// The formats of stacks.
    fn own_formats(&self, texts: &Described) -> (Vec<u8>, Vec<u8>) {
        // The fields that all events have are the first ones of each format, up to an empty line.
        let common = texts.formats.first().map_or(String::new(), |format| {
            let text = String::from_utf8_lossy(&format.text);
            let lines = text.lines().skip_while(|line| !line.starts_with('\t'));
            let lines = lines.take_while(|line| line.starts_with('\t'));
            lines.map(|line| format!("{line}\n")).collect()
        });
        let format = |name, id, fields: String, print: &str| {
            format!("name: {name}\nID: {id}\nformat:\n{common}\n{fields}\nprint fmt: {print}\n")
                .into_bytes()
        };
        let (at, long) = (COMMON_LEN, LONG);
        let caller = (at + 4).next_multiple_of(long);
        let fields = format!(
            "\tfield:int size;\toffset:{at};\tsize:4;\tsigned:1;\n\
             \tfield:unsigned long caller[8];\toffset:{caller};\tsize:{};\tsigned:0;\n",
            8 * long
        );
        let names: String = (0..8)
            .map(|at| format!(", (void *)REC->caller[{at}]"))
            .collect();
        let print = format!("\"{}\"{names}", "\\t=> %ps\\n".repeat(8));
        let kernel_stack = format("kernel_stack", self.kernel_stack, fields, &print);
        let fields =
            format!("\tfield:__data_loc char[] frames;\toffset:{at};\tsize:4;\tsigned:0;\n");
        let user_stack = format(
            "user_stack",
            self.user_stack,
            fields,
            "\"%s\", __get_str(frames)",
        );
        (kernel_stack, user_stack)
    }
}

fn failed(error: io::Error) -> Error {
    Error::io("keep the pages in a temporary file", error)
}

/// Bytes with numbers.
#[derive(Default)]
struct Table {
    bytes: Vec<u8>,
}

impl Table {
    fn half(&mut self, half: u16) {
        self.bytes.extend(half.to_le_bytes());
    }

    fn word(&mut self, word: u32) {
        self.bytes.extend(word.to_le_bytes());
    }

    fn double(&mut self, double: u64) {
        self.bytes.extend(double.to_le_bytes());
    }

    /// A text after its length.
    fn sized(&mut self, text: &[u8]) {
        self.double(text.len() as u64);
        self.bytes.extend(text);
    }
}
