// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is outstanding and how long things take, compared with what follows from an export of all events, pair by
//! pair.

mod common;

use common::{run, stderr, stdout};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    fs,
};

/// The events of a capture in the order of their times, with addresses.
fn events() -> Vec<Value> {
    let all = stdout(&["export", "--format", "json", "--addresses", "mixed.data"]);
    let mut all: Value = serde_json::from_str(&all).unwrap();
    let mut events = all["events"].take().as_array().unwrap().clone();
    events.sort_by(|one, other| time(one).total_cmp(&time(other)));
    events
}

fn time(event: &Value) -> f64 {
    event["time"].as_str().unwrap().parse().unwrap()
}

fn number(event: &Value, field: &str) -> u64 {
    event["values"][field].as_u64().unwrap()
}

/// Rows of a table: the words of each by its first one.
fn rows(report: &str) -> BTreeMap<&str, Vec<&str>> {
    let table = report.split("\n\n").nth(1).unwrap();
    let rows = table.lines().skip(1).map(|line| {
        let mut words = line.split_whitespace();
        (words.next().unwrap(), words.collect())
    });
    rows.collect()
}

#[test]
fn what_is_not_freed_is_outstanding() {
    let mut objects = HashMap::new();
    let mut pages = HashMap::new();
    let events = events();
    for event in &events {
        let name = event["event"].as_str().unwrap();
        match name {
            "kmalloc" | "kmem_cache_alloc" => {
                objects.insert(number(event, "ptr"), (name, number(event, "bytes_alloc")));
            }
            "kfree" | "kmem_cache_free" => drop(objects.remove(&number(event, "ptr"))),
            "mm_page_alloc" => {
                let first = number(event, "pfn");
                pages
                    .extend((first..first + (1 << number(event, "order"))).map(|pfn| (pfn, first)));
            }
            "mm_page_free" => {
                let first = number(event, "pfn");
                let freed = first..first + (1 << number(event, "order"));
                pages.retain(|pfn, _| !freed.contains(pfn));
            }
            _ => {}
        }
    }
    let mut sums = BTreeMap::<&str, (usize, u64)>::new();
    for (name, bytes) in objects.values() {
        let sum = sums.entry(name).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes);
    }
    let mut firsts: Vec<_> = pages.values().collect();
    firsts.sort_unstable();
    firsts.dedup();
    sums.insert("mm_page_alloc", (firsts.len(), pages.len() as u64 * 4096));

    let report = stdout(&["leaks", "--top", "0", "mixed.data"]);
    let rows = rows(&report);
    assert_eq!(rows.len(), 3);
    for (name, (nr, bytes)) in &sums {
        assert!(*nr > 10);
        assert_eq!(
            rows[name][..2],
            [nr.to_string(), bytes.to_string()],
            "{name}"
        );
    }
    let all: u64 = sums.values().map(|(_, bytes)| bytes).sum();
    let head = report.lines().nth(2).unwrap();
    assert!(
        head.contains(&format!(" outstanding, {all} bytes; ")),
        "{head}"
    );
    let folded = stdout(&["leaks", "--folded", "-", "mixed.data"]);
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    assert_eq!(
        counts
            .map(|count| count.parse::<u64>().unwrap())
            .sum::<u64>(),
        all
    );
}

#[test]
fn allocations_are_filtered_and_frees_are_not() {
    let of = |filter: &[&str]| {
        let report = stdout(&[&["leaks", "--top", "0", "mixed.data"], filter].concat());
        let head = report.lines().nth(2).unwrap().to_owned();
        let words: Vec<_> = head.split(' ').collect();
        (
            words[0].parse::<u64>().unwrap(),
            words[2].parse::<u64>().unwrap(),
        )
    };
    let (left, all) = of(&[]);
    let [zero, one] = [of(&["--cpu", "0"]), of(&["--cpu", "1"])];
    assert_eq!((zero.0 + one.0, zero.1 + one.1), (left, all));
    assert!(zero.0 > 0 && one.0 > 0);
    let names = stdout(&["leaks", "--by", "name", "--top", "1", "mixed.data"]);
    assert!(rows(&names)["dentry"][..2] == ["2", "384"], "{names}");
    let inodes = stdout(&[
        "leaks",
        "--by",
        "stack",
        "--stack",
        "^proc_alloc_inode$",
        "--event",
        "kmem_cache_alloc",
        "mixed.data",
    ]);
    assert!(inodes.contains("\n#1: kmem_cache_alloc "), "{inodes}");
    let shown = inodes.matches("\n#").count();
    assert_eq!(
        inodes.matches(" proc_alloc_inode+").count(),
        shown,
        "{inodes}"
    );
}

