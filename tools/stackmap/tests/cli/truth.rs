// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures of the binary ring buffer beside the kernel's own text of the same buffers.

use super::tool::{data, events, json, run, stdout, unpacked};
use prost::Message;
use regex::Regex;
use serde_json::Value;
use stackmap::export::proto::Profile;
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

type Counts = BTreeMap<String, u64>;

fn sums(counts: impl IntoIterator<Item = (String, u64)>) -> Counts {
    let mut sums = Counts::new();
    for (name, count) in counts {
        *sums.entry(name).or_default() += count;
    }
    sums
}

/// How often each event is in a profile.
fn of_profile() -> Counts {
    let packed = run("export --format pprof mixed.data").well().stdout;
    let profile = Profile::decode(&unpacked(&packed)[..]).unwrap();
    let text = |index: i64| profile.string_table[index as usize].clone();
    sums(profile.sample.iter().map(|sample| {
        let mut labels = sample.label.iter();
        let event = labels.find(|label| text(label.key) == "event").unwrap();
        (text(event.str), sample.value[0] as u64)
    }))
}

/// How often each event is a marker of the Firefox Profiler, and how many samples there are.
fn of_firefox() -> (Counts, usize) {
    let profile: Value =
        serde_json::from_str(&stdout("export --format firefox mixed.data")).unwrap();
    let (mut markers, mut nr_samples) = (Vec::new(), 0);
    for thread in profile["threads"].as_array().unwrap() {
        for name in thread["markers"]["name"].as_array().unwrap() {
            let name = &thread["stringArray"][name.as_u64().unwrap() as usize];
            markers.push((name.as_str().unwrap().to_owned(), 1));
        }
        nr_samples += thread["samples"]["stack"].as_array().unwrap().len();
    }
    (sums(markers), nr_samples)
}

#[test]
fn every_output_has_the_events_of_the_kernels_text() {
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
    let counts = sums(want.iter().map(|(_, _, _, name, _)| (name.clone(), 1)));
    got.sort();
    want.sort();
    assert!(got == want);
    let some = "kmalloc sched_switch timer_start softirq_entry sys_enter_openat sys_exit_openat";
    for name in some.split(' ') {
        assert!(counts.contains_key(name), "{name}");
    }

    let folded = stdout("folded --by event mixed.data");
    let folded = folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let event = stack.split(';').next().unwrap();
        (event.to_owned(), count.parse().unwrap())
    });
    assert_eq!(sums(folded), counts);
    let report = stdout("report --top 1000000 --depth 1 mixed.data");
    let title_is = Regex::new(r"(?m)^(\S+): (\d+) events?$").unwrap();
    let titles = title_is.captures_iter(&report).map(|title| {
        let (_, [name, count]) = title.extract();
        (name.to_owned(), count.parse().unwrap())
    });
    assert_eq!(sums(titles), counts);
    assert_eq!(of_profile(), counts);
    assert_eq!(of_firefox(), (counts, want.len()));
    let svg = stdout("flame -o - mixed.data").replace(',', "");
    let all = format!("<title>all ({} ", want.len());
    assert!(svg.contains(&all), "{all}");
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
