// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of all kernels, in addresses that none of them has.
//!
//! Each function gets a place of its own, as long as it is, by its module, its name and its size: the
//! same one whatever KASLR and the order of modules made of it. So names, offsets and sizes stay what
//! they were, and the same frame of two kernels becomes one.

use crate::symbols::{
    kallsyms::{Function, PREFIX},
    lookup_address,
    texts::ByNumber,
    Symbols, TRAMPOLINE_MARKER,
};
use std::{collections::HashMap, fmt::Write};

/// Where they begin: in the hole between user space and the kernel, with 5 levels of page tables, too.
const BEGIN: u64 = 0xff00_0000_0000_0000;
/// Where the hole ends.
const LAST: u64 = 0xff0f_ffff_ffff_0000;
/// No function has a longer prefix, in bytes.
const PREFIX_LEN: u64 = 64;
/// Between functions; and behind one whose end is not known, more than it is looked for.
const GAP: u64 = 16;
const UNKNOWN_LEN: u64 = 128 << 10;
/// No function is longer. What seems to be is the last one before a hole.
const MAX_LEN: u64 = 1 << 30;
/// What bounds a function: it has no name that could be one, and is in no module that could be.
const END: &str = "[end]";

/// What tells one function from another.
#[derive(Debug, Eq, Hash, PartialEq)]
struct Key {
    module: Option<Box<str>>,
    name: Box<str>,
    entry: Option<Box<str>>,
    size: Option<u64>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Functions {
    starts: HashMap<Key, u64>,
    next: u64,
    /// How many frames have no names as there was no room for their functions.
    pub(super) nr_left_out: u64,
}

impl Default for Functions {
    fn default() -> Self {
        Self {
            starts: HashMap::new(),
            next: BEGIN,
            nr_left_out: 0,
        }
    }
}

/// The addresses of one capture, and what they have become.
pub(super) struct Addresses<'a> {
    symbols: &'a Symbols,
    /// Return addresses, and exact ones.
    known: [ByNumber<u64, u64>; 2],
}

impl<'a> Addresses<'a> {
    /// Those that `symbols` name.
    pub(super) fn new(symbols: &'a Symbols) -> Self {
        Self {
            symbols,
            known: Default::default(),
        }
    }

    /// The frames of a stack, in `functions`.
    pub(super) fn stack(&mut self, functions: &mut Functions, ips: &mut [u64]) {
        let mut exact = true;
        for ip in ips {
            let kallsyms = self.symbols.kallsyms.as_ref();
            let address = lookup_address(*ip, exact);
            *ip = self.frame(functions, *ip, exact);
            exact = kallsyms.is_some_and(|kallsyms| kallsyms.is_entry(address));
        }
    }

    /// A frame of one.
    pub(super) fn frame(&mut self, functions: &mut Functions, ip: u64, exact: bool) -> u64 {
        let known = &mut self.known[usize::from(exact)];
        if let Some(address) = known.get(&ip) {
            return *address;
        }
        let address = functions.address(self.symbols, ip, exact);
        known.insert(ip, address);
        address
    }
}

impl Functions {
    /// The address of a frame that `symbols` name. One that has no name keeps its own.
    fn address(&mut self, symbols: &Symbols, ip: u64, exact: bool) -> u64 {
        let kallsyms = symbols.kallsyms.as_ref();
        let function = kallsyms.and_then(|kallsyms| kallsyms.function(ip, exact));
        let Some(function) = function.filter(|_| ip != TRAMPOLINE_MARKER) else {
            return ip;
        };
        let Some(start) = self.start(&function) else {
            return ip;
        };
        match ip.checked_sub(function.start) {
            Some(offset) => start + offset,
            // In the prefix of the function.
            None => start.saturating_sub((function.start - ip).min(PREFIX_LEN)),
        }
    }

    /// Where a function is; [`None`]: there is no room for it.
    fn start(&mut self, function: &Function<'_>) -> Option<u64> {
        let len = function.size.unwrap_or(UNKNOWN_LEN);
        if len > MAX_LEN {
            return None;
        }
        let key = Key {
            module: function.module.map(Into::into),
            name: function.name.into(),
            entry: function.entry.map(Into::into),
            size: function.size,
        };
        if let Some(start) = self.starts.get(&key) {
            return Some(*start);
        }
        let start = self.next + PREFIX_LEN;
        let next = start + len + GAP;
        if next > LAST {
            self.nr_left_out += 1;
            return None;
        }
        self.next = next;
        self.starts.insert(key, start);
        Some(start)
    }

