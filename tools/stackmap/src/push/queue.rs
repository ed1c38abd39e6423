// SPDX-License-Identifier: MIT OR Apache-2.0

//! Profiles that wait on disk, in a directory of their own.
//!
//! `N.profile` waits, oldest first by its number; `N.refused` is one that the server did not want. A file has a
//! line of JSON that says what it is, and the packed profile. Only one process uses the directory at a time.

use super::{protocol, About, Profile, MAX_PROFILE};
use crate::{
    error::{Error, Result},
    notes::count_of,
    output::{warn, Access, Out},
};
use rustix::{
    fs::{flock, FlockOperation, Mode, OFlags},
    process::geteuid,
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

/// What the files are.
const FORMAT: &str = "stackmap-push";
const VERSION: u32 = 1;
/// The most bytes of the first line of a file, and of the file.
const MAX_HEAD: usize = 64 << 10;
const MAX_FILE: u64 = (MAX_HEAD + MAX_PROFILE) as u64;
const WAITS: &str = "profile";
const REFUSED: &str = "refused";
/// How files begin that are being written.
const UNFINISHED: &str = ".stackmap-";

/// A directory with profiles, and its lock.
pub struct Queue {
    dir: PathBuf,
    /// The most bytes of all profiles.
    size: u64,
    _lock: File,
}

/// The first line of a file.
#[derive(Deserialize, Serialize)]
struct Head {
    format: String,
    version: u32,
    /// That of the profile.
    id: String,
    #[serde(flatten)]
    about: About,
}

/// A file.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Entry {
    /// Those that were refused are the first ones to go.
    waits: bool,
    number: u64,
    len: u64,
    name: String,
}

/// A profile that waits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Waiting {
    pub number: u64,
    /// The name of its file: whoever renames one need not write all digits.
    name: String,
}

/// What became of a profile in the queue.
#[derive(Debug)]
pub struct Added {
    pub waiting: Waiting,
    /// The numbers of those that it replaces.
    pub dropped: Vec<u64>,
}

