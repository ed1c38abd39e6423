// SPDX-License-Identifier: MIT OR Apache-2.0

//! Facts about the running kernel.

use crate::{
    error::{Error, Result},
    symbols::{kallsyms, kallsyms::Kallsyms, modules::Modules},
};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

/// For tests: where these files are in place of `/proc`.
const PROC: &str = "STACKMAP_TEST_PROC";

pub(crate) fn proc(file: &str) -> PathBuf {
    let dir = std::env::var_os(PROC).map_or_else(|| PathBuf::from("/proc"), PathBuf::from);
    dir.join(file)
}

/// The release, as `uname -r` prints it.
pub fn release() -> String {
    line("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// The machine, as `uname -m` prints it.
pub fn machine() -> String {
    line("/proc/sys/kernel/arch").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The name of the machine, as `uname -n` prints it.
pub fn host() -> Option<String> {
    line("/proc/sys/kernel/hostname").filter(|name| !name.is_empty())
}

/// Returns the modes of kernel lockdown, the one in force in brackets; empty where there is none.
pub fn lockdown(root: &Path) -> String {
    line(root.join("sys/kernel/security/lockdown")).unwrap_or_default()
}

/// Returns whether kernel lockdown is in the mode in which tracefs has no files.
pub fn is_confidential(root: &Path) -> bool {
    lockdown(root).contains("[confidentiality]")
}

/// Returns whether this process has the numbers of processes that the kernel's traces have: those of the first PID
/// namespace.
pub fn has_initial_pids() -> bool {
    // PROC_PID_INIT_INO.
    let initial = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new(initial))
}

/// The id of this boot.
pub fn boot_id() -> Option<String> {
    line("/proc/sys/kernel/random/boot_id")
}

/// The build id, in hexadecimal digits.
pub fn build_id() -> Option<String> {
    let notes = fs::read("/sys/kernel/notes").ok()?;
    let id = find_build_id(&notes)?;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The loaded modules.
pub fn modules() -> Result<Modules> {
    Ok(Modules::parse(&String::from_utf8_lossy(&modules_text()?)))
}

/// The list of modules. A kernel that cannot load any has none.
pub fn modules_text() -> Result<Vec<u8>> {
    let path = proc("modules");
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result.map_err(|error| Error::read(&path, error)),
    }
}

/// Returns the names of everything in the kernel.
pub fn kallsyms() -> Result<Kallsyms> {
    parse_kallsyms(kallsyms_text()?)
}

/// Reads the text of `/proc/kallsyms`.
pub fn kallsyms_text() -> Result<String> {
    let path = proc("kallsyms");
    let mut text = Vec::with_capacity(16 << 20);
    File::open(&path)
        .and_then(|file| file.take(kallsyms::MAX_LEN).read_to_end(&mut text))
        .map_err(|error| Error::read(&path, error))?;
    Ok(kallsyms::utf8(text))
}

/// Returns the names of a text of `/proc/kallsyms` of this kernel.
pub fn parse_kallsyms(text: String) -> Result<Kallsyms> {
    let source = proc("kallsyms").display().to_string();
    Kallsyms::parse(text.into_bytes(), &modules().unwrap_or_default(), &source)
}

/// Returns an error if the addresses of the kernel's symbols are hidden from this process.
pub fn require_addresses() -> Result {
    let path = proc("kallsyms");
    let file = File::open(&path).map_err(|error| Error::read(&path, error))?;
    // The first ones may be those of per-CPU variables, which are numbers from 0 on.
    let is_shown = |line: &io::Result<Vec<u8>>| !matches!(line, Ok(line) if line.starts_with(b"0000000000000000"));
    match BufReader::new(file)
        .split(b'\n')
        .any(|line| is_shown(&line))
    {
        true => Ok(()),
        false => kallsyms().map(drop),
    }
}

/// The first line of a file, if it can be read.
pub fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.to_owned())
}

/// Returns the CPUs that are online, or none if that cannot be read.
pub fn online_cpus() -> Vec<u32> {
    let stat = fs::read_to_string(proc("stat")).unwrap_or_default();
    let cpus = stat.lines().filter_map(|line| {
        let (number, _) = line.strip_prefix("cpu")?.split_once(' ')?;
        number.parse().ok()
    });
    cpus.collect()
}

/// Finds the note `GNU` of type 3 among ELF notes in the byte order of this machine.
fn find_build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let (name_len, rest) = take_word(notes)?;
        let (desc_len, rest) = take_word(rest)?;
        let (kind, rest) = take_word(rest)?;
        let (name, rest) = take_padded(rest, name_len)?;
        let (desc, rest) = take_padded(rest, desc_len)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(desc);
        }
        notes = rest;
    }
}

fn take_word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_ne_bytes(*word), rest))
}

fn take_padded(bytes: &[u8], len: u32) -> Option<(&[u8], &[u8])> {
    let len = usize::try_from(len).ok()?;
    let field = bytes.get(..len)?;
    let padded = len.checked_next_multiple_of(4)?;
    Some((field, bytes.get(padded..).unwrap_or(&[])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [name.len() as u32, desc.len() as u32, kind] {
            note.extend_from_slice(&word.to_ne_bytes());
        }
        for field in [name, desc] {
            note.extend_from_slice(field);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn finds_the_build_id_among_other_notes() {
        let mut notes = note(b"Xen\0", 6, b"linux\0");
        notes.extend(note(b"Linux\0", 3, b"no"));
        notes.extend(note(b"GNU\0", 3, &[0xab; 20]));
        notes.extend(note(b"Xen\0", 7, b"2.6\0"));
        assert_eq!(find_build_id(&notes), Some(&[0xab; 20][..]));
        for end in 0..notes.len() {
            find_build_id(&notes[..end]);
        }
        let mut lying = note(b"GNU\0", 3, &[1; 20]);
        lying[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(find_build_id(&lying), None);
    }

    #[test]
    fn knows_this_kernel() {
        assert!(release().contains('.'));
        assert!(!machine().is_empty());
    }
}
