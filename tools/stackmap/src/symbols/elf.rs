// SPDX-License-Identifier: MIT OR Apache-2.0

//! ELF and DWARF files on request: inlined functions and lines of source code.
//!
//! `vmlinux` is read at the address minus what KASLR added. The files of modules are relocatable
//! and have no addresses yet, so a frame is found in them by what kallsyms says: the function, and
//! the offset in it. If the file then names another function, its answer is not used.

use super::{
    frames::is_entry, kallsyms::Kallsyms, lookup_address, Frame, Place, SourceLine, Symbol,
    TRAMPOLINE_MARKER,
};
use crate::{
    error::{Error, Result},
    symbols::elf::files::ModuleFiles,
};
use blazesym::{
    inspect,
    symbolize::{
        source::{Elf, Source},
        CodeInfo, Input, Symbolized, Symbolizer,
    },
};
use object::{
    read::{elf::ElfFile64, ReadCache},
    Endianness, Object,
};
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    path::{Path, PathBuf},
};

mod files;
mod relocate;

/// How many addresses are looked up between two reports of progress.
const BATCH: usize = 256;

/// A frame that an ELF file knows.
#[derive(Debug)]
pub struct DebugFrame {
    name: String,
    module: Option<String>,
    /// Of the address that was looked up.
    offset: u64,
    size: Option<u64>,
    inlined: bool,
    source: Option<SourceLine>,
}

impl DebugFrame {
    /// As the frame at `ip`, which is `behind` bytes after the address that was looked up.
    pub(super) fn frame(&self, ip: u64, behind: u64) -> Frame<'_> {
        Frame {
            ip,
            place: Place::Symbol(Symbol {
                name: &self.name,
                module: self.module.as_deref(),
                offset: self.offset + behind,
                size: self.size,
            }),
            inlined: self.inlined,
            source: self.source.as_ref(),
        }
    }

    /// Whether it is the entry of an interrupt or an exception.
    pub(super) fn is_entry(&self) -> bool {
        self.module.is_none() && is_entry(&self.name)
    }
}

/// Where to find debug information.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The kernel's ELF file.
    pub vmlinux: Option<PathBuf>,
    /// A directory with the ELF files of modules, searched with all that is below it.
    pub modules: Option<PathBuf>,
    /// What KASLR added to the addresses of `vmlinux`; by default it is found out.
    pub kaslr_offset: Option<u64>,
    /// The build id that `vmlinux` must have.
    pub build_id: Option<String>,
}

/// Debug information, and what was looked up in it.
pub struct DebugInfo {
    vmlinux: Option<PathBuf>,
    kaslr_offset: u64,
    modules: Option<ModuleFiles>,
    symbolizer: Symbolizer,
    /// By the address that was looked up; innermost first.
    frames: HashMap<u64, Box<[DebugFrame]>>,
}

impl DebugInfo {
    /// Opens `files`.
    pub fn open(files: &Files, kallsyms: Option<&Kallsyms>) -> Result<Self> {
        let mut kaslr_offset = 0;
        if let Some(vmlinux) = &files.vmlinux {
            check_build_id(vmlinux, files.build_id.as_deref())?;
            kaslr_offset = match files.kaslr_offset {
                Some(offset) => offset,
                None => kallsyms.map_or(Ok(0), |kallsyms| find_kaslr_offset(vmlinux, kallsyms))?,
            };
        }
        Ok(Self {
            vmlinux: files.vmlinux.clone(),
            kaslr_offset,
            modules: files.modules.as_deref().map(ModuleFiles::new).transpose()?,
            symbolizer: Symbolizer::new(),
            frames: HashMap::new(),
        })
    }

    /// What is known of a frame, innermost first; nothing before [`look_up_all`](Self::look_up_all) saw it.
    pub fn frames(&self, ip: u64, exact: bool) -> &[DebugFrame] {
        self.frames
            .get(&lookup_address(ip, exact))
            .map_or(&[], |frames| frames)
    }

    /// Where those of `ips` are to be looked up that are not known yet.
    pub(super) fn unknown(&self, ips: impl Iterator<Item = (u64, bool)>) -> BTreeSet<u64> {
        // By address, for the sake of the caches of what reads DWARF.
        let mut unknown = BTreeSet::new();
        for (ip, exact) in ips {
            let address = lookup_address(ip, exact);
            if ip != TRAMPOLINE_MARKER && !self.frames.contains_key(&address) {
                unknown.insert(address);
            }
        }
        unknown
    }

    /// Looks up addresses.
    pub(super) fn look_up_all(
        &mut self,
        wanted: BTreeSet<u64>,
        kallsyms: Option<&Kallsyms>,
        progress: &mut dyn FnMut(u64),
    ) {
        for (done, address) in wanted.into_iter().enumerate() {
            if done % BATCH == 0 {
                progress(done as u64);
            }
            let symbol = kallsyms.and_then(|kallsyms| kallsyms.symbol(address, true));
            let frames = match symbol {
                Some(symbol) if symbol.module.is_some() => self.in_module(&symbol),
                _ => self.in_vmlinux(address, symbol),
            };
            self.frames.insert(address, frames.unwrap_or_default());
        }
    }

