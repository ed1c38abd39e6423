// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs of events whose fields are odd.

use super::*;
use crate::{
    gaps::Gaps,
    ring::fields::{
        tests::{fields, fields_of},
        Fields,
    },
    trace::{Flags, StackRef},
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
        name: name.to_owned(),
        fields: fields(description, "\"\"", &data),
        comm: "task".to_owned(),
        pid: 7,
        tgid: None,
        cpu: 0,
        time: Time::Nanos(time),
        flags: Flags::default(),
        recording: Default::default(),
    }
}

fn name(name: &str) -> EventName {
    EventName::new(name).unwrap()
}

fn key(text: &str) -> Vec<KeyField> {
    vec![KeyField::new(text).unwrap()]
}

/// The trail of some events.
fn trail<'a>(rules: &'a mut Rules, by: &str, events: &[Event]) -> Trail<'a> {
    let mut trail = Trail::new(rules, By::new(by).unwrap(), 4096);
    for event in events {
        let sides = StackRef::None.into();
        trail.add(event, sides, &Loaded::default(), true);
    }
    trail
}

fn texts(notes: &[Note]) -> Vec<&str> {
    notes.iter().map(|note| &note.text[..]).collect()
}

/// How many allocations `a` are not freed by `f`, how many bytes these are, and what is said of that.
fn leaks_of(events: &[(&str, u64)], by: &str, size: Size, key_of: &str) -> (u64, u64, Vec<String>) {
    let mut rules = Rules::resource(name("a"), name("f"), &key(key_of), size);
    let mut time = 0;
    let events = events.iter().map(|(name, number)| {
        time += 1;
        event(name, time, *number, b'x')
    });
    let trail = trail(&mut rules, by, &events.collect::<Vec<_>>());
    let leaks = leaks::leaks(trail, &Gaps::default(), 0);
    let total = leaks.tally.total();
    let notes = texts(leaks.notes());
    let notes = notes.into_iter().map(str::to_owned).collect();
    (total.events, total.weight, notes)
}

#[test]
fn a_size_that_is_none_is_named() {
    let fields = "its fields with a number: number, signed, byte";
    for (size, number, why) in [
        (
            Size::Field("signed".to_owned()),
            u64::MAX,
            "a negative signed",
        ),
        (Size::Field("text".to_owned()), 1, "no number text"),
        (Size::Pages("byte".to_owned()), 64, "an odd byte"),
        (Size::Field("nope".to_owned()), 1, "no nope"),
    ] {
        let events = [("a", number), ("f", number)];
        let (_, _, notes) = leaks_of(&events, "event", size.clone(), "number");
        let want = format!("not counted: 1 event: a has {why}; {fields}");
        assert!(notes.contains(&want), "{size:?}: {notes:?}");
    }
}

#[test]
fn blocks_may_be_as_large_as_all_memory() {
    let order = Size::Pages("byte".to_owned());
    // The second one is where the first one was, and one of its pages is freed.
    let events = [("a", 63), ("a", 63), ("a", 0), ("f", 64)];
    let (nr, bytes, _) = leaks_of(&events, "event", order, "number");
    assert_eq!((nr, bytes), (2, u64::MAX));
}

#[test]
fn the_last_number_is_a_key_as_others_are() {
    for number in [u64::MAX, u64::MAX - 1, 5] {
        let events = [("a", number), ("f", number), ("a", number), ("a", number)];
        let (nr, _, notes) = leaks_of(&events, "event", Size::One, "number");
        assert_eq!(nr, 1, "{number:#x}");
        assert_eq!(notes.len(), 1, "{number:#x}: {notes:?}");
        assert!(notes[0].starts_with("1 allocation freed without an event"));
    }
}

#[test]
fn all_bits_of_a_number_are_compared() {
    let events = [("a", 5), ("f", 1 << 32 | 5)];
    let (nr, _, notes) = leaks_of(&events, "event", Size::One, "number");
    assert_eq!((nr, notes.len()), (1, 1), "{notes:?}");
}

