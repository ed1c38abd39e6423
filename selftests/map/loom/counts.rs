// SPDX-License-Identifier: GPL-2.0

//! References and counters: P7.

use super::*;

/// No reference is lost when several contexts flush deferred references at the same time.
#[test]
fn references_of_one_stack_from_two_cpus() {
    let frames = stack_at(1, 0, 2, 0);
    exhaustively("references_of_one_stack_from_two_cpus", move || {
        let map = map(1, 2);
        for context in [0, 0, 1, 1] {
            id(&map, context, frames);
        }
        // Both hold back as many as they can.
        let other = spawn(&map, move |map| id(map, 1, frames));
        id(&map, 0, frames);
        other.join();
        let all = settle(&map);
        assert_eq!(all[0].2, 6);
        assert_eq!(map.total(MapCounter::Hits), 5);
    });
}

/// Stacks that evict each other in a context lose no reference. Two fit.
#[test]
fn references_of_three_stacks_in_one_set() {
    let stacks = [0, 2, 4].map(|home| stack_at(2, home, 1, 0));
    exhaustively("references_of_three_stacks_in_one_set", move || {
        let map = map(2, 3);
        for frames in stacks {
            id(&map, 2, frames);
        }
        let events = move |map: &Map, context| {
            for frames in stacks.iter().cycle().take(4) {
                id(map, context, frames);
            }
        };
        let other = spawn(&map, move |map| events(map, 1));
        events(&map, 0);
        other.join();
        let mut refs: Vec<u32> = settle(&map).iter().map(|(_, _, refs)| *refs).collect();
        refs.sort_unstable();
        assert_eq!(refs, [3, 3, 5]);
    });
}

/// Somebody reads references and counters meanwhile: what is just being moved can be missed or seen
/// twice, a batch at most.
#[test]
fn counts_are_read_meanwhile() {
    let frames = stack_at(1, 0, 2, 0);
    // By what was read, in all executions.
    let seen = std::sync::Arc::new([const { AtomicU32::new(0) }; 2]);
    let all = std::sync::Arc::clone(&seen);
    exhaustively("counts_are_read_meanwhile", move || {
        let map = map(1, 1);
        let id = super::id(&map, 0, frames);
        let other = spawn(&map, move |map| {
            for _ in 0..2 {
                super::id(map, 0, frames);
            }
        });
        let refs = read(&map, id).map_or(0, |(_, refs)| refs);
        let hits = map.total(MapCounter::Hits);
        all[0].fetch_or(1 << refs, Ordering::Relaxed);
        all[1].fetch_or(1 << hits, Ordering::Relaxed);
        other.join();
        assert_eq!(map.total(MapCounter::Hits), 2);
        settle(&map);
    });
    let [refs, hits] = [&seen[0], &seen[1]].map(|seen| seen.load(Ordering::Relaxed));
    // Of one to three references, in batches of two: the third event moves two of them.
    assert_eq!(refs, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4, "{refs:#b}");
    assert_eq!(hits, 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3, "{hits:#b}");
}

/// A hot stack is no bottleneck: of its hits only one in a batch changes a word that others change.
#[test]
fn hits_write_nothing_that_is_shared() {
    let frames = stack_at(1, 0, 2, 0);
    exhaustively("hits_write_nothing_that_is_shared", move || {
        let map = map(1, 2);
        id(&map, 0, frames);
        let hits = |map: &Map, context| {
            let before = model::swaps();
            for _ in 0..3 {
                id(map, context, frames);
            }
            model::swaps() - before
        };
        let other = spawn(&map, move |map| hits(map, 1));
        // A batch is two, one of which the insert has begun.
        assert_eq!((hits(&map, 0), other.join()), (1, 1));
        settle(&map);
    });
}

/// References saturate: in the record, beside it, and when two CPUs reach the end at once.
#[test]
fn references_saturate() {
    let frames = stack_at(1, 0, 1, 0);
    exhaustively("references_saturate", move || {
        let map = map(1, 2);
        let stack = id(&map, 0, frames);
        // The most that a model counts is 8.
        for refs in 2..7 {
            id(&map, 0, frames);
            assert_eq!(read(&map, stack), Some((frames.to_vec(), refs)));
        }
        let events = move |map: &Map, context| {
            for _ in 0..5 {
                id(map, context, frames);
            }
        };
        let other = spawn(&map, move |map| events(map, 1));
        events(&map, 0);
        other.join();
        assert_eq!(read(&map, stack), Some((frames.to_vec(), 8)));
        assert_eq!(map.total(MapCounter::Hits), 15);
    });
}

