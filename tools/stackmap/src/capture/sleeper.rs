// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks that waited when a recording began.

use crate::{
    ring::{decode::Trace, fields::Fields},
    trace::{Event, Flags},
};
use serde::{Deserialize, Serialize};

/// A task that waited, with the frames of its kernel stack, innermost first.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Sleeper<Frame> {
    /// Its id.
    pub pid: i32,
    /// Its state, as `/proc/PID/stat` has it.
    pub state: char,
    /// The CPU that it ran on last.
    pub cpu: u32,
    /// Where it waited.
    pub stack: Vec<Frame>,
}

impl<Frame> Sleeper<Frame> {
    /// Returns the switch with which it would have begun to wait at `time`, without fields.
    pub fn switch(&self, trace: &Trace, time: u64) -> Event {
        Event {
            name: "sched_switch".into(),
            fields: Fields::default(),
            comm: trace.tasks.comm(self.pid, time).0.into(),
            pid: self.pid as u32,
            tgid: trace.tasks.tgid(self.pid),
            cpu: self.cpu,
            time: trace.time(time),
            flags: Flags::default(),
            own: false,
        }
    }
}
