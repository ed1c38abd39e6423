// SPDX-License-Identifier: MIT OR Apache-2.0

//! Flight recorders: recordings that an event ends, and of which the end is kept.

use super::fake::{page, Fake, KMALLOC};
use stackmap::capture::member;
use std::time::{Duration, Instant};

const HIST: &str = "events/kmem/kfree/hist";

fn fake() -> Fake {
    let fake = Fake::new();
    // What it can count is looked up before there is an instance.
    for place in ["t", "i"] {
        fake.put(&format!("{place}/{HIST}"), "# event histogram\n");
    }
    fake
}

/// What counts one more kfree, as the kernel would.
const OCCURS: &str =
    "name=$(sed -n 's/hist:name=\\([^:]*\\):.*/\\1/p' events/kmem/kfree/trigger); \
    printf '# trigger info: hist:name=%s:keys=common_pid [active]\\n\\nTotals:\\n    Hits: 1\\n' \
    \"$name\" > events/kmem/kfree/hist; exec sleep 60";

#[test]
fn an_event_ends_the_recording() {
    let fake = fake();
    let script = format!("cat set_event events/kmem/kfree/filter > $out/set; {OCCURS}");
    let arguments = format!("{KMALLOC} --on-trigger 'kfree if ptr == 0'");
    let text = fake.recorded(&arguments, &script);
    let ended = "kmem:kfree if ptr == 0";
    let said = format!("ended by the event {ended}");
    assert!(text.contains(&said), "{text}");
    // It is recorded, too, if nothing selects it.
    assert_eq!(fake.get("set"), "kmem:kmalloc\nkfree\nptr == 0");
    let manifest = fake.manifest();
    assert_eq!(manifest.triggered.as_deref(), Some(ended));
    assert_eq!(manifest.recorded.triggers, ["kfree if ptr == 0"]);
    assert_eq!(manifest.recorded.events, ["kmem:kmalloc", "kfree"]);
    let set = fake.get("i/events/kmem/kfree/trigger");
    let lines: Vec<_> = set.lines().collect();
    assert!(lines[1].ends_with(":keys=common_pid if ptr == 0"), "{set}");
    assert_eq!(lines.len(), 2);
    let report = fake.ran("report");
    assert!(report.contains(&format!("ended by: {ended}\n")), "{report}");
}

#[test]
fn an_event_is_recorded_as_it_is_selected_and_whatever_the_filter_of_others() {
    let fake = fake();
    let trigger = "-e kmem:* --on-trigger 'kmem:kfree if ptr == 0'";
    fake.recorded(trigger, "cat set_event events/kmem/kfree/filter > $out/set");
    assert_eq!(fake.get("set"), "kmem:*\nnone\n");
    // It did not occur.
    assert_eq!(fake.manifest().triggered, None);
    let script = "cat events/kmem/kfree/filter events/kmem/kmalloc/filter > $out/set";
    fake.recorded(&format!("{trigger} --filter 'ptr == 1'"), script);
    assert_eq!(fake.get("set"), "(ptr == 1) || (ptr == 0)ptr == 1");
}

#[test]
fn tracing_that_is_switched_off_ends_what_goes_on_after_an_event() {
    let fake = fake();
    // The program is not ended before that.
    let rest = "sleep 1; echo > $out/through; echo 0 > tracing_on; exec sleep";
    let script = OCCURS.replace("exec sleep", rest);
    let begun = Instant::now();
    let arguments = format!("{KMALLOC} --on-trigger kfree --after 50");
    let text = fake.recorded(&arguments, &script);
    assert!(begun.elapsed() < Duration::from_secs(40));
    assert!(fake.path("through").exists());
    assert!(text.contains("ended by the event kmem:kfree"), "{text}");
    assert!(!text.contains("later events are missing"), "{text}");
}

#[test]
fn tracing_that_is_switched_off_ends_a_flight_recorder() {
    for option in ["--last 5", "--on-trigger kmem:kfree"] {
        let fake = fake();
        let script = "echo 0 > tracing_on; exec sleep 60";
        let text = fake.recorded(&format!("{KMALLOC} {option}"), script);
        let said = "ended because tracing was switched off";
        assert!(text.contains(said), "{text}");
        assert!(!text.contains("later events are missing"), "{text}");
        assert!(!fake.manifest().switched_off);
    }
    let fake = fake();
    let script = "echo 0 > tracing_on; sleep 0.3; echo > $out/through";
    let text = fake.recorded(KMALLOC, script);
    assert!(text.contains("later events are missing"), "{text}");
    assert!(fake.path("through").exists());
}

