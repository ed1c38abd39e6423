// SPDX-License-Identifier: GPL-2.0

//! The map's behaviour as its callers see it, on the host.

#![cfg(not(loom))]

mod maps;

use maps::*;
use stackmap_map::{
    record_bytes, Fallback, Id, Map, MapCounter, ReadSide, Seed, CONTEXTS_MAX, MAX_FRAMES,
    PROBE_LIMIT,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::{HashMap, HashSet},
};

thread_local! {
    /// Bytes that this thread has allocated, less those that it has freed.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// The allocator of these tests, which counts.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: It is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get().wrapping_add(layout.size()));
        // SAFETY: As required of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED.set(ALLOCATED.get().wrapping_sub(layout.size()));
        // SAFETY: As required of the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Finds a stack as one event of the context `index`.
fn find(map: &Map, index: usize, frames: &[u64]) -> Option<Id> {
    let section = ReadSide::enter();
    // SAFETY: As in `get_id`.
    let guard = unsafe { map.enter(section.inside(), index) };
    guard.find(frames).map(|found| found.id)
}

#[test]
fn a_stack_that_is_only_looked_for_is_not_inserted() {
    let map = map(10, 2);
    for depth in [1, 2, 17] {
        let (known, new) = (stack(1, depth), stack(2, depth));
        let before = map.entries();
        assert_eq!(find(&map, 0, &known), None);
        assert_eq!(map.entries(), before);
        let id = record(&map, 0, &known).unwrap();
        assert_eq!(find(&map, 0, &known), Some(id));
        assert_eq!(find(&map, 1, &known), Some(id));
        assert_eq!(find(&map, 0, &new), None);
        assert_eq!(read(&map, id), Some((known, 3)));
    }
    assert_eq!(map.total(MapCounter::Hits), 6);
    map.reset().unwrap();
    assert_eq!(find(&map, 0, &stack(1, 17)), None);
}

#[test]
fn a_stack_has_one_id_and_reads_back() {
    let map = map(10, 1);
    for depth in [0, 1, 2, 3, 4, 17, 100, 101, 255, 513, MAX_FRAMES] {
        let frames = stack(7, depth);
        let id = record(&map, 0, &frames).unwrap();
        assert!(id.get() > 0 && i32::try_from(id.get()).is_ok());
        assert_eq!(record(&map, 0, &frames), Ok(id));
        assert_eq!(read(&map, id), Some((frames, 2)));
    }
}

#[test]
fn stacks_that_differ_in_one_frame_have_two_ids() {
    let map = map(10, 1);
    let mut ids = HashSet::new();
    for position in 0..200 {
        let mut frames = stack(0, 200);
        frames[position] ^= 1;
        ids.insert(record(&map, 0, &frames).unwrap());
    }
    let shorter = &stack(0, 200)[..199];
    ids.insert(record(&map, 0, shorter).unwrap());
    ids.insert(record(&map, 0, &stack(0, 200)).unwrap());
    assert_eq!(ids.len(), 202);
}

#[test]
fn stacks_of_one_hash_have_ids_of_their_own() {
    // The first frame of a pair that is equal to the second word of the seed makes the hash 0.
    let first = 0xbb67_ae85_84ca_a73b;
    let seed = Seed::new([0, 0]);
    assert_eq!((seed.hash(&[first, 1]), seed.hash(&[first, 2])), (0, 0));
    let map = Map::new(10, 2, seed).expect("memory for a map");
    let mut ids = HashMap::new();
    for second in 1..=u64::from(PROBE_LIMIT) {
        let id = record(&map, 0, &[first, second]).unwrap();
        assert_eq!(ids.insert(id, second), None, "two stacks have one id");
    }
    assert_eq!(record(&map, 0, &[first, 0]), Err(Fallback::ProbeLimit));
    for (id, second) in ids {
        // By the slots, and once it is remembered by the context.
        for index in [0, 1, 1] {
            assert_eq!(record(&map, index, &[first, second]), Ok(id));
        }
        assert_eq!(read(&map, id), Some((vec![first, second], 4)));
    }
}

#[test]
fn a_full_map_refuses_new_stacks_and_finds_known_ones() {
    let map = map(10, 1);
    let mut ids = Vec::new();
    for number in 0..1024 {
        ids.push(record(&map, 0, &stack(number, 12)).unwrap());
    }
    for number in 1024..4096 {
        assert_eq!(record(&map, 0, &stack(number, 12)), Err(Fallback::Full));
    }
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(record(&map, 0, &stack(number as u64, 12)), Ok(*id));
    }
    assert_eq!(map.entries(), 1024);
    assert_eq!(map.total(MapCounter::Inserts), 1024);
    assert_eq!(map.total(MapCounter::Hits), 1024);
}

