// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes a capture: all of it or nothing.

use super::{manifest, member, Manifest};
use crate::{
    error::{Error, Result},
    output::{directory_of, is_replaced, place_of, Access, Out},
};
use rustix::{
    fs::{fallocate, fstatvfs, FallocateFlags},
    io::Errno,
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Read, Seek, Write},
    os::fd::{AsRawFd, OwnedFd},
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
    zip: ZipWriter<BufWriter<File>>,
    /// The same file.
    file: File,
    target: Target,
    path: PathBuf,
}

/// Where a capture is written: the room for it, and for other files beside it.
pub struct Room {
    file: File,
    /// The directory; [`None`]: that of temporary files.
    dir: Option<OwnedFd>,
}

impl Room {
    /// That of `file`, for tests.
    #[cfg(test)]
    pub(crate) fn of(file: File) -> Self {
        Self { file, dir: None }
    }

    /// Reserves room for a capture of `size` bytes.
    pub fn reserve(&self, size: u64) -> io::Result<()> {
        reserve(&self.file, size)
    }

    /// A file without a name, which is gone when it is closed.
    pub fn beside(&self) -> Result<File> {
        let file = match &self.dir {
            Some(dir) => tempfile::tempfile_in(path_of(dir)),
            None => tempfile::tempfile(),
        };
        file.map_err(|error| Error::io("make a temporary file beside the capture", error))
    }
}

/// What becomes of the file when it is finished.
enum Target {
    /// It gets its name.
    Name(NamedTempFile, Place),
    /// It is copied to where nothing can be replaced, and no name be given.
    Stream(Out),
}

/// Where a file gets its name. The directory stays the one that was found at the beginning,
/// whatever becomes of the path to it.
struct Place {
    dir: OwnedFd,
    name: OsString,
}

impl Place {
    /// The directory, for this process.
    fn dir(&self) -> PathBuf {
        path_of(&self.dir)
    }
}

/// The path of a directory, for this process.
fn path_of(dir: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", dir.as_raw_fd()).into()
}

impl Writer {
    /// Begins a capture that will be at `path`. Where that is a pipe, a device or a link, it is
    /// opened now, and written to at the end.
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
                let (dir, name) = place_of(path).map_err(|error| match error {
                    Error::Io { error, .. } => cannot_write(path, error),
                    error => error,
                })?;
                let place = Place { dir, name };
                let named = tempfile::Builder::new()
                    .prefix(".stackmap-")
                    .tempfile_in(place.dir())
                    .map_err(|error| cannot_write(path, error))?;
                let file = named
                    .as_file()
                    .try_clone()
                    .map_err(|error| cannot_write(path, error))?;
                (file, Target::Name(named, place))
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

