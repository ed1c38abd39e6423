// SPDX-License-Identifier: MIT OR Apache-2.0

//! Traces for Perfetto, read back as its format says and compared with the export of all events. What
//! Perfetto's own trace_processor makes of them, and of their stacks, is tested by `tests/perfetto-readers`.

use super::{
    made::{self, bin, Text},
    tool::{data, events, json, run, unpacked, Dir, Members},
};
use prost::Message;
use stackmap::{
    capture::{member, Filtered, Manifest},
    export::perfetto::messages::{
        Data, Mapping, Name, Sched, TracePacket, TrackDescriptor, TrackEvent, Value, KERNEL,
    },
};
use std::collections::{BTreeSet, HashMap};

/// A trace.
#[derive(Clone, Message, PartialEq)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

/// Returns the packets of a trace that is exported with these arguments.
pub(crate) fn packets(arguments: &str) -> Vec<TracePacket> {
    let exported = run(format!("export --format perfetto {arguments}")).well();
    let trace = Trace::decode(&unpacked(&exported.stdout)[..]);
    trace.unwrap().packet
}

/// Returns the packets of a capture with this text, and one stack without frames.
pub(crate) fn packets_of(trace: &str, manifest: &Manifest) -> Vec<TracePacket> {
    let dir = Dir::new();
    let path = dir.at("capture");
    let text = Text {
        trace,
        stack_map_bin: &bin(None, &[(6, &[])]),
        ..Text::default()
    };
    made::capture(&text, manifest).write(&path);
    packets(&path)
}

/// An event as a reader sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) name: String,
    category: Option<String>,
    time: u64,
    task: String,
    tid: i64,
    fields: HashMap<String, String>,
    /// Outermost first.
    stack: Vec<String>,
    pub(crate) weight: Option<f64>,
}

/// What a reader makes of a trace, packet by packet: a number that no packet has said is an error.
#[derive(Default)]
pub(crate) struct Reader {
    names: HashMap<(&'static str, u64), String>,
    /// The name, the mapping, the offset in it, and the kind.
    frames: HashMap<u64, (String, u64, u64, i32)>,
    build_ids: HashMap<u64, Vec<u8>>,
    mappings: HashMap<u64, Mapping>,
    stacks: HashMap<u64, Vec<u64>>,
    tracks: HashMap<u64, TrackDescriptor>,
    events: Vec<Seen>,
    sched: Vec<Sched>,
}

impl Reader {
    pub(crate) fn of(arguments: &str) -> Self {
        Self::new(packets(arguments))
    }

    fn new(packets: Vec<TracePacket>) -> Self {
        let mut reader = Reader::default();
        for (index, packet) in packets.into_iter().enumerate() {
            assert_eq!(packet.trusted_packet_sequence_id, 1);
            assert_eq!(packet.sequence_flags & 1 != 0, index == 0);
            reader.packet(packet);
        }
        reader
    }

    fn packet(&mut self, packet: TracePacket) {
        assert!(packet.interned_data.is_none() || packet.sequence_flags == 2);
        if let Some(data) = packet.interned_data {
            let mut keep = |table: &'static str, names: Vec<Name>| {
                for name in names {
                    assert_ne!(name.iid, 0);
                    assert!(self.names.insert((table, name.iid), name.name).is_none());
                }
            };
            keep("category", data.event_categories);
            keep("event", data.event_names);
            keep("field", data.debug_annotation_names);
            keep("function", data.function_names);
            keep("path", data.mapping_paths);
            keep("source", data.source_paths);
            for build_id in data.build_ids {
                assert!(self.build_ids.insert(build_id.iid, build_id.str).is_none());
            }
            for mapping in data.mappings {
                for path in &mapping.path_string_ids {
                    assert!(self.names.contains_key(&("path", *path)));
                }
                assert!(self.mappings.insert(mapping.iid, mapping).is_none());
            }
            for frame in data.frames {
                assert!(self.mappings.contains_key(&frame.mapping_id));
                let name = self.names[&("function", frame.function_name_id)].clone();
                let offset = frame.rel_pc.unwrap();
                let frame_is = (name, frame.mapping_id, offset, frame.kind);
                assert!(self.frames.insert(frame.iid, frame_is).is_none());
            }
            for stack in data.callstacks {
                assert!(!stack.frame_ids.is_empty());
                assert!(self.stacks.insert(stack.iid, stack.frame_ids).is_none());
            }
        }
        match packet.data {
            Some(Data::TrackDescriptor(track)) => {
                assert!(self.tracks.insert(track.uuid, track).is_none());
            }
            Some(Data::TrackEvent(event)) => {
                assert_eq!(packet.sequence_flags, 2);
                let seen = self.event(packet.timestamp.unwrap(), event);
                self.events.push(seen);
            }
            Some(Data::FtraceEvents(bundle)) => {
                let event = bundle.event.into_iter().next().unwrap();
                self.sched.push(event.event.unwrap());
            }
            _ => {}
        }
    }

