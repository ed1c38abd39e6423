// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages of `perfetto_trace.proto`, as far as they are written; the numbers are those of
//! <https://github.com/google/perfetto/blob/main/protos/perfetto/trace/perfetto_trace.proto>.
//!
//! `iid` is the number by which later packets of the sequence name an entry of [`InternedData`]; it
//! begins with 1. A field that is optional here is one that may be 0 or empty and be there.

use prost::{Message, Oneof};

/// What belongs together in a trace.
#[derive(Clone, Message, PartialEq)]
pub struct TracePacket {
    /// When, in nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The sequence that interned data is of.
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    /// Entries that this packet and later ones name by number.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// Whether interned data begins here (1), whether it is needed (2).
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    /// What holds for packets of the sequence from here on.
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    /// What the packet is about.
    #[prost(oneof = "Data", tags = "1, 6, 11, 34, 45, 60")]
    pub data: Option<Data>,
}

/// What a packet is about.
#[derive(Clone, Oneof, PartialEq)]
pub enum Data {
    /// Events of the kernel's scheduler.
    #[prost(message, tag = "1")]
    FtraceEvents(FtraceEventBundle),
    /// What clocks said at the same time.
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    /// An event.
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    /// What the ring buffer says of itself.
    #[prost(message, tag = "34")]
    FtraceStats(FtraceStats),
    /// The machine.
    #[prost(message, tag = "45")]
    SystemInfo(SystemInfo),
    /// A track that events are on.
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

/// What holds for packets of a sequence.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct TracePacketDefaults {
    /// The clock of their times.
    #[prost(uint32, tag = "58")]
    pub timestamp_clock_id: u32,
}

/// Entries that packets name by number.
#[derive(Clone, Message, PartialEq)]
pub struct InternedData {
    /// Systems of events.
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Name>,
    /// Names of events.
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Name>,
    /// Names of fields.
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Name>,
    /// Names of functions.
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<Name>,
    /// Frames.
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    /// Stacks.
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    /// Build ids, as bytes.
    #[prost(message, repeated, tag = "16")]
    pub build_ids: Vec<InternedBytes>,
    /// Paths of mappings, without the first slash.
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<Name>,
    /// Files of source code.
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<Name>,
    /// Files, the kernel and its modules.
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
    /// Texts that fields have again and again.
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<Name>,
}

