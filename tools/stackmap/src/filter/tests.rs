// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::{
    ring::fields::tests::fields_of,
    source::Loaded,
    stack_map_bin::Stack,
    trace::{Sides, StackRef, Time, UserRef},
};
use proptest::prelude::*;

fn event(name: &str, comm: &str, pid: u32) -> Event {
    Event {
        comm: comm.into(),
        pid,
        cpu: 2,
        time: Time::Nanos(8_770_009_000),
        ..Event::example(name, Default::default())
    }
}

fn globs(words: &[&str]) -> Vec<EventGlob> {
    let globs = words.iter().map(|word| EventGlob::new(word).unwrap());
    globs.collect()
}

#[test]
fn a_task_has_a_name_or_a_pattern_of_names() {
    for (text, fits, others) in [
        ("ls", &["ls"][..], &["lsof", "als", "LS", ""][..]),
        (
            "kworker*",
            &["kworker", "kworker/0:1"],
            &["xkworker", "kwork"],
        ),
        (
            "*/0:?",
            &["kworker/0:1", "a/0:x"],
            &["kworker/0:12", "kworker/0:"],
        ),
        ("<idle>", &["<idle>"], &["idle"]),
        // Brackets are no wildcards.
        ("a[bc]", &["a[bc]"], &["ab", "ac"]),
        ("a[bc]*", &["a[bc]", "a[bc]d"], &["ab", "acd"]),
        ("a[!b]?", &["a[!b]c"], &["acd"]),
        ("**", &["", "x"], &[]),
        ("a***b", &["ab", "axyb"], &["a"]),
    ] {
        let glob = Glob::of_name(text).unwrap();
        for name in fits {
            assert!(glob.matches(name), "{text} {name}");
        }
        for name in others {
            assert!(!glob.matches(name), "{text} {name}");
        }
    }
}

#[test]
fn an_event_is_named_as_record_names_it() {
    for (word, system, event, fits) in [
        ("sched:sched_switch", Some("sched"), "sched_switch", true),
        ("sched/sched_switch", Some("sched"), "sched_switch", true),
        ("sched:sched_switch", Some("other"), "sched_switch", false),
        ("sched:sched_switch", Some("sched"), "sched_wakeup", false),
        ("sched_switch", Some("sched"), "sched_switch", true),
        ("sched_*", Some("sched"), "sched_switch", true),
        ("sched_[a-d]*", Some("sched"), "sched_switch", false),
        ("sched", Some("sched"), "sched_switch", true),
        ("sched:", Some("sched"), "sched_switch", true),
        ("s*:*_switch", Some("sched"), "sched_switch", true),
        ("t*:*_switch", Some("sched"), "sched_switch", false),
        ("sched:", Some("timer"), "hrtimer_start", false),
        // A text does not say it.
        ("sched:sched_switch", None, "sched_switch", true),
        ("sched:sched_switch", None, "sched_wakeup", false),
        ("sched", None, "sched_switch", false),
    ] {
        let glob = EventGlob::new(word).unwrap();
        assert_eq!(
            glob.matches(system, event),
            fits,
            "{word} {system:?} {event}"
        );
    }
    let error = EventGlob::new("sched:[a").unwrap_err();
    assert!(
        error.contains("\"sched:[a\" is not a valid pattern"),
        "{error}"
    );
}

#[test]
fn cpus_are_numbers_and_ranges() {
    let has = |text| {
        let range = CpuRange::new(text).unwrap();
        let cpus = (0..9).filter(|cpu| range.has(*cpu));
        cpus.collect::<Vec<_>>()
    };
    assert_eq!(has("3"), [3]);
    assert_eq!(has("2-4"), [2, 3, 4]);
    assert_eq!(has("4-4"), [4]);
    for text in ["", "-", "1-", "-1", "+1", "1-2-3", "a", "99999999999", " 1"] {
        let error = CpuRange::new(text).unwrap_err();
        assert!(
            error.contains("is not the number of a CPU"),
            "{text}: {error}"
        );
    }
    assert!(CpuRange::new("4-3").unwrap_err().contains("ends before"));
}

