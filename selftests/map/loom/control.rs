// SPDX-License-Identifier: GPL-2.0

//! Control operations against each other: O4.

use super::*;
use stackmap_map::MapError;

/// O4: of two growths the second sees what the first did.
#[test]
fn two_growths() {
    let frames = stack_at(2, 5, 4, 0);
    exhaustively("two_growths", move || {
        let map = map(2, 2);
        for home in 0..2 {
            id(&map, 0, stack_at(2, 2 * home, 4, 1));
        }
        let other = spawn(&map, |map| map.grow());
        let mine = map.grow();
        // A record in the new chunk would be lost if the chunk were put in twice.
        let found = record(&map, 1, frames);
        let theirs = other.join();
        assert!(mine.is_ok() || theirs.is_ok());
        for result in [mine, theirs] {
            assert!(matches!(result, Ok(()) | Err(MapError::Busy)));
        }
        // One more chunk, or two if the second was added after the record.
        assert!((3 * 64..=4 * 64).contains(&map.pool_bytes()));
        if let Ok(found) = found {
            assert_eq!(read(&map, found.id), Some((frames.to_vec(), 1)));
        }
        settle(&map);
    });
}

/// O4: a growth and a reset, in either order, leave a usable map.
#[test]
fn growth_beside_a_reset() {
    let frames = stack_at(2, 5, 4, 0);
    exhaustively("growth_beside_a_reset", move || {
        let map = map(2, 1);
        for home in 0..2 {
            id(&map, 0, stack_at(2, 2 * home, 4, 1));
        }
        let other = spawn(&map, |map| map.grow());
        let reset = map.reset();
        let growth = other.join();
        assert!(reset.is_ok() || growth.is_ok());
        assert_eq!(map.entries(), if reset.is_ok() { 0 } else { 2 });
        if reset.is_ok() {
            // The growth ran before and was undone, or after and had nothing to do.
            assert_eq!(map.pool_bytes(), 2 * 64);
        }
        let id = id(&map, 0, frames);
        assert_eq!(read(&map, id), Some((frames.to_vec(), 1)));
        // The leftover of the end of one chunk was replaced by that of another.
        settle_but(&map, 2);
    });
}

/// O4: of two resets each one removes everything, and the second sees the first one's generation.
#[test]
fn two_resets() {
    let frames = stack_at(1, 0, 1, 0);
    exhaustively("two_resets", move || {
        let map = map(1, 1);
        let first = id(&map, 0, frames);
        let other = spawn(&map, |map| map.reset());
        let mine = map.reset();
        let between = record(&map, 0, frames);
        let theirs = other.join();
        assert!(mine.is_ok() || theirs.is_ok());
        let last = record(&map, 0, frames).unwrap();
        assert_ne!(last.id, first);
        match between {
            // The other reset ran after it.
            Ok(found) if last.inserted => assert_ne!(last.id, found.id),
            Ok(found) => assert_eq!(last.id, found.id),
            Err(reason) => assert_eq!(reason, Fallback::Resetting),
        }
        settle(&map);
    });
}
