// SPDX-License-Identifier: GPL-2.0

//! A predicted stack leads to the frames that are there, whatever it says, and only to these.

mod made;

use made::*;
use proptest::{collection::vec, prelude::*};
use stackmap_unwind::{
    frame_word::FrameWord, map::Map, new_map, predict_in, rule::UnwindRule, unwinder::WalkCounter,
    walk_along, walk_predicted, words_of,
};
use std::{cell::Cell, rc::Rc};

/// A predicted stack that has the first frames of a stack, and ends there or leaves it.
fn beginning(made: &Made, frames: &[u64], nr: usize, leaves: bool) -> Vec<u64> {
    // One that goes on where the stack ends has no other after it.
    let most = frames.len().saturating_sub(leaves.into());
    let mut frames = frames[..nr.min(most)].to_vec();
    if leaves {
        frames.extend([TEXT + 8, TEXT + 24]);
    }
    made.words_of(&frames)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(500)
    })]

    #[test]
    fn a_predicted_stack_leads_to_the_frames_that_are_there(
        shapes in vec(shape(), 0..60),
        end in end(),
        skip in 0..5_usize,
        max in 1..70_usize,
        nr in 0..60_usize,
        leaves: bool,
        // Frames whose rules are removed.
        taken in vec(0..60_usize, 0..4),
    ) {
        let mut made = Made::new(shapes, end);
        let wanted = made.walk(skip, max);
        let mut known = beginning(&made, &wanted, nr, leaves);
        for frame in taken {
            if let Some(word) = known.get_mut(frame) {
                *word &= 0xffff_ffff;
            }
        }
        // A full buffer does not say whether the stack goes on.
        if wanted.len() < max {
            prop_assert_eq!(made.walk_with(Some(&known), skip, max).0, wanted);
        }
    }
}

#[test]
fn a_known_stack_takes_no_rule_and_no_step_of_the_kernel() {
    let plain = |words, saved| Shape {
        saved,
        ..plain(words)
    };
    let based = Shape {
        link: Link::Bp,
        words: 6,
        saved: Some(4),
        bp: 2,
    };
    for end in [End::User, End::Outermost] {
        let shapes = vec![
            plain(3, None),
            plain(5, Some(1)),
            based,
            plain(2, None),
            // Its record is right above that of the frame before.
            Shape {
                words: 2,
                saved: Some(0),
                ..based
            },
            // It needs the frame pointer, and so do those after it.
            realigned(7, 3, 4),
            based,
            realigned(9, 4, 5),
            realigned(5, 2, 1),
        ];
        let mut made = Made::new(shapes, end);
        let wanted = made.walk(0, 1024);
        let known = made.words_of(&wanted);
        made.rules.clear();
        made.counts = [0; WalkCounter::COUNT];
        assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, true));
        assert_eq!((made.learnt, made.steps), (10, 0));
        assert_eq!(made.counts[WalkCounter::Fast as usize], 10);
    }
}

#[test]
fn a_frame_without_a_cached_rule_is_left_to_the_walk() {
    let mut made = Made::new(vec![plain(3); 4], End::User);
    let wanted = made.walk(0, 1024);
    for without in 0..wanted.len() {
        let mut known = made.words_of(&wanted);
        known[without] &= 0xffff_ffff;
        let found = made.walk_with(Some(&known), 0, 1024);
        assert_eq!(found, (wanted.clone(), false), "{without}");
    }
}

#[test]
fn text_that_may_go_leads_on_while_it_is_there() {
    let frame = Shape {
        link: Link::Bp,
        words: 6,
        saved: Some(4),
        bp: 2,
    };
    // Also where the kernel leads to such a frame, not a rule.
    for (at, steps) in (0..5).map(|at| (at, 0)).chain((1..5).map(|at| (at, 1))) {
        let mut shapes = vec![plain(3); 5];
        shapes[at] = frame;
        if steps > 0 {
            shapes[at - 1].link = Link::Unsupported;
        }
        let mut made = Made::new(shapes, End::User);
        made.image = Some((at, true));
        let all = made.walk(0, 1024);
        assert_eq!((&all, made.steps), (&made.ips(), steps));
        // No rule is cached.
        let known = made.words_of(&all);
        assert_eq!(made.walk_with(Some(&known), 0, 1024), (all.clone(), false));
        assert_eq!(made.steps, 2 * steps);
        // The kernel's unwinder ends there, too.
        made.image = Some((at, false));
        let ended = (all[..at].to_vec(), false);
        assert_eq!(made.walk_with(Some(&known), 0, 1024), ended);
    }
}

#[test]
fn a_predicted_stack_ends_only_where_its_stack_does() {
    // The kernel's own registers, where the predicted stack has the user's.
    let mut interrupt = plain(4);
    interrupt.link = Link::Interrupt;
    let shapes = vec![plain(3), plain(3), interrupt, plain(3), plain(3)];
    let mut made = Made::new(shapes, End::User);
    let wanted = made.walk(0, 1024);
    let known = made.words_of(&wanted[..3]);
    assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, false));
    // And the user's or none, where the predicted stack goes on.
    for end in [End::User, End::Outermost] {
        let mut made = Made::new(vec![plain(3); 2], end);
        let wanted = made.walk(0, 1024);
        let known = made.words_of(&[&wanted[..], &[TEXT + 8]].concat());
        assert_eq!(made.walk_with(Some(&known), 0, 1024), (wanted, false));
    }
}

