// SPDX-License-Identifier: MIT OR Apache-2.0

//! Filters on reading: what is kept of captures, by every command, compared with the events that an
//! export of everything has.

mod common;

use common::{run, stderr, stdout};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// A capture as JSON.
fn export(filter: &[&str], file: &str) -> Value {
    let text = stdout(&[&["export", "--format", "json", file], filter].concat());
    serde_json::from_str(&text).unwrap()
}

/// All of a capture, which is exported once.
fn all(file: &'static str) -> Arc<Value> {
    static ALL: Mutex<BTreeMap<&str, Arc<Value>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap();
    let value = all
        .entry(file)
        .or_insert_with(|| Arc::new(export(&[], file)));
    value.clone()
}

fn events(export: &Value) -> &Vec<Value> {
    export["events"].as_array().unwrap()
}

/// How many events are in the first line of a report, of how many.
fn reported(filter: &[&str], file: &str) -> (usize, usize) {
    let text = stdout(&[&["report", file], filter].concat());
    if text.is_empty() {
        return (0, 0);
    }
    let line = text.lines().nth(2).unwrap();
    let words: Vec<_> = line.split(' ').collect();
    assert!(words[1] == "of" && words[3].starts_with("event"), "{line}");
    (words[0].parse().unwrap(), words[2].parse().unwrap())
}

/// How many events there are in folded stacks.
fn folded(filter: &[&str], file: &str) -> usize {
    let text = stdout(&[&["folded", file], filter].concat());
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap();
    text.lines().map(count).sum()
}

/// The captures: texts, binary ones, with full stacks, with user stacks.
const FILES: [&str; 7] = [
    "before.data",
    "full.data",
    "function.data",
    "overwritten.data",
    "mixed.data",
    "attack.data",
    "user.data",
];

fn time(event: &Value) -> f64 {
    event["time"].as_str().unwrap().parse().unwrap()
}

/// Every command keeps the events that `wanted` says.
fn assert_keeps(filter: &[&str], file: &'static str, wanted: impl Fn(&Value) -> bool) -> usize {
    let all = all(file);
    let want: Vec<_> = events(&all).iter().filter(|event| wanted(event)).collect();
    let got = export(filter, file);
    let got: Vec<_> = events(&got).iter().collect();
    assert_eq!(got, want, "{file} {filter:?}");
    let nr = want.len();
    let of = if nr == 0 { 0 } else { events(&all).len() };
    assert_eq!(reported(filter, file), (nr, of), "{file} {filter:?}");
    assert_eq!(folded(filter, file), nr, "{file} {filter:?}");
    nr
}

#[test]
fn tasks_are_kept_by_name_and_by_number() {
    for file in FILES {
        let is = |event: &Value, comm: &str| event["comm"] == comm;
        assert_keeps(&["--comm", "ls"], file, |event| is(event, "ls"));
        assert_keeps(&["--comm", "ls", "--comm", "<idle>"], file, |event| {
            is(event, "ls") || is(event, "<idle>")
        });
        assert_keeps(&["--comm", "k*0*"], file, |event| {
            let comm = event["comm"].as_str().unwrap();
            comm.starts_with('k') && comm[1..].contains('0')
        });
        let pids = [0, 15, 144, 166].map(Value::from);
        assert_keeps(&["--pid", "15,144", "--pid", "0,166"], file, |event| {
            pids.contains(&event["pid"])
        });
    }
    // Counted by hand.
    assert_eq!(reported(&["--comm", "ls"], "before.data"), (119, 200));
    assert_eq!(reported(&["--pid", "144"], "user.data"), (4, 41));
}