    fn in_vmlinux(&self, address: u64, symbol: Option<Symbol<'_>>) -> Option<Box<[DebugFrame]>> {
        let vmlinux = self.vmlinux.as_deref()?;
        let address = address.checked_sub(self.kaslr_offset)?;
        self.look_up(vmlinux, address, symbol)
    }

    fn in_module(&mut self, symbol: &Symbol<'_>) -> Option<Box<[DebugFrame]>> {
        let (path, start) = self
            .modules
            .as_mut()?
            .symbol_address(symbol.module?, symbol.name)?;
        let address = start.checked_add(symbol.offset)?;
        let frames = self.look_up(&path, address, Some(*symbol))?;
        Some(frames)
    }

    /// Asks the file `path` about `address`. `symbol`: what kallsyms has there.
    fn look_up(
        &self,
        path: &Path,
        address: u64,
        symbol: Option<Symbol<'_>>,
    ) -> Option<Box<[DebugFrame]>> {
        let source = Source::Elf(Elf::new(path));
        let found = self
            .symbolizer
            .symbolize_single(&source, Input::VirtOffset(address))
            .ok()?;
        let Symbolized::Sym(sym) = found else {
            return None;
        };
        if symbol.is_some_and(|symbol| !same_function(&sym.name, symbol.name)) {
            return None;
        }
        let outer = DebugFrame {
            name: symbol.map_or_else(|| demangled(&sym.name), |symbol| symbol.name.to_owned()),
            module: symbol.and_then(|symbol| symbol.module).map(str::to_owned),
            offset: symbol.map_or(sym.offset as u64, |symbol| symbol.offset),
            size: symbol.map_or(sym.size.map(|size| size as u64), |symbol| symbol.size),
            inlined: false,
            source: sym.code_info.as_deref().and_then(source_line),
        };
        // blazesym has them outermost first.
        let inlined = sym.inlined.iter().rev().map(|inlined| DebugFrame {
            name: demangled(&inlined.name),
            module: outer.module.clone(),
            inlined: true,
            source: inlined.code_info.as_ref().and_then(source_line),
            ..outer
        });
        let mut frames: Vec<_> = inlined.collect();
        frames.push(outer);
        Some(frames.into())
    }
}

pub(crate) fn source_line(code: &CodeInfo<'_>) -> Option<SourceLine> {
    Some(SourceLine {
        file: code.to_path().to_string_lossy().into(),
        line: code.line?,
    })
}

fn demangled(name: &str) -> String {
    match rustc_demangle::try_demangle(name) {
        Ok(demangled) => format!("{demangled:#}"),
        Err(_) => name.to_owned(),
    }
}

/// Whether a name of an ELF file is that of kallsyms, but for what compilers append (`.isra.0`).
fn same_function(elf: &str, kallsyms: &str) -> bool {
    let stem = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    elf == kallsyms || stem(elf) == stem(kallsyms) || demangled(elf) == kallsyms
}

fn check_build_id(path: &Path, expected: Option<&str>) -> Result {
    let source = path.display().to_string();
    let file = File::open(path).map_err(|error| Error::read(path, error))?;
    let wrong = |error| Error::input(&source, format!("this is not a vmlinux: {error}"));
    // blazesym takes the first note of this type, which in a vmlinux is one for Xen.
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(wrong)?;
    let found = elf.build_id().map_err(wrong)?;
    let (Some(found), Some(expected)) = (found, expected) else {
        return Ok(());
    };
    let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
    if found != expected {
        let what = format!(
            "this file is of another kernel: its build id is {found}, the stacks need {expected}"
        );
        return Err(Error::input(source, what));
    }
    Ok(())
}

/// The distance between where the running kernel was and where `vmlinux` was linked.
fn find_kaslr_offset(vmlinux: &Path, kallsyms: &Kallsyms) -> Result<u64> {
    let source = inspect::source::Source::Elf(inspect::source::Elf::new(vmlinux));
    let inspector = inspect::Inspector::new();
    for (name, running) in kallsyms.landmarks() {
        let found = inspector.lookup(&source, &[name]).map_err(|error| {
            Error::input(
                vmlinux.display().to_string(),
                format!("no symbols: {error}"),
            )
        })?;
        let linked = found.iter().flatten().find(|symbol| symbol.name == name);
        if let Some(offset) = linked.and_then(|symbol| running.checked_sub(symbol.addr)) {
            return Ok(offset);
        }
    }
    let what = "the KASLR offset is not known: neither _stext nor _text is in both this file and \
                kallsyms\n  hint: give it with --kaslr-offset";
    Err(Error::input(vmlinux.display().to_string(), what))
}

#[cfg(test)]
mod tests;
