// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pairs of events in odd orders.

mod events;

use super::{show::write_histogram, *};
use crate::{folded, gaps::Gaps, output::tests::written, stack_map_bin::Stack, trace::UserRef};
use proptest::prelude::*;

const WAITS: Preset = Preset::Waits { unfinished: false };
const UNFINISHED: Preset = Preset::Waits { unfinished: true };
const LEAKS: Preset = Preset::Leaks { older: 0 };
const MISSING: &str = "not counted: records of that time are missing";

/// Pairs of steps such as `10:8+2 first a`: the time, the first number of the key, its range as a power of two, what it
/// is, and the name of the task or of the group. Wakers have a stack and a task, too: `wakes NAME STACK TASK`.
fn pairs_of(preset: Preset, by: &str, steps: &str) -> Pairs {
    let mut pairs = Pairs::new(preset, Rules::default(), By::of_wait(by).unwrap());
    for step in steps.split(", ") {
        let words: Vec<_> = step.split([' ', ':']).collect();
        let (start, order) = words[1].split_once('+').unwrap_or((words[1], "0"));
        let comm = match words[3] {
            "(interrupt)" => INTERRUPT,
            name => pairs.comm(name),
        };
        let (part, number) = match words[2] {
            "last" => (Part::Last, 0),
            "wakes" => {
                let key = Key::of_user_id(words[4].parse().unwrap());
                pairs.middles.push(Middle { key, comm });
                (Part::Middle, pairs.middles.len() - 1)
            }
            what => {
                let group = match &pairs.by {
                    By::Key(tally::By::Stack) => pairs.names.number("", Kind::Group),
                    _ => comm,
                };
                pairs.firsts.push(First {
                    key: Key::of_user_id(7),
                    size: 1 << order.parse::<u32>().unwrap(),
                    group,
                    is_wanted: what != "unwanted",
                    is_blocked: what.starts_with("sleeps") || what == "asleep",
                    goes_on: what == "raised",
                    is_before: what == "asleep",
                    slept_on: what == "sleeps-on",
                });
                (Part::First, pairs.firsts.len() - 1)
            }
        };
        pairs.steps.push(Step {
            time: words[0].parse().unwrap(),
            start: start.parse().unwrap(),
            space: 0,
            order: order.parse().unwrap(),
            part,
            number: number as u32,
        });
        let last = pairs.steps.iter().map(|step| step.time).max();
        pairs.end = last.map(Time::Nanos);
    }
    pairs
}

/// What is counted, by group, and what is said of the rest.
fn found(mut pairs: Pairs, gaps: &[(u64, u64)]) -> Vec<String> {
    pairs.join(&Gaps::new(gaps.to_vec()));
    let mut rows = Vec::new();
    for (row, split) in &pairs.waits {
        assert_eq!(row.key, Key::of_user_id(7));
        let [group, waker] = [row.group, row.waker.comm].map(|name| pairs.names.get(name).0);
        let stack = match row.waker.key.user {
            UserRef::Id(id) => format!(" {id}"),
            _ => String::new(),
        };
        rows.push(format!("{group}: {:?} {waker}{stack}", split.times));
    }
    for (group, times) in &pairs.times {
        rows.push(format!("{}: {times:?}", pairs.names.get(*group).0));
    }
    if let Preset::Leaks { .. } = pairs.preset {
        let left = pairs.tally.groups(9).into_iter();
        rows.extend(left.map(|group| format!("{}: {}", group.name, group.total.weight)));
    }
    rows.sort();
    let notes = pairs.notes().into_iter().map(|note| note.text);
    rows.extend(notes.filter(|note| !note.starts_with("no sched:sched_waking")));
    rows
}

/// Checks what is found of steps: `STEPS => ROW; NOTE` in each line of `cases`, in this order and in the other one.
#[track_caller]
fn check(preset: Preset, by: &str, gaps: &[(u64, u64)], cases: &str) {
    for case in cases.trim().lines() {
        let (steps, want) = case.trim().split_once(" =>").unwrap();
        let mut steps: Vec<_> = steps.split(", ").collect();
        for _ in 0..2 {
            let found = found(pairs_of(preset, by, &steps.join(", ")), gaps);
            assert_eq!(found.join("; "), want.trim(), "{steps:?}");
            steps.reverse();
        }
    }
}

