// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stable ids, as they are shown: computed again by the program of the documents, found by their
//! first digits, and the same for a full stack in a ring buffer.

mod common;

use common::{run, stderr, stdout};
use serde_json::Value;
use stackmap::{
    capture::{member, Capture, Writer},
    stack_map_bin::{self, Order, Stack},
    stacks::Stacks,
};
use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    path::Path,
    process::{Command, Stdio},
};

fn export(arguments: &[&str]) -> Value {
    let command = ["export", "--format", "json", "--plumbing"];
    serde_json::from_str(&stdout(&[&command, arguments].concat())).unwrap()
}

/// The program in `Documentation/abi/stable_ids.rst`.
fn program() -> String {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(top.join("Documentation/abi/stable_ids.rst")).unwrap();
    let lines = page.lines().skip_while(|line| *line != "  import hashlib");
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("  "));
    let lines = lines.map(|line| line.strip_prefix("  ").unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Computes the ids in an export again: those there and those computed.
fn compute(export: &Value) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("export.json");
    fs::write(&path, export.to_string()).unwrap();
    let output = Command::new("python3")
        .arg("-c")
        .arg(program())
        .arg(&path)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let pair = |line: &str| {
        let (there, computed) = line.split_once(' ').unwrap();
        (there.to_owned(), computed.to_owned())
    };
    text.lines().map(pair).collect()
}

#[test]
fn the_documents_compute_the_same() {
    for (name, least) in [
        ("before.data", 60),
        ("function.data", 4),
        ("full.data", 1000),
        ("mixed.data", 800),
        ("user.data", 30),
        ("questions.data", 1800),
    ] {
        let computed = compute(&export(&[name]));
        assert!(computed.len() >= least, "{name}: {}", computed.len());
        let differ = computed.iter().find(|(there, computed)| there != computed);
        assert_eq!(differ, None, "{name}");
        let ids: BTreeSet<_> = computed.iter().collect();
        assert_eq!(ids.len(), computed.len(), "{name}");
    }
}

#[test]
fn ids_without_names_are_computed_by_the_documents_too() {
    let dir = tempfile::tempdir().unwrap();
    // Without the names of modules.
    let names = stdout(&["dump", "--plumbing", "--top", "1", "before.data"]);
    assert!(names.contains("__schedule+"));
    let kallsyms = dir.path().join("kallsyms");
    let mut all = String::new();
    let mut capture = Capture::open(&data("before.data")).unwrap();
    let mut member = capture.member(member::KALLSYMS).unwrap();
    member.read_to_string(&mut all).unwrap();
    let kept = all.lines().filter(|line| !line.contains('['));
    fs::write(&kallsyms, kept.collect::<Vec<_>>().join("\n")).unwrap();
    let export = export(&["--kallsyms", kallsyms.to_str().unwrap(), "before.data"]);
    let stacks = export["stacks"].as_array().unwrap();
    let local = stacks.iter().filter(|stack| stack["stable"] == false);
    assert!(local.clone().count() > 10);
    let without = |stack: &&Value| {
        let frames = stack["frames"].as_array().unwrap();
        frames.iter().any(|frame| frame["function"].is_null())
    };
    assert!(local.clone().all(|stack| without(&stack)));
    let computed = compute(&export);
    assert_eq!(computed.len(), stacks.len());
    assert!(computed.iter().all(|(there, computed)| there == computed));
}

fn data(name: &str) -> std::path::PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    data.join(name)
}

/// Stacks as `dump` prints them: the id in the map, and the stable one.
fn dumped(arguments: &[&str]) -> Vec<(u64, String)> {
    let json = stdout(&[&["dump", "--json"], arguments].concat());
    let stacks: Vec<Value> = serde_json::from_str(&json).unwrap();
    let id = |stack: &Value| {
        let id = stack["stack_id"].as_u64().or(stack["id"].as_u64());
        (id.unwrap(), stack["stable_id"].as_str().unwrap().to_owned())
    };
    stacks.iter().map(id).collect()
}

