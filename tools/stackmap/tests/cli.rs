// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line: inputs that are not what they should be, pipes that end, colours, statuses.

#[path = "common/capture.rs"]
mod capture;

use capture::Text;
use stackmap::{
    capture::Manifest,
    source::{Loaded, Missing, Source},
    stack_map_bin::{self, LoadId, Order, Stack},
    tracefs::Tracefs,
};
use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
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
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .current_dir(data("."));
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Runs a command with `input` on its standard input.
fn run_with(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may end before it has read everything.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every command that reads a file, as it would be typed.
const READERS: [&[&str]; 10] = [
    &["dump"],
    &["report"],
    &["folded"],
    &["flame", "-o", "-"],
    &["view", "-o", "-"],
    &["export", "--format", "pprof"],
    &["export", "--format", "firefox"],
    &["export", "--format", "json"],
    &["export", "--format", "trace.dat"],
    &["resolve"],
];

/// A wrong input gives status 2, never a panic.
fn assert_refused(path: &Path, says: &str) {
    for reader in READERS {
        let mut arguments = reader.to_vec();
        let path = path.to_str().unwrap();
        // A text is what resolve reads; the map is where it is strict.
        if reader == ["resolve"] {
            arguments.extend(["--map", path, "trace"]);
        } else {
            arguments.push(path);
        }
        let output = run(&arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(says), "{arguments:?}: {text}");
    }
}

#[test]
fn wrong_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("input");
    for (content, says) in [
        (&b""[..], "the file is empty"),
        (b"BSMF", "ends inside its 16-byte header"),
        (
            b"what is this, then?",
            "neither a capture nor a stack_map_bin",
        ),
        (
            b"PK\x03\x04 and nothing of a zip archive",
            "truncated capture, or not a capture",
        ),
    ] {
        fs::write(&path, content).unwrap();
        assert_refused(&path, says);
    }
    let output = run(&["dump", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot read /nowhere/at/all"));
    assert_eq!(run(&["dump", "/"]).status.code(), Some(1));
}

#[test]
fn truncated_captures_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("input.data");
    let whole = fs::read(data("function.data")).unwrap();
    for len in (0..whole.len()).step_by(97) {
        fs::write(&path, &whole[..len]).unwrap();
        let output = run(&["report", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{len}: {}", stderr(&output));
    }
}

#[test]
fn damaged_captures_cause_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("input.data");
    let whole = fs::read(data("function.data")).unwrap();
    for at in (0..whole.len()).step_by(61) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(&path, &damaged).unwrap();
        let output = run(&["report", path.to_str().unwrap()]);
        // Damage to a date or a comment has no effect.
        assert!(
            matches!(output.status.code(), Some(0 | 2)),
            "{at}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn standard_input_is_read() {
    for name in ["stack_map_bin", "before.data"] {
        let file = run(&["dump", name]);
        let pipe = run_with(&["dump", "-"], &fs::read(data(name)).unwrap());
        assert!(pipe.status.success(), "{}", stderr(&pipe));
        assert_eq!(file.stdout, pipe.stdout);
    }
    let trace = fs::read(data("trace")).unwrap();
    let map = [
        "resolve",
        "--map",
        "stack_map_bin",
        "--kallsyms",
        "kallsyms",
    ];
    let pipe = run_with(&map, &trace);
    let file = run(&[&map[..], &["trace"]].concat());
    assert_eq!(file.stdout, pipe.stdout);
    assert!(run_with(&map, b"").stdout.is_empty());
}

#[test]
fn an_endless_input_is_refused_at_once() {
    for endless in ["/dev/zero", "/dev/urandom"] {
        let output = run(&["dump", endless]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    for arguments in [
        &["dump", "full.data"][..],
        &["resolve", "full.data"],
        &["folded", "full.data"],
    ] {
        let mut child = command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut first).unwrap();
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!stderr(&output).contains("pipe"), "{}", stderr(&output));
    }
}

#[test]
fn colours_follow_the_option_and_the_environment() {
    let report = ["report", "before.data"];
    let has_color = |command: &mut Command| command.output().unwrap().stdout.contains(&0x1b);
    assert!(!has_color(&mut command(&report)));
    assert!(has_color(&mut command(
        &[&report[..], &["--color", "always"]].concat()
    )));
    assert!(has_color(command(&report).env("CLICOLOR_FORCE", "1")));
    assert!(!has_color(
        command(&report)
            .env("CLICOLOR_FORCE", "1")
            .env("NO_COLOR", "1")
    ));
    let never = [&report[..], &["--color", "never"]].concat();
    assert!(!has_color(command(&never).env("CLICOLOR_FORCE", "1")));
}

#[test]
fn a_missing_tracefs_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    for arguments in [
        &["dump"][..],
        &["top", "--once"],
        &["stat"],
        &["reset"],
        &["record", "-e", "x:y"],
        &["report", "--live"],
    ] {
        let output = run(&[arguments, &["--tracefs", root]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr(&output).contains("there is no tracefs"),
            "{}",
            stderr(&output)
        );
    }
    // A tracefs without the module.
    fs::write(dir.path().join("trace"), "").unwrap();
    for arguments in [&["dump"][..], &["top", "--once"], &["stat"], &["reset"]] {
        let output = run(&[arguments, &["--tracefs", root]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr(&output).contains("module is not loaded"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_raw_map_has_no_events() {
    let output = run(&["report", "stack_map_bin"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("has no events"),
        "{}",
        stderr(&output)
    );
    // What only needs stacks takes it.
    for arguments in [
        &["folded"][..],
        &["export", "--format", "pprof"],
        &["flame", "-o", "-"],
    ] {
        let output = run(&[arguments, &["stack_map_bin"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!output.stdout.is_empty());
    }
}

/// A `stack_map_bin` of a load of the module, with one stack.
fn bin_of_load(load_id: u32) -> Vec<u8> {
    let stacks = [Stack {
        id: 0x0010_0005,
        ref_count: 1,
        ips: &[0xffff_ffff_8100_0010],
    }];
    let mut bin = Vec::new();
    let load_id = LoadId::new(load_id);
    stack_map_bin::write(&mut bin, Order::Little, load_id, stacks.into_iter()).unwrap();
    bin
}

/// Writes a capture of one event, that began with one load of the module and ended with another.
fn capture_of_loads(path: &Path, began: u32, ended: u32) {
    let bin = bin_of_load(ended);
    let trace =
        "  a-1 [000] ..... 1.000001: kmalloc: x\n  a-1 [000] ..... 1.000002: <stack_id 1048581>\n";
    let text = Text {
        trace,
        stack_map_bin: &bin,
        stat: b"bits: 14\n",
        kallsyms: b"ffffffff81000000 T foo\nffffffff81000100 T _end\n",
    };
    let manifest = Manifest {
        load_id: LoadId::new(began),
        slot_bits: Some(15),
        generation: Some(32),
        ..Manifest::default()
    };
    capture::write(path, &text, &manifest);
}

#[test]
fn ids_of_another_load_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
    capture_of_loads(&one, 7, 7);
    capture_of_loads(&other, 8, 8);
    let [one, other] = [&one, &other].map(|path| path.to_str().unwrap());
    let resolves = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let note = "1 event has an id of another load: the module was reloaded";
        let said = text.contains(note) || stderr(&output).contains(note);
        let shown = text.contains(": gone, the module was reloaded>");
        let resolved = text.contains("foo");
        assert_eq!(shown, !resolved, "{arguments:?}: {text}");
        assert_eq!(said, !resolved, "{arguments:?}: {}", stderr(&output));
        resolved
    };
    assert!(resolves(&["resolve", one]));
    assert!(resolves(&["resolve", "--map", one, one]));
    assert!(!resolves(&["resolve", "--map", other, one]));
    assert!(resolves(&["report", one]));

    // The recording began with another load than it ended with, or it is not known.
    let mixed = dir.path().join("mixed");
    let name = mixed.to_str().unwrap();
    for (began, ended, known) in [(7, 8, false), (0, 8, true), (7, 0, true)] {
        capture_of_loads(&mixed, began, ended);
        assert_eq!(resolves(&["resolve", name]), known);
        assert_eq!(resolves(&["report", name]), known);
        assert_eq!(resolves(&["folded", name]), known);
    }
}

#[test]
fn the_module_may_be_reloaded_between_trace_and_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
    fs::create_dir(dir.path().join("options")).unwrap();
    put("options/stackmap", b"1\n");
    put("trace", b"");
    for (before, after, known) in [(7, 7, true), (7, 8, false), (0, 8, true), (7, 0, true)] {
        let mut source = Source::open(None, Some(dir.path())).unwrap();
        put("stack_map_bin", &bin_of_load(before));
        source.hold_trace().unwrap();
        put("stack_map_bin", &bin_of_load(after));
        // Source::load() wants the lists of a running kernel besides.
        let loaded = Loaded {
            stacks: Tracefs::find(Some(dir.path())).unwrap().stacks().unwrap(),
            trace_load: source.trace_load(),
            ..Loaded::default()
        };
        assert_eq!(loaded.stack(0x0010_0005).is_some(), known);
        let missing = match known {
            true => Missing::Unknown,
            false => Missing::Gone,
        };
        assert_eq!(loaded.missing(5), missing);
    }
}

#[test]
fn an_empty_capture_has_no_flame_graph() {
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map");
    let svg = dir.path().join("out.svg");
    let mut header = Vec::new();
    for word in [0x464d_5342u32, 2, 0, 0] {
        header.extend(word.to_le_bytes());
    }
    fs::write(&map, header).unwrap();
    let map = map.to_str().unwrap();
    let output = run(&["flame", "-o", svg.to_str().unwrap(), map]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no stacks to draw"),
        "{}",
        stderr(&output)
    );
    assert!(!svg.exists());
    let output = run(&["dump", map]);
    assert!(output.status.success());
    assert!(output.stdout.is_empty());
    assert_eq!(run(&["dump", "--json", map]).stdout, b"[]\n");
    assert!(run(&["folded", map]).stdout.is_empty());
}

#[test]
fn failures_leave_no_partial_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let name = out.to_str().unwrap();
    fs::write(&out, "what was there").unwrap();
    let output = run(&["export", "--format", "firefox", "-o", name, "stack_map_bin"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(&out).unwrap(), b"what was there");

    let good = ["export", "--format", "json", "-o", name, "function.data"];
    assert!(run(&good).status.success());
    assert_eq!(fs::read(&out).unwrap().first(), Some(&b'{'));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // Devices and pipes are written to, not replaced.
    let output = run(&["flame", "-o", "/dev/full", "function.data"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("No space left"));
    let output = run(&["flame", "-o", "/dev/stdout", "function.data"]);
    assert!(output.stdout.starts_with(b"<?xml"));
}

#[test]
fn flame_graphs_are_well_formed() {
    let output = run(&["flame", "-o", "-", "before.data"]);
    let svg = String::from_utf8(output.stdout).unwrap();
    assert!(svg.starts_with("<?xml"), "{}", &svg[..80]);
    assert!(svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("__kmalloc_noprof ("));
}

#[test]
fn help_opens_with_examples() {
    let output = run(&["--help"]);
    assert!(output.stdout.starts_with(b"examples:\n"));
    for command in [
        "record",
        "report",
        "resolve",
        "dump",
        "folded",
        "flame",
        "diff",
        "export",
        "top",
        "stat",
        "reset",
        "doctor",
        "completions",
    ] {
        let output = run(&[command, "--help"]);
        assert!(output.stdout.starts_with(b"examples:\n  "), "{command}");
    }
}

#[test]
fn pages_and_completions_are_made() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run(&["manual", dir.path().to_str().unwrap()])
        .status
        .success());
    let page = fs::read_to_string(dir.path().join("stackmap-record.1")).unwrap();
    assert!(page.contains(".SH EXAMPLES") && page.contains("kmem:kmalloc"));
    assert!(!dir.path().join("stackmap-undo-recording.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(String::from_utf8(output.stdout)
            .unwrap()
            .contains("stackmap"));
    }
    let script = run(&["completions", "bash"]).stdout;
    let mut bash = Command::new("bash");
    let mut bash = bash.arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(&script).unwrap();
    assert!(bash.wait().unwrap().success());
}
