// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits, latencies and leaks of captures of guests, compared with those that follow from an export of all events.
//! `data/golden/pairs.txt` has what is said if something is missing.

use super::tool::{counts, data, json, micros, mode, run, stdout, Dir, Members};
use serde_json::Value;
use stackmap::capture::{member, ClockReading};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
};

/// Returns the events of a capture in the order of their times, with addresses.
fn events(file: &str) -> Vec<Value> {
    let mut all = json(format!("--addresses {file}"));
    let mut events = all["events"].take().as_array().unwrap().clone();
    events.sort_by_key(micros);
    events
}

fn number(event: &Value, field: &str) -> u64 {
    event["values"][field].as_u64().unwrap()
}

/// Rows of the first table: the words of each by its first one.
fn rows(report: &str) -> BTreeMap<&str, Vec<&str>> {
    let table = report.split("\n\n").nth(1).unwrap();
    let rows = table.lines().skip(1).map(|line| {
        let mut words = line.split_whitespace();
        (words.next().unwrap(), words.collect())
    });
    rows.collect()
}

/// Returns the sum of folded stacks.
fn folded(arguments: &str) -> u64 {
    counts(&stdout(format!("{arguments} --folded -"))).sum()
}

/// How many allocations are outstanding, and of how many.
fn outstanding(report: &str) -> (u64, u64) {
    let words: Vec<_> = report.lines().nth(2).unwrap().split(' ').collect();
    (words[0].parse().unwrap(), words[2].parse().unwrap())
}

#[test]
fn allocations_are_filtered_and_frees_are_not() {
    let of = |filter: &str| outstanding(&stdout(format!("leaks --top 0 mixed.data{filter}")));
    let (left, all) = of("");
    let [zero, one] = [of(" --cpu 0"), of(" --cpu 1")];
    assert_eq!((zero.0 + one.0, zero.1 + one.1), (left, all));
    assert!(zero.0 > 0 && one.0 > 0);
    // Young ones are left out.
    let said = stdout("leaks --older 0.08 --top 0 mixed.data");
    let (old, _) = outstanding(&said);
    assert!(old > 0 && old < left, "{said}");
    let note = format!("not counted: {} allocations of ", left - old);
    assert!(said.contains(&note), "{said}");
    assert!(said.contains(": younger than 80.0 ms (--older)"), "{said}");
}

#[test]
fn system_calls_take_as_long_as_their_events_say() {
    let mut open = HashMap::new();
    let mut times = BTreeMap::<String, Vec<u64>>::new();
    for event in &events("mixed.data") {
        let (name, pid) = (event["event"].as_str().unwrap(), event["pid"].as_u64());
        if let Some(call) = name.strip_prefix("sys_enter_") {
            open.insert((pid, call.to_owned()), micros(event));
        } else if let Some(call) = name.strip_prefix("sys_exit_") {
            if let Some(since) = open.remove(&(pid, call.to_owned())) {
                let times = times.entry(format!("{call}()")).or_default();
                times.push(micros(event) - since);
            }
        }
    }
    let report = stdout("latency --event sys_enter_* --top 0 mixed.data");
    let rows = rows(&report);
    assert!(times.len() > 20);
    assert!(rows.keys().copied().eq(times.keys().map(|call| &call[..])));
    for (call, times) in &mut times {
        times.sort_unstable();
        let row = &rows[&call[..]];
        assert_eq!(row[0], times.len().to_string(), "{call}");
        // After the share come pairs of a number and its unit.
        let shown = row[3..].chunks(2).map(|words| {
            let number: f64 = words[0].parse().unwrap();
            match words[1] {
                "us" => number,
                "ms" => number * 1e3,
                unit => panic!("{unit}"),
            }
        });
        let rank = |share: f64| times[(times.len() as f64 * share).ceil() as usize - 1] as f64;
        let average = times.iter().sum::<u64>() as f64 / times.len() as f64;
        let want = [average, rank(0.5), rank(0.9), rank(0.99), rank(1.0)];
        // The export has microseconds, and the table two digits at least.
        for (shown, want) in shown.zip(want) {
            let off = (shown - want).abs();
            assert!(off <= 2.0 + want * 0.05, "{call}: {shown}, wanted {want}");
        }
    }
}

