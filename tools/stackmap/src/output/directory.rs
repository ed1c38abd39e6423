// SPDX-License-Identifier: MIT OR Apache-2.0

//! A directory that results go to.

use super::target::{place_of_directory, Access};
use crate::error::{Error, Result};
use rustix::{
    fs::{mkdirat, openat, renameat, Mode, OFlags},
    io::Errno,
};
use std::{
    collections::HashSet,
    ffi::OsString,
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// A new directory that gets its name only when all files are in it.
pub struct Directory {
    /// What it is called in errors.
    path: PathBuf,
    /// The directory that it is in, and its name there.
    parent: OwnedFd,
    name: OsString,
    /// Its temporary name; [`None`]: it has its final name.
    unfinished: Option<OsString>,
    dir: OwnedFd,
    /// The directories in it.
    made: HashSet<String>,
    access: Access,
}

impl Directory {
    /// One at `path`, where nothing is yet but an empty directory.
    pub fn create(path: &Path, access: Access) -> Result<Self> {
        let failed = |error: Errno| Error::io(format!("write {}", path.display()), error.into());
        let (parent, name) = place_of_directory(path)?;
        let mode = Mode::from_raw_mode(match access {
            Access::Umask => 0o755,
            Access::Owner => 0o700,
        });
        let unfinished = loop {
            let random = RandomState::new().build_hasher().finish();
            let unfinished = OsString::from(format!(".stackmap-{random:016x}"));
            match mkdirat(&parent, &unfinished, mode) {
                Ok(()) => break unfinished,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&parent, &unfinished, flags, Mode::empty()).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            parent,
            name,
            unfinished: Some(unfinished),
            dir,
            made: HashSet::new(),
            access,
        })
    }

    /// A new file `name` in the directory `under` in it, which is made if it is not there; and what the
    /// file is called in errors.
    pub fn file(&mut self, under: &str, name: &str) -> Result<(File, String)> {
        let shown = self.path.join(under).join(name).display().to_string();
        let failed = |error: Errno| Error::io(format!("write {shown}"), error.into());
        let (dir_mode, mode) = match self.access {
            Access::Umask => (0o755, 0o666),
            Access::Owner => (0o700, 0o600),
        };
        let ends = under.match_indices('/').map(|(at, _)| at);
        for end in ends.chain([under.len()]) {
            let dir = &under[..end];
            if !self.made.contains(dir) {
                mkdirat(&self.dir, dir, Mode::from_raw_mode(dir_mode)).map_err(failed)?;
                self.made.insert(dir.to_owned());
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let path = format!("{under}/{name}");
        let file = openat(&self.dir, path, flags, Mode::from_raw_mode(mode)).map_err(failed)?;
        Ok((file.into(), shown))
    }

    /// Gives the directory its final name.
    pub fn finish(mut self) -> Result {
        if let Some(unfinished) = &self.unfinished {
            // An empty directory is replaced.
            renameat(&self.parent, unfinished, &self.parent, &self.name).map_err(|error| {
                match error {
                    Errno::NOTEMPTY | Errno::EXIST => not_empty(&self.path),
                    error => Error::io(format!("write {}", self.path.display()), error.into()),
                }
            })?;
        }
        self.unfinished = None;
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(unfinished) = &self.unfinished {
            let parent = PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd()));
            // An error here cannot be reported.
            let _ = fs::remove_dir_all(parent.join(unfinished));
        }
    }
}

/// Refuses to write to a directory with something in it.
pub(super) fn not_empty(path: &Path) -> Error {
    Error::Refused(format!(
        "{} has files already, and nothing is written over them\n  hint: name another directory",
        path.display()
    ))
}

/// Whether a directory has nothing in it.
pub(super) fn is_empty(parent: &OwnedFd, name: &OsString) -> io::Result<bool> {
    let parent = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd()));
    Ok(fs::read_dir(parent.join(name))?.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write,
        os::unix::fs::{symlink, PermissionsExt},
    };

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn it_is_there_when_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let names = || fs::read_dir(dir.path()).unwrap().count();
        for (access, modes) in [
            (Access::Owner, [0o700, 0o700, 0o600]),
            (Access::Umask, [0o755, 0o755, 0o644]),
        ] {
            // An empty directory is replaced; what is not finished is removed.
            fs::create_dir_all(&path).unwrap();
            let mut out = Directory::create(&path, access).unwrap();
            out.file("a/b", "c").unwrap();
            assert_eq!(names(), 2);
            drop(out);
            assert_eq!((names(), fs::read_dir(&path).unwrap().count()), (1, 0));

            let mut out = Directory::create(&path, access).unwrap();
            for name in ["one", "two"] {
                let (mut file, shown) = out.file("a/b", name).unwrap();
                file.write_all(name.as_bytes()).unwrap();
                assert_eq!(shown, path.join("a/b").join(name).display().to_string());
            }
            out.file("a", "three").unwrap();
            assert!(out.file("a", "three").is_err());
            out.finish().unwrap();
            assert_eq!(fs::read_to_string(path.join("a/b/two")).unwrap(), "two");
            let found =
                [path.clone(), path.join("a/b"), path.join("a/b/one")].map(|path| mode(&path));
            let least = found
                .iter()
                .zip(modes)
                .all(|(found, mode)| found & !mode == 0);
            assert!(least, "{found:?}");
            // What is there is not written over.
            let error = Directory::create(&path, access).err().unwrap().to_string();
            assert!(error.contains("has files already"), "{error}");
            fs::remove_dir_all(&path).unwrap();
        }
    }

    #[test]
    fn what_appears_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let out = Directory::create(&path, Access::Umask).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "other").unwrap();
        assert!(out.finish().is_err());
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "other");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        fs::write(dir.path().join("file"), "").unwrap();
        assert!(Directory::create(&dir.path().join("file"), Access::Umask).is_err());
        symlink("out", dir.path().join("link")).unwrap();
        assert!(Directory::create(&dir.path().join("link"), Access::Umask).is_err());
    }
}