#[test]
fn a_predicted_stack_leaves_no_stack() {
    let end = STACKS[0] + SIZE;
    for words in 1..5 {
        let known = words_of(&[TEXT; 200], |_| Alike::new(words).rule);
        for left in 0..20 {
            let mut alike = Alike::new(words);
            let frame = alike.frame(end - left * 8);
            let whole = (left / u64::from(words)) as usize;
            // Nor do frames that are left out.
            for (skip, found) in [(0, whole + 1), (30, 0)] {
                let mut ips = vec![0; 300];
                let nr = walk_predicted(&mut alike, frame, skip, &mut ips, 0, Some(&known));
                assert_eq!(nr, Some(found));
            }
        }
    }
}

#[test]
fn a_predicted_stack_may_end_where_the_stack_does() {
    let mut known = words_of(&[TEXT; 5], |_| Alike::new(3).rule);
    known[4] = FrameWord::new(TEXT, UnwindRule::END).0;
    for left in 4 * 3..5 * 3 {
        let mut alike = Alike::new(3);
        let frame = alike.frame(STACKS[0] + SIZE - left * 8);
        let mut ips = vec![0; 300];
        let nr = walk_predicted(&mut alike, frame, 0, &mut ips, 0, Some(&known));
        assert_eq!(nr, None);
    }
}

#[test]
fn no_predicted_stack_leads_past_an_address_that_a_tracer_has_put() {
    let traced = Shape {
        link: Link::Traced,
        ..plain(3)
    };
    let mut untraced = Made::new(vec![plain(3); 5], End::User);
    untraced.walk(0, 1024);
    for at in 0..5 {
        let mut shapes = vec![plain(3); 5];
        shapes[at] = traced;
        let mut made = Made::new(shapes, End::User);
        let wanted = made.walk(0, 1024);
        // The rules were cached before it was traced.
        let raw = [&wanted[..=at], &[REPLACED], &wanted[at + 2..]].concat();
        for frames in [&wanted, &raw] {
            let known = untraced.words_of(frames);
            let found = made.walk_with(Some(&known), 0, 1024);
            assert_eq!(found, (wanted.clone(), false), "{at}");
        }
    }
}

/// Returns a function that caches rules with some frames of a stack of the map, or removes some, by chance: `gone` of
/// 64 times.
fn disturb(map: &Rc<Map>, known: &[u64], gone: u64, seed: u64) -> Box<dyn Fn()> {
    let (map, known, state) = (map.clone(), known.to_vec(), Cell::new(seed));
    let id = predict_in(&map, &known, |predictor| {
        let predicted = frames(&known).first().and_then(|ip| predictor.predict(*ip));
        predicted.map(|predicted| predictor.id(&predicted))
    });
    Box::new(move || {
        let (Some(id), mut chance) = (id, state.get()) else {
            return;
        };
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        state.set(chance);
        if chance >> 20 & 63 < gone {
            let last = FrameWord(known[(chance >> 32) as usize % known.len()]).ip();
            map.remove_cached_rules(|ip| ip == last);
        } else {
            let mut rules = known.iter().map(|word| (word >> 32) as u32);
            map.read(id, |_, record| {
                record.cache_rules(|_, _| rules.next().unwrap_or(0))
            });
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(5000)
    })]

    #[test]
    fn a_predicted_stack_whose_rules_come_and_go_leads_to_the_same_frames(
        shapes in vec(shape(), 0..40),
        end in end(),
        skip in 0..4_usize,
        other in proptest::option::of((0..60_usize, any::<bool>())),
        gone in 0..40_u64,
        seed in 1..u64::MAX - 4,
    ) {
        let mut made = Made::new(shapes, end);
        made.walk(skip, 1024);
        made.counts = [0; WalkCounter::COUNT];
        let wanted = made.walk(skip, 1024);
        let counted: u64 = made.counts.iter().sum();
        let known = match other {
            Some((nr, leaves)) => beginning(&made, &wanted, nr, leaves),
            None => made.words_of(&wanted),
        };
        for round in 0..4 {
            made.counts = [0; WalkCounter::COUNT];
            let mut ips = vec![0; 1024];
            let frame = made.frames[0];
            let map = Rc::new(new_map());
            made.on_load = Some(disturb(&map, &known, gone, seed + round));
            let nr = predict_in(&map, &known, |predictor| {
                walk_along(&mut made, frame, skip, &mut ips, 0, predictor)
            });
            made.on_load = None;
            let found = match nr {
                None => frames(&known),
                Some(nr) => ips[..nr].to_vec(),
            };
            prop_assert_eq!(&found, &wanted);
            if skip == 0 {
                prop_assert_eq!(made.counts.iter().sum::<u64>(), counted);
            }
        }
    }
}

#[test]
fn a_stack_that_begins_interrupted_has_its_first_step_by_the_kernel() {
    let mut made = Made::new(vec![plain(3); 3], End::User);
    let wanted = made.walk(0, 1024);
    made.frames[0].interrupted = true;
    // Also if it is left out.
    for skip in 0..2 {
        made.steps = 0;
        let found = made.walk(skip, 1024);
        assert_eq!((&found[..], made.steps), (&wanted[skip..], 1));
    }
}
