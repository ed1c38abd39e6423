// SPDX-License-Identifier: MIT OR Apache-2.0

//! The BPF programs that are loaded during a recording, and their names.
//!
//! `/proc/kallsyms` has the programs of one moment, without their lengths. A program that is unloaded leaves its memory
//! to the next one. So perf events say which programs, trampolines and dispatchers come and go, and where they are.

use super::modules;
use crate::{
    error::{Error, Result},
    kernel,
    notes::count_of,
    output::warn,
    symbols::kallsyms::UNKNOWN,
    tracefs::Tracefs,
};
use perf_event::{
    data::{KSymbolType, Record},
    events::{Software, Tracepoint},
    Builder, ReadFormat, Sampler,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

/// How `/proc/kallsyms` marks BPF programs.
const MARK: &str = "\t[bpf]";
/// The prefix of the symbols that the kernel adds before BPF programs with `CONFIG_FINEIBT`.
const PREFIX: &str = "__cfi_";
/// The size of the buffer of a CPU, in bytes: about 600 programs that come or go there.
const BUFFER_LEN: usize = 64 << 10;

/// Where a symbol begins, and its name.
type Start = (u64, String);

/// A recording of the BPF programs.
pub(super) struct BpfWatch {
    samplers: Vec<Sampler>,
    /// Whether the samplers count steps of CPU hotplug.
    counts_hotplug: bool,
    /// `/proc/modules` and `/proc/kallsyms` when it began.
    modules: Vec<u8>,
    kallsyms: String,
    symbols: BpfSymbols,
}

/// The symbols of BPF programs that were loaded at some time of a recording, with their lengths. [`None`]: no perf event
/// reported the symbol.
#[derive(Default)]
pub(super) struct BpfSymbols(BTreeMap<Start, Option<u64>>);

impl BpfWatch {
    /// Starts it on all CPUs.
    pub(super) fn start(top: &Tracefs) -> Result<Self> {
        let samplers = |hotplug: Option<u64>| {
            let sampler = |cpu: u32| {
                let mut builder = match hotplug {
                    Some(id) => Builder::new(Tracepoint::with_id(id)),
                    None => Builder::new(Software::DUMMY),
                };
                builder.any_pid().one_cpu(cpu as usize);
                builder.exclude_kernel(false).ksymbol(true);
                sampler(&mut builder)
            };
            let samplers = kernel::online_cpus().into_iter().map(sampler);
            samplers.collect::<Result<Vec<_>>>()
        };
        let hotplug = top.read("events/cpuhp/cpuhp_enter/id").ok();
        let hotplug = hotplug.and_then(|id| id.trim_end().parse().ok());
        let counting = hotplug.and_then(|id| samplers(Some(id)).ok());
        let counts_hotplug = counting.is_some();
        let samplers = counting.map_or_else(|| samplers(None), Ok)?;
        let modules = kernel::modules_text()?;
        let kallsyms = kernel::kallsyms_text()?;
        let before = symbols_of(&kallsyms).into_iter();
        Ok(Self {
            samplers,
            counts_hotplug,
            modules,
            symbols: BpfSymbols(before.map(|start| (start, None)).collect()),
            kallsyms,
        })
    }

    /// Returns the text of `/proc/kallsyms` if it is still that of the beginning: no code was added or removed, no module,
    /// and no CPU whose perf events are not read. It returns the text once.
    pub(super) fn unchanged_kallsyms(&mut self) -> Option<String> {
        let is_unchanged = self.counts_hotplug
            && self.nr_changes().ok()? == 0
            && kernel::modules_text().ok()? == self.modules;
        is_unchanged.then(|| mem::take(&mut self.kallsyms))
    }

    /// Ends it. Returns the symbols, or an error if events were lost.
    pub(super) fn end(mut self) -> Result<BpfSymbols> {
        self.nr_changes()?;
        Ok(self.symbols)
    }

    /// Adds the symbols that were reported since it was last called. Returns how many records there were, of any code, and
    /// how many steps of CPU hotplug there have been since the beginning.
    fn nr_changes(&mut self) -> Result<u64> {
        let symbols = &mut self.symbols.0;
        let (mut nr_records, mut nr_steps) = (0, 0);
        for sampler in &mut self.samplers {
            nr_steps += records(sampler, |record| {
                let Record::KSymbol(symbol) = record else {
                    return;
                };
                nr_records += 1;
                if symbol.ksym_type == KSymbolType::BPF {
                    let name = String::from_utf8_lossy(&symbol.name);
                    let start = (symbol.addr, name.trim_end_matches('\0').to_owned());
                    // A trampoline that is made again at its address can have another length.
                    let len = symbols.entry(start).or_default();
                    *len = (*len).max(Some(symbol.len.into()));
                }
            })?;
        }
        Ok(nr_records + nr_steps)
    }
}

/// Returns a sampler that counts what it loses.
fn sampler(builder: &mut Builder<'_>) -> Result<Sampler> {
    let builder = builder.enabled(true).read_format(ReadFormat::LOST);
    let counter = builder.build();
    counter
        .and_then(|counter| counter.sampled(BUFFER_LEN))
        .map_err(|error| Error::io("watch BPF programs", error))
}

/// Gives `out` all records of a sampler. Returns its count, or an error if records were lost. The kernel writes no record that
/// says so before there is space for it.
fn records(sampler: &mut Sampler, mut out: impl FnMut(Record<'_>)) -> Result<u64> {
    while let Some(record) = sampler.next_record() {
        let record = record.parse_record();
        out(record.map_err(|_| Error::Refused("perf events cannot be read".to_owned()))?);
    }
    let value = sampler.as_counter_mut().read_full();
    let value = value.map_err(|error| Error::io("watch BPF programs", error))?;
    match value.lost() {
        Some(0) => Ok(value.count()),
        _ => Err(Error::Refused("perf events were lost".to_owned())),
    }
}

/// Returns what `result` has; prints why programs have no names if it is an error.
pub(super) fn reported<T>(result: Result<T>) -> Option<T> {
    let warn_of = |error: &Error| warn(format_args!("BPF programs have no names: {error}"));
    result.inspect_err(warn_of).ok()
}

/// Returns the text of a kallsyms that names the BPF programs of a recording in place of those at its end. Where there
/// may have been two of them, or a module, or it is not known which, there is no name.
pub(super) fn named(kallsyms: String, symbols: Option<&BpfSymbols>) -> String {
    let last: BTreeSet<_> = symbols_of(&kallsyms).into_iter().collect();
    if last.is_empty() && symbols.is_none_or(|symbols| symbols.0.is_empty()) {
        return kallsyms;
    }
    let mut text: String = kallsyms
        .split_inclusive('\n')
        .filter(|line| !line.contains(MARK))
        .collect();
    let functions = functions_of_modules(&kallsyms);
    let mut write =
        |start: u64, name: &str| text.push_str(&format!("{start:016x} t {name}{MARK}\n"));
    let Some(BpfSymbols(symbols)) = symbols else {
        last.iter().for_each(|(start, _)| write(*start, UNKNOWN));
        return text;
    };
    // A program that stayed loaded shares its memory with no other.
    let stays = |(start, len): &(&Start, &Option<u64>)| len.is_none() && last.contains(*start);
    let fixed: BTreeSet<u64> = symbols
        .iter()
        .filter(stays)
        .map(|(start, _)| start.0)
        .collect();
    let mut all: BTreeMap<&Start, Option<u64>> = last.iter().map(|start| (start, None)).collect();
    all.extend(symbols.iter().map(|(start, len)| (start, *len)));
    let mut hidden = BTreeSet::new();
    let mut end_before = 0;
    let mut nr_unseen = 0;
    let mut all = all.into_iter().peekable();
    while let Some((symbol, len)) = all.next() {
        let (start, name) = (symbol.0, &symbol.1[..]);
        let is_fixed = fixed.contains(&start);
        // A CPU that came online has loaded or unloaded it. Its end is not known: at most the next program that stayed.
        let is_unseen = len.is_none() && !is_fixed;
        nr_unseen += u64::from(is_unseen);
        let next_fixed = fixed.range(start.saturating_add(1)..).next();
        let end = match len {
            Some(len) => start.saturating_add(len),
            None if is_fixed => start,
            None => next_fixed.copied().unwrap_or(u64::MAX),
        };
        // A module that is there now may have been loaded into the memory of a program.
        let inside = functions.range(start..len.map_or(start, |_| end));
        let inside: Vec<u64> = inside.map(|(start, _)| *start).collect();
        let next = all.peek().map(|(next, _)| next.0);
        let is_shared = start < end_before
            || next.is_some_and(|next| next == start || next < end)
            || is_in_module(&functions, start)
            || !inside.is_empty();
        hidden.extend(inside);
        write(
            start,
            if is_unseen || is_shared {
                UNKNOWN
            } else {
                name
            },
        );
        end_before = end.max(end_before);
        if len.is_some() && next.is_none_or(|next| next > end_before) {
            write(end_before, UNKNOWN);
        }
    }
    if nr_unseen > 0 {
        let programs = count_of(nr_unseen, "BPF program");
        warn(format_args!("{programs} and what may be in the same memory have no names: a CPU was offline at first"));
    }
    if hidden.is_empty() {
        return text;
    }
    let line = |line: &str| match address(line).is_some_and(|address| hidden.contains(&address)) {
        true => modules::unnamed(line),
        false => line.to_owned(),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Returns the address in a line of a kallsyms.
fn address(line: &str) -> Option<u64> {
    u64::from_str_radix(line.split_once(' ')?.0, 16).ok()
}

/// Returns the functions of modules in a kallsyms by their addresses, each with its module.
fn functions_of_modules(kallsyms: &str) -> BTreeMap<u64, &str> {
    let function = |tab: usize| {
        let line = line_until(kallsyms, tab);
        let module = kallsyms[tab..].lines().next()?;
        let (_, rest) = line.split_once(' ')?;
        let is_code = rest.starts_with(['t', 'T', 'w', 'W']) && module != MARK;
        Some((address(line)?, module)).filter(|_| is_code)
    };
    memchr::memchr_iter(b'\t', kallsyms.as_bytes())
        .filter_map(function)
        .collect()
}

/// Returns whether the functions of modules around an address are of one module. No other functions are between modules.
fn is_in_module(functions: &BTreeMap<u64, &str>, address: u64) -> bool {
    let before = functions.range(..=address).next_back();
    let after = functions.range(address..).next();
    match (before, after) {
        (Some((_, before)), Some((_, after))) => before == after,
        _ => false,
    }
}

/// Returns the BPF programs of a kallsyms.
fn symbols_of(kallsyms: &str) -> Vec<Start> {
    let start = |mark: usize| {
        let mut words = line_until(kallsyms, mark).split(' ');
        let start = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.nth(1).filter(|name| !name.starts_with(PREFIX))?;
        Some((start, name.to_owned()))
    };
    memchr::memmem::find_iter(kallsyms.as_bytes(), MARK)
        .filter_map(start)
        .collect()
}

/// Returns the beginning of a line, up to the byte at `end`.
fn line_until(text: &str, end: usize) -> &str {
    let start = memchr::memrchr(b'\n', &text.as_bytes()[..end]).map_or(0, |newline| newline + 1);
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::{kallsyms::Kallsyms, modules::Modules};

    const KERNEL: &str =
        "ffffffff81000000 T _text\nffffffffb0000000 t f\t[m]\nffffffffb0003000 t g\t[m]\n";
    const BASE: u64 = 0xffff_ffff_c000_0000;

    /// Returns the names at offsets from [`BASE`], if `last` are the programs at the end and `symbols` those that are known.
    fn names(
        last: &[(u64, &str)],
        symbols: &[(u64, &str, Option<u64>)],
        at: &[u64],
    ) -> Vec<String> {
        let line = |(at, name): &(u64, &str)| format!("{:016x} t {name}{MARK}\n", BASE + at);
        let text = KERNEL.to_owned() + &last.iter().map(line).collect::<String>();
        let known = symbols
            .iter()
            .map(|(at, name, len)| ((BASE.wrapping_add(*at), (*name).to_owned()), *len));
        let text = named(text, Some(&BpfSymbols(known.collect())));
        let kallsyms = Kallsyms::parse(text.into(), &Modules::default(), "test").unwrap();
        let name = |at: &u64| {
            let symbol = kallsyms.symbol(BASE.wrapping_add(*at), true);
            symbol.map_or_else(String::new, |symbol| symbol.name.to_string())
        };
        at.iter().map(name).collect()
    }

    #[test]
    fn memory_that_two_programs_had_has_no_name() {
        let last = [(0x1000, "early"), (0x3000, "late")];
        let at = [0x1010, 0x2010, 0x2f10, 0x3010, 0x3110];
        for (gone, want) in [
            (&[][..], ["early", "early", "early", "late", ""]),
            (
                &[(0x2000, "gone", Some(0x100))],
                ["early", "gone", "", "late", ""],
            ),
            // Another one was there, and in its last bytes; the one after it is not concerned.
            (
                &[(0x3000, "gone", Some(0x10))],
                ["early", "early", "early", "", ""],
            ),
            (
                &[(0x2f00, "gone", Some(0x101)), (0x3100, "next", Some(0x20))],
                ["early", "early", "", "", "next"],
            ),
            // A short one was in the memory of a long one.
            (
                &[
                    (0x2000, "long", Some(0x1800)),
                    (0x2f00, "short", Some(0x20)),
                ],
                ["early", "", "", "", ""],
            ),
        ] {
            let known = [(0x1000, "early", None), (0x3000, "late", Some(0x100))];
            assert_eq!(
                names(&last, &[&known, gone].concat(), &at),
                want,
                "{gone:?}"
            );
        }
    }

    #[test]
    fn memory_of_a_module_has_no_name_of_a_program() {
        let gone = 0xffff_ffff_b000_1800_u64.wrapping_sub(BASE);
        assert_eq!(
            names(&[], &[(gone, "gone", Some(0x100))], &[gone + 0x10]),
            [""]
        );
        // It begins before the module; the function after it keeps its name.
        let gone = gone - 0x1900;
        let at = [gone + 0x10, gone + 0x110, gone + 0x3100];
        for (len, function) in [(0x100, "f"), (0x101, "")] {
            let names = names(&[], &[(gone, "gone", Some(len))], &at);
            let program = if len == 0x100 { "gone" } else { "" };
            assert_eq!(names, [program, function, "g"], "{len:#x}");
        }
    }

    #[test]
    fn programs_that_no_cpu_has_reported_have_no_names() {
        // One that is loaded, and one that is gone, with another one in its memory.
        let always = (0x5000, "always", None);
        let known = [
            (0x1000, "gone", None),
            (0x1080, "second", Some(0x100)),
            always,
        ];
        let last = [(0x5000, "always"), (0x6000, "late")];
        let at = [0x1010, 0x1090, 0x5010, 0x6010];
        assert_eq!(names(&last, &known, &at), ["", "", "always", ""]);
        assert_eq!(
            named("ffff1000 t one\t[bpf]\n".to_owned(), None),
            format!("00000000ffff1000 t {UNKNOWN}{MARK}\n")
        );
    }

    #[test]
    fn prefixes_of_programs_are_none() {
        let last = [
            (0xff0, "__cfi_new"),
            (0x1000, "new"),
            (0x2000, "__cfi_old"),
            (0x2010, "old"),
        ];
        let known = [(0x1000, "new", Some(0x100)), (0x2010, "old", None)];
        assert_eq!(names(&last, &known, &[0x1010, 0x2020]), ["new", "old"]);
    }

    #[test]
    fn lost_records_are_noticed() {
        let mut builder = Builder::new(Software::DUMMY);
        let mut sampler = sampler(builder.observe_self().any_cpu().comm(true)).unwrap();
        let mut rename = |times: u32| {
            (0..times).for_each(|number| {
                std::fs::write("/proc/thread-self/comm", format!("n{number}")).unwrap();
            });
            let mut nr_records = 0;
            (
                records(&mut sampler, |_| nr_records += 1).is_ok(),
                nr_records,
            )
        };
        assert_eq!(rename(10), (true, 10));
        let (is_complete, nr_records) = rename(6000);
        assert!(!is_complete && nr_records < 6000, "{nr_records}");
    }
}
