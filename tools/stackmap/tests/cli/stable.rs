// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stable ids, as they are shown: computed again by the program of the documents, found by their
//! first digits, and the same for a full stack in a ring buffer.

use super::{
    made::{self, bin, Text},
    tool::{data, events, json, run, stdout, Dir, Members},
};
use serde_json::Value;
use stackmap::{capture::member, stack_map_bin::Stack, stacks::Stacks};
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
};

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
    let dir = Dir::new();
    let path = dir.put("export.json", export.to_string());
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
        ("mixed.data", 700),
        ("user.data", 20),
        ("questions.data", 1400),
    ] {
        let computed = compute(&json(format!("--plumbing {name}")));
        assert!(computed.len() >= least, "{name}: {}", computed.len());
        let differ = computed.iter().find(|(there, computed)| there != computed);
        assert_eq!(differ, None, "{name}");
        let ids: BTreeSet<_> = computed.iter().collect();
        assert_eq!(ids.len(), computed.len(), "{name}");
    }
}

#[test]
fn ids_without_names_are_computed_by_the_documents_too() {
    let dir = Dir::new();
    // Without the names of modules.
    let names = stdout("dump --plumbing before.data");
    assert!(names.contains("ext4_readdir+"));
    let all = Members::read(data("before.data")).text(member::KALLSYMS);
    let kept = all.lines().filter(|line| !line.contains('['));
    let kallsyms = dir.put("kallsyms", kept.collect::<Vec<_>>().join("\n"));
    let export = json(format!("--plumbing --kallsyms {kallsyms} before.data"));
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

/// Returns stacks as `dump` prints them: the id in the map, and the stable one.
fn dumped(arguments: &str) -> Vec<(u64, String)> {
    let stacks = stdout(format!("dump --json {arguments}"));
    let stacks: Vec<Value> = serde_json::from_str(&stacks).unwrap();
    let id = |stack: &Value| {
        let id = stack["stack_id"].as_u64().or(stack["id"].as_u64());
        (id.unwrap(), stack["stable_id"].as_str().unwrap().to_owned())
    };
    stacks.iter().map(id).collect()
}

#[test]
fn a_stack_is_found_by_its_first_digits() {
    for side in ["before.data", "--user user.data"] {
        let all = dumped(side);
        let (id, stable) = &all[3];
        for asked in [stable, &stable[..8], &stable[..13].to_uppercase()] {
            let found = dumped(&format!("--stack {asked} {side}"));
            assert_eq!(found, [(*id, stable.clone())], "{asked}");
        }
        let both = format!("--stack {} --stack {} {side}", &stable[..8], all[5].1);
        assert_eq!(dumped(&both), [all[3].clone(), all[5].clone()]);
        let text = stdout(format!("dump --stable --stack {stable} {side}"));
        let head = text.lines().next().unwrap();
        assert!(head.ends_with(&format!(", stable {stable}]")), "{head}");
    }
    let all = dumped("before.data");
    let (_, stable) = &all[3];
    // Fewer digits are an expression, and so is what is no id: of a name, or a line.
    for asked in [&stable[..7], "00000000", "ffffffff00000000"] {
        let ran = run(format!("dump --json --stack {asked} before.data"));
        ran.failed(2, "none of 105 stacks matches --stack");
    }
    let names = dumped("--stack ^ext4_readdir$ before.data");
    let both = dumped(&format!(
        "--stack ^ext4_readdir$ --stack {stable} before.data"
    ));
    assert!(!names.is_empty());
    assert_eq!(
        both.len(),
        names.len() + usize::from(!names.contains(&all[3]))
    );
    let found = dumped(&format!("--stack ^nobody$ --stack {stable} before.data"));
    assert_eq!(found, [all[3].clone()]);
}

/// Writes a map of stacks of one frame each, and what names these; returns the arguments for it.
fn raw(dir: &Dir, ips: &[u64], names: &str) -> String {
    let stacks: Vec<_> = (1..).zip(ips.chunks(1)).collect();
    let map = dir.put("map", bin(None, &stacks));
    format!("--kallsyms {} {map}", dir.put("kallsyms", names))
}

/// Returns the stacks that `--stack` finds, by their ids in the map.
fn asked(asked: &str, raw: &str) -> Vec<u64> {
    let found = dumped(&format!("--stack {asked} {raw}"));
    found.iter().map(|(id, _)| *id).collect()
}

#[test]
fn a_name_of_digits_is_found_as_one() {
    let dir = Dir::new();
    let names = "1000 t deadbeef\n2000 t other\n3000 t end\n";
    let raw = raw(&dir, &[0x1010, 0x2010, 0x1010], names);
    assert_eq!(asked("deadbeef", &raw), [1, 3]);
    // Two stacks that are called the same are both meant.
    let stable = dumped(&raw)[0].1.clone();
    assert_eq!(asked(&stable[..8], &raw), [1, 3]);
}

#[test]
fn first_digits_of_several_ids_are_refused() {
    let dir = Dir::new();
    // Two offsets in one function that give ids with the same 8 digits.
    let ips = [0x1000 + 1204, 0x1000 + 4089];
    let raw = raw(&dir, &ips, "1000 t one_308\n3000 t end\n");
    let mut ids: Vec<_> = dumped(&raw).into_iter().map(|(_, id)| id).collect();
    for (number, begin) in [(1, "5e12d5a2ef09"), (2, "5e12d5a2ba5e")] {
        assert!(ids[number as usize - 1].starts_with(begin));
        assert_eq!(asked(begin, &raw), [number]);
    }
    ids.sort();
    let want = format!(
        "stackmap: --stack 5e12d5a2: 2 stable ids begin so\n  hint: give more digits: {}, {}\n",
        ids[0], ids[1]
    );
    run(format!("dump --stack 5e12d5a2 {raw}")).failed(1, &want);
}

#[test]
fn a_full_stack_has_the_id_that_it_would_have_in_the_map() {
    let capture = Members::read(data("mixed.data"));
    let stack_map_bin = &capture.members[member::STACK_MAP_BIN][..];
    let stacks = Stacks::read(stack_map_bin, "").unwrap();
    let events_of = |(stack, number): (Stack<'_>, u32)| {
        let ips: String = stack.ips.iter().map(|ip| format!(" {ip:x}")).collect();
        let head = format!("  a-1 [000] ..... 1.{number:06}:");
        format!("{head} e: x\n{head} <stack trace>{ips}\n")
    };
    let trace: String = stacks.iter().take(300).zip(1..).map(events_of).collect();
    let text = Text {
        trace: &trace,
        stack_map_bin,
        kallsyms: &capture.members[member::KALLSYMS],
    };
    let dir = Dir::new();
    let path = dir.at("full.data");
    made::capture(&text, &capture.manifest).write(&path);

    let full = json(format!("--plumbing {path}"));
    let by_id = full["stacks"].as_array().unwrap();
    assert_eq!(events(&full).len(), 300);
    for (event, stack) in events(&full).iter().zip(by_id) {
        assert!(event["frames"].is_array() && event["stack"].is_null());
        assert_eq!(event["stable_id"], stack["stable_id"]);
        assert_eq!(event["stable"], true);
    }
}
