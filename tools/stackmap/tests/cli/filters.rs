// SPDX-License-Identifier: MIT OR Apache-2.0

//! Filters by stacks: what is kept of captures, compared with the events that an export of everything has.
//! `totals.rs` does so for the other filters. `data/golden/filters.txt` has what is said if nothing is kept.

use super::{
    made::{bin, capture, Text},
    tool::{counts, events, json, run, stdout, Dir},
};
use serde_json::Value;
use stackmap::capture::Manifest;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Returns all of a capture, and of how it is shown, which is exported once.
pub(crate) fn all(arguments: &'static str) -> Arc<Value> {
    static ALL: Mutex<BTreeMap<&str, Arc<Value>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap();
    let value = all.entry(arguments);
    let value = value.or_insert_with(|| Arc::new(json(arguments)));
    value.clone()
}

/// How many events are in the first line of a report, of how many.
fn reported(filter: &str, file: &str) -> (usize, usize) {
    let ran = run(format!("report {file} {filter}"));
    if ran.stdout.is_empty() {
        ran.failed(2, "none of ");
        return (0, 0);
    }
    let text = ran.well().text();
    let line = text.lines().nth(2).unwrap();
    let words: Vec<_> = line.split(' ').collect();
    assert!(words[1] == "of" && words[3].starts_with("event"), "{line}");
    (words[0].parse().unwrap(), words[2].parse().unwrap())
}

/// Whether a frame of the event's stacks has such a function.
fn on_stack(export: &Value, event: &Value, is: &dyn Fn(&str) -> bool) -> bool {
    let find = |stacks: &str, id: &Value| {
        let stacks = export[stacks].as_array()?;
        let stack = stacks.iter().find(|stack| stack["id"] == *id)?;
        let mut frames = stack["frames"].as_array()?.iter();
        Some(frames.any(|frame| frame["function"].as_str().is_some_and(is)))
    };
    let whole = event["frames"].as_array();
    let name = |frame: &Value| {
        let frame = frame.as_str().unwrap();
        frame.split(['+', ' ']).next().unwrap().to_owned()
    };
    whole.is_some_and(|frames| frames.iter().any(|frame| is(&name(frame))))
        || find("stacks", &event["stack"]).unwrap_or(false)
        || find("user_stacks", &event["user_stack"]).unwrap_or(false)
}

#[test]
fn stacks_are_matched_by_their_functions() {
    let is_syscall = |name: &str| name == "do_syscall_64";
    for file in "before.data full.data function.data mixed.data user.data".split(' ') {
        let all = all(file);
        let keeps = |filter: &str, is: &dyn Fn(&str) -> bool| {
            let want = events(&all).iter();
            let want: Vec<_> = want.filter(|event| on_stack(&all, event, is)).collect();
            let nr = want.len();
            let of = if nr == 0 { 0 } else { events(&all).len() };
            assert_eq!(reported(filter, file), (nr, of), "{file} {filter}");
            if nr > 0 {
                let got = json(format!("{filter} {file}"));
                assert!(events(&got).iter().eq(want), "{file} {filter}");
            }
            nr
        };
        keeps("--stack ^vfs_ --stack ^handle_mm_fault$", &|name| {
            name.starts_with("vfs_") || name == "handle_mm_fault"
        });
        keeps("--stack (?i)^EXT4_read.*r$", &|name| {
            name.starts_with("ext4_read") && name.ends_with('r')
        });
        let kept = keeps("--stack ^do_syscall_64$", &is_syscall);
        let others = events(&all).iter();
        let others = others.filter(|event| !on_stack(&all, event, &is_syscall));
        assert!(kept > 0);
        assert_eq!(kept + others.count(), events(&all).len());
    }
    // What a report shows besides: module and file, and code without a name. Only what is shown is compared.
    let user = stdout("folded --user user.data");
    let known = user.lines().filter(|line| line.contains("known+0x"));
    let known = counts(&known.collect::<Vec<_>>().join("\n")).sum::<u64>() as usize;
    assert!(known > 0);
    for (filter, file, nr) in [
        (r"--stack 'ext4_readdir\+0x.* \[ext4\]$'", "before.data", 97),
        (r"--stack ^known\+0x", "user.data", known),
        (r"--user --stack ^known\+0x", "user.data", known),
        (r"--kernel --stack ^known\+0x", "user.data", 0),
        ("--user --stack ^do_syscall_64$", "user.data", 0),
        ("--kernel --stack raw_event", "user.data", 0),
    ] {
        assert_eq!(reported(filter, file).0, nr, "{filter}");
    }
}

