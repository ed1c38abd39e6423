// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes inputs as large as they may get, to measure with: a map, kallsyms and a trace; a capture of the map and of so
//! many events, and another with as many user stacks and a bind for every second event. Formats of events are those of
//! `tests/data/user.data`.
//!
//! `cargo run --release -p stackmap --example synthesize -- DIR [STACKS [DEPTH [TRACE_MB
//! [EVENTS]]]]`

use stackmap::{
    capture::{member, Capture, Manifest, Writer},
    stack_map_bin::{self, Order, Stack},
};
use std::{
    collections::VecDeque,
    env,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

/// As many symbols as a distribution kernel has.
const SYMBOLS: u64 = 210_000;
/// Of them, those of modules.
const IN_MODULES: u64 = 20_000;
const TEXT: u64 = 0xffff_ffff_8100_0000;
const MODULES: u64 = 0xffff_ffff_c000_0000;
/// The distance between two functions.
const SIZE: u64 = 0x80;
/// Distinct call sites.
const CALL_SITES: u64 = 400_000;
/// Programs and libraries.
const FILES: u64 = 200;
/// How a user stack ends: at the outermost frame.
const COMPLETE: u64 = 1;
/// Events of the same user stack: those of one entry into the kernel.
const EVENTS_PER_ENTRY: u64 = 2;

/// A sequence of numbers that is the same every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// The word of a user stack for a call.
    fn user_call(&mut self) -> u64 {
        let site = self.below(CALL_SITES);
        1 << 63 | (2 + site % FILES) << 40 | (0x1000 + site * 0x40)
    }

    /// The address of a call.
    fn call(&mut self) -> u64 {
        let site = self.below(CALL_SITES);
        let symbol = site * SYMBOLS / CALL_SITES;
        address(symbol) + 0x10 + site % 0x60
    }
}

fn address(symbol: u64) -> u64 {
    match symbol.checked_sub(SYMBOLS - IN_MODULES) {
        Some(symbol) => MODULES + symbol * SIZE,
        None => TEXT + symbol * SIZE,
    }
}

fn create(dir: &Path, name: &str) -> io::Result<BufWriter<File>> {
    Ok(BufWriter::with_capacity(
        1 << 20,
        File::create(dir.join(name))?,
    ))
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let number = |index: usize, default: u64| match arguments.get(index) {
        Some(text) => text.parse().map_err(io::Error::other),
        None => Ok(default),
    };
    let Some(dir) = arguments.get(1).map(Path::new) else {
        return Err(io::Error::other(
            "synthesize DIR [STACKS [DEPTH [TRACE_MB]]]",
        ));
    };
    let (nr_stacks, depth, trace_mb) = (number(2, 200_000)?, number(3, 20)?, number(4, 0)?);
    let nr_events = number(5, 0)?;
    fs::create_dir_all(dir)?;

    let mut out = create(dir, "kallsyms")?;
    for symbol in 0..SYMBOLS {
        let module = if symbol >= SYMBOLS - IN_MODULES {
            "\t[large_module]"
        } else {
            ""
        };
        let name = match symbol {
            0 => "_text".to_owned(),
            symbol => format!("some_function_of_the_kernel_{symbol}"),
        };
        writeln!(out, "{:016x} t {name}{module}", address(symbol))?;
    }
    out.flush()?;

    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let frames: Vec<u64> = (0..nr_stacks * depth).map(|_| numbers.call()).collect();
    let stacks = (0..nr_stacks as usize).map(|index| Stack {
        id: index as u32 + 1,
        ref_count: (index % 1000) as u32,
        ips: &frames[index * depth as usize..(index + 1) * depth as usize],
    });
    let mut out = create(dir, "stack_map_bin")?;
    stack_map_bin::write(&mut out, Order::Little, None, stacks)?;
    out.flush()?;

    let mut frames: Vec<u64> = (0..nr_stacks * depth)
        .map(|_| numbers.user_call())
        .collect();
    let stacks = frames.chunks_mut(depth.max(1) as usize).map(|words| {
        words[words.len() - 1] = COMPLETE;
        &*words
    });
    let stacks = stacks.enumerate().map(|(index, words)| Stack {
        id: index as u32 + 1,
        ref_count: (index % 1000) as u32,
        ips: words,
    });
    let mut out = create(dir, "stack_map_user_bin")?;
    stack_map_bin::write_user(&mut out, Order::Little, None, stacks)?;
    out.flush()?;
    let mut out = create(dir, "stack_map_binaries")?;
    for index in 2..2 + FILES {
        writeln!(
            out,
            "{index} {index:040x} 254:0 {index} 100000000 /usr/lib/x86_64-linux-gnu/libmade-up{index}.so.1"
        )?;
    }
    out.flush()?;

    write_trace(dir, &mut numbers, nr_stacks, trace_mb << 20)?;
    write_pages(dir, "pages", &mut numbers, nr_stacks, false, nr_events)?;
    write_pages(dir, "pages-user", &mut numbers, nr_stacks, true, nr_events)?;
    let kernel = [
        (member::STACK_MAP_BIN, "stack_map_bin"),
        (member::KALLSYMS, "kallsyms"),
    ];
    let user = [
        (member::STACK_MAP_USER_BIN, "stack_map_user_bin"),
        (member::BINARIES, "stack_map_binaries"),
    ];
    write_capture(dir, "capture", &[&[(member::PAGES, "pages")], &kernel[..]])?;
    let pages = [(member::PAGES, "pages-user")];
    write_capture(dir, "capture-user", &[&pages, &kernel, &user])
}

