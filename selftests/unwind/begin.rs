// SPDX-License-Identifier: GPL-2.0

//! The guide that a walk begins with: the expected one, and that of a tracer's own text.

mod made;

use made::*;
use stackmap_unwind::{
    guided::{expected_behind, Guide, Guides},
    hinted,
    walk::{walk, WalkCounter, Walked},
    Known, KnownStack,
};
use std::mem::MaybeUninit;

/// Stacks of which one is expected next, and that do not guide otherwise.
#[derive(Clone, Copy)]
struct Expected<'a>(&'a [Vec<u64>]);

impl<'a> Guides for Expected<'a> {
    type Guide = KnownStack<'a>;

    fn first(&self, _: usize, _: u64) -> Option<KnownStack<'a>> {
        None
    }

    fn next(&self, _: u64) -> Option<KnownStack<'a>> {
        self.0.first().map(|stack| KnownStack(stack))
    }

    fn other(&self, _: &KnownStack<'a>, _: usize, _: u64) -> Option<KnownStack<'a>> {
        None
    }
}

#[test]
fn what_is_expected_next_is_the_stack_if_all_frames_are_its() {
    let first = TEXT + 8;
    for before in [&[][..], &[first]] {
        // Hints that lead elsewhere, if they are taken for those of another frame.
        let shapes = vec![plain(3), plain(5), plain(2), plain(7)];
        let mut made = Made::new(shapes, End::User);
        let frames = [before, &made.walk(0, 1024)].concat();
        let mut other = frames.clone();
        other[3] += 1;
        for (known, is_it) in [(&frames, true), (&other, false)] {
            let known = [made.hinted(known)];
            let mut ips = vec![MaybeUninit::uninit(); 100];
            ips[0].write(first);
            let (frame, nr) = (made.frames[0], before.len());
            made.counts = [0; WalkCounter::COUNT];
            match walk(&mut made, frame, 0, &mut ips, nr, Some(Expected(&known))) {
                Walked::Known(guide, None) => {
                    assert!(is_it && guide.frames().eq(frames.iter().copied()));
                    assert_eq!(made.counts[WalkCounter::Fast as usize], 5);
                }
                Walked::Frames(nr, None) => {
                    // SAFETY: So many were written.
                    let found = ips[..nr].iter().map(|ip| unsafe { ip.assume_init() });
                    assert!(!is_it && found.eq(frames.iter().copied()));
                }
                _ => panic!("no guide has some of them"),
            }
        }
    }
}

#[test]
fn what_is_expected_next_has_the_frame_that_is_known() {
    let first = TEXT + 8;
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let frames = [&[first], &made.walk(0, 1024)[..]].concat();
    let mut other = frames.clone();
    other[0] += 8;
    for (known, is_it) in [(&frames, true), (&other, false)] {
        let known = [made.hinted(known)];
        let mut ips = vec![MaybeUninit::uninit(); 100];
        ips[0].write(first);
        let frame = made.frames[0];
        let walked = walk(&mut made, frame, 0, &mut ips, 1, Some(Expected(&known)));
        assert_eq!(matches!(walked, Walked::Known(..)), is_it);
    }
}

#[test]
fn what_is_expected_next_has_the_frame_behind_one_that_is_known() {
    let first = TEXT + 8;
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let frames = [&[first], &made.walk(0, 1024)[..]].concat();
    // All steps are alike: only that frame is another one.
    let mut other = frames.clone();
    other[1] = frames[2];
    for known in [&other[..], &[first]] {
        let known = [made.hinted(known)];
        let mut ips = vec![MaybeUninit::uninit(); 100];
        ips[0].write(first);
        let frame = made.frames[0];
        match walk(&mut made, frame, 0, &mut ips, 1, Some(Expected(&known))) {
            Walked::Frames(nr, None) => {
                // SAFETY: So many were written.
                let found = ips[..nr].iter().map(|ip| unsafe { ip.assume_init() });
                assert!(found.eq(frames.iter().copied()));
            }
            _ => panic!("it is not that of the guide"),
        }
    }
}

#[test]
fn what_is_expected_next_does_not_begin_with_a_frame_that_is_left_out() {
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let all = made.walk(0, 1024);
    let known = [made.hinted(&all)];
    for skip in 1..4 {
        // No rule leads past it, but hints would.
        made.rules.clear();
        let mut ips = vec![MaybeUninit::uninit(); 100];
        let frame = made.frames[0];
        match walk(&mut made, frame, skip, &mut ips, 0, Some(Expected(&known))) {
            Walked::Frames(nr, None) => {
                // SAFETY: So many were written.
                let found = ips[..nr].iter().map(|ip| unsafe { ip.assume_init() });
                assert!(found.eq(all[skip..].iter().copied()));
            }
            _ => panic!("the guide has frames that are left out"),
        }
    }
}

