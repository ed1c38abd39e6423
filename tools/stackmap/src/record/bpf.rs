// SPDX-License-Identifier: MIT OR Apache-2.0

//! The BPF programs that are loaded during a recording, and their names.
//!
//! `/proc/kallsyms` has the programs of one moment, without their lengths. A program that is unloaded leaves its memory
//! to the next one. So perf events say which programs, trampolines and dispatchers come and go, and where they are.

use crate::{
    error::{Error, Result},
    kernel,
    output::warn,
    symbols::kallsyms::UNKNOWN,
};
use perf_event::{
    data::{KSymbolType, Record},
    events::Software,
    Builder, Sampler,
};
use std::collections::BTreeMap;

/// How `/proc/kallsyms` marks BPF programs.
const MARK: &str = "\t[bpf]";
/// The size of the buffer of a CPU, in bytes: about 600 programs that come or go there.
const BUFFER_LEN: usize = 64 << 10;

/// Where a symbol begins, and its name.
type Start = (u64, String);

/// A recording of the BPF programs.
pub(super) struct BpfWatch {
    samplers: Vec<Sampler>,
    /// Those that were loaded when it began.
    before: Vec<Start>,
}

/// The symbols of BPF programs that were loaded at some time of a recording. Of a symbol that was never unloaded, the
/// length is not known, and no other one is in its memory.
#[derive(Default)]
pub(super) struct BpfSymbols(BTreeMap<Start, Option<u64>>);

impl BpfWatch {
    /// Starts it on all CPUs.
    pub(super) fn start() -> Result<Self> {
        let sampler = |cpu: u32| {
            let mut builder = Builder::new(Software::DUMMY);
            builder.any_pid().one_cpu(cpu as usize).ksymbol(true);
            builder.enabled(true).build()?.sampled(BUFFER_LEN)
        };
        let samplers = kernel::online_cpus().into_iter().map(sampler);
        let samplers = samplers.collect::<Result<_, _>>();
        Ok(Self {
            samplers: samplers.map_err(|error| Error::io("watch BPF programs", error))?,
            before: symbols_of(&kernel::kallsyms_text()?),
        })
    }

    /// Ends it. Returns the symbols, or an error if events were lost.
    pub(super) fn end(self) -> Result<BpfSymbols> {
        let lost = |what: &str| Error::Refused(format!("perf events {what}"));
        let mut symbols = BpfSymbols(self.before.into_iter().map(|start| (start, None)).collect());
        for mut sampler in self.samplers {
            while let Some(record) = sampler.next_record() {
                let record = record.parse_record();
                match record.map_err(|_| lost("cannot be read"))? {
                    Record::KSymbol(symbol) if symbol.ksym_type == KSymbolType::BPF => {
                        let name = String::from_utf8_lossy(&symbol.name);
                        let start = (symbol.addr, name.trim_end_matches('\0').to_owned());
                        symbols.0.insert(start, Some(symbol.len.into()));
                    }
                    Record::Lost(_) => return Err(lost("were lost")),
                    _ => {}
                }
            }
        }
        Ok(symbols)
    }
}

/// Returns what `result` has; prints why programs have no names if it is an error.
pub(super) fn reported<T>(result: Result<T>) -> Option<T> {
    let warn_of = |error: &Error| warn(format_args!("BPF programs have no names: {error}"));
    result.inspect_err(warn_of).ok()
}

/// Returns the text of a kallsyms that names the BPF programs of a recording in place of those at its end. Where there
/// may have been two of them, or it is not known which, there is no name.
pub(super) fn named(kallsyms: &str, symbols: Option<&BpfSymbols>) -> String {
    let last = symbols_of(kallsyms);
    let symbols = symbols.filter(|symbols| {
        let has_all = last.iter().all(|start| symbols.0.contains_key(start));
        if !has_all {
            warn("BPF programs have no names: a CPU that was offline has loaded one");
        }
        has_all
    });
    let mut text: String = kallsyms
        .split_inclusive('\n')
        .filter(|line| !line.contains(MARK))
        .collect();
    let mut write =
        |start: u64, name: &str| text.push_str(&format!("{start:016x} t {name}{MARK}\n"));
    let Some(BpfSymbols(symbols)) = symbols else {
        last.iter().for_each(|(start, _)| write(*start, UNKNOWN));
        return text;
    };
    let mut end_before = 0;
    let mut symbols = symbols.iter().peekable();
    while let Some(((start, name), len)) = symbols.next() {
        let end = start.saturating_add(len.unwrap_or(0)).max(end_before);
        let is_shared = *start < end_before
            || symbols
                .peek()
                .is_some_and(|((next, _), _)| *next == *start || *next < end);
        write(*start, if is_shared { UNKNOWN } else { name });
        end_before = end;
    }
    text
}

/// Returns the BPF programs of a kallsyms.
fn symbols_of(kallsyms: &str) -> Vec<Start> {
    let lines = kallsyms.lines().filter_map(|line| line.strip_suffix(MARK));
    let start = |line: &str| {
        let mut words = line.split(' ');
        let start = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((start, words.nth(1)?.to_owned()))
    };
    lines.filter_map(start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(of: &[(u64, &str, Option<u64>)]) -> BpfSymbols {
        let symbols = of
            .iter()
            .map(|(start, name, len)| ((*start, (*name).to_owned()), *len));
        BpfSymbols(symbols.collect())
    }

    #[test]
    fn memory_that_two_programs_had_has_no_name() {
        let kallsyms = "ffff0000 T _text\nffff1000 t early\t[bpf]\nffff3000 t late\t[bpf]\nffff0100 t f\t[module]\n";
        let kernel = "ffff0000 T _text\nffff0100 t f\t[module]\n";
        let line = |(start, name): (u64, &str)| format!("{start:016x} t {name}\t[bpf]\n");
        let (early, late) = ((0xffff1000, "early"), (0xffff3000, "late"));
        for (others, want) in [
            (&[][..], &[early, late][..]),
            // One that has gone.
            (
                &[(0xffff2000, "gone", Some(0x100))],
                &[early, (0xffff2000, "gone"), late],
            ),
            // Another one was there, and in its last bytes; the one after it is not concerned.
            (
                &[(0xffff3000, "gone", Some(0x10))],
                &[early, (0xffff3000, UNKNOWN), (0xffff3000, UNKNOWN)],
            ),
            (
                &[
                    (0xffff2f00, "gone", Some(0x101)),
                    (0xffff3100, "last", Some(8)),
                ],
                &[
                    early,
                    (0xffff2f00, UNKNOWN),
                    (0xffff3000, UNKNOWN),
                    (0xffff3100, "last"),
                ],
            ),
        ] {
            let mut known = symbols(&[(early.0, early.1, None), (late.0, late.1, Some(0x100))]);
            known.0.extend(symbols(others).0);
            let want = want.iter().copied().map(line);
            let want = [kernel.to_owned()]
                .into_iter()
                .chain(want)
                .collect::<String>();
            assert_eq!(named(kallsyms, Some(&known)), want, "{others:?}");
        }
    }

    #[test]
    fn programs_that_nobody_saw_have_no_names() {
        let kallsyms = "ffff1000 t one\t[bpf]\nffff2000 t other\t[bpf]\n";
        let want =
            format!("00000000ffff1000 t {UNKNOWN}{MARK}\n00000000ffff2000 t {UNKNOWN}{MARK}\n");
        assert_eq!(named(kallsyms, None), want);
        assert_eq!(
            named(kallsyms, Some(&symbols(&[(0xffff1000, "one", None)]))),
            want
        );
    }
}
