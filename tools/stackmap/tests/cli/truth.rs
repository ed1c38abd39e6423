// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures of the binary ring buffer beside the kernel's own text of the same buffers.

use super::tool::{data, events, json, run, stdout, unpacked};
use regex::Regex;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    fs,
};

/// The time, the CPU, the task and the name of an event, and the id of its stack.
type Event = (String, u64, u64, String, Option<u64>);

/// Reads the kernel's text.
fn events_of_text(text: &str) -> Vec<Event> {
    // A name of a task is padded to 16 columns.
    let line_is = Regex::new(r"^.{16}-(\d+) +\[(\d+)\] (\S+) +([\d.]+): (.*)$").unwrap();
    let syscall_is = Regex::new(r"^sys_(\w+)(\(| -> )").unwrap();
    let mut events = Vec::<Event>::new();
    let mut without = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, [pid, cpu, flags, time, body]) = line_is.captures(line).unwrap().extract();
        if let Some(id) = body.strip_prefix("<stack_id ") {
            let event: usize = without.remove(&(cpu, pid, flags)).unwrap();
            events[event].4 = Some(id.trim_end_matches('>').parse().unwrap());
            continue;
        }
        assert!(!body.starts_with("<stack trace>"), "the map was full");
        let syscall = syscall_is.captures(body).map(|found| found.extract());
        let name = match syscall {
            Some((_, [call, "("])) => format!("sys_enter_{call}"),
            Some((_, [call, _])) => format!("sys_exit_{call}"),
            None => body.split(':').next().unwrap().to_owned(),
        };
        without.insert((cpu, pid, flags), events.len());
        let [cpu, pid] = [cpu, pid].map(|number| number.parse().unwrap());
        events.push((time.to_owned(), cpu, pid, name, None));
    }
    events
}

#[test]
fn the_export_has_the_events_of_the_kernels_text() {
    let text = unpacked(&fs::read(data("mixed.trace.gz")).unwrap());
    let mut want = events_of_text(&String::from_utf8_lossy(&text));
    let export = json("mixed.data");
    let mut got: Vec<Event> = events(&export)
        .iter()
        .map(|event| {
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            let [cpu, pid] = ["cpu", "pid"].map(|name| event[name].as_u64().unwrap());
            (
                text("time"),
                cpu,
                pid,
                text("event"),
                event["stack"].as_u64(),
            )
        })
        .collect();
    got.sort();
    want.sort();
    assert!(got == want);
    let some = "kmalloc sched_switch timer_start softirq_entry sys_enter_openat sys_exit_openat";
    for name in some.split(' ') {
        assert!(want.iter().any(|event| event.3 == name), "{name}");
    }
}

/// Returns the events of a recording of an unprivileged user who runs programs with hostile names.
fn attack() -> Vec<Value> {
    let ran = run("export --format json attack.data").well();
    assert!(!ran.stderr.contains("WARNING"), "{}", ran.stderr);
    events(&serde_json::from_slice(&ran.stdout).unwrap()).clone()
}

#[test]
fn no_name_forges_an_event_or_a_stack() {
    let events = attack();
    // Of the task init, and with a field of the attacker's choice.
    let is_forged = |event: &Value| event["fields"] == "call_site=evil";
    assert!(!events.iter().any(is_forged));
    let is = |name: &'static str| events.iter().filter(move |event| event["event"] == name);
    let mut names = BTreeMap::new();
    for event in is("sched_process_exec") {
        let name = event["values"]["filename"].as_str().unwrap();
        let field = event["fields"].as_str().unwrap();
        assert!(!field.contains('\n'), "{field:?}");
        *names.entry(name).or_insert(0) += 1;
        // Its stack is its own: that of an exec.
        assert!(event["stack"].is_u64(), "{event}");
    }
    let is_forging = |name: &&str| name.contains("evil\n") && name.contains("[LOST 4198 EVENTS]");
    assert!(names.keys().any(is_forging), "{names:?}");
    assert_eq!(names.get("./<stack_id 34489>"), Some(&3), "{names:?}");

    // As many lines as records: none was made by a name.
    let text = stdout("resolve --inline attack.data");
    let honest = text
        .lines()
        .filter(|line| !line.contains("sched_process_exec"));
    let kmallocs = honest.filter(|line| line.contains(": kmalloc: "));
    assert_eq!(kmallocs.count(), is("kmalloc").count());
    assert!(text.contains("\\n"));
    assert!(text.lines().all(|line| !line.starts_with("CPU:")));
}

#[test]
fn no_name_of_a_task_hides_its_events() {
    let events = attack();
    for comm in ["e-1 [7] . 1: x", "=> evil", "<stack_id 34489"] {
        let own = events.iter().filter(|event| event["comm"] == comm);
        assert!(own.clone().count() > 3, "{comm}");
        assert!(own.clone().any(|event| event["stack"].is_u64()), "{comm}");
    }
    // No other task has the name after the newline.
    assert!(!events.iter().any(|event| event["comm"] == "evil"));
}
