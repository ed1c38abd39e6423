// SPDX-License-Identifier: GPL-2.0

//! Rules that say where the frame pointer was saved lead on where it does, and nowhere else.

mod made;

use made::*;
use stackmap_unwind::{frame_word::FrameWord, unwinder::FrameSize, walk_predicted};

/// Words of the frame that saves the frame pointer.
const WORDS: u64 = 9;

/// Words between that frame and the one that needs the frame pointer.
const BETWEEN: u64 = 5;

/// A stack whose second frame saves the frame pointer, at a distance above its stack pointer, and whose fourth
/// one has its caller where that leads.
fn saved_at(saved: u64) -> Made {
    let save = Shape {
        saved: Some(saved),
        ..plain(WORDS)
    };
    let framed = Shape {
        link: Link::Bp,
        words: 6,
        saved: Some(4),
        bp: 2,
    };
    let shapes = vec![plain(3), save, plain(BETWEEN), framed, framed, plain(3)];
    Made::new(shapes, End::User)
}

#[test]
fn a_distance_takes_no_rule_wherever_a_run_begins() {
    for saved in 0..WORDS - 1 {
        let mut made = saved_at(saved);
        let all = made.walk(0, 1024);
        let known = made.words_of(&all);
        assert_eq!(
            FrameWord(known[3]).saved_words().map(FrameSize::get),
            Some(WORDS + BETWEEN - saved)
        );
        // Before the frame that saves it, and right there.
        let after = made.words_of(&all[1..]);
        made.learnt = 0;
        for (known, skip) in [(known, 0), (after, 1)] {
            made.walk(skip, 1024);
            // Only of the frame that is left out.
            let rules = std::mem::take(&mut made.rules);
            let found = made.walk_with(Some(&known), skip, 1024);
            assert_eq!(found, (all[skip..].to_vec(), true));
            assert_eq!((made.learnt, made.steps), (0, 0), "{saved}, {skip}");
            made.rules = rules;
        }
    }
}

#[test]
fn the_first_word_of_a_run_may_be_where_a_frame_pointer_was_saved() {
    let mut made = saved_at(0);
    let all = made.walk(0, 1024);
    let known = made.words_of(&all[1..]);
    made.rules.clear();
    made.learnt = 0;
    let mut frame = made.frames[1];
    // The frame that saves it has another value there: that leads to the same caller, on another way.
    frame.at.bp = made.frames[3].at.sp + 8;
    made.memory.insert(frame.at.bp + 8, made.frames[4].at.ip);
    let mut ips = vec![0; 100];
    let predicted = Some(&known[..]);
    assert_eq!(
        walk_predicted(&mut made, frame, 0, &mut ips, 0, predicted),
        None
    );
    assert_eq!((made.learnt, made.steps), (0, 0));
}

#[test]
fn what_is_below_the_first_frame_of_a_run_is_not_where_a_frame_pointer_was_saved() {
    let first = TEXT + 8;
    let mut other = saved_at(0);
    let ip = other.walk(0, 1024)[1];
    let mut made = saved_at(3);
    let all = made.walk(0, 1024);
    // A frame that is known before, and not on the stack, has saved it elsewhere, as its rule says.
    made.rules.insert(first, other.rules[&ip]);
    let frames = [&[first], &all[2..]].concat();
    let known = made.words_of(&frames);
    let saved = FrameWord(known[2]).saved_words().map(FrameSize::get);
    assert_eq!(saved, Some(WORDS + BETWEEN));
    made.rules.clear();
    made.learnt = 0;
    let mut ips = vec![0; 100];
    ips[0] = first;
    let frame = made.frames[2];
    let predicted = Some(&known[..]);
    assert_eq!(
        walk_predicted(&mut made, frame, 0, &mut ips, 1, predicted),
        None
    );
    assert_eq!((made.learnt, made.steps), (0, 0));
}

#[test]
fn a_frame_pointer_leads_no_further_than_the_stack() {
    for saved in 0..WORDS - 1 {
        let mut made = saved_at(saved);
        let all = made.walk(0, 1024);
        let known = made.words_of(&all);
        let (at, sp) = (made.frames[1].at.sp + 8 * saved, made.frames[3].at.sp);
        let stack = made.frames[0].stack;
        let (begin, end) = (stack.begin(), stack.end());
        for bp in [
            0,
            8,
            !7,
            !15,
            begin,
            sp - 24,
            sp - 16,
            end - 8,
            end,
            end + 8,
        ] {
            made.memory.insert(at, bp);
            // There, the kernel knows the way.
            made.frames[3].at.bp = bp;
            made.steps = 0;
            let found = made.walk_with(Some(&known), 0, 1024);
            assert_eq!((found, made.steps), ((all.clone(), false), 1), "{bp:#x}");
        }
    }
}

#[test]
fn what_was_realigned_leads_no_further_than_the_stack() {
    let (below, shapes) = (3, [plain(3), realigned(9, 4, 3), plain(3)]);
    let mut made = Made::new(shapes.to_vec(), End::User);
    let all = made.walk(0, 1024);
    let known = made.words_of(&all);
    let (sp, bp) = (made.frames[1].at.sp, made.frames[1].at.bp);
    let (begin, end) = (made.frames[0].stack.begin(), made.frames[0].stack.end());
    let from = [0, 8, !7, begin, sp - 8, sp, sp + 16, end - 8, end, end + 8].map(|bp| (bp, None));
    let to = [0, !7, begin, sp - 8, sp, end + 1, end + 8].map(|up| (bp, Some(up)));
    for (bp, up) in from.into_iter().chain(to) {
        let mut made = Made::new(shapes.to_vec(), End::User);
        made.walk(0, 1024);
        (made.frames[0].at.bp, made.frames[1].at.bp) = (bp, bp);
        made.memory.extend(up.map(|up| (bp - 8 * below, up)));
        // There, the kernel knows the way.
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (all.clone(), false), "{bp:#x} {up:x?}");
        assert_eq!(made.steps, 1, "{bp:#x} {up:x?}");
    }
}

#[test]
fn what_was_realigned_leads_to_no_word_below_the_stack() {
    let mut made = Made::new(vec![plain(3), realigned(9, 4, 3), plain(3)], End::User);
    let all = made.walk(0, 1024);
    let known = made.words_of(&all[1..]);
    // As low as a frame can be.
    let lowest = made.frames[1].stack.begin() + 16;
    (made.frames[1].at.sp, made.frames[1].at.bp) = (lowest, lowest);
    let (mut ips, frame) = (vec![0; 100], made.frames[1]);
    let predicted = Some(&known[..]);
    let nr = walk_predicted(&mut made, frame, 0, &mut ips, 0, predicted);
    assert_eq!((nr, made.steps), (Some(all.len() - 1), 1));
}

#[test]
fn a_distance_does_not_lead_to_another_caller() {
    let mut made = saved_at(0);
    let all = made.walk(0, 1024);
    let known = made.words_of(&all);
    let at = made.frames[4].at.sp - 8;
    let other = made.frames[6].at.ip;
    assert_eq!(made.memory.insert(at, other), Some(made.frames[4].at.ip));
    let (found, is_known) = made.walk_with(Some(&known), 0, 1024);
    assert!(!is_known && found[..4] == all[..4] && found[4] == other);
}
