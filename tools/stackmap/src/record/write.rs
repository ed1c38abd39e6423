// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes to files of tracefs, which can be kept and done later.

use crate::{
    error::{Error, Result},
    tracefs::Tracefs,
};
use serde::{Deserialize, Serialize};
use std::{io::ErrorKind, thread::sleep, time::Duration};

/// How the line of an empty `set_ftrace_filter` begins.
const COMMENT: &str = "#";

/// How often, and after which time, a write is done again while the file is busy.
const RETRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// A write to a file of tracefs.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Write {
    file: String,
    text: String,
    append: bool,
    /// The write is done only if the file has this text.
    if_has: Option<String>,
    /// Whether the write loses the contents of the buffer.
    pub(super) costly: bool,
}

impl Write {
    /// Replaces the file's contents.
    pub(super) fn new(file: &str, text: &str) -> Self {
        Self {
            file: file.to_owned(),
            text: text.to_owned(),
            append: false,
            if_has: None,
            costly: false,
        }
    }

    /// Adds a line to them.
    pub(super) fn append(file: &str, text: &str) -> Self {
        Self {
            text: format!("{text}\n"),
            append: true,
            ..Self::new(file, "")
        }
    }

    /// Adds a line to them if they have the text `mark`.
    pub(super) fn append_if(file: &str, text: &str, mark: &str) -> Self {
        Self {
            if_has: Some(mark.to_owned()),
            ..Self::append(file, text)
        }
    }

    /// Replaces them, and loses the contents of the buffer.
    pub(super) fn costly(file: &str, text: &str) -> Self {
        Self {
            costly: true,
            ..Self::new(file, text)
        }
    }

    /// Does it.
    pub(super) fn run(&self, tracefs: &Tracefs) -> Result {
        if let Some(mark) = &self.if_has {
            if !tracefs.read(&self.file)?.contains(mark) {
                return Ok(());
            }
        }
        let write = || match self.append {
            true => tracefs.append(&self.file, &self.text),
            false => tracefs.write(&self.file, &self.text),
        };
        // The kernel refuses another tracer while a process that is being killed has not closed its
        // buffers yet.
        for _ in 0..RETRIES {
            match write() {
                Err(Error::Io { error, .. }) if error.kind() == ErrorKind::ResourceBusy => {
                    sleep(PAUSE);
                }
                result => return result,
            }
        }
        write()
    }
}

/// A line of `set_ftrace_filter` as it can be written. Commands (`schedule:traceoff`) are no
/// part of the filter.
pub(super) fn filter(line: &str) -> Option<String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(COMMENT) || line.contains(':') {
        return None;
    }
    match line.split_once(" [") {
        Some((function, module)) => {
            let module = module.split(']').next().unwrap_or_default();
            Some(format!("{}:mod:{module}", function.trim()))
        }
        None => Some(line.split(' ').next().unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_restored() {
        assert_eq!(filter("vfs_read").as_deref(), Some("vfs_read"));
        assert_eq!(
            filter("p9_tag_alloc [9pnet]").as_deref(),
            Some("p9_tag_alloc:mod:9pnet")
        );
        assert_eq!(filter("#### all functions enabled ####"), None);
        assert_eq!(filter("schedule:traceoff:unlimited"), None);
        assert_eq!(filter(""), None);
    }
}
