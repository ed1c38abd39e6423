// SPDX-License-Identifier: GPL-2.0

//! Stacks that a context predicts, beside a reset and while cached rules are taken.

use super::*;

/// A map whose stacks have cached rules.
fn with_rules(bits: u32, contexts: usize) -> Arc<Map> {
    // What sections are made of must be there before the threads are: it would order them.
    drop(ReadSide::enter());
    Arc::new(Map::with_cached_rules(bits, contexts, SEED).expect("memory for a map"))
}

/// The cached rule of every frame.
const RULE: u32 = 1 << 31 | 1;

/// Addresses in text.
const TEXT: [u64; 3] = [!0 - 48, !0 - 32, !0 - 16];

/// Records a stack as a walk does. Returns whether it was predicted.
fn record_predicted(map: &Map, context: usize, frames: &[u64]) -> Result<(Lookup, bool), Fallback> {
    let before = model::steps();
    let section = ReadSide::enter();
    // SAFETY: In each model a context has one thread, which is in a read-side section.
    let guard = unsafe { map.enter(section.inside(), context) };
    let predictor = guard.predictor().ok_or(Fallback::Resetting)?;
    if let Some(next) = predictor.predict(frames[0]) {
        if (0..)
            .map_while(|nr| next.frame(nr))
            .eq(frames.iter().copied())
        {
            let found = predictor.hit(&next);
            let steps = model::steps() - before;
            assert!(steps <= frames.len() + 3 * 2 + 14, "P2: {steps} steps");
            return Ok((found, true));
        }
    }
    let found = guard.get_id(frames)?;
    let before = model::steps();
    let record = guard.train(frames, found);
    assert!(model::steps() - before <= 8, "P2");
    if let Some(record) = record {
        record.cache_rules(|_, _| RULE);
        assert!(model::steps() - before <= 8 + 3 * frames.len(), "P2");
    }
    Ok((found, false))
}

/// Records a stack until it is predicted.
fn predict(map: &Map, context: usize, frames: &[u64]) -> Id {
    for _ in 0..3 {
        record_predicted(map, context, frames).expect("an id");
    }
    record_predicted(map, context, frames).expect("an id").0.id
}

/// O2 for a context that predicts: the reset takes what it does.
#[test]
fn a_prediction_beside_a_reset() {
    exhaustively("a_prediction_beside_a_reset", move || {
        let map = with_rules(1, 2);
        let frames = [TEXT[0], TEXT[1]];
        let old = predict(&map, 1, &frames);
        let other = spawn(&map, move |map| record_predicted(map, 1, &frames));
        map.reset().unwrap();
        match other.join() {
            Ok((found, is_known)) => {
                assert_eq!(is_known, found.id == old, "O2: a stack that the reset took");
                assert_eq!(found.inserted, found.id != old);
            }
            Err(reason) => assert_eq!(reason, Fallback::Resetting),
        }
        settle(&map);
    });
}

/// A context reads a word while its cached rule is taken: the frame stays.
#[test]
fn rules_that_are_removed() {
    exhaustively("rules_that_are_removed", move || {
        let map = with_rules(1, 2);
        let frames = TEXT;
        let id = predict(&map, 1, &frames);
        let other = spawn(&map, move |map| {
            record_predicted(map, 1, &frames).expect("an id")
        });
        map.remove_cached_rules(|frame| frame == TEXT[1]);
        let (found, is_known) = other.join();
        assert_eq!((found.id, is_known), (id, true));
        assert_eq!(read(&map, id), Some((frames.to_vec(), 5)));
        settle(&map);
    });
}

/// P2: to find that what is expected next has come takes: the generation, the last stack, the next, its slot,
/// its chunk, all of its frames, two for the reference, and to note it.
#[test]
fn what_comes_next_takes_few_steps() {
    exhaustively("what_comes_next_takes_few_steps", || {
        let map = with_rules(1, 1);
        let frames = TEXT;
        predict(&map, 0, &frames);
        record_predicted(&map, 0, &frames).expect("an id");
        let before = model::steps();
        let (_, is_known) = record_predicted(&map, 0, &frames).expect("an id");
        assert!(is_known);
        assert_eq!(model::steps() - before, frames.len() + 8);
    });
}

/// Words that have no cached rule are read but not written when cached rules are taken: other CPUs have them cached.
#[test]
fn rules_are_removed_once() {
    exhaustively("rules_are_removed_once", || {
        let map = with_rules(1, 1);
        let frames = TEXT;
        predict(&map, 0, &frames);
        let remove = |text: fn(u64) -> bool| {
            let before = model::steps();
            map.remove_cached_rules(text);
            model::steps() - before
        };
        let none = remove(|_| false);
        assert_eq!(remove(|_| true), none + frames.len());
        assert_eq!(remove(|_| true), none);
    });
}
