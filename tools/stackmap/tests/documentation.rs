// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the documentation shows is what the tool prints.
//!
//! A line `$ stackmap ...` in a literal block is run; the lines after it are what it prints, on
//! standard output and then on standard error. A line `...` stands for any number of lines.

use std::{fs, path::Path, process::Command};

/// A command, and the lines that follow it.
fn sessions(text: &str) -> Vec<(String, Vec<String>)> {
    let mut sessions: Vec<(String, Vec<String>)> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let Some(inside) = line.strip_prefix("  ") else {
            open &= line.is_empty();
            if let (true, Some((_, lines))) = (open, sessions.last_mut()) {
                lines.push(String::new());
            }
            continue;
        };
        if let Some(command) = inside.strip_prefix("$ stackmap ") {
            sessions.push((command.to_owned(), Vec::new()));
            open = true;
        } else if inside.starts_with("# ") || inside.starts_with("$ ") {
            open = false;
        } else if let (true, Some((_, lines))) = (open, sessions.last_mut()) {
            lines.push(inside.to_owned());
        }
    }
    sessions
}

/// Whether `got` is what `want` says.
fn fits(got: &[&str], want: &[String]) -> bool {
    match want.split_first() {
        None => got.is_empty(),
        Some((line, rest)) if line == "..." => (0..=got.len()).any(|at| fits(&got[at..], rest)),
        Some((line, rest)) => got.first() == Some(&&line[..]) && fits(&got[1..], rest),
    }
}

#[test]
fn examples_print_what_the_documentation_shows() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(top.join("../../Documentation/stackmap-tool.rst")).unwrap();
    let sessions = sessions(&text);
    assert!(sessions.len() >= 5, "{sessions:?}");
    for (command, mut want) in sessions {
        let output = Command::new(env!("CARGO_BIN_EXE_stackmap"))
            // Wildcards are in quotes, and no word has a blank.
            .args(command.split(' ').map(|word| word.trim_matches('\'')))
            .current_dir(top.join("tests/data"))
            .env("NO_COLOR", "1")
            .output()
            .unwrap();
        let got = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        while want.last().is_some_and(String::is_empty) {
            want.pop();
        }
        let got_lines: Vec<_> = got.trim_end().lines().collect();
        assert!(fits(&got_lines, &want), "$ stackmap {command}\n{got}");
    }
}
