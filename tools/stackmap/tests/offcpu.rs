// SPDX-License-Identifier: MIT OR Apache-2.0

//! The waits that `stackmap offcpu` finds in captures of guests, compared with those that follow from
//! the events of an export.

mod common;

use common::{run, stdout};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{Read, Write},
    path::Path,
};

/// Who waits, since when, in which state, and when it was woken up.
type Wait = (String, u64, u64, Option<u64>);
/// Blocked, runnable and preempted microseconds, and how many waits.
type Times = [u64; 4];

/// The waits by task, as the events of an export say. `unfinished`: also those that last to its end.
fn expected(file: &str, unfinished: bool) -> BTreeMap<String, Times> {
    let text = stdout(&["export", "--format", "json", file]);
    let export: Value = serde_json::from_str(&text).unwrap();
    let mut tasks: HashMap<u64, Wait> = HashMap::new();
    let mut found = BTreeMap::<String, Times>::new();
    let mut events: Vec<_> = export["events"].as_array().unwrap().iter().collect();
    let micros = |event: &Value| {
        event["time"]
            .as_str()
            .unwrap()
            .replace('.', "")
            .parse::<u64>()
            .unwrap()
    };
    events.sort_by_key(|event| micros(event));
    let end = micros(events.last().unwrap());
    let mut add = |(name, since, state, woken): Wait, now| {
        let times = found.entry(name).or_default();
        times[3] += 1;
        match (state & 0xff, woken) {
            (0, _) => times[2] += now - since,
            (_, None) => times[0] += now - since,
            (_, Some(at)) => {
                times[0] += at - since;
                times[1] += now - at;
            }
        }
    };
    for event in events {
        let (now, values) = (micros(event), &event["values"]);
        let number = |name: &str| values[name].as_u64().unwrap();
        if event["event"] == "sched_waking" {
            if let Some((.., woken)) = tasks.get_mut(&number("pid")) {
                woken.get_or_insert(now);
            }
        }
        if event["event"] != "sched_switch" {
            continue;
        }
        if let Some(wait) = tasks.remove(&number("next_pid")) {
            add(wait, now);
        }
        let (pid, state) = (number("prev_pid"), number("prev_state"));
        if pid != 0 && state & 0x30 == 0 {
            tasks.insert(pid, (pid.to_string(), now, state, None));
        }
    }
    for wait in tasks.into_values().filter(|_| unfinished) {
        add(wait, end);
    }
    found
}

/// The same, as the program says; without the number of waits.
fn found(arguments: &[&str]) -> BTreeMap<String, Times> {
    let text = stdout(&[&["offcpu", "--by", "pid", "--folded", "-"], arguments].concat());
    let mut found = BTreeMap::<String, Times>::new();
    for line in text.lines() {
        let (stack, micros) = line.rsplit_once(' ').unwrap();
        // A task may have been renamed, and its name hold anything.
        let task = stack.split(';').next().unwrap();
        let pid = task.rsplit('-').next().unwrap();
        let times = found.entry(pid.to_owned()).or_default();
        let kind = match stack {
            stack if stack.ends_with(";(runnable)") => 1,
            stack if stack.ends_with(";(preempted)") => 2,
            _ => 0,
        };
        times[kind] += micros.parse::<u64>().unwrap();
    }
    found
}

fn total(times: &BTreeMap<String, Times>) -> u64 {
    times.values().flat_map(|times| &times[..3]).sum()
}

#[test]
fn waits_are_those_of_the_events() {
    for (file, arguments) in [
        ("mixed.data", &[][..]),
        ("attack.data", &[]),
        ("mixed.data", &["--unfinished"]),
        ("attack.data", &["--unfinished"]),
    ] {
        let expected = expected(file, !arguments.is_empty());
        let found = found(&[&[file], arguments].concat());
        assert!(
            expected.len() > 5 && total(&expected) > 50_000,
            "{expected:?}"
        );
        for (task, times) in &expected {
            let got = found.get(task).copied().unwrap_or_default();
            for (wanted, got) in times.iter().zip(got).take(3) {
                // Each wait is cut to microseconds at both ends, and each stack once more.
                assert!(
                    wanted.abs_diff(got) <= 4 * times[3],
                    "{task}: {times:?}, {got:?}"
                );
            }
        }
        assert!(
            found.keys().all(|task| expected.contains_key(task)),
            "{found:?}"
        );
    }
}

