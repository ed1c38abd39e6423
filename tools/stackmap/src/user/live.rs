// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the running system says of code that is in no file: the vDSO, and code that was generated.

use super::words::Process;
use crate::output::warn;
use rustix::{
    fs::{fstat, openat2, FileType, Mode, OFlags, ResolveFlags},
    param::clock_ticks_per_second,
    process::geteuid,
    time::{clock_gettime, ClockId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    os::unix::fs::FileExt,
    time::Duration,
};

/// More than what a process says of its code, in bytes.
pub const MAX_PERF_MAP: u64 = 64 << 20;
/// More than what all processes say of it, in bytes.
const MAX_PERF_MAPS: usize = 256 << 20;
/// More than any vDSO has, in bytes.
pub const MAX_VDSO: u64 = 1 << 20;
/// The units of start times in [`Process::start`], in nanoseconds, and how many bits there are.
const UNIT_SHIFT: u32 = 20;
const START_MASK: u64 = (1 << 21) - 1;
/// The bits below: the count of `exec` calls.
const EXEC_BITS: u32 = 9;
const EXEC_MASK: u32 = (1 << EXEC_BITS) - 1;

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

/// The time since the system was started, the times it was suspended included.
pub fn since_boot() -> Duration {
    time(ClockId::Boottime)
}

/// What processes say of the code that they generated: `/tmp/perf-PID.map`, as the process sees it. Of
/// one that is gone, the file of that name here, if it is ours. A file that may be of another process, or
/// of another program that the process ran, is not read. `begun`: when a recording began that the
/// frames are of, see [`since_boot`].
pub fn perf_maps(
    processes: &BTreeSet<Process>,
    begun: Option<Duration>,
) -> impl Iterator<Item = (Process, Vec<u8>)> {
    let clocks = Clocks::now(begun);
    let processes = clocks.newest(processes);
    let mut space = Space::default();
    processes.into_iter().filter_map(move |(process, is_only)| {
        let map = clocks.perf_map(process, is_only)?;
        space.has(process, &map).then_some((process, map))
    })
}

/// Space for what processes say of their code: anybody may have many that say much.
pub struct Space(usize);

impl Default for Space {
    fn default() -> Self {
        Self(MAX_PERF_MAPS)
    }
}

impl Space {
    /// Space for this many bytes.
    #[cfg(test)]
    pub(crate) fn of(nr_bytes: usize) -> Self {
        Self(nr_bytes)
    }

    /// Whether there is space for another perf map, which takes it; else a warning says that it is not used.
    pub fn has(&mut self, process: Process, map: &[u8]) -> bool {
        let Some(left) = self.0.checked_sub(map.len()) else {
            warn(format_args!(
                "perf map of process {}: not used: those of all processes are too large",
                process.tgid
            ));
            return false;
        };
        self.0 = left;
        true
    }
}

/// Whether a process is the one that a frame is of: the module counts the time without the
/// times that the system was suspended, what `/proc` says is with them.
#[derive(Clone, Copy)]
struct Clocks {
    wall: Duration,
    boot: Duration,
    /// Without the times that the system was suspended.
    running: Duration,
    begun: Option<Duration>,
}

fn time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// In units of start times.
fn units(time: Duration) -> u64 {
    time.as_nanos() as u64 >> UNIT_SHIFT
}

fn start(process: Process) -> u64 {
    u64::from(process.start >> EXEC_BITS)
}

impl Clocks {
    fn now(begun: Option<Duration>) -> Self {
        Self {
            wall: time(ClockId::Realtime),
            boot: since_boot(),
            running: time(ClockId::Monotonic),
            begun,
        }
    }

    /// The time that a process is there at least.
    fn least_age(&self, process: Process) -> Duration {
        let age = units(self.running).wrapping_sub(start(process)) & START_MASK;
        Duration::from_nanos(age << UNIT_SHIFT)
    }

    /// The last program of the last process of each number, and whether it is the only process of that
    /// number.
    fn newest(&self, processes: &BTreeSet<Process>) -> Vec<(Process, bool)> {
        let mut by_tgid = BTreeMap::<u32, Vec<Process>>::new();
        for process in processes {
            by_tgid.entry(process.tgid).or_default().push(*process);
        }
        let newest = by_tgid.into_values().filter_map(|mut of| {
            of.sort_by_key(|process| {
                let exec = process.start & EXEC_MASK;
                (std::cmp::Reverse(self.least_age(*process)), exec)
            });
            let newest = *of.last()?;
            let is_only = of.iter().all(|process| start(*process) == start(newest));
            Some((newest, is_only))
        });
        newest.collect()
    }

    fn perf_map(&self, process: Process, is_only: bool) -> Option<Vec<u8>> {
        let dir = format!("/proc/{}", process.tgid);
        let (root, pid, owner, age) = match fs::metadata(&dir) {
            Ok(_) => {
                let began = began(&dir)?;
                if !self.is_same(process, began, is_only) {
                    return None;
                }
                let root = format!("{dir}/root");
                (
                    root,
                    inner_pid(&dir)?,
                    user(&dir)?,
                    self.boot.checked_sub(began)?,
                )
            }
            Err(_) => {
                let us = geteuid().as_raw();
                ("/".to_owned(), process.tgid, us, self.least_age(process))
            }
        };
        // A file that is older is of another process.
        let file = open(&root, pid, owner, self.wall.checked_sub(age)?)?;
        read(file, process.tgid)
    }

    /// Whether a process that `began` then is the one that a stack was of, as far as its start tells.
    fn is_same(&self, process: Process, began: Duration, is_only: bool) -> bool {
        let suspended = self.boot.saturating_sub(self.running);
        let (first, last) = (began.saturating_sub(suspended), began + tick());
        let slack = 2;
        let possible = units(last) - units(first) + 2 * slack;
        if possible >= START_MASK {
            // Starts repeat by then. No other process had this number since the recording began.
            return is_only && self.begun.is_some_and(|begun| last <= begun);
        }
        let behind = start(process).wrapping_sub(units(first).wrapping_sub(slack)) & START_MASK;
        behind <= possible
    }
}

/// The unit of times in `/proc`.
fn tick() -> Duration {
    Duration::from_nanos(1_000_000_000 / clock_ticks_per_second().max(1))
}

/// When a process began, since the system was started.
fn began(dir: &str) -> Option<Duration> {
    let stat = fs::read_to_string(format!("{dir}/stat")).ok()?;
    // The name, in brackets, may have blanks: field 22 is the 20th after it.
    let (_, behind) = stat.rsplit_once(')')?;
    let ticks: u64 = behind.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let tick = tick().as_nanos() as u64;
    Some(Duration::from_nanos(ticks.checked_mul(tick)?))
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

/// The file of a process. `owner`: whose it must be. A process can mount any file there in a namespace
/// of its own, also one that it may not read. `since`: when the process began, since 1970.
fn open(root: &str, pid: u32, owner: u32, since: Duration) -> Option<File> {
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
        || u64::try_from(stat.st_mtime).ok()? < since.as_secs()
    {
        return None;
    }
    Some(file.into())
}

/// What a perf map says, unless it is too large: its last lines are the ones that count.
fn read(file: impl Read, tgid: u32) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_PERF_MAP + 1).read_to_end(&mut text).ok()?;
    if text.len() as u64 > MAX_PERF_MAP {
        warn(format_args!(
            "perf map of process {tgid}: not used: more than {MAX_PERF_MAP} bytes"
        ));
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_is_an_elf_file() {
        assert!(vdso().unwrap().starts_with(b"\x7fELF"));
    }

    fn process(start: Duration, exec: u32) -> Process {
        Process {
            tgid: std::process::id(),
            start: ((units(start) & START_MASK) as u32) << EXEC_BITS | exec,
        }
    }

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const SECOND: Duration = Duration::from_secs(1);

    fn clocks(suspended: Duration, begun: Option<Duration>) -> Clocks {
        Clocks {
            wall: 1000 * HOUR,
            boot: 9 * HOUR + suspended,
            running: 9 * HOUR,
            begun,
        }
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = began("/proc/self").unwrap();
        let clocks = Clocks::now(None);
        assert!(own <= clocks.boot);
        let suspended = clocks.boot.saturating_sub(clocks.running);
        if suspended < SECOND {
            assert!(clocks.is_same(process(own, 3), own, true));
            assert!(!clocks.is_same(process(own + SECOND, 3), own, true));
        }
    }

    #[test]
    fn a_start_may_be_from_before_the_system_was_suspended() {
        let minute = 60 * SECOND;
        let is_same = |suspended, running_start: Duration| {
            clocks(suspended, None).is_same(process(running_start, 0), 8 * HOUR, true)
        };
        let start = 8 * HOUR;
        assert!(is_same(Duration::ZERO, start));
        assert!(!is_same(Duration::ZERO, start - minute));
        // What the module and /proc say is rounded.
        let unit = Duration::from_nanos(1 << UNIT_SHIFT);
        assert!(is_same(Duration::ZERO, start - 2 * unit));
        assert!(!is_same(Duration::ZERO, start - 3 * unit));
        assert!(!is_same(Duration::ZERO, start + minute));
        for before in [Duration::ZERO, minute, 10 * minute] {
            assert!(is_same(10 * minute, start - before));
        }
        assert!(!is_same(10 * minute, start - 11 * minute));
        assert!(!is_same(10 * minute, start + minute));
        // 2^21 units later there is the same start again.
        assert!(!is_same(HOUR, start));
        let during = |begun, is_only| {
            clocks(HOUR, Some(begun)).is_same(process(start, 0), 8 * HOUR, is_only)
        };
        assert!(during(8 * HOUR + SECOND, true));
        assert!(!during(8 * HOUR + SECOND, false));
        assert!(!during(8 * HOUR, true));
    }

    #[test]
    fn a_map_is_of_the_last_program() {
        let now = clocks(Duration::ZERO, None);
        let at = |start, exec| process(start, exec);
        let newest = |of: &[Process]| now.newest(&of.iter().copied().collect());
        let start = 8 * HOUR + 40 * 60 * SECOND;
        assert_eq!(
            newest(&[at(start, 2), at(start, 3)]),
            [(at(start, 3), true)]
        );
        let later = start + SECOND;
        let both = [at(start, 3), at(later, 1)];
        assert_eq!(newest(&both), [(at(later, 1), false)]);
        let other = Process {
            tgid: 1,
            ..at(start, 1)
        };
        assert_eq!(newest(&[other, at(later, 1)]).len(), 2);
        assert!(now.least_age(at(start, 1)).abs_diff(20 * 60 * SECOND) < SECOND);
    }

    #[test]
    fn a_map_of_another_process_is_not_read() {
        let path = format!("/tmp/perf-{}.map", std::process::id());
        fs::write(&path, "10 10 a\n").unwrap();
        let own = began("/proc/self").unwrap();
        let clocks = Clocks::now(None);
        let found = [own, own + SECOND].map(|start| clocks.perf_map(process(start, 3), true));
        fs::remove_file(path).unwrap();
        assert_eq!(found[0].as_deref(), Some(&b"10 10 a\n"[..]));
        if clocks.boot.saturating_sub(clocks.running) < SECOND {
            assert_eq!(found[1], None);
        }
    }

    #[test]
    fn a_process_has_one_user_and_the_number_of_its_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let of = |uids: &str| {
            let status = format!("Name:\tx\nUid:\t{uids}\nNSpid:\t900\t30\t7\n");
            fs::write(dir.path().join("status"), status).unwrap();
            let dir = dir.path().to_str().unwrap();
            (user(dir), inner_pid(dir))
        };
        assert_eq!(of("5\t5\t5\t5"), (Some(5), Some(7)));
        for uids in ["5\t0\t5\t5", "5\t5\t0\t5", "5\t5\t5\t0"] {
            assert_eq!(of(uids).0, None);
        }
    }

    #[test]
    fn a_map_that_is_too_large_is_not_used() {
        let read = |len| read(std::io::repeat(b'x').take(len), 7).map(|map| map.len() as u64);
        assert_eq!(read(MAX_PERF_MAP), Some(MAX_PERF_MAP));
        assert_eq!(read(MAX_PERF_MAP + 1), None);
    }

    #[test]
    fn a_link_is_no_map() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        fs::write(dir.path().join("tmp/perf-7.map"), "10 10 a\n").unwrap();
        std::os::unix::fs::symlink("perf-7.map", dir.path().join("tmp/perf-8.map")).unwrap();
        fs::create_dir(dir.path().join("tmp/perf-9.map")).unwrap();
        fs::write(dir.path().join("tmp/perf-11.map"), "").unwrap();
        fs::hard_link(dir.path().join("tmp/perf-11.map"), dir.path().join("x")).unwrap();
        let us = user("/proc/self").unwrap();
        assert_eq!(us, geteuid().as_raw());
        let now = time(ClockId::Realtime);
        let read_it = |pid, us, since| read(open(root, pid, us, since)?, pid);
        assert_eq!(read_it(7, us, now - HOUR).unwrap(), b"10 10 a\n");
        assert_eq!(read_it(7, us, now + HOUR), None);
        assert_eq!(read_it(7, us + 1, now - HOUR), None);
        for pid in 8..=11 {
            assert_eq!(read_it(pid, us, now - HOUR), None);
        }
    }
}