#[test]
fn a_wait_is_blocked_until_the_task_is_woken_up() {
    // Whoever wakes it up first; or nobody that the trace knows, while another task is; while it was about to leave;
    // and for another time. One that could run on is preempted. Who woke it up is forgotten when it runs.
    let cases = "
        10:1 sleeps a, 30:1 wakes x 1, 31:1 wakes y 2, 35:1 last a => : [20, 5, 0] x 1
        10:1 sleeps a, 30:2 wakes x 1, 35:1 last a => : [25, 0, 0] (unknown)
        9:1 wakes x 1, 10:1 sleeps a, 35:1 last a => : [0, 25, 0] x 1
        9:1 wakes x 1, 10:1 sleeps a, 30:1 wakes y 2, 35:1 last a => : [20, 5, 0] y 2
        10:1 runs a, 12:1 wakes x 1, 35:1 last a => : [0, 0, 25] (preempted)
        1:1 sleeps a, 2:1 wakes x 1, 4:1 last a, 5:1 sleeps a, 7:1 last a => : [1, 2, 0] x 1; : [2, 0, 0] (unknown)
        1:1 wakes x 1, 2:1 sleeps a, 5:1 last a, 7:1 sleeps a, 9:1 last a => : [0, 3, 0] x 1; : [2, 0, 0] (unknown)";
    check(WAITS, "stack", &[], cases);
}

#[test]
fn waits_that_are_not_wanted_end_those_before() {
    // The record that a task was switched in may be missing. A waking before what is not wanted ends no later wait.
    let cases = "
        1:1 sleeps a, 2:1 last a, 3:1 unwanted a, 4:1 wakes x 1, 5:1 last a => a: [1, 0, 0] (unknown)
        1:1 sleeps a, 3:1 unwanted a, 4:1 wakes x 1, 5:1 last a => 1 wait of 2 ns MISSING
        1:1 sleeps a, 3:1 sleeps a, 8:1 last a => a: [5, 0, 0] (unknown); 1 wait of 2 ns MISSING
        1:1 wakes x 1, 2:1 unwanted a, 3:1 last a, 4:1 sleeps a, 6:1 last a => a: [2, 0, 0] (unknown)
        1:1 wakes x 1, 2:1 unwanted a, 4:1 sleeps a, 6:1 last a => a: [2, 0, 0] (unknown)
        1:1 unwanted a, 2:1 wakes x 1, 4:1 sleeps a, 6:1 last a => a: [0, 2, 0] x 1";
    check(WAITS, "comm", &[], &cases.replace("MISSING", MISSING));
}

#[test]
fn waits_with_missing_records_are_not_counted() {
    let case = "10:1 sleeps a, 20:1 wakes x 1, 21:1 last a, 30:2 sleeps a, 40:2 wakes x 1, 41:2 last a => \
                a: [10, 1, 0] x 1; 1 wait of 11 ns ";
    let case = case.to_owned() + MISSING;
    check(WAITS, "comm", &[(0, 5), (21, 31)], &case);
    // Nor is who woke a task up before.
    let case = "10:1 wakes x 1, 30:1 sleeps a, 40:1 last a => a: [10, 0, 0] (unknown)";
    check(WAITS, "comm", &[(15, 25)], case);
    // It may have ended in a gap.
    let case = format!("10:1 sleeps a, 25:3 last b => 1 wait of 15 ns {MISSING}");
    check(WAITS, "comm", &[(11, 15)], &case);
    check(UNFINISHED, "comm", &[(11, 15)], &case);
    // Unless it is known that the task did not run.
    let case = "10:1 sleeps-on a, 25:3 last b => a: [15, 0, 0] (unknown)";
    check(UNFINISHED, "comm", &[(11, 15)], case);
}

