// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings of some processes, CPUs and events only.

use super::fake::{send, wait_until, Fake, Started, KMALLOC};
use std::{
    fs::File,
    process::{Command, Stdio},
};

fn sleeper() -> Started {
    Started(Command::new("sleep").arg("100").spawn().unwrap())
}

#[test]
fn a_recording_of_processes_is_limited() {
    for (what, on, off) in [(KMALLOC, "event", "ftrace"), ("-f foo", "ftrace", "event")] {
        let fake = Fake::new();
        let before = fake.state();
        let (one, other) = (sleeper(), sleeper());
        let (first, second) = (one.id(), other.id());
        let script = "cat set_event_pid > $out/event; cat set_ftrace_pid > $out/ftrace; \
                      cat options/event-fork options/function-fork > $out/options";
        fake.recorded(&format!("{what} -p {first},{second},{first}"), script);
        assert_eq!(fake.state(), before);
        let mut want = [first, second];
        want.sort_unstable();
        let want = want.map(|pid| format!("{pid}\n")).concat();
        let listed = fake.get(on);
        assert_eq!(listed.strip_prefix("no pid\n").unwrap_or(&listed), want);
        assert!(fake.get(off).trim_end_matches("no pid\n").is_empty());
        let options = fake.get("options");
        assert_eq!(options, if on == "event" { "10" } else { "01" });
        assert_eq!(fake.manifest().recorded.pids, [first, second]);
        let report = fake.ran("report");
        let head = format!("; processes: {first}, {second}; command: ");
        assert!(report.contains(&head), "{report}");
    }
}

#[test]
fn a_recording_ends_with_its_processes() {
    let fake = Fake::new();
    let before = fake.state();
    for end in ["", "-d 100", "-- sleep 100"] {
        let mut sleeper = sleeper();
        let log = File::create(fake.path("log")).unwrap();
        let mut command = fake.command(&format!("{KMALLOC} -p {} {end}", sleeper.id()), "");
        let command = command.stdin(Stdio::null()).stderr(log);
        let mut recording = Started(command.spawn().unwrap());
        wait_until(|| {
            fake.instances().iter().any(|name| {
                let file = |file| fake.path("t/instances").join(name).join(file);
                let get = |name| std::fs::read_to_string(file(name)).unwrap_or_default();
                get("tracing_on") == "1" && !get("set_event").is_empty()
            })
        });
        assert!(recording.try_wait().unwrap().is_none());
        send("-KILL", &sleeper);
        sleeper.wait().unwrap();
        let status = recording.wait().unwrap();
        let text = fake.get("log");
        assert!(status.success(), "{text}");
        assert!(text.contains("all recorded processes have ended"), "{text}");
        let forever = text.contains("until Ctrl-C, or until all recorded processes have ended");
        assert_eq!(forever, end.is_empty(), "{text}");
        assert_eq!(fake.state(), before);
    }
}

#[test]
fn a_recording_of_cpus_is_limited() {
    let fake = Fake::new();
    let before = fake.state();
    fake.recorded("-e kmem:kmalloc -C 1", "cat tracing_cpumask > $out/seen");
    assert_eq!(fake.get("seen"), "00000002");
    assert_eq!(fake.state(), before);
    assert_eq!(fake.manifest().recorded.cpus, "1");
    let report = fake.ran("report");
    assert!(report.contains("; CPUs: 1; command: "), "{report}");
}

#[test]
fn filters_of_events_are_set() {
    let fake = Fake::new();
    let arguments = "-e kmem:* --filter 'a > 1' --filter 'b == \"x\"' -e sched:*";
    fake.recorded(arguments, "cat events/*/*/filter > $out/seen");
    let filter = "(a > 1) && (b == \"x\")";
    assert_eq!(fake.get("seen"), format!("{filter}{filter}none\n"));
    let recorded = fake.manifest().recorded;
    assert_eq!(recorded.events, ["kmem:*", "sched:*"]);
    assert_eq!(recorded.filters[0].event, "kmem:*");
    assert_eq!(recorded.filters[0].filter, filter);
    let report = fake.ran("report");
    let head = format!("events: kmem:* sched:*; filters: kmem:* if {filter}; command: ");
    assert!(report.contains(&head), "{report}");
}

#[test]
fn diff_says_that_filters_and_cpus_differ() {
    let fake = Fake::new();
    fake.recorded("-e kmem:kmalloc -o one", "true");
    fake.recorded("-e kmem:kmalloc --filter 'bytes > 1' -C 0 -o other", "true");
    let text = fake.ran("diff one other");
    let want = "only in one: kmem:kmalloc; only in other: kmem:kmalloc if bytes > 1; \
                all CPUs in one, only CPUs 0 in other";
    assert!(text.contains(want), "{text}");
}
