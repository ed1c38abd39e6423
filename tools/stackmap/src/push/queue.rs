// SPDX-License-Identifier: MIT OR Apache-2.0

//! Profiles that wait on disk, in a directory of their own.
//!
//! `N.profile` waits, oldest first by its number; `N.refused` is one that the server did not want. A file has a
//! line of JSON that says what it is, and the packed profile. Only one process uses the directory at a time.

use super::{About, Profile};
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
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

/// What the files are.
const FORMAT: &str = "stackmap-push";
const VERSION: u32 = 1;
/// The most bytes of a file.
const MAX_FILE: u64 = 256 << 20;
/// The most bytes of its first line.
const MAX_HEAD: usize = 64 << 10;
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
    #[serde(flatten)]
    about: About,
}

/// A file.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Entry {
    /// Those that were refused are the first ones to go.
    waits: bool,
    number: u64,
    len: u64,
}

impl Queue {
    /// Opens the directory, or makes it. Another process that has it is waited for this long.
    pub fn open(dir: &Path, size: u64, patience: Duration) -> Result<Self> {
        let failed = |error| Error::io(format!("use {} as a queue", dir.display()), error);
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(failed(error))
            }
            _ => {}
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock =
            rustix::fs::open(dir, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
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
            dir: dir.to_owned(),
            size,
            _lock: lock,
        };
        queue.tidy()?;
        Ok(queue)
    }

    /// Removes what a process has left that was killed while it wrote.
    fn tidy(&self) -> Result {
        for name in self.names()? {
            if name.starts_with(UNFINISHED) {
                let path = self.dir.join(name);
                fs::remove_file(&path).map_err(|error| self.failed(error))?;
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
            entries.push(Entry {
                waits: kind == WAITS,
                number,
                len: about.map_err(|error| self.failed(error))?.len(),
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn path(&self, number: u64, kind: &str) -> PathBuf {
        self.dir.join(format!("{number:016}.{kind}"))
    }

    /// The numbers of the profiles that wait, oldest first.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        let entries = self.entries()?.into_iter();
        let waiting = entries.filter(|entry| entry.waits);
        Ok(waiting.map(|entry| entry.number).collect())
    }

    /// Adds a profile. The oldest ones make room for it.
    pub fn add(&self, profile: &Profile) -> Result {
        let head = Head {
            format: FORMAT.to_owned(),
            version: VERSION,
            about: profile.about.clone(),
        };
        let mut head = serde_json::to_vec(&head).map_err(|error| self.failed(error.into()))?;
        head.push(b'\n');
        let len = (head.len() + profile.pprof.len()) as u64;
        let room = self.size.min(MAX_FILE);
        if head.len() > MAX_HEAD {
            let what = format!(
                "the labels of a profile have more than {} KiB",
                MAX_HEAD >> 10
            );
            return Err(Error::Refused(what));
        }
        if len > room {
            let hint = match room {
                MAX_FILE => "record for a shorter time, or filter",
                _ => "--queue-size",
            };
            return Err(Error::Refused(format!(
                "a profile has {} KiB, and at most {} KiB are sent\n  hint: {hint}",
                len.div_ceil(1024),
                room >> 10
            )));
        }
        let entries = self.entries()?;
        let newest = entries.iter().map(|entry| entry.number).max();
        let mut total: u64 = entries.iter().map(|entry| entry.len).sum();
        let mut dropped = 0;
        for entry in entries {
            if total + len <= self.size {
                break;
            }
            let kind = if entry.waits { WAITS } else { REFUSED };
            let path = self.path(entry.number, kind);
            fs::remove_file(path).map_err(|error| self.failed(error))?;
            total -= entry.len;
            dropped += 1;
        }
        if dropped > 0 {
            warn(format_args!(
                "the queue is full: {} dropped, oldest first\n  hint: --queue-size",
                count_of(dropped, "profile")
            ));
        }
        let number = newest.map_or(0, |newest| newest.saturating_add(1));
        let mut out = Out::file(&self.path(number, WAITS), Access::Owner)?;
        out.write_all(&head)?;
        out.write_all(&profile.pprof)?;
        out.finish()
    }

    /// Reads a profile.
    pub fn read(&self, number: u64) -> Result<Profile> {
        let path = self.path(number, WAITS);
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(|error| Error::read(&path, error))?;
        file.take(MAX_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Error::read(&path, error))?;
        let end = bytes.iter().take(MAX_HEAD).position(|byte| *byte == b'\n');
        let end = end.filter(|_| bytes.len() as u64 <= MAX_FILE);
        let head = end.and_then(|end| serde_json::from_slice::<Head>(&bytes[..end]).ok());
        match (end, head) {
            (Some(end), Some(head)) if head.format == FORMAT && head.version == VERSION => {
                Ok(Profile {
                    about: head.about,
                    pprof: bytes.split_off(end + 1),
                })
            }
            _ => Err(Error::input(
                path.display().to_string(),
                "it is not a profile of a queue",
            )),
        }
    }

    /// Removes a profile.
    pub fn remove(&self, number: u64) -> Result {
        fs::remove_file(self.path(number, WAITS)).map_err(|error| self.failed(error))
    }

    /// Keeps a profile, but not to be sent.
    pub fn set_aside(&self, number: u64) -> Result {
        fs::rename(self.path(number, WAITS), self.path(number, REFUSED))
            .map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests;
