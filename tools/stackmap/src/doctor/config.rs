// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a kernel was configured.

use flate2::read::GzDecoder;
use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

/// Longer than any configuration, in bytes.
const MAX_LEN: u64 = 16 << 20;

/// The configuration of a kernel.
pub(super) struct Config {
    name: String,
    text: String,
}

impl Config {
    /// Finds that of the kernel `release`.
    pub(super) fn read(root: &Path, release: &str) -> Option<Self> {
        let packed = File::open(root.join("proc/config.gz"))
            .ok()
            .and_then(|file| {
                let mut text = String::new();
                let len = GzDecoder::new(file).take(MAX_LEN).read_to_string(&mut text);
                len.ok().map(|_| ("/proc/config.gz".to_owned(), text))
            });
        let places = [
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
            format!("lib/modules/{release}/build/.config"),
            format!("usr/lib/modules/{release}/config"),
        ];
        let plain = places.iter().find_map(|place| {
            let path = root.join(place);
            let text = fs::read_to_string(&path).ok()?;
            Some((path.display().to_string(), text))
        });
        let (name, text) = packed.or(plain)?;
        Some(Self { name, text })
    }

    /// The file that it was found in.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether an option is on.
    pub(super) fn has(&self, option: &str) -> bool {
        let mut lines = self.text.lines();
        lines.any(|line| line.strip_prefix(option) == Some("=y"))
    }
}
