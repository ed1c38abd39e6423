// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ELF files of modules: found below a directory, unpacked where they are compressed, and
//! given addresses.

use super::relocate::relocate;
use crate::{
    error::{Error, Result},
    files::unpacked,
};
use blazesym::inspect::{
    source::{Elf, Source},
    Inspector,
};
use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Larger than any module with its debug information, in bytes.
const MAX_UNPACKED: u64 = 2 << 30;
/// Directories nest no deeper than this.
const MAX_NESTING: usize = 32;

/// The files of all modules below a directory.
pub(super) struct ModuleFiles {
    paths: HashMap<String, PathBuf>,
    /// What was opened; [`None`]: it could not be.
    opened: HashMap<String, Option<ModuleFile>>,
}

struct ModuleFile {
    /// Unpacked, and with addresses.
    file: NamedTempFile,
    /// Where each function begins in it.
    symbols: HashMap<String, u64>,
}

impl ModuleFiles {
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let mut paths = HashMap::new();
        collect(dir, &mut paths, 0).map_err(|error| Error::read(dir, error))?;
        if paths.is_empty() {
            let what = "there is no module (.ko, .ko.debug, .ko.xz, .ko.gz) here or below";
            return Err(Error::input(dir.display().to_string(), what));
        }
        Ok(Self {
            paths,
            opened: HashMap::new(),
        })
    }

    /// The file of `module`, and where `symbol` begins in it.
    pub(super) fn symbol_address(&mut self, module: &str, symbol: &str) -> Option<(PathBuf, u64)> {
        if !self.opened.contains_key(module) {
            let file = self.paths.get(module).and_then(|path| open(path).ok());
            self.opened.insert(module.to_owned(), file);
        }
        let file = self.opened.get(module)?.as_ref()?;
        let address = file.symbols.get(symbol)?;
        Some((file.file.path().to_owned(), *address))
    }
}

/// Finds modules: those with debug information come before those without.
fn collect(dir: &Path, paths: &mut HashMap<String, PathBuf>, nesting: usize) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if nesting < MAX_NESTING {
                collect(&path, paths, nesting + 1)?;
            }
            continue;
        }
        let Some((name, rank)) = module_name(&path) else {
            continue;
        };
        let better = paths
            .get(&name)
            .and_then(|other| module_name(other))
            .is_none_or(|(_, other)| rank < other);
        if better {
            paths.insert(name, path);
        }
    }
    Ok(())
}

/// The name that the kernel gives to the module in a file, and how much the file is preferred.
fn module_name(path: &Path) -> Option<(String, usize)> {
    const ENDINGS: [&str; 4] = [".ko.debug", ".ko", ".ko.xz", ".ko.gz"];
    let name = path.file_name()?.to_str()?;
    let (rank, stem) = ENDINGS
        .iter()
        .enumerate()
        .find_map(|(rank, ending)| Some((rank, name.strip_suffix(ending)?)))?;
    Some((stem.replace('-', "_"), rank))
}

fn open(path: &Path) -> Result<ModuleFile> {
    let failed = |error| Error::read(path, error);
    let mut content = Vec::new();
    let read = unpacked(path).and_then(|file| file.take(MAX_UNPACKED).read_to_end(&mut content));
    read.map_err(failed)?;
    // A file that is not relocatable is used as it is.
    let _ = relocate(&mut content);
    let mut file = NamedTempFile::new().map_err(failed)?;
    file.write_all(&content).map_err(failed)?;

    let mut symbols = HashMap::new();
    let source = Source::Elf(Elf {
        debug_syms: false,
        ..Elf::new(file.path())
    });
    Inspector::new()
        .for_each(&source, |symbol| {
            symbols.insert(super::demangled(&symbol.name), symbol.addr);
            ControlFlow::Continue(())
        })
        .map_err(|error| Error::input(path.display().to_string(), error.to_string()))?;
    Ok(ModuleFile { file, symbols })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_modules_as_the_kernel_does() {
        let name = |path: &str| module_name(Path::new(path));
        assert_eq!(name("/x/9pnet-virtio.ko"), Some(("9pnet_virtio".into(), 1)));
        assert_eq!(name("ext4.ko.xz"), Some(("ext4".into(), 2)));
        assert_eq!(name("ext4.ko.debug"), Some(("ext4".into(), 0)));
        assert_eq!(name("modules.dep"), None);
    }
}
