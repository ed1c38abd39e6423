// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::{
    folded::{self, Kind},
    source::Loaded,
    trace::{Flags, StackRef, Time},
};

/// Sleeps.
const SLEEPS: u64 = 1;
/// Was preempted.
const PREEMPTED: u64 = 0x100;

/// Comes back.
const COMES: What = What::Comes { comm: 0 };

fn waker(id: u32) -> Waker {
    Waker {
        comm: None,
        key: Key::of_id(id),
    }
}

/// What each task does, and when.
fn trail(steps: &[(u64, u32, What)]) -> Trail {
    let mut trail = Trail::default();
    for name in ["one", "two"] {
        trail.names.number(name, Kind::Group);
    }
    for (time, pid, what) in steps {
        trail.push(*time, *pid, *what);
    }
    trail.has_wakings = true;
    trail
}

fn leaves(state: u64) -> What {
    What::Leaves {
        comm: 0,
        state,
        key: Key::of_id(7),
        is_wanted: true,
    }
}

fn woken(id: u32) -> What {
    let waker = waker(id);
    What::Woken { by: 99, waker }
}

fn waits(steps: &[(u64, u32, What)]) -> Waits {
    trail(steps).waits(By::Stack, &Gaps::default(), false)
}

/// The cause and the times of the only row.
fn only(waits: &Waits) -> (Cause, [u64; 3]) {
    assert_eq!(waits.rows.len(), 1, "{:?}", waits.rows);
    let (row, sum) = waits.rows.iter().next().unwrap();
    assert_eq!(row.key, Key::of_id(7));
    (row.cause, [sum.blocked, sum.runnable, sum.preempted])
}

#[test]
fn a_wait_is_blocked_until_the_task_is_woken_up() {
    for (steps, cause, times) in [
        // Whoever wakes it up first.
        (
            &[
                (10, 1, leaves(SLEEPS)),
                (30, 1, woken(1)),
                (31, 1, woken(2)),
                (35, 1, COMES),
            ][..],
            Cause::Blocked(Some(waker(1))),
            [20, 5, 0],
        ),
        // Nobody that the trace knows.
        (
            &[(10, 1, leaves(SLEEPS)), (35, 1, COMES)],
            Cause::Blocked(None),
            [25, 0, 0],
        ),
        // While it was about to leave.
        (
            &[(9, 1, woken(1)), (10, 1, leaves(SLEEPS)), (35, 1, COMES)],
            Cause::Blocked(Some(waker(1))),
            [0, 25, 0],
        ),
        // That was for another time.
        (
            &[
                (9, 1, woken(1)),
                (10, 1, leaves(SLEEPS)),
                (30, 1, woken(2)),
                (35, 1, COMES),
            ],
            Cause::Blocked(Some(waker(2))),
            [20, 5, 0],
        ),
        // Another task is.
        (
            &[(10, 1, leaves(SLEEPS)), (30, 2, woken(1)), (35, 1, COMES)],
            Cause::Blocked(None),
            [25, 0, 0],
        ),
        // It could run on.
        (
            &[(10, 1, leaves(PREEMPTED)), (35, 1, COMES)],
            Cause::Preempted,
            [0, 0, 25],
        ),
        (
            &[(10, 1, leaves(0)), (35, 1, COMES)],
            Cause::Preempted,
            [0, 0, 25],
        ),
        // It sleeps and was preempted before it could.
        (
            &[
                (10, 1, leaves(PREEMPTED)),
                (12, 1, woken(1)),
                (35, 1, COMES),
            ],
            Cause::Preempted,
            [0, 0, 25],
        ),
    ] {
        let waits = waits(steps);
        assert_eq!(only(&waits), (cause, times), "{steps:?}");
        assert_eq!(waits.total().longest, 25);
        // The records of two CPUs come in another order.
        let mut turned = steps.to_vec();
        turned.reverse();
        assert_eq!(waits.rows, self::waits(&turned).rows);
    }
}

#[test]
fn who_woke_a_task_up_is_forgotten_when_it_runs() {
    let waits = waits(&[
        (1, 1, leaves(SLEEPS)),
        (2, 1, woken(1)),
        (3, 1, woken(2)),
        (4, 1, COMES),
        (10, 1, leaves(SLEEPS)),
        (12, 1, COMES),
    ]);
    let causes: Vec<_> = waits.groups()[0].stacks[0].causes.clone();
    let of = |at: usize| (causes[at].0, causes[at].1.total());
    assert_eq!(of(0), (Cause::Blocked(Some(waker(1))), 3));
    assert_eq!(of(1), (Cause::Blocked(None), 2));
    // Also one from before it left its CPU.
    let waits = self::waits(&[
        (1, 1, woken(1)),
        (2, 1, leaves(SLEEPS)),
        (5, 1, COMES),
        (10, 1, leaves(SLEEPS)),
        (12, 1, COMES),
    ]);
    let causes = &waits.groups()[0].stacks[0].causes;
    let causes: Vec<_> = causes.iter().map(|(cause, _)| *cause).collect();
    assert_eq!(
        causes,
        [Cause::Blocked(Some(waker(1))), Cause::Blocked(None)]
    );
}

