// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files of tracefs.

use crate::{
    error::{Error, Result},
    stack_map_bin::{LoadId, Reader},
    stacks::Stacks,
    stat::Stat,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

/// Where tracefs is mounted by default, and where debugfs shows it.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// How often a map that is reset meanwhile is read again.
const ATTEMPTS: usize = 5;
/// What the kernel says of a file that was reset while it was read.
const ESTALE: i32 = 116;

/// A mounted tracefs.
#[derive(Clone, Debug)]
pub struct Tracefs {
    root: PathBuf,
}

impl Tracefs {
    /// The one that is at `root`, or at one of the usual places.
    pub fn find(root: Option<&Path>) -> Result<Self> {
        let candidates = match root {
            Some(root) => vec![root],
            None => PLACES.iter().map(Path::new).collect(),
        };
        for root in &candidates {
            match fs::metadata(root.join("trace")) {
                Ok(_) => {
                    return Ok(Self {
                        root: root.to_path_buf(),
                    })
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Error::io(format!("look into {}", root.display()), error));
                }
                Err(_) => {}
            }
        }
        Err(Error::Refused(format!(
            "there is no tracefs at {}\n  hint: mount -t tracefs nodev /sys/kernel/tracing",
            candidates[0].display()
        )))
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of one of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Whether it has a file.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Whether the stackmap module is loaded.
    pub fn has_stackmap(&self) -> bool {
        self.has("options/stackmap")
    }

    /// Says what to do if the stackmap module is not loaded.
    pub fn require_stackmap(&self) -> Result {
        if self.has_stackmap() {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the stackmap module is not loaded: there is no {}\n  hint: modprobe stackmap; \
             \"stackmap doctor\" tells what else is missing",
            self.path("options/stackmap").display()
        )))
    }

    /// Opens a file.
    pub fn open(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        File::open(&path).map_err(|error| Error::read(&path, error))
    }

    /// The text of a file.
    pub fn read(&self, name: &str) -> Result<String> {
        let mut bytes = Vec::new();
        self.open(name)?
            .read_to_end(&mut bytes)
            .map_err(|error| Error::read(&self.path(name), error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a text to a file, by one write as these files want it.
    pub fn write(&self, name: &str, text: &str) -> Result {
        self.write_as(name, text, false)
    }

    /// Writes a text to a file that keeps what it has.
    pub fn append(&self, name: &str, text: &str) -> Result {
        self.write_as(name, text, true)
    }

    fn write_as(&self, name: &str, text: &str, append: bool) -> Result {
        let path = self.path(name);
        let failed = |error| {
            let shown = text.trim_end().escape_debug();
            Error::io(format!("write \"{shown}\" to {}", path.display()), error)
        };
        let mut options = OpenOptions::new();
        let mut file = match append {
            true => options.append(true),
            false => options.write(true).truncate(true),
        }
        .open(&path)
        .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)
    }

    /// The counters of the map.
    pub fn stat(&self) -> Result<Stat> {
        self.require_stackmap()?;
        Ok(Stat::parse(&self.read("stack_map_stat")?))
    }

    /// The stacks of the map. If it is reset meanwhile, what is there afterwards.
    pub fn stacks(&self) -> Result<Stacks> {
        self.stack_map_bin(Stacks::read)
    }

    /// The load of the module; [`None`]: not known.
    pub fn load_id(&self) -> Result<Option<LoadId>> {
        self.stack_map_bin(|file, source| Ok(Reader::new(file, source)?.load_id()))
    }

    /// What `read` has of the map. If it is reset meanwhile, what is there afterwards.
    fn stack_map_bin<T>(&self, read: impl Fn(BufReader<File>, &str) -> Result<T>) -> Result<T> {
        self.require_stackmap()?;
        let path = self.path("stack_map_bin");
        let source = path.display().to_string();
        let mut attempt = 1;
        loop {
            let result = File::open(&path)
                .map_err(|error| Error::read(&path, error))
                .and_then(|file| read(BufReader::with_capacity(256 << 10, file), &source));
            match result {
                Err(Error::Io { error, .. }) if attempt < ATTEMPTS && is_reset(&error) => {
                    attempt += 1;
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                result => return result,
            }
        }
    }
}

fn is_reset(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ESTALE) || error.kind() == io::ErrorKind::ResourceBusy
}
