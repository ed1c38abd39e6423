// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is shown of a recording, and what is not: frames of tracing itself, addresses, controls of
//! terminals; and where it is written to.

#[path = "common/capture.rs"]
mod capture;

use capture::Text;
use flate2::read::GzDecoder;
use prost::Message;
use stackmap::{
    capture::{Manifest, Recorded},
    export::proto::Profile,
    stack_map_bin::{self, Order, Stack},
};
use std::{
    fs,
    io::Read,
    os::unix::fs::{symlink, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stackmap"));
    command
        .args(arguments)
        .env("NO_COLOR", "1")
        .current_dir(data("."));
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn stdout(arguments: &[&str]) -> Vec<u8> {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    output.stdout
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn contains(text: &[u8], what: &str) -> bool {
    String::from_utf8_lossy(text).contains(what)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Every way to show a capture, and whether it is packed.
const OUTPUTS: [(&[&str], bool); 12] = [
    (&["report"], false),
    (&["report", "--by", "stack"], false),
    (&["dump"], false),
    (&["dump", "--json"], false),
    (&["resolve"], false),
    (&["resolve", "--inline"], false),
    (&["folded"], false),
    (&["flame", "-o", "-"], false),
    (&["export", "--format", "json"], false),
    (&["export", "--format", "firefox"], false),
    (&["export", "--format", "pprof"], true),
    (&["export", "--format", "perfetto"], true),
];

/// What a command shows of a file.
fn shown(command: &[&str], is_packed: bool, file: &str) -> Vec<u8> {
    let bytes = stdout(&[command, &[file]].concat());
    let mut unpacked = Vec::new();
    match is_packed {
        true => GzDecoder::new(&bytes[..])
            .read_to_end(&mut unpacked)
            .unwrap(),
        false => return bytes,
    };
    unpacked
}

#[test]
fn frames_of_tracing_are_hidden_everywhere() {
    let plumbing = "trace_event_raw_event_";
    for (command, is_packed) in OUTPUTS {
        let hidden = shown(command, is_packed, "before.data");
        assert!(!contains(&hidden, plumbing), "{command:?}");
        let all = shown(
            &[command, &["--plumbing"]].concat(),
            is_packed,
            "before.data",
        );
        assert!(contains(&all, plumbing), "{command:?}");
    }
    // Also of full stacks. What an interrupt has interrupted is no plumbing.
    for file in ["full.data", "before.data"] {
        let folded = String::from_utf8(stdout(&["folded", file])).unwrap();
        let leaves = folded.lines().map(|line| line.rsplit(';').next().unwrap());
        assert_eq!(leaves.filter(|leaf| leaf.contains(plumbing)).count(), 0);
    }
    // The numbers of frames stay what they are.
    let dump = stdout(&["dump", "--top", "1", "before.data"]);
    assert!(contains(&dump, "\n  [2] 0x"));
    let diff = ["diff", "before.data", "after.data"];
    assert!(!contains(&stdout(&diff), plumbing));
}

#[test]
fn an_interrupted_address_is_looked_up_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let [map, names] = ["map", "names"].map(|name| dir.path().join(name));
    let kallsyms = "ffffffff81000000 T _text\nffffffff81000100 t memchr\nffffffff81000200 t \
                    __pfx_strlen\nffffffff81000210 t strlen\nffffffff81000230 t .Lloop\n\
                    ffffffff81000300 t asm_sysvec_apic_timer_interrupt\nffffffff81000400 t \
                    sysvec_apic_timer_interrupt\nffffffff81000500 t vfs_read\nffffffff81000600 t \
                    _end\n";
    fs::write(&names, kallsyms).unwrap();
    let name = |interrupted: u64, command: &[&str]| {
        let ips = [
            0xffff_ffff_8100_0410,
            0xffff_ffff_8100_0316,
            interrupted,
            0xffff_ffff_8100_0510,
        ];
        let stack = Stack {
            id: 1,
            ref_count: 1,
            ips: &ips,
        };
        let mut bin = Vec::new();
        stack_map_bin::write(&mut bin, Order::Little, None, [stack].into_iter()).unwrap();
        fs::write(&map, bin).unwrap();
        let files = ["--kallsyms", names.to_str().unwrap(), map.to_str().unwrap()];
        String::from_utf8(stdout(&[command, &files].concat())).unwrap()
    };
    for (interrupted, function) in [
        (0xffff_ffff_8100_0210, "strlen"),
        (0xffff_ffff_8100_0240, "strlen"),
        (0xffff_ffff_8100_0500, "vfs_read"),
        (0xffff_ffff_8100_01ff, "memchr"),
    ] {
        let want = format!(
            "vfs_read;{function};asm_sysvec_apic_timer_interrupt;sysvec_apic_timer_interrupt 1\n"
        );
        assert_eq!(name(interrupted, &["folded"]), want);
        let dump = name(interrupted, &["dump"]);
        assert!(dump.contains(&format!(" {function}+0x")), "{dump}");
    }
}

#[test]
fn inverted_graphs_begin_with_innermost_frames() {
    // Where the boxes of a function are, from the top.
    let rows = |arguments: &[&str], name: &str| -> Vec<u32> {
        let svg = String::from_utf8(stdout(arguments)).unwrap();
        let boxes = svg.split("<title>").skip(1).filter_map(|frame| {
            let text = frame.strip_prefix(name)?.strip_prefix(" (")?;
            let y = text.split(" y=\"").nth(1)?.split('"').next()?;
            y.parse().ok()
        });
        boxes.collect()
    };
    let flame = ["flame", "--by", "stack", "-o", "-", "function.data"];
    let inverted = [&flame[..], &["--inverted"]].concat();
    let (outer, inner) = ("do_syscall_64", "ksys_write");
    assert!(rows(&flame, inner).iter().max() < rows(&flame, outer).iter().min());
    assert!(rows(&inverted, inner).iter().max() < rows(&inverted, outer).iter().min());
    // From the leaf on, stacks are together as far as they are the same.
    let text = stdout(&["folded", "--by", "stack", "before.data"]);
    let text = String::from_utf8(text).unwrap();
    let stacks = text.lines().map(|line| line.rsplit_once(' ').unwrap().0);
    let mut leaves: Vec<_> = stacks
        .map(|stack| stack.rsplit(';').next().unwrap())
        .collect();
    leaves.sort_unstable();
    leaves.dedup();
    let before = [
        "flame",
        "--by",
        "stack",
        "--inverted",
        "-o",
        "-",
        "before.data",
    ];
    let top = rows(&before, "all")[0];
    for leaf in leaves {
        let rows = rows(&before, leaf);
        let first = rows.iter().min().unwrap();
        assert_eq!(*first, top + 16, "{leaf}");
        assert_eq!(rows.iter().filter(|row| *row == first).count(), 1, "{leaf}");
    }
}

#[test]
fn exports_hide_kernel_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let name = out.to_str().unwrap();
    let exports = [
        &["flame", "-o", name][..],
        &["export", "--format", "json", "-o", name],
        &["export", "--format", "firefox", "-o", name],
        &["export", "--format", "pprof", "-o", name],
        &["diff", "before.data", "--flame", name],
    ];
    // Without names, everything is an address.
    for file in ["before.data", "full.data", "stack_map_bin"] {
        for (index, export) in exports.iter().enumerate() {
            if (file, index) == ("stack_map_bin", 2) {
                continue;
            }
            for addresses in [false, true] {
                let mut arguments = [export, &[file][..]].concat();
                arguments.extend(addresses.then_some("--addresses"));
                stdout(&arguments);
                let bytes = fs::read(&out).unwrap();
                let told = match index {
                    3 => {
                        let mut unpacked = Vec::new();
                        GzDecoder::new(&bytes[..])
                            .read_to_end(&mut unpacked)
                            .unwrap();
                        let profile = Profile::decode(&unpacked[..]).unwrap();
                        let locations = profile.location.iter().map(|location| location.address);
                        let mappings = profile.mapping.iter();
                        let mappings =
                            mappings.flat_map(|map| [map.memory_start, map.memory_limit]);
                        locations.chain(mappings).any(|address| address >> 56 != 0)
                            || profile
                                .string_table
                                .iter()
                                .any(|text| text.starts_with("0xffff"))
                    }
                    _ => contains(&bytes, "0xffff"),
                };
                assert!(!told || addresses, "{arguments:?}");
                let want = if addresses { 0o600 } else { 0o644 };
                assert_eq!(mode(&out) & !0o022, want, "{arguments:?}");
                // Addresses are shown on request.
                let some = file == "stack_map_bin" || index == 1 || index == 3;
                assert!(told || !addresses || !some, "{arguments:?}");
            }
        }
    }
}

#[test]
fn a_profile_begins_when_the_recording_did() {
    let bytes = shown(&["export", "--format", "pprof"], true, "function.data");
    let profile = Profile::decode(&bytes[..]).unwrap();
    // Of its manifest.
    assert_eq!(profile.time_nanos, 1_795_253_622_000_000_000 - 108_239_296);
    assert_eq!(profile.duration_nanos, 108_239_296);
}

/// Writes a capture of one event with one stack, whose names control a terminal.
fn hostile_capture(path: &Path, recorded: Recorded) {
    let stacks = [Stack {
        id: 5,
        ref_count: 1,
        ips: &[0xffff_ffff_8100_0010],
    }];
    let mut bin = Vec::new();
    stack_map_bin::write(&mut bin, Order::Little, None, stacks.into_iter()).unwrap();
    let trace = "  a\x1b]0;x\x07-1 [000] ..... 1.000001: k\x1b[1mmalloc: x\x1b[2J\u{9b}2J\n  \
                 a\x1b]0;x\x07-1 [000] ..... 1.000002: <stack_id 5>\n";
    let text = Text {
        trace,
        stack_map_bin: &bin,
        stat: b"bits: 14\nevil\x1b[2J: \x1b[2J\n",
        kallsyms:
            b"ffffffff81000000 t f\x1b[2Joo\t[m\x1b[2J]\nffffffff81000100 t _end\t[m\x1b[2J]\n",
    };
    let manifest = Manifest {
        release: "7\x1b[2J".to_owned(),
        machine: "x\x1b[2J".to_owned(),
        duration_ns: 1,
        recorded,
        ..Manifest::default()
    };
    capture::write(path, &text, &manifest);
}

#[test]
fn no_name_controls_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("e\x1b[2Jvil");
    let name = path.to_str().unwrap();
    hostile_capture(
        &path,
        Recorded {
            events: vec!["e\x1b[2J".to_owned()],
            command: vec!["c\x1b[2J".to_owned()],
            ..Recorded::default()
        },
    );
    let outputs = OUTPUTS.iter().filter(|(_, is_packed)| !is_packed);
    let outputs = outputs.map(|(command, _)| [command, &[name][..]].concat());
    let others = [
        vec!["diff", "before.data", name],
        vec!["diff", "--flame", "-", "before.data", name],
        vec!["stat", name],
        vec!["report", "--by", "comm", "--plumbing", name],
        vec!["resolve", "--offsets", name],
        // Errors.
        vec!["dump", "--vmlinux", name, name],
        vec!["dump", "--kallsyms", name, name],
        vec!["report", "--kallsyms", "/nowhere/\x1b[2J", name],
        vec!["flame", "-o", "/nowhere/\x1b[2J", name],
    ];
    for arguments in outputs.chain(others) {
        let output = run(&arguments);
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            let control = text
                .chars()
                .find(|c| c.is_control() && !"\n\t".contains(*c));
            assert_eq!(control, None, "{arguments:?}: {text:?}");
        }
    }
}

