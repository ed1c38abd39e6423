// SPDX-License-Identifier: MIT OR Apache-2.0

//! `/proc/kallsyms`: every name of the kernel and its modules.
//!
//! Looked up as the kernel does it: the last symbol at or before the address, of several at one
//! address the first of the file; it ends where the next address begins. Where the next symbol
//! belongs to something else, how far the last function of a module reaches is not in the file;
//! then the end of the page bounds it and no size is given: in the next page may be what is no part of
//! the module's text, such as functions of its initialisation that were freed. No name is better than
//! that of another function.
//!
//! Unlike the kernel, labels of assembly (`.L...`) are no symbols; and the prefix that a compiler
//! puts before a function (`__pfx_...`) ends the function before it and is named by its own.

use super::{
    frames::{is_entry, is_of_tracing, parts},
    lookup_address,
    modules::Modules,
    texts::{number_of, ByNumber},
    Symbol,
};
use crate::error::{Error, Result};
use indexmap::IndexSet;
use std::collections::HashMap;

/// The largest size of a last symbol that is not in `/proc/modules`, such as a BPF program.
const REACH_UNKNOWN: u64 = 64 << 10;
/// No kernel has smaller pages, in bytes.
const PAGE: u64 = 4096;
/// Longer than any kernel's table, in bytes.
pub const MAX_LEN: u64 = 256 << 20;
/// What may be spent on names in a more readable form, in bytes.
const MAX_DEMANGLED: usize = 64 << 20;

/// How many addresses are searched after the one that `Kallsyms::firsts` leads to.
const BLOCK: usize = 64;
/// The name of a symbol whose name is not known.
pub(crate) const UNKNOWN: &str = "?";
/// Not in a module.
const CORE: u16 = 0;
/// How labels of assembly begin.
const LABEL: &str = ".L";
/// How the names of prefixes of functions begin.
pub(crate) const PREFIX: &str = "__pfx_";

#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    name_len: u16,
    module: u16,
}

/// All symbols, sorted by address.
pub struct Kallsyms {
    /// The names lie in here.
    text: String,
    /// Rust's names as people read them, by where the mangled ones lie.
    demangled: HashMap<u32, String>,
    addresses: Vec<u64>,
    /// The first of every [`BLOCK`] addresses: few enough to stay in a cache.
    firsts: Vec<u64>,
    entries: Vec<Entry>,
    /// What entries call their module; [`CORE`] is the first.
    modules: Vec<String>,
    /// For each of `modules`, where its memory ends.
    ends: Vec<Option<u64>>,
    /// Where entries of interrupts and exceptions begin and end, in order.
    entry_points: Vec<(u64, u64)>,
    /// The same for functions of which [`is_of_tracing`] is true.
    tracing: Vec<(u64, u64)>,
    text_base: Option<u64>,
    stext: Option<u64>,
}

impl Kallsyms {
    /// Reads the text of `/proc/kallsyms`. `modules` bound their last functions; `source` names
    /// the text in errors.
    pub fn parse(text: Vec<u8>, modules: &Modules, source: &str) -> Result<Self> {
        let text = utf8(text);
        if text.len() as u64 > MAX_LEN {
            return Err(Error::input_at(
                source,
                MAX_LEN,
                "more symbols than any kernel has",
            ));
        }
        let mut table = Table::default();
        let mut start = 0;
        let ends = memchr::memchr_iter(b'\n', text.as_bytes()).map(|end| end + 1);
        for end in ends.chain([text.len()]) {
            let line = &text[start..end];
            if !table.line(line, start) {
                return Err(Error::input_at(
                    source,
                    start as u64,
                    "this is not a line of kallsyms: an address, a type and a name",
                ));
            }
            start = end;
        }
        if table.symbols.is_empty() && table.nr_hidden > 0 {
            return Err(Error::Refused(format!(
                "{source}: all addresses are 0, the kernel hides them\n  hint: read it as root, \
                 with sysctl kernel.kptr_restrict below 2"
            )));
        }
        Ok(table.finish(text, modules))
    }