    /// The name that the file has until it is finished, if it will have one.
    pub fn unfinished(&self) -> Option<PathBuf> {
        match &self.target {
            Target::Name(file, place) => {
                let dir = fs::read_link(place.dir()).ok()?;
                Some(dir.join(file.path().file_name()?))
            }
            Target::Stream(_) => None,
        }
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that there is room for a capture of `size` bytes, before anything is written.
    pub fn reserve(&self, size: u64) -> Result {
        reserve(&self.file, size).map_err(|error| self.failed(error))
    }

    /// Where it is written.
    pub fn room(&self) -> Result<Room> {
        let dir = match &self.target {
            Target::Name(_, place) => Some(place.dir.try_clone()),
            Target::Stream(_) => None,
        };
        Ok(Room {
            file: self.file.try_clone().map_err(|error| self.failed(error))?,
            dir: dir.transpose().map_err(|error| self.failed(error))?,
        })
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
    pub fn copy(&mut self, archive: impl Read + Seek) -> Result {
        let mut archive = ZipArchive::new(archive).map_err(|error| self.failed(error.into()))?;
        for index in 0..archive.len() {
            let member = archive.by_index_raw(index);
            let copied = member.and_then(|member| self.zip.raw_copy_file(member));
            copied.map_err(|error| self.failed(error.into()))?;
        }
        Ok(())
    }

    /// Adds the manifest and gives the file its name; returns how many bytes it has.
    pub fn finish(mut self, manifest: &Manifest) -> Result<u64> {
        let manifest = Manifest {
            format: manifest::FORMAT.to_owned(),
            version: match manifest.captures {
                0 => manifest::VERSION,
                _ => manifest::MERGED,
            },
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
            Target::Name(named, place) => {
                file.sync_all().map_err(failed)?;
                named
                    .persist(place.dir().join(&place.name))
                    .map_err(|error| failed(error.error))?;
            }
            Target::Stream(mut out) => {
                file.rewind().map_err(failed)?;
                io::copy(&mut file, &mut out).map_err(failed)?;
                out.finish().map_err(|error| match error {
                    Error::Io { error, .. } => failed(error),
                    error => error,
                })?;
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
pub fn reserve(file: &File, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        // Such a file system can only be asked.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let room = fstatvfs(file)?;
            match room.f_bavail.saturating_mul(room.f_frsize) {
                room if room < size => Err(Errno::NOSPC.into()),
                _ => Ok(()),
            }
        }
        result => Ok(result?),
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
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    fn write(path: &Path) {
        let mut writer = Writer::create(path).unwrap();
        writer.member(member::TRACE, &mut &b"x"[..]).unwrap();
        assert!(writer.finish(&Manifest::default()).unwrap() > 0);
    }

    #[test]
    fn devices_and_pipes_are_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let [link, target, fifo, copy] =
            ["link", "target", "fifo", "copy"].map(|name| dir.path().join(name));
        fs::write(&target, "what was there").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write(&link);
        assert!(link.is_symlink());
        Capture::open(&target).unwrap();

        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        let reader = {
            let (fifo, copy) = (fifo.clone(), copy.clone());
            std::thread::spawn(move || fs::write(copy, fs::read(fifo).unwrap()).unwrap())
        };
        write(&fifo);
        reader.join().unwrap();
        assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());
        Capture::open(&copy).unwrap();

        // By a link, so that this test, run as root, does not replace /dev/null itself.
        let null = dir.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        write(&null);
        assert!(null.is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
    }

    #[test]
    fn a_capture_is_created_where_its_path_led_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("one")).unwrap();
        let writer = Writer::create(&at("one/capture")).unwrap();
        let unfinished = writer.unfinished().unwrap();
        assert_eq!(
            unfinished.parent(),
            Some(&*at("one").canonicalize().unwrap())
        );
        assert!(unfinished.exists());
        // A user with access to the directory puts a link in its place.
        fs::rename(at("one"), at("moved")).unwrap();
        fs::create_dir(at("other")).unwrap();
        std::os::unix::fs::symlink("other", at("one")).unwrap();
        assert!(writer.finish(&Manifest::default()).unwrap() > 0);
        Capture::open(&at("moved/capture")).unwrap();
        assert_eq!(fs::read_dir(at("moved")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(at("other")).unwrap().count(), 0);
    }

    #[test]
    fn reserved_space_that_is_not_needed_is_freed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture");
        let writer = Writer::create(&path).unwrap();
        let error = writer.reserve(1 << 60).unwrap_err().to_string();
        assert!(error.contains("capture"), "{error}");
        writer.reserve(4 << 20).unwrap();
        let taken = fs::metadata(writer.unfinished().unwrap()).unwrap();
        assert_eq!(taken.len(), 0);
        let len = writer.finish(&Manifest::default()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), len);
        assert!(metadata.blocks() * 512 < 1 << 20);
        Capture::open(&path).unwrap();
    }

    #[test]
    fn a_full_device_is_reported() {
        let mut writer = Writer::create(Path::new("/dev/full")).unwrap();
        writer.member(member::TRACE, &mut &b"x"[..]).unwrap();
        let error = writer.finish(&Manifest::default()).unwrap_err();
        assert!(
            error.to_string().contains("cannot write /dev/full"),
            "{error}"
        );
    }
}
