// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a capture says about itself.

use crate::stack_map_bin::LoadId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What [`Manifest::format`] is.
pub(super) const FORMAT: &str = "stackmap-capture";
/// The version that is written and read.
pub(super) const VERSION: u32 = 2;

/// What was recorded, where and when.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Manifest {
    /// `stackmap-capture`.
    pub format: String,
    /// 2.
    pub version: u32,
    /// What wrote the file.
    pub tool: String,
    /// When the recording ended, in seconds since 1970.
    pub time: u64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// The name of the machine, as `uname -n` prints it.
    #[serde(skip_serializing_if = "is_default")]
    pub host: Option<String>,
    /// What the user wrote about the recording: names and values.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
    /// The kernel, as `uname -r` prints it.
    pub release: String,
    /// The machine, as `uname -m` prints it.
    pub machine: String,
    /// The size of a page of memory, in bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub page_size: Option<u64>,
    /// The build id of the kernel, in hexadecimal digits.
    pub build_id: Option<String>,
    /// The boot, as in `/proc/sys/kernel/random/boot_id`.
    pub boot_id: Option<String>,
    /// Where the kernel's code began (`_text`), as `0x` and hexadecimal digits.
    pub kaslr_base: Option<String>,
    /// The generation of the map's ids; ids of another one are of another map.
    pub generation: Option<u32>,
    /// How many bits of an id lie below the generation.
    pub slot_bits: Option<u32>,
    /// The load of the module that the recording began with; the stacks have that of its end.
    pub load_id: Option<LoadId>,
    /// Whether the recording machine has the most significant byte of a number first, as none has that the module is for.
    pub big_endian: bool,
    /// Whether the fields of events were left out.
    pub no_args: bool,
    /// Whether what tells who recorded, and where, was left out.
    #[serde(skip_serializing_if = "is_default")]
    pub anonymous: bool,
    /// The clock of the trace.
    pub clock: String,
    /// What it showed, and what the clocks of the system showed at that time.
    #[serde(skip_serializing_if = "is_default")]
    pub clocks: Clocks,
    /// Whether modules were loaded or unloaded during the recording.
    pub modules_changed: bool,
    /// How many pages were left out, at least, because they were damaged.
    #[serde(skip_serializing_if = "is_default")]
    pub skipped_pages: u64,
    /// Whether the map was reset during the recording: ids from before are stale.
    #[serde(skip_serializing_if = "is_default")]
    pub reset: bool,
    /// The event that ended the recording, as in [`Recorded::triggers`].
    #[serde(skip_serializing_if = "is_default")]
    pub triggered: Option<String>,
    /// Whether another process switched tracing off during the recording.
    #[serde(skip_serializing_if = "is_default")]
    pub switched_off: bool,
    /// The files of the instance that another process wrote to during the recording.
    #[serde(skip_serializing_if = "is_default")]
    pub settings_changed: Vec<String>,
    /// The requested events and functions.
    pub recorded: Recorded,
    /// The processes of the recorder.
    #[serde(skip_serializing_if = "is_default")]
    pub recorder: Vec<u32>,
    /// The processes that the recorder started. Until it calls exec, such a process has the recorder's name.
    #[serde(skip_serializing_if = "is_default")]
    pub children: BTreeSet<i32>,
    /// What the ring buffer says of each CPU.
    pub cpus: Vec<CpuStat>,
}

/// What a recording was asked for.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Recorded {
    /// Events.
    pub events: Vec<String>,
    /// Functions.
    pub functions: Vec<String>,
    /// The filters of events.
    #[serde(skip_serializing_if = "is_default")]
    pub filters: Vec<Filtered>,
    /// The processes that alone were recorded, with the children that they started meanwhile; none:
    /// all were.
    #[serde(skip_serializing_if = "is_default")]
    pub pids: Vec<u32>,
    /// The CPUs that alone recorded, as in `0-3,5`; empty: all did.
    #[serde(skip_serializing_if = "is_default")]
    pub cpus: String,
    /// The events that were to end the recording, with what their fields had to be.
    #[serde(skip_serializing_if = "is_default")]
    pub triggers: Vec<String>,
    /// How much of its end was kept, in nanoseconds; [`None`]: all.
    #[serde(skip_serializing_if = "is_default")]
    pub last_ns: Option<u64>,
    /// The command that ran meanwhile.
    pub command: Vec<String>,
    /// The instance that was saved; [`None`]: the top level, or that of the recording.
    #[serde(skip_serializing_if = "is_default")]
    pub instance: Option<String>,
}

/// Events with a filter.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Filtered {
    /// Which, as they were asked for: `system:event`, `event` or `system`, with wildcards.
    pub event: String,
    /// What their fields had to be, in the kernel's syntax.
    pub filter: String,
}

/// The clocks when a recording began, and when it ended.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Clocks {
    /// Just before tracing was switched on.
    pub begin: Option<ClockReading>,
    /// Just after it was switched off.
    pub end: Option<ClockReading>,
}

/// Clocks at one time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ClockReading {
    /// That of the trace, on the CPU that read it: in nanoseconds, or in what it counts.
    pub trace: u64,
    /// `CLOCK_REALTIME`, in nanoseconds since 1970.
    pub realtime_ns: u64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// How far each of these may be from that of the trace, in nanoseconds: earlier or later.
    pub error_ns: u64,
}

