// SPDX-License-Identifier: GPL-2.0

//! A predicted stack is a stack that is there, whatever else is recorded, reset or unloaded.

#![cfg(not(loom))]

use proptest::{collection::vec, prelude::*};
use stackmap_map::{
    CtxGuard, Fallback, Id, Lookup, Map, PredictedStack, ReadSide, Seed, MAX_FRAMES,
};
use std::{cell::RefCell, collections::HashMap};

const SEED: Seed = Seed::new([1, 2]);

/// The first address of a kernel's text.
const TEXT: u64 = 0xffff_ffff_8100_0000;

fn map(bits: u32, contexts: usize) -> Map {
    Map::with_cached_rules(bits, contexts, SEED).expect("memory for a map")
}

/// The cached rule that a frame has.
fn rule(frame: u64) -> u32 {
    (frame as u32).wrapping_mul(0x9e37_79b1) | 1 << 31
}

/// Whether all frames and cached rules of a predicted stack are as they were given; but cached rules that were taken.
fn check(stack: &PredictedStack<'_>) {
    for index in 0..stack.nr() {
        let word = stack.word(index).expect("a frame of the stack");
        let frame = stack.frame(index).expect("a frame of the stack");
        let given = u64::from(rule(frame)) << 32;
        let wanted = if index + 1 == stack.nr() {
            given & !0 >> 12
        } else {
            given
        };
        assert!([0, wanted >> 32].contains(&(word >> 32)), "{word:#x}");
    }
    assert_eq!(stack.frame(stack.nr()), None);
}

