// SPDX-License-Identifier: MIT OR Apache-2.0

//! The locks of recordings: one recording for each buffer, and one switch for all of them.
//!
//! The locks are flock(2) locks on directories and files of tracefs itself, so that they work for
//! any path or mount, and end with the processes that hold them. The guard process inherits them:
//! what a dead recording has changed stays locked until it is restored.

use crate::{
    error::{Error, Result},
    output::safe,
    tracefs::Tracefs,
};
use rustix::{
    fs::{flock, FlockOperation},
    io::{fcntl_setfd, FdFlags},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// The switches of the module, for all buffers: that of ids, and that of user stacks.
pub(super) const IDS: &str = "options/stackmap";
pub(super) const USER: &str = "options/stackmap-user";
/// How long the guard of a dead recording may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the lock is tried again while `/proc/locks` shows no holder: it was released meanwhile,
/// or the holder is in another PID namespace.
const UNSEEN: Duration = Duration::from_secs(1);

/// The lock of a buffer: only this process records into it.
pub(super) struct Lock(File);

impl Lock {
    /// Takes the lock. If another recording holds it, the error says which.
    pub(super) fn take(tracefs: &Tracefs) -> Result<Self> {
        let path = tracefs.root();
        let dir = File::open(path).map_err(|error| Error::read(path, error))?;
        let start = Instant::now();
        loop {
            match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(dir)),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => {
                    let what = format!("lock {}", path.display());
                    return Err(Error::io(what, error.into()));
                }
            }
            let holder = Holder::of(&dir);
            let patience = match holder {
                Some(Holder { alive: Some(_), .. }) => Duration::ZERO,
                // The guard of a recording that was killed is restoring tracefs: wait for it.
                Some(Holder { alive: None, .. }) => PATIENCE,
                None => UNSEEN,
            };
            if start.elapsed() >= patience {
                return Err(refusal(tracefs, holder));
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Sets whether the process that is started next inherits the lock.
    pub(super) fn inherit(&self, on: bool) -> io::Result<()> {
        let flags = if on {
            FdFlags::empty()
        } else {
            FdFlags::CLOEXEC
        };
        Ok(fcntl_setfd(&self.0, flags)?)
    }
}

fn refusal(tracefs: &Tracefs, holder: Option<Holder>) -> Error {
    let who = match holder {
        Some(Holder {
            pid,
            alive: Some((command, since)),
        }) => format!(
            "process {pid} is recording already, for {} s: {}",
            since.as_secs(),
            safe(&command)
        ),
        Some(Holder { pid, alive: None }) => {
            format!("process {pid} died while recording, and tracefs is still being restored")
        }
        None => "another process is recording already".to_owned(),
    };
    let place = match tracefs.instance_name() {
        Some(name) => format!("instance {name}"),
        None => "the top level".to_owned(),
    };
    Error::Refused(format!(
        "{who}\n  hint: {place} has one recording at a time, even with --force; --instance NAME \
         records beside it"
    ))
}

/// A process that has a lock.
#[derive(Debug, Eq, PartialEq)]
struct Holder {
    pid: u32,
    /// What it runs, and since when; [`None`]: it is dead.
    alive: Option<(String, Duration)>,
}

impl Holder {
    /// The one that has the lock of `file`, if it can be seen from here.
    fn of(file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        let device = rustix::fs::Dev::from(metadata.dev());
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let pid = find(
            &locks,
            &format!("{major:02x}:{minor:02x}:{}", metadata.ino()),
        )?;
        Some(Self {
            pid,
            alive: command(pid).zip(age(pid)),
        })
    }
}

/// The process that has the lock of a file in a text as that of `/proc/locks`.
fn find(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        // A process that waits has an arrow before it, and no lock.
        if words.next()? != "FLOCK" {
            return None;
        }
        let pid = words.nth(2)?.parse().ok()?;
        (words.next()? == file).then_some(pid)
    })
}

/// The command line of a process that runs.
fn command(pid: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // A zombie has none.
    let words = words.strip_suffix(b"\0")?;
    Some(String::from_utf8_lossy(words).replace('\0', " "))
}

/// How long a process has been there.
fn age(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    // The name, in brackets, may have blanks: field 22 is the 20th behind it.
    let ticks: f64 = stat
        .rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(19)?
        .parse()
        .ok()?;
    let start = ticks / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64((uptime - start).max(0.0)).ok()
}

/// A switch of the module, which several recordings share.
///
/// A recording that found the switch off, or switched on by another recording, holds a shared lock
/// on it; the last of these recordings switches it off. While the file is open, the module cannot
/// be unloaded.
pub(super) struct Switch {
    name: String,
    file: File,
    before: bool,
}

