// SPDX-License-Identifier: MIT OR Apache-2.0

//! Instances of ftrace that belong to recordings.
//!
//! Who records into an instance holds a shared lock (flock(2)) on its directory in tracefs. So the owner is
//! known in every mount and PID namespace, and the lock ends with the process.

use super::{comms, recording::PREFIX};
use crate::{
    error::{Error, Result},
    output::warn,
    tracefs::Tracefs,
};
use rustix::fs::{flock, FlockOperation};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

/// The instances whose stacks become ids.
const LIST: &str = "stack_map_instances";
/// How often, and after which time, an instance that another process uses is taken or removed again.
const RETRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// An instance that this process owns.
pub(super) struct Instance {
    top: Tracefs,
    tracefs: Tracefs,
    /// That of the names of tasks, if it is there.
    comms: Option<Tracefs>,
    name: String,
    _lock: File,
}

/// Whether an instance records user stacks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum UserStacks {
    Recorded,
    /// Not, for this reason.
    Missing(&'static str),
    Unwanted,
}

impl Instance {
    /// Makes one.
    pub(super) fn create(top: &Tracefs, name: &str) -> Result<Self> {
        let path = top.instance_path(name);
        for _ in 0..RETRIES {
            make(&path).map_err(|error| Error::io(format!("create {}", path.display()), error))?;
            match Self::open(top, name, FlockOperation::NonBlockingLockShared) {
                Ok(Some(mut instance)) => {
                    instance.comms = instance.create_comms();
                    return Ok(instance);
                }
                // Before it was locked, another process has found and removed it, as it was empty.
                _ if !path.exists() => {}
                Ok(None) => sleep(PAUSE),
                Err(error) => {
                    let _ = unmake_dir(&path);
                    return Err(error);
                }
            }
        }
        let _ = unmake_dir(&path);
        Err(Error::Refused(format!(
            "{}: another process holds it, or removes it again and again",
            path.display()
        )))
    }

    /// Takes one over whose owner is gone; [`None`]: it has an owner, or is being made or removed.
    pub(super) fn adopt(top: &Tracefs, name: &str) -> Result<Option<Self>> {
        Self::open(top, name, FlockOperation::NonBlockingLockExclusive)
    }