    fn event(&self, time: u64, event: TrackEvent) -> Seen {
        let track = &self.tracks[&event.track_uuid];
        let fields = event.debug_annotations.into_iter().map(|field| {
            let value = match field.value.unwrap() {
                Value::Uint(number) => number.to_string(),
                Value::Int(number) => number.to_string(),
                Value::Text(text) => text,
                Value::Pointer(address) => format!("0x{address:x}"),
            };
            (self.names[&("field", field.name_iid)].clone(), value)
        });
        let fields: HashMap<_, _> = fields.collect();
        let frames = match event.callstack_iid {
            0 => &[][..],
            iid => &self.stacks[&iid],
        };
        let thread = track.thread.as_ref();
        let task = thread.map_or(&track.name, |thread| &thread.thread_name);
        Seen {
            name: self.names[&("event", event.name_iid)].clone(),
            category: event
                .category_iids
                .first()
                .map(|iid| self.names[&("category", *iid)].clone()),
            time,
            task: task.clone(),
            tid: thread.map_or(0, |thread| thread.tid.unwrap()),
            stack: frames.iter().map(|id| self.frames[id].0.clone()).collect(),
            fields,
            weight: event.callstack_weight,
        }
    }

    /// The events, without what is said at the end.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = &Seen> {
        let is_note = |seen: &&Seen| seen.task != "stackmap: notes";
        self.events.iter().filter(is_note)
    }
}

#[test]
fn every_event_is_on_the_track_of_its_task_with_its_fields() {
    for file in "before.data full.data function.data mixed.data user.data".split(' ') {
        let (all, trace) = (json(file), Reader::of(file));
        let events = events(&all);
        assert_eq!(trace.recorded().count(), events.len(), "{file}");
        let mut nr_stacks = 0;
        for (seen, event) in trace.recorded().zip(events) {
            let text = |name: &str| event[name].as_str().unwrap();
            assert_eq!(seen.name, text("event"));
            let micros = (seen.time + 500) / 1000;
            let time = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
            assert_eq!(time, text("time"));
            let pid = event["pid"].as_i64().unwrap();
            assert_eq!(seen.tid, pid);
            match pid {
                0 => assert_eq!(
                    seen.task,
                    format!("{} on CPU {}", text("comm"), event["cpu"])
                ),
                _ => {
                    let comm = seen.fields.get("common_comm").unwrap_or(&seen.task);
                    assert_eq!(comm, text("comm"));
                }
            }
            assert_eq!(seen.fields["common_cpu"], event["cpu"].to_string());
            for (name, value) in event["values"].as_object().into_iter().flatten() {
                // A pointer is left out whose target is a field of its own.
                let has_target = !event["values"][format!("__{name}_val")].is_null();
                let (Some(number), Some(said), false) =
                    (value.as_i64(), seen.fields.get(name), has_target)
                else {
                    continue;
                };
                // Of numbers that have a name, the name is there, as in the text.
                let is_in_text = || text("fields").contains(&format!("{name}={said}"));
                assert!(
                    *said == number.to_string() || is_in_text(),
                    "{name}={said}: {event}"
                );
            }
            // A call of a function has no fields of its own.
            match seen.name.ends_with("()") {
                true => assert_eq!(seen.fields["fields"], text("fields")),
                false => assert!(!seen.fields.contains_key("fields")),
            }
            assert!(seen.category.is_some());
            nr_stacks += usize::from(!seen.stack.is_empty());
        }
        assert!(nr_stacks > 5, "{file}");
        // Each stack, frame and name is there once.
        assert!(trace.stacks.len() < nr_stacks, "{file}");
    }
}

