// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is known of a recording, in a file, so that another process can finish it.
//!
//! The files are in `/run/stackmap`, one for each recording, with the name of its instance.

use super::{label::Label, limits::Limits, modules::Builds, spool::Directory, Options};
use crate::{
    capture::{ClockReading, Recorded, Sleeper},
    error::{Error, Result},
    output::{is_replaced, Access, NewFile},
    tracefs::MapState,
    user::live::since_boot,
};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, DirBuilder},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// How the names of the instances begin.
pub(super) const PREFIX: &str = "stackmap-";
/// Where the files are, and for tests, what says where they are instead.
const DIR: &str = "/run/stackmap";
const TEST_DIR: &str = "STACKMAP_TEST_RUN";

/// A recording.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Recording {
    /// The file of the capture; [`None`]: it goes to a pipe or a device.
    pub(super) output: Option<PathBuf>,
    /// The directory with the pages that were streamed.
    pub(super) spool: PathBuf,
    /// The clock that was chosen.
    pub(super) clock: Option<String>,
    /// What was asked for.
    pub(super) recorded: Recorded,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) all_symbols: bool,
    pub(super) no_args: bool,
    pub(super) anonymous: bool,
    /// The processes that record.
    pub(super) recorder: Vec<u32>,
    /// What was there when tracing was switched on; [`None`]: it was not yet.
    pub(super) begun: Option<Begun>,
    /// The name of the file.
    name: String,
}

/// What was there when a recording began.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Begun {
    /// How long after the start of the system that was, in nanoseconds.
    pub(super) since_boot: u64,
    pub(super) clock: Option<ClockReading>,
    /// The text of `/proc/modules`.
    pub(super) modules: String,
    pub(super) builds: Builds,
    pub(super) map: MapState,
    /// The tasks that waited.
    pub(super) sleepers: Vec<Sleeper<String>>,
    /// The processes of threads.
    pub(super) threads: BTreeMap<i32, u32>,
    /// Files of the instance that nobody else should write to.
    pub(super) settings: BTreeMap<String, String>,
}

impl Recording {
    /// Describes a recording that begins now, in an instance with a new name.
    pub(super) fn new(options: &Options, limits: &Limits<'_>) -> Self {
        Self {
            clock: Some(options.clock.clone()),
            recorded: options.recorded(limits),
            labels: Label::all(&options.label),
            all_symbols: options.all_symbols,
            no_args: options.hides_args(),
            anonymous: options.anonymous,
            recorder: vec![std::process::id()],
            ..Self::of_buffer(&options.output)
        }
    }

    /// Describes the saving of a buffer to `output`.
    pub(super) fn of_buffer(output: &Path) -> Self {
        Self::named(format!("{PREFIX}{:x}", since_boot().as_nanos()), output)
    }

    /// Describes a recording whose file is not here, and makes one.
    pub(super) fn of_instance(name: &str, output: &Path) -> Result<Self> {
        let recording = Self::named(name.to_owned(), output);
        recording.store()?;
        Ok(recording)
    }

    fn named(name: String, output: &Path) -> Self {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let output = is_replaced(output).then(|| absolute(output));
        let dir = output.as_deref().and_then(Path::parent).map(Path::to_owned);
        let dir = dir.unwrap_or_else(std::env::temp_dir);
        Self {
            spool: dir.join(format!(".{name}")),
            output,
            name,
            ..Self::default()
        }
    }

    /// The name of the recording, which is also that of its instance.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Writes the file.
    pub(super) fn store(&self) -> Result {
        let path = path_of(&self.name)?;
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::io("describe the recording", error.into()))?;
        let new = NewFile::create(&path, Access::Owner)?;
        let written = new.file().write_all(&text);
        written.map_err(|error| Error::io(format!("write {}", path.display()), error))?;
        new.finish()
    }

    /// Reads the recording of this name, if there is its file.
    pub(super) fn load(name: &str) -> Result<Option<Self>> {
        let path = path_of(name)?;
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| Error::read(&path, error))?,
        };
        let recording = serde_json::from_slice(&text)
            .map_err(|error| Error::input(path.display().to_string(), error.to_string()))?;
        Ok(Some(recording))
    }

    /// Returns the names of all recordings that have a file.
    pub(super) fn names() -> Result<Vec<String>> {
        let dir = own_dir()?;
        let entries = fs::read_dir(&dir).map_err(|error| Error::read(&dir, error))?;
        let name = |path: PathBuf| match path.extension() == Some(OsStr::new("json")) {
            true => Some(path.file_stem()?.to_str()?.to_owned()),
            false => None,
        };
        let mut names: Vec<_> = entries
            .flatten()
            .filter_map(|entry| name(entry.path()))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Removes the file and the pages that were streamed.
    pub(super) fn remove_files(&self) {
        if let Ok(dir) = Directory::open(&self.spool) {
            dir.remove();
        }
        if let Ok(path) = path_of(&self.name) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns whether a file was written since the recording of this name began, as far as the clock of the file
/// system tells.
pub(super) fn is_newer(file: &Path, name: &str) -> bool {
    let modified = |path: &Path| fs::metadata(path)?.modified();
    let began = path_of(name).map(|path| modified(&path));
    matches!((modified(file), began), (Ok(written), Ok(Ok(began))) if written >= began)
}

/// Returns the path of the file of the recording of this name.
fn path_of(name: &str) -> Result<PathBuf> {
    Ok(own_dir()?.join(format!("{name}.json")))
}

/// Returns the directory of the files, which is made if it is not there and must be closed to other users.
fn own_dir() -> Result<PathBuf> {
    let dir = std::env::var_os(TEST_DIR).map_or_else(|| PathBuf::from(DIR), PathBuf::from);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|error| Error::io(format!("create {}", dir.display()), error))?;
    let found = fs::symlink_metadata(&dir).map_err(|error| Error::read(&dir, error))?;
    match found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
        true => Ok(dir),
        false => Err(Error::Refused(format!(
            "{}: this is not a directory of yours that is closed to others\n  hint: remove it",
            dir.display()
        ))),
    }
}
