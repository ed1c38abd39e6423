// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names that tasks have had and when, out of the events that tell them.

use super::{
    format::{Format, Formats, Head, Value},
    tasks::UNKNOWN,
};
use crate::symbols::texts::number_of;
use indexmap::IndexSet;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

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
    Started { comm: u32 },
    Renamed { from: u32, to: u32 },
    Ended { comm: u32 },
}

/// A task that starts, and when.
type Start = (i32, u64);

/// What such events tell of tasks.
#[derive(Debug, Default)]
pub struct RecordedComms {
    names: IndexSet<Vec<u8>>,
    changes: BTreeMap<i32, Vec<(u64, Change)>>,
    /// The starts of tasks, by task and time: the task that did it, and whether they are threads of its process.
    starts: BTreeMap<Start, (i32, bool)>,
    /// The time before which changes may be lost.
    lost_until: u64,
    /// Modules that were unloaded, and how often.
    pub freed: BTreeMap<String, u64>,
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
        let pid = pid.unwrap_or_default();
        let change = match (*event, names.as_deref()) {
            ("task_newtask", Some([comm])) => {
                let flags = formats.number(format, "clone_flags", data);
                let is_thread = flags.is_some_and(|flags| flags & CLONE_THREAD != 0);
                self.starts.insert((pid, time), (head.pid, is_thread));
                Change::Started { comm: *comm }
            }
            ("task_rename", Some([from, to])) => Change::Renamed {
                from: *from,
                to: *to,
            },
            ("sched_process_exit", Some([comm])) => Change::Ended { comm: *comm },
            ("module_free", Some([name])) => {
                let name = String::from_utf8_lossy(self.name(*name));
                *self.freed.entry(name.into_owned()).or_default() += 1;
                return;
            }
            _ => return,
        };
        self.changes.entry(pid).or_default().push((time, change));
    }

    /// Notes that changes before this time may be lost.
    pub fn lost(&mut self, until: u64) {
        self.lost_until = self.lost_until.max(until);
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
        let children = self
            .starts
            .iter()
            .filter(|(_, (by, is_thread))| !is_thread && parents.contains(&by.cast_unsigned()));
        children.map(|((pid, _), _)| *pid).collect()
    }

    fn changes(&self, pid: i32) -> &[(u64, Change)] {
        self.changes.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Returns the names of a task, each with the time when it began. `running` is its name at the end, if it runs then. A name
    /// lasts until the next change if that confirms it. If not, another task may have had this ID in between: the name is
    /// unknown while changes may be lost.
    pub fn names(&self, pid: i32, running: Option<&[u8]>) -> Vec<(u64, String)> {
        let mut names: Vec<(u64, &[u8])> = Vec::new();
        let mut begin = 0;
        for (time, change) in self.changes(pid) {
            let (before, after) = match *change {
                Change::Started { comm } => (None, comm),
                Change::Renamed { from, to } => (Some(from), to),
                Change::Ended { comm } => (Some(comm), comm),
            };
            self.add_before(&mut names, begin..*time, before.map(|name| self.name(name)));
            names.push((*time, self.name(after)));
            begin = *time;
        }
        if begin < self.lost_until && !names.is_empty() {
            self.add_before(&mut names, begin..u64::MAX, running);
        }
        names.dedup_by_key(|(_, name)| *name);
        let text = |name| String::from_utf8_lossy(name).into_owned();
        names
            .into_iter()
            .map(|(time, name)| (time, text(name)))
            .collect()
    }

    /// Adds the name that a task has at the end of a time without a change; [`None`]: there is no task.
    fn add_before<'a>(
        &self,
        names: &mut Vec<(u64, &'a [u8])>,
        time: Range<u64>,
        name: Option<&'a [u8]>,
    ) {
        let last = names.last().map(|(_, last)| *last);
        let mut begin = time.start;
        if begin < self.lost_until && (name.is_none() || last.is_some() && last != name) {
            names.push((begin, UNKNOWN.as_bytes()));
            begin = time.end.min(self.lost_until);
        }
        names.extend(name.map(|name| (begin, name)));
    }

    fn name(&self, number: u32) -> &[u8] {
        &self.names[number as usize]
    }

    /// Returns the processes of a task, each with the time from which the task belongs to it; 0: not known. `threads` has
    /// the processes of the threads that ran at the beginning, without the first thread of each process. `known` keeps what
    /// was found for other tasks.
    pub fn processes(
        &self,
        pid: i32,
        threads: &BTreeMap<i32, u32>,
        known: &mut BTreeMap<Start, u32>,
    ) -> Vec<(u64, u32)> {
        let mut lives = Vec::new();
        let mut ended = None;
        for (time, change) in self.changes(pid) {
            match (change, lives.last(), ended) {
                (Change::Started { .. }, last, _) => {
                    if last.is_none() && self.lost_until > 0 {
                        lives.push((0, 0));
                    }
                    lives.push((*time, self.process(pid, *time, threads, known)));
                }
                (_, None, _) => lives.push((0, self.process(pid, 0, threads, known))),
                // The start of another task with this ID was lost, or a thread has called exec and has taken the ID over.
                (_, Some((_, process)), Some(end)) if *process != pid as u32 => {
                    lives.push((end, 0))
                }
                _ => {}
            }
            ended = matches!(change, Change::Ended { .. }).then_some(*time);
        }
        if let (Some((end, _)), Some((_, process))) = (self.changes(pid).last(), lives.last()) {
            if *end < self.lost_until && *process != pid as u32 {
                lives.push((*end, 0));
            }
        }
        lives
    }

    /// Returns the process of a task that runs at a time.
    fn process(
        &self,
        mut pid: i32,
        mut time: u64,
        threads: &BTreeMap<i32, u32>,
        known: &mut BTreeMap<Start, u32>,
    ) -> u32 {
        let mut passed = Vec::new();
        // A thread may have been started by a thread that was started by a thread, and so on.
        let process = loop {
            let (start, by) = match self.starts.range((pid, 0)..=(pid, time)).next_back() {
                Some((start, (by, true))) => (*start, *by),
                Some((_, (_, false))) => break pid as u32,
                None => break threads.get(&pid).copied().unwrap_or(pid as u32),
            };
            if let Some(process) = known.get(&start) {
                break *process;
            }
            // Starts of one time may be a circle.
            known.insert(start, pid as u32);
            passed.push(start);
            (pid, time) = (by, start.1);
        };
        known.extend(passed.into_iter().map(|start| (start, process)));
        process
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns what such events tell: a task, when, what it does, and who starts it.
    pub(crate) fn recorded(events: &[(i32, u64, &str, i32)]) -> RecordedComms {
        let mut comms = RecordedComms::default();
        let comm = number_of(&mut comms.names, &b"name"[..]);
        for (pid, time, what, by) in events {
            let is_thread = *what == "thread";
            let change = match *what {
                "thread" | "process" => {
                    comms.starts.insert((*pid, *time), (*by, is_thread));
                    Change::Started { comm }
                }
                "renamed" => Change::Renamed {
                    from: comm,
                    to: comm,
                },
                _ => Change::Ended { comm },
            };
            comms.changes.entry(*pid).or_default().push((*time, change));
        }
        comms.sort();
        comms
    }

    /// Returns the processes of the tasks at first.
    fn processes(comms: &RecordedComms, pids: std::ops::Range<i32>) -> Vec<u32> {
        let mut known = BTreeMap::new();
        let threads = BTreeMap::from([(1, 9)]);
        let first = |pid| comms.processes(pid, &threads, &mut known)[0].1;
        pids.map(first).collect()
    }

    #[test]
    fn the_process_of_many_threads_is_found_in_a_moment() {
        const NR: i32 = 100_000;
        // Each starts the next one; or one starts all, and has another name each time.
        for is_chain in [true, false] {
            let events = (2..NR).flat_map(|pid| {
                let by = if is_chain { pid - 1 } else { 1 };
                let time = pid as u64;
                [(pid, time, "thread", by), (by, time, "renamed", 0)]
            });
            let begun = std::time::Instant::now();
            let comms = recorded(&events.collect::<Vec<_>>());
            assert!(processes(&comms, 2..NR).iter().all(|process| *process == 9));
            assert!(begun.elapsed().as_secs() < 60);
        }
    }

    #[test]
    fn what_had_the_id_before_a_start_is_in_no_known_process_if_changes_are_lost() {
        let mut comms = recorded(&[(5, 30, "thread", 1)]);
        let of_5 =
            |comms: &RecordedComms| comms.processes(5, &BTreeMap::new(), &mut BTreeMap::new());
        assert_eq!(of_5(&comms), [(30, 1)]);
        comms.lost(20);
        assert_eq!(of_5(&comms), [(0, 0), (30, 1)]);
    }

    #[test]
    fn a_name_is_known_from_when_no_changes_are_lost() {
        let mut comms = RecordedComms::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| number_of(&mut comms.names, name.as_bytes()));
        let renamed = Change::Renamed { from: b, to: c };
        let changes = vec![(10, Change::Started { comm: a }), (30, renamed)];
        comms.changes.insert(5, changes);
        // The task was renamed from "a", or another one has its ID since; at the latest when changes were lost last.
        for (lost_until, b_begins) in [(20, 20), (30, 30), (40, 30)] {
            comms.lost(lost_until);
            let mut wanted = vec![
                (0, UNKNOWN),
                (10, "a"),
                (10, UNKNOWN),
                (b_begins, "b"),
                (30, "c"),
            ];
            wanted.extend((lost_until > 30).then_some((30, UNKNOWN)));
            let names = comms.names(5, None);
            let names: Vec<_> = names.iter().map(|(at, name)| (*at, &**name)).collect();
            assert_eq!(names, wanted);
        }
    }

    #[test]
    fn threads_that_have_started_each_other_are_processes() {
        let circle = [
            (2, 7, "thread", 3),
            (3, 7, "thread", 4),
            (4, 7, "thread", 2),
        ];
        assert_eq!(processes(&recorded(&circle), 2..5), [2; 3]);
    }
}
