// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures: one file that holds a recording and all that it takes to resolve it anywhere.
//!
//! A capture is a zip archive with these members, each deflated:
//!
//! | member | what |
//! |---|---|
//! | `manifest.json` | what was recorded, where and when: [`Manifest`] |
//! | `trace_pipe_raw` | the pages of the ring buffer: [`stream`](crate::ring::stream) |
//! | `events/header_page`, `events/header_event`, `events/*/*/format` | what describes them |
//! | `printk_formats`, `tasks.json` | texts and tasks that they name by numbers |
//! | `sleepers.json` | tasks that waited when the recording began |
//! | `stack_map_bin` | the stacks |
//! | `stack_map_stat` | the counters of the map after the recording |
//! | `stack_map_user_bin`, `stack_map_binaries`, `stack_map_user_stat` | the user stacks, the files of their frames, the counters |
//! | `segments.json`, `perf-*.map`, `vdso` | what names user frames elsewhere |
//! | `kallsyms`, `modules` | `/proc/kallsyms` and `/proc/modules` |
//!
//! Readers ignore members and keys that they do not know; what would mislead them raises `version`.

mod manifest;
mod read;
mod sleeper;
mod write;

pub use manifest::{ClockReading, Clocks, CpuStat, Filtered, Manifest, Recorded};
pub use read::{Capture, Described, FormatText, Input, Member};
pub use sleeper::{is_asleep, Sleeper};
pub use write::{Space, Writer, PACKING};

/// Where `record` writes and the others read by default.
pub const DEFAULT_CAPTURE: &str = "stackmap.data";
/// How every capture begins, as zip archives do.
pub const MAGIC: [u8; 4] = *b"PK\x03\x04";

/// The names of the members.
pub mod member {
    use crate::user::words::Process;

    /// What was recorded, where and when.
    pub const MANIFEST: &str = "manifest.json";
    /// The pages of the ring buffer.
    pub const PAGES: &str = "trace_pipe_raw";
    /// What describes the header of a page.
    pub const HEADER_PAGE: &str = "events/header_page";
    /// What describes the header of a record.
    pub const HEADER_EVENT: &str = "events/header_event";
    /// What describes the records of an event is in a member that begins and ends so.
    pub const FORMATS: (&str, &str) = ("events/", "/format");
    /// Texts that records name by their addresses.
    pub const PRINTK_FORMATS: &str = "printk_formats";
    /// The names of tasks.
    pub const TASKS: &str = "tasks.json";
    /// The tasks that waited when the recording began.
    pub const SLEEPERS: &str = "sleepers.json";
    /// The stacks.
    pub const STACK_MAP_BIN: &str = "stack_map_bin";
    /// The user stacks.
    pub const STACK_MAP_USER_BIN: &str = "stack_map_user_bin";
    /// The files that they have frames in.
    pub const BINARIES: &str = "stack_map_binaries";
    /// The counters of user stacks after the recording.
    pub const USER_STAT: &str = "stack_map_user_stat";
    /// Where files of programs are loaded, by index.
    pub const SEGMENTS: &str = "segments.json";
    /// The image of the 64-bit vDSO.
    pub const VDSO: &str = "vdso";
    /// The counters after the recording.
    pub const STAT: &str = "stack_map_stat";
    /// `/proc/kallsyms`.
    pub const KALLSYMS: &str = "kallsyms";
    /// `/proc/modules`.
    pub const MODULES: &str = "modules";

    /// What a JIT compiler says of its code in a process.
    pub fn perf_map(process: Process) -> String {
        format!("perf-{}-{}.map", process.tgid, process.start)
    }

    /// Whether a member is one of these.
    pub fn is_perf_map(name: &str) -> bool {
        name.starts_with("perf-") && name.ends_with(".map")
    }
}
