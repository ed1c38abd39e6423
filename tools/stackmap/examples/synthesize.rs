// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes inputs as large as they may get, to measure with: a map, kallsyms and a trace; the
//! stacks of the map as `perf script` prints them; a capture of the map and of so many events.
//!
//! `cargo run --release -p stackmap --example synthesize -- DIR [STACKS [DEPTH [TRACE_MB
//! [EVENTS]]]]`

use stackmap::{
    capture::{member, Manifest, Writer},
    stack_map_bin::{self, Order, Stack},
};
use std::{
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
/// As many places as call something.
const CALL_SITES: u64 = 400_000;

/// A sequence of numbers that is the same every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
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

    let mut out = create(dir, "perf.script")?;
    for stack in frames.chunks(depth.max(1) as usize) {
        writeln!(out, "task 100 1.000000: 1 event:")?;
        for ip in stack {
            writeln!(out, "\t{ip:16x} {} ([kernel.kallsyms])", call_name(*ip))?;
        }
        writeln!(out)?;
    }
    out.flush()?;

    let bytes = trace_mb << 20;
    write_trace(dir, "trace", &mut numbers, nr_stacks, &mut |_, written| {
        written < bytes
    })?;
    write_trace(dir, "events", &mut numbers, nr_stacks, &mut |events, _| {
        events < nr_events
    })?;
    let failed = |error: stackmap::Error| io::Error::other(error.to_string());
    let mut capture = Writer::create(&dir.join("capture")).map_err(failed)?;
    for (name, file) in [
        (member::TRACE, "events"),
        (member::STACK_MAP_BIN, "stack_map_bin"),
        (member::KALLSYMS, "kallsyms"),
    ] {
        let mut content = File::open(dir.join(file))?;
        capture.member(name, &mut content).map_err(failed)?;
    }
    for (name, content) in [
        (member::STAT, "bits: 20\n"),
        (member::STAT_BEFORE, "bits: 20\n"),
        (
            member::MODULES,
            "large_module 16777216 0 - Live 0xffffffffc0000000\n",
        ),
    ] {
        capture
            .member(name, &mut content.as_bytes())
            .map_err(failed)?;
    }
    capture
        .finish(&Manifest::default())
        .map(drop)
        .map_err(failed)
}

/// The name of the function that an address of [`Numbers::call`] is in, and the offset.
fn call_name(ip: u64) -> String {
    let (base, first) = match ip >= MODULES {
        true => (MODULES, SYMBOLS - IN_MODULES),
        false => (TEXT, 0),
    };
    let symbol = (ip - base) / SIZE + first;
    format!(
        "some_function_of_the_kernel_{symbol}+0x{:x}",
        (ip - base) % SIZE
    )
}

/// Writes a trace, as long as there is `more` to come after so many events and bytes.
fn write_trace(
    dir: &Path,
    name: &str,
    numbers: &mut Numbers,
    nr_stacks: u64,
    more: &mut dyn FnMut(u64, u64) -> bool,
) -> io::Result<()> {
    let mut out = create(dir, name)?;
    writeln!(out, "# tracer: nop\n#")?;
    let (mut nr_events, mut written, mut nanos) = (0, 0, 0u64);
    while more(nr_events, written) {
        nr_events += 1;
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
