// SPDX-License-Identifier: GPL-2.0

//! Exports against inserts and resets: the snapshot and its grace period.

use super::*;
use stackmap_map::MapError;

/// A snapshot holds the stacks of its beginning and does not change while others insert.
#[test]
fn a_snapshot_is_fixed() {
    let (old, new) = (stack_at(1, 0, 1, 0), stack_at(1, 2, 1, 0));
    exhaustively("a_snapshot_is_fixed", move || {
        let map = map(1, 2);
        let old_id = id(&map, 0, old);
        let writer = spawn(&map, move |map| id(map, 1, new));
        let snapshot = map.snapshot().unwrap();
        let counted = map.count(&snapshot).unwrap();
        let mut buffer = [0; MAX_FRAMES];
        let (mut walked, mut from) = (Vec::new(), 0);
        while let Some(stack) = map.next(&snapshot, from, &mut buffer).unwrap() {
            from = stack.next();
            walked.push((stack.id, buffer[..stack.nr].to_vec()));
        }
        assert_eq!(walked.len(), counted as usize, "count and walk disagree");
        assert!(walked.contains(&(old_id, old.to_vec())));
        writer.join();
        assert_eq!(
            map.count(&snapshot),
            Ok(counted),
            "the snapshot has changed"
        );
        assert_eq!(settle(&map).len(), 2);
    });
}

/// O1 for walks, with two stacks that come meanwhile.
#[test]
fn a_walk_beside_inserts() {
    let (one, two) = (stack_at(1, 0, 2, 0), stack_at(1, 0, 1, 0));
    exhaustively("a_walk_beside_inserts", move || {
        let map = map(1, 1);
        let writer = spawn(&map, move |map| (id(map, 0, one), id(map, 0, two)));
        let seen = export(&map);
        let (one_id, two_id) = writer.join();
        for (id, frames, _) in seen {
            let expected = if id == one_id { one } else { two };
            assert!(id == one_id || id == two_id);
            assert_eq!(frames, expected);
        }
    });
}

/// An export that a reset overtakes says so; what it gave before was right.
#[test]
fn an_export_beside_a_reset() {
    let frames = stack_at(1, 0, 1, 0);
    exhaustively("an_export_beside_a_reset", move || {
        let map = map(1, 1);
        let id = id(&map, 0, frames);
        let reader = spawn(&map, move |map| {
            let Ok(snapshot) = map.snapshot() else { return };
            let mut buffer = [0; MAX_FRAMES];
            let next = map.next(&snapshot, 0, &mut buffer);
            if let Ok(Some(stack)) = &next {
                assert_eq!((stack.id, &buffer[..stack.nr]), (id, frames));
            }
            match (next, map.count(&snapshot)) {
                // A snapshot that begins after the reset is empty.
                (Ok(stack), Ok(count)) => assert_eq!(count, u32::from(stack.is_some())),
                (Err(_), Ok(_)) => panic!("what is stale stays so"),
                (_, Err(error)) => assert_eq!(error, MapError::Stale),
            }
        });
        map.reset().unwrap();
        reader.join();
    });
}

/// An export of an empty map goes on after a reset, and stays empty.
#[test]
fn an_export_beside_the_reset_of_an_empty_map() {
    let frames = stack_at(1, 0, 1, 0);
    exhaustively("an_export_beside_the_reset_of_an_empty_map", move || {
        let map = map(1, 1);
        let snapshot = map.snapshot().unwrap();
        let reader = spawn(&map, move |map| {
            (map.count(&snapshot), map.count(&snapshot))
        });
        map.reset().unwrap();
        id(&map, 0, frames);
        let (first, second) = reader.join();
        for count in [first, second] {
            // Stale only while the reset runs.
            assert!(matches!(count, Ok(0) | Err(MapError::Stale)), "{count:?}");
        }
        assert_eq!(map.count(&snapshot), Ok(0));
    });
}

/// P5: a lookup takes as many steps in a full map as in one with a single stack.
#[test]
fn a_lookup_takes_as_few_steps_at_any_load() {
    exhaustively("a_lookup_takes_as_few_steps_at_any_load", || {
        let map = map(2, 1);
        let insert = |home| id(&map, 0, stack_at(2, home, 2, 0));
        let steps_of = |id| {
            let before = model::steps();
            assert!(read(&map, id).is_some());
            model::steps() - before
        };
        let alone = steps_of(insert(0));
        let [.., last] = [2, 4, 6].map(insert);
        assert_eq!(steps_of(last), alone);
    });
}
