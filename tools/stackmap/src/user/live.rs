// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the running system says of code that is in no file: the vDSO, and code that was generated.

use super::words::Process;
use rustix::{
    fs::{fstat, openat2, FileType, Mode, OFlags, ResolveFlags},
    param::clock_ticks_per_second,
    process::geteuid,
    time::{clock_gettime, ClockId},
};
use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::FileExt,
};

/// More than what processes say of their code, in bytes.
pub const MAX_PERF_MAP: u64 = 64 << 20;
/// More than any vDSO has, in bytes.
pub const MAX_VDSO: u64 = 1 << 20;
/// The units of start times in [`Process::start`], in nanoseconds, and how many bits there are.
const UNIT_SHIFT: u32 = 20;
const START_BITS: u32 = 21;
/// The bits below: the count of `exec` calls.
const EXEC_BITS: u32 = 9;

/// The image of the vDSO, which is the same in all 64-bit processes.
pub fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let [start, end] = [start, end].map(|digits| u64::from_str_radix(digits, 16).ok());
    let (start, len) = (start?, end?.checked_sub(start?)?);
    let mut image = vec![0; usize::try_from(len.min(MAX_VDSO)).ok()?];
    let memory = File::open("/proc/self/mem").ok()?;
    memory.read_exact_at(&mut image, start).ok()?;
    Some(image)
}

/// What a process says of the code that it generated: `/tmp/perf-PID.map`, as the process sees it. Of
/// one that is gone, the file of that name here, if it is ours.
pub fn perf_map(process: Process) -> Option<Vec<u8>> {
    let dir = format!("/proc/{}", process.tgid);
    match fs::metadata(&dir) {
        Ok(_) if is_same(&dir, process) => {
            read(&format!("{dir}/root"), inner_pid(&dir)?, user(&dir)?)
        }
        // Another process has its number by now, and the file may be that one's.
        Ok(_) => None,
        Err(_) => read("/", process.tgid, geteuid().as_raw()),
    }
}

/// The user of a process, if it has only one: the owner of its directory is root for processes that
/// hide their memory.
fn user(dir: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("{dir}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut uids = line.split_ascii_whitespace();
    let first = uids.next()?;
    uids.all(|uid| uid == first).then_some(first)?.parse().ok()
}

/// The number that a process has in its own namespace.
fn inner_pid(dir: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("{dir}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

/// Whether a process is the one that a stack was of, as far as its start tells.
fn is_same(dir: &str, process: Process) -> bool {
    // Times of starts count while the machine sleeps, those of the module do not.
    let [boot, monotonic] = [ClockId::Boottime, ClockId::Monotonic].map(clock_gettime);
    if boot.tv_sec.abs_diff(monotonic.tv_sec) > 1 {
        return true;
    }
    let start = || {
        let stat = fs::read_to_string(format!("{dir}/stat")).ok()?;
        // The name, in brackets, may have blanks: field 22 is the 20th behind it.
        let (_, behind) = stat.rsplit_once(')')?;
        behind.split_ascii_whitespace().nth(19)?.parse::<u64>().ok()
    };
    let tick = 1_000_000_000 / clock_ticks_per_second().max(1);
    let Some(start) = start().map(|ticks| ticks.wrapping_mul(tick) >> UNIT_SHIFT) else {
        return false;
    };
    // The start of the process lies in the tick that begins there, and the clocks differ a little.
    let behind =
        u64::from(process.start >> EXEC_BITS).wrapping_sub(start) & ((1 << START_BITS) - 1);
    let slack = (tick >> UNIT_SHIFT) + 2;
    behind <= slack || behind >= (1 << START_BITS) - slack
}

/// The file of a process. `owner`: whose it must be. A process can mount any file there in a namespace
/// of its own, also one that it may not read.
fn read(root: &str, pid: u32, owner: u32) -> Option<Vec<u8>> {
    // The directory is anybody's: no link is followed out of it, and nothing is waited for.
    let file = openat2(
        File::open(root).ok()?,
        format!("tmp/perf-{pid}.map"),
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
    .ok()?;
    let stat = fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || stat.st_uid != owner
        || stat.st_nlink != 1
    {
        return None;
    }
    let mut text = Vec::new();
    File::from(file)
        .take(MAX_PERF_MAP)
        .read_to_end(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_is_an_elf_file() {
        assert!(vdso().unwrap().starts_with(b"\x7fELF"));
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let (_, behind) = stat.rsplit_once(')').unwrap();
        let ticks: u64 = behind
            .split_ascii_whitespace()
            .nth(19)
            .unwrap()
            .parse()
            .unwrap();
        let tick = 1_000_000_000 / clock_ticks_per_second();
        let units = (ticks * tick + tick / 2) >> UNIT_SHIFT & ((1 << START_BITS) - 1);
        let process = |units: u64| Process {
            tgid: std::process::id(),
            start: (units << EXEC_BITS) as u32 | 3,
        };
        assert!(is_same("/proc/self", process(units)));
        assert!(!is_same("/proc/self", process(units ^ 1 << 15)));
    }

    #[test]
    fn a_link_is_no_map() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        fs::write(dir.path().join("tmp/perf-7.map"), "10 10 a\n").unwrap();
        std::os::unix::fs::symlink("perf-7.map", dir.path().join("tmp/perf-8.map")).unwrap();
        fs::create_dir(dir.path().join("tmp/perf-9.map")).unwrap();
        let us = user("/proc/self").unwrap();
        assert_eq!(us, geteuid().as_raw());
        assert_eq!(read(root, 7, us).unwrap(), b"10 10 a\n");
        assert_eq!(read(root, 7, us + 1), None);
        assert_eq!(read(root, 8, us), None);
        assert_eq!(read(root, 9, us), None);
        assert_eq!(read(root, 10, us), None);
    }
}
