// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes captures with the text of a trace.

use stackmap::capture::{member, Manifest, Writer};
use std::path::Path;

/// What differs between such captures.
pub(crate) struct Text<'a> {
    pub(crate) trace: &'a str,
    pub(crate) stack_map_bin: &'a [u8],
    pub(crate) stat: &'a [u8],
    pub(crate) kallsyms: &'a [u8],
}

/// Writes one.
pub(crate) fn write(path: &Path, text: &Text<'_>, manifest: &Manifest) {
    let mut writer = Writer::create(path).unwrap();
    for (name, mut content) in [
        (member::TRACE, text.trace.as_bytes()),
        (member::STACK_MAP_BIN, text.stack_map_bin),
        (member::STAT, text.stat),
        (member::STAT_BEFORE, b"bits: 14\n"),
        (member::KALLSYMS, text.kallsyms),
        (member::MODULES, b""),
    ] {
        writer.member(name, &mut content).unwrap();
    }
    writer.finish(manifest).unwrap();
}