#[test]
fn files_are_written_if_there_is_something_to_write() {
    let dir = Dir::new();
    let path = dir.at("out");
    let write = |arguments: &str| run(format!("{arguments} {path}"));
    let read = || fs::read_to_string(&path).unwrap();
    // It says that there is nothing, and why.
    let ran = write("offcpu mixed.data --comm ksoftirqd* --flame");
    ran.failed(1, "no stacks to draw").failed(1, "still waited");
    assert_eq!(dir.nr_files(), 0);
    for command in ["offcpu", "leaks", "latency"] {
        for kind in ["--flame", "--folded"] {
            let ran = write(&format!("{command} mixed.data --comm nobody {kind}"));
            ran.failed(2, "matches --comm");
            assert_eq!(dir.nr_files(), 0);
        }
        // Frames without a name are addresses in one of them.
        for (kind, want) in [("--flame", 0o644), ("--folded", 0o600)] {
            write(&format!("{command} mixed.data --kallsyms kallsyms {kind}")).well();
            assert_eq!(mode(&path) & !0o022, want);
            let has_addresses = read().contains("0xffffffff");
            assert_eq!(has_addresses, kind == "--folded", "{command} {kind}");
            fs::remove_file(&path).unwrap();
        }
    }
    let svg = stdout("latency --flame - mixed.data");
    assert!(svg.contains(" pairs, ") && svg.contains(" us, "), "{svg}");
    // In microseconds.
    let cache = "--from kmem_cache_alloc --to kmem_cache_free --key ptr";
    let sum = folded(&format!("latency mixed.data {cache}"));
    assert!(sum.abs_diff(9_512_000) < 1_000, "{sum}");
    // By stack, nothing stands before the first function.
    let stacks = stdout("leaks --folded - --by stack mixed.data");
    let mut lines = stacks.lines();
    assert!(lines.all(|line| !line.starts_with("kmalloc;")), "{stacks}");
}

#[test]
fn the_user_stacks_of_first_events_are_shown() {
    let event = "sys_enter_getpriority";
    for command in ["latency", "leaks"] {
        let pair = format!("{command} user.data --from {event} --to {event} --key common_pid");
        let report = stdout(pair);
        let stacks = report.split("user stack, complete:\n").skip(1);
        let stacks: Vec<_> = stacks.map(str::trim_start).collect();
        assert!(!stacks.is_empty(), "{report}");
        assert!(stacks[0].starts_with("known+0x2ac37\n"), "{report}");
    }
}

/// Blocked, runnable and preempted microseconds.
type Times = [u64; 3];

/// Returns the times that tasks waited, by their pids.
fn found(arguments: &str) -> BTreeMap<String, Times> {
    let text = stdout(format!("offcpu --by pid --folded - {arguments}"));
    let mut found = BTreeMap::<String, Times>::new();
    for line in text.lines() {
        let (stack, micros) = line.rsplit_once(' ').unwrap();
        // A task may have been renamed, and its name hold anything.
        let task = stack.split(';').next().unwrap();
        let pid = task.rsplit('-').next().unwrap();
        let kinds = [";(runnable)", ";(preempted)"];
        let kind = kinds.iter().position(|kind| stack.ends_with(kind));
        let times = found.entry(pid.to_owned()).or_default();
        times[kind.map_or(0, |kind| kind + 1)] += micros.parse::<u64>().unwrap();
    }
    found
}

fn total(times: &BTreeMap<String, Times>) -> u64 {
    times.values().flatten().sum()
}

#[test]
fn filters_keep_the_waits_of_a_task_whoever_ends_them() {
    let all = found("mixed.data");
    for (pid, times) in &all {
        let kept = found(&format!("mixed.data --pid {pid}"));
        assert_eq!(kept, BTreeMap::from([(pid.clone(), *times)]));
    }
    let said = stdout("offcpu attack.data");
    assert!(
        said.contains("no sched:sched_waking in the trace"),
        "{said}"
    );
    // Where the task left the CPU, not where it was switched in.
    let on = |cpu| total(&found(&format!("mixed.data --cpu {cpu}")));
    assert_eq!(on("0") + on("1"), total(&all));
    // By a field, it is that of the switch away from the task.
    let waits = stdout("offcpu --by prev_pid --top 0 mixed.data");
    let by_pid = stdout("offcpu --by pid --top 0 mixed.data");
    assert_eq!(rows(&waits)["15"], rows(&by_pid)["rcu_preempt-15"]);
    let blocked: u64 = all.values().map(|times| times[0] + times[1]).sum();
    let futex = found("mixed.data --stack ^futex_do_wait$");
    assert!(total(&futex) > 0 && total(&futex) < blocked, "{futex:?}");
    // By the name that the task had; the share is another one with a filter.
    let report = stdout("offcpu --top 0 mixed.data");
    assert!(rows(&report)["sleeper"][0] == "4", "{report}");
    for (name, words) in rows(&report) {
        let of_one = stdout(format!("offcpu --top 0 mixed.data --comm {name}"));
        let (rows, of_one) = (rows(&of_one), &words[3..]);
        assert_eq!(rows.keys().collect::<Vec<_>>(), [&name]);
        assert_eq!((rows[name][0], &rows[name][3..]), (words[0], of_one));
    }
}

