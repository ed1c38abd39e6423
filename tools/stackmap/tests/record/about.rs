// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a capture says of the machine and of the time, and what it does not say if it is to be anonymous.

use super::fake::{with, Fake, STATS};
use serde_json::Value;
use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

fn now() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    time.as_nanos().try_into().unwrap()
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim_end().to_owned()
}

#[test]
fn clocks_are_read_when_it_begins_and_ends() {
    let fake = Fake::new();
    // That of this kernel cannot be read.
    fake.recorded(&with(&[]), "true");
    let clocks = fake.manifest("stackmap.data").clocks;
    assert_eq!((clocks.begin, clocks.end), (None, None));
    assert!(!manifest(&fake).to_string().contains("clocks"));

    let stats = |time: &str| format!("{STATS}oldest event ts:     0.1\nnow ts:  {time}\n");
    for (times, [first, last]) in [
        (
            ["5155.000001", "5157.250000"],
            [5_155_000_001_500, 5_157_250_000_500],
        ),
        (["77", "99"], [77, 99]),
    ] {
        fake.put("t/per_cpu/cpu0/stats", &stats(times[0]));
        fake.put("later", &stats(times[1]));
        let before = now();
        fake.recorded(&with(&[]), "sleep 0.2; cat ../later > per_cpu/cpu0/stats");
        let after = now();
        let clocks = fake.manifest("stackmap.data").clocks;
        let [begin, end] = [clocks.begin.unwrap(), clocks.end.unwrap()];
        assert_eq!([begin.trace, end.trace], [first, last]);
        for [one, other] in [
            [before, begin.realtime_ns],
            [begin.realtime_ns + 200_000_000, end.realtime_ns],
            [end.realtime_ns, after],
            [begin.monotonic_ns + 200_000_000, end.monotonic_ns],
        ] {
            assert!(one <= other, "{one} {other}");
        }
        assert!(begin.error_ns < 1_000_000_000 && end.error_ns > 0);
        let middle = clocks.realtime(first + (last - first) / 2, false).unwrap();
        assert!(begin.realtime_ns < middle && middle < end.realtime_ns);
    }
}

fn manifest(fake: &Fake) -> Value {
    let output = fake.stackmap(&["export", "--format", "json"]).output();
    let json: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    json["manifest"].clone()
}

fn shown(fake: &Fake, command: &str) -> String {
    let output = fake.stackmap(&[command, "stackmap.data"]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_capture_says_where_it_is_from() {
    let fake = Fake::new();
    let labels = [
        "--label",
        "service=web \u{e9}",
        "--label",
        "a.b=",
        "--label",
        "service=db",
    ];
    fake.recorded(&with(&labels), "true");
    let manifest = manifest(&fake);
    assert_eq!(manifest["host"], host());
    assert_eq!(
        manifest["labels"],
        serde_json::json!({"a.b": "", "service": "db"})
    );
    assert!(manifest["boot_id"].is_string() && manifest["anonymous"].is_null());
    let origin = format!("host: {}; labels: a.b=, service=db", host());
    let report = shown(&fake, "report");
    let head = report.lines().nth(1).unwrap();
    assert!(
        head.starts_with(&format!("{origin}; events: kmem:kmalloc; command: sh ")),
        "{head}"
    );
    let stat = shown(&fake, "stat");
    assert!(stat.starts_with(&format!("{origin}\n\n")), "{stat}");

    // What else may stand in a capture is shown as a text.
    let path = fake.path("stackmap.data");
    let hostile = |text: String| text.replace("\"db\"", "\"d\\u001b[31m\\nb\"");
    super::fake::rewrite(&path, "manifest.json", hostile);
    assert!(shown(&fake, "report").contains("labels: a.b=, service=d\u{fffd}[31m\u{fffd}b; "));
    assert!(!shown(&fake, "stat").contains('\u{1b}'));
}

#[test]
fn labels_that_are_none_are_refused() {
    let fake = Fake::new();
    let before = fake.state();
    for (label, says) in [
        ("web", "a label is NAME=VALUE: service=web"),
        ("A=b", "the name of a label has 1 to 64 characters"),
        ("a=\u{7}", "the value of a label has at most 256 bytes"),
    ] {
        let (output, text) = fake.record(&with(&["--label", label]), "true");
        assert_eq!(output.status.code(), Some(2));
        assert!(text.contains(says), "{text}");
    }
    let names: Vec<_> = (0..65).map(|number| format!("n{number}=x")).collect();
    let many: Vec<_> = names.iter().flat_map(|name| ["--label", name]).collect();
    let (output, text) = fake.record(&with(&many), "true");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("a recording has at most 64 labels, not 65"),
        "{text}"
    );
    assert_eq!(fake.state(), before);
}

#[test]
fn an_anonymous_capture_does_not_say_whose_it_is() {
    let fake = Fake::new();
    fs::write(fake.path("t/saved_cmdlines"), "1 ann-secret\n").unwrap();
    fake.put("t/printk_formats", "0xffffffff81000000 : \"ann secret\"\n");
    fake.put("t/set_event_pid", "12\n34\n");
    fs::write(fake.path("ann"), "#!/bin/sh\ntrue\n").unwrap();
    let arguments = ["--anonymous", "--label", "service=web"];
    let script = format!("true; # {} ann secret", host());
    fake.recorded(&with(&arguments), &script);
    let manifest = manifest(&fake);
    for (key, want) in [
        ("host", Value::Null),
        ("boot_id", Value::Null),
        ("anonymous", true.into()),
        ("no_args", true.into()),
        ("labels", serde_json::json!({"service": "web"})),
        ("put_aside", serde_json::json!({"set_event_pid": ""})),
    ] {
        assert_eq!(manifest[key], want, "{key}");
    }
    assert_eq!(manifest["recorded"]["command"], serde_json::json!(["sh"]));
    assert!(manifest["build_id"].is_string() || manifest["build_id"].is_null());
    let mut all = String::new();
    super::fake::each(&fake.path("stackmap.data"), |name, content| {
        all.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(&content)));
    });
    assert!(
        all.contains("manifest.json: ") && all.contains("task-1"),
        "{all}"
    );
    for gone in ["ann", "secret", "12\\n34"] {
        assert!(!all.contains(gone), "{gone}: {all}");
    }
    let report = shown(&fake, "report");
    assert!(
        report.contains("\nlabels: service=web; events: "),
        "{report}"
    );
    let output = fake
        .stackmap(&["report", "--by", "comm", "stackmap.data"])
        .output();
    let report = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(report.contains("task-1: 1 event"), "{report}");
}
