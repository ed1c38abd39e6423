// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is shown of a recording, and what is not: frames of tracing itself, addresses, controls of
//! terminals; and where it is written to.

use super::{
    made::{self, bin, Text},
    tool::{command, contains, data, mode, run, stdout, unpacked, Dir, Members},
};
use prost::Message;
use serde_json::Value;
use stackmap::{
    capture::{member, Manifest, Recorded},
    export::proto::Profile,
};
use std::{fs, process::Command};

/// Every way to show a capture; and those that are packed.
const OUTPUTS: &str =
    "report, report --by stack, dump, dump --json, resolve, resolve --inline, folded, \
                       flame -o -, export --format json, export --format firefox";
const PACKED: [&str; 2] = ["export --format pprof", "export --format perfetto"];

/// Returns what a command shows.
fn shown(arguments: &str) -> Vec<u8> {
    let bytes = run(arguments).well().stdout;
    match bytes.starts_with(b"\x1f\x8b") {
        true => unpacked(&bytes),
        false => bytes,
    }
}

#[test]
fn frames_of_tracing_are_hidden_everywhere() {
    let plumbing = "trace_event_raw_event_";
    for command in OUTPUTS.split(", ").chain(PACKED) {
        let hidden = shown(&format!("{command} after.data"));
        assert!(!contains(&hidden, plumbing), "{command}");
        let all = shown(&format!("{command} --plumbing after.data"));
        assert!(contains(&all, plumbing), "{command}");
    }
    // Also of full stacks. What an interrupt has interrupted is no plumbing.
    for file in ["full.data", "after.data"] {
        let folded = stdout(format!("folded {file}"));
        let mut leaves = folded.lines().map(|line| line.rsplit(';').next().unwrap());
        assert!(leaves.all(|leaf| !leaf.contains(plumbing)));
    }
    // The numbers of frames stay what they are.
    let dump = stdout("dump --top 1 before.data");
    assert!(dump.contains("\n  [1] 0x") && !dump.contains("\n  [0] 0x"));
    assert!(!stdout("diff before.data after.data").contains(plumbing));
}

#[test]
fn inverted_graphs_begin_with_innermost_frames() {
    // Where the boxes of a function are, from the top.
    let rows = |arguments: &str, name: &str| -> Vec<u32> {
        let svg = stdout(format!("flame --by stack -o - {arguments}"));
        let boxes = svg.split("<title>").skip(1).filter_map(|frame| {
            let text = frame.strip_prefix(name)?.strip_prefix(" (")?;
            let y = text.split(" y=\"").nth(1)?.split('"').next()?;
            y.parse().ok()
        });
        boxes.collect()
    };
    let inverted = "--inverted function.data";
    let (outer, inner) = ("do_syscall_64", "ksys_write");
    assert!(rows("function.data", inner).iter().max() < rows("function.data", outer).iter().min());
    assert!(rows(inverted, inner).iter().max() < rows(inverted, outer).iter().min());
    // From the leaf on, stacks are together as far as they are the same.
    let text = stdout("folded --by stack before.data");
    let stacks = text.lines().map(|line| line.rsplit_once(' ').unwrap().0);
    let leaves = stacks.map(|stack| stack.rsplit(';').next().unwrap());
    let mut leaves: Vec<_> = leaves.collect();
    leaves.sort_unstable();
    leaves.dedup();
    let before = "--inverted before.data";
    let top = rows(before, "all")[0];
    for leaf in leaves {
        let rows = rows(before, leaf);
        let first = rows.iter().min().unwrap();
        assert_eq!(*first, top + 16, "{leaf}");
        assert_eq!(rows.iter().filter(|row| *row == first).count(), 1, "{leaf}");
    }
}

/// Whether a profile has addresses of the kernel.
fn has_addresses(profile: &[u8]) -> bool {
    let profile = Profile::decode(profile).unwrap();
    let locations = profile.location.iter().map(|location| location.address);
    let mappings = profile.mapping.iter();
    let mappings = mappings.flat_map(|map| [map.memory_start, map.memory_limit]);
    let mut texts = profile.string_table.iter();
    locations.chain(mappings).any(|address| address >> 56 != 0)
        || texts.any(|text| text.starts_with("0xffff"))
}

#[test]
fn exports_hide_kernel_addresses() {
    let dir = Dir::new();
    let out = dir.at("out");
    let exports = [
        "flame -o",
        "export --format json -o",
        "export --format firefox -o",
        "export --format pprof -o",
        "diff before.data --flame",
    ];
    // Without names, everything is an address.
    for file in ["before.data", "full.data", "stack_map_bin"] {
        for (index, export) in exports.iter().enumerate() {
            if (file, index) == ("stack_map_bin", 2) {
                continue;
            }
            for (more, want) in [("", 0o644), ("--addresses", 0o600)] {
                let arguments = format!("{export} {out} {file} {more}");
                stdout(&arguments);
                let bytes = fs::read(&out).unwrap();
                let is_said = match index {
                    3 => has_addresses(&unpacked(&bytes)),
                    _ => contains(&bytes, "0xffff"),
                };
                assert_eq!(mode(&out) & !0o022, want, "{arguments}");
                // Addresses are shown on request.
                let some = file == "stack_map_bin" || index == 1 || index == 3;
                assert!(!is_said || !more.is_empty(), "{arguments}");
                assert!(is_said || more.is_empty() || !some, "{arguments}");
            }
        }
    }
}