#[test]
fn waits_that_last_are_counted_if_they_are_wanted() {
    let steps = "10:1 sleeps a, 15:2 runs b, 25:3 last c, 30:1 wakes x 1, 5:4 unwanted d => ";
    let why = "2 waits of 35 ns not counted: the tasks still waited when the trace ended \
               (--unfinished counts them)";
    check(WAITS, "comm", &[], &[steps, why].concat());
    let want = "a: [20, 0, 0] x 1; b: [0, 0, 15] (preempted)";
    check(UNFINISHED, "comm", &[], &[steps, want].concat());
    // Whoever woke the task up before has not ended the wait. The trace may end later.
    let steps = "5:1 wakes x 1, 10:1 sleeps a";
    let mut pairs = pairs_of(UNFINISHED, "comm", steps);
    pairs.end = Some(Time::Nanos(200));
    assert_eq!(found(pairs, &[]), ["a: [190, 0, 0] (unknown)"]);
}

#[test]
fn who_slept_before_and_then_ran_is_not_missing() {
    let case = "1:1 asleep a, 5:1 sleeps a, 9:1 last a => a: [4, 0, 0] (unknown)";
    check(WAITS, "comm", &[], case);
    check(UNFINISHED, "comm", &[], case);
}

#[test]
fn a_waker_has_the_name_that_it_had() {
    let case = "1:5 last sh, 10:1 sleeps a, 12:1 wakes prog 1, 13:1 last a, 40:1 sleeps a, \
                45:1 wakes (interrupt) 1, 46:1 last a => (interrupt): [5, 1, 0] (interrupt) 1; \
                prog: [2, 1, 0] prog 1";
    check(WAITS, "waker", &[], case);
    // No task is called as what is none.
    let mut pairs = Pairs::new(WAITS, Rules::waits(), By::Waker);
    for name in NO_TASKS {
        let number = pairs.comm(name);
        assert_eq!(pairs.names.get(number).0, format!("\"{name}\""));
    }
    let number = pairs.comm("(sd-pam)");
    assert_eq!(pairs.names.get(number).0, "(sd-pam)");
}

#[test]
fn what_has_the_same_key_is_a_pair() {
    // Of what is not wanted, and of what may be the end of it, nothing is said.
    let cases = "
        1:1 first a, 2:2 first b, 3:2 last -, 9:1 last -, 20:1 first a, 25:1 last - => a: [5, 8]; b: [1]
        1:9 last -, 2:1 first a, 5:1 first a, 6:1 last -, 7:2 first a => a: [1]; OPEN; AGAIN; ALONE
        1:9 last -, 2:1 raised a, 5:1 raised a, 6:1 last -, 7:2 first a => a: [4]; OPEN; ALONE
        1:9 last -, 2:3 unwanted a, 3:3 unwanted a, 6:1 first a, 8:1 last - => a: [2]";
    let mut cases = cases.to_owned();
    for (short, why) in [
        ("OPEN", "first event: the last one is not in the trace"),
        (
            "AGAIN",
            "first event: another one of the same key came before the last one",
        ),
        ("ALONE", "last event: the first one is not in the trace"),
    ] {
        cases = cases.replace(short, &format!("not counted: 1 {why}"));
    }
    check(Preset::Latencies, "event", &[], &cases);
    let case = "5:1 first a, 15:1 last -, 12:2 first a, 25:2 last -, 21:3 first a, 29:3 last - => a: [8]; not counted: 2 pairs: \
                records of that time are missing";
    check(Preset::Latencies, "event", &[(10, 20)], case);
}

#[test]
fn what_is_freed_in_parts_is_left_in_parts() {
    let cases = "
        1:8+2 first a, 2:8+2 last - =>
        1:8+2 first a, 2:9 last - => a: 3
        1:8+2 first a, 2:4+2 last - => a: 4; FREE
        1:8+2 first a, 2:12 last - => a: 4; FREE
        1:8+2 first a, 2:8+1 first b, 3:10 last - => a: 1; b: 2; AGAIN
        1:8 first a, 2:8 first a => a: 1; AGAIN
        1:8 first a, 2:8 unwanted a => AGAIN
        1:8 unwanted a, 2:9 last - =>";
    let free =
        "not counted: 1 free: what they free was allocated before the trace, or without an event";
    let again =
        "1 allocation freed without an event, as something else was allocated there later: others \
                 that are freed so look outstanding";
    let cases = cases.replace("FREE", free).replace("AGAIN", again);
    check(LEAKS, "event", &[], &cases);
    let steps =
        "1:1 first a, 4:2 first a, 5:3 first a, 10:4 last - => a: 1; not counted: 1 allocation: \
                 records after them are missing, so they may have been freed; \
                 not counted: 1 allocation: younger than 6 ns (--older); ";
    check(
        Preset::Leaks { older: 6 },
        "event",
        &[(1, 2)],
        &[steps, free].concat(),
    );
}