/// P2: what a hit takes: the generation, the slot, the chunk, the frames, and two for the reference.
#[test]
fn a_hit_takes_few_steps() {
    let frames = stack_at(1, 2, 2, 0);
    exhaustively("a_hit_takes_few_steps", move || {
        let map = map(1, 1);
        id(&map, 0, frames);
        let before = model::steps();
        id(&map, 0, frames);
        assert_eq!(model::steps() - before, frames.len() + 5);
    });
}

/// Two stacks whose references are batched in one set do not evict each other.
#[test]
fn two_stacks_in_one_set_write_nothing_that_is_shared() {
    // Not slot 0, whose references fit into an empty entry.
    let stacks = [2, 4].map(|home| stack_at(2, home, 1, 0));
    exhaustively(
        "two_stacks_in_one_set_write_nothing_that_is_shared",
        move || {
            let map = map(2, 1);
            for frames in stacks {
                id(&map, 0, frames);
            }
            let before = model::swaps();
            for frames in stacks {
                id(&map, 0, frames);
            }
            assert_eq!(model::swaps(), before);
            settle(&map);
        },
    );
}

/// Some of the stacks that alternate stay in a set that is too small for all of them.
#[test]
fn three_stacks_by_turns_are_not_all_driven_out() {
    let stacks = [0, 2, 4].map(|home| stack_at(2, home, 1, 0));
    exhaustively("three_stacks_by_turns_are_not_all_driven_out", move || {
        let map = map(2, 1);
        for frames in stacks {
            id(&map, 0, frames);
        }
        let before = model::swaps();
        for frames in stacks.iter().cycle().take(18) {
            id(&map, 0, frames);
        }
        // One of three stays.
        assert_eq!(model::swaps() - before, 12);
        settle(&map);
    });
}

/// A stack that comes again and again gets into a full set.
#[test]
fn a_stack_that_stays_gets_into_a_full_set() {
    let stacks = [0, 2, 4].map(|home| stack_at(2, home, 1, 0));
    exhaustively("a_stack_that_stays_gets_into_a_full_set", move || {
        let map = map(2, 1);
        // The third drives the first one out.
        for frames in stacks {
            id(&map, 0, frames);
        }
        let before = model::swaps();
        for _ in 0..4 {
            id(&map, 0, stacks[0]);
        }
        // It is counted in the map, then takes the place of another one, and has a batch of two.
        assert_eq!(model::swaps() - before, 3);
        settle(&map);
    });
}

/// Saturated references are not added to, however many hits come: they cannot wrap.
#[test]
fn references_that_have_saturated_stay() {
    let frames = stack_at(1, 0, 1, 0);
    exhaustively("references_that_have_saturated_stay", move || {
        let map = map(1, 1);
        let stack = id(&map, 0, frames);
        // The most that a model counts is 8, and a context holds back two.
        for _ in 1..9 {
            id(&map, 0, frames);
        }
        assert_eq!(read(&map, stack), Some((frames.to_vec(), 8)));
        let before = model::swaps();
        for _ in 0..9 {
            id(&map, 0, frames);
        }
        assert_eq!(model::swaps(), before);
        assert_eq!(read(&map, stack), Some((frames.to_vec(), 8)));
    });
}

/// P2: a slot that holds another stack of the same depth takes one step: its frames are not compared.
#[test]
fn a_probe_takes_one_step() {
    let stacks = [0, 1].map(|n| stack_at(1, 2, 2, n));
    exhaustively("a_probe_takes_one_step", move || {
        let map = map(1, 1);
        let hit = stacks.map(|frames| {
            id(&map, 0, frames);
            let before = model::steps();
            id(&map, 0, frames);
            model::steps() - before
        });
        assert_eq!(hit[1], hit[0] + 1);
    });
}
