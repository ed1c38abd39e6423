// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes a capture: all of it or nothing.

use super::{manifest, member, Manifest};
use crate::{
    error::{Error, Result},
    output::directory_of,
};
use std::{
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;
use zip::{write::SimpleFileOptions, CompressionMethod, ZipArchive, ZipWriter};

/// How members are packed. Level 1: four fifths of the gain at a quarter of the time.
pub const PACKING: SimpleFileOptions = SimpleFileOptions::DEFAULT
    .compression_method(CompressionMethod::Deflated)
    .compression_level(Some(1));

/// A capture that is being written. Until [`finish`](Self::finish) it has another name, and no
/// name at all if that never comes. It is for its owner only: it tells where the kernel lies.
pub struct Writer {
    unfinished: PathBuf,
    zip: ZipWriter<BufWriter<NamedTempFile>>,
    path: PathBuf,
}

impl Writer {
    /// Begins a capture that will be at `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let dir = directory_of(path);
        if path.is_dir() {
            let what = format!("{}: this is a directory", path.display());
            return Err(Error::Refused(what));
        }
        let file = tempfile::Builder::new()
            .prefix(".stackmap-")
            .tempfile_in(dir)
            .map_err(|error| Error::io(format!("write into {}", dir.display()), error))?;
        Ok(Self {
            unfinished: file.path().to_owned(),
            zip: ZipWriter::new(BufWriter::new(file)),
            path: path.to_owned(),
        })
    }

    /// The name that the file has until it is finished.
    pub fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// Adds a member with all that `content` has; returns how many bytes that was.
    pub fn member(&mut self, name: &str, content: &mut dyn Read) -> Result<u64> {
        // Members may be of any size.
        let options = PACKING.large_file(true);
        self.zip
            .start_file(name, options)
            .map_err(|error| self.failed(error.into()))?;
        let mut buffer = vec![0; 256 << 10];
        let mut total = 0;
        loop {
            let len = match content.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(format!("read {name}"), error)),
            };
            self.zip
                .write_all(&buffer[..len])
                .map_err(|error| self.failed(error))?;
            total += len as u64;
        }
    }

    /// Adds the members of another archive, as they are packed there.
    pub fn copy(&mut self, archive: &[u8]) -> Result {
        let mut archive =
            ZipArchive::new(io::Cursor::new(archive)).map_err(|error| self.failed(error.into()))?;
        for index in 0..archive.len() {
            let member = archive.by_index_raw(index);
            let copied = member.and_then(|member| self.zip.raw_copy_file(member));
            copied.map_err(|error| self.failed(error.into()))?;
        }
        Ok(())
    }

    /// Adds the manifest and gives the file its name.
    pub fn finish(mut self, manifest: &Manifest) -> Result {
        let manifest = Manifest {
            format: manifest::FORMAT.to_owned(),
            version: manifest::VERSION,
            tool: concat!("stackmap ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..manifest.clone()
        };
        let json = serde_json::to_vec_pretty(&manifest)
            .map_err(|error| Error::Refused(format!("cannot write the manifest: {error}")))?;
        self.member(member::MANIFEST, &mut &json[..])?;
        let path = self.path;
        let failed = |error| Error::io(format!("write {}", path.display()), error);
        let file = self
            .zip
            .finish()
            .map_err(io::Error::from)
            .and_then(|file| file.into_inner().map_err(io::IntoInnerError::into_error))
            .map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io(format!("write {}", self.path.display()), error)
    }
}
