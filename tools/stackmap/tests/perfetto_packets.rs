// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a trace for Perfetto says beside its events and their stacks: the machine, losses, clocks, where code
//! is, and what the scheduler did.

#[path = "common/capture.rs"]
mod capture;
mod common;

use capture::Text;
use flate2::read::GzDecoder;
use prost::Message;
use serde_json::Value as Json;
use stackmap::{
    capture::{CpuStat, Manifest},
    export::perfetto::messages::{
        Data, Frame, FtraceCpuStats, Mapping, Sched, SchedSwitch, SchedWakeup, TracePacket,
        END_OF_TRACE, INSTANT, START_OF_TRACE,
    },
    stack_map_bin::{self, Order},
};
use std::{collections::HashMap, io::Read, path::Path};

/// A trace.
#[derive(Clone, Message, PartialEq)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

fn packets(arguments: &[&str]) -> Vec<TracePacket> {
    let output = common::run(&[&["export", "--format", "perfetto"], arguments].concat());
    assert!(output.status.success(), "{}", common::stderr(&output));
    let mut unpacked = Vec::new();
    GzDecoder::new(&output.stdout[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    Trace::decode(&unpacked[..]).unwrap().packet
}

/// Writes a capture with the text of a trace.
fn write(path: &Path, trace: &str, manifest: &Manifest) {
    let mut bin = Vec::new();
    stack_map_bin::write(&mut bin, Order::Little, None, [].into_iter()).unwrap();
    let text = Text {
        trace,
        stack_map_bin: &bin,
        stat: b"bits: 14\n",
        kallsyms: b"",
    };
    capture::write(path, &text, manifest);
}

const TRACE: &str = "  a-1 [000] ..... 1.000001: e: x\n";

#[test]
fn the_machine_and_the_losses_of_each_cpu_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture");
    let cpu = |cpu, entries, overrun, dropped| CpuStat {
        cpu,
        entries,
        overrun,
        dropped,
        ..CpuStat::default()
    };
    let manifest = Manifest {
        release: "7.3.4".to_owned(),
        machine: "riscv64".to_owned(),
        cpus: vec![cpu(2, 1, 20, 300), cpu(5, 4, 50, 600)],
        ..Manifest::default()
    };
    write(&path, TRACE, &manifest);
    let packets = packets(&[path.to_str().unwrap()]);
    let mut stats = Vec::new();
    for packet in packets {
        match packet.data {
            Some(Data::SystemInfo(info)) => {
                let utsname = info.utsname.unwrap();
                let said = [utsname.sysname, utsname.release, utsname.machine];
                assert_eq!(said, ["Linux", "7.3.4", "riscv64"]);
            }
            Some(Data::FtraceStats(of)) => stats.push((of.phase, of.cpu_stats)),
            Some(Data::TrackEvent(event)) => assert_eq!(event.r#type, INSTANT),
            _ => {}
        }
    }
    let stat = |cpu, entries, overrun, dropped| FtraceCpuStats {
        cpu: Some(cpu),
        entries: Some(entries),
        overrun: Some(overrun),
        dropped_events: Some(dropped),
    };
    let begin = vec![stat(2, 0, 0, 0), stat(5, 0, 0, 0)];
    let end = vec![stat(2, 1, 20, 300), stat(5, 4, 50, 600)];
    assert_eq!(stats, [(START_OF_TRACE, begin), (END_OF_TRACE, end)]);
}

#[test]
fn times_are_of_the_clock_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture");
    for (clock, known) in [
        ("mono", Some(3)),
        ("mono_raw", Some(5)),
        ("boot", Some(6)),
        ("local", None),
    ] {
        let manifest = Manifest {
            clock: clock.to_owned(),
            ..Manifest::default()
        };
        write(&path, TRACE, &manifest);
        let packets = packets(&[path.to_str().unwrap()]);
        let default = packets[0].trace_packet_defaults;
        let default = default.map(|default| default.timestamp_clock_id);
        assert_eq!(default, known, "{clock}");
        let snapshots = packets.into_iter().filter_map(|packet| match packet.data {
            Some(Data::ClockSnapshot(snapshot)) => Some(snapshot.clocks[0].clock_id),
            _ => None,
        });
        assert_eq!(snapshots.collect::<Vec<_>>(), Vec::from_iter(known));
    }
}

/// The mappings and frames of a trace, by their names.
fn places(arguments: &[&str]) -> (HashMap<String, Mapping>, HashMap<String, Frame>) {
    let (mut paths, mut functions) = (HashMap::new(), HashMap::new());
    let (mut mappings, mut frames) = (HashMap::new(), HashMap::new());
    for data in packets(arguments)
        .into_iter()
        .filter_map(|packet| packet.interned_data)
    {
        let names = |names: Vec<_>| {
            let names = names.into_iter();
            names.map(|name: stackmap::export::perfetto::messages::Name| (name.iid, name.name))
        };
        paths.extend(names(data.mapping_paths));
        functions.extend(names(data.function_names));
        for mapping in data.mappings {
            let path = mapping.path_string_ids.first();
            let path = path.map_or(String::new(), |path| paths[path].clone());
            mappings.insert(path, mapping);
        }
        for frame in data.frames {
            frames.insert(functions[&frame.function_name_id].clone(), frame);
        }
    }
    (mappings, frames)
}

#[test]
fn frames_are_offsets_in_mappings_whose_ends_are_known() {
    let (hidden, hidden_frames) = places(&["user.data"]);
    let (mappings, frames) = places(&["user.data", "--addresses"]);
    let (kernel, frame) = (&mappings["[kernel.kallsyms]"], &frames["do_syscall_64"]);
    assert!(kernel.start >> 47 == 0x1ffff && kernel.end > kernel.start);
    assert_eq!(frame.mapping_id, kernel.iid);
    assert!(frame.rel_pc < Some(kernel.end - kernel.start));
    // The offset is the same with addresses and without.
    assert_eq!(frame.rel_pc, hidden_frames["do_syscall_64"].rel_pc);
    // The sizes of files are those of stack_map_binaries.
    for mappings in [mappings, hidden] {
        for (path, size) in [("bin/busybox", 2_024_544), ("tests/known", 802_552)] {
            let mapping = &mappings[path];
            assert_eq!((mapping.start, mapping.end), (0, size), "{path}");
        }
    }
}

/// What the scheduler did in an event, as the export of all events has it.
fn sched(event: &Json) -> Option<Sched> {
    let of = &event["values"];
    let number = |name: &str| Some(of[name].as_i64().unwrap() as i32);
    let text = |name: &str| Some(of[name].as_str().unwrap().to_owned());
    let woken = || SchedWakeup {
        comm: text("comm"),
        pid: number("pid"),
        prio: number("prio"),
        success: Some(1),
        target_cpu: number("target_cpu"),
    };
    Some(match event["event"].as_str().unwrap() {
        "sched_switch" => Sched::Switch(SchedSwitch {
            prev_comm: text("prev_comm"),
            prev_pid: number("prev_pid"),
            prev_prio: number("prev_prio"),
            prev_state: of["prev_state"].as_i64(),
            next_comm: text("next_comm"),
            next_pid: number("next_pid"),
            next_prio: number("next_prio"),
        }),
        "sched_waking" => Sched::Waking(woken()),
        "sched_wakeup" => Sched::Wakeup(woken()),
        "sched_wakeup_new" => Sched::WakeupNew(woken()),
        _ => return None,
    })
}

/// Compares them, and returns the switches.
fn switches(file: &str) -> Vec<SchedSwitch> {
    let all = common::stdout(&["export", "--format", "json", file]);
    let all: Json = serde_json::from_str(&all).unwrap();
    let wanted = all["events"].as_array().unwrap().iter();
    let wanted = wanted.filter_map(|event| {
        let numbers = ["cpu", "pid"].map(|name| event[name].as_u64());
        Some((numbers, event["time"].clone(), sched(event)?))
    });
    let wanted: Vec<_> = wanted.collect();
    let shown = packets(&[file]).into_iter();
    let shown = shown.filter_map(|packet| match packet.data {
        Some(Data::FtraceEvents(bundle)) => Some(bundle),
        _ => None,
    });
    let shown = shown.map(|bundle| {
        let [event] = &bundle.event[..] else {
            panic!("{bundle:?}");
        };
        let micros = (event.timestamp.unwrap() + 500) / 1000;
        let time = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        let numbers = [bundle.cpu, event.pid].map(|number| number.map(u64::from));
        (numbers, Json::from(time), event.event.clone().unwrap())
    });
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown, wanted);
    let switches = shown.into_iter().filter_map(|(.., sched)| match sched {
        Sched::Switch(switch) => Some(switch),
        _ => None,
    });
    switches.collect()
}

#[test]
fn switches_and_wakeups_have_what_their_events_have() {
    let switches = ["mixed.data", "questions.data"].map(switches).concat();
    assert!(switches.len() > 600);
    // What may be taken for something else differs somewhere.
    assert!(switches.iter().any(|of| of.prev_prio != of.next_prio));
    assert!(switches.iter().any(|of| of.prev_state > Some(0)));
}
