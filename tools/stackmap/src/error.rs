// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors, in words for the user, and their exit statuses.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// The result of everything here that can fail.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// An error, in words for the user.
#[derive(Debug)]
pub enum Error {
    /// An input is not what it should be.
    Input {
        /// The file, or what stands for it.
        source: String,
        /// Where in the file, in bytes, if that is known.
        offset: Option<u64>,
        /// What is wrong there.
        what: String,
    },
    /// The system refused something.
    Io {
        /// What was tried, as in "cannot {what}".
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// A command cannot be run.
    Command {
        /// Which.
        command: String,
        /// What the system said.
        error: io::Error,
    },
    /// Something cannot be done as things are. What to do about it is part of the text.
    Refused(String),
    /// The reader of the output has ended.
    BrokenPipe,
    /// The message was printed already; only the exit status is left.
    Status(u8),
}

impl Error {
    /// An input that is wrong as a whole.
    pub fn input(source: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Input {
            source: source.into(),
            offset: None,
            what: what.into(),
        }
    }

    /// An input that is wrong `offset` bytes from its beginning.
    pub fn input_at(source: impl Into<String>, offset: u64, what: impl Into<String>) -> Self {
        Error::Input {
            source: source.into(),
            offset: Some(offset),
            what: what.into(),
        }
    }

    /// What the system said when it was asked to `what`.
    pub fn io(what: impl Into<String>, error: io::Error) -> Self {
        Error::Io {
            what: what.into(),
            error,
        }
    }

    /// What the system said when `path` was read.
    pub fn read(path: &Path, error: io::Error) -> Self {
        Error::io(format!("read {}", path.display()), error)
    }

    /// The error of a reader of `source`: the input does not decode, or the system refused to read.
    pub fn reading(source: &str, offset: u64, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof => Error::input_at(source, offset, error.to_string()),
            _ => Error::io(format!("read {source} at byte {offset}"), error),
        }
    }

    /// The status that the process exits with: 2 for inputs that are wrong; for commands that
    /// cannot be run what a shell has, 127 if there is none, 126 otherwise; 1 for the rest.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Input { .. } => 2,
            Error::Io { .. } | Error::Refused(_) => 1,
            Error::Command { error, .. } => match error.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            Error::BrokenPipe => 0,
            Error::Status(status) => *status,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Input {
                source,
                offset: Some(offset),
                what,
            } => write!(f, "{source}: at byte {offset}: {what}"),
            Error::Input {
                source,
                offset: None,
                what,
            } => write!(f, "{source}: {what}"),
            Error::Io { what, error } => {
                write!(f, "cannot {what}: {}", reason(error))?;
                match hint(what, error.kind()) {
                    Some(hint) => write!(f, "\n  hint: {hint}"),
                    None => Ok(()),
                }
            }
            Error::Command { command, error } => {
                write!(f, "cannot run {command}: {}", reason(error))
            }
            Error::Refused(text) => f.write_str(text),
            Error::BrokenPipe => f.write_str("broken pipe"),
            Error::Status(status) => write!(f, "exit status {status}"),
        }
    }
}

/// Returns what the system said, without the number that the standard library adds.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// What to do when the system refuses to `what`.
fn hint(what: &str, kind: io::ErrorKind) -> Option<&'static str> {
    let of_kernel = ["/sys/", "/proc/", "tracing", "tracefs"];
    let of_kernel = of_kernel.iter().any(|part| what.contains(part));
    match kind {
        io::ErrorKind::PermissionDenied if of_kernel => {
            Some("tracefs and kernel addresses need root")
        }
        io::ErrorKind::PermissionDenied if what.starts_with("read ") => {
            Some("only its owner can read a capture, which is root if root recorded it")
        }
        io::ErrorKind::NotFound if what == "read stackmap.data" => {
            Some("\"stackmap record\" writes it; give the name of another capture")
        }
        io::ErrorKind::NotFound if what.starts_with("write ") => Some("there is no such directory"),
        io::ErrorKind::IsADirectory => Some("this is a directory; give a file"),
        _ => None,
    }
}

impl std::error::Error for Error {}

/// Errors of writing the output, which names its file; other errors name what was tried.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Error::BrokenPipe;
        }
        match error.downcast() {
            Ok(WriteError { path, error }) => Error::io(format!("write {}", path.display()), error),
            Err(error) => Error::io("write to standard output", error),
        }
    }
}

/// An error of writing to a file. An [`io::Error`] can carry it through [`io::Write`].
#[derive(Debug)]
pub(crate) struct WriteError {
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for WriteError {}