    /// The symbol that covers a frame. `exact`: it is no return address.
    pub fn symbol(&self, ip: u64, exact: bool) -> Option<Symbol<'_>> {
        self.symbol_as(ip, exact, Self::name)
    }

    /// The same, with its name as the file has it.
    pub fn raw_symbol(&self, ip: u64, exact: bool) -> Option<Symbol<'_>> {
        self.symbol_as(ip, exact, Self::raw_name)
    }

    fn symbol_as<'a>(
        &'a self,
        ip: u64,
        exact: bool,
        name: impl Fn(&'a Self, Entry) -> &'a str,
    ) -> Option<Symbol<'a>> {
        let found = self.find(lookup_address(ip, exact));
        let (mut start, mut entry, mut end) =
            found.filter(|(_, entry, _)| self.raw_name(*entry) != UNKNOWN)?;
        if let Some(function) = self.raw_name(entry).strip_prefix(PREFIX) {
            // What is executed there is part of the function that follows.
            let prefix = entry;
            (start, entry, end) = self.find(end?)?;
            if entry.module != prefix.module || self.raw_name(entry) != function {
                return None;
            }
        }
        Some(Symbol {
            name: name(self, entry),
            module: self.module(entry),
            offset: ip.saturating_sub(start),
            size: end.map(|end| end - start),
        })
    }

    /// Whether an address is in the entry of an interrupt or an exception.
    pub fn is_entry(&self, address: u64) -> bool {
        is_within(&self.entry_points, address)
    }

    /// Returns whether `address` may be in a function of this module, or in one that unwinds user stacks.
    pub fn is_of_tracing(&self, address: u64) -> bool {
        is_within(&self.tracing, address)
    }

    /// Where the kernel's code begins (`_text`): the link address plus what KASLR added.
    pub fn text_base(&self) -> Option<u64> {
        self.text_base.or(self.stext)
    }

    /// Names that every kernel has, and where they are in this one.
    pub fn landmarks(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let landmarks = [("_stext", self.stext), ("_text", self.text_base)];
        landmarks
            .into_iter()
            .filter_map(|(name, address)| Some((name, address?)))
    }

    /// The text that was read.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn name(&self, entry: Entry) -> &str {
        let name = self.raw_name(entry);
        if is_mangled(name) {
            if let Some(demangled) = self.demangled.get(&entry.name) {
                return demangled;
            }
        }
        name
    }

    fn raw_name(&self, entry: Entry) -> &str {
        let start = entry.name as usize;
        &self.text[start..start + usize::from(entry.name_len)]
    }

    fn module(&self, entry: Entry) -> Option<&str> {
        (entry.module != CORE).then(|| &self.modules[usize::from(entry.module)][..])
    }

    /// How many symbols begin at or before `address`.
    fn after(&self, address: u64) -> usize {
        let is_before = |start: &u64| *start <= address;
        let block = self.firsts.partition_point(is_before);
        let from = block.saturating_sub(1) * BLOCK;
        let to = (block * BLOCK).min(self.addresses.len());
        from + self.addresses[from..to].partition_point(is_before)
    }

    /// The symbol at or before `address`: its beginning, and its end if that is known.
    fn find(&self, address: u64) -> Option<(u64, Entry, Option<u64>)> {
        let after = self.after(address);
        let mut index = after.checked_sub(1)?;
        let start = self.addresses[index];
        while index > 0 && self.addresses[index - 1] == start {
            index -= 1;
        }
        let entry = self.entries[index];
        let next = self.addresses.get(after).copied();
        if let Some(next) = next {
            if self.entries[after].module == entry.module {
                return Some((start, entry, Some(next)));
            }
        }
        if entry.module == CORE {
            return (address == start).then_some((start, entry, None));
        }
        let end = match self.ends[usize::from(entry.module)] {
            Some(end) if end > start => end.min((start | (PAGE - 1)).saturating_add(1)),
            _ => start.saturating_add(REACH_UNKNOWN),
        };
        (address < end).then_some((start, entry, None))
    }

    /// Returns the addresses of frames that the kernel has named: `name+0xoffset/0xsize [module]`.
    pub fn addresses<'a>(&self, frames: impl Iterator<Item = &'a str>) -> HashMap<&'a str, u64> {
        let mut named: HashMap<&str, Vec<_>> = HashMap::new();
        for frame in frames {
            let (name, module) = parts(frame);
            let numbers = || {
                let rest = frame.split_once("+0x")?.1.split(' ').next()?;
                let (offset, size) = rest.split_once("/0x")?;
                let number = |digits| u64::from_str_radix(digits, 16).ok();
                Some((number(offset)?, number(size)?))
            };
            if let Some(numbers) = numbers() {
                named
                    .entry(name)
                    .or_default()
                    .push((frame, module, numbers));
            }
        }
        let mut found = HashMap::new();
        for (entry, start) in self.entries.iter().zip(&self.addresses) {
            for (frame, module, (offset, size)) in
                named.get(self.raw_name(*entry)).into_iter().flatten()
            {
                // Of functions with one name, the one of this size.
                let end = self.addresses.get(self.after(*start));
                let is_it = end.is_some_and(|end| end - start == *size);
                if *module == self.module(*entry) && (is_it || !found.contains_key(frame)) {
                    found.insert(*frame, start.saturating_add(*offset));
                }
            }
        }
        found
    }

    /// The lines that are needed to name the frames `ips` as the whole file does, and those that
    /// tell where the kernel lies. Which of the frames are exact does not matter.
    pub fn slim(&self, ips: impl Iterator<Item = (u64, bool)>) -> String {
        let mut needed: Vec<usize> = Vec::new();
        // The same few are on most stacks.
        let mut seen: ByNumber<u64, ()> = ByNumber::default();
        for ip in ips.map(|(ip, _)| ip) {
            if seen.insert(ip, ()).is_some() {
                continue;
            }
            for mut address in [ip, lookup_address(ip, false)] {
                loop {
                    let after = self.after(address);
                    needed.extend((after < self.addresses.len()).then_some(after));
                    let Some(index) = after.checked_sub(1) else {
                        break;
                    };
                    let start = self.addresses[index];
                    let first = self.addresses.partition_point(|other| *other < start);
                    needed.push(first);
                    // Of the others, one may say that it is an entry.
                    let others = first + 1..after;
                    needed.extend(
                        others.filter(|index| is_entry(self.raw_name(self.entries[*index]))),
                    );
                    // A prefix is named by what follows it.
                    let is_prefix = self.raw_name(self.entries[first]).starts_with(PREFIX);
                    match self.addresses.get(after) {
                        Some(next) if is_prefix => address = *next,
                        _ => break,
                    }
                }
            }
        }
        for (index, entry) in self.entries.iter().enumerate() {
            if ["_text", "_stext"].contains(&self.raw_name(*entry)) {
                needed.push(index);
            }
        }
        needed.sort_unstable();
        needed.dedup();
        let line = |index: usize| {
            let entry = self.entries[index];
            let module = match self.module(entry) {
                Some(module) => format!("\t[{module}]"),
                None => String::new(),
            };
            format!(
                "{:016x} t {}{module}\n",
                self.addresses[index],
                self.raw_name(entry)
            )
        };
        needed.into_iter().map(line).collect()
    }
}