/// Members of a capture that say what its records are.
const FORMATS: [&str; 8] = [
    "events/header_page",
    "events/header_event",
    "events/ftrace/stack_id/format",
    "events/ftrace/stack_id_user/format",
    "events/ftrace/user_stack_id/format",
    "events/sched/sched_wakeup/format",
    "printk_formats",
    "tasks.json",
];

/// A capture of these files.
fn write_capture(dir: &Path, name: &str, files: &[&[(&str, &str)]]) -> io::Result<()> {
    let failed = |error: stackmap::Error| io::Error::other(error.to_string());
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/user.data");
    let mut real = Capture::open(&real).map_err(failed)?;
    let mut capture = Writer::create(&dir.join(name)).map_err(failed)?;
    for (name, file) in files.iter().copied().flatten() {
        let mut content = File::open(dir.join(file))?;
        capture.member(name, &mut content).map_err(failed)?;
    }
    for name in FORMATS {
        let mut content = real.member(name).map_err(failed)?;
        capture.member(name, &mut content).map_err(failed)?;
    }
    for (name, content) in [
        (member::STAT, "bits: 20\n"),
        (
            member::MODULES,
            "large_module 16777216 0 - Live 0xffffffffc0000000\n",
        ),
    ] {
        capture
            .member(name, &mut content.as_bytes())
            .map_err(failed)?;
    }
    let manifest = Manifest {
        version: 2,
        clock: "local".to_owned(),
        ..Manifest::default()
    };
    capture.finish(&manifest).map(drop).map_err(failed)
}

/// Writes the text of a trace, of at least this many bytes.
fn write_trace(dir: &Path, numbers: &mut Numbers, nr_stacks: u64, len: u64) -> io::Result<()> {
    let mut out = create(dir, "trace")?;
    writeln!(out, "# tracer: nop\n#")?;
    let (mut written, mut nanos) = (0, 0u64);
    while written < len {
        nanos += 1000;
        let (seconds, micros) = (nanos / 1_000_000_000, nanos / 1000 % 1_000_000);
        let cpu = numbers.below(8);
        let head = format!("    kworker/u16:{cpu}-{}    [{cpu:03}] d..2.", 100 + cpu);
        let event = format!(
            "{head} {seconds:5}.{micros:06}: kmalloc: call_site=some_function_of_the_kernel_1+0x1/0x80 \
             ptr=00000000dead0000 bytes_req=64 bytes_alloc=64 gfp_flags=GFP_KERNEL node=-1\n\
             {head} {seconds:5}.{micros:06}: <stack_id {}>\n",
            numbers.below(nr_stacks) + 1
        );
        out.write_all(event.as_bytes())?;
        written += event.len() as u64;
    }
    out.flush()
}