    fn open(top: &Tracefs, name: &str, operation: FlockOperation) -> Result<Option<Self>> {
        let tracefs = match top.instance(name) {
            Ok(tracefs) => tracefs,
            // The kernel removes the files before the directory.
            Err(Error::Refused(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let path = tracefs.root();
        let lock = File::open(path).map_err(|error| Error::read(path, error))?;
        match flock(&lock, operation) {
            // Before it was locked, it was removed, and one of this name may have been made again.
            Ok(()) if !is_at(&lock, path) => return Ok(None),
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(Error::io(format!("lock {}", path.display()), error.into())),
        }
        Ok(Some(Self {
            top: top.clone(),
            comms: comms::find(top, name),
            name: name.to_owned(),
            _lock: lock,
            tracefs,
        }))
    }

    /// Makes that of the names of tasks. Without it, a recording has the last names.
    fn create_comms(&self) -> Option<Tracefs> {
        let path = comms::path(&self.top, &self.name);
        let made =
            make(&path).map_err(|error| Error::io(format!("create {}", path.display()), error));
        let made = made.and_then(|()| Tracefs::find(Some(&path)));
        made.map_err(|error| warn(format_args!("names of tasks are not recorded: {error}")))
            .ok()
    }

    /// Returns its files.
    pub(super) fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// Returns the files of that with the names of tasks.
    pub(super) fn comms(&self) -> Option<&Tracefs> {
        self.comms.as_ref()
    }

    /// Lists it, so that its stacks become ids.
    pub(super) fn list(&self, wants_user: bool) -> Result<UserStacks> {
        let name = &self.name;
        let write = |entry: &str| self.top.append(LIST, &format!("{entry}\n"));
        let mut user = UserStacks::Unwanted;
        if wants_user {
            let missing = match write(&format!("{name}/user")) {
                Ok(()) => return Ok(UserStacks::Recorded),
                Err(Error::Io { error, .. }) if error.kind() == io::ErrorKind::Unsupported => {
                    "this kernel lacks what user stacks need, dmesg says what"
                }
                Err(Error::Io { error, .. }) if error.kind() == io::ErrorKind::ResourceBusy => {
                    "62 tracers have user stacks already, and no more can"
                }
                Err(error) => return Err(explain(error)),
            };
            user = UserStacks::Missing(missing);
        }
        write(name).map_err(explain)?;
        Ok(user)
    }

    /// Stops recording, and keeps what was recorded.
    pub(super) fn stop(&self) -> Result {
        // A marker that this buffer refused would not come to the others.
        copy_markers(&self.tracefs, false)?;
        self.tracefs.write("tracing_on", "0")?;
        if let Some(comms) = &self.comms {
            comms.write("tracing_on", "0")?;
        }
        let listed = self.top.read(LIST).unwrap_or_default();
        let own = |line: &str| line == self.name || line.strip_suffix("/user") == Some(&self.name);
        match listed.lines().any(own) {
            true => self.top.append(LIST, &format!("!{}\n", self.name)),
            false => Ok(()),
        }
    }

    /// Returns whether nothing was recorded.
    pub(super) fn is_empty(&self) -> Result<bool> {
        let stats = super::save::cpu_stats(&self.tracefs)?;
        Ok(stats.iter().all(|cpu| cpu.entries == 0 && cpu.read == 0))
    }

    /// Stops and removes it. If it is in use, it is empty afterwards.
    pub(super) fn remove(self) -> Result {
        let stopped = self.stop();
        // Who finds this one removes both.
        self.comms.as_ref().map_or(Ok(()), unmake)?;
        unmake(&self.tracefs)?;
        stopped
    }
}

/// Sets whether what programs write to `trace_marker` of the top level is recorded; returns whether this kernel can do
/// that.
pub(super) fn copy_markers(tracefs: &Tracefs, on: bool) -> Result<bool> {
    let option = "options/copy_trace_marker";
    if !tracefs.has(option) {
        return Ok(false);
    }
    tracefs.write(option, if on { "1" } else { "0" })?;
    Ok(true)
}

/// Removes an instance.
pub(super) fn unmake(tracefs: &Tracefs) -> Result {
    let path = tracefs.root();
    let mut attempt = 0;
    loop {
        match unmake_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // A process that is being killed has not closed its files yet.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && attempt < RETRIES => {
                attempt += 1;
                sleep(PAUSE);
            }
            Err(error) => {
                let _ = tracefs.write("trace", "");
                return Err(Error::Refused(format!(
                    "cannot remove {}: {error}\n  hint: when no process has files of it open any more, the next \
                     record removes it",
                    path.display()
                )));
            }
        }
    }
}

/// Returns whether `file` is what is at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(file), Ok(found)) => id(file) == id(found),
        _ => false,
    }
}

fn explain(error: Error) -> Error {
    match error {
        Error::Io { error, .. } if error.kind() == io::ErrorKind::StorageFull => Error::Refused(
            "the module serves no more instances\n  hint: stack_map_instances in tracefs lists them; \"stackmap \
             recover --list\" shows what recorders that were killed have left"
                .to_owned(),
        ),
        error => error,
    }
}

/// For tests: the directory that becomes an instance, in place of one that the kernel fills. Beside it is that for the
/// names of tasks.
const TEST: &str = "STACKMAP_TEST_INSTANCE";

fn test(path: &Path) -> Option<PathBuf> {
    let test = PathBuf::from(std::env::var_os(TEST)?);
    let name = path.file_name()?.to_string_lossy();
    Some(match name.starts_with(PREFIX) {
        true => test,
        false => test.with_extension("names"),
    })
}

fn make(path: &Path) -> io::Result<()> {
    match test(path) {
        // From the attempt before.
        _ if path.exists() => Ok(()),
        Some(test) => fs::rename(test, path),
        None => fs::create_dir(path),
    }
}

fn unmake_dir(path: &Path) -> io::Result<()> {
    match test(path) {
        Some(test) => fs::rename(path, test),
        None => fs::remove_dir(path),
    }
}

/// Returns the names of all instances that recordings have made.
pub(super) fn names(top: &Tracefs) -> Vec<String> {
    let entries = fs::read_dir(top.instance_path("")).into_iter().flatten();
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let is_ours = |name: &String| {
        let number = name.strip_prefix(PREFIX);
        number.is_some_and(|number| u64::from_str_radix(number, 16).is_ok())
    };
    let mut names: Vec<_> = names.filter(is_ours).collect();
    names.sort();
    names
}
