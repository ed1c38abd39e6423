// SPDX-License-Identifier: MIT OR Apache-2.0

//! Inputs that are not what they should be, pipes that end, colours, output files, help.

use super::{
    made::{self, bin, Text},
    tool::{command, data, run, stdout, Dir, Ran},
};
use stackmap::{capture::Manifest, stack_map_bin::LoadId};
use std::{
    fs,
    io::{Read, Write},
    process::{Command, Stdio},
};

/// Runs a command with `input` on its standard input.
fn run_with(arguments: &str, input: &[u8]) -> Ran {
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
    output.into()
}

/// Every command that reads a file. A text is what `resolve` reads; the map is where it is strict.
const READERS: &str = "dump, report, folded, flame -o -, view -o -, export --format pprof, \
                       export --format firefox, export --format json, \
                       export --format trace.dat, resolve trace --map";

#[test]
fn wrong_files_are_refused() {
    let dir = Dir::new();
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
        let path = dir.put("input", content);
        for reader in READERS.split(", ") {
            run(format!("{reader} {path}")).failed(2, says);
        }
    }
    run("dump /").failed(1, "");
}

#[test]
fn wrong_files_are_named() {
    let dir = Dir::new();
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
        let path = dir.put("input", content);
        let text = run(format!("report {path}")).failed(2, says).stderr;
        assert!(text.contains("hint: ") && text.contains(hint), "{text}");
    }
    let ran: Ran = command("report").current_dir(&dir).output().unwrap().into();
    ran.failed(1, "\"stackmap record\" writes it");
    run(format!("report {}", dir.at("."))).failed(1, "this is a directory");
}

#[test]
fn truncated_captures_are_refused() {
    let dir = Dir::new();
    let whole = fs::read(data("function.data")).unwrap();
    for len in (0..whole.len()).step_by(97) {
        let path = dir.put("input.data", &whole[..len]);
        run(format!("report {path}")).failed(2, "");
    }
}

#[test]
fn damaged_captures_cause_no_panic() {
    let dir = Dir::new();
    let whole = fs::read(data("function.data")).unwrap();
    for at in (0..whole.len()).step_by(61) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        let ran = run(format!("report {}", dir.put("input.data", damaged)));
        // Damage to a date or a comment has no effect.
        assert!(matches!(ran.status, Some(0 | 2)), "{at}: {}", ran.stderr);
    }
}

#[test]
fn standard_input_is_read() {
    for name in ["stack_map_bin", "before.data"] {
        let pipe = run_with("dump -", &fs::read(data(name)).unwrap()).well();
        assert_eq!(run(format!("dump {name}")).stdout, pipe.stdout);
    }
    let trace = fs::read(data("trace")).unwrap();
    let map = "resolve --map stack_map_bin --kallsyms kallsyms";
    let file = run(format!("{map} trace"));
    assert_eq!(file.stdout, run_with(map, &trace).stdout);
    assert!(run_with(map, b"").stdout.is_empty());
}

#[test]
fn an_endless_input_is_refused_at_once() {
    run("dump /dev/zero").failed(2, "");
    run("dump /dev/urandom").failed(2, "");
}

#[test]
fn a_closed_pipe_is_no_error() {
    for arguments in ["dump full.data", "resolve full.data", "folded full.data"] {
        let mut child = command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut first).unwrap();
        drop(pipe);
        let ran = Ran::from(child.wait_with_output().unwrap()).well();
        assert!(!ran.stderr.contains("pipe"), "{}", ran.stderr);
    }
}

#[test]
fn colours_follow_the_option_and_the_environment() {
    let has_color = |arguments: &str, variables: &[&str]| {
        let mut command = command(arguments);
        command.env_remove("NO_COLOR");
        command.envs(variables.iter().map(|name| (name, "1")));
        command.output().unwrap().stdout.contains(&0x1b)
    };
    assert!(!has_color("report before.data", &[]));
    assert!(has_color("report before.data --color always", &[]));
    assert!(has_color("report before.data", &["CLICOLOR_FORCE"]));
    let both = ["CLICOLOR_FORCE", "NO_COLOR"];
    assert!(!has_color("report before.data", &both));
    let never = "report before.data --color never";
    assert!(!has_color(never, &["CLICOLOR_FORCE"]));
}

#[test]
fn a_missing_tracefs_or_module_is_named() {
    let dir = Dir::new();
    let at = dir.at(".");
    let commands = ["dump", "top --once", "stat", "reset", "record -e x:y"];
    for command in commands {
        run(format!("{command} --tracefs {at}")).failed(1, "there is no tracefs");
    }
    dir.put("trace", "");
    for command in &commands[..4] {
        run(format!("{command} --tracefs {at}")).failed(1, "module is not loaded");
    }
}

