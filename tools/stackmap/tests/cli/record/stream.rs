// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings that are written to disk while they run. A FIFO stands for the buffer of a CPU: what
//! is read is gone.

use super::fake::{page, Fake, KMALLOC};
use std::{fs, process::Command};

/// Until the tool has read all that was written to the buffer of CPU 0, and closed it.
pub(super) const TAKEN: &str =
    "while ls -l /proc/$PPID/fd | grep -q stackmap-.*cpu0/trace_pipe_raw; do sleep 0.02; done";

pub(super) fn fake() -> Fake {
    let fake = Fake {
        overwrite: false,
        ..Fake::new()
    };
    let raw = fake.path("i/per_cpu/cpu0/trace_pipe_raw");
    fs::remove_file(&raw).unwrap();
    assert!(Command::new("mkfifo").arg(&raw).status().unwrap().success());
    let mut later = page();
    later[..8].copy_from_slice(&1_000_100_000u64.to_ne_bytes());
    fake.put("pages", [page(), later].concat());
    // One page at once.
    fake.put("i/per_cpu/cpu0/buffer_size_kb", "8\n");
    fake
}

#[test]
fn what_was_streamed_is_in_the_capture() {
    let fake = fake();
    // The kernel counts what was read; another process has read one more.
    let stats = "entries: 0\noverrun: 2\nbytes: 0\ndropped events: 0\nread events: 5\n";
    fake.put("stats", stats);
    let script = format!(
        "cat buffer_percent > $out/percent; cat $out/stats > per_cpu/cpu0/stats; \
         cat $out/pages > per_cpu/cpu0/trace_pipe_raw; {TAKEN}"
    );
    let text = fake.recorded(KMALLOC, &script);
    assert_eq!(fake.get("percent"), "25");
    for said in [
        // As many as the report has.
        "2 events, 1 stack",
        "2 records overwritten",
        "1 record missing: another process",
    ] {
        assert!(text.contains(said), "{text}");
    }
    let manifest = fake.manifest();
    let cpu = &manifest.cpus[0];
    assert_eq!((cpu.entries, cpu.streamed, cpu.read), (4, 4, 1));
    assert!(manifest.settings_changed.is_empty());
    // Two pages with the time, how much is used, and two records; each with its length.
    assert_eq!(cpu.bytes, 2 * (4 + 16 + 2 * 16));
    let report = fake.ran("report");
    assert!(report.contains("2 events, 1 different stack"), "{report}");
    // Nothing is left beside the capture.
    assert_eq!(fake.files(), ["pages", "percent", "stackmap.data", "stats"]);
}

#[test]
fn a_buffer_that_was_cleared_is_reported() {
    let fake = fake();
    // The kernel has counted from 0 again.
    fake.put("stats", "entries: 0\nread events: 3\n");
    let script = format!(
        "cat $out/pages > per_cpu/cpu0/trace_pipe_raw; {TAKEN}; cat $out/stats > per_cpu/cpu0/stats"
    );
    let text = fake.recorded(KMALLOC, &script);
    let said = "another process wrote to trace of the instance";
    assert!(text.contains(said), "{text}");
    assert_eq!(fake.manifest().settings_changed, ["trace"]);
}

#[test]
fn nothing_is_read_while_a_recording_runs_that_overwrites() {
    let script = "ls -l /proc/$PPID/fd | grep -c trace_pipe_raw > $out/open; \
                  cat buffer_percent > $out/percent; true";
    for option in ["--overwrite", "--last 5"] {
        let fake = fake();
        fake.recorded(&format!("{KMALLOC} {option}"), script);
        assert_eq!(fake.get("open"), "0\n");
        assert_eq!(fake.get("percent"), "50\n");
        assert_eq!(fake.manifest().cpus[0].streamed, 0);
    }
}
