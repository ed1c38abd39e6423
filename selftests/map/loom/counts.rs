// SPDX-License-Identifier: GPL-2.0

//! References and counters: P7.

use super::*;

/// References that several contexts hold back and move at the same time all arrive.
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
        assert_eq!(map.total(Counter::Hits), 5);
    });
}

/// Stacks that replace each other's memo in a context lose no reference.
#[test]
fn references_of_two_stacks_in_one_place() {
    let (one, two) = (stack_at(2, 0, 1, 0), stack_at(2, 2, 1, 0));
    exhaustively("references_of_two_stacks_in_one_place", move || {
        let map = map(2, 3);
        for frames in [one, two] {
            id(&map, 2, frames);
        }
        let events = move |map: &Map, context| {
            for frames in [one, two, one] {
                id(map, context, frames);
            }
        };
        let other = spawn(&map, move |map| events(map, 1));
        events(&map, 0);
        other.join();
        let mut refs: Vec<u32> = settle(&map).iter().map(|(_, _, refs)| *refs).collect();
        refs.sort_unstable();
        assert_eq!(refs, [3, 5]);
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
        let hits = map.total(Counter::Hits);
        all[0].fetch_or(1 << refs, Ordering::Relaxed);
        all[1].fetch_or(1 << hits, Ordering::Relaxed);
        other.join();
        assert_eq!(map.total(Counter::Hits), 2);
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
        assert_eq!(map.total(Counter::Hits), 15);
    });
}

/// P2: a hit that the context remembers is not searched for.
#[test]
fn a_remembered_hit_takes_few_steps() {
    let frames = stack_at(1, 2, 2, 0);
    exhaustively("a_remembered_hit_takes_few_steps", move || {
        let map = map(1, 1);
        id(&map, 0, frames);
        let before = model::steps();
        id(&map, 0, frames);
        assert_eq!(model::steps() - before, frames.len() + 6);
    });
}

/// A stack keeps its memo in a context while others use other memos.
#[test]
fn a_context_remembers_more_than_one_stack() {
    let first = stack_at(3, 0, 3, 0);
    let others: [_; 6] = core::array::from_fn(|n| stack_at(3, 2 * n as u64 + 2, 3, 0));
    exhaustively("a_context_remembers_more_than_one_stack", move || {
        let kept = others.iter().filter(|other| {
            let map = map(3, 1);
            id(&map, 0, first);
            id(&map, 0, other);
            let before = model::steps();
            id(&map, 0, first);
            model::steps() - before == first.len() + 6
        });
        // A model has two memos.
        assert!((1..others.len()).contains(&kept.count()));
    });
}
