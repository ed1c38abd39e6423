// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs of events whose fields are odd, and which events are pairs.

use super::*;
use crate::{
    ring::fields::{
        tests::{fields, fields_of},
        Fields,
    },
    trace::StackRef,
};

/// An event at a time, with a field `number` of 64 bits, a field `signed` that is the same with a sign, a field `byte`
/// with the lowest of its bits, and a text `text` of one byte and a 0.
fn event(name: &str, time: u64, number: u64, text: u8) -> Event {
    let description = "\tfield:u64 number;\toffset:8;\tsize:8;\tsigned:0;
\tfield:s64 signed;\toffset:8;\tsize:8;\tsigned:1;
\tfield:s8 byte;\toffset:8;\tsize:1;\tsigned:1;
\tfield:char text[2];\toffset:16;\tsize:2;\tsigned:0;
";
    let data = [&number.to_le_bytes()[..], &[text, 0]].concat();
    Event {
        pid: 7,
        time: Time::Nanos(time),
        ..Event::example(name, fields(description, "\"\"", &data))
    }
}

/// Pairs of events `a` and `f` such as `a 5`, with the same `number` and a text, after each other.
fn of_events(key: &str, size: Option<Size>, by: &str, last: &str, events: &str) -> Pairs {
    let key = [key_field(key).unwrap()];
    let (first, last) = (event_name("a").unwrap(), event_name(last).unwrap());
    let (preset, rules) = match size {
        Some(size) => (LEAKS, Rules::resource(first, last, &key, size)),
        None => (Preset::Latencies, Rules::latency(first, last, &key)),
    };
    let mut pairs = Pairs::new(preset, rules, By::new(by).unwrap());
    for (time, text) in (1..).zip(events.split_terminator(", ")) {
        let words: Vec<_> = text.split(' ').collect();
        let text = words.get(2).map_or(b'x', |text| text.as_bytes()[0]);
        let event = event(words[0], time, words[1].parse().unwrap(), text);
        let keeps = &mut |_: &Event| true;
        pairs.add(&event, StackRef::None.into(), &Loaded::default(), keeps);
    }
    pairs
}

/// How many pairs there are, how much they weigh, and what is said of others.
fn sum(mut pairs: Pairs, gaps: &[(u64, u64)]) -> String {
    pairs.join(&Gaps::new(gaps.to_vec()));
    let total = pairs.tally.total();
    let notes = pairs.notes().into_iter().map(|note| note.text);
    let notes: Vec<_> = notes.collect();
    format!("{} {} {}", total.events, total.weight, notes.join("; "))
}

#[test]
fn a_size_that_is_none_is_named() {
    let fields = "its fields with a number: number, signed, byte";
    let field = |name: &str| Size::Field(name.to_owned());
    for (size, events, why) in [
        (
            field("signed"),
            "a 18446744073709551615, f 5",
            "a negative signed",
        ),
        (field("text"), "a 1, f 1", "no number text"),
        (Size::Pages("byte".to_owned()), "a 64, f 64", "an odd byte"),
        (field("nope"), "a 1, f 1", "no nope"),
    ] {
        let said = sum(of_events("number", Some(size), "event", "f", events), &[]);
        let want =
            format!("0 0 not counted: 1 event: a has {why}; {fields}; not counted: 1 free: ");
        assert!(said.starts_with(&want), "{said}");
    }
}

#[test]
fn keys_are_compared_with_all_their_bits() {
    const MAX: u64 = u64::MAX;
    let pages = || Some(Size::Pages("byte".to_owned()));
    let (one, signed) = (
        || Some(Size::One),
        || Some(Size::Field("signed".to_owned())),
    );
    for (key, size, events, want) in [
        // The second block is where the first one was, and one of its pages is freed.
        (
            "number",
            pages(),
            "a 63, a 63, a 0, f 64",
            "2 MAX 1 allocation freed ",
        ),
        // What is left of 2^8 pages from 8 on, of which one is freed.
        ("number", pages(), "a 8, f 9", "1 1044480 "),
        (
            "number",
            one(),
            "a MAX, f MAX, a MAX, a MAX",
            "1 1 1 allocation freed ",
        ),
        ("number", one(), "a 5, f MAX", "1 1 not counted: 1 free: "),
        (
            "number",
            one(),
            "a 5, f 4294967301",
            "1 1 not counted: 1 free: ",
        ),
        // Errors are nothing that would be freed.
        ("signed", one(), "a MAX, a 3, f 3", "0 0 "),
        ("signed", signed(), "a MAX, a 3, f 3", "0 0 "),
        // The first text that there is, and the number 0. Texts are compared, too.
        ("text=number", None, "a 5 x, f 0 y", "0 0 not counted: "),
        (
            "text",
            None,
            "a 5 x, a 5 y, f 5 x",
            "1 2 not counted: 1 first event: the last",
        ),
    ] {
        let events = events.replace("MAX", &MAX.to_string());
        let said = sum(of_events(key, size, "event", "f", &events), &[]);
        let want = want.replace("MAX", &MAX.to_string());
        let is_all = want.ends_with("0 ");
        assert!(
            said.starts_with(&want) && (said == want || !is_all),
            "{events}: {said}"
        );
    }
    // An event may end what it began before.
    let said = sum(
        of_events("number", None, "event", "a", "a 7, a 7, a 7"),
        &[],
    );
    assert!(
        said.starts_with("2 2 not counted: 1 first event: the last"),
        "{said}"
    );
}