#[test]
fn times_are_compared_as_they_are_shown() {
    let has = |text, time| TimeRange::new(text).unwrap().has(time);
    // Shown as 8.770009.
    for nanos in [8_770_008_500, 8_770_009_000, 8_770_009_499] {
        let time = Time::Nanos(nanos);
        assert_eq!(time.to_string(), "8.770009");
        for text in [
            "8.770009..8.770009",
            "8..",
            "..8.770009",
            "..9",
            "8.77..8.78",
        ] {
            assert!(has(text, time), "{text} {nanos}");
        }
        for text in ["8.770010..", "..8.770008", "..8", "9.."] {
            assert!(!has(text, time), "{text} {nanos}");
        }
    }
    // Other clocks.
    assert!(has("5..7", Time::Ticks(7)));
    assert!(!has("5..7", Time::Ticks(8)));
    assert!(has("5..", Time::Ticks(u64::MAX)) && !has("..5", Time::Ticks(u64::MAX)));
    for (text, says) in [
        ("", "is A..B"),
        ("5", "is A..B"),
        ("..", "neither"),
        ("7..5", "ends before"),
        ("8.2..8.1", "ends before"),
        ("+5..", "\"+5\" is not a time"),
        ("-5..", "\"-5\" is not a time"),
        ("5...6", "\".6\" is not a time"),
        ("5..6.", "\"6.\" is not a time"),
        ("8.1234567..", "is not a time"),
        ("99999999999999999999..", "is not a time"),
        ("a..b", "\"a\" is not a time"),
    ] {
        let error = TimeRange::new(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn a_call_is_named_by_its_function() {
    let fits = |word, name: &str| {
        let filter = Filter {
            events: globs(&[word]),
            ..Filter::default()
        };
        let fields = match name.ends_with("()") {
            true => fields_of("ftrace", "", "\"\"", &[]),
            false => Default::default(),
        };
        filter.fits(&Event {
            fields,
            ..event(name, "c", 1)
        })
    };
    for word in [
        "ksys_write",
        "ksys_write()",
        "ksys_*",
        "ftrace:",
        "ftrace:ksys_write",
        "ftrace",
    ] {
        assert!(fits(word, "ksys_write()"), "{word}");
    }
    for word in ["ksys", "kmem:ksys_write", "ksys_read"] {
        assert!(!fits(word, "ksys_write()"), "{word}");
    }
    assert!(!fits("ftrace", "ksys_write"));
}

const KALLSYMS: &str = "\
    ffffffff81000000 T _text\n\
    ffffffff81000100 t vfs_read\n\
    ffffffff81000200 t ksys_read\n\
    ffffffff81000300 t asm_exc_page_fault\n\
    ffffffff81000400 T _end\n";

/// Names, and a filter by stacks.
fn loaded(stack: &str) -> Loaded {
    let mut loaded = Loaded::named(KALLSYMS);
    loaded.filter.stacks = vec![Regex::new(stack).unwrap()];
    loaded
}

#[test]
fn an_address_matches_by_what_it_means_in_its_stack() {
    let event = event("x", "c", 1);
    let mut loaded = loaded("^ksys_read$");
    // A call at the end of vfs_read returns to where ksys_read begins; an exception comes from there.
    for (id, ip) in [(11, 0xffff_ffff_8100_0180), (12, 0xffff_ffff_8100_0310)] {
        let ips = [ip, 0xffff_ffff_8100_0200];
        loaded.stacks.push(Stack::example(id, &ips)).unwrap();
    }
    let mut selection = Selection::new(&loaded);
    for (id, fits) in [(11, false), (12, true), (11, false)] {
        let keeps = selection.keeps(&event, StackRef::Id(id).into());
        assert_eq!(keeps, fits, "{id}");
    }
}

#[test]
fn of_many_values_some_are_named_if_nothing_is_kept() {
    let loaded = Loaded {
        filter: Filter {
            comms: vec![Glob::of_name("x").unwrap()],
            pids: vec![0],
            ..Filter::default()
        },
        ..Loaded::default()
    };
    // Without events, it is not the filter.
    assert_eq!(Selection::new(&loaded).finish().unwrap().line(), None);
    let mut selection = Selection::new(&loaded);
    for pid in 1..1000 {
        selection.keeps(&event("e", "a\x1b", pid), Sides::NONE);
    }
    let line = selection.finish().unwrap().line().unwrap();
    let want =
        "none of 999 events matches --comm --pid; tasks: a\u{fffd}; pids: 1, 2, 3, 4, 5, 6, 7, 8, \
                9, 10, 11, 12, ...";
    assert_eq!(line, want);
}

#[test]
fn a_user_stack_that_is_missing_does_not_match() {
    let loaded = loaded("");
    let mut selection = Selection::new(&loaded);
    for user in [
        UserRef::Id(5),
        UserRef::Pending,
        UserRef::Lost,
        UserRef::NotKept,
    ] {
        let sides = Sides {
            kernel: StackRef::None,
            user,
        };
        assert!(!selection.keeps(&event("e", "c", 1), sides), "{user:?}");
    }
}

proptest! {
    /// Each event is on one side of a time that is shown, or at it.
    #[test]
    fn a_time_that_is_shown_splits_a_trace(nanos in any::<u64>(), at in any::<u64>()) {
        let (time, at) = (Time::Nanos(nanos), Time::Nanos(at).to_string());
        let has = |text: String| TimeRange::new(&text).unwrap().has(time);
        let (from, to) = (has(format!("{at}..")), has(format!("..{at}")));
        prop_assert!(from || to);
        prop_assert_eq!(from && to, time.to_string() == at);
        let shown = time.to_string();
        prop_assert!(has([&shown[..], &shown].join("..")));
    }
}

#[test]
fn the_id_of_a_process_selects_its_threads() {
    let event = Event {
        pid: 8,
        tgid: Some(7),
        ..Event::example("a", crate::ring::fields::Fields::default())
    };
    for (pid, fits) in [(7, true), (8, true), (9, false)] {
        let filter = Filter {
            pids: vec![pid],
            ..Filter::default()
        };
        assert_eq!(filter.fits(&event), fits, "{pid}");
    }
}
