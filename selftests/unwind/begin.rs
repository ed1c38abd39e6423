// SPDX-License-Identifier: GPL-2.0

//! The guide that a walk begins with, also in a tracer's own text.

mod made;

use made::*;
use stackmap_unwind::{
    guided::expected_behind, hinted, walk::WalkCounter, walk_predicted, KnownStack, Predicted,
};
use std::mem::MaybeUninit;

/// What is recorded for an address in a tracer's own text.
const MARKER: u64 = 0x7fff_ffff;

/// Walks from the first frame, after one that is known before. Returns what is found, which begins with that;
/// or [`None`] if the predicted guide has all frames.
fn walk_after(made: &mut Made, before: &[u64], skip: usize, known: &[u64]) -> Option<Vec<u64>> {
    let mut ips = vec![MaybeUninit::uninit(); 100];
    for (room, ip) in ips.iter_mut().zip(before) {
        room.write(*ip);
    }
    let frame = made.frames[0];
    let guide = Some(KnownStack(known));
    let nr = walk_predicted(made, frame, skip, &mut ips, before.len(), guide)?;
    // SAFETY: So many were written.
    Some(
        ips[..nr]
            .iter()
            .map(|ip| unsafe { ip.assume_init() })
            .collect(),
    )
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
        let known = made.hinted(&frames);
        made.counts = [0; WalkCounter::COUNT];
        assert_eq!(walk_after(&mut made, before, 0, &known), None);
        assert_eq!(made.counts[WalkCounter::Fast as usize], 5);
        let known = made.hinted(&other);
        assert_eq!(walk_after(&mut made, before, 0, &known), Some(frames));
    }
}

#[test]
fn what_is_expected_next_has_the_frame_that_is_known() {
    let first = TEXT + 8;
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let frames = [&[first], &made.walk(0, 1024)[..]].concat();
    let mut other = frames.clone();
    other[0] += 8;
    let known = made.hinted(&frames);
    assert_eq!(walk_after(&mut made, &[first], 0, &known), None);
    // Another one, none, and no frame after that.
    for other in [&other[..], &frames[1..], &[first]] {
        let known = made.hinted(other);
        let found = walk_after(&mut made, &[first], 0, &known);
        assert_eq!(found.as_ref(), Some(&frames));
    }
}

#[test]
fn what_is_expected_next_has_the_frame_after_one_that_is_known() {
    let first = TEXT + 8;
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let frames = [&[first], &made.walk(0, 1024)[..]].concat();
    // All steps are alike: only that frame is another one.
    let mut other = frames.clone();
    other[1] = frames[2];
    let known = made.hinted(&other);
    assert_eq!(walk_after(&mut made, &[first], 0, &known), Some(frames));
}

#[test]
fn what_is_expected_next_does_not_begin_with_a_frame_that_is_left_out() {
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let all = made.walk(0, 1024);
    let known = made.hinted(&all);
    for skip in 1..4 {
        // No rule leads past it, but hints would.
        made.rules.clear();
        let found = walk_after(&mut made, &[], skip, &known);
        assert_eq!(found, Some(all[skip..].to_vec()));
    }
}

#[test]
fn what_is_expected_next_comes_after_frames_that_are_left_out() {
    let mut made = Made::new(vec![plain(3); 6], End::User);
    let all = made.walk(0, 1024);
    for skip in 1..4 {
        let known = made.hinted(&all[skip..]);
        // The walk notes their rules.
        let found = walk_after(&mut made, &[], skip, &known);
        assert_eq!(found, Some(all[skip..].to_vec()));
        made.rules.clear();
        made.learnt = 0;
        assert_eq!(walk_after(&mut made, &[], skip, &known), None);
        assert_eq!((made.learnt, made.steps), (0, 0));
        made.walk(0, 1024);
        // One that is not it goes on where these were left out, and leaves no more of them out.
        let known = made.hinted(&[&all[skip..5], &[TEXT + 8]].concat());
        let found = walk_after(&mut made, &[], skip, &known);
        assert_eq!(found, Some(all[skip..].to_vec()));
    }
}

#[test]
fn what_is_expected_next_is_not_looked_for_beside_the_stack() {
    let end = STACKS[0] + SIZE;
    let alike = Alike::new(1);
    let known = hinted(&[TEXT; 200], |_| alike.rule);
    for sp in [STACKS[0] - 800, STACKS[0] - 8, end + 8, 0, !7] {
        let mut alike = Alike::new(1);
        let frame = alike.frame(sp);
        for skip in 0..2 {
            let mut ips = vec![MaybeUninit::uninit(); 300];
            let guide = Some(KnownStack(&known));
            let nr = walk_predicted(&mut alike, frame, skip, &mut ips, 0, guide);
            assert_eq!(nr, Some(1 - skip));
        }
    }
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
        let known = made.hinted(known);
        let guides = Predicted(KnownStack(&known));
        let guide = expected_behind(&made, &made.frames[0], rule, MARKER, &guides);
        assert_eq!(guide.is_some(), is_it);
    }
}

#[test]
fn what_is_expected_behind_a_tracers_text_is_not_looked_for_beside_the_stack() {
    let end = STACKS[0] + SIZE;
    let alike = Alike::new(1);
    let known = hinted(&[MARKER, TEXT, TEXT], |_| alike.rule);
    for sp in [STACKS[0] - 800, STACKS[0] - 8, end + 8, 0, !7] {
        let frame = alike.frame(sp);
        let guides = Predicted(KnownStack(&known));
        assert!(expected_behind(&alike, &frame, alike.rule, MARKER, &guides).is_none());
    }
}
