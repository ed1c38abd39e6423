// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names of tasks, and their processes.
//!
//! Of tasks that run, `/proc` has them; of those that end or are renamed during the recording, the events of
//! [`comms`](super::comms). `saved_cmdlines` and `saved_tgids`, which the kernel fills for all instances or not at all, only
//! add to this.

use crate::{
    kernel,
    ring::{comms::RecordedComms, tasks::Tasks},
    tracefs::Tracefs,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The tasks that run, each with its process and its name.
pub(super) type Running = BTreeMap<i32, (u32, Vec<u8>)>;

/// Returns the processes of all threads that run, except for those with the number of their process.
pub(super) fn threads() -> BTreeMap<i32, u32> {
    of_kernel()
        .filter(|(thread, process)| thread.cast_unsigned() != *process)
        .collect()
}

/// Returns all tasks that run.
pub(super) fn running() -> Running {
    let task = |(thread, process)| {
        let mut name = fs::read(format!("/proc/{process}/task/{thread}/comm")).ok()?;
        name.pop_if(|last| *last == b'\n');
        Some((thread, (process, name)))
    };
    of_kernel().filter_map(task).collect()
}

/// Returns all threads that run, and the process of each, by the numbers that the trace has: none in a PID namespace, whose
/// numbers are others.
fn of_kernel() -> impl Iterator<Item = (i32, u32)> {
    let proc = kernel::has_initial_pids().then(|| all(Path::new("/proc")));
    proc.into_iter().flatten()
}

/// Returns all threads that `proc` has, and the process of each.
pub(super) fn all(proc: &Path) -> impl Iterator<Item = (i32, u32)> + use<'_> {
    let numbers = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
    };
    numbers(proc).flat_map(move |process| {
        let threads = numbers(&proc.join(format!("{process}/task")));
        threads.map(move |thread| (thread, process.cast_unsigned()))
    })
}

/// Returns the names of the tasks `pids`, and their processes. `threads` are those from the beginning, `running` the tasks
/// at the end.
pub(super) fn find(
    tracefs: &Tracefs,
    pids: &BTreeSet<i32>,
    threads: &BTreeMap<i32, u32>,
    running: &Running,
    comms: &RecordedComms,
) -> Tasks {
    let read = |name: &str| fs::read(tracefs.path(name)).unwrap_or_default();
    let name = |pid: i32| running.get(&pid).map(|(_, name)| name.clone());
    let process = |pid: i32| running.get(&pid).map(|(process, _)| *process);
    let tgids = String::from_utf8_lossy(&read("saved_tgids")).into_owned();
    let mut tasks = Tasks::new(pids, &read("saved_cmdlines"), &tgids, name, process);
    tasks.add(pids, comms, threads, name);
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::comms::tests::recorded;

    #[test]
    fn a_process_whose_start_was_lost_is_not_that_of_a_thread_that_ended() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("trace"), "").unwrap();
        let tracefs = Tracefs::find(Some(dir.path())).unwrap();
        let of = |later: &[_]| recorded(&[&[(101, 10, "ended", 0)], later].concat());
        let mut lost = of(&[]);
        lost.lost(30);
        let (pids, threads) = ([101, 102].into(), [(101, 100), (102, 100)].into());
        let running = |pid: i32| (pid, (pid.cast_unsigned(), b"name".to_vec()));
        for (comms, running, last) in [
            (
                of(&[(101, 30, "renamed", 0)]),
                vec![running(101), running(102)],
                Some(101),
            ),
            (of(&[(101, 30, "renamed", 0)]), vec![], None),
            (of(&[]), vec![], Some(100)),
            (lost, vec![], None),
        ] {
            let running = running.into_iter().collect();
            let tasks = find(&tracefs, &pids, &threads, &running, &comms);
            let tgids = [(101, 5), (101, 35), (102, 35)].map(|(pid, time)| tasks.tgid(pid, time).0);
            assert_eq!(tgids, [Some(100), last, Some(100)]);
        }
    }

    #[test]
    fn threads_that_run_have_their_processes() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            ready
                .send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            let _ = receiver.recv();
        });
        let id = is_ready.recv().unwrap();
        assert_eq!(threads().get(&id), Some(&std::process::id()));
        drop(sender);
        thread.join().unwrap();
    }
}