impl Clocks {
    /// When a time of the trace was, in nanoseconds since 1970, on a straight line through both readings;
    /// [`None`]: they do not tell. `nanos`: the clock of the trace counts nanoseconds, so that one of them
    /// is enough.
    pub fn realtime(&self, time: u64, nanos: bool) -> Option<u64> {
        let (begin, end) = match (self.begin, self.end) {
            (Some(begin), Some(end)) if end.trace > begin.trace => (begin, end),
            (Some(one), _) | (None, Some(one)) if nanos => {
                let realtime = i128::from(one.realtime_ns) - i128::from(one.trace);
                return u64::try_from(realtime + i128::from(time)).ok();
            }
            _ => return None,
        };
        let length = |from: u64, to: u64| i128::from(to) - i128::from(from);
        let real = length(begin.realtime_ns, end.realtime_ns);
        // A capture may say anything.
        let behind = length(begin.trace, time).checked_mul(real)?;
        let behind = behind.div_euclid(length(begin.trace, end.trace));
        u64::try_from(i128::from(begin.realtime_ns).checked_add(behind)?).ok()
    }
}

/// The ring buffer of a CPU, from `per_cpu/cpuN/stats`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct CpuStat {
    /// Which.
    pub cpu: u32,
    /// Events that it held at the end.
    pub entries: u64,
    /// Events that were overwritten by later ones.
    pub overrun: u64,
    /// Events that the buffer had no space for.
    pub dropped: u64,
    /// Bytes that the events it held took.
    #[serde(skip_serializing_if = "is_default")]
    pub bytes: u64,
    /// Events, of those that it held, that were taken from it during the recording and written to
    /// disk.
    #[serde(skip_serializing_if = "is_default")]
    pub streamed: u64,
    /// Events from before the time that was to be kept.
    #[serde(skip_serializing_if = "is_default")]
    pub older: u64,
    /// How long before the end of the recording the first event was, if some after the beginning of
    /// that time are missing, in nanoseconds.
    #[serde(skip_serializing_if = "is_default")]
    pub reach_ns: Option<u64>,
    /// Events that another process read, and so removed from the buffer, during the recording.
    #[serde(skip_serializing_if = "is_default")]
    pub read: u64,
}

impl Filtered {
    /// The events and their filter, as triggers have conditions.
    pub fn text(&self) -> String {
        format!("{} if {}", self.event, self.filter)
    }
}

impl Manifest {
    /// Events that were recorded and are not in the trace.
    pub fn lost(&self) -> u64 {
        let lost = |cpu: &CpuStat| cpu.overrun.saturating_add(cpu.dropped);
        self.cpus.iter().map(lost).fold(0, u64::saturating_add)
    }

    /// When the recording began, in seconds since 1970: not later, as the clock of files lags a little.
    pub fn began(&self) -> u64 {
        self.time
            .saturating_sub(self.duration_ns / 1_000_000_000 + 2)
    }

    /// The same in nanoseconds, as well as it is known.
    pub fn began_ns(&self) -> u64 {
        match self.clocks.begin {
            Some(begin) => begin.realtime_ns,
            None => {
                let end = self.time.saturating_mul(1_000_000_000);
                end.saturating_sub(self.duration_ns)
            }
        }
    }

    /// Leaves out what tells who recorded, and where, of what stands here.
    pub fn anonymize(&mut self) {
        self.anonymous = true;
        self.host = None;
        self.boot_id = None;
        let command = &mut self.recorded.command;
        command.truncate(1);
        for program in command {
            let name = program.rsplit('/').next().unwrap_or_default();
            *program = name.to_owned();
        }
    }
}

/// What says nothing is not written.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(trace: u64, realtime_ns: u64) -> Option<ClockReading> {
        Some(ClockReading {
            trace,
            realtime_ns,
            ..ClockReading::default()
        })
    }

    #[test]
    fn times_of_a_trace_are_on_a_line() {
        let second = 1_000_000_000;
        let (begin, end) = (at(50, 7 * second), at(50 + 4 * second, 9 * second));
        let of = |begin, end, time, nanos| Clocks { begin, end }.realtime(time, nanos);
        for nanos in [true, false] {
            assert_eq!(of(begin, end, 50, nanos), Some(7 * second));
            assert_eq!(of(begin, end, 50 + 2 * second, nanos), Some(8 * second));
            assert_eq!(of(begin, end, 50 + 8 * second, nanos), Some(11 * second));
            assert_eq!(of(begin, end, 0, nanos), Some(7 * second - 25));
            assert_eq!(of(None, None, 5, nanos), None);
        }
        // One reading is enough if the clocks count the same.
        for (begin, end) in [(begin, None), (None, begin), (begin, begin)] {
            assert_eq!(of(begin, end, 57, true), Some(7 * second + 7));
            assert_eq!(of(begin, end, 57, false), None);
        }
        assert_eq!(of(at(0, 5), None, u64::MAX, true), None);
        assert_eq!(of(at(9, 5), None, 1, true), None);
        let whole = [at(0, 0), at(1, u64::MAX)];
        assert_eq!(of(whole[0], whole[1], u64::MAX, true), None);
        let back = [at(0, u64::MAX), at(u64::MAX, 0)];
        assert_eq!(of(back[0], back[1], u64::MAX, true), None);
        assert_eq!(of(at(0, 9), at(3, 0), 2, true), Some(3));
    }

    #[test]
    fn a_recording_begins_by_its_clocks() {
        let mut manifest = Manifest {
            time: 10,
            duration_ns: 3_000_000_001,
            ..Manifest::default()
        };
        assert_eq!(manifest.began_ns(), 6_999_999_999);
        manifest.clocks.begin = at(1, 6_900_000_000);
        assert_eq!(manifest.began_ns(), 6_900_000_000);
        manifest.clocks.begin = None;
        (manifest.time, manifest.duration_ns) = (1, u64::MAX);
        assert_eq!(manifest.began_ns(), 0);
    }
}