#[test]
fn a_task_that_ends_does_not_wait() {
    for state in [0x10, 0x20] {
        let steps = [(10, 1, leaves(state)), (20, 1, COMES)];
        assert!(waits(&steps).rows.is_empty());
        assert_eq!(waits(&steps[..1]).unfinished, Left::default());
    }
}

#[test]
fn waits_with_missing_records_are_not_counted() {
    let steps = [
        (10, 1, leaves(SLEEPS)),
        (20, 1, woken(1)),
        (21, 1, COMES),
        (30, 2, leaves(SLEEPS)),
        (40, 2, woken(1)),
        (41, 2, COMES),
    ];
    let gaps = Gaps::new(vec![(0, 5), (21, 31)]);
    let waits = trail(&steps).waits(By::Comm, &gaps, false);
    assert_eq!(only(&waits).1, [10, 1, 0]);
    assert_eq!(waits.unknown, Left { waits: 1, time: 11 });
    // Nor is who woke a task up before.
    let steps = [(10, 1, woken(1)), (30, 1, leaves(SLEEPS)), (40, 1, COMES)];
    let waits = trail(&steps).waits(By::Comm, &Gaps::new(vec![(15, 25)]), false);
    assert_eq!(only(&waits), (Cause::Blocked(None), [10, 0, 0]));
}

#[test]
fn waits_that_last_are_counted_if_they_are_wanted() {
    let steps = [
        (10, 1, leaves(SLEEPS)),
        (15, 2, leaves(PREEMPTED)),
        (25, 3, COMES),
        (30, 1, woken(1)),
    ];
    let counted = |unfinished| trail(&steps).waits(By::Pid, &Gaps::default(), unfinished);
    assert_eq!(counted(false).unfinished, Left { waits: 2, time: 35 });
    assert!(counted(false).rows.is_empty());
    let waits = counted(true);
    assert_eq!(waits.unfinished, Left::default());
    let total = waits.total();
    assert_eq!((total.waits, total.blocked, total.preempted), (2, 20, 15));
    let names: Vec<_> = waits
        .groups()
        .iter()
        .map(|group| group.name.to_owned())
        .collect();
    assert_eq!(names, ["one-1", "one-2"]);
}

#[test]
fn waits_last_to_the_last_event_of_the_trace() {
    // Whoever woke the task up before has not ended the wait.
    let mut trail = trail(&[(5, 1, woken(1)), (10, 1, leaves(SLEEPS))]);
    trail.end = 200;
    let waits = trail.waits(By::Stack, &Gaps::default(), true);
    assert_eq!(only(&waits), (Cause::Blocked(None), [190, 0, 0]));
}

#[test]
fn waits_may_have_ended_in_a_gap() {
    for unfinished in [false, true] {
        let trail = trail(&[(10, 1, leaves(SLEEPS)), (25, 3, COMES)]);
        let waits = trail.waits(By::Stack, &Gaps::new(vec![(11, 15)]), unfinished);
        assert!(waits.rows.is_empty());
        assert_eq!(waits.unfinished, Left::default());
        assert_eq!(waits.unknown, Left { waits: 1, time: 15 });
    }
}

#[test]
fn a_task_that_leaves_twice_came_back() {
    for (state, rows) in [(SLEEPS, 1), (0x10, 0)] {
        let steps = [(10, 1, leaves(SLEEPS)), (30, 1, leaves(state))];
        let waits = waits(&[&steps[..], &[(35, 1, COMES)]].concat());
        assert_eq!(waits.unknown, Left { waits: 1, time: 20 });
        assert_eq!(waits.rows.len(), rows);
        assert_eq!(waits.total().total(), 5 * rows as u64);
    }
}

#[test]
fn waits_that_are_not_wanted_end_those_before() {
    let unwanted = What::Leaves {
        comm: 1,
        state: SLEEPS,
        key: Key::NONE,
        is_wanted: false,
    };
    let steps = [
        (10, 1, leaves(SLEEPS)),
        (20, 1, COMES),
        (30, 1, unwanted),
        (35, 1, woken(1)),
        (40, 1, COMES),
    ];
    assert_eq!(only(&waits(&steps)), (Cause::Blocked(None), [10, 0, 0]));
    let waits = waits(&[&steps[..1], &steps[2..]].concat());
    assert!(waits.rows.is_empty());
    assert_eq!(waits.unknown, Left { waits: 1, time: 20 });
}

#[test]
fn a_waker_has_the_name_that_it_had() {
    let by = |by| What::Woken {
        by,
        waker: Waker {
            comm: Some(1),
            key: Key::NONE,
        },
    };
    let steps = [
        (1, 5, What::Comes { comm: 0 }),
        (10, 1, leaves(SLEEPS)),
        (12, 1, by(5)),
        (13, 1, COMES),
        // It is another one by then.
        (20, 5, What::Comes { comm: 1 }),
        // Nothing is known of this one but what the event says.
        (30, 1, leaves(SLEEPS)),
        (37, 1, by(6)),
        (38, 1, COMES),
    ];
    let mut turned = steps;
    turned.reverse();
    for steps in [steps, turned] {
        let waits = trail(&steps).waits(By::Waker, &Gaps::default(), false);
        let groups = waits.groups();
        let names = groups.iter().map(|group| (group.name, group.sum.blocked));
        assert_eq!(names.collect::<Vec<_>>(), [("two", 7), ("one", 2)]);
    }
}

