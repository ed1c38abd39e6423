// SPDX-License-Identifier: GPL-2.0

//! Programs that have code without CFI: of musl, Go, and Rust with musl, as they are packaged; and node, which generates code.
//!
//! `selftests/step-debian` has their files.

use super::{build, step, step_on, ShadowStacks, Target};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the path of a file of the packages.
fn packaged(path: &str) -> PathBuf {
    let root = env::var_os("STACKMAP_PROGRAMS").expect("the directory of the packages");
    Path::new(&root).join(path)
}

/// Steps a program, of which no stack may be wrong, and at least `least` percent must be complete without a guess.
fn check(program: &Path, arguments: &[&str], least: f64) {
    let counts = step(Command::new(program).args(arguments), true, 30_000);
    assert!(counts.are_right(least), "{}", program.display());
}

#[test]
#[ignore = "needs packages"]
fn musl() {
    let specs = packaged("usr/lib/x86_64-linux-musl/musl-gcc.specs");
    let specs = format!("-specs={}", specs.display());
    for (flags, least) in [("-O2 -static", 88.0), ("-Os -fno-omit-frame-pointer", 90.0)] {
        let program = build("cc", "steps.c", &format!("{flags} {specs}"));
        check(&program, &[], least);
        fs::remove_file(program).unwrap();
    }
}

/// Steps a program that is stopped and has these stacks.
fn check_on(name: &str, target: &mut Target, shadows: ShadowStacks, least: f64) {
    let counts = step_on((name, target), shadows, (1, 5_000));
    // One that ends at once would have none that is wrong.
    assert!(counts.all() > 1_000 && counts.are_right(least), "{name}");
}

/// It is stepped from main() on: before, glibc reads all of its descriptions. Its main() is called by a pointer, does not return and has no
/// CFI: each stack is cut, or guessed.
#[test]
#[ignore = "needs packages"]
fn static_busybox() {
    let script =
        "f() { while read -r x; do case $x in r*) echo ${x#r}; esac; done; }; f </etc/passwd";
    for arguments in [&["ash", "-c", script][..], &["sort", "-r", "/etc/passwd"]] {
        let mut target = Target::start(Command::new(packaged("usr/bin/busybox")).args(arguments));
        target.run_to_entry();
        // mov $main, %rdi
        let code: [u8; 64] = target.bytes(target.registers().rip);
        let mut moves = code
            .windows(7)
            .filter(|bytes| bytes.starts_with(&[0x48, 0xc7, 0xc7]));
        let main = moves.next().unwrap().last_chunk().unwrap();
        target.run_to(u32::from_le_bytes(*main).into());
        let shadows = ShadowStacks::at_entry(&target);
        check_on(&format!("busybox {arguments:?}"), &mut target, shadows, 0.0);
    }
}

#[test]
#[ignore = "needs packages"]
fn rust_with_musl() {
    check(
        &packaged("rg"),
        &["--no-config", "root", "/etc/passwd"],
        10.0,
    );
}

/// Where Go looks at standard input again, the first goroutine initializes packages. How much of what follows is the runtime's own
/// code, in which stacks end, depends on when its other threads run.
#[test]
#[ignore = "needs packages"]
fn go() {
    const FCNTL: u64 = 72;
    const RECIPIENT: &str = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("numbers.json");
    fs::write(
        &json,
        r#"{"a": [1, 2, {"b": "c"}], "d": [true, null, "\u00e4", -1.5e3]}"#,
    )
    .unwrap();
    for (program, arguments) in [
        ("usr/bin/gron", &[json.to_str().unwrap()][..]),
        (
            "usr/bin/age",
            &[
                "--recipient",
                RECIPIENT,
                "--output",
                "/dev/null",
                "/etc/passwd",
            ],
        ),
    ] {
        let mut command = Command::new(packaged(program));
        let command = command.args(arguments).env("GODEBUG", "asyncpreemptoff=1");
        let mut target = Target::start(command);
        target.run_to_call((FCNTL, 4));
        let shadows = ShadowStacks::begun(&target, target.registers());
        check_on(program, &mut target, shadows, 0.0);
    }
}

/// A function that is compiled, before the loop of events begins; then the interpreter, functions that are built in, and an
/// exception.
const SCRIPT: &str = "
    const add = list => { let sum = 0; for (const x of list) sum += x * 2; return sum };
    const list = Array.from({ length: 300 }, (_, index) => index ^ 7);
    for (let i = 0; i < 20000; i++) add(list);
    setTimeout(() => {
        const odd = text => { if (text.length > 2) throw new Error(text); return text };
        for (let i = 0; i < 3; i++) {
            add(list);
            try { odd(JSON.stringify(list.sort((a, b) => b - a)).replace(/[0-7]+/g, x => x + 1)) } catch { }
        }
        new Map([[1, 2]]).forEach((a, b) => odd(String(a + b)));
    }, 1)";

/// The stack where the loop of events begins has functions of C++ alone. Generated code and what is built in have no CFI.
#[test]
#[ignore = "needs packages"]
fn node() {
    let mut target = Target::start(Command::new("node").args(["-e", SCRIPT]));
    target.run_to_entry();
    let names = [
        "_ZN4node21SpinEventLoopInternalEPNS_11EnvironmentE",
        "_ZN4node13SpinEventLoopEPNS_11EnvironmentE",
    ];
    let entry = names.iter().find_map(|name| target.function(name));
    target.run_to(entry.expect("a function of node"));
    let shadows = ShadowStacks::at_entry(&target);
    let counts = step_on(("node", &mut target), shadows, (2, 150_000));
    assert!(counts.are_right(0.0) && 1000 * counts.guessed_wrong < counts.guessed);
}
