// SPDX-License-Identifier: MIT OR Apache-2.0

//! Replays what the fuzzers have found.

use std::{fs, path::Path};

#[path = "../../fuzz/targets.rs"]
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
fn findings_of_fuzzers_are_replayed() {
    replay("stack_map_bin", targets::stack_map_bin);
    replay("kallsyms", targets::kallsyms);
    replay("trace", targets::trace);
    replay("ring", targets::ring);
    replay("capture", targets::capture);
}