#[test]
fn errors_are_nothing_that_would_be_freed() {
    let events = [("a", u64::MAX), ("a", 3), ("f", 3)];
    for size in [Size::One, Size::Field("signed".to_owned())] {
        let (nr, _, notes) = leaks_of(&events, "event", size, "signed");
        assert_eq!((nr, notes.len()), (0, 0), "{notes:?}");
    }
}

#[test]
fn a_text_is_no_number() {
    let mut rules = Rules::latency(name("a"), name("f"), &key("text=number"));
    // The first text that there is, and the number 0.
    let events = [event("a", 1, 5, b'x'), event("f", 2, 0, b'y')];
    let trail = trail(&mut rules, "event", &events);
    let latencies = latency::latencies(trail, &Gaps::default());
    let notes = texts(latencies.notes());
    assert_eq!(latencies.tally.total().events, 0, "{notes:?}");
    let mut rules = Rules::latency(name("a"), name("f"), &key("text"));
    let events = [
        event("a", 1, 5, b'x'),
        event("a", 2, 5, b'y'),
        event("f", 9, 5, b'x'),
    ];
    let trail = super::tests::trail(&mut rules, "event", &events);
    let latencies = latency::latencies(trail, &Gaps::default());
    let total = latencies.tally.total();
    assert_eq!((total.events, total.weight), (1, 8));
}

#[test]
fn a_group_that_no_event_has_is_named() {
    let events = [("a", 1), ("f", 1), ("a", 2)];
    let (nr, _, notes) = leaks_of(&events, "nope", Size::One, "number");
    assert_eq!(nr, 1);
    let want = "no first event has a field nope (--by): a has number, signed, byte, text";
    assert_eq!(notes, [want]);
    for by in ["text", "byte", "common_pid", "common_cpu", "event"] {
        let (_, _, notes) = leaks_of(&events, by, Size::One, "number");
        assert!(notes.is_empty(), "{by}: {notes:?}");
    }
    let mut rules = Rules::latency(name("a"), name("f"), &key("number"));
    let events = [event("a", 1, 5, b'x'), event("f", 2, 5, b'x')];
    let mut of = trail(&mut rules, "common_pid", &events);
    assert_eq!(of.names.number("7", Kind::Group), 0);
}

#[test]
fn names_in_notes_do_not_control_the_terminal() {
    let mut rules = Rules::latency(name("a\x1b[2J"), name("f"), &key("nope"));
    let trail = trail(&mut rules, "event", &[event("a\x1b[2J", 1, 5, b'x')]);
    let notes = trail.notes();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let mut out = crate::output::Out::file(&path, crate::output::Access::Umask).unwrap();
    out.notes(&notes).unwrap();
    out.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("a\u{fffd}[2J has no nope"), "{text:?}");
}

#[test]
fn a_trace_ends_with_its_latest_event() {
    let mut rules = Rules::resource(name("a"), name("f"), &key("number"), Size::One);
    // Times of two CPUs go backwards.
    let events = [
        event("a", 40, 1, b'x'),
        event("f", 30, 2, b'x'),
        event("a", 20, 2, b'x'),
        event("a", 35, 3, b'x'),
    ];
    let trail = trail(&mut rules, "event", &events);
    assert_eq!(trail.end(), Some(Time::Nanos(40)));
    let leaks = leaks::leaks(trail, &Gaps::new(vec![(36, 38)]), 0);
    let total = leaks.tally.total();
    assert_eq!(total.span, Some((Time::Nanos(40), Time::Nanos(40))));
    let why = "records behind them are missing, so they may have been freed";
    assert_eq!(
        texts(leaks.notes()),
        [format!("not counted: 1 allocation: {why}")]
    );
}

#[test]
fn what_is_missing_of_pairs_is_named() {
    let mut rules = Rules::latency(name("a"), name("f"), &key("number"));
    for (events, want) in [
        (&[][..], "it has none of the events"),
        (&["a"], "it has no last one of the events"),
        (&["f"], "it has no first one of the events"),
    ] {
        let events: Vec<_> = events.iter().map(|name| event(name, 1, 1, b'x')).collect();
        let missing = trail(&mut rules, "event", &events).is_complete("!");
        let missing = missing.unwrap_err();
        assert_eq!(missing, format!("{want} that belong together!"));
    }
}

