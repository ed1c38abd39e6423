// SPDX-License-Identifier: MIT OR Apache-2.0

//! Flight recorders: recordings that an event ends, and of which the end is kept.

use super::fake::{page, with, Fake, KMALLOC};
use stackmap::capture::{member, Capture};
use std::{
    fs,
    io::Read,
    time::{Duration, Instant},
};

const HIST: &str = "t/events/kmem/kfree/hist";

fn fake() -> Fake {
    let fake = Fake::new();
    fake.put(HIST, "# event histogram\n");
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
    let script = format!("cat set_event events/kmem/kfree/filter > ../set; {OCCURS}");
    let text = fake.recorded(&with(&["--on-trigger", "kfree if ptr == 0"]), &script);
    let ended = "kmem:kfree if ptr == 0";
    assert!(
        text.contains(&format!("ended by the event {ended}")),
        "{text}"
    );
    // It is recorded, too, if nothing selects it.
    assert_eq!(fake.get("set"), "kmem:kmalloc\nkfree\nptr == 0");
    let manifest = fake.manifest("stackmap.data");
    assert_eq!(manifest.triggered.as_deref(), Some(ended));
    assert_eq!(manifest.recorded.triggers, ["kfree if ptr == 0"]);
    assert_eq!(manifest.recorded.events, ["kmem:kmalloc", "kfree"]);
    let set = fake.get("t/events/kmem/kfree/trigger");
    let lines: Vec<_> = set.lines().collect();
    let [_, on, off] = lines[..] else {
        panic!("{set}");
    };
    assert!(on.ends_with(":keys=common_pid if ptr == 0"), "{on}");
    assert_eq!(off, format!("!{on}"));
    let output = fake.stackmap(&["report"]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains(&format!("ended by: {ended}\n")), "{report}");
}

#[test]
fn an_event_that_is_selected_is_recorded_as_it_is_selected() {
    let fake = fake();
    let arguments = ["-e", "kmem:*", "--on-trigger", "kmem:kfree if ptr == 0"];
    fake.recorded(
        &arguments,
        "cat set_event events/kmem/kfree/filter > ../set",
    );
    assert_eq!(fake.get("set"), "kmem:*\nnone\n");
    // It did not occur.
    assert_eq!(fake.manifest("stackmap.data").triggered, None);
}

#[test]
fn the_event_is_recorded_whatever_the_filter_of_others() {
    let fake = fake();
    let mut arguments = vec!["-e", "kmem:*", "--filter", "ptr == 1"];
    arguments.extend(["--on-trigger", "kmem:kfree if ptr == 0"]);
    let script = "cat events/kmem/kfree/filter events/kmem/kmalloc/filter > ../set";
    fake.recorded(&arguments, script);
    assert_eq!(fake.get("set"), "(ptr == 1) || (ptr == 0)ptr == 1");
}

#[test]
fn tracing_that_is_switched_off_ends_what_goes_on_after_an_event() {
    let fake = fake();
    let script = OCCURS.replace("exec sleep", "sleep 1; echo 0 > tracing_on; exec sleep");
    let begun = Instant::now();
    let text = fake.recorded(&with(&["--on-trigger", "kfree", "--after", "50"]), &script);
    assert!(begun.elapsed() < Duration::from_secs(40));
    assert!(text.contains("ended by the event kmem:kfree"), "{text}");
    assert!(!text.contains("later events are missing"), "{text}");
}

#[test]
fn tracing_that_is_switched_off_ends_a_flight_recorder() {
    for option in [&["--last", "5"][..], &["--on-trigger", "kmem:kfree"]] {
        let fake = fake();
        let text = fake.recorded(&with(option), "echo 0 > tracing_on; exec sleep 60");
        assert!(
            text.contains("ended because tracing was switched off"),
            "{text}"
        );
        assert!(!text.contains("later events are missing"), "{text}");
        assert!(!fake.manifest("stackmap.data").switched_off);
    }
    let fake = fake();
    let text = fake.recorded(
        &KMALLOC,
        "echo 0 > tracing_on; sleep 0.3; echo > ../through",
    );
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
        fs::write(fake.path("t/per_cpu/cpu0/trace_pipe_raw"), pages.concat()).unwrap();
        fake.put("t/per_cpu/cpu0/stats", &stats);
        let text = fake.recorded(&with(&["--last", last]), "true");
        let cpu = &fake.manifest("stackmap.data").cpus[0];
        let found = (cpu.entries, cpu.older, cpu.overrun, cpu.reach_ns);
        assert_eq!(found, (entries, older, overrun, reach), "{last}");
        // Readers are told that there was more before the first page.
        let mut capture = Capture::open(&fake.path("stackmap.data")).unwrap();
        let mut pages = Vec::new();
        let mut member = capture.member(member::PAGES).unwrap();
        member.read_to_end(&mut pages).unwrap();
        let commit = u64::from_ne_bytes(pages[16..24].try_into().unwrap());
        assert_eq!(commit >> 31 & 1 == 1, older > overwritten, "{last}");
        let short = format!("the ring buffer holds only 5 of the last {last} s; -b ");
        assert_eq!(text.contains(&short), reach.is_some(), "{text}");
        assert!(!text.contains("overwritten"), "{text}");
        let output = fake.stackmap(&["report"]).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let events = format!("{} event", entries / 2);
        assert!(report.contains(&events), "{report}");
        let report = report + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            report.contains("7 records overwritten"),
            reach.is_some(),
            "{report}"
        );
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let fake = fake();
    fake.put("t/trace_clock", "local [counter]\n");
    let before = fake.state();
    for (arguments, says) in [
        (
            ["--last", "5"],
            "--last needs a clock that counts seconds, and trace_clock is counter",
        ),
        (
            ["--on-trigger", "kmem:k*"],
            "--on-trigger \"kmem:k*\" is more than one event",
        ),
        (
            ["--on-trigger", "kmem:none"],
            "there is no event \"kmem:none\"",
        ),
        (
            ["--on-trigger", "sched_switch"],
            "needs a kernel with CONFIG_HIST_TRIGGERS, to count sched:sched_switch",
        ),
        (
            ["--on-trigger", "kfree if "],
            "a trigger is EVENT or EVENT if EXPR",
        ),
        (["--after", "5"], "--on-trigger"),
    ] {
        let (output, text) = fake.record(&with(&arguments), "true");
        assert!(!output.status.success() && text.contains(says), "{text}");
        assert_eq!(fake.state(), before);
    }
}