#[test]
fn cpus_and_times_part_a_capture() {
    for file in FILES {
        let all = all(file);
        let all = events(&all);
        let on = |cpus: &str, want: &dyn Fn(u64) -> bool| {
            assert_keeps(&["--cpu", cpus], file, |event| {
                want(event["cpu"].as_u64().unwrap())
            })
        };
        let parts = on("0", &|cpu| cpu == 0) + on("1-5,7", &|cpu| cpu != 0);
        assert_eq!(parts, all.len());

        // From an event on, before it, and at it.
        let event = &all[all.len() / 2];
        let (at, text) = (time(event), event["time"].as_str().unwrap());
        let range = |from: &str, to: &str, want: &dyn Fn(f64) -> bool| {
            let range = format!("{from}..{to}");
            assert_keeps(&["--time", &range], file, |event| want(time(event)))
        };
        let later = range(text, "", &|time| time >= at);
        let earlier = range("", text, &|time| time <= at);
        let now = range(text, text, &|time| time == at);
        assert!(now > 0);
        assert_eq!(earlier + later - now, all.len());
    }
    let both = ["--time", "..8.770009", "--time", "8.885910.."];
    let kept = assert_keeps(&both, "before.data", |event| {
        time(event) <= 8.770009 || time(event) >= 8.885910
    });
    assert!(kept > 1);
}

#[test]
fn events_are_kept_by_name_and_system() {
    let named = |event: &Value, begin: &str| event["event"].as_str().unwrap().starts_with(begin);
    for file in FILES {
        assert_keeps(&["--event", "kmalloc"], file, |event| {
            event["event"] == "kmalloc"
        });
        assert_keeps(&["--event", "sched_*"], file, |event| {
            named(event, "sched_")
        });
        let (sys, sched) = ("sys_enter_*", "s?hed:sched_[a-s]*");
        assert_keeps(&["--event", sys, "--event", sched], file, |event| {
            named(event, "sys_enter_")
                || (named(event, "sched_") && !named(event, "sched_w") && !named(event, "sched_u"))
        });
    }
    // By system: of a text only if all events were recorded by their full names.
    let mixed = ["kmem:", "sched:", "timer:", "irq:", "syscalls:*"].map(|system| {
        let (nr, of) = reported(&["--event", system], "mixed.data");
        assert_eq!(of, 2788);
        nr
    });
    assert_eq!(mixed.iter().sum::<usize>(), 2788);
    assert_eq!(mixed[..2], [1366, 273]);
    for system in ["sched", "sched:"] {
        let kept = assert_keeps(&["--event", system], "before.data", |event| {
            named(event, "sched_")
        });
        assert_eq!(kept, 95);
    }
    // Calls.
    for name in ["vfs_read", "vfs_read()", "ftrace:vfs_*"] {
        assert_eq!(
            assert_keeps(&["--event", name], "function.data", |event| named(
                event, "vfs_"
            )),
            6
        );
    }
    assert_eq!(reported(&["--event", "ftrace"], "function.data"), (9, 9));
}