#[test]
fn a_pool_at_its_limit_refuses_new_stacks_and_finds_known_ones() {
    let map = map(10, 1);
    let mut known = Vec::new();
    let reason = (0..1024).find_map(|number| match record(&map, 0, &stack(number, MAX_FRAMES)) {
        Ok(id) => {
            known.push(id);
            None
        }
        Err(reason) => Some(reason),
    });
    assert_eq!(reason, Some(Fallback::PoolFull));
    assert_eq!(map.entries() as usize, known.len());
    for (number, id) in known.iter().enumerate() {
        assert_eq!(record(&map, 0, &stack(number as u64, MAX_FRAMES)), Ok(*id));
    }
}

#[test]
fn a_record_may_end_where_the_pool_does() {
    let map = map(10, 1);
    let get_id = |frames: &[u64]| get_id(&map, 0, frames);
    // Two chunks of 32,768 words, the first word unused: the last word is left.
    for number in 0..64 {
        let depth = if number % 32 == 31 { 991 } else { MAX_FRAMES };
        get_id(&stack(number, depth)).unwrap();
    }
    assert_eq!(map.reserved_bytes() + 16, map.pool_bytes());
    let last = get_id(&[]).unwrap();
    assert_eq!(map.reserved_bytes() + 8, map.pool_bytes());
    assert_eq!(get_id(&[]), Ok(last));
    assert_eq!(read(&map, last), Some((vec![], 2)));
    assert_eq!(get_id(&[1]), Err(Fallback::Growing));
    assert_eq!(export(&map).len(), 65);
}

#[test]
fn the_rest_of_a_chunk_is_used() {
    let map = map(10, 1);
    // After the first word 30 records of 1,025 words and one of 993: 1,024 words of the chunk are left.
    for number in 0..30 {
        record(&map, 0, &stack(number, MAX_FRAMES)).unwrap();
    }
    record(&map, 0, &stack(30, 992)).unwrap();
    assert_eq!(
        (map.leftover_bytes(), map.reserved_bytes()),
        (0, 31_743 * 8)
    );
    record(&map, 0, &stack(31, MAX_FRAMES)).unwrap();
    let reserved = (31_743 + 1024 + 1025) * 8;
    assert_eq!(
        (map.leftover_bytes(), map.reserved_bytes()),
        (1024 * 8, reserved)
    );
    for (depth, leftover) in [(23, 1000), (99, 900), (899, 0)] {
        let frames = stack(32, depth);
        let id = record(&map, 0, &frames).unwrap();
        assert_eq!(read(&map, id), Some((frames, 1)));
        assert_eq!(
            (map.leftover_bytes(), map.reserved_bytes()),
            (leftover * 8, reserved)
        );
    }
    for (number, depth) in [(0, MAX_FRAMES), (32, 23), (32, 99), (32, 899)] {
        assert!(find(&map, 0, &stack(number, depth)).is_some());
    }
}

#[test]
fn of_two_spares_the_larger_one_is_kept() {
    let map = map(10, 1);
    // 1,024 words are left of the first chunk.
    for number in 0..30 {
        record(&map, 0, &stack(number, MAX_FRAMES)).unwrap();
    }
    record(&map, 0, &stack(30, 992)).unwrap();
    for number in 31..62 {
        record(&map, 0, &stack(number, MAX_FRAMES)).unwrap();
        assert_eq!(map.leftover_bytes(), 1024 * 8);
    }
    // Of the second chunk, of which the first words were not left out, 993 are left: they are lost.
    record(&map, 0, &stack(62, MAX_FRAMES)).unwrap();
    assert_eq!(map.leftover_bytes(), 1024 * 8);
    // Of the third, 1,000.
    let reserved = map.reserved_bytes();
    assert!(record(&map, 0, &stack(63, 1023)).is_ok());
    assert_eq!((map.leftover_bytes(), map.reserved_bytes()), (0, reserved));
}

