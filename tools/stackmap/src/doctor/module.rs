// SPDX-License-Identifier: MIT OR Apache-2.0

//! The module's file: whether it is installed, and for this kernel.

use super::{Check, Verdict::*};
use crate::files::unpacked;
use std::{
    fs,
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
        let advice =
            "install this kernel's headers, then: dkms autoinstall, or make && make install-module";
        return check.advise(match log_of_dkms(root) {
            Some(log) => format!("DKMS could not build it, see {}", log.display()),
            None => advice.to_owned(),
        });
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

/// The newest log of a build by DKMS that failed, if there is one.
fn log_of_dkms(root: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(root.join("var/lib/dkms/stackmap")).ok()?;
    versions
        .filter_map(|version| Some(version.ok()?.path().join("build/make.log")))
        .filter(|log| log.is_file())
        .max_by_key(|log| fs::metadata(log).and_then(|log| log.modified()).ok())
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
    let ending = path.extension().and_then(|ending| ending.to_str());
    // Of another compression.
    if !matches!(ending, Some("xz" | "gz" | "ko")) {
        return Ok(None);
    }
    let mut content = Vec::new();
    unpacked(path)?.take(MAX_LEN).read_to_end(&mut content)?;
    let magic = memchr::memmem::find(&content, KEY).map(|at| &content[at + KEY.len()..]);
    let magic = magic.and_then(|text| text.split(|byte| *byte == 0).next());
    Ok(magic.map(|text| String::from_utf8_lossy(text).into_owned()))
}