impl Queue {
    /// Opens the directory; a `new` one is made if it is not there. Another process that has it is waited
    /// for this long.
    pub fn open(dir: &Path, new: bool, size: u64, patience: Duration) -> Result<Self> {
        // Without a slash at its end, which would follow a link.
        let dir: PathBuf = dir.components().collect();
        let failed = |error| Error::io(format!("use {} as a queue", dir.display()), error);
        if new {
            match DirBuilder::new().mode(0o700).create(&dir) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(failed(error))
                }
                _ => {}
            }
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock =
            rustix::fs::open(&dir, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let lock = File::from(lock);
        let about = lock.metadata().map_err(failed)?;
        if about.uid() != geteuid().as_raw() || about.mode() & 0o022 != 0 {
            return Err(Error::Refused(format!(
                "{} cannot be a queue: it is of another user, or others can write to it\n  \
                 hint: chmod 700 {0}",
                dir.display()
            )));
        }
        let end = Instant::now() + patience;
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            match error {
                rustix::io::Errno::WOULDBLOCK if Instant::now() < end => {
                    sleep(Duration::from_millis(50));
                }
                rustix::io::Errno::WOULDBLOCK => {
                    return Err(Error::Refused(format!(
                        "another process sends what is in {}",
                        dir.display()
                    )))
                }
                error => return Err(failed(error.into())),
            }
        }
        let queue = Self {
            dir,
            size,
            _lock: lock,
        };
        queue.tidy()?;
        Ok(queue)
    }

    /// Removes what a process has left that was killed while it wrote.
    fn tidy(&self) -> Result {
        for name in self.names()? {
            let digits = name.strip_prefix(UNFINISHED).unwrap_or_default();
            if digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                // It is in nobody's way.
                let _ = fs::remove_file(self.dir.join(name));
            }
        }
        Ok(())
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::io(format!("use {} as a queue", self.dir.display()), error)
    }

    fn names(&self) -> Result<Vec<String>> {
        let read = fs::read_dir(&self.dir).map_err(|error| self.failed(error))?;
        let mut names = Vec::new();
        for entry in read {
            let entry = entry.map_err(|error| self.failed(error))?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }

    /// The files, those that are the first ones to go first.
    fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for name in self.names()? {
            let Some((number, kind)) = name.split_once('.') else {
                continue;
            };
            let (Ok(number), true) = (number.parse(), [WAITS, REFUSED].contains(&kind)) else {
                continue;
            };
            let about = fs::symlink_metadata(self.dir.join(&name));
            let about = about.map_err(|error| self.failed(error))?;
            // A FIFO would be waited for.
            if about.is_file() {
                entries.push(Entry {
                    waits: kind == WAITS,
                    number,
                    len: about.len(),
                    name,
                });
            }
        }
        entries.sort();
        Ok(entries)
    }

    /// The profiles that wait, oldest first.
    pub fn waiting(&self) -> Result<Vec<Waiting>> {
        let entries = self.entries()?.into_iter();
        let waiting = entries.filter(|entry| entry.waits);
        Ok(waiting
            .map(|Entry { number, name, .. }| Waiting { number, name })
            .collect())
    }

    /// Adds a profile, unless it waits already. The oldest ones make room for it.
    pub fn add(&self, profile: &Profile) -> Result<Added> {
        let id = protocol::id(profile);
        for waiting in self.waiting()? {
            let head = self.open_file(&waiting).ok();
            let head = head.and_then(|file| head_of(&mut BufReader::new(file)).ok());
            if head.is_some_and(|head| head.id == id && head.about == profile.about) {
                let dropped = Vec::new();
                return Ok(Added { waiting, dropped });
            }
        }
        let head = Head {
            format: FORMAT.to_owned(),
            version: VERSION,
            id,
            about: profile.about.clone(),
        };
        let mut head = serde_json::to_vec(&head).map_err(|error| self.failed(error.into()))?;
        head.push(b'\n');
        let len = (head.len() + profile.pprof.len()) as u64;
        if head.len() > MAX_HEAD {
            let what = format!(
                "the labels of a profile have more than {} KiB",
                MAX_HEAD >> 10
            );
            return Err(Error::Refused(what));
        }
        if len > self.size {
            return Err(Error::Refused(format!(
                "a profile has {} KiB, and the queue takes {} KiB\n  hint: --queue-size",
                len.div_ceil(1024),
                self.size >> 10
            )));
        }
        let entries = self.entries()?;
        let newest = entries.iter().map(|entry| entry.number).max();
        let mut total: u64 = entries.iter().map(|entry| entry.len).sum();
        let mut dropped = Vec::new();
        for entry in entries {
            if total + len <= self.size {
                break;
            }
            fs::remove_file(self.dir.join(&entry.name)).map_err(|error| self.failed(error))?;
            total -= entry.len;
            if entry.waits {
                dropped.push(entry.number);
            }
        }
        if !dropped.is_empty() {
            warn(format_args!(
                "the queue is full: {} dropped, oldest first\n  hint: --queue-size",
                count_of(dropped.len() as u64, "profile")
            ));
        }
        let number = match newest {
            None => 0,
            Some(newest) => newest.checked_add(1).ok_or_else(|| {
                let what = format!("{} has a profile of the last number", self.dir.display());
                Error::Refused(what)
            })?,
        };
        let waiting = Waiting {
            number,
            name: name_of(number, WAITS),
        };
        let mut out = Out::file(&self.dir.join(&waiting.name), Access::Owner)?;
        out.write_all(&head)?;
        out.write_all(&profile.pprof)?;
        out.finish()?;
        Ok(Added { waiting, dropped })
    }

    fn open_file(&self, waiting: &Waiting) -> Result<File> {
        let path = self.dir.join(&waiting.name);
        File::open(&path).map_err(|error| Error::read(&path, error))
    }

    /// Reads a profile.
    pub fn read(&self, waiting: &Waiting) -> Result<Profile> {
        let failed = |error| {
            let path = self.dir.join(&waiting.name);
            match error {
                ErrorKind::InvalidData => {
                    Error::input(path.display().to_string(), "it is not a profile of a queue")
                }
                kind => Error::read(&path, kind.into()),
            }
        };
        let mut file = BufReader::new(self.open_file(waiting)?.take(MAX_FILE + 1));
        let head = head_of(&mut file).map_err(|error| failed(error.kind()))?;
        let mut pprof = Vec::new();
        file.read_to_end(&mut pprof)
            .map_err(|error| failed(error.kind()))?;
        match pprof.len() {
            0..=MAX_PROFILE => Ok(Profile {
                about: head.about,
                pprof,
            }),
            _ => Err(failed(ErrorKind::InvalidData)),
        }
    }

    /// Removes a profile.
    pub fn remove(&self, waiting: &Waiting) -> Result {
        fs::remove_file(self.dir.join(&waiting.name)).map_err(|error| self.failed(error))
    }

    /// Keeps a profile, but not to be sent.
    pub fn set_aside(&self, waiting: &Waiting) -> Result {
        let aside = self.dir.join(name_of(waiting.number, REFUSED));
        fs::rename(self.dir.join(&waiting.name), aside).map_err(|error| self.failed(error))
    }
}

fn name_of(number: u64, kind: &str) -> String {
    format!("{number:016}.{kind}")
}

/// Reads the first line of a file.
fn head_of(file: &mut impl BufRead) -> io::Result<Head> {
    let mut line = Vec::new();
    file.take(MAX_HEAD as u64).read_until(b'\n', &mut line)?;
    let head = line.strip_suffix(b"\n");
    let head = head.and_then(|head| serde_json::from_slice::<Head>(head).ok());
    head.filter(|head| head.format == FORMAT && head.version == VERSION)
        .ok_or(ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
