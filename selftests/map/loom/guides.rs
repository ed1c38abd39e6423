// SPDX-License-Identifier: GPL-2.0

//! Guides that other contexts make, reset and take the hints of.

use super::*;

/// A map whose stacks have hints.
fn hinted(bits: u32, contexts: usize) -> Arc<Map> {
    // What sections are made of must be there before the threads are: it would order them.
    drop(ReadSide::enter());
    Arc::new(Map::with_hints(bits, contexts, SEED).expect("memory for a map"))
}

/// The hint of every frame.
const HINT: u32 = 1 << 31;

/// Addresses in text.
const TEXT: [u64; 3] = [!0 - 48, !0 - 32, !0 - 16];

/// Records a stack along guides. Returns whether these have told.
fn along(map: &Map, context: usize, frames: &[u64]) -> Result<(Found, bool), Fallback> {
    let before = model::steps();
    let section = ReadSide::enter();
    // SAFETY: In each model a context has one thread, which is in a read-side section.
    let entered = unsafe { map.enter(section.inside(), context) };
    let guides = entered.guides().ok_or(Fallback::Resetting)?;
    if let Some(next) = guides.next(frames[0]) {
        if next.frames().eq(frames.iter().copied()) {
            return Ok((guides.hit(&next), true));
        }
    }
    let mut guide = guides.first(0, frames[0]);
    let (mut left, mut branches) = (None, 0);
    for (nr, frame) in frames.iter().enumerate() {
        let Some(known) = guide else {
            break;
        };
        if known.frame(nr) != Some(*frame) {
            branches += 1;
            guide = guides.other(&known, nr, *frame);
            left = guide.is_none().then_some((known, nr));
        }
    }
    if let Some(guide) = guide.filter(|guide| guide.nr() == frames.len()) {
        let found = guides.hit(&guide);
        let steps = model::steps() - before;
        let most = 2 * frames.len() + 3 * 2 + 24 + 16 * branches;
        assert!(steps <= most, "P2: {steps} steps");
        return Ok((found, true));
    }
    let found = entered.get_id(frames)?;
    entered.make_guide(left, frames, found, |_, _| HINT);
    Ok((found, false))
}

/// A context follows a branch that another one makes: it sees the record behind it, or does not follow.
#[test]
fn a_branch_of_another_context() {
    // Two stacks that begin alike, in slots of their own.
    let (one, two) = ([TEXT[0], TEXT[1]], [TEXT[0], TEXT[2]]);
    bounded("a_branch_of_another_context", 3, None, move || {
        let map = hinted(2, 2);
        let first = along(&map, 0, &one).expect("an id").0;
        assert!(!along(&map, 1, &one).expect("an id").1);
        let other = spawn(&map, move |map| along(map, 1, &two).expect("an id").0);
        let second = along(&map, 0, &two).expect("an id").0;
        assert_eq!(other.join().id, second.id);
        assert_ne!(first.id, second.id);
        assert_eq!(read(&map, second.id), Some((two.to_vec(), 2)));
        settle_but(&map, 1);
    });
}

/// O2 for a context with a guide: the reset takes it.
#[test]
fn a_guide_beside_a_reset() {
    exhaustively("a_guide_beside_a_reset", move || {
        let map = hinted(1, 2);
        let frames = [TEXT[0], TEXT[1]];
        let old = along(&map, 1, &frames).expect("an id").0.id;
        let other = spawn(&map, move |map| along(map, 1, &frames));
        map.reset().unwrap();
        match other.join() {
            Ok((found, is_known)) => {
                assert_eq!(is_known, found.id == old, "O2: a guide that the reset took");
                assert_eq!(found.inserted, found.id != old);
            }
            Err(reason) => assert_eq!(reason, Fallback::Resetting),
        }
        settle(&map);
    });
}

/// A context reads a word while its hint is taken: the frame stays.
#[test]
fn hints_that_are_removed() {
    exhaustively("hints_that_are_removed", move || {
        let map = hinted(1, 2);
        let frames = TEXT;
        let id = along(&map, 0, &frames).expect("an id").0.id;
        along(&map, 1, &frames).expect("an id");
        let other = spawn(&map, move |map| along(map, 1, &frames).expect("an id"));
        map.remove_hints(|frame| frame == TEXT[1]);
        let (found, is_known) = other.join();
        assert_eq!((found.id, is_known), (id, true));
        assert_eq!(read(&map, id), Some((frames.to_vec(), 3)));
        settle(&map);
    });
}

/// P2: to find that what is expected next has come takes: the generation, the last stack, the next, its slot,
/// its chunk, all of its frames, two for the reference, and to note it.
#[test]
fn what_comes_next_takes_few_steps() {
    exhaustively("what_comes_next_takes_few_steps", || {
        let map = hinted(1, 1);
        let frames = TEXT;
        for _ in 0..5 {
            along(&map, 0, &frames).expect("an id");
        }
        let before = model::steps();
        let (_, is_known) = along(&map, 0, &frames).expect("an id");
        assert!(is_known);
        assert_eq!(model::steps() - before, frames.len() + 8);
    });
}

/// Words that have no hint are read but not written when hints are taken: other CPUs have them cached.
#[test]
fn hints_are_removed_once() {
    exhaustively("hints_are_removed_once", || {
        let map = hinted(1, 1);
        let frames = TEXT;
        along(&map, 0, &frames).expect("an id");
        let remove = |text: fn(u64) -> bool| {
            let before = model::steps();
            map.remove_hints(text);
            model::steps() - before
        };
        let none = remove(|_| false);
        // The last frame has no hint here: of that, only the size would be left.
        let hinted = frames.len() - 1;
        assert_eq!(remove(|_| true), none + hinted);
        assert_eq!(remove(|_| true), none);
    });
}
