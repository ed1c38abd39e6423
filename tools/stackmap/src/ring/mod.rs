// SPDX-License-Identifier: MIT OR Apache-2.0

//! The binary ring buffer: what `per_cpu/cpuN/trace_pipe_raw` gives, decoded by the files that
//! describe it.
//!
//! The kernel's text of a trace holds names of files and tasks that any user may choose, and a name
//! can look like an event there. In the binary buffer a name has a length, and is only a name.
//!
//! - [`page`]: records with their times, out of a page;
//! - [`stream`]: pages of all CPUs in one stream, and their records in the order of time;
//! - [`format`](mod@format): `events/*/*/format`, and the fields of an event;
//! - [`show`]: how a field is shown, as the format's `print fmt` has it;
//! - [`fields`]: the fields of one event, decoded on demand;
//! - [`decode`]: records become events with their stacks;
//! - [`tasks`]: the names of tasks;
//! - [`comms`]: names by time, out of events that tell them.

pub mod comms;
pub mod decode;
pub mod fields;
pub mod format;
pub mod page;
pub mod printk;
pub mod show;
pub mod stream;
pub mod tasks;

use std::fmt;

/// What is wrong with the bytes of a ring buffer, or with a format file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Damage(pub &'static str);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Returns the number in 1, 2, 4 or 8 bytes. All machines that the module is for have the least significant byte first.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    Some(match bytes.len() {
        1 => bytes[0].into(),
        2 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        4 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        8 => u64::from_le_bytes(bytes.try_into().ok()?),
        _ => return None,
    })
}
