// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the documentation shows is what the tool prints.
//!
//! A line `$ stackmap ...` in a literal block is run; the lines after it are what it prints, on
//! standard output and then on standard error. A line `...` stands for any number of lines.

use std::{fs, path::Path, process::Command};

/// A command, the lines that follow it, and the picture that it draws.
struct Session {
    command: String,
    lines: Vec<String>,
    picture: Option<String>,
}

fn sessions(text: &str) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        if let (Some(picture), Some(session)) =
            (line.strip_prefix(".. figure:: "), sessions.last_mut())
        {
            session.picture = Some(picture.to_owned());
        }
        let Some(inside) = line.strip_prefix("  ") else {
            open &= line.is_empty();
            if let (true, Some(session)) = (open, sessions.last_mut()) {
                session.lines.push(String::new());
            }
            continue;
        };
        if let Some(command) = inside.strip_prefix("$ stackmap ") {
            sessions.push(Session {
                command: command.to_owned(),
                lines: Vec::new(),
                picture: None,
            });
            open = true;
        } else if inside.starts_with("# ") || inside.starts_with("$ ") {
            open = false;
        } else if let (true, Some(session)) = (open, sessions.last_mut()) {
            session.lines.push(inside.to_owned());
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

/// Runs the commands of a page, and returns how many they and their pictures are.
fn compare(page: &str) -> (usize, usize) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documentation = top.join("../../Documentation");
    let text = fs::read_to_string(documentation.join(page)).unwrap();
    let sessions = sessions(&text);
    let mut nr_pictures = 0;
    for session in &sessions {
        let command = &session.command;
        let output = Command::new(env!("CARGO_BIN_EXE_stackmap"))
            // Wildcards are in quotes, and no word has a blank.
            .args(command.split(' ').map(|word| word.trim_matches('\'')))
            .current_dir(top.join("tests/data"))
            .env("NO_COLOR", "1")
            .output()
            .unwrap();
        if let Some(picture) = session.picture.as_ref().filter(|_| command.contains(" - ")) {
            nr_pictures += 1;
            let want = fs::read(documentation.join(picture)).unwrap();
            assert!(output.stdout == want, "$ stackmap {command} >{picture}");
        }
        let got = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let mut want = &session.lines[..];
        while let Some((_, rest)) = want.split_last().filter(|(last, _)| last.is_empty()) {
            want = rest;
        }
        let got_lines: Vec<_> = got.trim_end().lines().collect();
        assert!(fits(&got_lines, want), "$ stackmap {command}\n{got}");
    }
    (sessions.len(), nr_pictures)
}

#[test]
fn examples_print_what_the_documentation_shows() {
    let nr_sessions = |page| compare(page).0;
    assert!(nr_sessions("stackmap-tool.rst") >= 8);
    assert!(nr_sessions("stackmap-waits.rst") >= 4);
    assert!(nr_sessions("stackmap-view.rst") >= 1);
}

#[test]
fn questions_have_the_answers_that_the_page_shows() {
    let (nr_sessions, nr_pictures) = compare("recipes.rst");
    assert!(
        nr_sessions >= 22 && nr_pictures == 10,
        "{nr_sessions}, {nr_pictures}"
    );
}
