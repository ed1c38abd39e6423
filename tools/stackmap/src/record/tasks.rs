// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names of tasks, and their processes.
//!
//! Of tasks that run, `/proc` has them; of those that end or are renamed during the recording, the events of
//! [`comms`](super::comms). `saved_cmdlines` and `saved_tgids`, which the kernel fills for all instances or not at all, only
//! add to this.

use super::processes;
use crate::{
    ring::{comms::RecordedComms, tasks::Tasks},
    tracefs::Tracefs,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Returns the processes of all threads that run, except for those with the number of their process.
pub(super) fn threads() -> BTreeMap<i32, u32> {
    all(Path::new("/proc"))
        .filter(|(thread, process)| thread.cast_unsigned() != *process)
        .collect()
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

/// Returns the names of the tasks `pids`, and their processes. `threads` are those from the beginning.
pub(super) fn find(
    tracefs: &Tracefs,
    pids: &BTreeSet<i32>,
    threads: &BTreeMap<i32, u32>,
    comms: &RecordedComms,
) -> Tasks {
    let read = |name: &str| fs::read(tracefs.path(name)).unwrap_or_default();
    let running = |pid: i32| {
        let mut name = fs::read(format!("/proc/{pid}/comm")).ok()?;
        if name.ends_with(b"\n") {
            name.pop();
        }
        Some(name)
    };
    let process = |pid: i32| {
        let mut pid = pid;
        // A thread may have been started by a thread that was started by a thread, and so on.
        for _ in 0..comms.started.len() + 1 {
            match comms.started.get(&pid) {
                Some(by) => pid = *by,
                None => break,
            }
        }
        let known = threads.get(&pid).copied();
        let running = || processes::tgid(u32::try_from(pid).ok()?);
        // What has ended and was no thread was a process.
        let process = || {
            u32::try_from(pid)
                .ok()
                .filter(|_| comms.ended.contains(&pid))
        };
        known.or_else(running).or_else(process)
    };
    let tgids = String::from_utf8_lossy(&read("saved_tgids")).into_owned();
    let mut tasks = Tasks::new(pids, &read("saved_cmdlines"), &tgids, running, process);
    tasks.add(pids, comms);
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

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