#[test]
fn a_group_that_no_event_has_is_named() {
    let of = |by: &str| of_events("number", Some(Size::One), by, "f", "a 1, f 1, a 2");
    let want = "1 1 no first event has a field nope (--by): a has number, signed, byte, text";
    assert_eq!(sum(of("nope"), &[]), want);
    for by in ["text", "byte", "common_pid", "common_cpu", "event"] {
        assert_eq!(sum(of(by), &[]), "1 1 ", "{by}");
    }
    let pairs = of("common_pid");
    assert_eq!(pairs.names.get(pairs.firsts[0].group).0, "7");
}

#[test]
fn events_of_one_name_differ_by_their_system() {
    for (system, is_one) in [("sys", true), ("other", false)] {
        let name = event_name(&format!("{system}/a")).unwrap();
        let mut rules = Rules::latency(name, "f".to_owned(), &[key_field("number").unwrap()]);
        let printed = Event {
            fields: Fields::default(),
            ..event("a", 1, 7, b'x')
        };
        assert!(rules.roles(&printed).is_empty());
        assert_eq!(
            rules.roles(&event("a", 1, 7, b'x')).len() == 1,
            is_one,
            "{system}"
        );
        assert_eq!(rules.roles(&event("f", 1, 7, b'x')).len(), 1);
    }
}

/// An event of a system, without fields.
fn event_of(system: &str, name: &str) -> Event {
    Event {
        fields: fields_of(system, "", "\"\"", &[]),
        ..event(name, 1, 1, b'x')
    }
}

#[test]
fn what_was_not_allocated_is_nothing() {
    let (all, half) = (u64::MAX, u64::from(u32::MAX));
    let other = Rules::latencies()
        .roles(&event_of("other", "sys_enter_read"))
        .len();
    assert_eq!(other, 0);
    for (system, name, nothing, something) in [
        ("kmem", "kmalloc", &[0, 16][..], [32, all]),
        ("kmem", "kmem_cache_alloc", &[0, 16], [32, all]),
        ("kmem", "kfree", &[0, 16], [32, all]),
        ("kmem", "kmem_cache_free", &[0, 16], [32, all]),
        ("kmem", "mm_page_alloc", &[half, all], [0, 16]),
        ("kmem", "mm_page_free", &[half, all], [0, 16]),
        ("sched", "sched_switch", &[0], [1, all]),
        ("sched", "sched_waking", &[0], [1, all]),
    ] {
        let mut rules = match system {
            "kmem" => Rules::memory(),
            _ => Rules::waits(),
        };
        let event = event_of(system, name);
        for role in &*rules.roles(&event) {
            let is_nothing = |id: &u64| role.is_nothing(*id, &event);
            assert!(nothing.iter().all(is_nothing), "{name}");
            assert!(!something.iter().any(is_nothing), "{name}");
        }
        let nr_roles = if name == "sched_switch" { 2 } else { 1 };
        assert_eq!(rules.roles(&event).len(), nr_roles, "{name}");
        assert!(rules.roles(&event_of("other", name)).is_empty());
        assert!(!rules.roles(&event).is_empty());
    }
}

#[test]
fn names_of_events_have_no_wildcards() {
    for text in ["", "a:", ":a", "a*", "a:?"] {
        assert!(event_name(text).is_err(), "{text}");
    }
    for text in ["", "=a", "a="] {
        assert!(key_field(text).is_err(), "{text}");
    }
    let field = |first: &str, last: &str| Ok((first.to_owned(), last.to_owned()));
    assert_eq!(key_field("ret=fd"), field("ret", "fd"));
    assert_eq!(key_field("ptr"), field("ptr", "ptr"));
}

#[test]
fn the_state_of_a_task_says_whether_it_waits() {
    let description = "\tfield:pid_t prev_pid;\toffset:8;\tsize:4;\tsigned:1;
\tfield:pid_t next_pid;\toffset:12;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:16;\tsize:8;\tsigned:1;
\tfield:char prev_comm[4];\toffset:24;\tsize:4;\tsigned:0;
\tfield:char next_comm[4];\toffset:28;\tsize:4;\tsigned:0;
";
    let switch = |time, prev: u32, next: u32, state: u64| {
        let data = [
            &prev.to_le_bytes()[..],
            &next.to_le_bytes(),
            &state.to_le_bytes(),
            b"one\0two\0",
        ];
        Event {
            pid: prev,
            time: Time::Nanos(time),
            ..Event::example(
                "sched_switch",
                fields_of("sched", description, "\"\"", &data.concat()),
            )
        }
    };
    // It runs, is preempted, sleeps, is in state D, is idle, is a zombie, is dead.
    for (state, want) in [
        (0, Some([0, 0, 25])),
        (0x100, Some([0, 0, 25])),
        (1, Some([25, 0, 0])),
        (2, Some([25, 0, 0])),
        (0x80, Some([25, 0, 0])),
        (0x20, None),
        (0x10, None),
    ] {
        let mut pairs = Pairs::new(WAITS, Rules::waits(), By::Waker);
        for event in [switch(10, 7, 8, state), switch(35, 8, 7, 1)] {
            let keeps = &mut |_: &Event| true;
            pairs.add(&event, StackRef::None.into(), &Loaded::default(), keeps);
        }
        pairs.join(&Gaps::default());
        let found: Vec<_> = pairs.waits.values().map(|split| split.times).collect();
        assert_eq!(found, Vec::from_iter(want), "{state:#x}");
    }
}
