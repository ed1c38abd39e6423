// SPDX-License-Identifier: GPL-2.0

//! The programs that `make steps` steps besides those of `cargo test`.

use super::{require, step, step_built};
use std::process::Command;

/// What `more_programs` runs, and the packages of Debian that have it.
const TOOLS: [(&str, &str); 20] = [
    ("cc", "gcc"),
    ("c++", "g++"),
    ("rustc", "rustc"),
    ("clang", "clang"),
    ("clang++", "clang"),
    ("ld.lld", "lld"),
    ("ld.mold", "mold"),
    ("perl", "perl"),
    ("/usr/bin/python3", "python3"),
    ("openssl", "openssl"),
    ("factor", "coreutils, which uses libgmp"),
    ("gpg", "gpg, which uses libgcrypt"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("gzip", "gzip"),
    ("sort", "coreutils"),
    ("find", "findutils"),
    ("tar", "tar"),
    ("/lib64/ld-linux-x86-64.so.2", "libc6"),
    ("/usr/lib32/crt1.o", "gcc-multilib"),
];

/// Programs of `steps/`: compiler, source, flags, and how many percent of their stacks must be complete.
const BUILT: &[(&str, &str, &str, f64)] = &[
    ("cc", "steps.c", "-O0", 99.0),
    ("cc", "steps.c", "-O2 -fcf-protection -Wl,-z,lazy", 99.0),
    ("cc", "steps.c", "-O3 -static-pie", 99.0),
    ("cc", "steps.c", "-O2 -fno-plt", 99.0),
    ("cc", "steps.c", "-O2 -static -pg", 99.0),
    ("cc", "steps.c", "-O2 -fuse-ld=lld -Wl,-z,lazy", 99.0),
    ("cc", "steps.c", "-O2 -fuse-ld=mold -Wl,-z,lazy", 99.0),
    ("cc", "steps.c", "-Os -fno-asynchronous-unwind-tables", 10.0),
    ("clang", "steps.c", "-O1 -Wno-unknown-attributes", 99.0),
    (
        "clang",
        "steps.c",
        "-Os -fno-asynchronous-unwind-tables -Wno-unknown-attributes",
        10.0,
    ),
    ("c++", "steps.cpp", "-O0", 99.0),
    ("c++", "steps.cpp", "-O2 -fcf-protection", 99.0),
    ("c++", "steps.cpp", "-O2 -static -pg", 99.0),
    ("clang++", "steps.cpp", "-O2 -std=c++17 -fuse-ld=lld", 99.0),
    ("cc", "frames.c", "-fno-inline -O0", 98.0),
    ("cc", "frames.c", "-fno-inline -O2", 99.0),
    (
        "cc",
        "frames.c",
        "-fno-inline -O2 -fno-omit-frame-pointer",
        99.0,
    ),
    (
        "cc",
        "frames.c",
        "-fno-inline -O2 -mstackrealign -mforce-drap",
        99.0,
    ),
    (
        "cc",
        "frames.c",
        "-fno-inline -O3 -mavx2 -fstack-clash-protection",
        99.0,
    ),
    (
        "cc",
        "frames.c",
        "-fno-inline -O2 -fstack-clash-protection -fno-omit-frame-pointer",
        99.0,
    ),
    (
        "cc",
        "frames.c",
        "-fno-inline -Os -fno-asynchronous-unwind-tables",
        3.0,
    ),
    ("clang", "frames.c", "-fno-inline -O0", 98.0),
    (
        "clang",
        "frames.c",
        "-fno-inline -O2 -mstackrealign -fstack-clash-protection",
        96.0,
    ),
    // Exceptions on their way, where callers by the frame pointer are guessed.
    ("c++", "frames.cpp", "-O0", 96.5),
    ("c++", "frames.cpp", "-O2", 96.5),
    (
        "c++",
        "frames.cpp",
        "-O2 -fno-omit-frame-pointer -mstackrealign",
        96.5,
    ),
    (
        "clang++",
        "frames.cpp",
        "-O2 -fno-omit-frame-pointer -fuse-ld=mold",
        96.5,
    ),
    ("rustc", "steps.rs", "-Copt-level=0 --cfg panics", 96.1),
    (
        "rustc",
        "steps.rs",
        "-O -Coverflow-checks=yes -Cforce-frame-pointers=yes --cfg panics",
        96.0,
    ),
    ("rustc", "steps.rs", "-Copt-level=3 -Cpanic=abort", 1.0),
    ("cc", "steps.c", "-m32 -O2", 0.0),
    (
        "cc",
        "steps.c",
        "-O2 -static -fno-asynchronous-unwind-tables -fcf-protection=none -mfunction-return=thunk -mindirect-branch=thunk",
        55.0,
    ),
];

/// Other programs, and how many percent of their stacks must be complete.
const COMMANDS: &[(&str, f64)] = &[
    ("perl -e print(join(q(,),sort(map{$_*7%13}1..99)))", 99.0),
    ("/usr/bin/python3 -S -c print(sum(map(int,'123')))", 99.0),
    ("openssl speed -bytes 64 -seconds 1 chacha20", 99.0),
    ("openssl speed -bytes 64 -seconds 1 aes-128-ctr", 99.0),
    ("openssl speed -bytes 64 -seconds 1 sha256", 99.0),
    ("factor 1000000000000000000000000000057", 99.0),
    (
        "gpg --no-options --no-keyring --print-md sha256 /etc/passwd",
        99.0,
    ),
    ("sqlite3 :memory: select(1+2)", 99.0),
    ("git --version", 99.0),
    ("gzip -c /etc/passwd", 99.0),
    ("sort /etc/passwd", 99.0),
    ("find /etc", 99.0),
    ("tar -cf - /etc", 99.0),
    ("/lib64/ld-linux-x86-64.so.2 /bin/true", 99.0),
];

/// More programs, see `make steps`.
#[test]
#[ignore = "takes minutes, and programs that are not everywhere"]
fn more_programs() {
    for (tool, package) in TOOLS {
        require(tool, package);
    }
    let mut failed = Vec::new();
    for (compiler, source, flags, least) in BUILT {
        if !step_built(compiler, source, flags, true).are_right(*least) {
            failed.push(format!("{compiler} {source} {flags}"));
        }
    }
    for (command, least) in COMMANDS {
        let mut words = command.split_ascii_whitespace();
        let mut program = Command::new(words.next().unwrap());
        if !step(program.args(words), true, 400_000).are_right(*least) {
            failed.push(command.to_string());
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
