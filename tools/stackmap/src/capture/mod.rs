// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures: one file that holds a recording and all that it takes to resolve it anywhere.
//!
//! A capture is a zip archive with these members, each deflated:
//!
//! | member | what |
//! |---|---|
//! | `manifest.json` | what was recorded, where and when: [`Manifest`] |
//! | `trace` | the text of `trace`; `<stack_id N>` stands for stacks |
//! | `stack_map_bin` | the stacks |
//! | `stack_map_stat`, `stack_map_stat.before` | the counters after and before the recording |
//! | `kallsyms`, `modules` | `/proc/kallsyms` and `/proc/modules` |
//!
//! Readers ignore members and keys that they do not know; what would mislead them raises `version`.

mod manifest;
mod read;
mod write;

pub use manifest::{CpuStat, Manifest, Recorded};
pub use read::{Capture, Input, Member};
pub use write::Writer;

/// How every capture begins, as zip archives do.
pub const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// The names of the members.
pub mod member {
    /// What was recorded, where and when.
    pub const MANIFEST: &str = "manifest.json";
    /// The text of `trace`.
    pub const TRACE: &str = "trace";
    /// The stacks.
    pub const STACK_MAP_BIN: &str = "stack_map_bin";
    /// The counters after the recording.
    pub const STAT: &str = "stack_map_stat";
    /// The counters before the recording.
    pub const STAT_BEFORE: &str = "stack_map_stat.before";
    /// `/proc/kallsyms`.
    pub const KALLSYMS: &str = "kallsyms";
    /// `/proc/modules`.
    pub const MODULES: &str = "modules";
}
