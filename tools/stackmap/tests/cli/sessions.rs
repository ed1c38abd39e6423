// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tool prints, word for word: a line `$ stackmap ...` is run, and the lines after it are its output.

use super::tool::{data, run, stdout};
use std::{env, fs, path::Path};

/// Returns what a command prints, its status, and what it says.
fn printed(command: &str) -> String {
    let ran = run(command);
    let (status, said) = (ran.status.unwrap_or(-1), ran.stderr.clone());
    format!("$ stackmap {command}\n{}-- {status}\n{said}", ran.text())
}

/// Runs the commands of all files in `golden`, or writes these files anew.
#[test]
fn golden_files() {
    let (mut nr_sessions, mut differ) = (0, Vec::new());
    for entry in fs::read_dir(data("golden")).unwrap() {
        let path = entry.unwrap().path();
        let want = fs::read_to_string(&path).unwrap();
        let commands = want
            .lines()
            .filter_map(|line| line.strip_prefix("$ stackmap "));
        let got: Vec<_> = commands.map(printed).collect();
        nr_sessions += got.len();
        let got = got.concat();
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &got).unwrap();
        } else if got != want {
            let lines = got.lines().zip(want.lines()).enumerate();
            let line = lines.clone().find(|(_, (got, want))| got != want);
            differ.push(format!("{}: {line:?}", path.display()));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(nr_sessions >= 114, "{nr_sessions}");
}

/// Returns the commands of a page, each with the lines that follow it.
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

/// Whether `got` is what `want` says, in which a line `...` stands for any number of lines.
fn fits(got: &[&str], want: &[String]) -> bool {
    match want.split_first() {
        None => got.is_empty(),
        Some((line, rest)) if line == "..." => (0..=got.len()).any(|at| fits(&got[at..], rest)),
        Some((line, rest)) => got.first() == Some(&&line[..]) && fits(&got[1..], rest),
    }
}

#[test]
fn examples_print_what_the_documentation_shows() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Documentation");
    for (page, least) in [
        ("stackmap-tool.rst", 8),
        ("stackmap-waits.rst", 4),
        ("stackmap-view.rst", 1),
        ("recipes.rst", 15),
    ] {
        let sessions = sessions(&fs::read_to_string(top.join(page)).unwrap());
        assert!(sessions.len() >= least, "{page}: {}", sessions.len());
        for (command, lines) in &sessions {
            let ran = run(command);
            let said = ran.stderr.clone();
            let got = ran.text() + &said;
            let mut want = &lines[..];
            while let Some((_, rest)) = want.split_last().filter(|(last, _)| last.is_empty()) {
                want = rest;
            }
            let got_lines: Vec<_> = got.trim_end().lines().collect();
            assert!(fits(&got_lines, want), "$ stackmap {command}\n{got}");
        }
    }
}

/// Without addresses, `dump` prints what the kernel prints.
#[test]
fn dump_is_the_kernels_own_text() {
    let dump = stdout("dump --plumbing --kallsyms kallsyms stack_map_bin");
    let without = dump.lines().map(|line| match line.split_once("] 0x") {
        Some((index, rest)) => {
            let (_, name) = rest.split_once(' ').unwrap_or_default();
            format!("{index}] {name}\n")
        }
        None => format!("{line}\n"),
    });
    let kernel = fs::read_to_string(data("stack_map")).unwrap();
    assert_eq!(without.collect::<String>(), kernel);
}
