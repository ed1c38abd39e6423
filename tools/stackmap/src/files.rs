// SPDX-License-Identifier: MIT OR Apache-2.0

//! The beginning of files; those of other kinds than the command needs: what they are, and what to do with them.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// What a file is, by how it begins, and what to do with it.
pub fn recognize(head: &[u8]) -> Option<(&'static str, &'static str)> {
    const UNPACK: &str = "unpack it first";
    let known: [(&[u8], _, _); 14] = [
        (
            b"PERFILE2",
            "a recording of perf",
            "use perf script; \"stackmap record\" makes captures",
        ),
        (
            b"\x17\x08\x44tracing",
            "a recording of trace-cmd",
            "trace-cmd report FILE | stackmap resolve --map stack_map_bin",
        ),
        (
            b"\x7fELF",
            "an ELF file",
            "to read symbol names from a vmlinux: --vmlinux FILE",
        ),
        (b"\x1f\x8b", "packed by gzip", UNPACK),
        (b"BZh", "packed by bzip2", UNPACK),
        (b"\xfd7zXZ", "packed by xz", UNPACK),
        (b"\x28\xb5\x2f\xfd", "packed by zstd", UNPACK),
        (
            b"# tracer:",
            "the text of a trace",
            "stackmap resolve FILE replaces its ids by stacks",
        ),
        (
            b"stack_id ",
            "the text of stack_map",
            "copy stack_map_bin, or use \"stackmap record\"",
        ),
        (
            b"entries: ",
            "the text of stack_map_stat",
            "copy stack_map_bin, or use \"stackmap record\"",
        ),
        (b"<?xml", "an XML file, such as a flame graph", NO_WAY_BACK),
        (b"{", "a JSON file", NO_WAY_BACK),
        (b"[", "a JSON file", NO_WAY_BACK),
        (b"!<arch>", "an archive", UNPACK),
    ];
    const NO_WAY_BACK: &str = "exported files cannot be read; give the capture";
    let found = known.iter().find(|(magic, ..)| head.starts_with(magic));
    if let Some((_, what, advice)) = found {
        return Some((what, advice));
    }
    let digits = head.iter().take_while(|byte| byte.is_ascii_hexdigit());
    match (digits.count(), head) {
        (16, _) => Some((
            "a table of symbols like /proc/kallsyms",
            "use it with --kallsyms FILE",
        )),
        (_, head) if is_text(head) => Some((
            "a text",
            "\"stackmap record\" makes captures, and /sys/kernel/tracing/stack_map_bin can be \
             copied",
        )),
        _ => None,
    }
}

fn is_text(head: &[u8]) -> bool {
    let printable = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r');
    !head.is_empty() && head.iter().all(printable)
}

/// Reads until `buffer` is full or the input ends, and returns how much there was; with an error,
/// how much preceded it.
pub(crate) fn read_full(
    input: &mut (impl Read + ?Sized),
    buffer: &mut [u8],
) -> Result<usize, (usize, io::Error)> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((got, error)),
        }
    }
    Ok(got)
}

/// Opens a file, which is unpacked if its name says that it is compressed.
pub(crate) fn unpacked(path: &Path) -> io::Result<Box<dyn Read>> {
    let file = File::open(path)?;
    Ok(match path.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => Box::new(xz2::read::XzDecoder::new(file)),
        Some("gz") => Box::new(flate2::read::GzDecoder::new(file)),
        _ => Box::new(file),
    })
}