#[test]
fn growth_is_requested_when_less_than_a_chunk_is_free() {
    let map = map(10, 1);
    let get_id = |number, depth| get_id(&map, 0, &stack(number, depth)).unwrap();
    // One word more, and the second chunk is begun.
    for number in 0..31 {
        get_id(number, MAX_FRAMES);
    }
    get_id(31, 991);
    assert!(!map.wants_growth());
    let two_chunks = map.pool_bytes();
    map.grow().unwrap();
    assert_eq!(map.pool_bytes(), two_chunks);
    get_id(0, 0);
    assert!(map.wants_growth());
    map.grow().unwrap();
    assert_eq!(map.pool_bytes(), two_chunks / 2 * 3);
    assert!(!map.wants_growth());
}

#[test]
fn a_full_pool_with_growth_pending_is_reported() {
    let map = map(14, 1);
    let mut number = 0;
    let reason = loop {
        let result = get_id(&map, 0, &stack(number, 100));
        number += 1;
        if let Err(reason) = result {
            break reason;
        }
    };
    assert_eq!(reason, Fallback::Growing);
    map.grow().unwrap();
    assert!(record(&map, 0, &stack(number, 100)).is_ok());
}

#[test]
fn the_first_generation_follows_from_the_seed() {
    let mut generations = HashSet::new();
    for seed in 0..64 {
        let map = Map::new(10, 1, Seed::new([seed, 0])).expect("memory for a map");
        let id = record(&map, 0, &stack(0, 8)).unwrap();
        let generation = id.get() / map.table_size() as u32;
        assert_ne!(generation, 0);
        generations.insert(generation);
    }
    // Two of 64 have the same of 1,048,575 with a probability of 0.2 %, three never.
    assert!(generations.len() >= 63, "{} generations", generations.len());
}

#[test]
fn a_map_reports_its_memory() {
    let map = map(10, 1);
    assert_eq!((map.capacity(), map.table_size()), (1024, 2048));
    // Two slots a stack, and for each slot its references.
    assert_eq!(map.table_bytes(), 2048 * (8 + 4));
    assert_eq!((map.leftover_bytes(), map.reserved_bytes()), (0, 0));
    for (depth, bytes, stored) in [(0, 8, 8), (1, 16, 24), (20, 168, 192)] {
        record(&map, 0, &stack(1, depth)).unwrap();
        assert_eq!(record_bytes(depth), bytes);
        assert_eq!((map.leftover_bytes(), map.reserved_bytes()), (0, stored));
    }
}

#[test]
fn capacities_are_clamped() {
    assert_eq!(map(0, 1).capacity(), 1 << 10);
    assert_eq!(map(11, 1).capacity(), 1 << 11);
    assert_eq!(map(32, 1).capacity(), 1 << 20);
}

#[test]
fn a_map_has_no_more_contexts_than_its_references_allow() {
    // The kernel's largest configuration has 8,192 CPUs and 5 levels of nesting: 40,960.
    assert_eq!(CONTEXTS_MAX, ((1 << 32) - (1 << 31)) >> 15);
    assert!(Map::new(10, CONTEXTS_MAX, SEED).is_some());
    assert!(Map::new(10, CONTEXTS_MAX + 1, SEED).is_none());
}

#[test]
fn a_stack_that_is_too_deep_is_refused() {
    let map = map(10, 1);
    for depth in [
        MAX_FRAMES + 1,
        2 * MAX_FRAMES,
        2 * MAX_FRAMES + 4,
        4 * MAX_FRAMES,
    ] {
        assert_eq!(record(&map, 0, &stack(0, depth)), Err(Fallback::PoolFull));
    }
    assert_eq!((map.entries(), map.reserved_bytes()), (0, 0));
}

#[test]
fn counters_saturate() {
    let map = map(10, 2);
    for index in [0, 1] {
        let section = ReadSide::enter();
        // SAFETY: The only thread; inside a read-side section.
        let guard = unsafe { map.enter(section.inside(), index) };
        for n in [u64::MAX - 1, 1, 5] {
            guard.add(MapCounter::BytesSaved, n);
        }
    }
    assert_eq!(map.total(MapCounter::BytesSaved), u64::MAX);
}