/// Whether a frame of the event's stacks has such a function.
fn on_stack<'a>(export: &'a Value, event: &'a Value, is: &dyn Fn(&str) -> bool) -> bool {
    let find = |stacks: &str, id: &Value| {
        let stacks = export[stacks].as_array()?;
        let stack = stacks.iter().find(|stack| stack["id"] == *id)?;
        let frames = stack["frames"].as_array()?.iter();
        Some(
            frames
                .filter_map(|frame| frame["function"].as_str())
                .any(is),
        )
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
    let files = [
        "before.data",
        "full.data",
        "function.data",
        "mixed.data",
        "user.data",
    ];
    for file in files {
        let all = all(file);
        let mut parts = [0; 2];
        for (regexes, is) in [
            (
                &["^do_syscall_64$"][..],
                &(|name: &str| name == "do_syscall_64") as &dyn Fn(&str) -> bool,
            ),
            (&["^vfs_", "^handle_mm_fault$"], &|name| {
                name.starts_with("vfs_") || name == "handle_mm_fault"
            }),
            (&["(?i)^EXT4_read.*r$"], &|name| {
                name.starts_with("ext4_read") && name.ends_with('r')
            }),
        ] {
            let filter: Vec<_> = regexes
                .iter()
                .flat_map(|regex| ["--stack", *regex])
                .collect();
            let kept = assert_keeps(&filter, file, |event| on_stack(&all, event, is));
            if regexes.len() == 1 && regexes[0].contains("syscall") {
                parts[0] = kept;
                parts[1] = events(&all)
                    .iter()
                    .filter(|event| !on_stack(&all, event, is))
                    .count();
            }
        }
        assert!(parts[0] > 0);
        assert_eq!(parts.iter().sum::<usize>(), events(&all).len());
    }
    // What a report shows besides: module and file, and code without a name.
    assert_eq!(
        reported(&["--stack", r"ext4_readdir\+0x.* \[ext4\]$"], "before.data"),
        (23, 200)
    );
    let user = stdout(&["folded", "--user", "user.data"]);
    let known = user.lines().filter(|line| line.contains("known+0x"));
    let known: usize = known
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap())
        .sum();
    assert!(known > 0);
    assert_eq!(
        reported(&["--stack", r"^known\+0x"], "user.data"),
        (known, 41)
    );
    // Only what is shown is compared.
    assert_eq!(
        reported(&["--user", "--stack", r"^known\+0x"], "user.data").0,
        known
    );
    assert_eq!(
        reported(&["--kernel", "--stack", r"^known\+0x"], "user.data").0,
        0
    );
    assert_eq!(
        reported(&["--user", "--stack", "^do_syscall_64$"], "user.data").0,
        0
    );
    assert_eq!(
        reported(&["--kernel", "--stack", "raw_event"], "user.data").0,
        0
    );
}

#[test]
fn options_are_combined() {
    let filter = [
        "--comm",
        "known",
        "--event",
        "sched_wakeup",
        "--stack",
        r"known\+0x",
        "--cpu",
        "0-1",
    ];
    let all = all("user.data");
    let on_stack = export(&["--stack", r"known\+0x"], "user.data");
    let kept = assert_keeps(&filter, "user.data", |event| {
        event["comm"] == "known"
            && event["event"] == "sched_wakeup"
            && events(&on_stack).contains(event)
    });
    assert!(kept > 0 && kept < events(&all).len());
}

#[test]
fn notes_count_what_is_kept_but_for_losses() {
    let note = |filter: &[&str], file: &str, end: &str| {
        let text = stdout(&[&["report", "--top", "0", file], filter].concat());
        let line = text
            .lines()
            .find(|line| line.ends_with(end))
            .map(str::to_owned);
        line.unwrap_or_default()
    };
    let full = |filter: &[&str]| note(filter, "full.data", "a full stack");
    assert_eq!(full(&[]), "note: 23 events have a full stack");
    let export = export(&["--cpu", "0"], "full.data");
    let nr = events(&export)
        .iter()
        .filter(|event| event["frames"].is_array())
        .count();
    assert!(nr > 0 && nr < 23);
    assert_eq!(
        full(&["--cpu", "0"]),
        format!("note: {nr} events have a full stack")
    );
    let lost = "1986 records overwritten in the ring buffer before they were read: use a larger \
                buffer (record -b)";
    assert!(note(&["--cpu", "1"], "overwritten.data", lost).starts_with("WARNING: "));
    // User stacks, read in one pass and in two.
    for filter in [
        &["--comm", "known"][..],
        &["--comm", "known", "--stack", ""],
    ] {
        let text = stdout(&[&["report", "user.data"], filter].concat());
        assert!(
            text.contains(
                "24 of 41 events, 19 different stacks; user stacks: 24 bound, 0 pending, 0 \
                           lost, 0 not kept, 0 without"
            ),
            "{filter:?}: {text}"
        );
    }
}

