// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions that an ELF file has at an address.

use super::{files::by_descriptor, symbols::Symbols};
use crate::symbols::{elf::source_line, SourceLine};
use blazesym::{
    helper::ElfResolver,
    symbolize::{
        source::{Elf, Source},
        Input, Sym, Symbolized, Symbolizer,
    },
};
use cpp_demangle::DemangleOptions;
use serde::{Deserialize, Serialize};
use std::{
    fmt::{self, Write},
    fs::File,
    path::PathBuf,
    rc::Rc,
};

/// Names of functions and of source files are no longer, in bytes. A file could make them any length,
/// for each frame.
const MAX_NAME: usize = 4 << 10;
/// More functions than are inlined into each other anywhere.
const MAX_INLINED: usize = 128;

/// A function.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Function {
    /// Its name.
    pub(super) name: Option<String>,
    /// How far the address is after its beginning; for an inlined one: after that of the function
    /// that it is in.
    pub(super) offset: u64,
    /// How long that is.
    pub(super) size: Option<u64>,
    /// Whether it was inlined into the next one.
    pub(super) inlined: bool,
    /// The line of source code.
    pub(super) source: Option<SourceLine>,
}

/// An ELF file.
pub(super) struct Functions {
    symbols: Symbols,
    debug: Option<Debug>,
}

/// The debug information of a file.
struct Debug {
    symbolizer: Symbolizer,
    path: PathBuf,
    /// The path is one of this descriptor.
    _file: File,
}

impl Functions {
    /// Those of `file`, with debug information if wanted and possible. Other files that it names
    /// are looked for in `debug_dirs`.
    pub(super) fn new(file: File, debug: bool, debug_dirs: &[PathBuf]) -> Self {
        Self {
            symbols: Symbols::read(&file),
            debug: debug.then(|| Debug::new(file, debug_dirs)).flatten(),
        }
    }

    /// The function at an address, after those that were inlined into it there, as seen from `behind`
    /// bytes after the address.
    pub(super) fn at(&self, address: u64, behind: u64) -> Option<Vec<Function>> {
        let symbol = self.symbols.at(address);
        let symbol = symbol.map(|symbol| (String::from_utf8_lossy(symbol.name), symbol));
        let debug = self.debug.as_ref().and_then(|debug| debug.at(address));
        // If a function has several parts, debug information has their bounds only, the table of
        // symbols has each of them.
        let debug_name = debug.as_ref().map(|debug| &*debug.name);
        let is_same = |name: &str| debug_name.is_none_or(|found| stem(found) == stem(name));
        let (name, start, size) = match (&symbol, &debug) {
            (Some((name, symbol)), _) if is_same(name) => (&**name, symbol.start, symbol.size),
            (_, Some(debug)) => (&*debug.name, debug.addr, debug.size.map(|size| size as u64)),
            _ => return None,
        };
        let line = |code| {
            let SourceLine { file, line } = source_line(code)?;
            Some(SourceLine {
                file: cut(&file).into(),
                line,
            })
        };
        let outer = Function {
            name: Some(demangled(name)),
            offset: address.checked_sub(start)?.checked_add(behind)?,
            size,
            inlined: false,
            source: debug
                .as_ref()
                .and_then(|debug| debug.code_info.as_deref())
                .and_then(line),
        };
        // blazesym has them outermost first.
        let inlined = debug.iter().flat_map(|debug| debug.inlined.iter().rev());
        let inlined = inlined.take(MAX_INLINED).map(|inlined| Function {
            name: (!inlined.name.is_empty()).then(|| demangled(&inlined.name)),
            inlined: true,
            source: inlined.code_info.as_ref().and_then(line),
            ..outer
        });
        let mut functions: Vec<_> = inlined.collect();
        functions.push(outer);
        Some(functions)
    }
}

impl Debug {
    fn new(file: File, debug_dirs: &[PathBuf]) -> Option<Self> {
        let mut symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
        let path = by_descriptor(&file);
        // Otherwise a damaged file would be read again for every address.
        let elf = ElfResolver::open_with_debug_dirs(&path, debug_dirs).ok()?;
        symbolizer.register_elf_resolver(&path, Rc::new(elf)).ok()?;
        Some(Self {
            symbolizer,
            path,
            _file: file,
        })
    }