#[test]
fn waits_in_a_gap_are_not_known() {
    const PAGE: usize = 10;
    const MISSED: u8 = 0x80;
    // Before one of the pages, records are missing.
    let mut capture = Members::read(data("mixed.data"));
    let pages = capture.members.get_mut(member::PAGES).unwrap();
    // The CPU and the length, then the page: its time, and its commit word.
    let mut at = 0;
    for _ in 0..PAGE {
        let len = pages[at + 4..at + 8].try_into().unwrap();
        at += 8 + u32::from_le_bytes(len) as usize;
    }
    pages[at + 8 + 8 + 3] |= MISSED;
    let dir = Dir::new();
    let path = dir.at("gap.data");
    capture.write(&path);
    // Those that are counted, not known, and not finished.
    let counts = |file: &str| {
        let text = stdout(format!("offcpu --top 0 {file}"));
        let count = |what: &str| {
            let line = text.lines().find(|line| line.contains(what));
            let mut words = line.unwrap_or_default().split(' ');
            words.find_map(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        [" waits, ", "records of that time", "still waited"].map(count)
    };
    let (whole, gap) = (counts("mixed.data"), counts(&path));
    assert_eq!(whole[1], 0);
    assert!(gap[0] > 0 && gap[1] > 1, "{gap:?}");
    let sum = |counts: [u64; 3]| counts.iter().sum::<u64>();
    assert_eq!(sum(whole), sum(gap));
}

#[test]
fn waits_that_began_before_the_trace_are_counted() {
    const ASLEEP: u64 = 4_000_000;
    let all = events("--plumbing mixed.data");
    let (begin, end) = (micros(&all[0]) - 1000, micros(&all[all.len() - 1]));
    // Of each task, how long it waits until it runs, if it does not leave a CPU first.
    let mut want = BTreeMap::from([(ASLEEP, end - begin)]);
    for event in all.iter().filter(|event| event["event"] == "sched_switch") {
        for (field, until) in [("prev_pid", begin), ("next_pid", micros(event))] {
            want.entry(number(event, field)).or_insert(until - begin);
        }
    }
    want.remove(&0);
    let mut capture = Members::read(data("mixed.data"));
    capture.manifest.clocks.begin = Some(ClockReading {
        trace: begin * 1000,
        ..ClockReading::default()
    });
    let name = "do_syscall_64";
    let kallsyms = capture.text(member::KALLSYMS);
    let mut lines = kallsyms.lines();
    let line = lines.find(|line| line.split([' ', '\t']).nth(2) == Some(name));
    let address = u64::from_str_radix(line.unwrap().split(' ').next().unwrap(), 16).unwrap();
    let sleeper =
        |pid| serde_json::json!({ "pid": pid, "state": "D", "cpu": 1, "stack": [address + 1] });
    let sleepers: Vec<_> = want.keys().map(sleeper).collect();
    let mut tasks: Value = serde_json::from_str(&capture.text(member::TASKS)).unwrap();
    tasks["comms"][ASLEEP.to_string()] = "asleep".into();
    for (name, value) in [(member::TASKS, tasks), (member::SLEEPERS, sleepers.into())] {
        capture
            .members
            .insert(name.to_owned(), value.to_string().into());
    }
    let dir = Dir::new();
    let path = dir.at("asleep.data");
    capture.write(&path);
    let [before, after] = ["mixed.data", &path].map(|file| found(&format!("--unfinished {file}")));
    for (pid, want) in &want {
        let of = |found: &BTreeMap<_, Times>| {
            let times = found.get(&pid.to_string());
            times.map_or(0, |times| times.iter().sum::<u64>())
        };
        let got = of(&after) - of(&before);
        // Each stack is rounded.
        assert!(got.abs_diff(*want) < 10, "{pid}: {got}, {want}");
    }
    assert!(want.values().filter(|wait| **wait > 0).count() > 5);
    let text = stdout(format!("offcpu --unfinished --comm asleep {path}"));
    assert!(text.contains("1 wait, ") && text.contains(name), "{text}");
    let text = stdout(format!("offcpu {path}"));
    let said = "waited already when the recording began";
    assert!(text.contains(said), "{text}");
    assert_eq!(rows(&text), rows(&stdout("offcpu mixed.data")));
}
