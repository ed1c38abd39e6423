// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the tool where the captures are.

use std::{
    path::Path,
    process::{Command, Output},
};

/// Runs the tool with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stackmap"))
        .args(arguments)
        .env("NO_COLOR", "1")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"))
        .output()
        .unwrap()
}

/// What it said.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it printed; it is to succeed.
pub(crate) fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    let said = stderr(&output);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}