#[test]
fn a_filter_that_keeps_nothing_says_what_there_is() {
    let none = "note: none of 200 events matches --comm; tasks: <idle>, busybox, ext4lazyinit, \
                kdamond.0, kworker/0:1, kworker/0:1H, kworker/1:1, ls, rcu_preempt, stackmap\n";
    for command in [
        &["report"][..],
        &["folded"],
        &["export", "--format", "json", "-o", "/dev/null"],
    ] {
        let output = run(&[command, &["--comm", "nosuch", "before.data"]].concat());
        assert!(output.status.success());
        assert!(output.stdout.is_empty(), "{command:?}");
        assert!(
            stderr(&output).starts_with(none),
            "{command:?}: {}",
            stderr(&output)
        );
    }
    let output = run(&["flame", "-o", "-", "--comm", "nosuch", "before.data"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.starts_with(none) && text.contains("no stacks to draw"),
        "{text}"
    );
    let output = run(&["diff", "--comm", "nosuch", "before.data", "after.data"]);
    assert_eq!(
        stderr(&output)
            .matches("matches --comm; tasks: <idle>, ")
            .count(),
        2
    );
    let says = |filter: &[&str], file: &str| stderr(&run(&[&["report", file], filter].concat()));
    for (filter, what) in [
        (
            &["--pid", "7"][..],
            "--pid; pids: 0, 15, 141, 142, 143, 144",
        ),
        (&["--cpu", "9"], "--cpu; CPUs: 0, 1"),
        (&["--time", "9.."], "--time; times: 5.069726 to 5.241498"),
        (&["--stack", "nosuch"], "--stack"),
        (
            &["--event", "kmem:"],
            "--event; events: sched:sched_process_exit, sched:sched_wakeup, \
                                 syscalls:sys_enter_getpriority",
        ),
    ] {
        let want = format!("note: none of 41 events matches {what}\n");
        let text = says(filter, "user.data");
        assert!(text.starts_with(&want), "{text}");
    }
}

#[test]
fn a_text_without_systems_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.data");
    let mut zip = zip::ZipArchive::new(fs::File::open(data("before.data")).unwrap()).unwrap();
    let mut out = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    for nr in 0..zip.len() {
        let mut member = zip.by_index(nr).unwrap();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut member, &mut content).unwrap();
        let name = member.name().unwrap().into_owned();
        if name == "manifest.json" {
            let text = String::from_utf8(content).unwrap();
            content = text.replace("kmem:kmalloc", "kmem:*").into_bytes();
        }
        let options = zip::write::SimpleFileOptions::default();
        out.start_file(name, options).unwrap();
        std::io::Write::write_all(&mut out, &content).unwrap();
    }
    out.finish().unwrap();
    let path = path.to_str().unwrap();
    let note =
        "note: the text of a trace has no systems of events: --event compares the names alone";
    for (filter, kept, is_said) in [
        ("sched:", 200, true),
        ("sched:kmalloc", 105, true),
        ("kmalloc", 105, false),
    ] {
        assert_eq!(reported(&["--event", filter], path), (kept, 200));
        let text = stdout(&["report", "--event", filter, path]);
        assert_eq!(text.contains(note), is_said, "{filter}");
    }
}