/// What [`Kallsyms::parse`] builds.
#[derive(Default)]
struct Table {
    symbols: Vec<(u64, Entry)>,
    demangled: HashMap<u32, String>,
    demangled_len: usize,
    modules: IndexSet<String>,
    nr_hidden: usize,
    text_base: Option<u64>,
    stext: Option<u64>,
}

impl Table {
    /// Takes the line that begins at `start` of the text. False: it is not of the right form.
    fn line(&mut self, line: &str, start: usize) -> bool {
        let Some((address, rest)) = next_word(line.trim_ascii_end()) else {
            return true;
        };
        let name = next_word(rest).and_then(|(_, rest)| next_word(rest));
        let (Ok(address), Some((name, rest))) = (u64::from_str_radix(address, 16), name) else {
            return false;
        };
        if name.starts_with(LABEL) {
            return true;
        }
        // Absolute symbols such as offsets of per-CPU variables are no addresses of code.
        if address < 0x1000 {
            self.nr_hidden += 1;
            return true;
        }
        match name {
            "_text" => self.text_base = Some(address),
            "_stext" => self.stext = Some(address),
            _ => {}
        }
        let module = next_word(rest);
        let module = module.and_then(|(word, _)| word.strip_prefix('[')?.strip_suffix(']'));
        let Some(module) = self.module(module) else {
            return false;
        };
        let Ok(name_len) = u16::try_from(name.len()) else {
            return false;
        };
        let at = (start + (name.as_ptr() as usize - line.as_ptr() as usize)) as u32;
        self.demangle(name, at);
        self.symbols.push((
            address,
            Entry {
                name: at,
                name_len,
                module,
            },
        ));
        true
    }

