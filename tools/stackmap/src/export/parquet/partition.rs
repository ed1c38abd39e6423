// SPDX-License-Identifier: MIT OR Apache-2.0

//! The directories of one capture among those of others.
//!
//! Files are made in a temporary directory beside the tables. Only complete ones are moved to
//! `DIR/TABLE/capture=KEY`, in place of what an earlier export of the capture left there.

use crate::{
    error::{Error, Result},
    output::Access,
};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The partition of a capture in all tables.
pub(super) struct Partition {
    /// The directory of the tables.
    root: PathBuf,
    /// What the directories of the capture are called.
    name: String,
    unfinished: TempDir,
    tables: Vec<&'static str>,
    access: Access,
}

impl Partition {
    /// Begins the partition `key` of the tables in `root`, a directory that is made if it is not there.
    pub(super) fn create(root: &Path, key: &str, access: Access) -> Result<Self> {
        let failed = |error| Error::io(format!("write {}", root.display()), error);
        make_dir(root, access).map_err(failed)?;
        let unfinished = tempfile::Builder::new()
            .prefix(".stackmap-")
            .tempdir_in(root)
            .map_err(failed)?;
        Ok(Self {
            root: root.to_owned(),
            name: format!("capture={key}"),
            unfinished,
            tables: Vec::new(),
            access,
        })
    }

    /// Makes the file of a table, and returns it with what it is called in errors. The tables appear in
    /// the order of these calls.
    pub(super) fn file(&mut self, table: &'static str) -> Result<(File, String)> {
        let dir = self.unfinished.path().join(table);
        let shown = self.place(table).join("part.parquet");
        let shown = shown.display().to_string();
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true);
        let file = make_dir(&dir, self.access)
            .and_then(|()| {
                let mode = self.mode(0o666);
                options.mode(mode).open(dir.join("part.parquet"))
            })
            .map_err(|error| Error::io(format!("write {shown}"), error))?;
        self.tables.push(table);
        Ok((file, shown))
    }

    /// Moves all files to where they belong.
    pub(super) fn finish(self) -> Result {
        for table in &self.tables {
            let place = self.place(table);
            let replaced = self.unfinished.path().join(format!("{table}-replaced"));
            let moved = fs::create_dir_all(self.root.join(table))
                .and_then(|()| match fs::rename(&place, &replaced) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                })
                .and_then(|()| fs::rename(self.unfinished.path().join(table), &place));
            moved.map_err(|error| Error::io(format!("write {}", place.display()), error))?;
        }
        Ok(())
    }

    fn place(&self, table: &str) -> PathBuf {
        self.root.join(table).join(&self.name)
    }

    fn mode(&self, open: u32) -> u32 {
        match self.access {
            Access::Umask => open,
            Access::Owner => open & 0o700,
        }
    }
}

/// Makes a directory unless it is there.
fn make_dir(path: &Path, access: Access) -> io::Result<()> {
    let mode = match access {
        Access::Umask => 0o777,
        Access::Owner => 0o700,
    };
    DirBuilder::new().recursive(true).mode(mode).create(path)
}
