// SPDX-License-Identifier: GPL-2.0

//! What resets leave, and what an export has of it.

#![cfg(not(loom))]

mod maps;

use maps::*;
use stackmap_map::{Fallback, Map, MapCounter, ReadSide, MAX_FRAMES};
use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

#[test]
fn after_a_reset_old_ids_resolve_to_nothing() {
    let map = map(10, 1);
    let mut old = HashSet::new();
    for round in 0..1200 {
        let id = record(&map, 0, &stack(round % 3, 20)).unwrap();
        assert!(old.insert(id), "an id was used again after {round} resets");
        map.reset().unwrap();
        assert_eq!((map.entries(), map.total(MapCounter::Inserts)), (0, 0));
        assert_eq!(read(&map, id), None);
    }
}

#[test]
fn the_largest_map_recognises_stale_ids_for_1022_resets() {
    let map = map(20, 1);
    let first = record(&map, 0, &stack(0, 8)).unwrap();
    for resets in 1..=1024 {
        map.reset().unwrap();
        let id = record(&map, 0, &stack(0, 8)).unwrap();
        assert!(i32::try_from(id.get()).is_ok());
        // There are 1,023 generations: then the first one is used again.
        assert_eq!(id == first, resets == 1023);
        assert_eq!(read(&map, first).is_some(), resets == 1023);
    }
}

#[test]
fn resets_of_an_empty_map_make_no_stale_id_valid() {
    let map = map(20, 1);
    let first = record(&map, 0, &stack(0, 8)).unwrap();
    // As many resets as there are generations.
    for _ in 0..1023 {
        map.reset().unwrap();
    }
    assert_eq!(read(&map, first), None);
    let second = record(&map, 0, &stack(0, 8)).unwrap();
    assert_ne!(second, first);
    map.reset().unwrap();
    assert_eq!((read(&map, first), read(&map, second)), (None, None));
}

#[test]
fn a_reset_of_an_empty_map_clears_counters() {
    let map = map(10, 1);
    let too_deep = record(&map, 0, &stack(0, MAX_FRAMES + 1));
    assert_eq!(too_deep, Err(Fallback::PoolFull));
    {
        let section = ReadSide::enter();
        // SAFETY: The only thread; inside a read-side section.
        unsafe { map.enter(section.inside(), 0) }.add(MapCounter::DropPool, 1);
    }
    assert_eq!((map.entries(), map.total(MapCounter::DropPool)), (0, 1));
    map.reset().unwrap();
    assert_eq!(map.total(MapCounter::DropPool), 0);
}

#[test]
fn an_export_of_an_empty_map_outlives_its_reset() {
    let map = map(10, 1);
    let snapshot = map.snapshot().unwrap();
    map.reset().unwrap();
    record(&map, 0, &stack(0, 20)).unwrap();
    // It is as empty as it was when it began.
    assert_eq!(map.count(&snapshot), Ok(0));
    assert_eq!(map.next(&snapshot, 0, &mut [0; MAX_FRAMES]), Ok(None));
    map.reset().unwrap();
    assert!(map.count(&snapshot).is_err());
}

#[test]
fn an_export_that_overlaps_a_reset_is_stale() {
    let map = map(10, 1);
    record(&map, 0, &stack(0, 20)).unwrap();
    let snapshot = map.snapshot().unwrap();
    map.reset().unwrap();
    record(&map, 0, &stack(0, 20)).unwrap();
    assert!(map.next(&snapshot, 0, &mut [0; MAX_FRAMES]).is_err());
    assert!(map.count(&snapshot).is_err());
}

#[test]
fn an_export_that_has_read_the_last_slot_has_read_all() {
    let map = map(10, 1);
    let last = map.table_size() as u64 - 1;
    let frames = (0..).map(|number| stack(number, 20));
    let at_last = frames
        .into_iter()
        .find(|frames| SEED.hash(frames) & last == last);
    let id = record(&map, 0, &at_last.unwrap()).unwrap();
    let snapshot = map.snapshot().unwrap();
    let mut buffer = [0; MAX_FRAMES];
    let stack = map.next(&snapshot, 0, &mut buffer).unwrap().unwrap();
    assert_eq!((stack.id, u64::from(stack.next())), (id, last + 1));
    map.reset().unwrap();
    assert_eq!(map.next(&snapshot, stack.next(), &mut buffer), Ok(None));
    assert!(map.next(&snapshot, 0, &mut buffer).is_err());
}

#[test]
fn an_export_holds_what_was_there_when_it_began() {
    let map = map(14, 1);
    for number in 0..500 {
        record(&map, 0, &stack(number, 20)).unwrap();
    }
    let snapshot = map.snapshot().unwrap();
    for number in 500..1000 {
        record(&map, 0, &stack(number, 20)).unwrap();
    }
    assert_eq!(map.count(&snapshot), Ok(500));
    assert_eq!(export(&map).len(), 1000);
}

#[test]
fn a_stack_is_read_in_place_and_knows_its_snapshot() {
    let map = map(10, 1);
    let inserted = |number| {
        let frames = stack(number, 20);
        let id = record(&map, 0, &frames).unwrap();
        let (inserted, read) = map
            .read(id, |inserted, record| {
                (inserted, record.frames().collect::<Vec<_>>())
            })
            .unwrap();
        assert_eq!(read, frames);
        (id, inserted)
    };
    let (first, before) = inserted(1);
    let snapshot = map.snapshot().unwrap();
    let (_, after) = inserted(2);
    assert!(snapshot.includes(before) && !snapshot.includes(after));
    assert!(map.snapshot().unwrap().includes(after));
    assert!(map.has(before) && map.has(after));
    map.reset().unwrap();
    assert!(!map.has(before));
    assert_eq!(map.read(first, |_, _| ()), None);
    let (_, later) = inserted(1);
    assert!(map.has(later) && !map.has(after));
    assert!(!snapshot.includes(later));
    let snapshot = map.snapshot().unwrap();
    assert!(snapshot.includes(later) && !snapshot.includes(before));
}

#[test]
fn snapshots_and_resets_wait_for_sections_that_began_before() {
    let map = map(10, 1);
    let operations: [fn(&Map); 2] = [
        |map| assert!(map.snapshot().is_ok()),
        |map| map.reset().unwrap(),
    ];
    for operation in operations {
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let section = ReadSide::enter();
            scope.spawn(|| {
                operation(&map);
                has_ended.store(true, Ordering::Relaxed);
            });
            // Time enough for one that does not wait.
            std::thread::sleep(Duration::from_millis(200));
            assert!(!has_ended.load(Ordering::Relaxed));
            drop(section);
        });
        assert!(has_ended.load(Ordering::Relaxed));
    }
}
