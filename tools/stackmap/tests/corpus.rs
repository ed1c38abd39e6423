// SPDX-License-Identifier: MIT OR Apache-2.0

//! Replays what the fuzzers have found.

use std::{fs, path::Path};

#[path = "../fuzz/targets.rs"]
mod targets;

/// Gives every file of a corpus to its target.
fn replay(name: &str, target: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let mut count = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display());
        target(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count > 0, "{} is empty", dir.display());
}

#[test]
fn stack_map_bin() {
    replay("stack_map_bin", targets::stack_map_bin);
}

#[test]
fn kallsyms() {
    replay("kallsyms", targets::kallsyms);
}

#[test]
fn trace() {
    replay("trace", targets::trace);
}

#[test]
fn ring() {
    replay("ring", targets::ring);
}

#[test]
fn capture() {
    replay("capture", targets::capture);
}

/// What the tool needs is in the fuzzers' lock file, or they are built with something else.
#[test]
fn the_lock_file_is_that_of_the_tool() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lock = fs::read_to_string(dir.join("fuzz/Cargo.lock")).unwrap();
    let (_, tool) = lock.split_once("name = \"stackmap\"\n").unwrap();
    let (tool, _) = tool.split_once("\n]\n").unwrap();
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let lines = dependencies
        .lines()
        .take_while(|line| !line.starts_with('['));
    // The fuzzers have no optional features.
    let lines = lines.filter(|line| !line.contains("optional = true"));
    let names = lines.filter_map(|line| line.split_once([' ', '.', '=']));
    let mut count = 0;
    for (name, _) in names.filter(|(name, _)| !name.is_empty() && !name.starts_with('#')) {
        assert!(tool.contains(&format!("\"{name}\"")), "{name}");
        count += 1;
    }
    assert!(count > 5);
}