#[test]
fn references_are_exact_in_every_representation() {
    let map = map(10, 2);
    let mut expected: HashMap<Id, u32> = HashMap::new();
    for event in 0..50_000_u64 {
        let number = event * event % 701;
        let id = record(&map, (event % 2) as usize, &stack(number, 10)).unwrap();
        *expected.entry(id).or_default() += 1;
    }
    let found: HashMap<Id, u32> = export(&map)
        .into_iter()
        .map(|(id, (_, refs))| (id, refs))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(
        map.total(MapCounter::Hits) + map.total(MapCounter::Inserts),
        50_000
    );
}

#[test]
fn references_move_in_batches_from_every_place() {
    const BATCH: u32 = 1 << 15;
    let map = map(20, 1);
    let stacks = (0..).map(|number| stack(number, 10));
    let in_set = stacks.filter(|frames| SEED.hash(frames) % 32 == 31);
    let stacks: Vec<_> = in_set.take(9).collect();
    let mut expected = [0; 9];
    let mut events = |nr, numbers: std::ops::Range<usize>| {
        for _ in 0..nr {
            for number in numbers.clone() {
                record(&map, 0, &stacks[number]).unwrap();
                expected[number] += 1;
            }
        }
        let found = export(&map).into_values().collect::<HashMap<_, _>>();
        for (frames, refs) in stacks.iter().zip(expected) {
            assert_eq!(found.get(frames).copied().unwrap_or(0), refs);
        }
        let sum = map.total(MapCounter::Hits) + map.total(MapCounter::Inserts);
        assert_eq!(sum, expected.iter().copied().map(u64::from).sum());
    };
    // One that stays the first of its set, two in turn, and one more than fit into the set.
    events(2 * BATCH + 1, 0..1);
    events(BATCH + 1, 1..3);
    events(3, 0..9);
}

#[test]
fn memory_grows_with_use() {
    let map = map(20, 1);
    let mut stored = 0;
    for number in 0..100_000 {
        let depth = 4 + number as usize % 60;
        record(&map, 0, &stack(number, depth)).unwrap();
        stored += depth as u64 * 8;
        assert!(map.pool_bytes() <= stored * 5 / 4 + (1 << 20));
    }
    map.reset().unwrap();
    assert!(map.pool_bytes() <= 1 << 20);
}

#[test]
fn threads_that_race_for_the_same_stacks_get_the_same_ids() {
    let map = map(14, 2);
    let race = |index| {
        let map = &map;
        move || -> Vec<Result<Id, Fallback>> {
            (0..8192)
                .map(|number| record(map, index, &stack(number, 30)))
                .collect()
        }
    };
    let (one, two) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(race(0)), scope.spawn(race(1)));
        (one.join().unwrap(), two.join().unwrap())
    });
    for (a, b) in one.iter().zip(&two) {
        if let (Ok(a), Ok(b)) = (a, b) {
            assert_eq!(a, b);
        }
    }
    let all = export(&map);
    let distinct: HashSet<&Vec<u64>> = all.values().map(|(frames, _)| frames).collect();
    assert_eq!(distinct.len(), all.len(), "a stack has two ids");
    let ok = one
        .iter()
        .chain(&two)
        .filter(|result| result.is_ok())
        .count();
    assert_eq!(
        all.values().map(|(_, refs)| *refs as usize).sum::<usize>(),
        ok
    );
}

#[test]
fn a_map_gives_its_memory_back() {
    let before = ALLOCATED.get();
    let map = map(14, 1);
    let empty = ALLOCATED.get();
    for number in 0..2000 {
        record(&map, 0, &stack(number, 100)).unwrap();
    }
    assert!(ALLOCATED.get() - empty >= 2000 * record_bytes(100) - (1 << 20));
    map.reset().unwrap();
    assert_eq!(ALLOCATED.get(), empty);
    record(&map, 0, &stack(0, 100)).unwrap();
    drop(map);
    assert_eq!(ALLOCATED.get(), before);
}
