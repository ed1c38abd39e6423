// SPDX-License-Identifier: MIT OR Apache-2.0

//! The processes that a recording is limited to.
//!
//! The kernel compares ids of threads. It adds what a listed thread starts, and removes what ends,
//! while the option is on that follows forks. So the list always has the threads of these processes
//! and of their children, and the recording can end when it has none.

use crate::{
    error::{Error, Result},
    tracefs::Tracefs,
};
use rustix::{
    event::{poll, PollFd, PollFlags, Timespec},
    process::{pidfd_open, Pid, PidfdFlags},
};
use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd, OwnedFd},
    thread::sleep,
    time::Duration,
};

/// How often it is looked whether children still run.
const INTERVAL: Duration = Duration::from_millis(100);

/// A process, which is distinguished from later ones with the same id.
#[derive(Debug)]
struct Process {
    pid: u32,
    handle: OwnedFd,
}

/// Some processes.
#[derive(Debug, Default)]
pub(super) struct Processes(Vec<Process>);

impl Processes {
    /// The processes that have the threads `ids`.
    pub(super) fn find(ids: &[u32]) -> Result<Self> {
        let mut found: Vec<Process> = Vec::new();
        for id in ids {
            let pid = tgid(*id).ok_or_else(|| missing(*id))?;
            if found.iter().any(|process| process.pid == pid) {
                continue;
            }
            let handle = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let handle = handle.ok_or_else(|| missing(*id))?;
            let handle = pidfd_open(handle, PidfdFlags::empty()).map_err(|error| match error {
                rustix::io::Errno::SRCH => missing(*id),
                error => Error::io(format!("watch the process {pid}"), error.into()),
            })?;
            found.push(Process { pid, handle });
        }
        Ok(Self(found))
    }

    /// Whether there are none: then the recording is not limited.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their ids.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|process| process.pid).collect()
    }

    /// Adds all their threads to `list`, a file of tracefs, while the kernel adds those that threads
    /// in the list start. So no thread is missed when one round finds no new one.
    pub(super) fn add_to(&self, tracefs: &Tracefs, list: &str) -> Result {
        loop {
            let listed = listed(tracefs, list)?;
            let threads: Vec<_> = self
                .threads()
                .difference(&listed)
                .map(u32::to_string)
                .collect();
            if !threads.is_empty() {
                tracefs.append(list, &format!("{}\n", threads.join("\n")))?;
            } else if listed.is_empty() {
                return Err(Error::Refused(
                    "nothing is recorded: the processes of --pid ended before the recording began"
                        .to_owned(),
                ));
            } else {
                return Ok(());
            }
        }
    }

    /// The threads of those that run.
    fn threads(&self) -> BTreeSet<u32> {
        let mut threads = BTreeSet::new();
        for process in &self.0 {
            let entries = fs::read_dir(format!("/proc/{}/task", process.pid));
            let entries = entries.into_iter().flatten().flatten();
            let found = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            let found: Vec<_> = found.collect();
            // If it still runs, these were its threads.
            if process.runs() {
                threads.extend(found);
            }
        }
        threads
    }

    /// Waits until these processes, and the children that the kernel has added to `list`, have
    /// ended; as a function for another thread.
    pub(super) fn end(&self, tracefs: &Tracefs, list: &'static str) -> Result<Wait> {
        let handles = self.0.iter().map(|process| process.handle.try_clone());
        let handles = handles.collect::<std::io::Result<Vec<_>>>();
        let handles = handles.map_err(|error| Error::io("watch the processes", error))?;
        let tracefs = tracefs.clone();
        Ok(Box::new(move || {
            for handle in handles {
                let mut file = [PollFd::new(&handle, PollFlags::IN)];
                // A signal interrupts it.
                while poll(&mut file, None) == Err(rustix::io::Errno::INTR) {}
            }
            let runs = |list: BTreeSet<u32>| list.into_iter().any(runs);
            while listed(&tracefs, list).is_ok_and(runs) {
                sleep(INTERVAL);
            }
        }))
    }
}

/// What waits for something.
pub(super) type Wait = Box<dyn FnOnce() + Send>;

impl Process {
    fn runs(&self) -> bool {
        let handle = self.handle.as_fd();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut file = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
        poll(&mut file, Some(&now)).map_or(true, |ended| ended == 0)
    }
}

/// The ids in a file of tracefs. An empty `set_ftrace_pid` says "no pid".
fn listed(tracefs: &Tracefs, list: &str) -> Result<BTreeSet<u32>> {
    let text = tracefs.read(list)?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// The process of a thread that runs, or has just ended.
pub(super) fn tgid(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let tgid = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    tgid.trim().parse().ok()
}

/// Whether a thread is there and has not ended.
fn runs(thread: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    // The name, in brackets, may have anything.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| !state.starts_with(['Z', 'X', 'x']))
}

fn missing(id: u32) -> Error {
    Error::Refused(format!(
        "there is no process {id}\n  hint: ps -e lists the processes; --pid takes their ids"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        process::Command,
        sync::mpsc::{self, RecvTimeoutError},
        thread,
    };

    fn tracefs(list: &str) -> (tempfile::TempDir, Tracefs) {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("trace", ""), ("set_event_pid", list)] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let tracefs = Tracefs::find(Some(dir.path())).unwrap();
        (dir, tracefs)
    }

    #[test]
    fn all_threads_of_a_process_are_listed() {
        let (dir, tracefs) = tracefs("");
        let (sender, receiver) = mpsc::channel::<()>();
        let thread = thread::spawn(move || receiver.recv());
        let own = std::process::id();
        // By any of its threads, and once.
        let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let processes = Processes::find(&[id, own]).unwrap();
        assert_eq!(processes.pids(), [own]);
        processes.add_to(&tracefs, "set_event_pid").unwrap();
        let list = fs::read_to_string(dir.path().join("set_event_pid")).unwrap();
        let list: Vec<u32> = list.lines().map(|line| line.parse().unwrap()).collect();
        assert!(list.contains(&own) && list.contains(&id), "{list:?}");
        assert!(list.len() > 2, "{list:?}");
        drop(sender);
        thread.join().unwrap().unwrap_err();
    }

    #[test]
    fn one_that_has_ended_is_not_recorded() {
        let (_dir, tracefs) = tracefs("");
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let processes = Processes::find(&[child.id()]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = processes.add_to(&tracefs, "set_event_pid").unwrap_err();
        assert!(
            error.to_string().contains("ended before the recording"),
            "{error}"
        );
    }

    #[test]
    fn the_end_of_the_last_child_is_waited_for() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut parent = Command::new("sleep").arg("60").spawn().unwrap();
        // A thread that ended long ago may still be listed.
        let (_dir, tracefs) = tracefs(&format!("{}\n{}\n", child.id(), i32::MAX));
        let processes = Processes::find(&[parent.id()]).unwrap();
        let wait = processes.end(&tracefs, "set_event_pid").unwrap();
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || {
            wait();
            sender.send(()).unwrap();
        });
        let within = |millis| ended.recv_timeout(Duration::from_millis(millis));
        assert_eq!(within(100), Err(RecvTimeoutError::Timeout));
        parent.kill().unwrap();
        assert_eq!(within(300), Err(RecvTimeoutError::Timeout));
        child.kill().unwrap();
        // Neither was waited for by its parent, so both are zombies.
        assert_eq!(within(60_000), Ok(()));
        parent.wait().unwrap();
        child.wait().unwrap();
    }
}
