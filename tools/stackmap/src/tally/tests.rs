// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;

fn of_kernel(kernel: Kernel) -> Key {
    Key {
        kernel,
        ..Key::NONE
    }
}

fn event(name: &str, comm: &str, time: u64) -> Event {
    Event {
        name: name.to_owned(),
        fields: Default::default(),
        comm: comm.to_owned(),
        pid: 1,
        tgid: None,
        cpu: 0,
        time: Time::Ticks(time),
        flags: Default::default(),
        recording: Default::default(),
    }
}

#[test]
fn counts_by_group_and_stack() {
    let mut tally = Tally::default();
    let whole = ["a".to_owned(), "b".to_owned()];
    tally.add(By::Event, &event("x", "c", 5), StackRef::Id(1).into());
    tally.add(By::Event, &event("y", "c", 1), StackRef::Id(1).into());
    tally.add(
        By::Event,
        &event("y", "c", 9),
        StackRef::Whole(&whole).into(),
    );
    tally.add(
        By::Event,
        &event("y", "d", 3),
        StackRef::Whole(&whole).into(),
    );
    tally.add(By::Event, &event("y", "d", 4), Sides::NONE);

    let groups = tally.groups(9);
    assert_eq!(groups[0].name, "y");
    let span = Some((Time::Ticks(1), Time::Ticks(9)));
    let total = Count {
        events: 4,
        weight: 4,
        span,
    };
    assert_eq!(groups[0].total, total);
    let stacks: Vec<_> = groups[0]
        .top
        .iter()
        .map(|(key, count)| (*key, count.events))
        .collect();
    assert_eq!(
        stacks,
        [
            (of_kernel(Kernel::Whole(0)), 2),
            (Key::of_id(1), 1),
            (Key::NONE, 1)
        ]
    );
    assert_eq!((groups[1].name, groups[1].total.events), ("x", 1));
    assert_eq!(tally.total().events, 5);
}
