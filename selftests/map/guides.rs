// SPDX-License-Identifier: GPL-2.0

//! Guides lead to the stacks that are there, whatever else is recorded, reset or unloaded.

#![cfg(not(loom))]

use proptest::{collection::vec, prelude::*};
use stackmap_map::{Fallback, Found, Guide, Id, Map, ReadSide, Seed, MAX_FRAMES};
use std::{
    cell::RefCell,
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

const SEED: Seed = Seed::new([1, 2]);

/// The first address of a kernel's text.
const TEXT: u64 = 0xffff_ffff_8100_0000;

fn map(bits: u32, contexts: usize) -> Map {
    Map::with_hints(bits, contexts, SEED).expect("memory for a map")
}

/// The hint that a frame has.
fn hint(frame: u64) -> u32 {
    (frame as u32).wrapping_mul(0x9e37_79b1) | 1 << 31
}

/// Whether all frames and hints of a guide are as they were given; but hints that were taken.
fn check(guide: &Guide<'_>) {
    for index in 0..guide.nr() {
        let word = guide.word(index).expect("it has so many");
        let frame = guide.frame(index).expect("it has so many");
        let given = u64::from(hint(frame)) << 32;
        let wanted = if index + 1 == guide.nr() {
            given & !0 >> 12
        } else {
            given
        };
        assert!([0, wanted >> 32].contains(&(word >> 32)), "{word:#x}");
    }
    assert_eq!(guide.frame(guide.nr()), None);
}

/// Records a stack as a walk does: along guides. Returns whether they have told.
fn record(map: &Map, context: usize, frames: &[u64]) -> Result<(Found, bool), Fallback> {
    let section = ReadSide::enter();
    // SAFETY: Each thread of these tests uses a context of its own, inside a read-side section.
    let entered = unsafe { map.enter(section.inside(), context) };
    let guides = entered.guides().ok_or(Fallback::Resetting)?;
    if let Some(next) = frames.first().and_then(|frame| guides.next(*frame)) {
        check(&next);
        if next.frames().eq(frames.iter().copied()) {
            return Ok((guides.hit(&next), true));
        }
    }
    let mut guide = frames.first().and_then(|frame| guides.first(0, *frame));
    assert!(guide.is_none_or(|guide| guide.frame(0) == frames.first().copied()));
    let mut left = None;
    for (nr, frame) in frames.iter().enumerate() {
        let Some(known) = guide else {
            break;
        };
        check(&known);
        if known.frame(nr) != Some(*frame) {
            guide = guides.other(&known, nr, *frame);
            if let Some(other) = guide {
                assert!(other
                    .frames()
                    .take(nr + 1)
                    .eq(frames[..=nr].iter().copied()));
            }
            left = guide.is_none().then_some((known, nr));
        }
    }
    if let Some(guide) = guide.filter(|guide| guide.nr() == frames.len()) {
        assert!(guide.frames().eq(frames.iter().copied()));
        return Ok((guides.hit(&guide), true));
    }
    let left = left.or(guide.map(|guide| (guide, frames.len())));
    let found = entered.get_id(frames)?;
    entered.make_guide(left, frames, found, |frame, _| hint(frame));
    Ok((found, false))
}

fn read(map: &Map, id: Id) -> Option<(Vec<u64>, u32)> {
    let mut buffer = [0; MAX_FRAMES];
    let stack = map.lookup(id, &mut buffer)?;
    Some((buffer[..stack.nr].to_vec(), stack.ref_count))
}

/// Stacks of few functions, so that many begin alike.
fn stack() -> impl Strategy<Value = Vec<u64>> {
    vec((0..3_u64).prop_map(|function| TEXT + function * 16), 1..9)
}

#[derive(Clone, Debug)]
enum Op {
    Record(usize, Vec<u64>),
    Take(u64),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        100 => (0..3_usize, stack()).prop_map(|(context, stack)| Op::Record(context, stack)),
        3 => (0..3_u64).prop_map(Op::Take),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    #[test]
    fn a_stack_has_one_id_however_it_is_found(ops in vec(op(), 0..400)) {
        let map = map(10, 3);
        let mut ids: HashMap<Vec<u64>, (Id, u32)> = HashMap::new();
        for op in ops {
            match op {
                Op::Record(context, frames) => {
                    let (found, is_known) = record(&map, context, &frames).expect("an id");
                    prop_assert_eq!(found.inserted, !ids.contains_key(&frames));
                    prop_assert!(!(found.inserted && is_known));
                    let (id, refs) = ids.entry(frames).or_insert((found.id, 0));
                    prop_assert_eq!(*id, found.id);
                    *refs += 1;
                }
                Op::Take(function) => map.remove_hints(|frame| frame == TEXT + function * 16),
                Op::Reset => {
                    map.reset().expect("no other operation runs");
                    for (_, (id, _)) in ids.drain() {
                        prop_assert_eq!(read(&map, id), None);
                    }
                }
            }
        }
        for (frames, (id, refs)) in ids {
            prop_assert_eq!(read(&map, id), Some((frames, refs)));
        }
    }
}

#[test]
fn stacks_that_come_again_are_found_by_guides() {
    let map = map(10, 1);
    // A binary tree of calls.
    let stacks: Vec<Vec<u64>> = (0..256_u64)
        .map(|path| {
            (0..12)
                .map(|depth| TEXT + (path >> depth & 1) * 16)
                .collect()
        })
        .collect();
    for stack in &stacks {
        assert!(record(&map, 0, stack).expect("an id").0.inserted);
    }
    let told = AtomicUsize::new(0);
    for stack in &stacks {
        let (_, is_known) = record(&map, 0, stack).expect("an id");
        told.fetch_add(is_known.into(), Ordering::Relaxed);
    }
    // Of branches that hash to the same entries, the last four are kept.
    let told = told.into_inner();
    assert!(told >= 240, "{told} of 256");
    // One that comes again and again is the first that is tried.
    for _ in 0..3 {
        record(&map, 0, &stacks[77]).expect("an id");
    }
    let section = ReadSide::enter();
    // SAFETY: There is one thread.
    let entered = unsafe { map.enter(section.inside(), 0) };
    let guides = entered.guides().expect("no reset runs");
    let first = guides.first(0, TEXT + 16).expect("a guide");
    assert!(first.frames().eq(stacks[77].iter().copied()));
    assert!(guides.first(0, TEXT + 32).is_none());
}

#[test]
fn hints_of_text_that_goes_are_taken() {
    let map = map(10, 1);
    let frames = [TEXT, TEXT + 16, TEXT + 32, TEXT + 48];
    record(&map, 0, &frames).expect("an id");
    let hints = || {
        let section = ReadSide::enter();
        // SAFETY: There is one thread.
        let entered = unsafe { map.enter(section.inside(), 0) };
        let guides = entered.guides().expect("no reset runs");
        let guide = guides.first(0, TEXT).expect("a guide");
        let words = (0..guide.nr()).filter_map(|index| guide.word(index));
        words.map(|word| word >> 32).collect::<Vec<_>>()
    };
    let given = |frame: u64| u64::from(hint(frame));
    let last = given(frames[3]) & !0 >> 12 & 0xf_ffff;
    assert_eq!(
        hints(),
        [given(frames[0]), given(frames[1]), given(frames[2]), last]
    );
    map.remove_hints(|frame| frame == frames[1]);
    // Those behind it may tell of it.
    assert_eq!(hints(), [given(frames[0]), 0, 0, 0]);
    map.remove_hints(|_| true);
    assert_eq!(hints(), [0; 4]);
    // The stack is as it was.
    assert!(!record(&map, 0, &frames).expect("an id").0.inserted);
}

#[test]
fn hints_are_taken_from_stacks_in_all_slots() {
    let map = map(10, 1);
    let ids: HashMap<u64, Id> = (0..900)
        .map(|number| {
            let frames = [TEXT + number * 16, TEXT - 16, TEXT - 32];
            record(&map, 0, &frames).expect("an id");
            let (found, _) = record(&map, 0, &frames).expect("an id");
            (frames[0], found.id)
        })
        .collect();
    // The slots of the guides that the context has, and their hints.
    let hints = || {
        let section = ReadSide::enter();
        // SAFETY: There is one thread.
        let entered = unsafe { map.enter(section.inside(), 0) };
        let guides = entered.guides().expect("no reset runs");
        let hint = |first: &u64| Some(guides.first(0, *first)?.word(1)? >> 32);
        let slot = |id: &Id| id.get() % 2048;
        ids.iter()
            .filter_map(|(first, id)| Some((slot(id), hint(first)?)))
            .collect::<Vec<_>>()
    };
    let before = hints();
    assert!(before
        .iter()
        .all(|(_, given)| *given == u64::from(hint(TEXT - 16))));
    for half in 0..2 {
        assert!(before.iter().any(|(slot, _)| slot / 1024 == half));
    }
    map.remove_hints(|frame| frame == TEXT - 16);
    let after = hints();
    assert_eq!(after.len(), before.len());
    assert!(after.iter().all(|(_, given)| *given == 0));
}

#[test]
fn a_hint_is_by_the_frame_and_the_one_behind_it() {
    let map = map(10, 1);
    let frames = [TEXT, TEXT + 16, TEXT + 32];
    let asked = RefCell::new(Vec::new());
    let give = |frame: u64, next: u64| {
        asked.borrow_mut().push((frame, next));
        hint(frame)
    };
    for _ in 0..2 {
        let section = ReadSide::enter();
        // SAFETY: There is one thread.
        let entered = unsafe { map.enter(section.inside(), 0) };
        let found = entered.get_id(&frames).expect("an id");
        entered.make_guide(None, &frames, found, give);
    }
    let wanted = [
        (frames[0], frames[1]),
        (frames[1], frames[2]),
        (frames[2], 0),
    ];
    assert_eq!(asked.into_inner(), [wanted, wanted].concat());
}

#[test]
fn branches_at_one_frame_are_told_apart() {
    // More than there are sets of entries.
    let map = map(10, 1);
    let mut told = 0;
    for _ in 0..3 {
        told = (1..=900_u64)
            // It compares each guide with the stack.
            .map(|number| record(&map, 0, &[TEXT, TEXT + number * 16]).expect("an id"))
            .filter(|(_, is_known)| *is_known)
            .count();
    }
    assert_eq!(map.entries(), 900);
    assert!(told > 840, "{told}");
}

#[test]
fn the_first_slot_is_told_as_others_are() {
    let map = map(10, 1);
    assert_eq!(map.table_bytes(), 2048 * (8 + 8 + 4));
    let mut stacks = (0..).map(|number| [TEXT, TEXT + number * 16]);
    let first = stacks.find(|frames| SEED.hash(frames) % 2048 == 0);
    let first = first.expect("there are infinitely many");
    // It is not mistaken for none.
    for round in 0..4 {
        assert_eq!(
            record(&map, 0, &first).map(|(_, is_known)| is_known),
            Ok(round > 0)
        );
        // The first time that it was told, no stack came before.
        assert_eq!(next(&map).is_some(), round == 3);
    }
}

/// What is expected next to begin with the first frame.
fn next(map: &Map) -> Option<Vec<u64>> {
    let section = ReadSide::enter();
    // SAFETY: There is one thread.
    let entered = unsafe { map.enter(section.inside(), 0) };
    let guides = entered.guides().expect("no reset runs");
    let next = guides.next(TEXT)?;
    Some(next.frames().collect())
}

#[test]
fn what_came_next_twice_is_expected_next() {
    let map = map(10, 1);
    let stacks = [1, 2, 3].map(|function| vec![TEXT, TEXT + function * 16]);
    let come = |number: usize| {
        record(&map, 0, &stacks[number]).expect("an id");
    };
    // Inserted and made guides, then told by these, then seen in turn once.
    for number in [0, 1, 2, 0, 1, 2, 0, 1, 2] {
        come(number);
        assert_eq!(next(&map), None);
    }
    for number in [0, 1, 2, 0] {
        come(number);
        assert_eq!(next(&map), Some(stacks[(number + 1) % 3].clone()));
    }
    // Another one comes once, and then the same again.
    come(2);
    come(0);
    assert_eq!(next(&map), None);
    come(1);
    come(2);
    come(0);
    come(1);
    come(2);
    come(0);
    assert_eq!(next(&map), Some(stacks[1].clone()));
    map.reset().expect("no other operation runs");
    assert_eq!(next(&map), None);
}

#[test]
fn a_reset_takes_what_a_context_begins_with() {
    let map = map(10, 2);
    let frames = [TEXT, TEXT + 16, TEXT + 32];
    for _ in 0..3 {
        // It is in the same slot in each generation.
        record(&map, 1, &frames).expect("an id");
        {
            let section = ReadSide::enter();
            // SAFETY: There is one thread.
            let entered = unsafe { map.enter(section.inside(), 0) };
            let guides = entered.guides().expect("no reset runs");
            assert!(guides.first(0, TEXT).is_none());
            assert!(guides.next(TEXT).is_none());
        }
        for is_known in [false, true] {
            let found = record(&map, 0, &frames).map(|(_, is_known)| is_known);
            assert_eq!(found, Ok(is_known));
        }
        map.reset().expect("no other operation runs");
    }
}

#[test]
fn a_marker_is_not_what_a_stack_is_kept_by() {
    const MARKER: u64 = 0x7fff_ffff;
    let map = map(10, 1);
    let stacks = [1, 2].map(|function| [MARKER, TEXT + function * 16]);
    for stack in stacks.iter().chain(&stacks) {
        record(&map, 0, stack).expect("an id");
    }
    let section = ReadSide::enter();
    // SAFETY: There is one thread.
    let entered = unsafe { map.enter(section.inside(), 0) };
    let guides = entered.guides().expect("no reset runs");
    for stack in stacks {
        let guide = guides.first(1, stack[1]).expect("a guide");
        assert!(guide.frames().eq(stack));
    }
    assert!(guides.first(0, MARKER).is_none());
}

#[test]
fn hints_that_were_taken_are_given_again() {
    let map = map(10, 1);
    let frames = [TEXT, TEXT + 16, TEXT + 32];
    record(&map, 0, &frames).expect("an id");
    record(&map, 0, &frames).expect("an id");
    map.remove_hints(|frame| frame == frames[0]);
    let section = ReadSide::enter();
    // SAFETY: There is one thread.
    let entered = unsafe { map.enter(section.inside(), 0) };
    let guides = entered.guides().expect("no reset runs");
    let guide = guides.first(0, TEXT).expect("a guide");
    assert_eq!(guide.word(0), Some(TEXT & 0xffff_ffff));
    guide.give_hints(|frame, _| hint(frame));
    check(&guide);
    let word = guide.word(0);
    guide.give_hints(|_, _| 0);
    assert_eq!(guide.word(0), word);
    assert_ne!(guide.word(0), Some(TEXT & 0xffff_ffff));
}

#[test]
fn a_frame_that_no_word_can_hold_is_refused() {
    let map = map(10, 1);
    for frame in [1 << 47, TEXT - (1 << 31), 0x8000_0000] {
        let section = ReadSide::enter();
        // SAFETY: There is one thread.
        let entered = unsafe { map.enter(section.inside(), 0) };
        assert_eq!(
            entered.get_id(&[TEXT, frame]),
            Err(Fallback::PoolFull),
            "{frame:#x}"
        );
    }
    assert_eq!((map.entries(), map.reserved_bytes()), (0, 0));
    for frame in [0x7fff_ffff, !0, 0xffff_ffff_8000_0000, 0] {
        let (found, _) = record(&map, 0, &[frame]).expect("an id");
        assert_eq!(read(&map, found.id), Some((vec![frame], 1)));
    }
}

#[test]
fn threads_find_each_others_stacks() {
    const THREADS: usize = 3;
    let map = map(10, THREADS);
    let stacks: Vec<Vec<u64>> = (0..500_u64)
        .map(|path| {
            (0..10)
                .map(|depth| TEXT + (path >> depth & 1) * 16 + depth * 64)
                .collect()
        })
        .collect();
    let counts: Vec<HashMap<Id, u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|context| {
                let (map, stacks) = (&map, &stacks);
                scope.spawn(move || {
                    let mut counts = HashMap::new();
                    for round in 0..60_000 {
                        if round % 1000 == 0 && context == 0 {
                            map.remove_hints(|frame| frame == TEXT);
                        }
                        let number = (round * (2 * context + 1)) % stacks.len();
                        let (found, _) = record(map, context, &stacks[number]).expect("an id");
                        *counts.entry(found.id).or_insert(0) += 1;
                    }
                    counts
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(map.entries(), 500);
    let mut all: HashMap<Id, u32> = HashMap::new();
    for (id, refs) in counts.into_iter().flatten() {
        *all.entry(id).or_insert(0) += refs;
    }
    for (id, refs) in all {
        let (frames, counted) = read(&map, id).expect("a stack");
        assert!(stacks.contains(&frames));
        assert_eq!(counted, refs);
    }
}

#[test]
fn a_branch_that_is_made_again_pushes_no_other_one_out() {
    let map = map(10, 1);
    // More than there are sets of entries.
    let stacks: Vec<[u64; 2]> = (0..900).map(|n| [TEXT, TEXT + 16 * n]).collect();
    for stack in &stacks {
        record(&map, 0, stack).expect("an id");
    }
    let section = ReadSide::enter();
    // SAFETY: There is one thread.
    let entered = unsafe { map.enter(section.inside(), 0) };
    let guides = entered.guides().expect("no reset runs");
    let first = guides.first(0, TEXT).expect("a guide");
    let told = || {
        let others = stacks.iter().map(|stack| guides.other(&first, 1, stack[1]));
        others.map(|other| other.is_some()).collect::<Vec<_>>()
    };
    let before = told();
    for (stack, _) in stacks.iter().zip(&before).filter(|(_, is_told)| **is_told) {
        let found = entered.get_id(stack).expect("an id");
        for _ in 0..4 {
            entered.make_guide(Some((first, 1)), stack, found, |frame, _| hint(frame));
        }
    }
    assert_eq!(told(), before);
}

#[test]
fn what_comes_next_is_told_by_any_first_frame() {
    for first in [TEXT, TEXT | 0xff_ffff, !0 ^ 0xffff, !0] {
        let map = map(10, 1);
        let stacks = [1, 2, 3, 4].map(|function| [first, TEXT + function * 16]);
        for _ in 0..5 {
            for stack in &stacks {
                record(&map, 0, stack).expect("an id");
            }
        }
        for stack in &stacks {
            {
                let section = ReadSide::enter();
                // SAFETY: There is one thread.
                let entered = unsafe { map.enter(section.inside(), 0) };
                let guides = entered.guides().expect("no reset runs");
                let next = guides.next(first).expect("it came next before");
                assert!(next.frames().eq(*stack), "{first:#x}");
            }
            record(&map, 0, stack).expect("an id");
        }
    }
}