    fn module(&mut self, name: Option<&str>) -> Option<u16> {
        let Some(name) = name else {
            return Some(CORE);
        };
        u16::try_from(number_of(&mut self.modules, name) + 1).ok()
    }

    fn demangle(&mut self, name: &str, at: u32) {
        if !is_mangled(name) || self.demangled_len > MAX_DEMANGLED {
            return;
        }
        if let Ok(demangled) = rustc_demangle::try_demangle(name) {
            // The alternate form leaves hashes out.
            let demangled = format!("{demangled:#}");
            self.demangled_len += demangled.len();
            self.demangled.insert(at, demangled);
        }
    }

    /// Returns the ranges of addresses, in order, of the symbols of which `is_one` is true, given their name and
    /// module. A symbol ends where the next one begins; the last one has `last_len` bytes.
    fn ranges(
        &self,
        text: &str,
        last_len: u64,
        is_one: impl Fn(&str, Option<&str>) -> bool,
    ) -> Vec<(u64, u64)> {
        let is_one = |(_, entry): &(u64, Entry)| {
            let name = entry.name as usize;
            let module = usize::from(entry.module).checked_sub(1);
            let module = module.map(|index| self.modules[index].as_str());
            is_one(&text[name..name + usize::from(entry.name_len)], module)
        };
        let mut aliases = self
            .symbols
            .chunk_by(|one, other| one.0 == other.0)
            .peekable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        while let Some(symbols) = aliases.next() {
            if symbols.iter().any(is_one) {
                let start = symbols[0].0;
                let next = aliases.peek();
                let end = next.map_or(start.saturating_add(last_len), |next| next[0].0);
                match ranges.last_mut().filter(|last| last.1 == start) {
                    Some(last) => last.1 = end,
                    None => ranges.push((start, end)),
                }
            }
        }
        ranges
    }

    fn finish(mut self, text: String, modules: &Modules) -> Kallsyms {
        // Stable, so that of several names at one address the first stays the first.
        self.symbols.sort_by_key(|(address, _)| *address);
        let ends = self.modules.iter().map(|name| {
            let module = modules.get(name).filter(|module| module.base != 0)?;
            Some(module.base.saturating_add(module.size))
        });
        let addresses: Vec<_> = self.symbols.iter().map(|(address, _)| *address).collect();
        Kallsyms {
            entry_points: self.ranges(&text, 1, |name, module| module.is_none() && is_entry(name)),
            tracing: self.ranges(&text, REACH_UNKNOWN, is_of_tracing),
            text,
            demangled: self.demangled,
            firsts: addresses.iter().copied().step_by(BLOCK).collect(),
            addresses,
            entries: self.symbols.iter().map(|(_, entry)| *entry).collect(),
            ends: [None].into_iter().chain(ends).collect(),
            modules: [String::new()].into_iter().chain(self.modules).collect(),
            text_base: self.text_base,
            stext: self.stext,
        }
    }
}

/// Returns a text in which replacement characters are in place of what is no UTF-8.
pub fn utf8(text: Vec<u8>) -> String {
    String::from_utf8(text)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns whether one of sorted ranges has an address.
fn is_within(ranges: &[(u64, u64)], address: u64) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= address);
    let last = after.checked_sub(1).map(|index| ranges[index]);
    last.is_some_and(|(_, end)| address < end)
}

/// The first word of a line, and what follows it.
fn next_word(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_ascii_start();
    let end = memchr::memchr2(b' ', b'\t', line.as_bytes()).unwrap_or(line.len());
    (end > 0).then(|| line.split_at(end))
}

/// Whether a name looks like one that Rust's compiler made.
fn is_mangled(name: &str) -> bool {
    name.starts_with("_R") || name.starts_with("_ZN")
}

#[cfg(test)]
mod tests;