#[test]
fn young_allocations_are_left_out() {
    let all = stdout(&["leaks", "--top", "0", "mixed.data"]);
    let old = stdout(&["leaks", "--older", "0.08", "--top", "0", "mixed.data"]);
    let of = |report: &str| {
        let head = report.lines().nth(2).unwrap();
        head.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let (all, old, said) = (of(&all), of(&old), old);
    assert!(old > 0 && old < all, "{said}");
    let note = format!("not counted: {} allocations of ", all - old);
    assert!(said.contains(&note), "{said}");
    assert!(said.contains(": younger than 80.0 ms (--older)"), "{said}");
    // The youngest of those that are left.
    for words in rows(&said).values() {
        let age: f64 = words[words.len() - 2].parse().unwrap();
        assert!(age >= 80.0 && words[words.len() - 1] == "ms", "{said}");
    }
}

#[test]
fn system_calls_take_as_long_as_their_events_say() {
    let mut open = HashMap::new();
    let mut times = BTreeMap::<String, Vec<f64>>::new();
    for event in &events() {
        let name = event["event"].as_str().unwrap();
        if let Some(call) = name.strip_prefix("sys_enter_") {
            open.insert((event["pid"].as_u64(), call.to_owned()), time(event));
        } else if let Some(call) = name.strip_prefix("sys_exit_") {
            let since = open.remove(&(event["pid"].as_u64(), call.to_owned()));
            if let Some(since) = since {
                let times = times.entry(format!("{call}()")).or_default();
                times.push((time(event) - since) * 1e6);
            }
        }
    }
    let report = stdout(&[
        "latency",
        "--event",
        "sys_enter_*",
        "--top",
        "0",
        "mixed.data",
    ]);
    let rows = rows(&report);
    assert!(times.len() > 20);
    assert_eq!(
        rows.keys().copied().collect::<Vec<_>>(),
        times.keys().collect::<Vec<_>>()
    );
    for (call, times) in &mut times {
        times.sort_by(f64::total_cmp);
        let row = &rows[&call[..]];
        assert_eq!(row[0], times.len().to_string(), "{call}");
        // Behind the share come pairs of a number and its unit.
        let shown = row[3..].chunks(2).map(|words| {
            let number: f64 = words[0].parse().unwrap();
            match words[1] {
                "us" => number,
                "ms" => number * 1e3,
                unit => panic!("{unit}"),
            }
        });
        let shown: Vec<f64> = shown.collect();
        let rank = |share: f64| times[(times.len() as f64 * share).ceil() as usize - 1];
        let average = times.iter().sum::<f64>() / times.len() as f64;
        let want = [average, rank(0.5), rank(0.9), rank(0.99), rank(1.0)];
        // The export has microseconds, and the table two digits at least.
        for (shown, want) in shown.iter().zip(want) {
            let off = (shown - want).abs();
            assert!(off <= 2.0 + want * 0.05, "{call}: {shown}, wanted {want}");
        }
    }
}

#[test]
fn groups_may_be_values_of_a_field() {
    let report = stdout(&[
        "latency",
        "--event",
        "softirq_entry",
        "--by",
        "vec",
        "--histogram",
        "--top",
        "0",
        "mixed.data",
    ]);
    let of_report = rows(&report);
    let events = events();
    let entries = |vec: u64| {
        let entries = events
            .iter()
            .filter(|event| event["event"] == "softirq_exit");
        entries.filter(|event| number(event, "vec") == vec).count()
    };
    // The kernel's numbers of them.
    for (vec, name) in [(1, "TIMER"), (7, "SCHED"), (9, "RCU")] {
        assert_eq!(of_report[name][0], entries(vec).to_string(), "{name}");
        let histogram = report.split(&format!("\n{name}:\n")).nth(1).unwrap();
        let lines = histogram.lines().take_while(|line| !line.is_empty());
        let counts = lines.map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words
                .iter()
                .rev()
                .find_map(|word| word.parse::<usize>().ok())
                .unwrap()
        });
        assert_eq!(counts.sum::<usize>(), entries(vec), "{name}: {report}");
    }
}