#[test]
fn an_idle_cpu_does_not_wait() {
    for file in ["mixed.data", "attack.data"] {
        let text = stdout(&["offcpu", "--unfinished", file]);
        assert!(!text.contains("swapper") && !text.contains("records of that time"));
    }
}

#[test]
fn filters_keep_the_waits_of_a_task_whoever_ends_them() {
    let all = found(&["mixed.data"]);
    for (pid, times) in &all {
        let kept = found(&["mixed.data", "--pid", pid]);
        assert_eq!(kept, BTreeMap::from([(pid.clone(), *times)]));
    }
    // Where the task left the CPU, not where it came back.
    let on = |cpu| total(&found(&["mixed.data", "--cpu", cpu]));
    assert_eq!(on("0") + on("1"), total(&all));
    let blocked: u64 = all.values().map(|times| times[0] + times[1]).sum();
    let futex = found(&["mixed.data", "--stack", "^futex_do_wait$"]);
    assert!(total(&futex) > 0 && total(&futex) < blocked, "{futex:?}");
    let nobody = run(&["offcpu", "mixed.data", "--comm", "nobody"]);
    assert!(nobody.status.success() && nobody.stdout.is_empty());
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("matches --comm"));
}

/// The waits of each name in the table.
fn rows(arguments: &[&str]) -> Vec<String> {
    let text = stdout(&[&["offcpu", "--top", "0", "mixed.data"], arguments].concat());
    let table = text.lines().skip_while(|line| !line.starts_with(" comm "));
    let rows = table.skip(1).take_while(|line| !line.is_empty());
    let share = |field: &&str| *field != "%";
    // The share is another one with a filter.
    rows.map(|row| {
        let fields: Vec<_> = row.split_whitespace().filter(share).collect();
        [&fields[..2], &fields[3..]].concat().join(" ")
    })
    .collect()
}

#[test]
fn filters_know_a_task_by_the_name_that_it_had() {
    let all = rows(&[]);
    assert!(all.iter().any(|row| row.starts_with("exe 6 ")), "{all:?}");
    for row in all {
        let name = row.split(' ').next().unwrap();
        assert_eq!(rows(&["--comm", name]), [&row[..]]);
    }
}

#[test]
fn stacks_that_are_not_shown_are_summed_up() {
    let text = stdout(&["offcpu", "--top", "0", "mixed.data"]);
    let lines: Vec<_> = text.lines().collect();
    let of = |line: &str, before: &str| Some(line.split_once(before)?.1.to_owned());
    let mut nr = 0;
    for pair in lines.windows(2) {
        let Some(hidden) = of(pair[1], " more, with ") else {
            continue;
        };
        let (_, all) = pair[0].rsplit_once(", ").unwrap();
        assert_eq!(hidden, format!("{all} (--top)"));
        nr += 1;
    }
    assert!(nr > 3, "{text}");
}

#[test]
fn files_are_written_if_there_is_something_to_write() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let write = |arguments: &[&str]| {
        let path = path.to_str().unwrap();
        let output = run(&[&["offcpu", "mixed.data"], arguments, &[path]].concat());
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let read = || std::fs::read_to_string(&path).unwrap();
    // It says that there is nothing, and why.
    for (filter, why) in [("nobody", "matches --comm"), ("kdamond*", "still waited")] {
        let (status, said) = write(&["--comm", filter, "--flame"]);
        assert!(
            said.contains("no stacks to draw") && said.contains(why),
            "{said}"
        );
        assert_eq!(status, 1);
        assert!(!path.exists());
    }
    assert_eq!(write(&["--comm", "nobody", "--folded"]).0, 0);
    assert_eq!(read(), "");
    std::fs::remove_file(&path).unwrap();
    // Frames without a name are addresses in one of them.
    for (kind, mode) in [("--flame", 0o044), ("--folded", 0)] {
        assert_eq!(write(&["--kallsyms", "kallsyms", kind]).0, 0);
        let found = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o077 & !umask(), mode & !umask());
        let has = read().contains("0xffffffff");
        assert_eq!(has, kind == "--folded", "{kind}");
        std::fs::remove_file(&path).unwrap();
    }
}

/// The bits that new files do not have.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    u32::from_str_radix(line.unwrap().trim(), 8).unwrap()
}