#[test]
fn frames_are_offsets_in_mappings_with_build_ids() {
    let mut offsets = Vec::new();
    for (arguments, is_hidden) in [("user.data", true), ("user.data --addresses", false)] {
        let trace = Reader::of(arguments);
        let named = |name: &str| {
            let mut all = trace.mappings.values();
            let path = |iid: &u64| &trace.names[&("path", *iid)][..];
            all.find(|mapping| mapping.path_string_ids.first().map(path) == Some(name))
        };
        let (kernel, known) = (
            named("[kernel.kallsyms]").unwrap(),
            named("tests/known").unwrap(),
        );
        // As in the manifest.
        assert_eq!(trace.build_ids[&kernel.build_id][..3], [0xb3, 0x99, 0x7c]);
        assert_eq!(trace.build_ids[&known.build_id].len(), 20);
        // The sizes of files are those of stack_map_binaries.
        assert_eq!((known.start, known.end), (0, 802_568));
        assert_eq!(named("bin/busybox").unwrap().end, 2_024_544);
        let unnamed = trace.frames.values().filter(|frame| frame.1 == known.iid);
        for (name, _, offset, kind) in unnamed {
            assert_eq!((&name[..], *kind), (&format!("known+0x{offset:x}")[..], 0));
        }
        let syscalls = trace.frames.values();
        let syscalls = syscalls.filter(|frame| frame.0 == "do_syscall_64");
        let end = match is_hidden {
            true => u64::MAX,
            false => kernel.end - kernel.start,
        };
        let places = syscalls.map(|(_, mapping, offset, kind)| {
            assert!((*mapping, *kind) == (kernel.iid, KERNEL) && *offset < end);
            *offset
        });
        offsets.push(places.collect::<BTreeSet<_>>());
        let begin = if is_hidden { 0 } else { 0x1ffff };
        assert_eq!((kernel.start >> 47, kernel.start == 0), (begin, is_hidden));
    }
    // The offsets are the same with addresses and without.
    assert!(!offsets[0].is_empty());
    assert_eq!(offsets[0], offsets[1]);
}

#[test]
fn kernel_addresses_are_there_on_request_only() {
    let has_addresses = |arguments: &str| {
        let trace = Reader::of(arguments);
        let is_address = |number: u64| number >> 56 != 0;
        let mappings = trace.mappings.values();
        let fields = trace.recorded().flat_map(|seen| seen.fields.values());
        mappings.map(|mapping| mapping.start).any(is_address)
            || trace.names.values().any(|name| name.starts_with("0xffff"))
            || fields.into_iter().any(|text| text.contains("0xffff"))
    };
    for file in ["mixed.data", "full.data", "user.data"] {
        assert!(!has_addresses(file), "{file}");
        assert!(has_addresses(&format!("{file} --addresses")), "{file}");
    }
}

#[test]
fn switches_are_shown_by_cpu_if_all_are_there() {
    assert!(!Reader::of("mixed.data").sched.is_empty());
    // With some left out, a task would seem to run on.
    for some in ["--cpu 1", "--event sched_switch", "--weight prev_pid"] {
        let trace = Reader::of(&format!("{some} mixed.data"));
        assert!(trace.sched.is_empty(), "{some}");
        assert!(trace.recorded().next().is_some(), "{some}");
    }
    // Only wakeups were recorded.
    assert!(Reader::of("user.data").sched.is_empty());
}

/// Gives the second CPU another number, in the pages of a capture.
fn renumber(pages: &mut [u8], cpu: u32) {
    let mut at = 0;
    while at < pages.len() {
        let word = |at: usize| u32::from_le_bytes(pages[at..at + 4].try_into().unwrap());
        let (old, len) = (word(at), word(at + 4));
        if old == 1 {
            pages[at..at + 4].copy_from_slice(&cpu.to_le_bytes());
        }
        at += 8 + len as usize;
    }
}

