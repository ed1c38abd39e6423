// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings of some processes, CPUs and events only.

use super::fake::{send, wait_until, with, Fake, Started, KMALLOC};
use std::{
    fs,
    process::{Command, Stdio},
};

fn sleeper() -> Started {
    Started::new(Command::new("sleep").arg("100").spawn().unwrap())
}

#[test]
fn a_recording_of_processes_is_limited_and_restored() {
    for (what, on, off) in [
        (&KMALLOC[..], "event", "ftrace"),
        (&["-f", "foo"], "ftrace", "event"),
    ] {
        let fake = Fake::new();
        let before = fake.state();
        let (one, other) = (sleeper(), sleeper());
        let pids = format!("{},{},{0}", one.id(), other.id());
        let arguments = [what, &["-p", &pids]].concat();
        let script = "cat set_event_pid > ../event; cat set_ftrace_pid > ../ftrace; \
                      cat options/event-fork options/function-fork options/record-tgid > ../options";
        fake.recorded(&arguments, script);
        assert_eq!(fake.state(), before);
        let mut want = [one.id(), other.id()];
        want.sort_unstable();
        let want = want.map(|pid| format!("{pid}\n")).concat();
        let listed = fake.get(on);
        assert_eq!(listed.strip_prefix("no pid\n").unwrap_or(&listed), want);
        assert!(fake.get(off).trim_end_matches("no pid\n").is_empty());
        let options = fake.get("options");
        assert_eq!(options, if on == "event" { "10\n1" } else { "0\n11" });
        let recorded = fake.manifest("stackmap.data").recorded;
        assert_eq!(recorded.pids, [one.id(), other.id()]);
        let output = fake.stackmap(&["report"]).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let head = format!("; processes: {}, {}; command: ", one.id(), other.id());
        assert!(report.contains(&head), "{report}");
    }
}

#[test]
fn a_recording_ends_with_its_processes() {
    let fake = Fake::new();
    let before = fake.state();
    for end in [&[][..], &["-d", "100"], &["--", "sleep", "100"]] {
        let mut sleeper = sleeper();
        let pid = sleeper.id().to_string();
        let mut arguments = with(&["-p", &pid]);
        arguments.extend(end);
        let log = fs::File::create(fake.path("log")).unwrap();
        let mut command = fake.stackmap(&["record", "--tracefs", "t", "--overwrite"]);
        let command = command.args(arguments).stdin(Stdio::null()).stderr(log);
        let mut recording = Started::new(command.spawn().unwrap());
        wait_until(|| fake.get("t/tracing_on") == "1" && !fake.get("t/set_event").is_empty());
        assert!(recording.try_wait().unwrap().is_none());
        send("-KILL", &sleeper);
        sleeper.wait().unwrap();
        assert!(recording.wait().unwrap().success(), "{}", fake.get("log"));
        let text = fake.get("log");
        assert!(text.contains("all recorded processes have ended"), "{text}");
        let forever = text.contains("until Ctrl-C, or until all recorded processes have ended");
        assert_eq!(forever, end.is_empty(), "{text}");
        assert_eq!(fake.state(), before);
    }
}

#[test]
fn what_is_not_there_cannot_be_recorded() {
    let fake = Fake::new();
    let before = fake.state();
    for (arguments, says) in [
        (["-p", "2147483647"], "there is no process 2147483647"),
        (
            ["-C", "1-2"],
            "there is no CPU 2\n  hint: this machine has the CPUs 0-1",
        ),
    ] {
        let (output, text) = fake.record(&with(&arguments), "true");
        assert_eq!(output.status.code(), Some(1));
        assert!(text.contains(says), "{text}");
    }
    for arguments in [["-p", "0"], ["-p", "x"], ["-C", "1-0"], ["-C", "x"]] {
        let (output, text) = fake.record(&with(&arguments), "true");
        assert_eq!(output.status.code(), Some(2), "{text}");
    }
    assert_eq!(fake.state(), before);
}

