// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files that results go to.
//!
//! A file is replaced as a whole when the new one is complete. Until then the new one has no name,
//! so a process that is killed leaves nothing; on a file system without `O_TMPFILE` it has
//! one that begins with `.stackmap-`. A pipe or a device is written to. The kernel follows links,
//! but not the last one of a path in a directory where another user may have made it.

use super::directory_of;
use crate::error::{Error, Result};
use rustix::{
    fs::{linkat, open, AtFlags, Mode, OFlags, CWD},
    io::Errno,
    process::geteuid,
};
use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};
use tempfile::{Builder, NamedTempFile};

/// Mode bits of a directory: sticky, or writable by all.
const SHARED: u32 = 0o1002;

/// The open files of this process.
const OWN: &str = "/proc/self/fd";

/// Who may read a file that is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// As the umask has it.
    Umask,
    /// Its owner only.
    Owner,
}

/// A new file, which takes the place of an old one when it is complete.
pub struct NewFile {
    file: File,
    /// Where it will be.
    path: PathBuf,
    /// Its temporary name, where it cannot be without.
    named: Option<NamedTempFile<()>>,
}

impl NewFile {
    /// Creates a file that will be at `path`, or where a link there leads.
    pub fn create(path: &Path, access: Access) -> Result<Self> {
        match target(path, access)? {
            Target::File(file) => Ok(file),
            Target::Stream(_) => Err(failed(path)(Errno::EXIST.into())),
        }
    }

    fn create_at(path: PathBuf, access: Access) -> io::Result<Self> {
        let mode = match access {
            Access::Umask => 0o666,
            Access::Owner => 0o600,
        };
        let dir = directory_of(&path);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let (file, named) = match open(dir, flags, Mode::from_raw_mode(mode)) {
            // By which it gets its name.
            Ok(file) if Path::new(OWN).exists() => (File::from(file), None),
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let mut builder = unfinished();
                builder.permissions(Permissions::from_mode(mode));
                let (file, path) = builder.tempfile_in(dir)?.into_parts();
                (file, Some(NamedTempFile::from_parts((), path)))
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { file, path, named })
    }

    /// Returns the file, to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its final name.
    pub fn finish(self) -> Result {
        let own = format!("{OWN}/{}", self.file.as_raw_fd());
        // A link to a file cannot replace another file, so the file has another name for a moment.
        let link = |path: &Path| Ok(linkat(CWD, &*own, CWD, path, AtFlags::SYMLINK_FOLLOW)?);
        let named = match self.named {
            Some(named) => Ok(named),
            None => unfinished().make_in(directory_of(&self.path), link),
        };
        named
            .and_then(|named| Ok(named.persist(&self.path)?))
            .map_err(failed(&self.path))
    }
}

/// Returns what makes temporary names.
fn unfinished() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(".stackmap-");
    builder
}

/// What a result is written to.
pub(super) enum Target {
    /// A pipe or a device.
    Stream(Box<dyn Write>),
    /// A new file.
    File(NewFile),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Stream(stream) => stream.write(bytes),
            Target::File(new) => new.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Target::Stream(stream) => stream.flush(),
            Target::File(new) => new.file.flush(),
        }
    }
}

/// Returns whether an output replaces what is at `path`, or where a link there leads. A pipe, a
/// device and standard output, which is a link in `/dev` or `/proc`, are written to.
pub fn is_replaced(path: &Path) -> bool {
    let is_process = ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir));
    let is_file = || path.metadata().map_or(true, |found| found.is_file());
    path != Path::new("-") && !(is_process && path.is_symlink()) && is_file()
}

/// Opens `path` to write a result to it.
pub(super) fn target(path: &Path, access: Access) -> Result<Target> {
    let failed = failed(path);
    let is_shared = is_shared(directory_of(path)).map_err(&failed)?;
    let found = path.symlink_metadata().ok();
    let may_be_forged =
        |found: &Metadata| !found.is_file() && (found.is_symlink() || !is_trusted(found.uid()));
    if is_shared && found.as_ref().is_some_and(may_be_forged) {
        return Err(forged(path));
    }
    if !is_replaced(path) {
        let follow = if is_shared {
            OFlags::NOFOLLOW
        } else {
            OFlags::empty()
        };
        let flags = (OFlags::NOCTTY | follow).bits() as i32;
        let mut options = OpenOptions::new();
        let options = options.write(true).truncate(true).custom_flags(flags);
        let file = options.open(path).map_err(&failed)?;
        return Ok(Target::Stream(Box::new(file)));
    }
    let path = match (found, path.file_name()) {
        (Some(found), _) => fs::canonicalize(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if found.is_symlink() => dangling(path),
            _ => failed(error),
        })?,
        (None, Some(name)) => directory_of(path).join(name),
        (None, None) => return Err(failed(Errno::ISDIR.into())),
    };
    NewFile::create_at(path, access)
        .map(Target::File)
        .map_err(failed)
}