#[test]
fn pairs_can_be_chosen() {
    let report = stdout(&[
        "latency",
        "--from",
        "sched:sched_waking",
        "--to",
        "sched_switch",
        "--key",
        "pid=next_pid",
        "--top",
        "0",
        "mixed.data",
    ]);
    assert!(
        report.contains("\n sched_waking -> sched_switch "),
        "{report}"
    );
    let report = stdout(&[
        "leaks",
        "--from",
        "kmalloc",
        "--to",
        "kfree",
        "--key",
        "ptr",
        "--size",
        "bytes_req",
        "--top",
        "0",
        "mixed.data",
    ]);
    assert!(
        report.contains("13 of 93 allocations outstanding, 1424 bytes"),
        "{report}"
    );
    // A file that could not be opened is none that would be closed.
    let report = stdout(&[
        "leaks",
        "--from",
        "sys_exit_openat",
        "--to",
        "sys_enter_close",
        "--key",
        "ret=fd,common_pid",
        "mixed.data",
    ]);
    assert!(
        report.contains("1 of 3 allocations outstanding; "),
        "{report}"
    );
}

#[test]
fn what_is_missing_is_named() {
    for (arguments, want) in [
        (&["leaks", "before.data"][..], "it has no binary records"),
        (
            &["leaks", "user.data"],
            "it has none of the events that belong together\n  hint: stackmap record",
        ),
        (
            &["leaks", "attack.data"],
            "it has no last one of the events that belong together\n  hint: ",
        ),
        (
            &[
                "leaks",
                "--from",
                "kmalloc",
                "--to",
                "kfree",
                "--key",
                "nope",
                "mixed.data",
            ],
            "kfree has no nope; its fields with a number: call_site, ptr\n",
        ),
        (
            &[
                "latency",
                "--from",
                "kmalloc",
                "--to",
                "kfree",
                "--key",
                "ptr,common_tgid",
                "mixed.data",
            ],
            " has no common_tgid; ",
        ),
        (
            &[
                "leaks",
                "--from",
                "kmalloc",
                "--to",
                "kfree",
                "--key",
                "ptr",
                "--size",
                "nope",
                "mixed.data",
            ],
            "kmalloc has no nope; ",
        ),
        (
            &["leaks", "--from", "kmalloc", "mixed.data"],
            "--to <EVENT>",
        ),
        (
            &["leaks", "--from", "kmal*", "--to", "kfree", "mixed.data"],
            "not the name of an event",
        ),
        (&["latency", "--key", "ptr", "mixed.data"], "--from <EVENT>"),
        (
            &["leaks", "--size", "bytes_req", "mixed.data"],
            "--from <EVENT>",
        ),
        (
            &["leaks", "--flame", "-", "--comm", "nobody", "mixed.data"],
            "there are no stacks to draw",
        ),
    ] {
        let output = run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            stderr(&output).contains(want),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let output = run(&["latency", "--comm", "nobody", "mixed.data"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(
        stderr(&output).contains("matches --comm"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn files_of_pairs_are_as_those_of_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (svg, folded) = (path("a.svg"), path("a.folded"));
    stdout(&["latency", "--flame", &svg, "mixed.data"]);
    stdout(&["leaks", "--folded", &folded, "--by", "stack", "mixed.data"]);
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains(" pairs, ") && svg.contains(" us, "), "{svg}");
    // In microseconds.
    let cache = [
        "--from",
        "kmem_cache_alloc",
        "--to",
        "kmem_cache_free",
        "--key",
        "ptr",
    ];
    let times = stdout(&[&["latency", "--folded", "-", "mixed.data"], &cache[..]].concat());
    let counts = times.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    let micros = counts
        .map(|count| count.parse::<f64>().unwrap())
        .sum::<f64>();
    assert!((micros / 1e6 - 9.517).abs() < 0.001, "{micros}");
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(&folded).unwrap().permissions().mode();
    assert_eq!(mode & 0o77, 0);
    let folded = fs::read_to_string(folded).unwrap();
    // By stack, nothing stands before the first function.
    assert!(
        folded.lines().all(|line| !line.starts_with("kmalloc;")),
        "{folded}"
    );
}

#[test]
fn the_user_stacks_of_first_events_are_shown() {
    let event = "sys_enter_getpriority";
    let pair = ["--from", event, "--to", event, "--key", "common_pid"];
    for command in ["latency", "leaks"] {
        let report = stdout(&[&[command, "user.data"], &pair[..]].concat());
        let stacks = report.split("user stack, complete:\n").skip(1);
        let stacks: Vec<_> = stacks.map(str::trim_start).collect();
        assert!(stacks.len() > 1, "{report}");
        assert!(stacks[0].starts_with("known+0x2ac37\n"), "{report}");
    }
}
