// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes a capture: all of it or nothing.

use super::{manifest, member, Manifest};
use crate::{
    error::{Error, Result},
    output::{directory_of, is_replaced, Access, NewFile, Out},
};
use rustix::{
    fs::{fallocate, fstatvfs, FallocateFlags},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Read, Seek, Write},
    path::{Path, PathBuf},
};
use zip::{write::SimpleFileOptions, CompressionMethod, ZipWriter};

/// How members are packed. Level 1: four fifths of the gain at a quarter of the time.
pub const PACKING: SimpleFileOptions = SimpleFileOptions::DEFAULT
    .compression_method(CompressionMethod::Deflated)
    .compression_level(Some(1));

/// A capture that is being written. Until [`finish`](Self::finish) it has another name, and no
/// name at all if that never comes. It is for its owner only: it tells where the kernel lies.
pub struct Writer {
    zip: ZipWriter<BufWriter<File>>,
    /// The same file.
    file: File,
    target: Target,
    path: PathBuf,
}

/// The space for a capture.
pub struct Space(File);

impl Space {
    /// That of `file`, for tests.
    #[cfg(test)]
    pub(crate) fn of(file: File) -> Self {
        Self(file)
    }

    /// Reserves space for a capture of `size` bytes.
    pub fn reserve(&self, size: u64) -> io::Result<()> {
        reserve(&self.0, size)
    }
}

/// What becomes of the file when it is finished.
enum Target {
    /// It gets its name.
    Name(NewFile),
    /// It is copied to where nothing can be replaced, and no name be given.
    Stream(Out),
}

impl Writer {
    /// Begins a capture that will be at `path`. Where that is a pipe or a device, it is opened now, and written to at the end.
    pub fn create(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Err(Error::Refused(format!(
                "{}: this is a directory\n  hint: give a file with -o",
                path.display()
            )));
        }
        if path == Path::new("-") && io::stdout().is_terminal() {
            return Err(Error::Refused(
                "a capture is binary and is not written to a terminal\n  hint: -o FILE, or a pipe: \
                 -o - | COMMAND"
                    .to_owned(),
            ));
        }
        let (file, target) = match is_replaced(path) {
            true => {
                let new = NewFile::create(path, Access::Owner);
                let new = new.map_err(|error| cannot_finish(path, error))?;
                let file = new.file().try_clone();
                let file = file.map_err(|error| cannot_write(path, error))?;
                (file, Target::Name(new))
            }
            false => {
                let out = Out::file(path, Access::Owner)?;
                let file = tempfile::tempfile()
                    .map_err(|error| Error::io("make a temporary file for the capture", error))?;
                (file, Target::Stream(out))
            }
        };
        Ok(Self {
            file: file
                .try_clone()
                .map_err(|error| cannot_write(path, error))?,
            zip: ZipWriter::new(BufWriter::new(file)),
            target,
            path: path.to_owned(),
        })
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that there is space for a capture of `size` bytes, before anything is written.
    pub fn reserve(&self, size: u64) -> Result {
        reserve(&self.file, size).map_err(|error| self.failed(error))
    }

    /// Where it is written.
    pub fn space(&self) -> Result<Space> {
        let file = self.file.try_clone();
        Ok(Space(file.map_err(|error| self.failed(error))?))
    }

    /// Adds a member with all that `content` has; returns how many bytes that was.
    pub fn member(&mut self, name: &str, content: &mut dyn Read) -> Result<u64> {
        self.begin(name)?;
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

    /// Begins a member, to which [`add`](Self::add) adds.
    pub fn begin(&mut self, name: &str) -> Result {
        let begun = self.zip.start_file(name, PACKING.large_file(true));
        begun.map_err(|error| self.failed(error.into()))
    }

    /// Adds to the member that was begun last.
    pub fn add(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result {
        write(&mut self.zip).map_err(|error| self.failed(error))
    }

    /// Adds the manifest and gives the file its name; returns how many bytes it has.
    pub fn finish(mut self, manifest: &Manifest) -> Result<u64> {
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
        let failed = |error| cannot_write(&path, error);
        let mut file = self
            .zip
            .finish()
            .map_err(io::Error::from)
            .and_then(|file| file.into_inner().map_err(io::IntoInnerError::into_error))
            .map_err(failed)?;
        let len = file.stream_position().map_err(failed)?;
        // Frees reserved space that is not needed.
        file.set_len(len).map_err(failed)?;
        match self.target {
            Target::Name(new) => {
                file.sync_all().map_err(failed)?;
                new.finish().map_err(|error| cannot_finish(&path, error))?;
            }
            Target::Stream(mut out) => {
                file.rewind().map_err(failed)?;
                io::copy(&mut file, &mut out).map_err(failed)?;
                out.finish().map_err(|error| cannot_finish(&path, error))?;
            }
        }
        Ok(len)
    }

    fn failed(&self, error: io::Error) -> Error {
        cannot_write(&self.path, error)
    }
}

/// Reserves `size` bytes for `file` without changing its length.
///
/// # Errors
///
/// Those of the file system, such as that there is no space.
fn reserve(file: &File, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        // Such a file system can only be asked.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let space = fstatvfs(file)?;
            match space.f_bavail.saturating_mul(space.f_frsize) {
                space if space < size => Err(Errno::NOSPC.into()),
                _ => Ok(()),
            }
        }
        result => Ok(result?),
    }
}

fn cannot_finish(path: &Path, error: Error) -> Error {
    match error {
        Error::Io { error, .. } => cannot_write(path, error),
        error => error,
    }
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        // Not of tracefs, where it would mean something else.
        io::ErrorKind::PermissionDenied => Error::Refused(format!(
            "cannot write {}: {error}\n  hint: -o names another file",
            path.display()
        )),
        io::ErrorKind::NotFound => Error::Refused(format!(
            "cannot write {}: there is no directory {}",
            path.display(),
            directory_of(path).display()
        )),
        _ => Error::io(format!("write {}", path.display()), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Capture;
    use std::{fs, os::unix::fs::MetadataExt};

    #[test]
    fn reserved_space_that_is_not_needed_is_freed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture");
        let writer = Writer::create(&path).unwrap();
        let error = writer.reserve(1 << 60).unwrap_err().to_string();
        assert!(error.contains("capture"), "{error}");
        writer.reserve(4 << 20).unwrap();
        let taken = writer.file.metadata().unwrap();
        assert_eq!(taken.len(), 0);
        let len = writer.finish(&Manifest::default()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), len);
        assert!(metadata.blocks() * 512 < 1 << 20);
        Capture::open(&path).unwrap();
    }
}