#[test]
fn a_recording_of_cpus_is_limited_and_restored() {
    let fake = Fake::new();
    fake.put("t/tracing_cpumask", "ff\n");
    let before = fake.state();
    fake.recorded(&with(&["-C", "1"]), "cat tracing_cpumask > ../seen");
    assert_eq!(fake.get("seen"), "00000002");
    assert_eq!(fake.state(), before);
    let manifest = fake.manifest("stackmap.data");
    assert_eq!(manifest.recorded.cpus, "1");
    assert!(manifest.put_aside.is_empty());
    let output = fake.stackmap(&["report"]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("; CPUs: 1; command: "), "{report}");

    // The mask of another user that has no CPU of it is put aside.
    fake.put("t/tracing_cpumask", "1\n");
    fake.recorded(&with(&["-C", "0,1"]), "cat tracing_cpumask > ../seen");
    assert_eq!(fake.get("seen"), "00000003");
    assert_eq!(fake.get("t/tracing_cpumask"), "1");
    let aside = fake.manifest("stackmap.data").put_aside;
    assert_eq!(aside["tracing_cpumask"], "1");
    fake.recorded(&with(&["-C", "0"]), "cat tracing_cpumask > ../seen");
    assert_eq!(fake.get("seen"), "00000001");
    assert!(fake.manifest("stackmap.data").put_aside.is_empty());
}

#[test]
fn filters_of_events_are_set_and_removed() {
    let fake = Fake::new();
    fake.put("t/events/kmem/kfree/filter", "ptr == 0\n");
    let arguments = [
        "-e",
        "kmem:*",
        "--filter",
        "a > 1",
        "--filter",
        "b == \"x\"",
        "-e",
        "sched:*",
    ];
    fake.recorded(&arguments, "cat events/*/*/filter > ../seen");
    let filter = "(a > 1) && (b == \"x\")";
    assert_eq!(fake.get("seen"), format!("{filter}{filter}none\n"));
    // 0 is how the kernel is told to remove one.
    assert_eq!(fake.get("t/events/kmem/kmalloc/filter"), "0");
    assert_eq!(fake.get("t/events/kmem/kfree/filter"), "ptr == 0");
    let recorded = fake.manifest("stackmap.data").recorded;
    assert_eq!(recorded.events, ["kmem:*", "sched:*"]);
    assert_eq!(recorded.filters[0].event, "kmem:*");
    assert_eq!(recorded.filters[0].filter, filter);
    let output = fake.stackmap(&["report"]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let head = format!("events: kmem:* sched:*; filters: kmem:* if {filter}; command: ");
    assert!(report.contains(&head), "{report}");
}

#[test]
fn diff_says_that_filters_and_cpus_differ() {
    let fake = Fake::new();
    fake.recorded(&with(&["-o", "one"]), "true");
    fake.recorded(
        &with(&["--filter", "bytes > 1", "-C", "0", "-o", "other"]),
        "true",
    );
    let output = fake.stackmap(&["diff", "one", "other"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    let want = "only in one: kmem:kmalloc; only in other: kmem:kmalloc if bytes > 1; \
                all CPUs in one, only CPUs 0 in other";
    assert!(text.contains(want), "{text}");
}

#[test]
fn limits_are_restored_after_a_fault_at_any_step() {
    let fake = Fake::new();
    fake.put("t/set_event_pid", "12\n");
    fake.put("t/options/event-fork", "1\n");
    fake.put("t/events/kmem/kmalloc/filter", "bytes > 8\n");
    let before = fake.state();
    let sleeper = sleeper();
    let pid = sleeper.id().to_string();
    let limits = with(&["--filter", "bytes > 1", "-p", &pid, "-C", "0", "-d", "0"]);
    for step in ["guarded", "options", "events", "running", "written"] {
        let fault = format!("{step}:fail");
        let (_, text) = fake.record(&[&limits[..], &["--fault", &fault]].concat(), "");
        assert!(text.contains(&format!("failed at {step}")), "{text}");
        assert_eq!(fake.state(), before, "{step}: {text}");
        let hold = format!("{step}:hold");
        let mut child = fake.start("log", &[&limits[..], &["--fault", &hold]].concat());
        if step == "running" {
            assert_eq!(fake.get("t/tracing_cpumask"), "00000001");
            assert_eq!(fake.get("t/set_event_pid"), format!("{pid}\n"));
            assert_eq!(fake.get("t/events/kmem/kmalloc/filter"), "bytes > 1");
        }
        send("-KILL", &child);
        child.wait().unwrap();
        wait_until(|| fake.state() == before);
    }
}
