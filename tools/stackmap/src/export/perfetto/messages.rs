// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages of `perfetto_trace.proto`, as far as they are written; the numbers are those of
//! <https://github.com/google/perfetto/blob/main/protos/perfetto/trace/perfetto_trace.proto>.
//! What a field means is said there.
//!
//! `iid` is the number by which later packets of the sequence name an entry of [`InternedData`]; it
//! begins with 1. A field that is optional here is one that may be 0 or empty and be there.

#![allow(missing_docs)]

use prost::{Message, Oneof};

/// What belongs together in a trace.
#[derive(Clone, Message, PartialEq)]
pub struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(oneof = "Data", tags = "1, 6, 11, 34, 45, 60")]
    pub data: Option<Data>,
}

/// What a packet is about.
#[derive(Clone, Oneof, PartialEq)]
pub enum Data {
    #[prost(message, tag = "1")]
    FtraceEvents(FtraceEventBundle),
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "34")]
    FtraceStats(FtraceStats),
    #[prost(message, tag = "45")]
    SystemInfo(SystemInfo),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

/// What holds for packets of a sequence.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct TracePacketDefaults {
    #[prost(uint32, tag = "58")]
    pub timestamp_clock_id: u32,
}

/// Entries that packets name by number.
#[derive(Clone, Message, PartialEq)]
pub struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Name>,
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Name>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Name>,
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<Name>,
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "16")]
    pub build_ids: Vec<InternedBytes>,
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<Name>,
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<Name>,
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
}

/// A text with a number. Some are declared as bytes, which are the same.
#[derive(Clone, Message, PartialEq)]
pub struct Name {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
}

/// Bytes with a number.
#[derive(Clone, Message, PartialEq)]
pub struct InternedBytes {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub str: Vec<u8>,
}

/// Something that code is loaded from.
#[derive(Clone, Message, PartialEq)]
pub struct Mapping {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, tag = "2")]
    pub build_id: u64,
    #[prost(uint64, tag = "4")]
    pub start: u64,
    #[prost(uint64, tag = "5")]
    pub end: u64,
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

/// A function in a stack.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Frame {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, tag = "2")]
    pub function_name_id: u64,
    #[prost(uint64, tag = "3")]
    pub mapping_id: u64,
    #[prost(uint64, optional, tag = "4")]
    pub rel_pc: Option<u64>,
    #[prost(uint64, tag = "5")]
    pub source_path_iid: u64,
    #[prost(uint32, tag = "6")]
    pub line_number: u32,
    #[prost(int32, tag = "7")]
    pub kind: i32,
}

/// The kind of frames of the kernel.
pub const KERNEL: i32 = 2;

/// A stack.
#[derive(Clone, Message, PartialEq)]
pub struct Callstack {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// An event on a track.
#[derive(Clone, Message, PartialEq)]
pub struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub r#type: i32,
    #[prost(uint64, tag = "10")]
    pub name_iid: u64,
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    #[prost(uint64, tag = "56")]
    pub callstack_iid: u64,
    #[prost(double, optional, tag = "57")]
    pub callstack_weight: Option<f64>,
}

/// The type of an event that takes no time.
pub const INSTANT: i32 = 3;

/// A field of an event.
#[derive(Clone, Message, PartialEq)]
pub struct DebugAnnotation {
    #[prost(uint64, tag = "1")]
    pub name_iid: u64,
    #[prost(oneof = "Value", tags = "3, 4, 6, 7")]
    pub value: Option<Value>,
}

/// What a field says.
#[derive(Clone, Oneof, PartialEq)]
pub enum Value {
    #[prost(uint64, tag = "3")]
    Uint(u64),
    #[prost(int64, tag = "4")]
    Int(i64),
    #[prost(string, tag = "6")]
    Text(String),
    #[prost(uint64, tag = "7")]
    Pointer(u64),
}

/// A track.
#[derive(Clone, Message, PartialEq)]
pub struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
}

/// A thread.
#[derive(Clone, Message, PartialEq)]
pub struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub tid: Option<i64>,
    #[prost(string, tag = "5")]
    pub thread_name: String,
}

/// What clocks said at the same time.
#[derive(Clone, Message, PartialEq)]
pub struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    #[prost(int32, tag = "2")]
    pub primary_trace_clock: i32,
}

/// What a clock said.
#[derive(Clone, Copy, Message, PartialEq)]
pub struct Clock {
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// The machine.
#[derive(Clone, Message, PartialEq)]
pub struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub utsname: Option<Utsname>,
}

/// What uname(2) says.
#[derive(Clone, Message, PartialEq)]
pub struct Utsname {
    #[prost(string, tag = "1")]
    pub sysname: String,
    #[prost(string, tag = "3")]
    pub release: String,
    #[prost(string, tag = "4")]
    pub machine: String,
}

/// What the ring buffer says of itself.
#[derive(Clone, Message, PartialEq)]
pub struct FtraceStats {
    #[prost(int32, tag = "1")]
    pub phase: i32,
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
    #[prost(uint64, optional, tag = "1")]
    pub cpu: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub entries: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub overrun: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub dropped_events: Option<u64>,
}

/// Events of the scheduler on a CPU.
#[derive(Clone, Message, PartialEq)]
pub struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

/// An event of the scheduler.
#[derive(Clone, Message, PartialEq)]
pub struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(oneof = "Sched", tags = "4, 17, 20, 114")]
    pub event: Option<Sched>,
}

/// An event of the scheduler.
#[derive(Clone, Oneof, PartialEq)]
pub enum Sched {
    #[prost(message, tag = "4")]
    Switch(SchedSwitch),
    #[prost(message, tag = "17")]
    Wakeup(SchedWakeup),
    #[prost(message, tag = "20")]
    Waking(SchedWakeup),
    #[prost(message, tag = "114")]
    WakeupNew(SchedWakeup),
}

/// A task follows another one.
#[derive(Clone, Message, PartialEq)]
pub struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    pub prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub prev_prio: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
    #[prost(int32, optional, tag = "7")]
    pub next_prio: Option<i32>,
}

/// A task is woken up.
#[derive(Clone, Message, PartialEq)]
pub struct SchedWakeup {
    #[prost(string, optional, tag = "1")]
    pub comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub prio: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub success: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub target_cpu: Option<i32>,
}