#[test]
fn a_profile_begins_when_the_recording_did() {
    let profile = shown("export --format pprof function.data");
    let profile = Profile::decode(&profile[..]).unwrap();
    // Of its manifest.
    let manifest = Members::read(data("function.data")).manifest;
    let begin = manifest.clocks.begin.unwrap();
    assert_eq!(profile.time_nanos, begin.realtime_ns as i64);
    assert_eq!(profile.duration_nanos, manifest.duration_ns as i64);
    let profile = stdout("export --format firefox function.data");
    let profile: Value = serde_json::from_str(&profile).unwrap();
    // In milliseconds, from when the clock of the trace was 0.
    let start = profile["meta"]["startTime"].as_f64().unwrap();
    assert!((start - (begin.realtime_ns - begin.trace) as f64 / 1e6).abs() < 0.01);
    let deltas = &profile["threads"][0]["samples"]["timeDeltas"];
    assert_eq!(deltas[0].as_f64().unwrap().round(), 20114.0);
}

/// Writes a capture of one event with one stack, whose names control a terminal.
fn hostile_capture(path: &str) {
    let trace = "  a\x1b]0;x\x07-1 [000] ..... 1.000001: kmalloc: x\x1b[2J\u{9b}2J\n  \
                 a\x1b]0;x\x07-1 [000] ..... 1.000002: <stack_id 5>\n";
    let text = Text {
        trace,
        stack_map_bin: &bin(None, &[(5, &[0xffff_ffff_8100_0010])]),
        kallsyms:
            b"ffffffff81000000 t f\x1b[2Joo\t[m\x1b[2J]\nffffffff81000100 t _end\t[m\x1b[2J]\n",
    };
    let manifest = Manifest {
        release: "7\x1b[2J".to_owned(),
        machine: "x\x1b[2J".to_owned(),
        duration_ns: 1,
        recorded: Recorded {
            events: vec!["e\x1b[2J".to_owned()],
            command: vec!["c\x1b[2J".to_owned()],
            ..Recorded::default()
        },
        ..Manifest::default()
    };
    let mut capture = made::capture(&text, &manifest);
    let stat = capture.members.get_mut(member::STAT).unwrap();
    stat.extend(b"evil\x1b[2J: \x1b[2J\n");
    capture.write(path);
}

#[test]
fn no_name_controls_the_terminal() {
    let dir = Dir::new();
    let name = dir.at("e\x1b[2Jvil");
    hostile_capture(&name);
    let outputs = OUTPUTS.split(", ");
    let outputs = outputs.map(|command| format!("{command} {name}"));
    let others = [
        format!("diff before.data {name}"),
        format!("diff --flame - before.data {name}"),
        format!("stat {name}"),
        format!("report --by comm --plumbing {name}"),
        format!("resolve --offsets {name}"),
        // Errors.
        format!("dump --vmlinux {name} {name}"),
        format!("dump --kallsyms {name} {name}"),
        format!("report --kallsyms /nowhere/\x1b[2J {name}"),
        format!("flame -o /nowhere/\x1b[2J {name}"),
    ];
    for arguments in outputs.chain(others) {
        let ran = run(&arguments);
        for text in [&String::from_utf8_lossy(&ran.stdout), &ran.stderr[..]] {
            let mut chars = text.chars();
            let control = chars.find(|c| c.is_control() && !"\n\t".contains(*c));
            assert_eq!(control, None, "{arguments}: {text:?}");
        }
    }
}

/// Runs a command on a terminal of its own; what that shows.
fn on_terminal(arguments: &str, pager: Option<&str>) -> String {
    let mut script = Command::new("script");
    let shell = format!("{} {arguments}", env!("CARGO_BIN_EXE_stackmap"));
    script
        .args(["-qec", &shell, "/dev/null"])
        .env("NO_COLOR", "1")
        .env_remove("PAGER")
        .env_remove("LESS")
        .envs(pager.map(|pager| ("PAGER", pager)))
        .current_dir(data("."));
    let output = script.output().unwrap();
    assert!(output.status.success(), "{arguments}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn long_results_go_through_a_pager() {
    let pager = "sed s/^/PAGE:/";
    for command in [
        "report before.data",
        "dump before.data",
        "diff before.data after.data",
    ] {
        let paged = on_terminal(command, Some(pager));
        assert!(paged.starts_with("PAGE:"), "{command}: {paged}");
        let lines = paged.lines().filter(|line| line.starts_with("PAGE:"));
        assert_eq!(lines.count(), stdout(command).lines().count(), "{command}");
    }
    // No pager with --no-pager or if PAGER is empty, cat or missing, and never into a pipe.
    for (arguments, pager) in [
        ("--no-pager", pager),
        ("", ""),
        ("", "cat"),
        ("", "/nowhere/pager"),
    ] {
        let text = on_terminal(&format!("report before.data {arguments}"), Some(pager));
        assert!(text.starts_with("before.data: Linux"), "{pager}: {text}");
    }
    let output = command("report before.data").env("PAGER", pager).output();
    assert!(output.unwrap().stdout.starts_with(b"before.data"));
    // A pager that ends early is no error.
    on_terminal("dump full.data", Some("head -n 1"));
}
