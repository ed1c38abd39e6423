// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files that may have names for a file of a user stack.
//!
//! A path in a capture is only a hint, and may have been made up: the file is opened if it is
//! a regular file, and used if its build-id is the one of the capture.

use rustix::fs::{Mode, OFlags};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    path::{Component, Path, PathBuf},
};

/// Where systems install debug files.
const SYSTEM: &str = "/usr/lib/debug";
/// Build-ids with fewer digits are not looked for by name.
const LEAST_DIGITS: usize = 8;
/// No ELF file is smaller; those in `/proc` have size 0, and reading them may do more than that.
const LEAST_SIZE: u64 = 52;

/// A path to look at.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Candidate {
    /// The path.
    pub(super) path: PathBuf,
    /// Whether it is the path of the capture itself, where the file may be anybody's.
    pub(super) itself: bool,
}

/// Where the file, and its debug files, may be, best first.
pub(super) fn candidates(
    path: &OsStr,
    build_id: Option<&str>,
    debug_dirs: &[PathBuf],
) -> Vec<Candidate> {
    let mut paths = Vec::new();
    let own = own_path(path);
    let by_id = build_id.and_then(IdPath::new);
    for dir in debug_dirs {
        if let Some(id) = &by_id {
            paths.push(id.debug(&dir.join(".build-id")));
            paths.push(id.debug(dir));
            paths.push(dir.join(".build-id").join(id.dir).join(id.rest));
        }
        if let Some(own) = &own {
            let below = below(dir, own);
            paths.push(below.clone());
            paths.push(with_debug(below));
            paths.extend(own.file_name().map(|name| dir.join(name)));
        }
    }
    let system = Path::new(SYSTEM);
    paths.extend(by_id.as_ref().map(|id| id.debug(&system.join(".build-id"))));
    paths.extend(own.as_deref().map(|own| with_debug(below(system, own))));
    if let (Some(id), Some(cache)) = (&by_id, debuginfod_cache()) {
        let dir = cache.join(id.whole);
        paths.extend(["debuginfo", "executable"].map(|name| dir.join(name)));
    }
    let candidate = |itself| move |path| Candidate { path, itself };
    // It may really be called so.
    let literal = plain(path).filter(|literal| Some(literal) != own.as_ref());
    let own = literal.into_iter().chain(own).map(candidate(true));
    own.chain(paths.into_iter().map(candidate(false))).collect()
}

/// The path of the capture, if it may be one. A file that was deleted may be there again.
fn own_path(path: &OsStr) -> Option<PathBuf> {
    let bytes = path.as_bytes();
    plain(OsStr::from_bytes(
        bytes.strip_suffix(b" (deleted)").unwrap_or(bytes),
    ))
}

fn plain(path: &OsStr) -> Option<PathBuf> {
    let path = Path::new(path);
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    (path.is_absolute() && path.components().all(is_plain)).then(|| path.to_owned())
}

/// An absolute path below another directory.
fn below(dir: &Path, path: &Path) -> PathBuf {
    dir.join(path.strip_prefix("/").unwrap_or(path))
}

fn with_debug(path: PathBuf) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".debug");
    name.into()
}

/// A build-id in names of files.
struct IdPath<'a> {
    whole: &'a str,
    dir: &'a str,
    rest: &'a str,
}

impl<'a> IdPath<'a> {
    fn new(whole: &'a str) -> Option<Self> {
        let is_odd = |byte| !matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if whole.len() < LEAST_DIGITS || !whole.len().is_multiple_of(2) || whole.bytes().any(is_odd)
        {
            return None;
        }
        let (dir, rest) = whole.split_at(2);
        Some(Self { whole, dir, rest })
    }

    fn debug(&self, dir: &Path) -> PathBuf {
        dir.join(self.dir).join(format!("{}.debug", self.rest))
    }
}

/// Where debuginfod's client keeps what it fetched.
fn debuginfod_cache() -> Option<PathBuf> {
    const NAME: &str = "debuginfod_client";
    let dir = |name| env::var_os(name).filter(|dir| !dir.is_empty());
    let dir = |name| dir(name).map(PathBuf::from);
    dir("DEBUGINFOD_CACHE_PATH")
        .or_else(|| Some(dir("XDG_CACHE_HOME")?.join(NAME)))
        .or_else(|| Some(dir("HOME")?.join(".cache").join(NAME)))
}

