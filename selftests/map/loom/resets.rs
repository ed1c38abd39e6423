// SPDX-License-Identifier: GPL-2.0

//! Resets against recording and reading: O2 and the grace period.

use super::*;

/// O2: a context that sees the new generation sees the empty table.
#[test]
fn an_insert_beside_a_reset() {
    let frames = stack_at(1, 0, 2, 0);
    exhaustively("an_insert_beside_a_reset", move || {
        let map = map(1, 2);
        let old = id(&map, 0, frames);
        let other = spawn(&map, move |map| record(map, 1, frames));
        map.reset().unwrap();
        let during = other.join();
        match during {
            Ok(found) if found.id == old => assert!(!found.inserted),
            Ok(found) => assert!(found.inserted, "O2: found what the reset removed"),
            Err(reason) => assert_eq!(reason, Fallback::Resetting),
        }
        assert_eq!(read(&map, old), None);
        let kept = during.is_ok_and(|found| found.id != old);
        assert_eq!(map.entries(), u32::from(kept));
        assert!(map.total(MapCounter::DropReset) <= u64::from(during.is_err()));
        settle(&map);
    });
}

/// A reset keeps the generation of a map only if no id of it was given out.
#[test]
fn an_insert_beside_the_reset_of_an_empty_map() {
    let (one, two) = (stack_at(1, 0, 1, 0), stack_at(1, 0, 1, 1));
    exhaustively("an_insert_beside_the_reset_of_an_empty_map", move || {
        let map = map(1, 2);
        let other = spawn(&map, move |map| record(map, 1, one));
        map.reset().unwrap();
        let during = other.join();
        let kept = settle(&map);
        match during {
            Ok(found) if kept.is_empty() => assert_eq!(read(&map, found.id), None),
            Ok(found) => assert_eq!(kept, [(found.id, one.to_vec(), 1)]),
            Err(reason) => assert_eq!(reason, Fallback::Resetting),
        }
        // It takes the same slot if that is empty.
        let later = id(&map, 0, two);
        let generation_kept = later == first_id(1, 0) || !kept.is_empty();
        assert_eq!(generation_kept, during.is_err() || !kept.is_empty());
        assert!(during.is_err() || during.is_ok_and(|found| found.id != later));
    });
}

/// O2 for a context that holds back references to the stack: the reset takes them.
#[test]
fn held_references_beside_a_reset() {
    let frames = stack_at(1, 0, 2, 0);
    exhaustively("held_references_beside_a_reset", move || {
        let map = map(1, 2);
        let old = id(&map, 1, frames);
        let other = spawn(&map, move |map| record(map, 1, frames));
        map.reset().unwrap();
        if let Ok(found) = other.join() {
            assert_eq!(found.inserted, found.id != old);
        }
        settle(&map);
    });
}

/// P5: an id is resolved to its stack or to nothing.
#[test]
fn a_lookup_beside_a_reset() {
    let frames = stack_at(1, 0, 2, 0);
    // The same slot in the first two generations.
    let old = first_id(1, 0);
    let new = Id::from_raw(old.get() + (1 << 2));
    exhaustively("a_lookup_beside_a_reset", move || {
        let map = map(1, 1);
        assert_eq!(id(&map, 0, frames), old);
        let reader = spawn(&map, move |map| (read(map, old), read(map, new)));
        map.reset().unwrap();
        let (found, newer) = reader.join();
        assert!(found.is_none_or(|(read, _)| read == frames));
        assert_eq!(newer, None, "O2: the new generation has no stack yet");
    });
}

/// The grace period: a reset frees no chunk that is being read or written.
#[test]
fn a_chunk_goes_when_nobody_uses_it() {
    let far = stack_at(2, 3, 4, 0);
    exhaustively("a_chunk_goes_when_nobody_uses_it", move || {
        let map = map(2, 2);
        let id = pool::in_third_chunk(&map, far);
        let reader = spawn(&map, move |map| (read(map, id), record(map, 1, far)));
        map.reset().unwrap();
        let (found, _) = reader.join();
        assert!(found.is_none_or(|(read, _)| read == far));
        assert_eq!(map.pool_bytes(), 2 * 64);
        settle(&map);
    });
}

/// The grace period, for who reads a stack where it is.
#[test]
fn a_chunk_that_is_read_in_place() {
    let far = stack_at(2, 3, 4, 0);
    exhaustively("a_chunk_that_is_read_in_place", move || {
        let map = map(2, 1);
        let id = pool::in_third_chunk(&map, far);
        let reader = spawn(&map, move |map| {
            map.read(id, |_, record| record.frames().collect::<Vec<_>>())
        });
        map.reset().unwrap();
        assert!(reader.join().is_none_or(|frames| frames == far));
    });
}

/// The grace period, for exports.
#[test]
fn a_chunk_that_an_export_reads() {
    let far = stack_at(2, 3, 4, 0);
    exhaustively("a_chunk_that_an_export_reads", move || {
        let map = map(2, 1);
        pool::in_third_chunk(&map, far);
        let snapshot = map.snapshot().unwrap();
        let reader = spawn(&map, move |map| {
            let mut buffer = [0; MAX_FRAMES];
            // After the other two.
            let found = map.next(&snapshot, 3, &mut buffer);
            found.map(|stack| buffer[..stack.expect("the snapshot has it").nr].to_vec())
        });
        map.reset().unwrap();
        let found = reader.join();
        assert!(found.is_err() || found.is_ok_and(|frames| frames == far));
    });
}

/// P7: stacks turned away during a reset are counted once, before or after it.
#[test]
fn counts_beside_a_reset() {
    let frames = stack_at(1, 0, 1, 0);
    exhaustively("counts_beside_a_reset", move || {
        let map = map(1, 2);
        let other = spawn(&map, move |map| {
            [record(map, 1, frames), record(map, 1, frames)]
        });
        map.reset().unwrap();
        let results = other.join();
        let kept = |found: &&Lookup| read(&map, found.id).is_some();
        let ok = results.iter().flatten().filter(kept).count();
        let refused = results.iter().filter(|result| result.is_err()).count();
        let successes = map.total(MapCounter::Hits) + map.total(MapCounter::Inserts);
        assert_eq!(successes, ok as u64);
        assert!(map.total(MapCounter::DropReset) <= refused as u64);
        // A second reset, with no other context running, leaves nothing.
        map.reset().unwrap();
        for counter in MapCounter::ALL {
            assert_eq!(map.total(counter), 0);
        }
        settle(&map);
    });
}

/// A reset between two who insert: three threads.
#[test]
fn two_inserts_during_a_reset() {
    let frames = stack_at(1, 0, 1, 0);
    bounded("two_inserts_during_a_reset", 1, Some(2), move || {
        let map = map(1, 2);
        let one = spawn(&map, move |map| record(map, 0, frames));
        let two = spawn(&map, move |map| record(map, 1, frames));
        map.reset().unwrap();
        let (one, two) = (one.join(), two.join());
        if let (Ok(one), Ok(two)) = (one, two) {
            let same = one.id == two.id;
            assert_eq!(same, one.inserted != two.inserted);
        }
        settle(&map);
    });
}