/// Returns whether another user may put links into a directory.
fn is_shared(dir: &Path) -> io::Result<bool> {
    let dir = dir.metadata()?;
    Ok(dir.mode() & SHARED != 0 || !is_trusted(dir.uid()))
}

/// Returns whether a user id is that of this process, or root.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let what = format!("write {}", path.display());
    move |error| Error::io(what.clone(), error)
}

fn dangling(path: &Path) -> Error {
    Error::Refused(format!(
        "cannot write {}: it is a link to a file that is not there\n  hint: remove it, or make the file",
        path.display()
    ))
}

fn forged(path: &Path) -> Error {
    Error::Refused(format!(
        "cannot write {}: it may be a link or a pipe that another user has made, in a directory \
         that other users can write to\n  hint: remove it, or write to another path",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkfifoat;
    use std::os::unix::fs::{chown, symlink, FileTypeExt};

    fn write(path: &Path, text: &str, access: Access) -> Result {
        let mut target = target(path, access)?;
        target.write_all(text.as_bytes())?;
        match target {
            Target::Stream(_) => Ok(()),
            Target::File(new) => new.finish(),
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn links_are_followed_only_in_directories_that_others_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["own", "other"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("other/file"), "before").unwrap();
        symlink("../other/file", at("own/link")).unwrap();
        symlink("link", at("own/twice")).unwrap();
        symlink("loop", at("own/loop")).unwrap();
        symlink("nothing", at("own/dangling")).unwrap();
        symlink("/dev/null", at("own/null")).unwrap();
        mkfifoat(CWD, at("own/fifo"), Mode::RWXU).unwrap();
        for name in ["link", "twice"] {
            write(&at("own").join(name), name, Access::Umask).unwrap();
            assert!(at("own").join(name).is_symlink());
            assert_eq!(fs::read_to_string(at("other/file")).unwrap(), name);
        }
        write(&at("own/null"), "", Access::Umask).unwrap();
        for name in ["loop", "dangling", "", "..", "new/.."] {
            assert!(write(&at("own").join(name), "", Access::Umask).is_err());
        }
        for mode in [0o1777, 0o777, 0o1770] {
            set_mode(&at("own"), mode);
            for name in ["link", "null", "dangling"] {
                let error = write(&at("own").join(name), "forged", Access::Umask).unwrap_err();
                let error = error.to_string();
                assert!(error.contains("other users can write to"), "{error}");
            }
            write(&at("own/new"), "new", Access::Umask).unwrap();
        }
        assert_eq!(fs::read_to_string(at("other/file")).unwrap(), "twice");
        if !geteuid().is_root() {
            return;
        }
        chown(at("own/fifo"), Some(1), None).unwrap();
        let error = write(&at("own/fifo"), "", Access::Umask).unwrap_err();
        assert!(
            error.to_string().contains("other users can write to"),
            "{error}"
        );
        // The directory of another user.
        set_mode(&at("own"), 0o755);
        write(&at("own/link"), "own", Access::Umask).unwrap();
        chown(at("own"), Some(1), None).unwrap();
        assert!(write(&at("own/link"), "forged", Access::Umask).is_err());
        assert_eq!(fs::read_to_string(at("other/file")).unwrap(), "own");
    }

    #[test]
    fn unfinished_files_have_no_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let nr_files = || fs::read_dir(dir.path()).unwrap().count();
        fs::write(&path, "before").unwrap();
        let mut unfinished = target(&path, Access::Umask).unwrap();
        unfinished.write_all(b"unfinished").unwrap();
        assert_eq!(nr_files(), 1);
        drop(unfinished);
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        write(&path, "after", Access::Owner).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, nr_files()), (0o600, 1));
        write(Path::new("/dev/null"), "x", Access::Owner).unwrap();
        let null = fs::metadata("/dev/null").unwrap();
        assert!(null.file_type().is_char_device() && null.mode() & 0o777 != 0o600);
    }

    #[test]
    fn a_file_can_have_a_name_from_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let named = || {
            let named = unfinished().tempfile_in(dir.path()).unwrap();
            let (file, name) = named.into_parts();
            let named = Some(NamedTempFile::from_parts((), name));
            let path = path.clone();
            NewFile { file, path, named }
        };
        drop(named());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let new = named();
        new.file().write_all(b"text").unwrap();
        new.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
