// SPDX-License-Identifier: MIT OR Apache-2.0

//! User stacks of captures that were altered.

use prost::Message;
use stackmap::export::proto::Profile;
use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;
use zip::{write::SimpleFileOptions, ZipArchive, ZipWriter};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn stdout(arguments: &[&str], files: &[&Path]) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_stackmap"))
        .args(arguments)
        .args(files)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    output.stdout
}

/// user.data in a directory of its own, with another text in the place of one in a member.
fn alter(altered: &str, from: &str, to: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other");
    let mut zip = ZipArchive::new(File::open(data("user.data")).unwrap()).unwrap();
    let mut out = ZipWriter::new(File::create(&path).unwrap());
    for nr in 0..zip.len() {
        let mut member = zip.by_index(nr).unwrap();
        let mut content = Vec::new();
        member.read_to_end(&mut content).unwrap();
        let name = member.name().unwrap().into_owned();
        if name == altered {
            let text = String::from_utf8(content).unwrap();
            assert!(text.contains(from));
            content = text.replace(from, to).into_bytes();
        }
        let options = SimpleFileOptions::default();
        out.start_file(name, options).unwrap();
        out.write_all(&content).unwrap();
    }
    out.finish().unwrap();
    (dir, path)
}

const KNOWN: &str = "00112233445566778899aabbccddeeff00112233";

#[test]
fn offsets_of_two_builds_are_not_compared() {
    let (_dir, other) = alter("stack_map_binaries", KNOWN, &KNOWN.replace("0011", "feed"));
    let user = data("user.data");
    let arguments = [
        "diff",
        "--user",
        "--of",
        "function",
        "--compare",
        "total",
        "--top",
        "99",
    ];
    let diff = |files: [&Path; 2]| String::from_utf8(stdout(&arguments, &files)).unwrap();
    let same = diff([&user, &user]);
    assert!(same.contains("no total has changed"), "{same}");
    let text = diff([&user, &other]);
    for build in ["known@00112233+0x1739c", "known@feed2233+0x1739c"] {
        assert!(text.contains(build), "{build}: {text}");
    }
    // busybox is the same.
    assert!(!text.contains("busybox"), "{text}");
    // The first eight digits are.
    let collides = format!("{}{}", &KNOWN[..8], "f".repeat(32));
    let (_dir, other) = alter("stack_map_binaries", KNOWN, &collides);
    let text = diff([&user, &other]);
    for build in [KNOWN, &collides] {
        assert!(text.contains(&format!("known@{build}+0x1739c")), "{text}");
    }
    // The same build.
    let (_dir, other) = alter("stack_map_binaries", "/known", "/known (deleted)");
    let text = diff([&user, &other]);
    assert!(text.contains("no total has changed"), "{text}");
}

#[test]
fn files_of_one_name_are_told_apart() {
    let (_dir, other) = alter("stack_map_binaries", "/bin/busybox", "/other/known");
    let folded = String::from_utf8(stdout(&["folded", "--user"], &[&other])).unwrap();
    for build in ["known@00112233+0x1739c", "known@d8649014+0x"] {
        assert!(folded.contains(build), "{build}: {folded}");
    }
    let folded = String::from_utf8(stdout(&["folded", "--user"], &[&data("user.data")])).unwrap();
    assert!(folded.contains("known+0x1739c") && folded.contains("busybox+0x"));
}

#[test]
fn a_file_is_a_mapping_of_a_profile() {
    // Two files with the same path.
    let (_dir, other) = alter("stack_map_binaries", "/bin/busybox", "/tests/known");
    let profile = profile(&other);
    let text = |index: i64| &profile.string_table[index as usize][..];
    let files = profile.mapping.iter();
    let files = files.filter(|file| text(file.filename) == "/tests/known");
    let mut files: Vec<_> = files
        .map(|file| (text(file.build_id), file.memory_limit, file.has_functions))
        .collect();
    files.sort_unstable();
    const OTHER: &str = "d8649014c596b9370eae035e050a2799b8fbed41";
    assert_eq!(files, [(KNOWN, 802552, false), (OTHER, 2024544, false)]);
}

/// It is packed by what no recording is packed by: there may be many.
#[test]
fn a_perf_map_that_unpacks_to_much_is_not_used() {
    for (line_ends, is_used) in [(1, true), (1 << 20, false)] {
        let (_dir, other) = alter("perf-144-2545160.map", "\n", &"\n".repeat(line_ends));
        let folded = String::from_utf8(stdout(&["folded", "--user"], &[&other])).unwrap();
        assert_eq!(folded.contains("generated code"), is_used, "{folded}");
    }
}

/// What a capture is exported to.
fn profile(capture: &Path) -> Profile {
    let packed = stdout(&["export", "--format", "pprof"], &[capture]);
    let mut profile = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(&packed[..]);
    unpacked.read_to_end(&mut profile).unwrap();
    Profile::decode(&profile[..]).unwrap()
}

#[test]
fn addresses_in_a_profile_are_those_of_a_process() {
    let (_dir, other) = alter("perf-144-2545160.map", " ", "_");
    let folded = String::from_utf8(stdout(&["folded", "--user"], &[&other])).unwrap();
    let addresses = folded
        .split([';', '\n'])
        .filter(|frame| frame.contains("(process "));
    let addresses: Vec<_> = addresses
        .map(|frame| frame.rsplit_once(')').unwrap().0)
        .collect();
    assert!(!addresses.is_empty(), "{folded}");
    let profile = profile(&other);
    for address in addresses {
        let is_it = |text: &String| text.contains(address);
        assert!(profile.string_table.iter().any(is_it), "{address}");
    }
}