/// A text with a number. Some are declared as bytes, which are the same.
#[derive(Clone, Message, PartialEq)]
pub struct Name {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The text.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// Bytes with a number.
#[derive(Clone, Message, PartialEq)]
pub struct InternedBytes {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub str: Vec<u8>,
}

/// Something that code is loaded from.
#[derive(Clone, Message, PartialEq)]
pub struct Mapping {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The number of its build id.
    #[prost(uint64, tag = "2")]
    pub build_id: u64,
    /// Where it begins.
    #[prost(uint64, tag = "4")]
    pub start: u64,
    /// Where it ends.
    #[prost(uint64, tag = "5")]
    pub end: u64,
    /// The numbers of the parts of its path.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

/// A function in a stack.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Frame {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The number of the function's name.
    #[prost(uint64, tag = "2")]
    pub function_name_id: u64,
    /// The number of the mapping.
    #[prost(uint64, tag = "3")]
    pub mapping_id: u64,
    /// Where in it.
    #[prost(uint64, optional, tag = "4")]
    pub rel_pc: Option<u64>,
    /// The number of the file of source code.
    #[prost(uint64, tag = "5")]
    pub source_path_iid: u64,
    /// The line in it.
    #[prost(uint32, tag = "6")]
    pub line_number: u32,
    /// [`KERNEL`], or 0.
    #[prost(int32, tag = "7")]
    pub kind: i32,
}

/// The kind of frames of the kernel.
pub const KERNEL: i32 = 2;

/// A stack.
#[derive(Clone, Message, PartialEq)]
pub struct Callstack {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The numbers of its frames, outermost first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// An event on a track.
#[derive(Clone, Message, PartialEq)]
pub struct TrackEvent {
    /// The numbers of what it is about: its system.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    /// Its fields.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// [`INSTANT`].
    #[prost(int32, tag = "9")]
    pub r#type: i32,
    /// The number of its name.
    #[prost(uint64, tag = "10")]
    pub name_iid: u64,
    /// The track.
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    /// The number of its stack.
    #[prost(uint64, tag = "56")]
    pub callstack_iid: u64,
    /// What the stack is counted by, if that is not 1.
    #[prost(double, optional, tag = "57")]
    pub callstack_weight: Option<f64>,
}

/// The type of an event that takes no time.
pub const INSTANT: i32 = 3;

/// A field of an event.
#[derive(Clone, Message, PartialEq)]
pub struct DebugAnnotation {
    /// The number of its name.
    #[prost(uint64, tag = "1")]
    pub name_iid: u64,
    /// What it says.
    #[prost(oneof = "Value", tags = "3, 4, 6, 7, 17")]
    pub value: Option<Value>,
}

/// What a field says.
#[derive(Clone, Oneof, PartialEq)]
pub enum Value {
    /// A number without a sign.
    #[prost(uint64, tag = "3")]
    Uint(u64),
    /// A number with one.
    #[prost(int64, tag = "4")]
    Int(i64),
    /// A text.
    #[prost(string, tag = "6")]
    Text(String),
    /// An address.
    #[prost(uint64, tag = "7")]
    Pointer(u64),
    /// The number of a text.
    #[prost(uint64, tag = "17")]
    Interned(u64),
}

/// A track.
#[derive(Clone, Message, PartialEq)]
pub struct TrackDescriptor {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    /// Its name, if it is of no thread.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The thread.
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
}

/// A thread.
#[derive(Clone, Message, PartialEq)]
pub struct ThreadDescriptor {
    /// The id of its process.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Its id.
    #[prost(int64, optional, tag = "2")]
    pub tid: Option<i64>,
    /// Its name.
    #[prost(string, tag = "5")]
    pub thread_name: String,
}

/// What clocks said at the same time.
#[derive(Clone, Message, PartialEq)]
pub struct ClockSnapshot {
    /// Each clock.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    /// The clock that is shown.
    #[prost(int32, tag = "2")]
    pub primary_trace_clock: i32,
}

/// What a clock said.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Clock {
    /// Which.
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    /// What, in nanoseconds.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// The machine.
#[derive(Clone, Message, PartialEq)]
pub struct SystemInfo {
    /// What uname(2) says.
    #[prost(message, optional, tag = "1")]
    pub utsname: Option<Utsname>,
}

/// What uname(2) says.
#[derive(Clone, Message, PartialEq)]
pub struct Utsname {
    /// `Linux`.
    #[prost(string, tag = "1")]
    pub sysname: String,
    /// The kernel's release.
    #[prost(string, tag = "3")]
    pub release: String,
    /// The architecture.
    #[prost(string, tag = "4")]
    pub machine: String,
}

/// What the ring buffer says of itself.
#[derive(Clone, Message, PartialEq)]
pub struct FtraceStats {
    /// [`START_OF_TRACE`] or [`END_OF_TRACE`].
    #[prost(int32, tag = "1")]
    pub phase: i32,
    /// Each CPU.
    #[prost(message, repeated, tag = "2")]
    pub cpu_stats: Vec<FtraceCpuStats>,
}

/// When the ring buffer says it.
pub const START_OF_TRACE: i32 = 1;
/// The same.
pub const END_OF_TRACE: i32 = 2;

/// The ring buffer of a CPU.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct FtraceCpuStats {
    /// Which.
    #[prost(uint64, optional, tag = "1")]
    pub cpu: Option<u64>,
    /// Events that it holds.
    #[prost(uint64, optional, tag = "2")]
    pub entries: Option<u64>,
    /// Events that were overwritten.
    #[prost(uint64, optional, tag = "3")]
    pub overrun: Option<u64>,
    /// Events that found no place.
    #[prost(uint64, optional, tag = "8")]
    pub dropped_events: Option<u64>,
}

/// Events of the scheduler on a CPU.
#[derive(Clone, Message, PartialEq)]
pub struct FtraceEventBundle {
    /// The CPU.
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    /// The events.
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

/// An event of the scheduler.
#[derive(Clone, Message, PartialEq)]
pub struct FtraceEvent {
    /// When, in nanoseconds.
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    /// The task that ran.
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    /// Which event.
    #[prost(oneof = "Sched", tags = "4, 17, 20, 114")]
    pub event: Option<Sched>,
}

/// An event of the scheduler.
#[derive(Clone, Oneof, PartialEq)]
pub enum Sched {
    /// A task follows another one.
    #[prost(message, tag = "4")]
    Switch(SchedSwitch),
    /// A task has been woken up.
    #[prost(message, tag = "17")]
    Wakeup(SchedWakeup),
    /// A task is being woken up.
    #[prost(message, tag = "20")]
    Waking(SchedWakeup),
    /// A new task has been woken up.
    #[prost(message, tag = "114")]
    WakeupNew(SchedWakeup),
}

/// A task follows another one.
#[derive(Clone, Message, PartialEq)]
pub struct SchedSwitch {
    /// The name of the task that ran.
    #[prost(string, optional, tag = "1")]
    pub prev_comm: Option<String>,
    /// Its id.
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    /// Its priority.
    #[prost(int32, optional, tag = "3")]
    pub prev_prio: Option<i32>,
    /// What it does now.
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    /// The name of the task that runs.
    #[prost(string, optional, tag = "5")]
    pub next_comm: Option<String>,
    /// Its id.
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
    /// Its priority.
    #[prost(int32, optional, tag = "7")]
    pub next_prio: Option<i32>,
}

/// A task is woken up.
#[derive(Clone, Message, PartialEq)]
pub struct SchedWakeup {
    /// Its name.
    #[prost(string, optional, tag = "1")]
    pub comm: Option<String>,
    /// Its id.
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    /// Its priority.
    #[prost(int32, optional, tag = "3")]
    pub prio: Option<i32>,
    /// Whether it slept.
    #[prost(int32, optional, tag = "4")]
    pub success: Option<i32>,
    /// Where it will run.
    #[prost(int32, optional, tag = "5")]
    pub target_cpu: Option<i32>,
}
