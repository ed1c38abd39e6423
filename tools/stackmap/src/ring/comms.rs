// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names that tasks have had and when, out of the events that tell them.

use super::format::{Format, Formats, Head, Value};
use crate::symbols::texts::number_of;
use indexmap::IndexSet;
use std::collections::{BTreeMap, BTreeSet};

/// These events, with the fields that have a name of the task `pid`: its first one, each later one with that before it, and
/// its last one.
pub const EVENTS: [(&str, &str, &[&str]); 3] = [
    ("task", "task_newtask", &["comm"]),
    ("task", "task_rename", &["oldcomm", "newcomm"]),
    ("sched", "sched_process_exit", &["comm"]),
];
/// The flag of a new task that is a thread of the process of the task that starts it.
const CLONE_THREAD: u64 = 0x1_0000;

/// What such events tell of tasks.
#[derive(Debug, Default)]
pub struct RecordedComms {
    names: IndexSet<Vec<u8>>,
    /// By task, times and the numbers of the names at these.
    comms: BTreeMap<i32, Vec<(u64, u32)>>,
    /// Threads, each with the task that has started it.
    pub started: BTreeMap<i32, i32>,
    /// Tasks that have ended.
    pub ended: BTreeSet<i32>,
}

impl RecordedComms {
    /// Adds an event. Those of one CPU come in their order.
    pub fn add(&mut self, formats: &Formats, format: &Format, head: &Head, time: u64, data: &[u8]) {
        let event = EVENTS.iter().find(|(_, name, _)| *format.name == **name);
        let pid = formats.number(format, "pid", data).map(|pid| pid as i32);
        let (Some((_, event, fields)), Some(pid)) = (event, pid) else {
            return;
        };
        for field in *fields {
            let field = format.field(field);
            if let Some(Value::Text(name)) = field.and_then(|field| formats.value(field, data)) {
                let name = number_of(&mut self.names, name);
                self.comms.entry(pid).or_default().push((time, name));
            }
        }
        match *event {
            "task_newtask" => {
                let flags = formats.number(format, "clone_flags", data);
                if flags.is_some_and(|flags| flags & CLONE_THREAD != 0) {
                    self.started.insert(pid, head.pid);
                }
            }
            "sched_process_exit" => drop(self.ended.insert(pid)),
            _ => {}
        }
    }

    /// Returns the names of a task, each with the time when it began.
    pub fn of(&self, pid: i32) -> Vec<(u64, String)> {
        let mut comms = self.comms.get(&pid).cloned().unwrap_or_default();
        comms.sort_by_key(|(time, _)| *time);
        comms.dedup_by_key(|(_, name)| *name);
        let comms = comms.into_iter().map(|(time, name)| {
            let name = String::from_utf8_lossy(&self.names[name as usize]);
            (time, name.into_owned())
        });
        comms.collect()
    }
}
