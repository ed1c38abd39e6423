// SPDX-License-Identifier: GPL-2.0

//! The walk finds all frames, on stacks of every kind, and no more than there are.

mod made;

use made::*;
use proptest::{collection::vec, prelude::*};
use stackmap_unwind::{frame::StackBounds, unwinder::WalkCounter, walk_hostile};

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    })]

    #[test]
    fn all_frames_are_found(shapes in vec(shape(), 0..60), end in end(), skip in 0..5_usize) {
        let mut made = Made::new(shapes, end);
        let all = made.ips();
        let wanted = &all[skip.min(all.len())..];
        prop_assert_eq!(made.walk(skip, 1024), wanted);
        let (learnt, slow) = (made.learnt, made.counts[WalkCounter::New as usize]);
        prop_assert_eq!(made.walk(skip, 1024), wanted);
        // Now all that can be known is: nothing is learnt a second time.
        prop_assert_eq!((made.learnt, made.counts[WalkCounter::New as usize]), (learnt, slow));
    }

    #[test]
    fn a_walk_stops_when_the_buffer_is_full(
        shapes in vec(shape(), 0..60),
        end in end(),
        skip in 0..5_usize,
        max in 0..70_usize,
    ) {
        let mut made = Made::new(shapes, end);
        let all = made.ips();
        let wanted: Vec<u64> = all.into_iter().skip(skip).take(max).collect();
        prop_assert_eq!(made.walk(skip, max), wanted);
    }

    #[test]
    fn a_frame_with_a_rule_does_not_call_the_kernel(shapes in vec(shape(), 0..60), end in end()) {
        let mut made = Made::new(shapes, end);
        let count = |link| made.shapes.iter().filter(|shape| shape.link == link).count();
        let interrupted = made.frames.iter().filter(|frame| frame.interrupted).count();
        let most = count(Link::Unsupported) + count(Link::Fleeting) + count(Link::Traced)
            + count(Link::Switch) + count(Link::Entry).saturating_sub(1) + interrupted + 1;
        let _ = made.walk(0, 1024);
        prop_assert!(made.steps <= most, "{} steps, {most} frames that want one", made.steps);
    }

    #[test]
    fn no_rule_reads_outside_the_stack(bytes in vec(any::<u8>(), 0..2000)) {
        walk_hostile(&bytes);
    }
}

#[test]
fn the_bounds_of_a_stack_are_exact() {
    // SAFETY: Nothing is read.
    let stack = |begin, end| unsafe { StackBounds::new(begin, end) };
    let some = stack(1000, 1016);
    for (addr, len, inside) in [
        (1000, 16, true),
        (1000, 17, false),
        (1008, 8, true),
        (1009, 8, false),
        (999, 8, false),
        (992, 8, false),
        (!0, 8, false),
        (1000, !0, false),
    ] {
        assert_eq!(some.holds(addr, len), inside, "{len} at {addr}");
    }
    assert!(!stack(1000, 1000).holds(1000, 1));
    assert!(!stack(1000, 1004).holds(1000, 8));
    assert!(!stack(1016, 1000).holds(1008, 8));
    // The end of all addresses.
    assert!(!stack(!0 - 15, !0).holds(!0 - 7, 8));
}

#[test]
fn a_stack_is_not_walked_backwards() {
    let shape = Shape {
        link: Link::Bp,
        words: 4,
        saved: None,
        bp: 0,
    };
    let mut made = Made::new(vec![shape, shape], End::Outermost);
    // The frame pointer leads below the stack pointer.
    made.frames[0].at.sp += 64;
    let all = made.ips();
    assert_eq!(made.walk(0, 10), all);
    assert_eq!(
        (made.steps, made.counts[WalkCounter::Stack as usize]),
        (1, 1)
    );
}

#[test]
fn a_walk_leaves_no_stack() {
    let end = STACKS[0] + SIZE;
    for words in 1..5 {
        let mut alike = Alike::new(words);
        for left in 0..20 {
            let whole = left / u64::from(words);
            let found = alike.walk(end - left * 8, 100);
            assert_eq!(found as u64, whole + 1, "{left} words, {words} a frame");
            assert_eq!(alike.count(WalkCounter::Fast), whole);
            assert_eq!(alike.count(WalkCounter::Stack), 1);
        }
        // Where the stack pointer is on no stack, nothing is read.
        for sp in [STACKS[0] - 8, STACKS[0] - 64, end + 8, 0, !7] {
            assert_eq!(alike.walk(sp, 100), 1, "{sp:#x}");
            assert_eq!(alike.count(WalkCounter::Stack), 1);
        }
    }
}

#[test]
fn frames_are_counted_when_the_buffer_is_full() {
    let mut alike = Alike::new(3);
    assert_eq!(alike.walk(STACKS[0], 7), 7);
    assert_eq!(alike.count(WalkCounter::Fast), 7);
}