/// Runs `f` in a context. Each thread of these tests uses contexts of its own.
fn enter<R>(map: &Map, context: usize, f: impl FnOnce(&CtxGuard<'_>) -> R) -> R {
    let section = ReadSide::enter();
    // SAFETY: No other thread uses the context, and we are inside a read-side section.
    f(&unsafe { map.enter(section.inside(), context) })
}

/// Records a stack as a walk does. Returns whether it was predicted, and all its frames had cached rules.
fn record(map: &Map, context: usize, frames: &[u64]) -> Result<(Lookup, bool), Fallback> {
    enter(map, context, |guard| {
        let predictor = guard.predictor().ok_or(Fallback::Resetting)?;
        if let Some(next) = frames.first().and_then(|frame| predictor.predict(*frame)) {
            check(&next);
            let is_it = (0..)
                .map_while(|nr| next.frame(nr))
                .eq(frames.iter().copied());
            if is_it && rules(&next).iter().all(|rule| *rule != 0) {
                return Ok((predictor.hit(&next), true));
            }
        }
        let found = guard.get_id(frames)?;
        if !found.inserted {
            if let Some(record) = guard.train(frames, found) {
                record.cache_rules(|frame, _| rule(frame));
            }
        }
        Ok((found, false))
    })
}

/// The cached rules of a predicted stack's frames.
fn rules(stack: &PredictedStack<'_>) -> Vec<u64> {
    let words = (0..stack.nr()).filter_map(|index| stack.word(index));
    words.map(|word| word >> 32).collect()
}

/// What a context predicts by a first frame: the frames, and their cached rules.
fn next(map: &Map, context: usize, frame: u64) -> Option<(Vec<u64>, Vec<u64>)> {
    enter(map, context, |guard| {
        let predictor = guard.predictor().expect("no reset runs");
        let next = predictor.predict(frame)?;
        Some(((0..).map_while(|nr| next.frame(nr)).collect(), rules(&next)))
    })
}

/// The frames that the first context predicts.
fn predicted(map: &Map) -> Option<Vec<u64>> {
    next(map, 0, TEXT).map(|(frames, _)| frames)
}

/// Records stacks in turn until each is predicted, in the first context.
fn predict(map: &Map, stacks: &[Vec<u64>]) {
    for stack in stacks.iter().cycle().take(4 * stacks.len()) {
        record(map, 0, stack).expect("an id");
    }
}

/// Whether the frames of a stack have cached rules.
fn has_rules(map: &Map, frames: &[u64]) -> bool {
    enter(map, 0, |guard| {
        let found = guard.get_id(frames).expect("an id");
        // When it has followed itself twice, it is predicted.
        let mut hintless = None;
        for _ in 0..3 {
            hintless = guard.train(frames, found);
        }
        hintless.is_none()
    })
}

fn read(map: &Map, id: Id) -> Option<(Vec<u64>, u32)> {
    let mut buffer = [0; MAX_FRAMES];
    let stack = map.lookup(id, &mut buffer)?;
    Some((buffer[..stack.nr].to_vec(), stack.ref_count))
}

/// Stacks of few functions, so that many begin alike.
fn stack() -> impl Strategy<Value = Vec<u64>> {
    vec((0..3_u64).prop_map(|function| TEXT + function * 16), 1..9)
}

#[derive(Clone, Debug)]
enum Op {
    Record(usize, Vec<u64>),
    Take(u64),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        100 => (0..3_usize, stack()).prop_map(|(context, stack)| Op::Record(context, stack)),
        3 => (0..3_u64).prop_map(Op::Take),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    #[test]
    fn a_stack_has_one_id_however_it_is_found(ops in vec(op(), 0..400)) {
        let map = map(10, 3);
        let mut ids: HashMap<Vec<u64>, (Id, u32)> = HashMap::new();
        for op in ops {
            match op {
                Op::Record(context, frames) => {
                    let (found, is_known) = record(&map, context, &frames).expect("an id");
                    prop_assert_eq!(found.inserted, !ids.contains_key(&frames));
                    prop_assert!(!(found.inserted && is_known));
                    let (id, refs) = ids.entry(frames).or_insert((found.id, 0));
                    prop_assert_eq!(*id, found.id);
                    *refs += 1;
                }
                Op::Take(function) => map.remove_cached_rules(|frame| frame == TEXT + function * 16),
                Op::Reset => {
                    map.reset().expect("no other operation runs");
                    for (_, (id, _)) in ids.drain() {
                        prop_assert_eq!(read(&map, id), None);
                    }
                }
            }
        }
        for (frames, (id, refs)) in ids {
            prop_assert_eq!(read(&map, id), Some((frames, refs)));
        }
    }
}

#[test]
fn rules_of_text_that_goes_are_taken_and_given_again() {
    let map = map(10, 1);
    let frames = vec![TEXT, TEXT + 16, TEXT + 32, TEXT + 48];
    let rules = || next(&map, 0, TEXT).expect("it is predicted").1;
    predict(&map, std::slice::from_ref(&frames));
    let mut given: Vec<u64> = frames.iter().map(|frame| rule(*frame).into()).collect();
    // Of the last one, all but the size.
    given[3] &= 0xf_ffff;
    for gone in 0..4 {
        assert_eq!(rules(), given);
        assert!(record(&map, 0, &frames).expect("an id").1);
        map.remove_cached_rules(|frame| frame == frames[gone]);
        // Those after it may tell of it.
        let left: Vec<u64> = (0..4)
            .map(|nr| if nr < gone { given[nr] } else { 0 })
            .collect();
        assert_eq!(rules(), left);
        // The stack is as it was, and gets them again as it comes.
        let (found, is_known) = record(&map, 0, &frames).expect("an id");
        assert!(!found.inserted && !is_known);
    }
    assert_eq!(rules(), given);
}

#[test]
fn rules_are_taken_from_stacks_in_all_slots() {
    let map = map(10, 1);
    let stacks = (0..900).map(|number| vec![TEXT + number * 16, TEXT - 16, TEXT - 32]);
    let stacks: Vec<Vec<u64>> = stacks.collect();
    for stack in &stacks {
        predict(&map, std::slice::from_ref(stack));
    }
    assert!(stacks.iter().all(|stack| has_rules(&map, stack)));
    map.remove_cached_rules(|frame| frame == TEXT - 16);
    assert!(!stacks.iter().any(|stack| has_rules(&map, stack)));
}

#[test]
fn a_rule_is_by_the_frame_and_the_one_behind_it() {
    let map = map(10, 1);
    let frames = [TEXT, TEXT + 16, TEXT + 32];
    let asked = RefCell::new(Vec::new());
    for _ in 0..5 {
        enter(&map, 0, |guard| {
            let found = guard.get_id(&frames).expect("an id");
            if let Some(record) = guard.train(&frames, found) {
                record.cache_rules(|frame, next| {
                    asked.borrow_mut().push((frame, next));
                    rule(frame)
                });
            }
        });
    }
    // Once: then they are there.
    let wanted = [
        (frames[0], frames[1]),
        (frames[1], frames[2]),
        (frames[2], 0),
    ];
    assert_eq!(asked.into_inner(), wanted);
}

#[test]
fn rules_that_are_there_stay_if_their_rules_were_replaced() {
    let map = map(10, 1);
    let frames = vec![TEXT, TEXT + 16, TEXT + 32];
    predict(&map, std::slice::from_ref(&frames));
    let before = next(&map, 0, TEXT);
    map.remove_cached_rules(|frame| frame == frames[2]);
    enter(&map, 0, |guard| {
        let found = guard.get_id(&frames).expect("an id");
        let record = guard.train(&frames, found).expect("it has no rules");
        record.cache_rules(|frame, _| if frame == frames[2] { rule(frame) } else { 0 });
    });
    assert_eq!(next(&map, 0, TEXT), before);
}

#[test]
fn a_map_without_rules_predicts_nothing() {
    let map = Map::new(10, 1, SEED).expect("memory for a map");
    let frames = [TEXT, 1 << 47];
    for _ in 0..5 {
        enter(&map, 0, |guard| {
            let found = guard.get_id(&frames).expect("an id");
            assert!(guard.train(&frames, found).is_none());
            map.read(found.id, |_, record| {
                record.cache_rules(|frame, _| rule(frame))
            });
            assert_eq!(
                read(&map, found.id).map(|(frames, _)| frames),
                Some(frames.to_vec())
            );
        });
        assert_eq!(next(&map, 0, TEXT), None);
    }
}

#[test]
fn the_first_slot_is_predicted_as_others_are() {
    let map = map(10, 1);
    assert_eq!(map.table_bytes(), 2048 * (8 + 4));
    let mut stacks = (0..).map(|number| [TEXT, TEXT + number * 16]);
    let first = stacks.find(|frames| SEED.hash(frames) % 2048 == 0);
    let first = first.expect("there are infinitely many");
    // It is not mistaken for none. The first time that it was not new, no stack preceded it.
    for round in 0..6 {
        let found = record(&map, 0, &first).map(|(_, is_known)| is_known);
        assert_eq!(found, Ok(round > 3));
    }
}

#[test]
fn what_came_next_twice_is_predicted() {
    let map = map(10, 1);
    let stacks = [1, 2, 3].map(|function| vec![TEXT, TEXT + function * 16]);
    let come = |number: usize| {
        record(&map, 0, &stacks[number]).expect("an id");
    };
    // Inserted, then seen in turn once.
    for number in [0, 1, 2, 0, 1, 2, 0, 1, 2] {
        come(number);
        assert_eq!(predicted(&map), None);
    }
    for number in [0, 1, 2, 0] {
        come(number);
        assert_eq!(predicted(&map), Some(stacks[(number + 1) % 3].clone()));
    }
    // Another one comes once, and then the same again.
    come(2);
    come(0);
    assert_eq!(predicted(&map), None);
    come(1);
    come(2);
    come(0);
    come(1);
    come(2);
    come(0);
    assert_eq!(predicted(&map), Some(stacks[1].clone()));
}

#[test]
fn a_new_stack_is_not_what_came_before() {
    let map = map(10, 1);
    let stack = |function: u64| vec![TEXT, TEXT + function * 16];
    predict(&map, &[stack(1), stack(2)]);
    // Stacks that come once do not break the turns of others.
    for new in 3..20 {
        record(&map, 0, &stack(new)).expect("an id");
        assert!(record(&map, 0, &stack(1 + (new + 1) % 2)).is_ok_and(|(_, is_known)| is_known));
    }
}

#[test]
fn a_reset_takes_what_is_predicted() {
    let map = map(10, 2);
    let frames = [TEXT, TEXT + 16, TEXT + 32];
    for _ in 0..3 {
        // It is in the same slot in each generation.
        record(&map, 1, &frames).expect("an id");
        for is_known in [false, false, false, true] {
            assert_eq!(next(&map, 0, TEXT).is_some(), is_known);
            let found = record(&map, 0, &frames).map(|(_, is_known)| is_known);
            assert_eq!(found, Ok(is_known));
        }
        map.reset().expect("no other operation runs");
        // Also that of the last stack.
        assert_eq!(predicted(&map), None);
    }
}

#[test]
fn a_marker_is_not_what_a_stack_is_predicted_by() {
    const MARKER: u64 = 0x7fff_ffff;
    let map = map(10, 1);
    let stacks = [1, 2].map(|function| vec![MARKER, TEXT + function * 16]);
    predict(&map, &stacks);
    assert_eq!(
        next(&map, 0, stacks[0][1]).map(|next| next.0),
        Some(stacks[0].clone())
    );
    assert_eq!(next(&map, 0, MARKER), None);
}

#[test]
fn a_frame_that_no_word_can_hold_is_refused() {
    let map = map(10, 1);
    for frame in [1 << 47, TEXT - (1 << 31), 0x8000_0000] {
        let refused = enter(&map, 0, |guard| guard.get_id(&[TEXT, frame]));
        assert_eq!(refused, Err(Fallback::PoolFull), "{frame:#x}");
    }
    assert_eq!((map.entries(), map.reserved_bytes()), (0, 0));
    for frame in [0x7fff_ffff, !0, 0xffff_ffff_8000_0000, 0] {
        let (found, _) = record(&map, 0, &[frame]).expect("an id");
        assert_eq!(read(&map, found.id), Some((vec![frame], 1)));
    }
}

#[test]
fn threads_find_each_others_stacks() {
    const THREADS: usize = 3;
    let map = map(10, THREADS);
    let stacks: Vec<Vec<u64>> = (0..500_u64)
        .map(|path| {
            (0..10)
                .map(|depth| TEXT + (path >> depth & 1) * 16 + depth * 64)
                .collect()
        })
        .collect();
    let counts: Vec<HashMap<Id, u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|context| {
                let (map, stacks) = (&map, &stacks);
                scope.spawn(move || {
                    let mut counts = HashMap::new();
                    for round in 0..60_000 {
                        if round % 1000 == 0 && context == 0 {
                            map.remove_cached_rules(|frame| frame == TEXT);
                        }
                        let number = (round * (2 * context + 1)) % stacks.len();
                        let (found, _) = record(map, context, &stacks[number]).expect("an id");
                        *counts.entry(found.id).or_insert(0) += 1;
                    }
                    counts
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(map.entries(), 500);
    let mut all: HashMap<Id, u32> = HashMap::new();
    for (id, refs) in counts.into_iter().flatten() {
        *all.entry(id).or_insert(0) += refs;
    }
    for (id, refs) in all {
        let (frames, counted) = read(&map, id).expect("a stack");
        assert!(stacks.contains(&frames));
        assert_eq!(counted, refs);
    }
}

#[test]
fn what_comes_next_is_predicted_by_any_first_frame() {
    for first in [TEXT, TEXT | 0xff_ffff, !0 ^ 0xffff, !0] {
        let map = map(10, 1);
        let stacks = [1, 2, 3, 4].map(|function| vec![first, TEXT + function * 16]);
        predict(&map, &stacks);
        for stack in &stacks {
            let predicted = next(&map, 0, first).map(|(frames, _)| frames);
            assert_eq!(predicted.as_ref(), Some(stack), "{first:#x}");
            assert!(record(&map, 0, stack).expect("an id").1);
        }
    }
}

#[test]
fn most_of_hundreds_of_stacks_in_turn_are_predicted() {
    let map = map(10, 1);
    let stacks: Vec<Vec<u64>> = (0..200).map(|n| vec![TEXT + 16 * n, TEXT + 8]).collect();
    predict(&map, &stacks);
    let known = stacks
        .iter()
        .filter(|stack| record(&map, 0, stack).expect("an id").1);
    // The ones whose entry in the table no other one takes.
    let known = known.count();
    assert!(known > 150, "{known} of 200");
}
