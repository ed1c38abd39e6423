// SPDX-License-Identifier: MIT OR Apache-2.0

//! The module's file: whether it is installed, and for this kernel.

use super::{Check, Verdict::*};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Larger than any module, in bytes.
const MAX_LEN: u64 = 256 << 20;
/// Directories nest no deeper than this.
const MAX_NESTING: usize = 16;

/// Looks for the module that modprobe would load.
pub(super) fn check_installed(root: &Path, release: &str) -> Check {
    let what = "module";
    let dir = root.join("lib/modules").join(release);
    let Some(path) = find(&dir, 0) else {
        let check = Check::new(
            Bad,
            what,
            format!("not loaded, and not installed below {}", dir.display()),
        );
        let advice = "build and install it for this kernel: make && make install, or the package \
                      stackmap-dkms";
        return check.advise(told_by_dkms(root, release).unwrap_or_else(|| advice.to_owned()));
    };
    let shown = path.display();
    match vermagic(&path) {
        Ok(Some(magic)) if magic.split(' ').next() != Some(release) => {
            let found = format!("{shown} is for {magic}");
            Check::new(Bad, what, found).advise("build it for this kernel")
        }
        Err(error) => Check::new(Warning, what, format!("{shown}: {error}")),
        Ok(_) => {
            let indexed = fs::read_to_string(dir.join("modules.dep"))
                .is_ok_and(|text| text.contains("/stackmap.ko"));
            match indexed {
                true => Check::new(Note, what, format!("not loaded; installed at {shown}"))
                    .advise("modprobe stackmap"),
                false => Check::new(
                    Warning,
                    what,
                    format!("{shown} is not in modules.dep, so modprobe does not find it"),
                )
                .advise("depmod -a, then modprobe stackmap"),
            }
        }
    }
}

/// Why DKMS has not built it for this kernel, and what to install: the paragraph in its log.
fn told_by_dkms(root: &Path, release: &str) -> Option<String> {
    let begin = format!("stackmap is not built for {release}:");
    let versions = fs::read_dir(root.join("var/lib/dkms/stackmap")).ok()?;
    let logs = versions
        .filter_map(io::Result::ok)
        .map(|version| version.path().join("build/make.log"));
    logs.filter_map(|log| fs::read_to_string(log).ok())
        .find_map(|text| {
            let mut paragraphs = text.split("\n\n").map(str::trim);
            let found = paragraphs.find(|text| text.starts_with(&begin))?;
            Some(found.to_owned())
        })
}

fn find(dir: &Path, nesting: usize) -> Option<PathBuf> {
    let mut below = Vec::new();
    for entry in fs::read_dir(dir).ok()?.filter_map(io::Result::ok) {
        let path = entry.path();
        let name = entry.file_name();
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("stackmap.ko"))
        {
            return Some(path);
        }
        if nesting < MAX_NESTING && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below.push(path);
        }
    }
    below.iter().find_map(|dir| find(dir, nesting + 1))
}

/// Which kernel a module is for, as its file says it.
fn vermagic(path: &Path) -> io::Result<Option<String>> {
    const KEY: &[u8] = b"vermagic=";
    let file = File::open(path)?;
    let mut input: Box<dyn Read> = match path.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => Box::new(xz2::read::XzDecoder::new(file)),
        Some("gz") => Box::new(flate2::read::GzDecoder::new(file)),
        Some("ko") => Box::new(file),
        // Of another compression.
        _ => return Ok(None),
    };
    let mut content = Vec::new();
    input.by_ref().take(MAX_LEN).read_to_end(&mut content)?;
    let magic = memchr::memmem::find(&content, KEY).map(|at| &content[at + KEY.len()..]);
    let magic = magic.and_then(|text| text.split(|byte| *byte == 0).next());
    Ok(magic.map(|text| String::from_utf8_lossy(text).into_owned()))
}
