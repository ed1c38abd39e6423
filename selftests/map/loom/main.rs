// SPDX-License-Identifier: GPL-2.0

//! Models of the map's races: every order of the threads' steps, and every value that the memory
//! model lets a load see.
//!
//! `selftests/map/models` runs those of many executions with few preemptions, which is where almost
//! all mistakes show; `selftests/map/models --full` raises their bounds. Sizes are those
//! of `src/map/sys.rs` for models.

#![cfg(loom)]

mod control;
mod counts;
mod exports;
mod inserts;
mod interrupts;
mod pool;
mod predict;
mod resets;

use loom::{
    model::Builder,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};
use stackmap_map::{
    model, Fallback, Id, Inside, Lookup, Map, MapCounter, ReadSide, Seed, MAX_FRAMES,
};
use std::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    time::Instant,
};

const SEED: Seed = Seed::new([1, 2]);

/// A stack of a model.
type Frames = &'static [u64];

/// The most steps of one `get_id`, see *P2* in `src/map/mod.rs`: in a model two slots, stacks of four
/// frames, two attempts to reserve, sets of two.
const STEPS_MAX: usize = 2 * (4 + 4) + 4 + 3 * 2 + 3 * 2 + 30;

/// Runs a model in all executions.
fn exhaustively(name: &str, run: impl Fn() + Send + Sync + 'static) {
    check(name, None, run);
}

/// Runs a model that has many executions in those in which threads are preempted at most `quick`
/// times; if `STACKMAP_LOOM` is `full` at most `full` times, or in all executions.
fn bounded(name: &str, quick: usize, full: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    check(name, if self::full() { full } else { Some(quick) }, run);
}

fn full() -> bool {
    std::env::var_os("STACKMAP_LOOM").is_some_and(|value| value == "full")
}

fn check(name: &str, preemptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&executions);
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    let begun = Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    });
    let bound = preemptions.map_or(String::from("all"), |n| format!("up to {n} preemptions"));
    let executions = executions.load(Ordering::Relaxed);
    println!(
        "{name}: {executions} executions, {bound}, {:.1?}",
        begun.elapsed()
    );
}

/// A map for `2^bits` stacks.
fn map(bits: u32, contexts: usize) -> Arc<Map> {
    // What sections are made of must be there before the threads are: it would order them.
    drop(ReadSide::enter());
    Arc::new(Map::new(bits, contexts, SEED).expect("memory for a map"))
}

/// Records a stack in a context and checks what must hold in every execution.
fn record(map: &Map, context: usize, frames: &[u64]) -> Result<Lookup, Fallback> {
    let before = model::steps();
    let result = {
        let section = ReadSide::enter();
        // SAFETY: In each model a context has one thread, which is in a read-side section.
        let guard = unsafe { map.enter(section.inside(), context) };
        let result = guard.get_id(frames);
        if let Err(reason) = result {
            guard.add(reason.counter(), 1);
        }
        result
    };
    let steps = model::steps() - before;
    assert!(steps <= STEPS_MAX, "P2: {steps} steps");
    if let Ok(found) = result {
        let id = found.id.get();
        assert!(id != 0 && i32::try_from(id).is_ok(), "P5: {id}");
    }
    result
}

/// The id that a stack must get.
fn id(map: &Map, context: usize, frames: &[u64]) -> Id {
    record(map, context, frames).expect("an id").id
}

/// The id that a stack must get unless others move the pool's cursor too often.
fn id_unless_contended(map: &Map, context: usize, frames: &[u64]) -> Option<Id> {
    unless_contended(record(map, context, frames))
}

fn unless_contended(result: Result<Lookup, Fallback>) -> Option<Id> {
    match result {
        Ok(found) => Some(found.id),
        Err(Fallback::Contended) => None,
        Err(reason) => panic!("no id: {reason:?}"),
    }
}

/// The frames and references of an id.
fn read(map: &Map, id: Id) -> Option<(Vec<u64>, u32)> {
    let mut buffer = [0; MAX_FRAMES];
    let stack = map.lookup(id, &mut buffer)?;
    assert_eq!(stack.id, id);
    Some((buffer[..stack.nr].to_vec(), stack.ref_count))
}

/// All stacks by one export: ids, frames, references. Fails if a stack has two ids.
fn export(map: &Map) -> Vec<(Id, Vec<u64>, u32)> {
    let snapshot = map.snapshot().expect("no reset runs");
    let mut buffer = [0; MAX_FRAMES];
    let (mut all, mut from) = (Vec::<(Id, Vec<u64>, u32)>::new(), 0);
    while let Some(stack) = map
        .next(&snapshot, from, &mut buffer)
        .expect("no reset runs")
    {
        from = stack.next();
        let frames = buffer[..stack.nr].to_vec();
        assert!(
            all.iter().all(|(_, other, _)| *other != frames),
            "P1: two ids of {frames:?}"
        );
        all.push((stack.id, frames, stack.ref_count));
    }
    all
}

