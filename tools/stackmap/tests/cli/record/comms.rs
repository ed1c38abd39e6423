// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of tasks by time.

use super::fake::{of_task, page_of, send, Fake, Started, KMALLOC, KMALLOC_ID, STACK_ID};
use std::{fs, process::Command};

/// No task has such a number, or the tests would fail.
const PID: u32 = 4_194_303;

/// Returns a kernel with tasks after each other that have one id, of which the last one is what the second one became: alpha,
/// beta and gamma have called kmalloc once, twice and three times.
fn reused() -> Fake {
    let fake = Fake::new();
    let names = [
        (2_000, "sched_process_exit", &["alpha"][..]),
        (10_000, "task_newtask", &["reuse"]),
        (11_000, "task_rename", &["reuse", "beta"]),
        (30_000, "sched_process_exit", &["gamma"]),
    ];
    let names = names.map(|(at, event, names)| of_task(at, event, PID, PID, names));
    let mut events = Vec::new();
    for at in [1_000, 12_000, 13_000, 21_000, 22_000, 31_000] {
        for (at, id, field) in [(at, KMALLOC_ID, 64), (at + 1, STACK_ID, 0x0010_0005)] {
            events.push((at, id, PID, u32::to_ne_bytes(field).to_vec()));
        }
    }
    fake.put("i/per_cpu/cpu0/trace_pipe_raw", page_of(&events));
    fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&names));
    let elsewhere = of_task(20_000, "task_rename", PID, PID, &["beta", "gamma"]);
    fake.put("i.names/per_cpu/cpu1/trace_pipe_raw", page_of(&[elsewhere]));
    fake
}

/// Returns the groups of a report with their numbers of events.
fn groups(fake: &Fake, arguments: &str) -> String {
    let text = fake.ran(&format!("report --top 0 {arguments}"));
    let rows = text
        .lines()
        .skip_while(|line| !line.ends_with("last"))
        .skip(1);
    let rows = rows.take_while(|line| line.starts_with(' '));
    let words = rows.map(|row| row.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
    words.collect::<Vec<_>>().join(", ")
}

#[test]
fn events_count_for_the_name_that_their_task_had() {
    let fake = reused();
    let script =
        "cat ../stackmap_names-*/set_event ../stackmap_names-*/options/stacktrace > $out/seen";
    fake.recorded(KMALLOC, script);
    let events =
        "task:task_newtask\ntask:task_rename\nsched:sched_process_exit\nmodule:module_free\n0";
    assert_eq!(fake.get("seen"), events);
    assert_eq!(fake.get("i.names/tracing_on"), "0");

    for (by, want) in [
        ("--by comm", "gamma 3, beta 2, alpha 1"),
        ("--by comm --comm beta", "beta 2"),
        ("", "kmalloc 6"),
    ] {
        assert_eq!(groups(&fake, by), want, "{by}");
    }
    let folded = fake.ran("folded --by comm");
    let mut lines: Vec<_> = folded.lines().filter(|line| line.contains(';')).collect();
    lines.sort();
    assert_eq!(lines, ["alpha;foo 1", "beta;foo 2", "gamma;foo 3"]);
    let export = fake.export("stackmap.data");
    let comms = export["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["comm"].as_str());
    let comms: Vec<_> = comms.map(Option::unwrap).collect();
    assert_eq!(comms, ["alpha", "beta", "beta", "gamma", "gamma", "gamma"]);
    let text = fake.ran("resolve stackmap.data");
    let lines = text.lines().filter(|line| line.contains("kmalloc"));
    let tasks: Vec<_> = lines
        .map(|line| line.split('-').next().unwrap().trim_start())
        .collect();
    assert_eq!(tasks, comms);
    fake.recorded("-e kmem:kmalloc --anonymous", "true");
    let text = groups(&fake, "--by comm");
    let hidden: Vec<_> = text
        .split(", ")
        .map(|row| row.split_once(' ').unwrap())
        .collect();
    assert!(
        hidden.iter().all(|(name, _)| name.starts_with("task-")),
        "{text}"
    );
    let counts: Vec<_> = hidden.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, ["3", "2", "1"]);
}

#[test]
fn names_of_a_killed_recorder_are_recovered() {
    let fake = reused();
    let before = fake.state();
    let mut recorder = fake.start(KMALLOC);
    send("-KILL", &recorder);
    recorder.wait().unwrap();
    super::fake::wait_until(|| fake.get("log").contains("its recording is saved"));
    assert_eq!(groups(&fake, "--by comm"), "gamma 3, beta 2, alpha 1");
    assert_eq!(fake.state(), before);
    // What is left of an instance that somebody has removed.
    fake.recorded("-e kmem:kmalloc -o other", "true");
    assert_eq!(fake.state(), before);
}

#[test]
fn what_tells_names_is_lost_or_missing_aloud() {
    let fake = reused();
    let stats = fake.get("i.names/per_cpu/cpu0/stats");
    fake.put(
        "i.names/per_cpu/cpu0/stats",
        stats.replacen("overrun: 0", "overrun: 7", 1),
    );
    let text = fake.recorded(KMALLOC, "true");
    assert!(
        text.contains("7 changes of names of tasks are lost"),
        "{text}"
    );
    fs::remove_dir_all(fake.path("i.names")).unwrap();
    let text = fake.recorded(KMALLOC, "true");
    assert!(text.contains("names of tasks are not recorded: "), "{text}");
    assert_eq!(groups(&fake, ""), "kmalloc 6");
}

#[test]
fn what_takes_the_name_of_the_recorder_is_shown() {
    let fake = reused();
    // Before an exec, what becomes the command has this name; but not from then on.
    let names = [(2_000, ["sh", "stackmap"]), (30_000, ["stackmap", "other"])];
    let names = names.map(|(at, names)| of_task(at, "task_rename", PID, PID, &names));
    fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&names));
    fake.put("i.names/per_cpu/cpu1/trace_pipe_raw", "");
    fake.recorded(KMALLOC, "true");
    assert_eq!(groups(&fake, "--by comm"), "stackmap 4, other 1, sh 1");
}

#[test]
fn threads_are_told_from_processes() {
    let process = PID - 1;
    let fake = Fake::new();
    let fields = u32::to_ne_bytes(64).to_vec();
    fake.put(
        "i/per_cpu/cpu0/trace_pipe_raw",
        page_of(&[(12_000, KMALLOC_ID, PID, fields)]),
    );
    for (flags, want) in [(0x1_0000u32, process), (0, PID)] {
        let mut begun = of_task(10_000, "task_newtask", process, PID, &["one"]);
        let at = begun.3.len() - 4;
        begun.3[at..].copy_from_slice(&flags.to_ne_bytes());
        let ended = [(20_000, PID), (30_000, process)]
            .map(|(at, pid)| of_task(at, "sched_process_exit", pid, pid, &["one"]));
        let names = [&[begun][..], &ended].concat();
        fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&names));
        fake.recorded(KMALLOC, "true");
        let export = fake.export("stackmap.data");
        assert_eq!(export["events"][0]["tgid"], want, "{flags:#x}");
    }
}

#[test]
fn tasks_that_run_at_the_end_have_their_names() {
    let fake = Fake::new();
    let process = Started(Command::new("sleep").arg("100").spawn().unwrap());
    let fields = u32::to_ne_bytes(64).to_vec();
    let event = (12_000, KMALLOC_ID, process.id(), fields);
    fake.put("i/per_cpu/cpu0/trace_pipe_raw", page_of(&[event]));
    fake.recorded(KMALLOC, "true");
    assert_eq!(groups(&fake, "--by comm"), "sleep 1");
}