#[test]
fn what_is_left_of_a_block_has_its_part_of_the_size() {
    let order = Size::Pages("byte".to_owned());
    // 2^8 pages from 8 on, of which one is freed.
    let events = [("a", 8), ("f", 9)];
    let (nr, bytes, _) = leaks_of(&events, "event", order, "number");
    assert_eq!((nr, bytes), (1, 255 * 4096));
}

#[test]
fn events_of_one_name_differ_by_their_system() {
    for (system, nr) in [("sys", 1), ("other", 0)] {
        let first = name(&format!("{system}:a"));
        let mut rules = Rules::latency(first, name("f"), &key("number"));
        let mut printed = event("a", 1, 7, b'x');
        printed.fields = Fields::Text(String::new());
        let events = [printed, event("a", 2, 7, b'x'), event("f", 5, 7, b'x')];
        let trail = trail(&mut rules, "event", &events);
        let latencies = latency::latencies(trail, &Gaps::default());
        assert_eq!(latencies.tally.total().events, nr, "{system}");
    }
}

#[test]
fn an_event_may_end_what_it_began_before() {
    let mut rules = Rules::latency(name("a"), name("a"), &key("number"));
    let events = [1, 4, 9].map(|time| event("a", time, 7, b'x'));
    let trail = trail(&mut rules, "event", &events);
    let latencies = latency::latencies(trail, &Gaps::default());
    let total = latencies.tally.total();
    assert_eq!((total.events, total.weight), (2, 8));
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
    let mut rules = Rules::memory();
    let (all, half) = (u64::MAX, u64::from(u32::MAX));
    for (event, nothing, something) in [
        ("kmalloc", [0, 16], [32, all]),
        ("kmem_cache_alloc", [0, 16], [32, all]),
        ("kfree", [0, 16], [32, all]),
        ("kmem_cache_free", [0, 16], [32, all]),
        ("mm_page_alloc", [half, all], [0, 16]),
        ("mm_page_free", [half, all], [0, 16]),
    ] {
        let roles = rules.roles(&event_of("kmem", event));
        assert_eq!(roles.len(), 1, "{event}");
        assert!(nothing.iter().all(|id| roles[0].is_nothing(*id, false)));
        assert!(!something.iter().any(|id| roles[0].is_nothing(*id, true)));
        assert!(rules.roles(&event_of("other", event)).is_empty());
        assert!(!rules.roles(&event_of("kmem", event)).is_empty());
    }
}

#[test]
fn each_system_call_is_a_pair_of_its_own() {
    let mut rules = Rules::latencies();
    let mut pairs = Vec::new();
    for call in ["read", "write", "close"] {
        let mut of = |begin: &str| {
            let roles = rules.roles(&event_of("syscalls", &format!("{begin}{call}")));
            assert_eq!(roles.len(), 1);
            (roles[0].pair, roles[0].is_first, roles[0].name.clone())
        };
        let (pair, name) = (of("sys_enter_").0, format!("{call}()"));
        assert_eq!(of("sys_enter_"), (pair, true, name.clone()));
        assert_eq!(of("sys_exit_"), (pair, false, name));
        pairs.push(pair);
    }
    let raise = rules.roles(&event_of("irq", "softirq_raise"));
    let entry = rules.roles(&event_of("irq", "softirq_entry"));
    assert!(raise.len() == 1 && raise[0].goes_on);
    // It ends the wait, and begins what runs.
    let is_first: Vec<_> = entry.iter().map(|role| role.is_first).collect();
    assert_eq!(is_first, [false, true]);
    assert!(!entry[1].goes_on && !pairs.contains(&entry[1].pair));
    pairs.dedup();
    assert_eq!(pairs.len(), 3);
    assert!(rules.roles(&event_of("other", "sys_enter_read")).is_empty());
    assert!(rules.roles(&event_of("syscalls", "sys_read")).is_empty());
}