/// Checks a map while no context records: nothing leaked, all counts agree. Returns its stacks.
fn settle(map: &Map) -> Vec<(Id, Vec<u64>, u32)> {
    settle_but(map, 0)
}

/// The same where contexts that had a leftover may have lost this number of words.
fn settle_but(map: &Map, lost: u64) -> Vec<(Id, Vec<u64>, u32)> {
    let all = export(map);
    let stored: usize = all.iter().map(|(_, frames, _)| 8 + 8 * frames.len()).sum();
    assert_eq!(map.entries_claimed() as usize, all.len(), "P3: entries");
    let kept = stored as u64 + map.leftover_bytes();
    let reserved = map.reserved_bytes();
    assert!((kept..=kept + 8 * lost).contains(&reserved), "P3: words");
    let refs: u64 = all.iter().map(|(_, _, refs)| u64::from(*refs)).sum();
    let successes = map.total(MapCounter::Hits) + map.total(MapCounter::Inserts);
    assert_eq!(refs, successes, "P7: references");
    assert_eq!(
        map.total(MapCounter::Inserts),
        all.len() as u64,
        "P7: inserts"
    );
    all
}

/// A thread of a model.
struct Spawned<T> {
    thread: JoinHandle<T>,
    end: MutexGuard<'static, ()>,
}

impl<T> Spawned<T> {
    /// Waits for the thread and returns its result.
    fn join(self) -> T {
        drop(self.end);
        self.thread.join().expect("the thread's result")
    }
}

loom::lazy_static! {
    /// Held by who has spawned a thread, until it wants the thread's result, and taken by the thread
    /// when it has one. So a thread always ends after who waits for it has begun to wait; loom would
    /// try the two in both orders in each execution.
    static ref ENDS: [Mutex<()>; 2] = Default::default();

    /// Not a part of the model, only a way to number its threads.
    static ref SPAWNED: AtomicUsize = AtomicUsize::new(0);
}

/// Spawns a thread of a model, with the map.
fn spawn<T: 'static>(map: &Arc<Map>, run: impl FnOnce(&Arc<Map>) -> T + 'static) -> Spawned<T> {
    let map = Arc::clone(map);
    let end: &'static Mutex<()> = &ENDS[SPAWNED.fetch_add(1, Ordering::Relaxed)];
    Spawned {
        end: end.lock().expect("nobody panicked"),
        thread: thread::spawn(move || {
            let result = run(&map);
            drop(end.lock());
            result
        }),
    }
}

/// The id of a stack in `slot` of a map of `2^bits` stacks that was never reset.
fn first_id(bits: u32, slot: u32) -> Id {
    let generations = (1 << (30 - bits)) - 1;
    Id::from_raw((1 + SEED.draw(generations)) << (bits + 1) | slot)
}

/// The `n`-th stack of `nr` frames whose search begins at slot `home` of a map of `2^bits` stacks.
fn stack_at(bits: u32, home: u64, nr: usize, n: usize) -> Frames {
    let slots = 2 << bits;
    let at_home = (1..).map(|frame| (0..nr as u64).map(|i| frame + 100 * i).collect::<Vec<_>>());
    let mut at_home = at_home.filter(|frames| SEED.hash(frames) % slots == home);
    Box::leak(
        at_home
            .nth(n)
            .expect("there are infinitely many")
            .into_boxed_slice(),
    )
}

/// Two stacks whose hashes are equal.
fn stacks_of_one_hash() -> [Frames; 2] {
    // A frame that is equal to the second word of the seed takes with it what a pair has besides.
    const FIRST: u64 = 0xbb67_ae85_84ca_a73b ^ 2;
    const STACKS: [Frames; 2] = [&[FIRST, 1], &[FIRST, 2]];
    assert_eq!(SEED.hash(STACKS[0]), SEED.hash(STACKS[1]));
    STACKS
}

/// Of the model itself: a read comes before and after a write, also if the writer reads in between.
#[test]
fn a_read_sees_every_state() {
    let frames = stack_at(1, 0, 1, 0);
    let seen = std::sync::Arc::new(AtomicU32::new(0));
    let all = std::sync::Arc::clone(&seen);
    exhaustively("a_read_sees_every_state", move || {
        let map = map(1, 1);
        let writer = spawn(&map, move |map| id(map, 0, frames));
        all.fetch_or(1 << map.entries(), Ordering::Relaxed);
        writer.join();
    });
    assert_eq!(seen.load(Ordering::Relaxed), 1 << 0 | 1 << 1);
}
