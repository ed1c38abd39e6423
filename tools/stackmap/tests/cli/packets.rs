// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a trace for Perfetto says beside its events and their stacks: the machine, losses, clocks, where code
//! is, and what the scheduler did.

use super::{
    perfetto::{packets, packets_of},
    tool::{events, json},
};
use serde_json::Value as Json;
use stackmap::{
    capture::{CpuStat, Manifest},
    export::perfetto::messages::{
        Data, FtraceCpuStats, Sched, SchedSwitch, SchedWakeup, END_OF_TRACE, INSTANT,
        START_OF_TRACE,
    },
};

const EVENT: &str = "  a-1 [000] ..... 1.000001: e: x\n";

#[test]
fn the_machine_and_the_losses_of_each_cpu_are_said() {
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
    let mut stats = Vec::new();
    for packet in packets_of(EVENT, &manifest) {
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
    for (clock, known) in [
        ("mono", Some(3)),
        ("mono_raw", Some(5)),
        ("boot", Some(6)),
        ("local", None),
        ("x", None),
    ] {
        let manifest = Manifest {
            clock: clock.to_owned(),
            ..Manifest::default()
        };
        let packets = packets_of(EVENT, &manifest);
        let default = packets[0].trace_packet_defaults;
        let default = default.map(|default| default.timestamp_clock_id);
        assert_eq!(default, known, "{clock}");
        let snapshots = packets.into_iter().filter_map(|packet| match packet.data {
            Some(Data::ClockSnapshot(snapshot)) => {
                let [clock] = &snapshot.clocks[..] else {
                    panic!("{snapshot:?}");
                };
                assert_eq!(clock.timestamp, Some(1_000_001_000));
                assert_eq!(clock.clock_id as i32, snapshot.primary_trace_clock);
                Some(clock.clock_id)
            }
            _ => None,
        });
        assert_eq!(snapshots.collect::<Vec<_>>(), Vec::from_iter(known));
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
    let all = json(format!("--plumbing {file}"));
    let wanted = events(&all).iter();
    let wanted = wanted.filter_map(|event| {
        let numbers = ["cpu", "pid"].map(|name| event[name].as_u64());
        Some((numbers, event["time"].clone(), sched(event)?))
    });
    let wanted: Vec<_> = wanted.collect();
    let shown = packets(file).into_iter();
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
    assert!(switches.len() > 500);
    // What may be taken for something else differs somewhere.
    assert!(switches.iter().any(|of| of.prev_prio != of.next_prio));
    assert!(switches.iter().any(|of| of.prev_state > Some(0)));
}
