// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings that are written to disk while they run. A FIFO stands for the buffer of a CPU: what
//! is read is gone.

use super::fake::{page, with, Fake, KMALLOC};
use stackmap::capture::{Capture, Manifest};
use std::{fs, process::Command};

/// Until the tool has read all that was written to the buffer of CPU 0, and closed it.
const TAKEN: &str = "while ls -l /proc/$PPID/fd | grep -q cpu0/trace_pipe_raw; do sleep 0.02; done";

fn fake() -> Fake {
    let fake = Fake {
        overwrite: false,
        ..Fake::new()
    };
    let raw = fake.path("t/per_cpu/cpu0/trace_pipe_raw");
    fs::remove_file(&raw).unwrap();
    assert!(Command::new("mkfifo").arg(&raw).status().unwrap().success());
    let mut later = page();
    later[..8].copy_from_slice(&1_000_100_000u64.to_ne_bytes());
    fs::write(fake.path("pages"), [page(), later].concat()).unwrap();
    fake.put("t/buffer_percent", "100\n");
    // One page at once.
    fake.put("t/per_cpu/cpu0/buffer_size_kb", "8\n");
    fake
}

fn manifest(fake: &Fake) -> Manifest {
    fake.manifest("stackmap.data")
}

#[test]
fn what_was_streamed_is_in_the_capture() {
    let fake = fake();
    let before = fake.get("t/buffer_percent");
    // The kernel counts what was read; another process has read one more.
    let stats = "entries: 0\noverrun: 2\nbytes: 0\ndropped events: 0\nread events: 5\n";
    fake.put("stats", stats);
    let script = format!(
        "cat buffer_percent > ../percent; cat ../stats > per_cpu/cpu0/stats; \
         cat ../pages > per_cpu/cpu0/trace_pipe_raw; {TAKEN}"
    );
    let text = fake.recorded(&KMALLOC, &script);
    assert_eq!(fake.get("percent"), "25");
    assert_eq!(fake.get("t/buffer_percent").trim(), before.trim());
    // Those of CPU 1 are only in its statistics.
    assert!(
        text.contains("7 records (4 of them streamed), 1 stack"),
        "{text}"
    );
    assert!(text.contains("2 records overwritten"), "{text}");
    assert!(text.contains("1 record missing: another process"), "{text}");
    let cpu = &manifest(&fake).cpus[0];
    assert_eq!((cpu.entries, cpu.streamed, cpu.read), (4, 4, 1));
    // Two pages with the time, how much is used, and two records; each with its length.
    assert_eq!(cpu.bytes, 2 * (4 + 16 + 2 * 16));
    Capture::open(&fake.path("stackmap.data")).unwrap();
    let output = fake.stackmap(&["report"]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("2 events, 1 different stack"), "{report}");
    // Nothing is left beside the capture.
    let names = fs::read_dir(fake.dir.path()).unwrap();
    let hidden = |name: &str| name.starts_with('.');
    assert!(!names
        .flatten()
        .any(|entry| hidden(&entry.file_name().to_string_lossy())));
}

#[test]
fn nothing_is_read_while_a_recording_runs_that_overwrites() {
    let script =
        "ls -l /proc/$PPID/fd | grep -c trace_pipe_raw > ../open; cat buffer_percent > ../percent";
    for option in [&["--overwrite"][..], &["--last", "5"]] {
        let fake = fake();
        fake.recorded(&with(option), &format!("{script}; true"));
        assert_eq!(fake.get("open"), "0\n");
        assert_eq!(fake.get("percent"), "100\n");
        assert_eq!(manifest(&fake).cpus[0].streamed, 0);
    }
}

#[test]
fn streaming_ends_with_a_recording_that_fails() {
    let fake = fake();
    let before = fake.get("t/buffer_percent");
    for step in ["running", "ended", "saving", "taken"] {
        let fault = format!("{step}:fail");
        let arguments = with(&["--fault", &fault]);
        let script = format!("cat ../pages > per_cpu/cpu0/trace_pipe_raw; {TAKEN}");
        let (output, text) = fake.record(&arguments, &script);
        assert!(text.contains(&format!("failed at {step}")), "{text}");
        assert_eq!(fake.get("t/buffer_percent").trim(), before.trim());
        // What was streamed is nowhere else: no room for it is no reason to give it up.
        let saved = step == "saving";
        assert_eq!(output.status.code(), Some(i32::from(!saved)), "{text}");
        assert_eq!(fake.path("stackmap.data").exists(), saved, "{step}: {text}");
        let _ = fs::remove_file(fake.path("stackmap.data"));
        fake.put("t/tracing_on", "1\n");
    }
}