#[test]
fn output_follows_no_link_of_other_users() {
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let link = open.join("out.svg");
    symlink(&victim, &link).unwrap();
    let name = link.to_str().unwrap();
    for arguments in [
        &["flame", "-o", name, "function.data"][..],
        &["export", "--format", "json", "-o", name, "function.data"],
        &["diff", "--flame", name, "before.data", "after.data"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr(&output).contains("other users can write to"),
            "{}",
            stderr(&output)
        );
        assert_eq!(fs::read(&victim).unwrap(), b"mine", "{arguments:?}");
    }
    // In a directory of one's own it is followed.
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    stdout(&["flame", "-o", name, "function.data"]);
    assert!(fs::read(&victim).unwrap().starts_with(b"<?xml"));
    for device in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let text = stdout(&["flame", "-o", device, "function.data"]);
        assert!(text.starts_with(b"<?xml"), "{device}");
    }
}

#[test]
fn comparing_different_events_warns() {
    let warning = "WARNING: the captures recorded different events: only in before.data: \
                   kmem:kmalloc sched:sched_switch; only in function.data: ";
    let output = run(&["diff", "before.data", "function.data"]);
    assert!(stderr(&output).starts_with(warning), "{}", stderr(&output));
    let output = run(&["diff", "before.data", "after.data"]);
    assert!(!stderr(&output).contains("different events"));
    let output = run(&["diff", "--compare", "rate", "before.data", "stack_map_bin"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("it has no rates"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn wrong_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("input");
    for (content, says, hint) in [
        (
            &b"PERFILE2 and so on, much longer"[..],
            "a recording of perf",
            "perf script",
        ),
        (
            b"# tracer: nop\n#\n",
            "the text of a trace",
            "stackmap resolve",
        ),
        (
            b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            "packed by gzip",
            "unpack",
        ),
        (
            b"ffffffff81000000 T _text\n",
            "a table of symbols",
            "--kallsyms",
        ),
    ] {
        fs::write(&path, content).unwrap();
        let output = run(&["report", path.to_str().unwrap()]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            text.contains(says) && text.contains("hint: ") && text.contains(hint),
            "{text}"
        );
    }
    let output = command(&["report"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = stderr(&output);
    assert!(text.contains("\"stackmap record\" writes it"), "{text}");
    let output = run(&["report", dir.path().to_str().unwrap()]);
    assert!(stderr(&output).contains("this is a directory"));
}

/// Runs a command on a terminal of its own; what that shows.
fn on_terminal(shell: &str, pager: Option<&str>) -> String {
    let mut script = Command::new("script");
    script
        .args([
            "-qec",
            &format!("{} {shell}", env!("CARGO_BIN_EXE_stackmap")),
            "/dev/null",
        ])
        .env("NO_COLOR", "1")
        .env_remove("PAGER")
        .env_remove("LESS")
        .current_dir(data("."));
    if let Some(pager) = pager {
        script.env("PAGER", pager);
    }
    let output = script.output().unwrap();
    assert!(output.status.success(), "{shell}");
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
        let arguments: Vec<_> = command.split(' ').collect();
        let plain = String::from_utf8(stdout(&arguments)).unwrap();
        let lines = paged.lines().filter(|line| line.starts_with("PAGE:"));
        assert_eq!(lines.count(), plain.lines().count(), "{command}");
    }
    // No pager with --no-pager or if PAGER is empty, cat or missing, and never into a pipe.
    for (arguments, pager) in [
        ("--no-pager", Some(pager)),
        ("", Some("")),
        ("", Some("cat")),
        ("", Some("/nowhere/pager")),
    ] {
        let text = on_terminal(&format!("report before.data {arguments}"), pager);
        assert!(text.starts_with("before.data: Linux"), "{pager:?}: {text}");
    }
    let output = command(&["report", "before.data"])
        .env("PAGER", pager)
        .output()
        .unwrap();
    assert!(output.stdout.starts_with(b"before.data"));
    // A pager that ends early is no error.
    on_terminal("dump full.data", Some("head -n 1"));
}