#[test]
fn what_is_older_is_left_out() {
    for (last, overwritten, entries, older, overrun, reach) in [
        ("1", 7, 2, 11, 0, None),
        ("4", 7, 4, 9, 0, None),
        // The first page begins before that time, and ends after it.
        ("4.999999", 7, 6, 7, 0, None),
        ("100", 7, 6, 0, 7, Some(5_000_000_000)),
        // The second one ends just then.
        ("2.999998", 7, 4, 9, 0, None),
        // It has all of a recording that was shorter.
        ("100", 0, 6, 0, 0, None),
    ] {
        let stats = format!(
            "entries: 6\noverrun: {overwritten}\nbytes: 600\nnow ts: 6.000000\ndropped events: 0\n"
        );
        let fake = fake();
        let at = |time: u64| {
            let mut page = page();
            page[..8].copy_from_slice(&time.to_ne_bytes());
            page
        };
        let pages = [1_000_000_000, 3_000_000_000, 5_500_000_000].map(at);
        fake.put("i/per_cpu/cpu0/trace_pipe_raw", pages.concat());
        fake.put("i/per_cpu/cpu0/stats", stats);
        let text = fake.recorded(&format!("{KMALLOC} --last {last}"), "true");
        let capture = fake.capture("stackmap.data");
        let cpu = &capture.manifest.cpus[0];
        let found = (cpu.entries, cpu.older, cpu.overrun, cpu.reach_ns);
        assert_eq!(found, (entries, older, overrun, reach), "{last}");
        // The output says that there was more before the first page.
        let pages = &capture.members[member::PAGES];
        let commit = u64::from_ne_bytes(pages[16..24].try_into().unwrap());
        assert_eq!(commit >> 31 & 1 == 1, older > overwritten, "{last}");
        let short = format!("the ring buffer holds only 5 of the last {last} s; -b ");
        assert_eq!(text.contains(&short), reach.is_some(), "{text}");
        assert!(!text.contains("overwritten"), "{text}");
        let report = fake.ran("report");
        let events = format!("{} event", entries / 2);
        assert!(report.contains(&events), "{report}");
        let is_short = report.contains("7 records overwritten");
        assert_eq!(is_short, reach.is_some(), "{report}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let fake = fake();
    let before = fake.state();
    for (arguments, status, says) in [
        (
            "--last 5 --clock counter",
            1,
            "--last needs a clock that counts seconds, and counter does not",
        ),
        (
            "--on-trigger kmem:k*",
            1,
            "--on-trigger \"kmem:k*\" is more than one event",
        ),
        (
            "--on-trigger kmem:none",
            1,
            "there is no event \"kmem:none\"",
        ),
        (
            "--on-trigger sched_switch",
            1,
            "needs a kernel with CONFIG_HIST_TRIGGERS, to count sched:sched_switch",
        ),
        (
            "--on-trigger 'kfree if '",
            2,
            "a trigger is EVENT or EVENT if EXPR",
        ),
        ("--after 5", 2, "--on-trigger"),
    ] {
        let ran = fake.record(&format!("{KMALLOC} {arguments}"), "true");
        ran.failed(status, says);
        assert_eq!(fake.state(), before);
    }
}

#[test]
fn a_cpu_without_anything_in_the_window_has_records_missing() {
    let fake = fake();
    let at = |time: u64| {
        let mut page = page();
        page[..8].copy_from_slice(&time.to_ne_bytes());
        page
    };
    let stats = "entries: 2\noverrun: 0\nbytes: 300\nnow ts: 10.000000\ndropped events: 0\n";
    for (cpu, time) in [(0, 9_000_000_000), (1, 3_000_000_000)] {
        fake.put(&format!("i/per_cpu/cpu{cpu}/stats"), stats);
        fake.put(&format!("i/per_cpu/cpu{cpu}/trace_pipe_raw"), at(time));
    }
    fake.recorded(&format!("{KMALLOC} --last 2"), "true");
    let capture = fake.capture("stackmap.data");
    let counts = capture.manifest.cpus.iter();
    let counts: Vec<_> = counts.map(|cpu| (cpu.entries, cpu.older)).collect();
    assert_eq!(counts, [(2, 0), (0, 2)]);
    // A page of the second CPU says so, at the time when what is kept begins.
    let pages = &capture.members[member::PAGES];
    let number = |at: usize| u64::from_ne_bytes(pages[at..at + 8].try_into().unwrap());
    assert_eq!([number(8), number(16)], [8_000_000_000, 1 << 31]);
}