#[test]
fn switches_that_may_be_missing_are_not_shown_by_cpu() {
    let dir = Dir::new();
    let path = dir.at("capture");
    let nr_switches_on = |cpu: u32, change: &dyn Fn(&mut Manifest)| {
        let mut capture = Members::read(data("mixed.data"));
        renumber(capture.members.get_mut(member::PAGES).unwrap(), cpu);
        change(&mut capture.manifest);
        capture.write(&path);
        let trace = Reader::of(&path);
        assert_eq!(trace.recorded().count(), 3740);
        trace.sched.len()
    };
    let nr_switches = |change: &dyn Fn(&mut Manifest)| nr_switches_on(1, change);
    let all = nr_switches(&|_| {});
    assert!(all > 20);
    // trace_processor has no more CPUs.
    assert_eq!(nr_switches_on(1023, &|_| {}), all);
    assert!((1..all).contains(&nr_switches_on(1024, &|_| {})));
    assert!(nr_switches(&|manifest| manifest.clock = "boot".to_owned()) > 20);
    let filter = Filtered {
        event: "sched:*".to_owned(),
        filter: "prev_pid > 1".to_owned(),
    };
    for change in [
        &|manifest: &mut Manifest| manifest.recorded.pids = vec![1],
        &|manifest: &mut Manifest| manifest.recorded.cpus = "0".to_owned(),
        &|manifest: &mut Manifest| manifest.recorded.filters = vec![filter.clone()],
        &|manifest: &mut Manifest| manifest.recorded.events = vec!["sched:sched_waking".to_owned()],
        &|manifest: &mut Manifest| manifest.clock = "mono".to_owned(),
    ] as [&dyn Fn(&mut Manifest); 5]
    {
        assert_eq!(nr_switches(change), 0);
    }
}

#[test]
fn many_tasks_are_kept_apart() {
    let mut text = String::from(
        "  ls-7 (7) [000] ..... 1.000001: e: x\n  ls-7 (7) [000] ..... 1.000002: e: x\n  \
         thread-8 (7) [001] ..... 1.000003: e: x\n  <idle>-0 (-----) [001] ..... 1.000004: e: x\n  \
         <idle>-0 (-----) [000] ..... 1.000005: e: x\n",
    );
    for pid in 10..20_010 {
        text += &format!("  t{pid}-{pid} (-----) [000] ..... 2.{pid:06}: e: x\n");
    }
    let trace = Reader::new(packets_of(&text, &Manifest::default()));
    assert_eq!(trace.recorded().count(), 20_005);
    // Two events of one task are on one track.
    assert_eq!(trace.tracks.len(), 20_004 + 1);
    let processes = trace.tracks.values().filter_map(|track| {
        let thread = track.thread.as_ref()?;
        Some((thread.tid.unwrap(), thread.pid.unwrap()))
    });
    let processes: HashMap<_, _> = processes.collect();
    assert_eq!((processes[&7], processes[&8], processes[&10]), (7, 7, 10));
    assert!(trace.recorded().all(|seen| seen.stack.is_empty()));
}

#[test]
fn what_anybody_chose_is_text() {
    let trace = "  a\u{1b}[2J\u{fffd}-1 [000] ..... 1.000001: e: x\u{1}\n  \
                 a\u{1b}[2J\u{fffd}-1 [000] ..... 1.000002: <stack_id 6>\n  \
                 b-4294967295 [65535] ..... 1.000003: e: x\n  \
                 b-4294967295 [65535] ..... 1.000004: <stack_id 7>\n";
    let trace = Reader::new(packets_of(trace, &Manifest::default()));
    let events: Vec<_> = trace.recorded().collect();
    assert_eq!(events.len(), 2);
    assert_eq!(
        (&events[0].task[..], &events[0].name[..]),
        ("a\u{1b}[2J\u{fffd}", "e")
    );
    assert_eq!(events[0].fields["fields"], "x\u{1}");
    assert!(events[0].stack.is_empty());
    assert_eq!(events[1].tid, 4_294_967_295);
    assert_eq!(events[1].fields["common_cpu"], "65535");
    assert_eq!(events[1].stack, ["<stack_id 7: unknown>"]);
}
