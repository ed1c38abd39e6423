// SPDX-License-Identifier: GPL-2.0

//! Interrupts and other stacks: what the walk finds out by itself, and where it asks the kernel.

mod made;

use made::*;
use stackmap_unwind::unwinder::WalkCounter;

/// An interrupt on a stack of its own, which has hit a function.
fn interrupt() -> Vec<Shape> {
    let link = |link, words| Shape {
        link,
        ..plain(words)
    };
    vec![
        plain(3),
        Shape {
            saved: Some(2),
            ..link(Link::Entry, 6)
        },
        plain(4),
        link(Link::Interrupt, 5),
        plain(3),
        Shape {
            saved: Some(4),
            bp: 3,
            ..link(Link::Bp, 6)
        },
        plain(2),
    ]
}

#[test]
fn an_interrupt_takes_no_step_of_the_kernel() {
    let mut made = Made::new(interrupt(), End::User);
    let wanted = made.ips();
    for learnt in [8, 8] {
        assert_eq!(made.walk(0, 1024), wanted);
        // Also the rule of where it has hit is learnt at once.
        assert_eq!((made.learnt, made.steps), (learnt, 0));
    }
    assert_eq!(made.counts[WalkCounter::New as usize], 8);
    // No predicted leads past it.
    let known = made.words_of(&wanted);
    assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, false));
}

#[test]
fn an_exception_on_a_stack_of_its_own_leads_to_the_tasks() {
    let mut shapes = interrupt();
    shapes.remove(1);
    shapes[2].link = Link::Exception;
    let mut made = Made::new(shapes, End::User);
    assert_ne!(made.frames[2].stack.begin(), made.frames[3].stack.begin());
    assert_eq!((made.walk(0, 1024), made.steps), (made.ips(), 0));
}

#[test]
fn where_a_function_was_interrupted_is_no_return_address() {
    let mut made = Made::new(interrupt(), End::User);
    // The same address is one elsewhere, after a call of another kind.
    let mut other = Made::new(vec![plain(9)], End::User);
    other.walk(0, 1024);
    let rule = other.rules[&other.frames[0].at.ip];
    made.rules.insert(made.frames[4].at.ip, rule);
    for _ in 0..2 {
        assert_eq!((made.walk(0, 1024), made.steps), (made.ips(), 0));
    }
}

#[test]
fn frames_after_one_that_was_interrupted_are_return_addresses() {
    let mut shapes = interrupt();
    shapes[5].link = Link::Unsupported;
    let mut made = Made::new(shapes, End::User);
    for steps in 1..3 {
        // The step that only the kernel knows is from a return address.
        assert_eq!((made.walk(0, 1024), made.steps), (made.ips(), steps));
    }
}

#[test]
fn registers_lead_neither_back_nor_beside_a_stack() {
    for sp in [0, !7, STACKS[0] - 8, STACKS[0] + 8, STACKS[1] + SIZE + 8] {
        let mut made = Made::new(interrupt(), End::User);
        let wanted = made.ips();
        let registers = made.frames[3].at.sp;
        made.memory.insert(registers + 16, sp);
        assert_eq!(made.walk(0, 1024), wanted, "{sp:#x}");
        // The kernel was asked for the frame that was interrupted, and then for its caller.
        assert_eq!(made.steps, 2, "{sp:#x}");
    }
    // On the same stack, the next one is further up.
    let mut made = Made::new(interrupt(), End::User);
    let wanted = made.ips();
    let registers = made.frames[3].at.sp;
    made.memory.insert(registers + 16, registers);
    assert_eq!(made.walk(0, 1024), wanted);
    assert_eq!(made.steps, 2);
}

#[test]
fn an_address_that_a_tracer_has_put_is_not_where_a_function_was_interrupted() {
    let mut made = Made::new(interrupt(), End::User);
    let wanted = made.ips();
    made.memory.insert(made.frames[3].at.sp, REPLACED);
    assert_eq!(made.walk(0, 1024), wanted);
    assert_eq!(made.steps, 2);
}

#[test]
fn only_the_tasks_stack_is_switched_to() {
    for top in [STACKS[1] + SIZE, STACKS[0] + 64, 0] {
        let mut made = Made::new(interrupt(), End::User);
        let wanted = made.ips();
        made.memory.insert(made.frames[1].at.sp, top);
        assert_eq!(made.walk(0, 1024), wanted, "{top:#x}");
        assert_eq!(made.steps, 1, "{top:#x}");
        assert_eq!(made.counts[WalkCounter::Stack as usize], 1);
    }
}

#[test]
fn the_tasks_stack_is_not_switched_to_from_itself() {
    let entry = interrupt()[1];
    let mut made = Made::new(vec![entry, entry, plain(3)], End::User);
    let wanted = made.ips();
    assert_eq!(made.frames[1].stack.begin(), STACKS[1]);
    assert_eq!(made.walk(0, 1024), wanted);
    assert_eq!(
        (made.steps, made.counts[WalkCounter::Stack as usize]),
        (1, 1)
    );
}