/// File systems of the kernel, whose files do something when they are read: `proc`, `sysfs`, `debugfs`, `tracefs`,
/// `configfs`, `efivarfs`, `securityfs`, `cgroup`, `cgroup2`, `bpf`, `pstore`, `resctrl`, `binfmt_misc`, `selinuxfs`,
/// `smackfs`; see `include/uapi/linux/magic.h`.
const OF_THE_KERNEL: [u32; 15] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x6265_6570,
    0xde5e_81e4,
    0x7363_6673,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0x6165_676c,
    0x0765_5821,
    0x4249_4e4d,
    0xf97c_ff8c,
    0x4341_5d53,
];

/// Opens a regular file of a disk or of memory. Nothing else is opened, not even for a moment: that alone starts
/// some devices.
pub(super) fn open(path: &Path) -> Option<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let metadata = found.metadata().ok()?;
    let kind = rustix::fs::fstatfs(&found).ok()?.f_type;
    if !metadata.is_file() || metadata.len() < LEAST_SIZE || OF_THE_KERNEL.contains(&(kind as u32))
    {
        return None;
    }
    // Somebody may have a lease on the file, and would be waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(by_descriptor(&found), flags, Mode::empty()).ok()?;
    Some(file.into())
}

/// A path to a file that is open, and stays so meanwhile.
pub(super) fn by_descriptor(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn paths(path: &str, build_id: Option<&str>) -> Vec<String> {
        let found = candidates(OsStr::new(path), build_id, &["/d".into()]);
        let paths = found.iter().map(|candidate| candidate.path.to_str());
        paths.map(|path| path.unwrap().to_owned()).collect()
    }

    #[test]
    fn files_of_the_kernel_are_not_opened() {
        // It has a size of its own.
        let uevent = Path::new("/sys/kernel/uevent_seqnum");
        assert!(fs::metadata(uevent).is_ok_and(|metadata| metadata.len() >= LEAST_SIZE));
        assert!(open(uevent).is_none());
        assert!(open(Path::new("/proc/self/maps")).is_none());
        assert!(open(&std::env::current_exe().unwrap()).is_some());
    }

    #[test]
    fn files_are_looked_for_by_build_id_and_by_path() {
        let found = paths("/usr/bin/x (deleted)", Some("aabbccdd"));
        let want = [
            "/usr/bin/x (deleted)",
            "/usr/bin/x",
            "/d/.build-id/aa/bbccdd.debug",
            "/d/aa/bbccdd.debug",
            "/d/.build-id/aa/bbccdd",
            "/d/usr/bin/x",
            "/d/usr/bin/x.debug",
            "/d/x",
            "/usr/lib/debug/.build-id/aa/bbccdd.debug",
            "/usr/lib/debug/usr/bin/x.debug",
        ];
        assert_eq!(found[..want.len()], want);
        for (path, end) in found[want.len()..].iter().zip(["debuginfo", "executable"]) {
            assert!(path.ends_with(&format!("/aabbccdd/{end}")), "{path}");
        }
    }

    #[test]
    fn only_the_path_of_the_capture_is_its_own() {
        for (path, nr_own) in [("/usr/bin/x (deleted)", 2), ("/usr/bin/x", 1), ("x", 0)] {
            let found = candidates(OsStr::new(path), Some("aabbccdd"), &["/d".into()]);
            let own: Vec<_> = found.iter().map(|candidate| candidate.itself).collect();
            assert!(own[..nr_own].iter().all(|own| *own), "{found:?}");
            assert!(own[nr_own..].iter().all(|own| !own), "{found:?}");
        }
    }

    #[test]
    fn a_path_that_is_none_is_not_used() {
        for path in ["x", "", "a/b", "/a/../../etc/x", "[vdso]"] {
            assert_eq!(paths(path, None), [""; 0], "{path}");
        }
        for id in ["aabbcc", "aabbccd", "../../../x", "aabbccDD", ""] {
            assert_eq!(paths("x", Some(id)), [""; 0], "{id}");
        }
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let fifo = path("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        fs::write(path("small"), "small").unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("link")).unwrap();
        for path in [dir.path(), &fifo, &path("small"), &path("link")] {
            assert!(open(path).is_none(), "{path:?}");
        }
        for path in ["/dev/zero", "/proc/self/maps", "/nowhere"] {
            assert!(open(Path::new(path)).is_none(), "{path}");
        }
        let exe = env::current_exe().unwrap();
        std::os::unix::fs::symlink(&exe, path("exe")).unwrap();
        assert!(open(&exe).is_some() && open(&path("exe")).is_some());
    }
}
