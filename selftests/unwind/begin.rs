// SPDX-License-Identifier: GPL-2.0

//! The predicted that a walk begins with, also in a tracer's own text.

mod made;

use made::*;
use stackmap_unwind::{
    frame_word::FrameWord, map::Predictor, new_map, predict::follow_past_tracer, predict_in,
    rule::UnwindRule, unwinder::WalkCounter, walk_along, walk_predicted, words_of,
};

/// What is recorded for an address in a tracer's own text.
const MARKER: u64 = 0x7fff_ffff;

/// Walks from the first frame, after one that is known before. Returns the frames, which begin with that; or [`None`]
/// if the predicted stack has all of them.
fn walk_after(made: &mut Made, before: &[u64], skip: usize, known: &[u64]) -> Option<Vec<u64>> {
    let mut ips = [before, &[0; 100]].concat();
    let frame = made.frames[0];
    let nr = walk_predicted(made, frame, skip, &mut ips, before.len(), Some(known))?;
    ips.truncate(nr);
    Some(ips)
}

/// Calls `f` with a context that predicts a stack by `ip` though that has another frame there: both share an entry.
fn with_wrong_prediction<R>(
    ip: u64,
    words: impl Fn(u64) -> Vec<u64>,
    f: impl FnOnce(&Predictor<'_>) -> R,
) -> R {
    let others = (1..).map(|number| words(ip + 8 * number));
    let shares = |words: &Vec<u64>| {
        let find = |predictor: &Predictor<'_>| predictor.predict(ip).is_some();
        predict_in(&new_map(), words, find)
    };
    let words = others.into_iter().find(shares).expect("one of thousands");
    predict_in(&new_map(), &words, f)
}

#[test]
fn what_is_expected_next_is_the_stack_if_all_frames_are_its() {
    let first = TEXT + 8;
    for before in [&[][..], &[first]] {
        // rules that lead elsewhere, if they are taken for another frame's.
        let shapes = vec![plain(3), plain(5), plain(2), plain(7)];
        let mut made = Made::new(shapes, End::User);
        let frames = [before, &made.walk(0, 1024)].concat();
        let mut other = frames.clone();
        other[3] += 1;
        let known = made.words_of(&frames);
        made.counts = [0; WalkCounter::COUNT];
        assert_eq!(walk_after(&mut made, before, 0, &known), None);
        assert_eq!(made.counts[WalkCounter::Fast as usize], 5);
        let known = made.words_of(&other);
        assert_eq!(walk_after(&mut made, before, 0, &known), Some(frames));
    }
}

#[test]
fn what_is_expected_next_has_the_frame_that_is_known() {
    let first = TEXT + 8;
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let frames = [&[first], &made.walk(0, 1024)[..]].concat();
    let known = made.words_of(&frames);
    assert_eq!(walk_after(&mut made, &[first], 0, &known), None);
    // None, and no frame after that.
    for other in [&frames[1..], &[first]] {
        let known = made.words_of(other);
        let found = walk_after(&mut made, &[first], 0, &known);
        assert_eq!(found.as_ref(), Some(&frames));
    }
    // Another one that is predicted by the same entry.
    let words = made.words_of(&frames);
    let other = |ip| [&[FrameWord::new(ip, UnwindRule::UNKNOWN).0], &words[1..]].concat();
    with_wrong_prediction(first, other, |predictor| {
        let mut ips = [&[first][..], &[0; 100]].concat();
        let frame = made.frames[0];
        let nr = walk_along(&mut made, frame, 0, &mut ips, 1, predictor);
        assert_eq!(nr, Some(frames.len()));
        assert_eq!(ips[..frames.len()], frames);
    });
}

#[test]
fn what_is_expected_next_has_the_frame_after_one_that_is_known() {
    let first = TEXT + 8;
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let frames = [&[first], &made.walk(0, 1024)[..]].concat();
    // All steps are alike: only that frame is another one.
    let mut other = frames.clone();
    other[1] = frames[2];
    let known = made.words_of(&other);
    assert_eq!(walk_after(&mut made, &[first], 0, &known), Some(frames));
}

#[test]
fn what_is_expected_next_does_not_begin_with_a_frame_that_is_left_out() {
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let all = made.walk(0, 1024);
    let known = made.words_of(&all);
    for skip in 1..4 {
        // No rule leads past it, but cached rules would.
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
        let known = made.words_of(&all[skip..]);
        // The walk notes their rules.
        let found = walk_after(&mut made, &[], skip, &known);
        assert_eq!(found, Some(all[skip..].to_vec()));
        made.rules.clear();
        made.learnt = 0;
        assert_eq!(walk_after(&mut made, &[], skip, &known), None);
        assert_eq!((made.learnt, made.steps), (0, 0));
        made.walk(0, 1024);
        // One that is not it goes on where these were left out, and leaves no more of them out.
        let known = made.words_of(&[&all[skip..5], &[TEXT + 8]].concat());
        let found = walk_after(&mut made, &[], skip, &known);
        assert_eq!(found, Some(all[skip..].to_vec()));
    }
}

#[test]
fn what_is_expected_next_is_not_looked_for_beside_the_stack() {
    let end = STACKS[0] + SIZE;
    let alike = Alike::new(1);
    let known = words_of(&[TEXT; 200], |_| alike.rule);
    for sp in [STACKS[0] - 800, STACKS[0] - 8, end + 8, 0, !7] {
        let mut alike = Alike::new(1);
        let frame = alike.frame(sp);
        for skip in 0..2 {
            let mut ips = vec![0; 300];
            let nr = walk_predicted(&mut alike, frame, skip, &mut ips, 0, Some(&known));
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
    let follow = |predictor: &Predictor<'_>| {
        follow_past_tracer(&made, &made.frames[0], rule, MARKER, predictor).is_some()
    };
    for (known, is_it) in [(&frames, true), (&other, false)] {
        let known = made.words_of(known);
        assert_eq!(predict_in(&new_map(), &known, follow), is_it);
    }
    // One that begins with another frame, and is predicted by the same entry.
    let words = made.words_of(&frames);
    let raw = |ip| [&[FrameWord::new(ip, UnwindRule::UNKNOWN).0], &words[1..]].concat();
    assert!(!with_wrong_prediction(made.frames[1].at.ip, raw, follow));
}

#[test]
fn what_is_expected_behind_a_tracers_text_is_not_looked_for_beside_the_stack() {
    let end = STACKS[0] + SIZE;
    let alike = Alike::new(1);
    let known = words_of(&[MARKER, TEXT, TEXT], |_| alike.rule);
    for sp in [STACKS[0] - 800, STACKS[0] - 8, end + 8, 0, !7] {
        let frame = alike.frame(sp);
        let follow = |predictor: &Predictor<'_>| {
            follow_past_tracer(&alike, &frame, alike.rule, MARKER, predictor).is_some()
        };
        assert!(!predict_in(&new_map(), &known, follow));
    }
}