/// The ID of an event, in the formats.
const STACK_ID: u16 = 1644;
/// See [`STACK_ID`].
const STACK_ID_USER: u16 = 1643;
/// See [`STACK_ID`].
const USER_STACK_ID: u16 = 1642;
/// See [`STACK_ID`].
const SCHED_WAKEUP: u16 = 312;

/// A page of the ring buffer of a CPU.
struct Page {
    cpu: u64,
    /// The time of its first record.
    time: u64,
    /// The time of its last record.
    last: u64,
    data: Vec<u8>,
    is_full: bool,
}

impl Page {
    /// How many bytes of records there are in a page.
    const SPACE: usize = 4080;

    fn push(&mut self, time: u64, data: &[u8]) {
        let words = data.len() as u32 / 4;
        let delta = (time - self.last) as u32;
        self.last = time;
        self.data.extend((delta << 5 | words).to_le_bytes());
        self.data.extend(data);
    }
}

/// The pages of all CPUs, in the order of the time of their first record.
struct Pages<W> {
    out: W,
    open: VecDeque<Page>,
}

impl<W: Write> Pages<W> {
    /// Adds a record: its event, and what is after the fields that all have.
    fn push(&mut self, cpu: u64, time: u64, id: u16, rest: &[u8]) -> io::Result<()> {
        let mut data = Vec::from(id.to_le_bytes());
        data.extend([0, 2]);
        data.extend((100 + cpu as u32).to_le_bytes());
        data.extend(rest);
        let is_of = |page: &&mut Page| page.cpu == cpu && !page.is_full;
        if let Some(page) = self.open.iter_mut().find(is_of) {
            if page.data.len() + 4 + data.len() <= Page::SPACE {
                page.push(time, &data);
                return Ok(());
            }
            page.is_full = true;
        }
        let mut page = Page {
            cpu,
            time,
            last: time,
            data: Vec::with_capacity(Page::SPACE),
            is_full: false,
        };
        page.push(time, &data);
        self.open.push_back(page);
        while self.open.front().is_some_and(|page| page.is_full) {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the first page.
    fn flush(&mut self) -> io::Result<()> {
        let Some(page) = self.open.pop_front() else {
            return Ok(());
        };
        let len = page.data.len();
        self.out.write_all(&(page.cpu as u32).to_le_bytes())?;
        self.out.write_all(&(16 + len as u32).to_le_bytes())?;
        self.out.write_all(&page.time.to_le_bytes())?;
        self.out.write_all(&(len as u64).to_le_bytes())?;
        self.out.write_all(&page.data)
    }
}

/// Writes the pages of a trace of this many events.
fn write_pages(
    dir: &Path,
    name: &str,
    numbers: &mut Numbers,
    nr_stacks: u64,
    user: bool,
    nr_events: u64,
) -> io::Result<()> {
    let mut pages = Pages {
        out: create(dir, name)?,
        open: VecDeque::new(),
    };
    let mut event = Vec::from(*b"some_task\0\0\0\0\0\0\0");
    event.extend([7, 0, 0, 0, 120, 0, 0, 0, 1, 0, 0, 0]);
    let (mut cpu, mut user_stack) = (0, 0);
    for nr in 1..=nr_events {
        let time = nr * 1000;
        // What a program does again leads to the same stacks of the kernel.
        if nr % EVENTS_PER_ENTRY == 1 {
            (cpu, user_stack) = (numbers.below(8), numbers.below(nr_stacks));
        }
        let stack = match user {
            true => (user_stack * 2 + numbers.below(2)) % nr_stacks,
            false => numbers.below(nr_stacks),
        };
        let id = |stack: u64| (stack as u32 + 1).to_le_bytes();
        let cookie = (nr.div_ceil(EVENTS_PER_ENTRY) << 32).to_le_bytes();
        let both = |stack| [&id(stack)[..], &cookie].concat();
        pages.push(cpu, time, SCHED_WAKEUP, &event)?;
        match user {
            true => pages.push(cpu, time, STACK_ID_USER, &both(stack))?,
            false => pages.push(cpu, time, STACK_ID, &id(stack))?,
        }
        if user && nr.is_multiple_of(EVENTS_PER_ENTRY) {
            pages.push(cpu, time, USER_STACK_ID, &both(user_stack))?;
        }
    }
    while !pages.open.is_empty() {
        pages.flush()?;
    }
    pages.out.flush()
}
