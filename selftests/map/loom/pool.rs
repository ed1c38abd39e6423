// SPDX-License-Identifier: GPL-2.0

//! The pool's growth against reservations: O3, the bounded cursor, leftovers.

use super::*;

/// Fills both first chunks, except for rests that are too small for a record of four frames.
fn fill(map: &Map) {
    // 7 words are left of the first chunk, 8 in the second: a record of 5 in each.
    for home in 0..2 {
        id(map, 0, stack_at(2, 2 * home, 4, 1));
    }
}

/// Inserts a stack of four frames that fits only into the third chunk.
pub(super) fn in_third_chunk(map: &Map, frames: Frames) -> Id {
    fill(map);
    map.grow().unwrap();
    id(map, 0, frames)
}

/// O3: a context that sees the new limit sees the chunk.
#[test]
fn a_reservation_beside_growth() {
    let frames = stack_at(2, 5, 4, 0);
    exhaustively("a_reservation_beside_growth", move || {
        let map = map(2, 2);
        fill(&map);
        let grower = spawn(&map, |map| map.grow());
        match record(&map, 1, frames) {
            Ok(found) => assert_eq!(read(&map, found.id), Some((frames.to_vec(), 1))),
            Err(reason) => assert_eq!(reason, Fallback::Growing),
        }
        grower.join().unwrap();
        let id = id(&map, 1, frames);
        assert_eq!(read(&map, id).unwrap().0, frames);
        settle(&map);
    });
}

/// O3 through O1: a third CPU reads from a chunk that only the inserting CPU saw come.
#[test]
fn a_record_in_a_new_chunk() {
    let frames = stack_at(2, 5, 4, 0);
    let id = first_id(2, 5);
    bounded("a_record_in_a_new_chunk", 1, Some(2), move || {
        let map = map(2, 2);
        fill(&map);
        let grower = spawn(&map, |map| map.grow());
        let writer = spawn(&map, move |map| record(map, 1, frames));
        if let Some((read, _)) = read(&map, id) {
            assert_eq!(read, frames);
        }
        grower.join().unwrap();
        match writer.join() {
            Ok(found) => assert_eq!(found.id, id),
            Err(reason) => assert_eq!(reason, Fallback::Growing),
        }
        settle(&map);
    });
}

/// Whether to grow may be asked at any time, also when the cursor is seen beyond the limit.
#[test]
fn wanting_growth_beside_growth() {
    let frames = stack_at(2, 5, 4, 0);
    let answers = std::sync::Arc::new(AtomicU32::new(0));
    let all = std::sync::Arc::clone(&answers);
    exhaustively("wanting_growth_beside_growth", move || {
        let map = map(2, 2);
        fill(&map);
        let asker = spawn(&map, |map| {
            let wants = map.wants_growth();
            (wants, map.pool_bytes() == 2 * 64)
        });
        map.grow().unwrap();
        id(&map, 1, frames);
        let (wants, not_grown) = asker.join();
        assert!(wants || !not_grown, "a full pool wants to grow");
        all.fetch_or(1 << u32::from(wants), Ordering::Relaxed);
        // The record has taken five of the eight new words.
        assert!(map.wants_growth());
        settle(&map);
    });
    // Between the growth and the record it does not.
    assert_eq!(answers.load(Ordering::Relaxed), 0b11);
}

/// P2 and P3: who loses the cursor too often is refused, and keeps nothing.
#[test]
fn a_contended_cursor() {
    let one = [stack_at(2, 0, 1, 0), stack_at(2, 2, 1, 0)];
    let two = stack_at(2, 4, 1, 0);
    bounded("a_contended_cursor", 3, None, move || {
        let map = map(2, 2);
        let other = spawn(&map, move |map| {
            one.map(|frames| record(map, 1, frames).is_ok())
        });
        let mine = record(&map, 0, two);
        let theirs = other.join();
        if let Err(reason) = mine {
            assert_eq!(reason, Fallback::Contended);
            assert_eq!(theirs, [true, true]);
            assert_eq!(map.total(MapCounter::DropContended), 1);
        }
        settle(&map);
        assert!(record(&map, 0, two).is_ok());
    });
}

/// The rest of a chunk that a reservation skips becomes a leftover, whichever context skips it.
#[test]
fn the_end_of_a_chunk_beside_a_reservation() {
    let (one, two) = (stack_at(2, 0, 4, 0), stack_at(2, 2, 2, 0));
    exhaustively("the_end_of_a_chunk_beside_a_reservation", move || {
        let map = map(2, 2);
        id(&map, 0, stack_at(2, 5, 2, 0));
        let other = spawn(&map, move |map| id(map, 1, two));
        let mine = id(&map, 0, one);
        assert_eq!(read(&map, mine), Some((one.to_vec(), 1)));
        assert_eq!(read(&map, other.join()), Some((two.to_vec(), 1)));
        settle(&map);
    });
}

/// P6: of two leftovers the larger one is kept, and the other one is lost.
#[test]
fn the_larger_spare_is_kept() {
    exhaustively("the_larger_spare_is_kept", || {
        let map = map(4, 1);
        // Of the first chunk two words are left, of the second three.
        id(&map, 0, stack_at(4, 0, 4, 0));
        for (home, leftover, reserved) in [(2, 2, 12), (4, 3, 20), (6, 3, 28)] {
            while map.wants_growth() {
                map.grow().unwrap();
            }
            id(&map, 0, stack_at(4, home, 4, 0));
            assert_eq!(
                (map.leftover_bytes(), map.reserved_bytes()),
                (leftover * 8, reserved * 8)
            );
        }
        // It is used: the pool gives nothing.
        id(&map, 0, stack_at(4, 8, 2, 0));
        assert_eq!((map.leftover_bytes(), map.reserved_bytes()), (0, 28 * 8));
    });
}