#[test]
fn no_task_is_called_as_what_is_none() {
    let mut trail = Trail::default();
    for (name, shown) in [
        ("(interrupt)", "\"(interrupt)\""),
        ("(preempted)", "\"(preempted)\""),
        ("(unknown)", "\"(unknown)\""),
        ("(sd-pam)", "(sd-pam)"),
    ] {
        let number = trail.comm(name);
        assert_eq!(trail.names.get(number).0, shown);
    }
}

#[test]
fn frames_of_full_stacks_are_of_the_kernel() {
    let mut trail = trail(&[]);
    let frames = ["schedule", "do_it [mod]", "0xffffffff81000000"].map(str::to_owned);
    let key = trail.keys.key(StackRef::Whole(&frames).into());
    let leaves = What::Leaves {
        comm: 0,
        state: SLEEPS,
        key,
        is_wanted: true,
    };
    trail.push(0, 1, leaves);
    trail.push(5_000, 1, COMES);
    let waits = trail.waits(By::Stack, &Gaps::default(), false);
    let mut names = folded::Names::default();
    assert_eq!(fold(&waits, &Loaded::default(), &mut names).total(), 5);
    let kinds: Vec<_> = names.iter().collect();
    for frame in [
        ("schedule", Kind::Kernel),
        ("do_it [mod]", Kind::Module),
        ("0xffffffff81000000", Kind::Address),
    ] {
        assert!(kinds.contains(&frame), "{kinds:?}");
    }
}

#[test]
fn user_stacks_are_those_of_sleepers_and_of_wakers() {
    let leaves = |id| What::Leaves {
        comm: 0,
        state: SLEEPS,
        key: Key::of_user_id(id),
        is_wanted: true,
    };
    let woken = |id| What::Woken {
        by: 99,
        waker: Waker {
            comm: None,
            key: Key::of_user_id(id),
        },
    };
    let waits = waits(&[
        (1, 1, leaves(5)),
        (2, 1, woken(6)),
        (3, 1, COMES),
        // This one is not finished.
        (4, 1, leaves(7)),
    ]);
    assert_eq!(users(&waits), [5, 6].into());
}

#[test]
fn the_longest_wait_is_remembered() {
    let waits = waits(&[
        (0, 1, leaves(SLEEPS)),
        (30, 1, COMES),
        (40, 1, leaves(SLEEPS)),
        (45, 1, COMES),
    ]);
    let total = waits.total();
    assert_eq!((total.waits, total.longest, total.total()), (2, 30, 35));
}

#[test]
fn events_of_others_are_no_switches() {
    let event = Event {
        name: SWITCH.to_owned(),
        fields: String::new().into(),
        comm: "c".to_owned(),
        pid: 1,
        tgid: None,
        cpu: 0,
        time: Time::Nanos(5),
        flags: Flags::default(),
        recording: Default::default(),
    };
    assert!(!is_switch(&event));
}

#[test]
fn groups_have_those_first_that_wait_longest() {
    let of = |comm, id| What::Leaves {
        comm,
        state: SLEEPS,
        key: Key::of_id(id),
        is_wanted: true,
    };
    let by_task = |id, comm| {
        let (comm, key) = (Some(comm), Key::of_id(id));
        What::Woken {
            by: 99,
            waker: Waker { comm, key },
        }
    };
    let steps = [
        (0, 1, of(0, 1)),
        (10, 1, by_task(9, 1)),
        (12, 1, COMES),
        (20, 1, of(0, 2)),
        (50, 1, woken(9)),
        (50, 1, COMES),
        (60, 2, of(1, 1)),
        (65, 2, by_task(8, 0)),
        (66, 2, COMES),
        (70, 2, leaves(PREEMPTED)),
        (71, 2, COMES),
    ];
    let groups = |by| {
        let waits = trail(&steps).waits(by, &Gaps::default(), false);
        let groups = waits.groups();
        let of = |group: &Group<'_>| (group.name.to_owned(), group.sum.total(), group.stacks.len());
        groups.iter().map(of).collect::<Vec<_>>()
    };
    let named = |groups: &[(&str, u64, usize)]| -> Vec<_> {
        let groups = groups.iter();
        groups
            .map(|(name, time, nr)| ((*name).to_owned(), *time, *nr))
            .collect()
    };
    // The name is that at the time of the wait.
    assert_eq!(groups(By::Comm), named(&[("one", 43, 3), ("two", 6, 1)]));
    assert_eq!(
        groups(By::Waker),
        named(&[
            ("(interrupt)", 30, 1),
            ("two", 12, 1),
            ("one", 6, 1),
            ("(preempted)", 1, 1)
        ])
    );
    assert_eq!(groups(By::Stack), named(&[("", 49, 3)]));
}
