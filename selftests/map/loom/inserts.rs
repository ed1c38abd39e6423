// SPDX-License-Identifier: GPL-2.0

//! Inserts against each other: O1, the same stack, the same slot, the last entry.

use super::*;

/// Prepares two inserts of at most two frames that do not meet at the pool's cursor: context 1 has
/// a leftover, context 0 reserves. Two stacks take slots 5 and 7 of a map of four.
fn prepare_two_stacks(map: &Map) {
    id(map, 0, stack_at(2, 7, 3, 0));
    // Three words are left after it; they are not enough for this.
    id(map, 1, stack_at(2, 5, 4, 0));
    assert_eq!(map.leftover_bytes(), 3 * 8);
}

/// O1: a reader that sees the word of a slot sees the complete record.
#[test]
fn a_slot_is_empty_or_complete() {
    let frames = stack_at(1, 0, 3, 0);
    // The id that the stack will have.
    let id = first_id(1, 0);
    exhaustively("a_slot_is_empty_or_complete", move || {
        let map = map(1, 1);
        let writer = spawn(&map, move |map| super::id(map, 0, frames));
        if let Some((read, _)) = read(&map, id) {
            assert_eq!(read, frames);
        }
        assert_eq!(writer.join(), id);
        settle(&map);
    });
}

/// P1: two CPUs insert the same stack.
#[test]
fn one_stack_two_inserts_one_id() {
    let frames = stack_at(2, 0, 2, 0);
    exhaustively("one_stack_two_inserts_one_id", move || {
        let map = map(2, 2);
        prepare_two_stacks(&map);
        let other = spawn(&map, move |map| record(map, 1, frames).unwrap());
        let mine = record(&map, 0, frames).unwrap();
        let theirs = other.join();
        assert_eq!(mine.id, theirs.id);
        assert!(mine.inserted != theirs.inserted);
        let found = (mine.id, frames.to_vec(), 2);
        assert_eq!(settle(&map)[0], found);
    });
}

/// Two CPUs insert two stacks that want the same slot.
fn race_for_one_slot(name: &str, one: Frames, two: Frames) {
    exhaustively(name, move || {
        let map = map(2, 2);
        prepare_two_stacks(&map);
        let other = spawn(&map, move |map| id(map, 1, two));
        let mine = id(&map, 0, one);
        let theirs = other.join();
        assert_ne!(mine, theirs);
        for (context, frames, id) in [(0, two, theirs), (1, one, mine)] {
            assert_eq!(read(&map, id), Some((frames.to_vec(), 1)));
            assert_eq!(super::id(&map, context, frames), id);
            assert_eq!(read(&map, id), Some((frames.to_vec(), 2)));
        }
        settle(&map);
    });
}

/// P1 and O1: the loser of a swap compares with the winner's record.
#[test]
fn two_stacks_race_for_one_slot() {
    let (one, two) = (stack_at(2, 0, 2, 0), stack_at(2, 0, 2, 1));
    race_for_one_slot("two_stacks_race_for_one_slot", one, two);
}

/// P1: the hashes of two stacks are equal, and with them slot and fingerprint: the frames decide.
#[test]
fn two_stacks_of_one_hash() {
    let [one, two] = stacks_of_one_hash();
    race_for_one_slot("two_stacks_of_one_hash", one, two);
}

/// P1: two CPUs insert the same two stacks, which want the same slot, in both orders.
#[test]
fn two_stacks_in_two_orders() {
    let (one, two) = (stack_at(2, 0, 1, 0), stack_at(2, 0, 1, 1));
    bounded("two_stacks_in_two_orders", 1, Some(3), move || {
        let map = map(2, 2);
        let other = spawn(&map, move |map| {
            [two, one].map(|frames| id_unless_contended(map, 1, frames))
        });
        let [one_a, two_a] = [one, two].map(|frames| id_unless_contended(&map, 0, frames));
        let [two_b, one_b] = other.join();
        for (a, b) in [(one_a, one_b), (two_a, two_b)] {
            assert!(a.is_none() || b.is_none() || a == b);
        }
        assert_eq!(settle(&map).len(), 2);
    });
}

/// P1 among three CPUs, one of which inserts another stack into the same slots.
#[test]
fn three_inserts_two_stacks() {
    let (one, two) = (stack_at(2, 0, 1, 0), stack_at(2, 0, 1, 1));
    bounded("three_inserts_two_stacks", 0, Some(1), move || {
        let map = map(2, 3);
        let second = spawn(&map, move |map| id_unless_contended(map, 1, one));
        let third = spawn(&map, move |map| id_unless_contended(map, 2, two));
        let mine = id_unless_contended(&map, 0, one);
        let (second, third) = (second.join(), third.join());
        assert!(mine.is_none() || second.is_none() || mine == second);
        assert!(third.is_none() || third != mine && third != second);
        settle(&map);
    });
}

/// P3: of three stacks two get an entry; the third is refused because the map is full, for no other
/// reason.
#[test]
fn the_last_entry() {
    let stacks = [
        stack_at(1, 0, 1, 0),
        stack_at(1, 2, 1, 0),
        stack_at(1, 3, 1, 0),
    ];
    exhaustively("the_last_entry", move || {
        let map = map(1, 3);
        id(&map, 2, stacks[0]);
        let other = spawn(&map, move |map| {
            record(map, 1, stacks[1]).map(|found| found.id)
        });
        let mine = record(&map, 0, stacks[2]).map(|found| found.id);
        let theirs = other.join();
        for result in [mine, theirs] {
            assert!(matches!(result, Ok(_) | Err(Fallback::Full)));
        }
        assert!(mine.is_ok() || theirs.is_ok(), "P3: the entry was lost");
        assert!(
            mine.is_err() || theirs.is_err(),
            "P3: more stacks than entries"
        );
        assert_eq!(map.total(MapCounter::DropFull), 1);
        assert_eq!(settle(&map).len(), 2);
    });
}

/// P3: the probe limit is reached. The loser gives its entry and its record back.
#[test]
fn the_last_slot() {
    let (one, two) = (stack_at(2, 6, 1, 0), stack_at(2, 6, 1, 1));
    exhaustively("the_last_slot", move || {
        let map = map(2, 2);
        prepare_two_stacks(&map);
        let other = spawn(&map, move |map| record(map, 1, one).map(|found| found.id));
        let mine = record(&map, 0, two).map(|found| found.id);
        let theirs = other.join();
        assert!(mine.is_ok() != theirs.is_ok());
        assert_eq!(mine.and(theirs), Err(Fallback::ProbeLimit));
        assert_eq!(map.total(MapCounter::DropProbe), 1);
        assert_eq!(settle(&map).len(), 3);
    });
}

/// P3: what the loser of a race prepared is used for its next stack.
#[test]
fn a_losers_record_is_used_again() {
    let (one, two) = (stack_at(2, 2, 2, 0), stack_at(2, 0, 1, 0));
    exhaustively("a_losers_record_is_used_again", move || {
        let map = map(2, 2);
        prepare_two_stacks(&map);
        let other = spawn(&map, move |map| record(map, 1, one).unwrap());
        let mine = record(&map, 0, one).unwrap();
        other.join();
        let lost = map.leftover_bytes() != 0;
        let reserved = map.reserved_bytes();
        // The context of the loser, if there was one.
        let loser = usize::from(mine.inserted);
        assert!(record(&map, loser, two).unwrap().inserted);
        if lost {
            // Three words for the lost record, two for this one, one still to use.
            assert_eq!(map.reserved_bytes(), reserved);
            assert_eq!(map.leftover_bytes(), 8);
        }
        settle(&map);
    });
}