#[test]
fn who_woke_a_task_up_is_named() {
    let text = stdout(&["offcpu", "--by", "comm", "--wakers", "99", "mixed.data"]);
    assert!(text.contains("woken up by (interrupt): "), "{text}");
    // What an interrupt has interrupted is not shown.
    let behind = text
        .lines()
        .skip_while(|line| !line.contains("woken up by (interrupt)"));
    let frames: Vec<_> = behind
        .skip(1)
        .take_while(|line| !line.contains("woken up"))
        .collect();
    let entry = frames
        .iter()
        .position(|frame| frame.contains("asm_sysvec_"));
    assert!(frames[entry.unwrap() + 1..]
        .iter()
        .all(|frame| !frame.starts_with("                  ")));
    let folded = stdout(&["offcpu", "--folded", "-", "mixed.data"]);
    assert!(folded
        .lines()
        .any(|line| line.contains(";--;") && line.contains(";(interrupt) ")));
    for line in folded.lines().filter(|line| line.contains(";asm_sysvec_")) {
        let Some((_, waker)) = line.split_once(";--;") else {
            continue;
        };
        let behind = waker
            .split(';')
            .skip_while(|frame| !frame.starts_with("asm_"));
        let behind = behind.skip(1).collect::<Vec<_>>().join(";");
        assert!(
            behind.is_empty() || behind.starts_with("(interrupt) "),
            "{line}"
        );
    }
    let flame = stdout(&["offcpu", "--flame", "-", "mixed.data"]);
    assert!(
        flame.contains(" us, ") && flame.contains("of waiting in "),
        "no microseconds"
    );
    // There is no waking in this one, and it says so.
    let attack = run(&["offcpu", "attack.data"]);
    let attack = String::from_utf8_lossy(&attack.stdout);
    assert!(
        attack.contains("no sched:sched_waking in the trace") && attack.contains(" 0 runnable")
    );
}

/// A capture like `mixed.data`, before one of whose pages records are missing.
fn with_a_gap(path: &Path) {
    const PAGE: usize = 10;
    const MISSED: u8 = 0x80;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mixed.data");
    let mut old = zip::ZipArchive::new(File::open(data).unwrap()).unwrap();
    let mut new = zip::ZipWriter::new(File::create(path).unwrap());
    for index in 0..old.len() {
        let mut member = old.by_index(index).unwrap();
        let (name, mut content) = (member.name().unwrap().into_owned(), Vec::new());
        member.read_to_end(&mut content).unwrap();
        if name == "trace_pipe_raw" {
            // The CPU and the length, then the page: its time, and its commit word.
            let mut at = 0;
            for _ in 0..PAGE {
                let len = content[at + 4..at + 8].try_into().unwrap();
                at += 8 + u32::from_le_bytes(len) as usize;
            }
            content[at + 8 + 8 + 3] |= MISSED;
        }
        let options = zip::write::SimpleFileOptions::default();
        new.start_file(name, options).unwrap();
        new.write_all(&content).unwrap();
    }
    new.finish().unwrap();
}

#[test]
fn waits_in_a_gap_are_not_known() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gap.data");
    with_a_gap(&path);
    // Those that are counted, not known, and not finished.
    let counts = |file: &str| {
        let text = stdout(&["offcpu", "--top", "0", file]);
        let count = |what: &str| {
            let line = text.lines().find(|line| line.contains(what));
            let words = line.unwrap_or_default().split(' ');
            let mut numbers = words.filter_map(|word| word.parse::<u64>().ok());
            numbers.next().unwrap_or(0)
        };
        [" waits, ", "records of that time", "still waited"].map(count)
    };
    let (whole, gap) = (counts("mixed.data"), counts(path.to_str().unwrap()));
    assert!(
        whole[1] == 0 && gap[0] > 0 && gap[1] > 1,
        "{whole:?}, {gap:?}"
    );
    let sum = |counts: [u64; 3]| counts.iter().sum::<u64>();
    assert_eq!(sum(whole), sum(gap));
}

#[test]
fn traces_without_waits_are_refused() {
    for (arguments, error) in [
        (
            &["before.data"][..],
            "it has no binary records, in which waits are found",
        ),
        (&["user.data"], "it has no sched:sched_switch"),
        (
            &["stack_map_bin"],
            "it has no binary records, in which waits are found",
        ),
        (
            &["mixed.data", "--flame", "-", "--folded", "-"],
            "cannot be used with",
        ),
    ] {
        let output = run(&[&["offcpu"], arguments].concat());
        assert!(!output.status.success() && output.stdout.is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(error), "{arguments:?}: {said}");
    }
}
