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
//! - [`tasks`]: the names of tasks.

pub mod decode;
pub mod fields;
pub mod format;
pub mod page;
pub mod printk;
pub mod show;
pub mod stream;
pub mod tasks;

pub use crate::stack_map_bin::Order;
use std::fmt;

/// What is wrong with the bytes of a ring buffer, or with a format file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Damage(pub &'static str);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Order {
    /// The byte order of this machine.
    pub const NATIVE: Self = match cfg!(target_endian = "big") {
        true => Self::Big,
        false => Self::Little,
    };

    /// The number in 1, 2, 4 or 8 bytes.
    pub fn number(self, bytes: &[u8]) -> Option<u64> {
        macro_rules! read {
            ($type:ty) => {{
                let bytes = bytes.try_into().ok()?;
                match self {
                    Order::Little => <$type>::from_le_bytes(bytes).into(),
                    Order::Big => <$type>::from_be_bytes(bytes).into(),
                }
            }};
        }
        Some(match bytes.len() {
            1 => bytes[0].into(),
            2 => read!(u16),
            4 => read!(u32),
            8 => read!(u64),
            _ => return None,
        })
    }

    /// Whether the most significant byte comes first.
    pub fn is_big(self) -> bool {
        self == Self::Big
    }

    /// The bytes of a long of `size` bytes, 4 or 8.
    pub fn long(self, long: u64, size: usize) -> Vec<u8> {
        match (self, size) {
            (_, 4) => self.word(long as u32).to_vec(),
            (Self::Little, _) => long.to_le_bytes().to_vec(),
            (Self::Big, _) => long.to_be_bytes().to_vec(),
        }
    }

    /// The bytes of a word.
    pub fn word(self, word: u32) -> [u8; 4] {
        match self {
            Order::Little => word.to_le_bytes(),
            Order::Big => word.to_be_bytes(),
        }
    }
}