#[test]
fn wrong_values_name_their_option() {
    for (option, value, says) in [
        ("--cpu", "3-0", "ends before it begins"),
        ("--cpu", "1,", "not the number of a CPU"),
        ("--time", "9..8", "ends before it begins"),
        ("--time", "..", "neither a beginning nor an end"),
        ("--time", "+1..", "not a time"),
        ("--stack", "(", "unclosed group"),
        ("--event", "sched:[a", "not a valid pattern"),
        ("--pid", "ls", "invalid digit"),
    ] {
        for command in ["report", "folded", "export"] {
            let output = run(&[command, option, value, "before.data"]);
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{text}");
            assert!(
                text.contains(&format!("'{value}' for '{option} ")) || value.ends_with(','),
                "{text}"
            );
            assert!(text.contains(option) && text.contains(says), "{text}");
        }
    }
    // There are no events in a map.
    for command in [
        &["folded"][..],
        &["flame", "-o", "-"],
        &["export", "--format", "pprof"],
    ] {
        let output = run(&[command, &["--cpu", "0", "stack_map_bin"]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("has no events that could be filtered"));
        let output = run(&[command, &["--map", "--cpu", "0", "before.data"]].concat());
        assert_eq!(output.status.code(), Some(2));
    }
    let output = run(&["diff", "--cpu", "0", "before.data", "stack_map_bin"]);
    assert!(stderr(&output).contains("has no events that could be filtered"));
}

#[test]
fn a_diff_filters_both() {
    let text = stdout(&["diff", "--comm", "ls", "before.data", "after.data"]);
    let [before, after] = ["before.data", "after.data"].map(|file| {
        let (kept, of) = reported(&["--comm", "ls"], file);
        assert!(0 < kept && kept < of);
        kept
    });
    assert!(
        text.contains(&format!("before: before.data, {before} events\n")),
        "{text}"
    );
    assert!(
        text.contains(&format!("after: after.data, {after} events\n")),
        "{text}"
    );
}

#[test]
fn flame_graphs_and_profiles_are_of_what_is_kept() {
    let svg = stdout(&["flame", "-o", "-", "--comm", "ls", "before.data"]);
    assert!(svg.contains("119 of 200 events in 0.122 s"));
    assert!(!svg.contains("<title>schedule_idle ("));
    let all = stdout(&["flame", "-o", "-", "before.data"]);
    assert!(all.contains("200 events in 0.122 s") && all.contains("<title>schedule_idle ("));
    let firefox = stdout(&[
        "export",
        "--format",
        "firefox",
        "--comm",
        "ls",
        "before.data",
    ]);
    let firefox: Value = serde_json::from_str(&firefox).unwrap();
    let threads = firefox["threads"].as_array().unwrap();
    let names: Vec<_> = threads.iter().map(|thread| &thread["name"]).collect();
    assert_eq!(names, ["ls"]);
}

#[test]
fn stacks_of_a_map_are_kept_by_their_frames() {
    let stacks = |text: &str| -> Vec<String> {
        let stacks = text.split_terminator("\n\n");
        stacks.map(str::to_owned).collect()
    };
    for (file, user) in [
        ("before.data", false),
        ("user.data", false),
        ("user.data", true),
    ] {
        let dump = if user {
            &["dump", "--user"][..]
        } else {
            &["dump"]
        };
        let all = stacks(&stdout(&[dump, &[file]].concat()));
        let regex = if user { "known" } else { "do_syscall_64" };
        let want: Vec<_> = all
            .iter()
            .filter(|stack| stack.contains(regex))
            .cloned()
            .collect();
        assert!(!want.is_empty() && want.len() < all.len());
        let got = stacks(&stdout(&[dump, &["--stack", regex, file]].concat()));
        assert_eq!(got, want, "{file}");
    }
    let output = run(&["dump", "--stack", "nosuch", "before.data"]);
    assert!(output.stdout.is_empty());
    let text = stderr(&output);
    assert!(
        text.starts_with("note: none of 63 stacks matches --stack\n"),
        "{text}"
    );
}

#[test]
fn groups_by_pid_are_named_as_in_a_trace() {
    let text = stdout(&["report", "--by", "pid", "--top", "0", "user.data"]);
    let all = all("user.data");
    let mut nr_groups = 0;
    for event in events(&all) {
        let task = format!("{}-{}", event["comm"].as_str().unwrap(), event["pid"]);
        let nr = events(&all).iter();
        let nr = nr.filter(|other| other["pid"] == event["pid"]).count();
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!(" {task} ")));
        let words: Vec<_> = row.unwrap().split_ascii_whitespace().collect();
        assert_eq!(words[1], nr.to_string(), "{task}");
        nr_groups += 1;
    }
    assert!(nr_groups > 3 && text.contains("\n comm-pid  "));
    let folded = stdout(&["folded", "--by", "pid", "user.data"]);
    assert!(
        folded.lines().any(|line| line.starts_with("known-144;")),
        "{folded}"
    );
}