    /// All of them as lines of `kallsyms`.
    pub(super) fn kallsyms(self) -> String {
        let mut functions: Vec<_> = self.starts.into_iter().collect();
        functions.sort_unstable_by_key(|(_, start)| *start);
        let mut text = String::new();
        for (key, start) in functions {
            let module = match &key.module {
                Some(module) => format!("\t[{module}]"),
                None => String::new(),
            };
            // A frame is in no prefix, but for those that one begins with.
            let prefix = start - PREFIX_LEN;
            let mut line = |address: u64, name: &str, module: &str| {
                // Writing to a text does not fail.
                let _ = writeln!(text, "{address:016x} t {name}{module}");
            };
            line(prefix, &format!("{PREFIX}{}", key.name), &module);
            line(start, &key.name, &module);
            if let Some(entry) = key.entry.filter(|entry| *entry != key.name) {
                line(start, &entry, "");
            }
            match key.size {
                Some(size) => line(start + size, END, &module),
                None => line(start + UNKNOWN_LEN, END, "\t[end]"),
            }
        }
        text
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::symbols::{kallsyms::Kallsyms, modules::Modules};

    pub(in crate::merge) fn symbols(text: &str) -> Symbols {
        let kallsyms = Kallsyms::parse(text.into(), &Modules::default(), "test").unwrap();
        Symbols {
            kallsyms: Some(kallsyms),
            ..Symbols::default()
        }
    }

    #[test]
    fn no_capture_takes_the_room_of_others() {
        // What is named by `long` may be anything.
        let hostile = symbols(
            "0000000000001000 t long\nfff0000000000000 t same\nfff0000040000000 t other\n\
             fff0000080000000 t more\nfff00000c0000001 t end\n",
        );
        let mut functions = Functions::default();
        let mut addresses = Addresses::new(&hostile);
        let mut frame = |functions: &mut Functions, ip| addresses.frame(functions, ip, true);
        for ip in [0x1000, 0x2000, 0xffef_ffff_ffff_ffff, 0xfff0_0000_8000_0005] {
            assert_eq!(frame(&mut functions, ip), ip);
        }
        let start = BEGIN + PREFIX_LEN;
        assert_eq!(frame(&mut functions, 0xfff0_0000_0000_0007), start + 7);
        assert_eq!(functions.nr_left_out, 0);
        functions.next = LAST - MAX_LEN;
        assert_eq!(
            frame(&mut functions, 0xfff0_0000_4000_0007),
            0xfff0_0000_4000_0007
        );
        assert_eq!(functions.nr_left_out, 1);
        assert_eq!(frame(&mut functions, 0xfff0_0000_0000_0009), start + 9);
    }

    #[test]
    fn frames_are_named_as_before() {
        let before = symbols(
            "ffffffff81000000 t _text\nffffffff81000010 t __pfx_foo\nffffffff81000020 t foo\n\
             ffffffff81000100 t odd\nffffffff81000100 t asm_exc_page_fault\n\
             ffffffff81000180 t bar\nffffffff81000200 t baz\nffffffffc0000000 t last\t[mod]\n",
        );
        let mut functions = Functions::default();
        let mut addresses = Addresses::new(&before);
        let frames = [
            (0xffff_ffff_8100_0018, true),
            (0xffff_ffff_8100_0020, true),
            // Behind a call that does not return.
            (0xffff_ffff_8100_0100, false),
            (0xffff_ffff_8100_0108, false),
            (0xffff_ffff_8100_0180, true),
            (0xffff_ffff_8100_01ff, true),
            (0xffff_ffff_c000_ffff, true),
        ];
        let moved = frames.map(|(ip, exact)| addresses.frame(&mut functions, ip, exact));
        // What is in the prefix of a function stays there.
        assert_eq!(moved[1] - moved[0], 8);
        let after = symbols(&functions.kallsyms());
        let [before, after] = [&before, &after].map(|symbols| symbols.kallsyms.as_ref().unwrap());
        for ((ip, exact), moved) in frames.into_iter().zip(moved) {
            let [old, new] = [(before, ip), (after, moved)].map(|(kallsyms, ip)| {
                let lookup = lookup_address(ip, exact);
                let symbol = kallsyms.raw_symbol(ip, exact).unwrap();
                (format!("{symbol:?}"), kallsyms.is_entry(lookup))
            });
            assert_eq!(old, new);
        }
    }
}