#[test]
fn a_stack_is_found_by_its_first_digits() {
    for side in [&["before.data"][..], &["--user", "user.data"]] {
        let all = dumped(side);
        let (id, stable) = &all[3];
        for asked in [stable, &stable[..8], &stable[..13].to_uppercase()] {
            let found = dumped(&[&["--stack", asked], side].concat());
            assert_eq!(found, [(*id, stable.clone())], "{asked}");
        }
        let both = ["--stack", &stable[..8], "--stack", &all[5].1];
        let found = dumped(&[&both, side].concat());
        assert_eq!(found, [all[3].clone(), all[5].clone()]);
        let text = stdout(&[&["dump", "--stable", "--stack", stable], side].concat());
        let head = text.lines().next().unwrap();
        assert!(head.ends_with(&format!(", stable {stable}]")), "{head}");
    }
    let all = dumped(&["before.data"]);
    // Fewer digits are an expression, and so is what is no id: of a name, or a line.
    for asked in [&all[3].1[..7], "00000000", "ffffffff00000000"] {
        let output = run(&["dump", "--json", "--stack", asked, "before.data"]);
        assert!(stderr(&output).contains("note: none of 63 stacks matches --stack"));
        assert_eq!(output.stdout, b"[]\n");
    }
    let names = dumped(&["--stack", "^ext4_readdir$", "before.data"]);
    let found = dumped(&[
        "--stack",
        "^ext4_readdir$",
        "--stack",
        &all[3].1,
        "before.data",
    ]);
    assert!(
        !names.is_empty() && found.len() == names.len() + usize::from(!names.contains(&all[3]))
    );
    let found = dumped(&["--stack", "^nobody$", "--stack", &all[3].1, "before.data"]);
    assert_eq!(found, [all[3].clone()]);
}

/// A map of stacks of one frame each, with what names these.
struct Raw {
    _dir: tempfile::TempDir,
    names: [String; 3],
}

impl Raw {
    fn new(ips: &[u64], names: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (map, kallsyms) = (dir.path().join("map"), dir.path().join("kallsyms"));
        let stacks = ips.chunks(1).enumerate().map(|(at, ips)| Stack {
            id: at as u32 + 1,
            ref_count: 1,
            ips,
        });
        let mut file = Vec::new();
        stack_map_bin::write(&mut file, Order::Little, None, stacks).unwrap();
        fs::write(&map, file).unwrap();
        fs::write(&kallsyms, names).unwrap();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        Self {
            names: ["--kallsyms".to_owned(), path(&kallsyms), path(&map)],
            _dir: dir,
        }
    }

    /// The arguments for these stacks.
    fn with<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let names = self.names.iter().map(|name| &name[..]);
        arguments.iter().copied().chain(names).collect()
    }

    /// The stacks that `--stack` finds, by their ids in the map.
    fn asked(&self, asked: &str) -> Vec<u64> {
        let found = dumped(&self.with(&["--stack", asked]));
        found.iter().map(|(id, _)| *id).collect()
    }
}

#[test]
fn a_name_of_digits_is_found_as_one() {
    let names = "1000 t deadbeef\n2000 t other\n3000 t end\n";
    let raw = Raw::new(&[0x1010, 0x2010, 0x1010], names);
    assert_eq!(raw.asked("deadbeef"), [1, 3]);
    // Two stacks that are called the same are both meant.
    let stable = dumped(&raw.with(&[]))[0].1.clone();
    assert_eq!(raw.asked(&stable[..8]), [1, 3]);
}

#[test]
fn first_digits_of_several_ids_are_refused() {
    // Two offsets in one function that give ids with the same 8 digits.
    let raw = Raw::new(
        &[0x1000 + 1204, 0x1000 + 4089],
        "1000 t one_308\n3000 t end\n",
    );
    let mut ids: Vec<_> = dumped(&raw.with(&[]))
        .into_iter()
        .map(|(_, id)| id)
        .collect();
    assert_eq!(
        [&ids[0][..12], &ids[1][..12]],
        ["5e12d5a2ef09", "5e12d5a2ba5e"]
    );
    assert_eq!([1, 2].map(|at| raw.asked(&ids[at - 1][..12])), [[1], [2]]);
    ids.sort();
    let output = run(&raw.with(&["dump", "--stack", "5e12d5a2"]));
    let want = format!(
        "stackmap: --stack 5e12d5a2: 2 stable ids begin so\n  hint: give more digits: {}, {}\n",
        ids[0], ids[1]
    );
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), want));
}

/// A record of a ring buffer.
fn record(data: &[u8]) -> Vec<u8> {
    let padded = data.len().next_multiple_of(4);
    // The length is in the word behind the head.
    let mut record = vec![0, 0, 0, 0];
    record.extend((padded as u32 + 4).to_le_bytes());
    record.extend(data);
    record.resize(8 + padded, 0);
    record
}

const KERNEL_STACK: &str = "\
name: kernel_stack
ID: 4
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int size;\toffset:8;\tsize:4;\tsigned:1;
\tfield:unsigned long caller[];\toffset:16;\tsize:0;\tsigned:0;

