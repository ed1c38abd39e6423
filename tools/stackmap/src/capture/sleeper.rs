// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks that waited when a recording began.

use crate::{
    ring::{decode::Trace, fields::Fields},
    trace::{Cookie, Event, Flags},
};
use serde::{Deserialize, Serialize};

/// Set in the cookie that a task's user stack is bound to while it sleeps; the high half is the task's ID.
const ASLEEP: Cookie = 1 << 30;

/// Returns whether a cookie is that of a task that slept.
pub fn is_asleep(cookie: Cookie) -> bool {
    cookie & Cookie::from(u32::MAX) == ASLEEP
}

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
    /// Whether its user stack was requested by its ID.
    #[serde(default)]
    pub has_user: bool,
    /// Whether it did not run until the recording ended.
    #[serde(default)]
    pub slept_on: bool,
    /// How often it had left a CPU, as `/proc/PID/status` has it.
    #[serde(skip)]
    pub switches: String,
}

impl<Frame> Sleeper<Frame> {
    /// Returns the cookie of its user stack, if it may have one.
    pub fn cookie(&self) -> Option<Cookie> {
        let pid = Cookie::from(self.pid.cast_unsigned());
        self.has_user.then_some(pid << 32 | ASLEEP)
    }

    /// Returns the switch with which it would have begun to wait at `time`, without fields.
    pub fn switch(&self, trace: &Trace, time: u64) -> Event {
        Event {
            name: "sched_switch".into(),
            fields: Fields::default(),
            comm: trace.tasks.comm(self.pid, time).0.into(),
            pid: self.pid as u32,
            tgid: trace.tasks.tgid(self.pid, time).0,
            cpu: self.cpu,
            time: trace.time(time),
            flags: Flags::default(),
            own: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_of_a_sleeper_is_that_of_the_module() {
        let sleeper = |has_user| Sleeper::<u64> {
            pid: 77,
            has_user,
            ..Sleeper::default()
        };
        // As src/user/settle.c makes it.
        assert_eq!(sleeper(true).cookie(), Some(0x4d_4000_0000));
        assert_eq!(sleeper(false).cookie(), None);
    }
}
