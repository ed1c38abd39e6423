// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the tool where the captures are, and alters captures.

use flate2::read::GzDecoder;
use serde_json::Value;
use stackmap::capture::{member, Capture, Manifest, Writer};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Returns the path of a file in `tests/data`.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// Splits a command line at its blanks, but for those between single quotes.
pub(crate) fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    let words = parts.map(|(number, part)| match number % 2 {
        0 => part.split_ascii_whitespace().collect(),
        _ => vec![part],
    });
    words.collect::<Vec<_>>().concat()
}

/// Returns the tool with these arguments, without colours and a screen.
pub(crate) fn command(arguments: impl AsRef<str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stackmap"));
    command
        .args(words(arguments.as_ref()))
        .env("NO_COLOR", "1")
        .env_remove("CLICOLOR_FORCE")
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .env_remove("SSH_CONNECTION")
        .current_dir(data("."));
    command
}

/// What a command has printed, and how it has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// Asserts that it has succeeded.
    pub(crate) fn well(self) -> Self {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self
    }

    /// Asserts that it has failed with this status, and has said why.
    pub(crate) fn failed(self, status: i32, why: &str) -> Self {
        assert_eq!(self.status, Some(status), "{}", self.stderr);
        assert!(self.stderr.contains(why), "{why}: {}", self.stderr);
        self
    }

    /// Returns its standard output as text.
    pub(crate) fn text(self) -> String {
        String::from_utf8(self.stdout).unwrap()
    }
}

/// Runs the tool with these arguments.
pub(crate) fn run(arguments: impl AsRef<str>) -> Ran {
    command(arguments).output().unwrap().into()
}

/// Returns what it prints; it must succeed.
pub(crate) fn stdout(arguments: impl AsRef<str>) -> String {
    run(arguments).well().text()
}

/// Returns what it exports as JSON with these arguments.
pub(crate) fn json(arguments: impl AsRef<str>) -> Value {
    let text = stdout(format!("export --format json {}", arguments.as_ref()));
    serde_json::from_str(&text).unwrap()
}

/// Returns the events of an export.
pub(crate) fn events(export: &Value) -> &Vec<Value> {
    export["events"].as_array().unwrap()
}

/// Returns the time of an event of an export in microseconds.
pub(crate) fn micros(event: &Value) -> u64 {
    let text = event["time"].as_str().unwrap();
    text.replace('.', "").parse().unwrap()
}

/// Returns the counts after folded stacks.
pub(crate) fn counts(folded: &str) -> impl Iterator<Item = u64> + '_ {
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    counts.map(|count| count.parse().unwrap())
}

/// Returns whether some bytes hold a text.
pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

/// Unpacks what gzip has packed.
pub(crate) fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut unpacked).unwrap();
    unpacked
}

/// Returns the permissions of a file.
pub(crate) fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A directory of its own for a test.
pub(crate) struct Dir(tempfile::TempDir);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Returns the path of a file in it.
    pub(crate) fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file into it, and returns its path.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.at(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Returns how many files it has.
    pub(crate) fn nr_files(&self) -> usize {
        fs::read_dir(self.0.path()).unwrap().count()
    }
}

impl AsRef<Path> for Dir {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}

/// What is in a capture. It can be altered and written again.
pub(crate) struct Members {
    pub(crate) manifest: Manifest,
    pub(crate) members: BTreeMap<String, Vec<u8>>,
}

impl Members {
    pub(crate) fn read(path: impl AsRef<Path>) -> Self {
        let mut archive = zip::ZipArchive::new(File::open(path.as_ref()).unwrap()).unwrap();
        let mut members = BTreeMap::new();
        for index in 0..archive.len() {
            let mut member = archive.by_index(index).unwrap();
            let mut content = Vec::new();
            member.read_to_end(&mut content).unwrap();
            members.insert(member.name().unwrap().into_owned(), content);
        }
        let manifest = Capture::open(path.as_ref()).unwrap().manifest().clone();
        Self { manifest, members }
    }

    /// Returns a member that is text.
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8(self.members[name].clone()).unwrap()
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>) {
        let mut writer = Writer::create(path.as_ref()).unwrap();
        for (name, content) in &self.members {
            if name != member::MANIFEST {
                writer.member(name, &mut &content[..]).unwrap();
            }
        }
        writer.finish(&self.manifest).unwrap();
    }
}