print fmt: \"\"
";

/// An event, as its format has the number.
fn head(number: u16) -> Vec<u8> {
    let mut data = number.to_le_bytes().to_vec();
    data.extend([0, 0, 7, 0, 0, 0]);
    data
}

#[test]
fn a_full_stack_has_the_id_that_it_would_have_in_the_map() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full.data");
    let mut old = Capture::open(&data("mixed.data")).unwrap();
    let mut read = |name: &str| {
        let mut content = Vec::new();
        let mut member = old.member(name).unwrap();
        member.read_to_end(&mut content).unwrap();
        content
    };
    let stacks = Stacks::read(&read(member::STACK_MAP_BIN)[..], "").unwrap();
    let format = String::from_utf8(read("events/kmem/kfree/format")).unwrap();
    let (_, number) = format.split_once("ID: ").unwrap();
    let number: u16 = number.lines().next().unwrap().parse().unwrap();
    let mut page = Vec::new();
    let mut nr_pages = 0;
    let mut pages = Vec::new();
    for stack in stacks.iter().take(300) {
        let mut event = head(number);
        event.resize(32, 0);
        let mut full = head(4);
        full.extend((stack.ips.len() as u32).to_le_bytes());
        full.extend([0; 4]);
        full.extend(stack.ips.iter().flat_map(|ip| ip.to_le_bytes()));
        let records = [record(&event), record(&full)].concat();
        // A page for each, of 4096 bytes.
        page.clear();
        page.extend(1_000_000_u64.to_le_bytes());
        page.extend((records.len() as u64).to_le_bytes());
        page.extend(records);
        assert!(page.len() <= 4096);
        page.resize(4096, 0);
        pages.extend(0_u32.to_le_bytes());
        pages.extend(4096_u32.to_le_bytes());
        pages.extend(&page);
        nr_pages += 1;
    }
    assert_eq!(nr_pages, 300);
    let mut new = Writer::create(&path).unwrap();
    new.member(member::PAGES, &mut &pages[..]).unwrap();
    let formats = ["events/ftrace/stack_id/format", "events/kmem/kfree/format"];
    let others = [
        member::STACK_MAP_BIN,
        member::STAT,
        member::STAT_BEFORE,
        member::KALLSYMS,
        member::MODULES,
        member::HEADER_PAGE,
        member::HEADER_EVENT,
        member::PRINTK_FORMATS,
        member::TASKS,
    ];
    for name in others.into_iter().chain(formats) {
        new.member(name, &mut &read(name)[..]).unwrap();
    }
    let format = "events/ftrace/kernel_stack/format";
    new.member(format, &mut KERNEL_STACK.as_bytes()).unwrap();
    new.finish(old.manifest()).unwrap();

    let full = export(&[path.to_str().unwrap()]);
    let by_id = full["stacks"].as_array().unwrap();
    let events = full["events"].as_array().unwrap();
    assert_eq!(events.len(), 300);
    for (event, stack) in events.iter().zip(by_id) {
        assert!(event["frames"].is_array() && event["stack"].is_null());
        assert_eq!(event["stable_id"], stack["stable_id"]);
        assert_eq!(event["stable"], true);
    }
    // In captures of version 1 full stacks are texts without offsets.
    let text = export(&["full.data"]);
    let full = text["events"].as_array().unwrap().iter();
    let full: Vec<_> = full.filter(|event| event["frames"].is_array()).collect();
    assert!(full.len() > 20 && full.iter().all(|event| event["stable_id"].is_null()));
}

#[test]
fn ids_do_not_depend_on_what_is_shown() {
    let ids = |arguments: &[&str]| -> Vec<Value> {
        let command = ["export", "--format", "json"];
        let json = stdout(&[&command, arguments].concat());
        let export: Value = serde_json::from_str(&json).unwrap();
        let stacks = [&export["stacks"], &export["user_stacks"]];
        let stacks = stacks.iter().filter_map(|stacks| stacks.as_array());
        let id = |stack: &Value| stack["stable_id"].clone();
        stacks.flatten().map(id).collect()
    };
    let shown = ids(&["user.data"]);
    assert_eq!(shown.len(), 36);
    for more in [
        &["--plumbing"][..],
        &["--addresses"],
        &["--event", "nothing"],
    ] {
        assert_eq!(ids(&[more, &["user.data"]].concat()), shown, "{more:?}");
    }
    let dump = dumped(&["user.data"]);
    let shown = shown.iter().filter_map(Value::as_str);
    assert!(dump.iter().map(|(_, id)| &id[..]).eq(shown.take(20)));
}