impl Switch {
    /// Joins the recordings that share the switch, before it is switched on.
    pub(super) fn on(tracefs: &Tracefs, name: &str) -> Result<Self> {
        let path = tracefs.path(name);
        let failed = |error| Error::io(format!("lock {}", path.display()), error);
        let file = File::open(&path).map_err(|error| Error::read(&path, error))?;
        let _turn = turn(tracefs.top())?;
        let alone = try_lock(&file).map_err(failed)?;
        let before = alone && tracefs.read(name)?.trim() == "1";
        let operation = match before {
            true => FlockOperation::Unlock,
            false => FlockOperation::LockShared,
        };
        flock(&file, operation).map_err(|error| failed(error.into()))?;
        Ok(Self {
            name: name.to_owned(),
            file,
            before,
        })
    }

    /// What it was before.
    pub(super) fn before(&self) -> Before {
        Before {
            name: self.name.clone(),
            on: self.before,
        }
    }
}

impl AsFd for Switch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What a switch was before a recording.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Before {
    /// Which.
    name: String,
    /// Whether it was on, and not by a recording.
    on: bool,
}

/// Restores a switch, unless another recording needs it. `file` is the open switch.
pub(super) fn switch_back(tracefs: &Tracefs, file: &impl AsFd, before: &Before) -> Result {
    let name = &before.name;
    let failed = |error| Error::io(format!("lock {}", tracefs.path(name).display()), error);
    if before.on {
        return tracefs.write(name, "1");
    }
    let _turn = turn(tracefs.top())?;
    let result = match try_lock(file).map_err(failed)? {
        true => tracefs.write(name, "0"),
        false => Ok(()),
    };
    // The next recording must not find a lock of this one.
    flock(file, FlockOperation::Unlock).map_err(|error| failed(error.into()))?;
    result
}

/// A lock that protects looking at the locks of the switch and changing them.
fn turn(top: &Path) -> Result<File> {
    let path = top.join("options");
    let failed = |error| Error::io(format!("lock {}", path.display()), error);
    let dir = File::open(&path).map_err(failed)?;
    flock(&dir, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    Ok(dir)
}

fn try_lock(file: &impl AsFd) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracefs(dir: &Path) -> Tracefs {
        fs::create_dir_all(dir.join("options")).unwrap();
        fs::create_dir_all(dir.join("instances/x")).unwrap();
        for file in ["trace", "instances/x/trace"] {
            fs::write(dir.join(file), "").unwrap();
        }
        fs::write(dir.join(IDS), "0\n").unwrap();
        Tracefs::find(Some(dir)).unwrap()
    }

    #[test]
    fn a_buffer_has_one_recording() {
        let dir = tempfile::tempdir().unwrap();
        let tracefs = tracefs(dir.path());
        let lock = Lock::take(&tracefs).unwrap();
        let error = Lock::take(&tracefs).map(drop).unwrap_err().to_string();
        assert!(error.contains("recording already"), "{error}");
        assert!(error.contains("--instance NAME"), "{error}");
        Lock::take(&tracefs.instance("x").unwrap()).unwrap();
        drop(lock);
        Lock::take(&tracefs).unwrap();
    }

    #[test]
    fn holders_are_found() {
        let locks = "\
1: FLOCK  ADVISORY  WRITE 77 00:0c:12 0 EOF
1: -> FLOCK  ADVISORY  WRITE 78 00:0c:13 0 EOF
2: POSIX  ADVISORY  WRITE 79 00:0c:13 0 EOF
3: FLOCK  ADVISORY  READ  80 00:0c:13 0 EOF
";
        assert_eq!(find(locks, "00:0c:12"), Some(77));
        assert_eq!(find(locks, "00:0c:13"), Some(80));
        assert_eq!(find(locks, "00:0c:1"), None);
        let own = std::process::id();
        assert!(!command(own).unwrap().is_empty());
        assert!(age(own).unwrap() < Duration::from_secs(24 * 3600));
        assert_eq!(command(u32::MAX), None);
    }

    #[test]
    fn the_last_recording_switches_the_option_off() {
        let dir = tempfile::tempdir().unwrap();
        let tracefs = tracefs(dir.path());
        let value = || fs::read_to_string(dir.path().join(IDS)).unwrap();
        let on = || {
            let switch = Switch::on(&tracefs, IDS).unwrap();
            tracefs.write(IDS, "1").unwrap();
            switch
        };
        let off = |switch: Switch| switch_back(&tracefs, &switch, &switch.before()).unwrap();
        let (one, other) = (on(), on());
        off(one);
        assert_eq!(value(), "1");
        let third = on();
        off(other);
        assert_eq!(value(), "1");
        off(third);
        assert_eq!(value(), "0");
        // One that dies before it has put it off is none of them any more.
        drop(on());
        tracefs.write(IDS, "0").unwrap();
        off(on());
        assert_eq!(value(), "0");

        // An option that another user has enabled stays on.
        tracefs.write(IDS, "1").unwrap();
        let (one, other) = (on(), on());
        off(other);
        off(one);
        assert_eq!(value(), "1");
    }
}
