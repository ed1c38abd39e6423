// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files that results go to.
//!
//! In a directory that other users may write to, another user can put a symbolic link in place of
//! an output file, so that the output overwrites the link's target. The kernel's
//! `protected_symlinks` prevents that in sticky directories such as `/tmp`, if it is on. Here such
//! links are refused always, in every directory that others may write to: a path is followed link
//! by link, by directory descriptors.

#[cfg(feature = "parquet")]
use super::directory::{is_empty, not_empty};
use crate::error::{Error, Result};
use rustix::{
    fs::{
        fstat, fstatfs, openat, readlinkat, renameat, statat, unlinkat, AtFlags, FileType, Mode,
        OFlags, Stat, CWD, PROC_SUPER_MAGIC,
    },
    io::Errno,
    process::geteuid,
};
use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Write},
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::{Component, Path, PathBuf},
};

/// As many links as the kernel follows.
const MAX_LINKS: u32 = 40;
/// Mode bits: writable by group or others.
const WRITABLE: u32 = 0o022;

/// Who may read a file that is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// As the umask has it.
    Umask,
    /// Its owner only.
    Owner,
}

/// A new file that gets its name only when it is complete.
pub(super) struct NewFile {
    dir: OwnedFd,
    name: OsString,
    /// Its temporary name; [`None`]: it has its final name.
    unfinished: Option<OsString>,
    file: File,
}