    fn at(&self, address: u64) -> Option<Sym<'_>> {
        let source = Source::Elf(Elf {
            debug_syms: true,
            ..Elf::new(&self.path)
        });
        let input = Input::VirtOffset(address);
        match self.symbolizer.symbolize_single(&source, input).ok()? {
            // A symbol without a size ends nowhere.
            Symbolized::Sym(found) => {
                let is_inside = found.size.is_some_and(|size| size != 0) || found.addr == address;
                (is_inside && !found.name.is_empty()).then_some(found)
            }
            Symbolized::Unknown(_) => None,
        }
    }
}

/// A name without what compilers append (`.cold`, `.isra.0`).
fn stem(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// A name as it is in the source code, in Rust and C++.
fn demangled(name: &str) -> String {
    rust(name)
        .or_else(|| cpp(name))
        .unwrap_or_else(|| cut(name))
}

/// A name of any bytes, cut if it is too long.
pub(super) fn cut_bytes(name: &[u8]) -> String {
    // A character more than is kept, so that it is seen to be cut.
    let begin = name.get(..MAX_NAME + 4).unwrap_or(name);
    cut(&String::from_utf8_lossy(begin))
}

/// A name, cut if it is too long.
pub(crate) fn cut(name: &str) -> String {
    match (0..=MAX_NAME).rev().find_map(|len| name.get(..len)) {
        Some(begin) if begin.len() < name.len() => format!("{begin}..."),
        _ => name.to_owned(),
    }
}

fn rust(name: &str) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(name).ok()?;
    let mut short = Short(String::new());
    write!(short, "{symbol:#}").ok()?;
    Some(short.0)
}

fn cpp(name: &str) -> Option<String> {
    let mangled = name.starts_with("_Z").then_some(name)?;
    let symbol = cpp_demangle::Symbol::new(mangled).ok()?;
    let mut short = Short(String::new());
    symbol
        .structured_demangle(&mut short, &DemangleOptions::default())
        .ok()?;
    Some(short.0)
}

/// A name that is not longer than [`MAX_NAME`].
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source_code() {
        let names = [
            ("main", "main"),
            ("_start", "_start"),
            ("_Z3fooiPKc", "foo(int, char const*)"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int> >::push_back(int&&)",
            ),
            ("_Z3foov.cold", "foo() [clone .cold]"),
            ("_RNvNtCs1234_6kernel4task7current", "kernel::task::current"),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_Zodd", "_Zodd"),
        ];
        for (mangled, want) in names {
            assert_eq!(demangled(mangled), want);
        }
    }

    #[test]
    fn a_name_cannot_grow_without_end() {
        // Each argument is a pair of the one before.
        let mangled = |nr_pairs| {
            let pair = |index| format!("S_IS{index}_S{index}_E");
            let pairs: String = ('0'..='9')
                .chain('A'..='Z')
                .take(nr_pairs)
                .map(pair)
                .collect();
            format!("_Z1fSt4pairIiiE{pairs}")
        };
        let short = "f(std::pair<int, int>, std::pair<std::pair<int, int>, std::pair<int, int> >)";
        assert_eq!(demangled(&mangled(1)), short);
        assert_eq!(demangled(&mangled(30)), mangled(30));
        let of_rust = |len: usize| format!("_ZN{len}{}17h0123456789abcdefE", "x".repeat(len));
        assert_eq!(demangled(&of_rust(MAX_NAME)), "x".repeat(MAX_NAME));
        let cut = format!("{}...", &of_rust(MAX_NAME + 1)[..MAX_NAME]);
        assert_eq!(demangled(&of_rust(MAX_NAME + 1)), cut);
        let long = format!("x{}", "é".repeat(MAX_NAME / 2));
        assert_eq!(demangled(&long), format!("{}...", &long[..MAX_NAME - 1]));
        let mut short = Short("x".repeat(MAX_NAME));
        assert!(short.write_str("").is_ok());
        assert!(short.write_str("x").is_err());
    }
}
