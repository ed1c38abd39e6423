// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names of tasks, and their processes.
//!
//! Of tasks that run, `/proc` has them. For tasks that end during the recording, the kernel keeps two histograms in the
//! instance: the names of tasks that end, and the threads that tasks start. They write nothing to the
//! buffer. `saved_cmdlines` and `saved_tgids`, which the kernel fills for all instances or not at all, only add to this.

use super::processes;
use crate::{ring::tasks::Tasks, tracefs::Tracefs};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The events that are counted, and the histograms.
const ENDED: (&str, &str) = (
    "events/sched/sched_process_exit",
    "hist:keys=pid,comm:size=8192",
);
const THREADS: (&str, &str) = (
    "events/task/task_newtask",
    "hist:keys=pid,common_pid:size=8192 if clone_flags & 65536",
);

/// Makes the kernel keep what `/proc` does not have at the end. Without histograms, some names are missing.
pub(super) fn keep(tracefs: &Tracefs) {
    for (event, histogram) in [ENDED, THREADS] {
        let _ = tracefs.append(&format!("{event}/trigger"), &format!("{histogram}\n"));
    }
}

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
pub(super) fn find(tracefs: &Tracefs, pids: &BTreeSet<i32>, threads: &BTreeMap<i32, u32>) -> Tasks {
    let read = |name: &str| fs::read(tracefs.path(name)).unwrap_or_default();
    let ended = read(&format!("{}/hist", ENDED.0));
    let ended: BTreeMap<_, _> = entries(&ended, b"comm: ").collect();
    let started = read(&format!("{}/hist", THREADS.0));
    let started = entries(&started, b"common_pid: ");
    let started: BTreeMap<_, _> = started
        .filter_map(|(pid, by)| Some((pid, number(by)?)))
        .collect();
    let name = |pid: i32| {
        let running = || {
            let mut name = fs::read(format!("/proc/{pid}/comm")).ok()?;
            if name.ends_with(b"\n") {
                name.pop();
            }
            Some(name)
        };
        ended.get(&pid).map(|name| name.to_vec()).or_else(running)
    };
    let process = |pid: i32| {
        let mut pid = pid;
        // A thread may have been started by a thread that was started by a thread, and so on.
        for _ in 0..started.len() + 1 {
            match started.get(&pid) {
                Some(by) => pid = *by,
                None => break,
            }
        }
        let known = threads.get(&pid).copied();
        let running = || processes::tgid(u32::try_from(pid).ok()?);
        // What has ended and was no thread was a process.
        let process = || u32::try_from(pid).ok().filter(|_| ended.contains_key(&pid));
        known.or_else(running).or_else(process)
    };
    let tgids = String::from_utf8_lossy(&read("saved_tgids")).into_owned();
    Tasks::new(pids, &read("saved_cmdlines"), &tgids, name, process)
}

/// Returns the entries of a histogram: `{ pid:       1234, KEY... } hitcount: ...`, each with its number and its other key.
///
/// A name may contain newlines, but is too short for the beginning of an entry.
fn entries<'a>(text: &'a [u8], key: &'a [u8]) -> impl Iterator<Item = (i32, &'a [u8])> {
    const HEAD: &[u8] = b"\n{ pid: ";
    let begins = memchr::memmem::find_iter(text, HEAD).filter_map(move |at| {
        let rest = &text[at + HEAD.len()..];
        let comma = memchr::memchr(b',', rest)?;
        let pid = number(&rest[..comma])?;
        rest[comma + 1..].strip_prefix(b" ")?.strip_prefix(key)?;
        Some((at, pid, at + HEAD.len() + comma + 2 + key.len()))
    });
    let begins: Vec<_> = begins.collect();
    let ends: Vec<_> = begins.iter().skip(1).map(|(at, ..)| *at).collect();
    let ends = ends.into_iter().chain([text.len()]);
    begins
        .into_iter()
        .zip(ends)
        .filter_map(move |((_, pid, from), to)| {
            let entry = &text[from..to];
            let end = memchr::memmem::rfind(entry, b" } hitcount: ")?;
            Some((pid, entry[..end].trim_ascii_end()))
        })
}

fn number(digits: &[u8]) -> Option<i32> {
    str::from_utf8(digits).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read() {
        let entry = |pid: i32, name: &str| {
            format!("{{ pid: {pid:10}, comm: {name:<50} }} hitcount:          1\n")
        };
        let text = format!(
            "# event histogram\n#\n# trigger info: hist:keys=pid,comm [active]\n#\n\n{}{}{}\nTotals:\n    Hits: 3\n",
            entry(12, "sh"),
            // Names of 15 bytes.
            entry(13, "\n{ pid: 1, comm"),
            entry(4_194_303, "a b } hitcount:"),
        );
        let found: Vec<_> = entries(text.as_bytes(), b"comm: ").collect();
        let want: [(i32, &[u8]); 3] = [
            (12, b"sh"),
            (13, b"\n{ pid: 1, comm"),
            (4_194_303, b"a b } hitcount:"),
        ];
        assert_eq!(found, want);
        let text = b"\n{ pid:          7, common_pid:          5 } hitcount:          1\n";
        assert_eq!(
            entries(text, b"common_pid: ").collect::<Vec<_>>(),
            [(7, &b"         5"[..])]
        );
        assert_eq!(entries(b"", b"comm: ").count(), 0);
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
