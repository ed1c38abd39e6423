// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which stack belongs to which event.

use super::*;
use std::convert::Infallible;

fn join(text: &str) -> (Vec<String>, Losses) {
    let mut binds = Binds::default();
    for line in text.lines().filter_map(|line| Line::parse(line.as_bytes())) {
        if let Body::UserStackId { id, cookie } = line.body {
            binds.bind(line.time.value(), cookie, id);
        }
    }
    let mut joiner = Joiner::new(&binds);
    let mut joined = Vec::new();
    let mut out = |event: &Event, sides: Sides<'_>| -> Result<(), Infallible> {
        let stack = match sides.kernel {
            StackRef::Id(id) => id.to_string(),
            StackRef::Whole(frames) => frames.join(";"),
            StackRef::None => "-".to_owned(),
        };
        let user = match sides.user {
            UserRef::None => String::new(),
            UserRef::Id(id) => format!(" from {id}"),
            user => format!(" {user:?}"),
        };
        joined.push(format!("{} {stack}{user}", event.name));
        Ok(())
    };
    for line in text.lines() {
        joiner.line(line.as_bytes(), &mut out).unwrap();
    }
    joiner.finish(&mut out).unwrap();
    (joined, joiner.losses())
}

#[test]
fn a_stack_follows_its_event() {
    let (joined, losses) = join(
        "\
# tracer: nop
a-1 [000] ..... 1.000000: kmalloc: x=1
a-1 [000] ..... 1.000001: <stack_id 10>
b-2 [001] ..... 1.000002: kfree: x=1
a-1 [000] ..... 1.000003: kmalloc: x=2
b-2 [001] ..... 1.000004: <stack_id 11>
a-1 [000] ..... 1.000005: <stack_id 12>
a-1 [000] ..... 1.000006: vfs_read <-ksys_read
a-1 [000] ..... 1.000007: <stack_id 13>
",
    );
    assert_eq!(
        joined,
        ["kmalloc 10", "kfree 11", "kmalloc 12", "vfs_read() 13"]
    );
    assert_eq!(losses, Losses::default());
}

#[test]
fn an_interrupt_may_come_between() {
    let (joined, _) = join(
        "\
a-1 [000] ..... 1.000000: kmalloc: x=1
a-1 [000] d.h1. 1.000001: irq: x=1
a-1 [000] d.h1. 1.000002: <stack_id 20>
a-1 [000] ..... 1.000003: <stack_id 10>
a-1 [000] ..... 1.000004: kmalloc: x=2
a-1 [000] d.h1. 1.000005: without: x=1
a-1 [000] ..... 1.000006: <stack_id 11>
",
    );
    assert_eq!(joined, ["irq 20", "kmalloc 10", "without -", "kmalloc 11"]);
}

#[test]
fn events_may_be_without_stacks_and_stacks_without_events() {
    let (joined, losses) = join(
        "\
# entries-in-buffer/entries-written: 3/10   #P:2
CPU:1 [LOST 4198 EVENTS]
a-1 [000] ..... 1.000000: <stack_id 9>
a-1 [000] ..... 1.000001: one: x=1
a-1 [000] ..... 1.000002: two: x=1
b-2 [000] ..... 1.000003: <stack_id 10>
",
    );
    assert_eq!(joined, ["one -", "two -"]);
    assert_eq!(
        losses,
        Losses {
            lost: 4205,
            orphans: 2
        }
    );
}

#[test]
fn full_stacks_are_read() {
    let (joined, _) = join(
        "\
a-1 [000] ..... 1.000000: one: x=1
a-1 [000] ..... 1.000001: <stack trace>
 => foo
 => bar [mod]
a-1 [000] ..... 1.000002: two: x=1
a-1 [000] ..... 1.000002: kernel_stack:         <stack trace >
=> foo (ffffffff969127e3)
=> bar+0x10 (ffffffff969b9b45)
a-1 [000] ..... 1.000003: three: x=1
a-1 [000] ..... 1.000003: <user stack trace>
 =>  <00007f0000000000>
a-1 [000] ..... 1.000003: <stack_id 5>
a-1 [000] ..... 1.000004: four: x=1
a-1 [000] ..... 1.000005: <stack trace>
",
    );
    assert_eq!(
        joined,
        ["one foo;bar [mod]", "two foo;bar+0x10", "three 5", "four "]
    );
}