#[test]
fn what_is_expected_next_is_not_looked_for_beside_the_stack() {
    let end = STACKS[0] + SIZE;
    let alike = Alike::new(1);
    let known = [hinted(&[TEXT; 200], |_| alike.rule)];
    for sp in [STACKS[0] - 800, STACKS[0] - 8, end + 8, 0, !7] {
        let mut alike = Alike::new(1);
        let frame = alike.frame(sp);
        for skip in 0..2 {
            let mut ips = vec![MaybeUninit::uninit(); 300];
            let walked = walk(&mut alike, frame, skip, &mut ips, 0, Some(Expected(&known)));
            assert!(matches!(walked, Walked::Frames(nr, None) if nr + skip == 1));
        }
    }
}

#[test]
fn a_guide_of_another_tracer_does_not_begin() {
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let mut frames = made.walk(0, 1024);
    made.marked = Some(0);
    // It has the same caller.
    frames[0] = TEXT + 8;
    let known = [made.hinted(&frames)];
    let (found, is_known) = made.walk_with(Some(&known), 0, 1024);
    assert!(!is_known && found[1..] == frames[1..]);
    // Nor where a frame is known before.
    let mut ips = vec![MaybeUninit::uninit(); 100];
    ips[0].write(TEXT + 8);
    let frame = made.frames[0];
    let frames = [&[TEXT + 8, MARKER], &frames[1..]].concat();
    let known = [
        made.hinted(&[&[MARKER], &frames[2..]].concat()),
        made.hinted(&frames),
    ];
    match walk(&mut made, frame, 0, &mut ips, 1, Some(Known(&known))) {
        Walked::Known(guide, _) => assert!(guide.frames().eq(frames)),
        _ => panic!("a guide has all of them"),
    }
    // One in which the text was recorded as it is has other frames.
    let raw = [&[TEXT + 8], &made.ips()[..]].concat();
    let known = [made.hinted(&raw)];
    match walk(&mut made, frame, 0, &mut ips, 1, Some(Known(&known))) {
        Walked::Frames(5 | 6, _) => {}
        _ => panic!("the guide is of another trace array"),
    }
}

#[test]
fn guides_begin_in_a_tracers_own_text() {
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let mut wanted = made.walk(0, 1024);
    made.marked = Some(0);
    wanted[0] = MARKER;
    let other = made.hinted(&[MARKER, TEXT + 8, TEXT + 24]);
    let same = made.hinted(&wanted);
    for known in [vec![same.clone()], vec![other, same]] {
        (made.steps, made.learnt) = (0, 0);
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (wanted.clone(), true));
        assert_eq!((made.steps, made.learnt), (0, 0));
    }
    // What is behind it is no guide's.
    let other = made.hinted(&[MARKER, TEXT + 8, TEXT + 24]);
    let (found, is_known) = made.walk_with(Some(&[other]), 0, 1024);
    assert!(!is_known && found[1..] == wanted[1..]);
}

#[test]
fn what_is_expected_next_may_begin_in_a_tracers_own_text() {
    let mut made = Made::new(vec![plain(3), plain(5), plain(2)], End::User);
    // Learns the rules.
    made.walk(0, 1024);
    let rule = made.rules[&made.frames[0].at.ip];
    let mut frames = made.ips();
    frames[0] = MARKER;
    let mut other = frames.clone();
    other[2] += 1;
    let raw = made.ips();
    for (known, is_it) in [(&frames, true), (&other, false), (&raw, false)] {
        let known = [made.hinted(known)];
        let guides = Expected(&known);
        let guide = expected_behind(&made, &made.frames[0], rule, MARKER, &guides);
        assert_eq!(guide.is_some(), is_it);
    }
}

#[test]
fn what_is_expected_behind_a_tracers_text_is_not_looked_for_beside_the_stack() {
    let end = STACKS[0] + SIZE;
    let alike = Alike::new(1);
    let known = [hinted(&[MARKER, TEXT, TEXT], |_| alike.rule)];
    for sp in [STACKS[0] - 800, STACKS[0] - 8, end + 8, 0, !7] {
        let (frame, guides) = (alike.frame(sp), Expected(&known));
        assert!(expected_behind(&alike, &frame, alike.rule, MARKER, &guides).is_none());
    }
}
