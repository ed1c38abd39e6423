// SPDX-License-Identifier: MIT OR Apache-2.0

//! Traces for <https://ui.perfetto.dev> and its trace_processor: each task a track, each event an
//! instant with its fields and its stack.
//!
//! A trace is a sequence of packets, which are written event by event. What many events have, such as
//! names and stacks, is in the packet of the first one that has it, with a number; later ones have
//! the number. So memory depends on the different stacks and tasks, not on the events.
//!
//! If all switches of tasks are there, they are also events of ftrace: then tracks of CPUs show which
//! task ran, and those of tasks how they waited.

mod interned;
pub mod messages;

use crate::{
    address::may_be_address,
    capture::Manifest,
    error::Result,
    filter::EventGlob,
    notes::Note,
    ring::fields::Said,
    source::Loaded,
    trace::{Event, Sides, Time},
    weight::Weight,
};
use flate2::{write::GzEncoder, Compression};
use interned::{Interned, Names};
use messages::{
    Clock, ClockSnapshot, Data, DebugAnnotation, FtraceCpuStats, FtraceEvent, FtraceEventBundle,
    FtraceStats, Sched, SchedSwitch, SchedWakeup, SystemInfo, ThreadDescriptor, TracePacket,
    TracePacketDefaults, TrackDescriptor, TrackEvent, Utsname, Value, END_OF_TRACE, INSTANT,
    START_OF_TRACE,
};
use prost::Message;
use std::{collections::HashMap, io::Write, rc::Rc};

/// All packets are of this sequence.
const SEQUENCE: u32 = 1;
/// Interned data begins with this packet.
const CLEARED: u32 = 1;
/// Interned data of earlier packets is needed.
const NEEDED: u32 = 2;
/// The tag of a packet in the message that is a trace: field 1, with a length.
const PACKET: u8 = 1 << 3 | 2;
/// trace_processor refuses a trace in which ftrace has a CPU with such a number.
const MAX_CPUS: u32 = 1024;
/// The track of what is missing.
const NOTES: &str = "stackmap: notes";

/// What makes two tracks one: a task and its process, or an idle task's CPU.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
enum Task {
    Idle(u32),
    Thread { tid: u32, process: u32 },
}

