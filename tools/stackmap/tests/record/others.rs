// SPDX-License-Identifier: MIT OR Apache-2.0

//! Settings, leftovers and files of other users.

use super::fake::{map, with, Fake, KMALLOC};
use std::{fs, process::Command};

#[test]
fn settings_of_others_are_put_aside() {
    let fake = Fake::new();
    fake.put("t/events/kmem/kmalloc/filter", "bytes_req > 8\n");
    fake.put("t/events/sched/sched_switch/filter", "prev_pid == 1\n");
    fake.put(
        "t/events/sched/sched_switch/trigger",
        "traceoff:count=2 if prev_pid == 1\n",
    );
    fake.put("t/set_event_notrace_pid", "77\n");
    fake.put("t/tracing_cpumask", "1\n");
    fake.put("t/options/overwrite", "0\n");
    fake.put("t/set_ftrace_filter", "schedule:traceoff:unlimited\n");
    let script =
        "cat events/*/*/filter tracing_cpumask options/overwrite set_event_notrace_pid > ../seen";
    fake.recorded(&with(&["-e", "kmem:kfree"]), script);
    // Of events that are not recorded filters do not matter.
    assert_eq!(fake.get("seen"), "none\n0prev_pid == 1\n000000031");
    let trigger = "traceoff:count=2 if prev_pid == 1\n!traceoff\ntraceoff:2 if prev_pid == 1\n";
    assert_eq!(fake.get("t/events/sched/sched_switch/trigger"), trigger);
    let commands = "schedule:traceoff:unlimited\n!schedule:traceoff\nschedule:traceoff\n";
    assert_eq!(fake.get("t/set_ftrace_filter"), commands);
    assert_eq!(fake.get("t/events/kmem/kmalloc/filter"), "bytes_req > 8");
    assert_eq!(fake.get("t/set_event_notrace_pid"), "77\n");
    assert_eq!(fake.get("t/tracing_cpumask"), "1");
    assert_eq!(fake.get("t/options/overwrite"), "0");
    let aside = fake.manifest("stackmap.data").put_aside;
    let keys: Vec<_> = aside.keys().map(String::as_str).collect();
    let want = [
        "events/kmem/kmalloc/filter",
        "events/sched/sched_switch/trigger",
        "options/overwrite",
        "set_event_notrace_pid",
        "set_ftrace_filter",
        "tracing_cpumask",
    ];
    assert_eq!(keys, want);
    assert_eq!(aside["events/kmem/kmalloc/filter"], "bytes_req > 8");
}

#[test]
fn an_event_enabled_by_a_trigger_is_not_in_use() {
    let fake = Fake::new();
    // What a kernel shows of sched_switch, which has one, and of kfree, which is on.
    fake.put("t/events/sched/sched_switch/enable", "0*\n");
    fake.put("t/events/kmem/kfree/enable", "1*\n");
    fake.put("t/set_event", "sched:sched_switch\n");
    fake.recorded(&KMALLOC, "true");
    assert_eq!(fake.get("t/set_event"), "");

    fake.put("t/set_event", "sched:sched_switch\nkmem:kfree\n");
    let (_, text) = fake.record(&KMALLOC, "true");
    assert!(text.contains("in use: 1 event enabled"), "{text}");
    fake.recorded(&with(&["--force"]), "true");
    assert_eq!(fake.get("t/set_event"), "kmem:kfree\n");
}

#[test]
fn lists_of_filters_and_triggers_are_used() {
    let fake = Fake::new();
    fake.put("t/events/kmem/kmalloc/filter", "bytes_req > 8\n");
    fake.put("t/events/kmem/kfree/filter", "not asked for\n");
    fake.put(
        "t/events/sched/sched_switch/trigger",
        "snapshot:unlimited\n",
    );
    fake.put(
        "t/show_event_filters",
        "kmem:kmalloc      bytes_req > 8\n^\nparse_error: No\n",
    );
    fake.put(
        "t/show_event_triggers",
        "sched:sched_switch    snapshot:unlimited\n",
    );
    fake.recorded(&["-e", "kmem"], "cat events/kmem/*/filter > ../seen");
    assert_eq!(fake.get("seen"), "not asked for\n0");
    let trigger = "snapshot:unlimited\n!snapshot\nsnapshot\n";
    assert_eq!(fake.get("t/events/sched/sched_switch/trigger"), trigger);
}

/// Only root can make such files; the guest has the same test.
#[test]
fn links_of_other_users_do_not_redirect_a_capture() {
    let fake = Fake::new();
    for dir in ["open", "victim"] {
        fs::create_dir(fake.path(dir)).unwrap();
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    fs::set_permissions(fake.path("open"), mode).unwrap();
    let link = fake.path("open/link");
    std::os::unix::fs::symlink("../victim", &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(65534), None).is_err() {
        return;
    }
    let (output, text) = fake.record(&with(&["-o", "open/link/out"]), "true");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("other users can write to"), "{text}");
    assert_eq!(fs::read_dir(fake.path("victim")).unwrap().count(), 0);

    // A reader of the FIFO would get the capture.
    let fifo = fake.path("open/fifo");
    assert!(Command::new("mkfifo")
        .arg(&fifo)
        .status()
        .unwrap()
        .success());
    std::os::unix::fs::chown(&fifo, Some(65534), None).unwrap();
    let (output, text) = fake.record(&with(&["-o", "open/fifo"]), "true");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("other users can write to"), "{text}");
}

#[test]
fn a_reset_during_the_recording_is_reported() {
    let fake = Fake::new();
    for (ids, reset) in [
        (&[0x0010_0005][..], false),
        (&[0x0010_0005, 0x0010_0006], false),
        (&[0x0010_8005], true),
        (&[], true),
    ] {
        fs::write(fake.path("t/stack_map_bin"), map(&[0x0010_0005])).unwrap();
        fs::write(fake.path("map"), map(ids)).unwrap();
        let text = fake.recorded(&KMALLOC, "cat ../map > stack_map_bin");
        assert_eq!(text.contains("WARNING: the map was reset"), reset, "{text}");
        assert_eq!(fake.manifest("stackmap.data").reset, reset);
        let output = fake.stackmap(&["report"]).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(report.contains("1 event has a stale id"), reset, "{report}");
    }
}

#[test]
fn events_enabled_by_others_have_names() {
    let fake = Fake::new();
    // The buffer has one of kmalloc.
    fake.put("t/events/kmem/kmalloc/id", "7\n");
    fake.recorded(&["-e", "kmem:kfree"], "true");
    let output = fake.stackmap(&["export", "--format", "json"]).output();
    let json: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!(json["events"][0]["event"], "kmalloc");
    assert_eq!(json["events"][0]["values"]["bytes"], 64);
}
