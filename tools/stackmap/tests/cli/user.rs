// SPDX-License-Identifier: MIT OR Apache-2.0

//! User stacks of captures that were altered.

use super::tool::{data, run, stdout, unpacked, Dir, Members};
use prost::Message;
use serde_json::Value;
use stackmap::{capture::member, export::proto::Profile};
use std::process::Command;

/// Returns what a command prints of `user.data` with another text in the place of one in a member.
fn altered(command: &str, name: &str, from: &str, to: &str) -> Vec<u8> {
    let dir = Dir::new();
    let path = dir.at("other");
    let mut capture = Members::read(data("user.data"));
    let text = capture.text(name);
    assert!(text.contains(from));
    let text = text.replace(from, to).into_bytes();
    capture.members.insert(name.to_owned(), text);
    capture.write(&path);
    run(format!("{command} {path}")).well().stdout
}

fn altered_text(command: &str, name: &str, from: &str, to: &str) -> String {
    String::from_utf8(altered(command, name, from, to)).unwrap()
}

const KNOWN: &str = "00112233445566778899aabbccddeeff00112233";

#[test]
fn offsets_of_two_builds_are_not_compared() {
    let diff = "diff --user --of function --compare total --top 99 user.data";
    let same = stdout(format!("{diff} user.data"));
    assert!(same.contains("no total has changed"), "{same}");
    let other = KNOWN.replace("0011", "feed");
    let text = altered_text(diff, member::BINARIES, KNOWN, &other);
    for build in ["known@00112233+0x1739c", "known@feed2233+0x1739c"] {
        assert!(text.contains(build), "{build}: {text}");
    }
    // busybox is the same.
    assert!(!text.contains("busybox"), "{text}");
}

/// Decodes an export.
fn profile(packed: &[u8]) -> Profile {
    Profile::decode(&unpacked(packed)[..]).unwrap()
}

#[test]
fn a_file_is_a_mapping_of_a_profile() {
    // Two files with the same path.
    let pprof = "export --format pprof";
    let profile = profile(&altered(
        pprof,
        member::BINARIES,
        "/bin/busybox",
        "/tests/known",
    ));
    let text = |index: i64| &profile.string_table[index as usize][..];
    let files = profile.mapping.iter();
    let files = files.filter(|file| text(file.filename) == "/tests/known");
    let mut files: Vec<_> = files
        .map(|file| (text(file.build_id), file.memory_limit, file.has_functions))
        .collect();
    files.sort_unstable();
    const OTHER: &str = "d8649014c596b9370eae035e050a2799b8fbed41";
    assert_eq!(files, [(KNOWN, 802568, false), (OTHER, 2024544, false)]);
}

const PERF_MAP: &str = "perf-146-3543560.map";

#[test]
fn addresses_in_a_profile_are_those_of_a_process() {
    let folded = altered_text("folded --user", PERF_MAP, " ", "_");
    let frames = folded.split([';', '\n']);
    let addresses = frames.filter(|frame| frame.contains("(process "));
    let addresses: Vec<_> = addresses
        .map(|frame| frame.rsplit_once(')').unwrap().0)
        .collect();
    assert!(!addresses.is_empty(), "{folded}");
    let profile = profile(&altered("export --format pprof", PERF_MAP, " ", "_"));
    for address in addresses {
        let is_it = |text: &String| text.contains(address);
        assert!(profile.string_table.iter().any(is_it), "{address}");
    }
}

/// All of `known` is in a function that is inlined, at line 3.
const INLINED: &str = "\
static inline __attribute__((always_inline)) void inner(void)
{
	__asm__ volatile(\".skip 0x30000\");
}
int main(void)
{
	inner();
	return 0;
}
";

#[test]
fn lines_of_programs_are_exported_and_inlined_functions_have_no_offsets() {
    let dir = Dir::new();
    let (source, program) = (dir.put("m.c", INLINED), dir.at("known"));
    let build_id = format!("-Wl,--build-id=0x{KNOWN}");
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O1", &build_id, &source, "-o", &program]);
    assert!(cc.status().unwrap().success());
    // Its segments are not those of the program that was recorded.
    let export = |format: &str| {
        let command = format!("export --format {format} --debug-dir {}", dir.at("."));
        altered(&command, member::SEGMENTS, "[4,[", "[9,[")
    };
    let json: Value = serde_json::from_slice(&export("json")).unwrap();
    let stacks = json["user_stacks"].as_array().unwrap().iter();
    let frames = stacks.flat_map(|stack| stack["frames"].as_array().unwrap());
    let (mut inner, mut outer) = (0, 0);
    for frame in frames {
        let (lines, is_inlined) = match frame["function"].as_str() {
            Some("inner") => (&mut inner, true),
            Some("main") => (&mut outer, false),
            _ => continue,
        };
        *lines += 1;
        assert_eq!(frame["line"], if is_inlined { 3 } else { 7 }, "{frame}");
        assert_eq!(frame["offset"].is_u64(), !is_inlined, "{frame}");
    }
    assert!(inner > 5 && inner == outer);

    let profile = profile(&export("pprof"));
    let name = |id: u64| {
        let mut functions = profile.function.iter();
        let function = functions.find(|function| function.id == id).unwrap();
        &profile.string_table[function.name as usize][..]
    };
    let lines = profile.location.iter().flat_map(|place| &place.line);
    let mut lines: Vec<_> = lines
        .map(|line| (name(line.function_id), line.line))
        .filter(|(name, _)| ["inner", "main"].contains(name))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines, [("inner", 3), ("main", 7)]);
}