proptest! {
    #[test]
    fn parts_are_counted_as_numbers_are(
        steps in prop::collection::vec((any::<bool>(), 0..2u64, 0..24u64, 0..4u32), 0..60)
    ) {
        let (mut owners, mut left) = (HashMap::new(), Vec::<u64>::new());
        let mut texts = vec!["0:99 first none".to_owned(), "0:99 last -".to_owned()];
        for (time, (is_first, space, start, order)) in (1..).zip(&steps) {
            let start = space * 1000 + start;
            let what = if *is_first { format!("first {}", left.len()) } else { "last -".to_owned() };
            texts.push(format!("{time}:{start}+{order} {what}"));
            let numbers = start..start + (1 << order);
            for number in numbers.clone() {
                if let Some(owner) = owners.remove(&number) {
                    left[owner] -= 1;
                }
            }
            if *is_first {
                owners.extend(numbers.map(|number| (number, left.len())));
                left.push(1 << order);
            }
        }
        let mut pairs = pairs_of(LEAKS, "event", &texts.join(", "));
        pairs.join(&Gaps::default());
        let got: HashMap<_, _> = pairs.tally.iter().map(|(name, _, count)| (name.to_owned(), count.weight)).collect();
        let want = (0..).zip(left).filter(|(_, left)| *left > 0);
        prop_assert_eq!(got, want.map(|(index, left): (u32, _)| (index.to_string(), left)).collect());
    }
}

fn shown(pairs: &Pairs, loaded: &Loaded, limits: Limits) -> String {
    let sections = crate::report::sections(pairs.tally(), pairs.by(), limits.stacks);
    written(|out| pairs.write(out, &sections, loaded, limits))
}

#[test]
fn histograms_have_all_powers_between() {
    let text = written(|out| write_histogram(out, &[0, 1, 1023, 1024, 5000, 5001, u64::MAX]));
    let rows: Vec<_> = text.lines().collect();
    assert_eq!(rows.len(), 64);
    let (bar, half) = ("#".repeat(40), "#".repeat(20));
    assert_eq!(rows[0], format!("         0 to 2 ns             2  {bar}"));
    assert_eq!(rows[1], "      2 ns to 4 ns             0");
    assert_eq!(rows[9], format!("    512 ns to 1.0 us           1  {half}"));
    assert_eq!(rows[12], format!("    4.1 us to 8.2 us           2  {bar}"));
    assert!(rows[63].ends_with(&format!(" 1  {half}")), "{}", rows[63]);
}

