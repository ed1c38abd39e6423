// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names that tasks have had and when, out of the events that tell them.

use super::format::{Format, Formats, Head, Value};
use crate::symbols::texts::number_of;
use indexmap::IndexSet;
use std::collections::{BTreeMap, BTreeSet};

/// These events, with the fields that have a name of the task `pid`: its first one, each later one with that before it, and
/// its last one; and that of a module.
pub const EVENTS: [(&str, &str, &[&str]); 4] = [
    ("task", "task_newtask", &["comm"]),
    ("task", "task_rename", &["oldcomm", "newcomm"]),
    ("sched", "sched_process_exit", &["comm"]),
    (MODULE, "module_free", &["name"]),
];
/// The system of events that a kernel without modules lacks.
pub const MODULE: &str = "module";
/// The flag of a new task that is a thread of the process of the task that starts it.
const CLONE_THREAD: u64 = 0x1_0000;

/// A change of a task. Those of one time are in the order of the variants; names are numbers.
#[derive(Clone, Copy, Debug)]
enum Change {
    Started { comm: u32, by: i32, is_thread: bool },
    Renamed { from: u32, to: u32 },
    Ended { comm: u32 },
}

/// What such events tell of tasks.
#[derive(Debug, Default)]
pub struct RecordedComms {
    names: IndexSet<Vec<u8>>,
    changes: BTreeMap<i32, Vec<(u64, Change)>>,
    /// Modules that were unloaded.
    pub freed: BTreeSet<String>,
}

impl RecordedComms {
    /// Adds an event. Those of one CPU come in their order.
    pub fn add(&mut self, formats: &Formats, format: &Format, head: &Head, time: u64, data: &[u8]) {
        let event = EVENTS.iter().find(|(_, name, _)| *format.name == **name);
        let pid = formats.number(format, "pid", data).map(|pid| pid as i32);
        let Some((_, event, fields)) = event else {
            return;
        };
        let mut name = |field: &&str| match formats.value(format.field(field)?, data)? {
            Value::Text(name) => Some(number_of(&mut self.names, name)),
            _ => None,
        };
        let names: Option<Vec<_>> = fields.iter().map(&mut name).collect();
        let change = match (*event, names.as_deref()) {
            ("task_newtask", Some([comm])) => Change::Started {
                comm: *comm,
                by: head.pid,
                is_thread: formats
                    .number(format, "clone_flags", data)
                    .is_some_and(|flags| flags & CLONE_THREAD != 0),
            },
            ("task_rename", Some([from, to])) => Change::Renamed {
                from: *from,
                to: *to,
            },
            ("sched_process_exit", Some([comm])) => Change::Ended { comm: *comm },
            ("module_free", Some([name])) => {
                let name = String::from_utf8_lossy(&self.names[*name as usize]);
                self.freed.insert(name.into_owned());
                return;
            }
            _ => return,
        };
        let pid = pid.unwrap_or_default();
        self.changes.entry(pid).or_default().push((time, change));
    }

    /// Sorts the changes of all tasks by time.
    pub fn sort(&mut self) {
        let rank = |change: &Change| match change {
            Change::Started { .. } => 0,
            Change::Renamed { .. } => 1,
            Change::Ended { .. } => 2,
        };
        for changes in self.changes.values_mut() {
            changes.sort_by_key(|(time, change)| (*time, rank(change)));
        }
    }

    /// Returns the processes that the first threads of `parents` have started.
    pub fn children(&self, parents: &[u32]) -> BTreeSet<i32> {
        let is_started = |(_, change): &(u64, Change)| match change {
            Change::Started { by, is_thread, .. } => {
                !is_thread && parents.contains(&by.cast_unsigned())
            }
            _ => false,
        };
        let changes = self.changes.iter();
        let children = changes.filter(|(_, changes)| changes.iter().any(is_started));
        children.map(|(pid, _)| *pid).collect()
    }

    fn changes(&self, pid: i32) -> &[(u64, Change)] {
        self.changes.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Returns the names of a task, each with the time when it began; one that is known from its end began with the task,
    /// or after the end of the one before.
    pub fn names(&self, pid: i32) -> Vec<(u64, String)> {
        let mut names = Vec::new();
        let (mut is_known, mut begin) = (false, 0);
        for (time, change) in self.changes(pid) {
            match *change {
                Change::Started { comm, .. } => names.push((*time, comm)),
                Change::Renamed { from, to } => {
                    if !is_known {
                        names.push((begin, from));
                    }
                    names.push((*time, to));
                }
                Change::Ended { comm } if !is_known => names.push((begin, comm)),
                Change::Ended { .. } => {}
            }
            is_known = !matches!(change, Change::Ended { .. });
            if !is_known {
                begin = *time;
            }
        }
        names.dedup_by_key(|(_, name)| *name);
        let names = names.into_iter().map(|(time, name)| {
            let name = String::from_utf8_lossy(&self.names[name as usize]);
            (time, name.into_owned())
        });
        names.collect()
    }

    /// Returns the processes of a task, each with the time from which the task belongs to it; 0: not known. `threads` has
    /// the processes of the threads that ran at the beginning, without the first thread of each process.
    pub fn processes(&self, pid: i32, threads: &BTreeMap<i32, u32>) -> Vec<(u64, u32)> {
        let mut lives = Vec::new();
        let mut ended = None;
        for (time, change) in self.changes(pid) {
            match (change, lives.last(), ended) {
                (Change::Started { .. }, _, _) => {
                    lives.push((*time, self.process(pid, *time, threads)));
                }
                (_, None, _) => lives.push((0, self.process(pid, 0, threads))),
                // The start of another task with this ID was lost, or a thread has called exec and has taken the ID over.
                (_, Some((_, process)), Some(end)) if *process != pid as u32 => {
                    lives.push((end, 0))
                }
                _ => {}
            }
            ended = matches!(change, Change::Ended { .. }).then_some(*time);
        }
        lives
    }

    /// Returns the process of a task that runs at a time.
    fn process(&self, mut pid: i32, mut time: u64, threads: &BTreeMap<i32, u32>) -> u32 {
        // A thread may have been started by a thread that was started by a thread, and so on.
        for _ in 0..self.changes.len() {
            let earlier = self.changes(pid).iter().rev();
            let mut earlier = earlier.skip_while(|(at, _)| *at > time);
            let start = earlier.find_map(|(at, change)| match change {
                Change::Started { by, is_thread, .. } => Some((*at, *by, *is_thread)),
                _ => None,
            });
            match start {
                Some((at, by, true)) => (pid, time) = (by, at),
                Some((_, _, false)) => return pid as u32,
                None => break,
            }
        }
        threads.get(&pid).copied().unwrap_or(pid as u32)
    }
}