#[test]
fn ids_with_user_stacks_are_joined_by_their_kernel_stacks() {
    let (joined, losses) = join(
        "\
a-1 [000] ..... 1.000000: one: x=1
a-1 [000] ..... 1.000001: <stack_id 5> <user 1:3>
a-1 [000] ..... 1.000002: <user_stack_id 7> for 1:3
a-1 [000] ..... 1.000003: two: x=1
a-1 [000] ..... 1.000004: <stack_id 5> <user_stack_id 7>
a-1 [000] ..... 1.000005: three: x=1
a-1 [000] ..... 1.000006: <stack trace>
 => foo
<user stack trace>
 => /bin/x[+0x1b19]
a-1 [000] ..... 1.000007: four: x=1
a-1 [000] ..... 1.000008: <stack_id 5> <user 1:5>
a-1 [000] ..... 1.000009: <user_stack_id 0> for 1:5
a-1 [000] ..... 1.000010: five: x=1
a-1 [000] ..... 1.000011: <stack_id 5> <user 1:7>
",
    );
    let want = [
        "one 5 from 7",
        "two 5 from 7",
        "three foo",
        "four 5 NotKept",
        "five 5 Lost",
    ];
    assert_eq!(joined, want);
    assert_eq!(losses, Losses::default());
}

#[test]
fn waiting_is_bounded() {
    let mut text = String::new();
    for pid in 0..1000 {
        text += &format!("a-{pid} [000] ..... 1.000000: e{pid}: x=1\n");
    }
    let (joined, _) = join(&text);
    assert_eq!(joined.len(), 1000);
}

#[test]
fn no_name_of_a_task_hides_its_events() {
    let (joined, losses) = join(
        "\
# tracer: nop
  e-1 [7] . 1: x-77      [000] .....     1.000000: kmalloc: x=1
  e-1 [7] . 1: x-77      [000] .....     1.000001: <stack_id 10>
         => evil-78      [000] .....     1.000002: kmalloc: x=1
         => evil-78      [000] .....     1.000003: <stack_id 11>
 => evil12345678-79      [000] .....     1.000004: kmalloc: x=1
 => evil12345678-79      [000] .....     1.000005: <stack trace>
 => foo
 => bar
",
    );
    assert_eq!(joined, ["kmalloc 10", "kmalloc 11", "kmalloc foo;bar"]);
    assert_eq!(losses, Losses::default());
}

#[test]
fn an_id_in_a_field_is_not_a_stack() {
    let (joined, losses) = join(
        "\
a-1 [000] ..... 1.000000: sched_process_exec: filename=<stack_id 7>
a-1 [000] ..... 1.000001: <stack_id 10>
a-1 [000] ..... 1.000002: tracing_mark_write: <stack_id 7>
a-1 [000] ..... 1.000003: tracing_mark_write: <stack trace>
a-1 [000] ..... 1.000004: <stack_id 11> x
",
    );
    let want = [
        "sched_process_exec 10",
        "tracing_mark_write -",
        "tracing_mark_write -",
        " -",
    ];
    assert_eq!(joined, want);
    assert_eq!(losses, Losses::default());
}

#[test]
fn system_calls_have_names() {
    let (joined, _) = join(
        "\
a-1 [000] ..... 1.000000: sys_openat(dfd: ffffff9c, filename: 7ffd2a, flags: 8000, mode: 0)
a-1 [000] ..... 1.000001: <stack_id 10>
a-1 [000] ..... 1.000002: sys_openat -> 0x3
a-1 [000] ..... 1.000003: <stack_id 11>
a-1 [000] ..... 1.000004: sys_getpid()
a-1 [000] ..... 1.000005: sys_write(fd: 1, buf: 55aa \"a: b\", count: 4)
",
    );
    let want = [
        "sys_enter_openat 10",
        "sys_exit_openat 11",
        "sys_enter_getpid -",
        "sys_enter_write -",
    ];
    assert_eq!(joined, want);
}
