// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a capture says of the machine and of the time, and what it does not say if it is to be anonymous.

use super::fake::{Fake, KMALLOC, STATS};
use serde_json::{json, Value};
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
    fake.recorded(KMALLOC, "true");
    let clocks = fake.manifest().clocks;
    assert_eq!((clocks.begin, clocks.end), (None, None));
    assert!(!exported(&fake).to_string().contains("clocks"));

    let stats = |time: &str| format!("{STATS}oldest event ts:     0.1\nnow ts:  {time}\n");
    for (times, [first, last]) in [
        (
            ["5155.000001", "5157.250000"],
            [5_155_000_001_500, 5_157_250_000_500],
        ),
        (["77", "99"], [77, 99]),
    ] {
        fake.put("i/per_cpu/cpu0/stats", stats(times[0]));
        fake.put("later", stats(times[1]));
        let before = now();
        fake.recorded(KMALLOC, "sleep 0.2; cat $out/later > per_cpu/cpu0/stats");
        let after = now();
        let clocks = fake.manifest().clocks;
        let [begin, end] = [clocks.begin.unwrap(), clocks.end.unwrap()];
        assert_eq!([begin.trace, end.trace], [first, last]);
        for [one, other] in [
            [before, begin.realtime_ns],
            [begin.realtime_ns + 200_000_000, end.realtime_ns],
            [end.realtime_ns, after],
            [begin.monotonic_ns + 200_000_000, end.monotonic_ns],
            [end.monotonic_ns, begin.realtime_ns],
        ] {
            assert!(one <= other, "{one} {other}");
        }
        assert!(begin.error_ns < 1_000_000_000 && end.error_ns > 0);
        let middle = clocks.realtime(first + (last - first) / 2, false).unwrap();
        assert!(begin.realtime_ns < middle && middle < end.realtime_ns);
    }
}

/// Returns what an export says of the recording.
fn exported(fake: &Fake) -> Value {
    fake.export("stackmap.data")["manifest"].clone()
}

#[test]
fn a_capture_says_where_it_is_from() {
    let fake = Fake::new();
    let labels = "--label 'service=web \u{e9}' --label a.b= --label service=db";
    fake.recorded(&format!("{KMALLOC} {labels}"), "true");
    let manifest = exported(&fake);
    assert_eq!(manifest["host"], host());
    assert_eq!(manifest["labels"], json!({"a.b": "", "service": "db"}));
    assert!(manifest["boot_id"].is_string() && manifest["anonymous"].is_null());
    let origin = format!("host: {}; labels: a.b=, service=db", host());
    let report = fake.ran("report");
    let head = format!("\n{origin}; events: kmem:kmalloc; command: sh ");
    assert!(report.contains(&head), "{report}");
    let stat = fake.ran("stat stackmap.data");
    assert!(stat.starts_with(&format!("{origin}\n\n")), "{stat}");

    // What else may stand in a capture is shown as a text.
    let mut capture = fake.capture("stackmap.data");
    let labels = &mut capture.manifest.labels;
    labels.insert("service".to_owned(), "d\u{1b}[31m\nb".to_owned());
    capture.write(fake.path("stackmap.data"));
    let report = fake.ran("report");
    assert!(report.contains("labels: a.b=, service=d\u{fffd}[31m\u{fffd}b; "));
    assert!(!fake.ran("stat stackmap.data").contains('\u{1b}'));
}

#[test]
fn an_anonymous_capture_does_not_say_whose_it_is() {
    let fake = Fake::new();
    fake.put("t/saved_cmdlines", "1 ann-secret\n");
    fake.put("t/printk_formats", "0xffffffff81000000 : \"ann secret\"\n");
    fake.put("ann", "#!/bin/sh\ntrue\n");
    let arguments = format!("{KMALLOC} --anonymous --label service=web");
    fake.recorded(&arguments, &format!("true; # {} ann secret", host()));
    let manifest = exported(&fake);
    for (key, want) in [
        ("host", Value::Null),
        ("boot_id", Value::Null),
        ("anonymous", true.into()),
        ("no_args", true.into()),
        ("labels", json!({"service": "web"})),
    ] {
        assert_eq!(manifest[key], want, "{key}");
    }
    assert_eq!(manifest["recorded"]["command"], json!(["sh"]));
    assert!(manifest["build_id"].is_string() || manifest["build_id"].is_null());
    let members = fake.capture("stackmap.data").members.into_iter();
    let texts = members.map(|(name, text)| format!("{name}: {}\n", String::from_utf8_lossy(&text)));
    let all: String = texts.collect();
    assert!(
        all.contains("manifest.json: ") && all.contains("task-1"),
        "{all}"
    );
    for gone in ["ann", "secret"] {
        assert!(!all.contains(gone), "{gone}: {all}");
    }
    let report = fake.ran("report --by comm");
    assert!(
        report.contains("\nlabels: service=web; events: "),
        "{report}"
    );
    assert!(report.contains("task-1: 1 event"), "{report}");
}
