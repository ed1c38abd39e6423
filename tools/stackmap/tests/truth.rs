// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures of the binary ring buffer beside the kernel's own text of the same buffers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const STACKMAP: &str = env!("CARGO_BIN_EXE_stackmap");

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn stackmap(arguments: &[&str]) -> (String, String) {
    let output = Command::new(STACKMAP)
        .args(arguments)
        .current_dir(data())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    (stdout, stderr)
}

/// What every output counts is what Python counts in the kernel's text.
#[test]
fn counts_equal_an_independent_count() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth");
    let output = Command::new("python3")
        .arg(script)
        .args([Path::new(STACKMAP), &data()])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

/// A recording of an unprivileged user who runs programs with hostile names.
fn attack() -> Vec<serde_json::Value> {
    let (text, notes) = stackmap(&["export", "--format", "json", "attack.data"]);
    assert!(!notes.contains("WARNING"), "{notes}");
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    match json["events"].take() {
        serde_json::Value::Array(events) => events,
        other => panic!("{other}"),
    }
}

#[test]
fn no_name_forges_an_event_or_a_stack() {
    let events = attack();
    // Of the task init, and with a field of the attacker's choice.
    assert!(!events
        .iter()
        .any(|event| event["fields"] == "call_site=evil"));
    let execs = events
        .iter()
        .filter(|event| event["event"] == "sched_process_exec");
    let mut names = BTreeMap::new();
    for event in execs {
        let name = event["values"]["filename"].as_str().unwrap();
        let field = event["fields"].as_str().unwrap();
        assert!(!field.contains('\n'), "{field:?}");
        *names.entry(name.to_owned()).or_insert(0) += 1;
        // Its stack is its own: that of an exec.
        assert!(event["stack"].is_u64(), "{event}");
    }
    let forging: Vec<_> = names
        .keys()
        .filter(|name| name.contains("evil\n"))
        .collect();
    assert!(
        forging
            .iter()
            .any(|name| name.contains("[LOST 4198 EVENTS]")),
        "{names:?}"
    );
    assert_eq!(names.get("./<stack_id 34489>"), Some(&3), "{names:?}");

    // As many lines as records: none was made by a name.
    let (text, _) = stackmap(&["resolve", "--inline", "attack.data"]);
    let kmallocs = |text: &str| {
        text.lines()
            .filter(|line| line.contains(": kmalloc: "))
            .count()
    };
    let recorded = events
        .iter()
        .filter(|event| event["event"] == "kmalloc")
        .count();
    let in_names = text.matches("\\n").count();
    assert!(in_names > 0);
    let honest = text
        .lines()
        .filter(|line| !line.contains("sched_process_exec"));
    let honest: Vec<_> = honest.collect();
    assert_eq!(kmallocs(&honest.join("\n")), recorded);
    assert!(text.lines().all(|line| !line.starts_with("CPU:")));
}

#[test]
fn no_name_of_a_task_hides_its_events() {
    let events = attack();
    for comm in ["e-1 [7] . 1: x", "=> evil", "<stack_id 34489"] {
        let own: Vec<_> = events
            .iter()
            .filter(|event| event["comm"] == comm)
            .collect();
        assert!(own.len() > 3, "{comm}: {}", own.len());
        assert!(own.iter().any(|event| event["stack"].is_u64()), "{comm}");
    }
    // No other task has the name after the newline.
    assert!(!events.iter().any(|event| event["comm"] == "evil"));
}