#[test]
fn groups_have_those_first_that_took_longest() {
    const LONG: u64 = u64::MAX / 2 + 1;
    let steps = format!(
        "0:1 first z, 0:2 first z, 0:3 first a, 0:4 first c, 0:5 first b\x1b[2J, 7:4 last -, 7:5 last -, \
         {LONG}:1 last -, {LONG}:2 last -, {LONG}:3 last -"
    );
    let mut pairs = pairs_of(Preset::Latencies, "event", &steps.replace("\\x1b", "\x1b"));
    pairs.join(&Gaps::default());
    let limits = Limits {
        histogram: true,
        ..Limits::default()
    };
    let text = shown(&pairs, &Loaded::default(), limits);
    assert!(
        !text.contains('\x1b') && text.matches("b\u{fffd}[2J").count() == 3,
        "{text:?}"
    );
    let lines = [
        "\n z ", "\n a ", "\n b", "\n c ", "\nz:", "\na:", "\nb", "\nc:",
    ];
    let places = lines.map(|line| text.find(line).unwrap());
    assert!(places.is_sorted(), "{text}");
    let steps =
        "0:1 sleeps b, 10:1 wakes x 1, 12:1 last b, 20:2 sleeps a, 50:2 wakes y 2, 51:2 last a, \
                 60:1 sleeps b, 61:1 last b, 62:1 runs b, 64:1 last b";
    let limits = Limits {
        stacks: 9,
        wakers: 1,
        ..limits
    };
    for (by, want) in [
        (
            "comm",
            "4 waits, 46 ns: 41 ns blocked, 3 ns runnable, 2 ns preempted\n\n \
             comm  waits   share  blocked  runnable  preempted  longest\n \
             a         1  67.4 %    30 ns      1 ns          0    31 ns\n \
             b         3  32.6 %    11 ns      2 ns       2 ns    12 ns\n\n\
             a: 1 wait, 31 ns\n 100.0 %     31 ns  1 wait, longest 31 ns, user_stack_id 7\n",
        ),
        (
            "stack",
            "preempted\n\n 100.0 %     46 ns  4 waits, longest 31 ns, user_stack_id 7\n",
        ),
    ] {
        let mut pairs = pairs_of(WAITS, by, steps);
        pairs.join(&Gaps::default());
        assert_eq!(pairs.users(), [1, 2, 7].into());
        let text = shown(&pairs, &Loaded::default(), limits);
        assert!(text.contains(want), "{text}");
        let title = "woken up by y: 1 wait, 30 ns blocked, 1 ns runnable\n";
        assert!(text.contains(title), "{text}");
        let has_more = text.contains("... 2 wakers more (--wakers)");
        assert_eq!(has_more, by == "stack", "{text}");
    }
}

#[test]
fn a_trace_ends_with_its_latest_event() {
    // Times of two CPUs go backwards.
    let case = "40:1 first a, 30:2 last -, 20:2 first a, 35:3 first a => a: 1; not counted: 1 allocation: \
                records after them are missing, so they may have been freed";
    check(LEAKS, "event", &[(36, 38)], case);
}

/// Waits that a task and an interrupt end, both with the same stack, in which an interrupt began.
fn with_stacks(by: &str, steps: &str) -> (Pairs, Loaded) {
    let kallsyms = "ffffffff81000000 T _text\nffffffff81000100 T wakes\n\
                    ffffffff81000200 T asm_sysvec_reboot\nffffffff81000300 T interrupted\n\
                    ffffffff81000400 T _end\n";
    let mut loaded = Loaded::named(kallsyms);
    let ips = &[
        0xffff_ffff_8100_0110,
        0xffff_ffff_8100_0210,
        0xffff_ffff_8100_0310,
    ];
    loaded.stacks.push(Stack::example(1, ips)).unwrap();
    let mut pairs = pairs_of(WAITS, by, steps);
    pairs
        .firsts
        .iter_mut()
        .for_each(|first| first.key = Key::NONE);
    pairs
        .middles
        .iter_mut()
        .for_each(|middle| middle.key = Key::of_id(1));
    pairs.join(&Gaps::default());
    (pairs, loaded)
}

#[test]
fn what_an_interrupt_interrupted_is_not_shown() {
    for (waker, want) in [
        ("(interrupt)", ["wakes", "asm_sysvec_reboot"].as_slice()),
        ("x", &["wakes", "asm_sysvec_reboot", "interrupted"]),
    ] {
        let steps = format!("0:1 sleeps a, 1000:1 wakes {waker} 1, 1999:1 last a");
        let (pairs, loaded) = with_stacks("comm", &steps);
        let limits = Limits {
            stacks: 9,
            wakers: 9,
            ..Limits::default()
        };
        let text = shown(&pairs, &loaded, limits);
        for frame in ["wakes", "asm_sysvec_reboot", "interrupted"] {
            assert_eq!(
                text.contains(&format!("{frame}+0x10")),
                want.contains(&frame),
                "{text}"
            );
        }
        // The 999 ns in which it could run are less than a microsecond.
        let mut names = Names::default();
        let folded = pairs.fold_waits(&loaded, &mut names);
        let mut text = Vec::new();
        folded::write(&folded, &names, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text,
            format!("a;(no stack);--;{};{waker} 1\n", want.join(";"))
        );
    }
}