/// Writes a recording as it is read.
pub struct Writer<'a, W: Write> {
    out: GzEncoder<W>,
    loaded: &'a Loaded,
    addresses: bool,
    interned: Interned<'a>,
    /// The number of each track, and the name of its task at its first event.
    tracks: HashMap<Task, (u64, Rc<str>)>,
    /// Whether switches of tasks are shown by CPU.
    has_switches: bool,
    /// The time of the first event.
    begin: Option<u64>,
    /// The packet that is being encoded.
    bytes: Vec<u8>,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Writes the part before the events; addresses of the kernel only on request.
    pub fn new(out: W, loaded: &'a Loaded, addresses: bool) -> Result<Self> {
        let mut writer = Self {
            out: GzEncoder::new(out, Compression::default()),
            loaded,
            addresses,
            interned: Interned::new(loaded, addresses),
            tracks: HashMap::new(),
            has_switches: has_switches(loaded),
            begin: None,
            bytes: Vec::new(),
        };
        let clock = loaded.manifest.as_ref().and_then(clock);
        writer.packet(TracePacket {
            sequence_flags: CLEARED,
            trace_packet_defaults: clock
                .map(|timestamp_clock_id| TracePacketDefaults { timestamp_clock_id }),
            ..TracePacket::default()
        })?;
        if let Some(manifest) = &loaded.manifest {
            writer.about(manifest)?;
        }
        Ok(writer)
    }

    fn about(&mut self, manifest: &Manifest) -> Result {
        let utsname = Utsname {
            sysname: "Linux".to_owned(),
            release: manifest.release.clone(),
            machine: manifest.machine.clone(),
        };
        self.data(Data::SystemInfo(SystemInfo {
            utsname: Some(utsname),
        }))?;
        // What is lost is the difference between both.
        for phase in [START_OF_TRACE, END_OF_TRACE] {
            let lost = |number| (phase == END_OF_TRACE).then_some(number).or(Some(0));
            let stats = manifest.cpus.iter().map(|stat| FtraceCpuStats {
                cpu: Some(stat.cpu.into()),
                entries: lost(stat.entries),
                overrun: lost(stat.overrun),
                dropped_events: lost(stat.dropped),
            });
            self.data(Data::FtraceStats(FtraceStats {
                phase,
                cpu_stats: stats.collect(),
            }))?;
        }
        Ok(())
    }

    /// Writes an event, unless it has no weight. Of a hidden one, only what a CPU runs is written.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>, is_hidden: bool) -> Result {
        let loaded = self.loaded;
        let Ok(weight) = loaded.weight.of(event) else {
            return Ok(());
        };
        let time = event.time.value();
        if self.begin.is_none() {
            self.begin = Some(time);
            self.snapshot(time)?;
        }
        if let Some(sched) = self.has_switches.then(|| sched(event)).flatten() {
            self.sched(event, sched)?;
        }
        if is_hidden {
            return Ok(());
        }
        let (track_uuid, comm) = self.track(event)?;
        let callstack_iid = self.interned.callstack(sides);
        let names = &mut self.interned.names;
        let mut debug_annotations = vec![annotation(
            names,
            "common_cpu",
            Value::Uint(event.cpu.into()),
        )];
        if comm != event.comm {
            let comm = Value::Text(event.comm.to_string());
            debug_annotations.push(annotation(names, "common_comm", comm));
        }
        event
            .fields
            .each(&loaded.symbols, self.addresses, &mut |name, said| {
                let value = match said {
                    Said::Unsigned(number) if may_be_address(number) => Value::Pointer(number),
                    Said::Unsigned(number) => Value::Uint(number),
                    Said::Signed(number) => Value::Int(number),
                    Said::Text(text) => Value::Text(text.into_owned()),
                };
                debug_annotations.push(annotation(names, name, value));
            });
        let track_event = TrackEvent {
            category_iids: Vec::from_iter(
                event.system().map(|system| names.categories.number(system)),
            ),
            debug_annotations,
            r#type: INSTANT,
            name_iid: names.events.number(&event.name),
            track_uuid,
            callstack_iid,
            callstack_weight: (loaded.weight != Weight::One).then_some(weight as f64),
        };
        self.track_event(time, track_event)
    }

    fn track_event(&mut self, time: u64, event: TrackEvent) -> Result {
        let interned_data = self.interned.take();
        self.packet(TracePacket {
            timestamp: Some(time),
            interned_data,
            sequence_flags: NEEDED,
            data: Some(Data::TrackEvent(event)),
            ..TracePacket::default()
        })
    }

    /// The number of an event's track, and the name that its task has there.
    fn track(&mut self, event: &Event) -> Result<(u64, Rc<str>)> {
        let task = match event.pid {
            // The idle tasks of all CPUs have the id 0.
            0 => Task::Idle(event.cpu),
            tid => Task::Thread {
                tid,
                // Perfetto has no thread without a process.
                process: event.tgid.unwrap_or(tid),
            },
        };
        if let Some(track) = self.tracks.get(&task) {
            return Ok(track.clone());
        }
        // The first is that of notes.
        let uuid = self.tracks.len() as u64 + 2;
        self.tracks.insert(task, (uuid, event.comm.clone()));
        self.data(Data::TrackDescriptor(match task {
            Task::Idle(cpu) => TrackDescriptor {
                uuid,
                name: format!("{} on CPU {cpu}", event.comm),
                thread: None,
            },
            Task::Thread { tid, process } => TrackDescriptor {
                uuid,
                name: String::new(),
                thread: Some(ThreadDescriptor {
                    pid: Some(process as i32),
                    tid: Some(tid.into()),
                    thread_name: event.comm.to_string(),
                }),
            },
        }))?;
        Ok((uuid, event.comm.clone()))
    }

    /// Says of which clock times are, if there is a name for it. Others are taken for the time since
    /// the machine was started.
    fn snapshot(&mut self, time: u64) -> Result {
        let Some(clock_id) = self.loaded.manifest.as_ref().and_then(clock) else {
            return Ok(());
        };
        self.data(Data::ClockSnapshot(ClockSnapshot {
            clocks: vec![Clock {
                clock_id,
                timestamp: Some(time),
            }],
            primary_trace_clock: clock_id as i32,
        }))
    }

    fn sched(&mut self, event: &Event, sched: Sched) -> Result {
        self.data(Data::FtraceEvents(FtraceEventBundle {
            cpu: Some(event.cpu),
            event: vec![FtraceEvent {
                timestamp: Some(event.time.value()),
                pid: Some(event.pid),
                event: Some(sched),
            }],
        }))
    }

    /// Writes the part after the events: what is missing, at the time of the first one.
    pub fn finish(mut self, notes: &[Note]) -> Result {
        let time = self.begin.unwrap_or(0);
        if !notes.is_empty() {
            self.data(Data::TrackDescriptor(TrackDescriptor {
                uuid: 1,
                name: NOTES.to_owned(),
                thread: None,
            }))?;
        }
        for note in notes {
            let names = &mut self.interned.names;
            let kind = if note.warning { "warning" } else { "note" };
            let track_event = TrackEvent {
                category_iids: vec![names.categories.number(kind)],
                r#type: INSTANT,
                name_iid: names.events.number(&note.text),
                track_uuid: 1,
                ..TrackEvent::default()
            };
            self.track_event(time, track_event)?;
        }
        self.out.finish()?;
        Ok(())
    }

    fn data(&mut self, data: Data) -> Result {
        self.packet(TracePacket {
            data: Some(data),
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, packet: TracePacket) -> Result {
        let packet = TracePacket {
            trusted_packet_sequence_id: SEQUENCE,
            ..packet
        };
        self.bytes.clear();
        self.bytes.push(PACKET);
        // A vector has capacity for every message.
        let _ = packet.encode_length_delimited(&mut self.bytes);
        Ok(self.out.write_all(&self.bytes)?)
    }
}

fn annotation(names: &mut Names, name: &str, value: Value) -> DebugAnnotation {
    DebugAnnotation {
        name_iid: names.fields.number(name),
        value: Some(value),
    }
}

/// Perfetto's number of the clock of a trace, if it has one.
fn clock(manifest: &Manifest) -> Option<u32> {
    match &manifest.clock[..] {
        "mono" => Some(3),
        "mono_raw" => Some(5),
        "boot" => Some(6),
        _ => None,
    }
}

/// Returns whether a trace has all switches of tasks: if some are missing, a task would seem to run on.
pub fn has_switches(loaded: &Loaded) -> bool {
    let Some(manifest) = &loaded.manifest else {
        return false;
    };
    let recorded = &manifest.recorded;
    let is_switch = |word: &String| {
        let glob = EventGlob::new(word);
        glob.is_ok_and(|glob| glob.matches(Some("sched"), "sched_switch"))
    };
    recorded.events.iter().any(is_switch)
        && recorded.filters.is_empty()
        && recorded.pids.is_empty()
        && recorded.cpus.is_empty()
        && loaded.filter.is_empty()
        && loaded.weight == Weight::One
        // Those of ftrace are of no other clock.
        && !matches!(clock(manifest), Some(3 | 5))
}

/// What an event of the scheduler says of tasks that run, if it is one and has its fields.
fn sched(event: &Event) -> Option<Sched> {
    let is_time = matches!(event.time, Time::Nanos(_));
    if event.system() != Some("sched") || !is_time || event.cpu >= MAX_CPUS {
        return None;
    }
    let fields = &event.fields;
    let number = |name| i32::try_from(fields.signed(name)?).ok();
    let text = |name| fields.string(name).map(|text| text.into_owned());
    let woken = || {
        Some(SchedWakeup {
            comm: text("comm"),
            pid: Some(number("pid")?),
            prio: number("prio"),
            success: Some(1),
            target_cpu: number("target_cpu"),
        })
    };
    match &event.name[..] {
        "sched_switch" => Some(Sched::Switch(SchedSwitch {
            prev_comm: text("prev_comm"),
            prev_pid: Some(number("prev_pid")?),
            prev_prio: number("prev_prio"),
            prev_state: Some(fields.signed("prev_state")?.try_into().ok()?),
            next_comm: text("next_comm"),
            next_pid: Some(number("next_pid")?),
            next_prio: number("next_prio"),
        })),
        "sched_waking" => woken().map(Sched::Waking),
        "sched_wakeup" => woken().map(Sched::Wakeup),
        "sched_wakeup_new" => woken().map(Sched::WakeupNew),
        _ => None,
    }
}