/// Writes a capture of one event, that began with one load of the module and ended with another.
fn capture_of_loads(path: &str, began: u32, ended: u32) {
    let bin = bin(
        LoadId::new(ended),
        &[(0x0010_0005, &[0xffff_ffff_8100_0010])],
    );
    let trace =
        "  a-1 [000] ..... 1.000001: kmalloc: x\n  a-1 [000] ..... 1.000002: <stack_id 1048581>\n";
    let text = Text {
        trace,
        stack_map_bin: &bin,
        kallsyms: b"ffffffff81000000 T foo\nffffffff81000100 T _end\n",
    };
    let manifest = Manifest {
        load_id: LoadId::new(began),
        slot_bits: Some(15),
        generation: Some(32),
        ..Manifest::default()
    };
    made::capture(&text, &manifest).write(path);
}

#[test]
fn ids_of_another_load_are_gone() {
    let dir = Dir::new();
    let [one, other, mixed] = ["one", "other", "mixed"].map(|name| dir.at(name));
    capture_of_loads(&one, 7, 7);
    capture_of_loads(&other, 8, 8);
    let resolves = |arguments: &str| {
        let ran = run(arguments).well();
        let said = ran.stderr.clone();
        let text = ran.text();
        let note = "1 event has an id of another load: the module was reloaded";
        let is_said = text.contains(note) || said.contains(note);
        let is_shown = text.contains(": gone, the module was reloaded>");
        let resolved = text.contains("foo");
        assert_eq!(is_shown, !resolved, "{arguments}: {text}");
        assert_eq!(is_said, !resolved, "{arguments}: {said}");
        resolved
    };
    assert!(resolves(&format!("resolve {one}")));
    assert!(resolves(&format!("resolve --map {one} {one}")));
    assert!(!resolves(&format!("resolve --map {other} {one}")));
    assert!(resolves(&format!("report {one}")));
    // The recording began with another load than it ended with, or it is not known.
    for (began, ended, known) in [(7, 8, false), (0, 8, true), (7, 0, true)] {
        capture_of_loads(&mixed, began, ended);
        for command in ["resolve", "report", "folded"] {
            assert_eq!(resolves(&format!("{command} {mixed}")), known);
        }
    }
}

#[test]
fn an_empty_capture_has_no_flame_graph() {
    let dir = Dir::new();
    let (map, svg) = (dir.put("map", bin(None, &[])), dir.at("out.svg"));
    run(format!("flame -o {svg} {map}")).failed(1, "no stacks to draw");
    assert_eq!(dir.nr_files(), 1);
    assert_eq!(stdout(format!("dump {map}")), "");
    assert_eq!(stdout(format!("dump --json {map}")), "[]\n");
    assert_eq!(stdout(format!("folded {map}")), "");
}

#[test]
fn failures_leave_no_partial_file() {
    let dir = Dir::new();
    let out = dir.put("out", "what was there");
    run(format!("export --format firefox -o {out} stack_map_bin")).failed(2, "");
    assert_eq!(fs::read(&out).unwrap(), b"what was there");
    stdout(format!("export --format json -o {out} function.data"));
    assert_eq!(fs::read(&out).unwrap().first(), Some(&b'{'));
    assert_eq!(dir.nr_files(), 1);
    // Devices and pipes are written to, not replaced.
    for command in ["flame", "export --format json", "export --format pprof"] {
        let text = "cannot write /dev/full: No space left on device";
        run(format!("{command} -o /dev/full function.data")).failed(1, text);
    }
    assert!(stdout("flame -o /dev/stdout function.data").starts_with("<?xml"));
}

#[test]
fn help_opens_with_examples() {
    assert!(stdout("--help").starts_with("examples:\n"));
    let commands =
        "record report resolve dump folded flame diff export top stat reset doctor completions";
    for command in commands.split(' ') {
        let help = stdout(format!("{command} --help"));
        assert!(help.starts_with("examples:\n  "), "{command}");
    }
}

#[test]
fn pages_and_completions_are_made() {
    let dir = Dir::new();
    stdout(format!("manual {}", dir.at(".")));
    let page = fs::read_to_string(dir.at("stackmap-record.1")).unwrap();
    assert!(page.contains(".SH EXAMPLES") && page.contains("kmem:kmalloc"));
    assert!(fs::metadata(dir.at("stackmap-guard-recording.1")).is_err());
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(format!("completions {shell}")).contains("stackmap"));
    }
    let script = dir.put("script", stdout("completions bash"));
    let bash = Command::new("bash").args(["-n", &script]).status();
    assert!(bash.unwrap().success());
}