impl NewFile {
    fn create(dir: OwnedFd, name: OsString, access: Access) -> io::Result<Self> {
        let mode = match access {
            Access::Umask => 0o666,
            Access::Owner => 0o600,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        loop {
            let random = RandomState::new().build_hasher().finish();
            let unfinished = OsString::from(format!(".stackmap-{random:016x}"));
            match openat(&dir, &unfinished, flags, Mode::from_raw_mode(mode)) {
                Ok(file) => {
                    return Ok(Self {
                        dir,
                        name,
                        unfinished: Some(unfinished),
                        file: file.into(),
                    })
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives the file its final name.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Some(unfinished) = &self.unfinished {
            renameat(&self.dir, unfinished, &self.dir, &self.name)?;
        }
        self.unfinished = None;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(unfinished) = &self.unfinished {
            // An error here cannot be reported.
            let _ = unlinkat(&self.dir, unfinished, AtFlags::empty());
        }
    }
}

/// What a result is written to.
pub(super) enum Opened {
    /// A pipe or a device, which is written to.
    Stream(File),
    /// A new file, which replaces an old one of that name.
    File(NewFile),
}

/// Opens `path` to write a result to it.
pub(super) fn open(path: &Path, access: Access) -> Result<Opened> {
    let failed = |error| Error::io(format!("write {}", path.display()), error);
    let Found { dir, name, what } = find(path)?;
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags = match what {
        What::Nothing | What::File => {
            let file = NewFile::create(dir, name, access).map_err(failed)?;
            return Ok(Opened::File(file));
        }
        What::Directory => return Err(failed(Errno::ISDIR.into())),
        What::Descriptor => flags | OFlags::TRUNC,
        What::Other => flags | OFlags::NOFOLLOW,
    };
    let file = openat(&dir, &name, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    Ok(Opened::Stream(file.into()))
}

/// The directory of a file that a result replaces, and the file's name in it.
pub(super) fn place(path: &Path) -> Result<(OwnedFd, OsString)> {
    let Found { dir, name, what } = find(path)?;
    match what {
        What::Nothing | What::File => Ok((dir, name)),
        _ => Err(Error::io(
            format!("write {}", path.display()),
            Errno::EXIST.into(),
        )),
    }
}

/// The directory that a new one is in, and its name in it. Nothing is there, or an empty directory.
#[cfg(feature = "parquet")]
pub(super) fn place_of_directory(path: &Path) -> Result<(OwnedFd, OsString)> {
    let failed = |error| Error::io(format!("write {}", path.display()), error);
    let Found { dir, name, what } = find(path)?;
    match what {
        What::Nothing => Ok((dir, name)),
        What::Directory if is_empty(&dir, &name).map_err(failed)? => Ok((dir, name)),
        What::Directory => Err(not_empty(path)),
        _ => Err(failed(Errno::NOTDIR.into())),
    }
}

/// Where a path leads to.
struct Found {
    dir: OwnedFd,
    name: OsString,
    what: What,
}

/// What is at the path.
enum What {
    Nothing,
    File,
    Directory,
    /// A link of `/proc/PID/fd`, which is no path.
    Descriptor,
    Other,
}

/// Follows `path`, but no link that another user may have made.
fn find(path: &Path) -> Result<Found> {
    let failed = |error: Errno| Error::io(format!("write {}", path.display()), error.into());
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |dir: &OwnedFd, name: &OsStr| {
        openat(dir, name, directory | OFlags::NOFOLLOW, Mode::empty()).map_err(failed)
    };
    let root = || openat(CWD, "/", directory, Mode::empty()).map_err(failed);
    let mut dir = match path.is_absolute() {
        true => root()?,
        false => openat(CWD, ".", directory, Mode::empty()).map_err(failed)?,
    };
    let mut rest: VecDeque<OsString> = names(path).collect();
    let mut nr_links = 0;
    while let Some(name) = rest.pop_front() {
        let is_last = rest.is_empty();
        let stat = match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) if is_last => {
                let what = What::Nothing;
                return Ok(Found { dir, name, what });
            }
            Err(error) => return Err(failed(error)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let what = match kind {
            FileType::Symlink => {
                nr_links += 1;
                if nr_links > MAX_LINKS {
                    return Err(failed(Errno::LOOP));
                }
                let in_proc = fstatfs(&dir).map_err(failed)?.f_type == PROC_SUPER_MAGIC;
                if is_last && in_proc {
                    let what = What::Descriptor;
                    return Ok(Found { dir, name, what });
                }
                let of = fstat(&dir).map_err(failed)?;
                if may_be_forged(&of, &stat, is_last) {
                    return Err(forged(path, &name));
                }
                let target = readlinkat(&dir, &name, Vec::new()).map_err(failed)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    dir = root()?;
                }
                for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(name);
                }
                continue;
            }
            FileType::Directory if !is_last => {
                dir = open(&dir, &name)?;
                continue;
            }
            _ if !is_last => return Err(failed(Errno::NOTDIR)),
            FileType::Directory => What::Directory,
            FileType::RegularFile => What::File,
            _ => {
                let of = fstat(&dir).map_err(failed)?;
                if is_of_others(&of) && !is_trusted(stat.st_uid) {
                    return Err(forged(path, &name));
                }
                What::Other
            }
        };
        return Ok(Found { dir, name, what });
    }
    Err(failed(Errno::ISDIR))
}

/// The names in a path, without those that stay where they are.
fn names(path: &Path) -> impl Iterator<Item = OsString> + use<'_> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

/// Whether a user id is that of this process, or root.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Whether other users can write to a directory.
fn is_of_others(dir: &Stat) -> bool {
    dir.st_mode & WRITABLE != 0 || !is_trusted(dir.st_uid)
}

/// Whether another user may have put `link` into `dir`. As the last component of a path, no link
/// in such a directory is followed; before that, links of the user and of root are.
fn may_be_forged(dir: &Stat, link: &Stat, is_last: bool) -> bool {
    is_of_others(dir) && (is_last || !is_trusted(link.st_uid))
}

fn forged(path: &Path, name: &OsStr) -> Error {
    Error::Refused(format!(
        "cannot write {}: {} is in a directory that other users can write to, and may be a link \
         made by one of them\n  hint: remove it, or write to another path",
        path.display(),
        Path::new(name).display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{symlink, PermissionsExt},
    };

    fn write(path: &Path, text: &str, access: Access) -> Result {
        match open(path, access)? {
            Opened::Stream(mut file) => file.write_all(text.as_bytes())?,
            Opened::File(mut file) => {
                file.write_all(text.as_bytes())?;
                file.finish()?;
            }
        }
        Ok(())
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn links_are_followed_only_in_directories_that_others_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["own", "open", "other"] {
            fs::create_dir(at(name)).unwrap();
            set_mode(&at(name), 0o755);
        }
        fs::write(at("other/file"), "before").unwrap();
        symlink("../other/file", at("own/relative")).unwrap();
        symlink(at("other/file"), at("own/absolute")).unwrap();
        symlink("relative", at("own/twice")).unwrap();
        symlink("../other", at("own/dir")).unwrap();
        symlink("loop", at("own/loop")).unwrap();
        for name in ["relative", "absolute", "twice", "dir/file"] {
            write(&at("own").join(name), name, Access::Umask).unwrap();
            assert_eq!(fs::read_to_string(at("other/file")).unwrap(), name);
        }
        assert!(at("own/relative").is_symlink());
        assert!(write(&at("own/loop"), "", Access::Umask).is_err());
        assert!(write(&at("own/dir"), "", Access::Umask).is_err());
        assert!(write(&at("own/dir/.."), "", Access::Umask).is_err());
        assert!(write(&at("other/file/x"), "", Access::Umask).is_err());

        symlink("../other/file", at("open/link")).unwrap();
        symlink("../other", at("open/dir")).unwrap();
        for mode in [0o1777, 0o777, 0o770, 0o1757] {
            set_mode(&at("open"), mode);
            let error = write(&at("open/link"), "forged", Access::Umask).unwrap_err();
            assert!(
                error.to_string().contains("other users can write to"),
                "{error}"
            );
            // Its own links on the way are followed.
            write(&at("open/dir/file"), "own", Access::Umask).unwrap();
            write(&at("open/new"), "new", Access::Umask).unwrap();
        }
        assert_eq!(fs::read_to_string(at("other/file")).unwrap(), "own");
    }

    #[test]
    fn links_of_other_users_are_recognised() {
        let me = geteuid().as_raw();
        let stat = |uid, mode| {
            let mut stat = statat(CWD, "/", AtFlags::empty()).unwrap();
            (stat.st_uid, stat.st_mode) = (uid, mode);
            stat
        };
        let other = me + 1;
        let link = |uid| stat(uid, 0o777);
        for (dir, uid, is_last, want) in [
            (stat(me, 0o755), other, true, false),
            (stat(0, 0o755), other, true, false),
            (stat(other, 0o755), other, true, true),
            (stat(other, 0o755), me, true, true),
            (stat(other, 0o755), me, false, false),
            (stat(other, 0o755), 0, false, false),
            (stat(0, 0o1777), other, false, true),
            (stat(me, 0o775), other, false, true),
        ] {
            assert_eq!(
                may_be_forged(&dir, &link(uid), is_last),
                want,
                "{uid} {is_last}"
            );
        }
    }

    #[test]
    fn unfinished_files_are_not_visible() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "before").unwrap();
        drop(open(&path, Access::Umask).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        write(&path, "after", Access::Owner).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        write(Path::new("/dev/null"), "x", Access::Umask).unwrap();
        write(Path::new("/dev/null"), "x", Access::Owner).unwrap();
    }
}