#[test]
fn notes_count_what_is_kept_but_for_losses() {
    let note = |filter: &str, end: &str| {
        let text = stdout(format!("report --top 0 {filter}"));
        let line = text.lines().find(|line| line.ends_with(end));
        line.unwrap_or_default().to_owned()
    };
    let full = |filter: &str| note(&format!("full.data {filter}"), "a full stack");
    assert_eq!(full(""), "note: 28 events have a full stack");
    let export = json("--cpu 0 full.data");
    let has_frames = |event: &&Value| event["frames"].is_array();
    let nr = events(&export).iter().filter(has_frames).count();
    assert!(nr > 0 && nr < 28);
    let want = format!("note: {nr} events have a full stack");
    assert_eq!(full("--cpu 0"), want);
    let lost = "1658 records overwritten in the ring buffer before they were read: use a larger \
                buffer (record -b)";
    assert!(note("--cpu 1 overwritten.data", lost).starts_with("WARNING: "));
    // User stacks.
    let want =
        "15 of 34 events, 10 different stacks; user stacks: 15 bound, 0 pending, 0 lost, 0 not \
                kept, 0 without";
    for filter in ["--comm known", "--comm known --stack ''"] {
        let text = stdout(format!("report user.data {filter}"));
        assert!(text.contains(want), "{filter}: {text}");
    }
}

#[test]
fn what_tracing_itself_causes_is_hidden_and_counted() {
    let kallsyms =
        b"ffffffff81000000 T krealloc\nffffffff81000100 T work\nffffffff81000200 T _end\n\
                     ffffffffc0000000 t find\t[stackmap]\nffffffffc0000100 t end\t[stackmap]\n";
    let [krealloc, work, find] = [
        0xffff_ffff_8100_0010,
        0xffff_ffff_8100_0110,
        0xffff_ffff_c000_0010,
    ];
    let trace = "\
        prog-7 (7) [000] .... 1.000001: a: x\n\
        prog-7 (7) [000] .... 1.000002: <stack_id 1>\n\
        prog-7 (7) [000] .... 1.000003: a: x\n\
        prog-7 (7) [000] .... 1.000004: <stack_id 2>\n\
        prog-7 (7) [000] .... 1.000005: a: x\n\
        prog-7 (7) [000] .... 1.000006: <stack trace> ffffffff81000010 ffffffffc0000010\n\
        stackmap-9 (9) [000] .... 1.000007: a: x\n\
        stackmap-10 (9) [000] .... 1.000008: a: x\n";
    let text = Text {
        trace,
        stack_map_bin: &bin(
            None,
            &[(1, &[krealloc, find, work]), (2, &[krealloc, work])],
        ),
        kallsyms,
    };
    let manifest = Manifest {
        recorder: vec![9],
        ..Manifest::default()
    };
    let dir = Dir::new();
    let path = dir.at("own.data");
    capture(&text, &manifest).write(&path);
    for (options, nr, said) in [
        (
            "",
            1,
            "note: not shown: 4 events that tracing itself caused (--plumbing shows them)",
        ),
        ("--plumbing", 5, ""),
        (
            "--comm stackmap",
            0,
            "not shown: 2 events that tracing itself caused",
        ),
        (
            "--comm prog --user",
            1,
            "not shown: 2 events that tracing itself caused",
        ),
    ] {
        let ran = run(format!("folded {options} {path}")).well();
        assert!(ran.stderr.contains(said), "{options}: {}", ran.stderr);
        assert_eq!(ran.stderr.contains("tracing itself"), !said.is_empty());
        assert_eq!(counts(&ran.text()).sum::<u64>(), nr, "{options}");
        assert_eq!(events(&json(format!("{options} {path}"))).len() as u64, nr);
        let report = stdout(format!("report {options} {path}"));
        let begin = report.lines().nth(2).unwrap();
        assert!(begin.starts_with(&nr.to_string()), "{report}");
    }
}

#[test]
fn what_interrupts_tracing_is_not_caused_by_it() {
    let kallsyms = b"ffffffff81000000 T work\nffffffff81000100 T _end\n\
                     ffffffffc0000000 t find\t[stackmap]\nffffffffc0000100 t end\t[stackmap]\n";
    let [work, find] = [0xffff_ffff_8100_0010, 0xffff_ffff_c000_0010];
    // A softirq may run on the stack of the task, without an entry.
    let events = "\
        prog-7 (7) [000] FLAGS 1.000001: a: x\n\
        prog-7 (7) [000] FLAGS 1.000002: <stack_id 1>\n\
        prog-7 (7) [000] FLAGS 1.000003: a: x\n\
        prog-7 (7) [000] FLAGS 1.000004: <stack trace> ffffffff81000010 ffffffffc0000010\n\
        stackmap-9 (9) [000] FLAGS 1.000005: a: x\n";
    let manifest = Manifest {
        recorder: vec![9],
        ..Manifest::default()
    };
    let dir = Dir::new();
    for (flags, nr) in [("....", 0), ("..h.", 3), ("..s.", 3), ("..Z.", 3)] {
        let text = Text {
            trace: &events.replace("FLAGS", flags),
            stack_map_bin: &bin(None, &[(1, &[work, find])]),
            kallsyms,
        };
        let path = dir.at(&format!("{}.data", &flags[2..3]));
        capture(&text, &manifest).write(&path);
        let report = stdout(format!("report {path}"));
        let begin = report.lines().nth(2).unwrap();
        assert!(
            begin.starts_with(&format!("{nr} event")),
            "{flags}: {report}"
        );
    }
}
