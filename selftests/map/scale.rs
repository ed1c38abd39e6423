// SPDX-License-Identifier: GPL-2.0

//! Two CPUs that record stacks drawn from a Zipf law, round after round: new stacks keep coming, and
//! every round ends with a map or a pool that is exhausted and with a reset, or has a reset in the
//! middle.
//!
//! Each thread remembers which id it was given for which stack. In one generation a stack that has
//! an id must keep it, no two stacks may have one id, the two threads must agree, and whatever the
//! map counts must be what the threads counted.
//!
//! `STACKMAP_SCALE` is the number of events, 10^6 by default; `make scale` does 10^8.

#![cfg(not(loom))]

use rand::{rngs::StdRng, RngExt, SeedableRng};
use rand_distr::Zipf;
use stackmap_map::{Fallback, Id, Lookup, Map, MapCounter, ReadSide, Seed, MAX_FRAMES};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

const THREADS: usize = 2;

/// Events of one round, at most.
const ROUND_MAX: usize = 2_000_000;

/// How often a thread says how far it is.
const REPORT: usize = 1024;

/// The stacks that can be drawn, by number.
struct Universe {
    stacks: Vec<Box<[u64]>>,
    zipf: Zipf<f64>,
}

impl Universe {
    /// Makes `len` stacks of `depths` frames.
    fn new(len: usize, depths: std::ops::Range<usize>) -> Self {
        let mut random = StdRng::seed_from_u64(len as u64);
        let stacks = (0..len).map(|number| {
            let mut frames: Box<[u64]> = (0..random.random_range(depths.clone()))
                .map(|_| 0xffff_ffff_8100_0000 + random.random_range(0..0x100_0000))
                .collect();
            // The outermost frame tells the number.
            *frames.last_mut().expect("depths are not 0") = number as u64;
            frames
        });
        Self {
            stacks: stacks.collect(),
            zipf: Zipf::new(len as f64, 1.0).expect("a law"),
        }
    }

    fn draw(&self, random: &mut StdRng) -> usize {
        random.sample(self.zipf) as usize - 1
    }

    /// The number of a stack that was read back.
    fn number(&self, frames: &[u64]) -> usize {
        let number = frames[frames.len() - 1] as usize;
        assert_eq!(frames, &*self.stacks[number], "a stack is not what it was");
        number
    }
}

/// What a thread has seen of one generation, by the number of the stack.
struct Seen {
    ids: Vec<Option<Id>>,
    refs: Vec<u32>,
}

impl Seen {
    fn new(universe: &Universe) -> Self {
        Self {
            ids: vec![None; universe.stacks.len()],
            refs: vec![0; universe.stacks.len()],
        }
    }

    /// Adds what another thread has seen of the same generation.
    fn merge(&mut self, other: &Seen) {
        for (id, theirs) in self.ids.iter_mut().zip(&other.ids) {
            assert!(
                id.is_none() || theirs.is_none() || *id == *theirs,
                "two ids"
            );
            *id = id.or(*theirs);
        }
        for (refs, theirs) in self.refs.iter_mut().zip(&other.refs) {
            *refs += theirs;
        }
    }

    /// The number of stacks, each of which has an id of its own.
    fn distinct(&self) -> usize {
        let mut ids: Vec<Id> = self.ids.iter().flatten().copied().collect();
        let nr = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), nr, "two stacks have one id");
        nr
    }
}

type Counts = [u64; MapCounter::ALL.len()];

/// What a thread has seen of a round, by generation.
type Log = (BTreeMap<u32, Seen>, Counts);

/// One thread in one round.
struct Recorder<'a> {
    map: &'a Map,
    universe: &'a Universe,
    index: usize,
    /// Of the last id.
    generation: u32,
    seen: BTreeMap<u32, Seen>,
    counts: Counts,
}

impl<'a> Recorder<'a> {
    fn new(map: &'a Map, universe: &'a Universe, index: usize) -> Self {
        Self {
            map,
            universe,
            index,
            generation: 0,
            seen: BTreeMap::new(),
            counts: [0; MapCounter::ALL.len()],
        }
    }

    fn record(&mut self, number: usize) {
        let result = {
            let section = ReadSide::enter();
            // SAFETY: Each thread has an index of its own; inside a read-side section.
            let guard = unsafe { self.map.enter(section.inside(), self.index) };
            let result = guard.get_id(&self.universe.stacks[number]);
            if let Err(reason) = result {
                guard.add(reason.counter(), 1);
            }
            result
        };
        let counter = match result {
            Ok(found) => self.found(number, found),
            Err(reason) => self.refused(number, reason),
        };
        self.counts[counter as usize] += 1;
    }

    fn found(&mut self, number: usize, found: Lookup) -> MapCounter {
        let generation = found.id.get() / self.map.table_size() as u32;
        assert!(generation >= self.generation, "a generation was used again");
        self.generation = generation;
        let seen = self.seen.entry(generation);
        let seen = seen.or_insert_with(|| Seen::new(self.universe));
        let id = *seen.ids[number].get_or_insert(found.id);
        assert_eq!(id, found.id, "a stack has two ids");
        seen.refs[number] += 1;
        if found.inserted {
            MapCounter::Inserts
        } else {
            MapCounter::Hits
        }
    }

    /// Only a reset may take an id away.
    fn refused(&self, number: usize, reason: Fallback) -> MapCounter {
        let seen = self.seen.get(&self.generation);
        if let Some(id) = seen.and_then(|seen| seen.ids[number]) {
            let gone = self.map.lookup(id, &mut [0; MAX_FRAMES]).is_none();
            assert!(gone, "an id was lost: {reason:?}");
        }
        reason.counter()
    }
}

/// A map in use, and what has been counted in all rounds.
struct Run {
    map: Map,
    universe: Universe,
    counts: Counts,
    generations: u32,
    stacks: usize,
    /// Bytes of records, and of what was lost beside them.
    stored: u64,
    lost: u64,
}

impl Run {
    fn new(bits: u32, universe: Universe) -> Self {
        Self {
            map: Map::new(bits, THREADS, Seed::new([3, 4])).expect("memory for a map"),
            universe,
            counts: [0; MapCounter::ALL.len()],
            generations: 0,
            stacks: 0,
            stored: 0,
            lost: 0,
        }
    }

    /// Both threads record `events` stacks each; every other round has a reset in the middle.
    fn round(&mut self, round: usize, events: usize) {
        let (map, universe) = (&self.map, &self.universe);
        let reset_at = (round % 2 == 1).then_some(events / 2);
        let progress: [AtomicUsize; THREADS] = Default::default();
        let logs = thread::scope(|scope| {
            let threads = [0, 1].map(|index| {
                let progress = &progress[index];
                scope.spawn(move || {
                    // In some rounds both draw the same stacks in the same order.
                    let stream = if round % 4 < 2 { 0 } else { index };
                    let mut random = StdRng::seed_from_u64((round * THREADS + stream) as u64);
                    let mut recorder = Recorder::new(map, universe, index);
                    for event in 0..events {
                        recorder.record(universe.draw(&mut random));
                        if event % REPORT == 0 {
                            progress.store(event, Ordering::Relaxed);
                        }
                    }
                    progress.store(events, Ordering::Relaxed);
                    (recorder.seen, recorder.counts)
                })
            });
            let slowest = || progress.iter().map(|n| n.load(Ordering::Relaxed)).min();
            control(map, universe, reset_at, || slowest().unwrap_or(0), events);
            threads.map(|thread| thread.join().expect("no assertion failed"))
        });
        // The reset may have come after all else: one more event tells the generation of the map.
        let mut last = Recorder::new(map, universe, 0);
        last.record(0);
        let logs = logs.into_iter().chain([(last.seen, last.counts)]).collect();
        self.check(logs, reset_at.is_some());
        self.map.reset().expect("nothing else runs");
    }

    /// Compares the map with what the threads have seen.
    fn check(&mut self, logs: Vec<Log>, with_reset: bool) {
        let mut counts: Counts = [0; MapCounter::ALL.len()];
        let mut all: BTreeMap<u32, Seen> = BTreeMap::new();
        for (by_generation, counted) in logs {
            for (sum, n) in counts.iter_mut().zip(counted) {
                *sum += n;
            }
            for (generation, seen) in by_generation {
                let merged = all.entry(generation);
                merged
                    .or_insert_with(|| Seen::new(&self.universe))
                    .merge(&seen);
            }
        }
        let distinct: Vec<usize> = all.values().map(Seen::distinct).collect();
        self.stacks += distinct.iter().sum::<usize>();
        self.generations += all.len() as u32;
        let (_, last) = all.pop_last().expect("a generation");

        let map = &self.map;
        let of_last = *distinct.last().expect("a generation");
        assert_eq!(map.entries() as usize, of_last, "stacks that nobody saw");
        assert_eq!(map.total(MapCounter::Inserts), of_last as u64);
        assert_eq!(
            counts[MapCounter::Inserts as usize],
            distinct.iter().sum::<usize>() as u64
        );
        let refs: u64 = last.refs.iter().map(|refs| u64::from(*refs)).sum();
        assert_eq!(
            map.total(MapCounter::Hits) + map.total(MapCounter::Inserts),
            refs
        );
        if !with_reset {
            for counter in MapCounter::ALL {
                assert_eq!(map.total(counter), counts[counter as usize], "{counter:?}");
            }
        }
        let mut stored = 0;
        let exported = export(map, &self.universe, |number, id, refs| {
            assert_eq!((Some(id), refs), (last.ids[number], last.refs[number]));
            stored += 8 + 8 * self.universe.stacks[number].len() as u64;
        });
        assert_eq!(exported, of_last, "an id was lost");
        // P3 and P6: nothing leaks but what races have lost.
        let lost = map.reserved_bytes() - stored - map.leftover_bytes();
        assert!(lost <= stored / 8 + (1 << 16), "{lost} bytes lost");
        self.lost += lost;
        self.stored += stored;
        for (sum, n) in self.counts.iter_mut().zip(counts) {
            *sum += n;
        }
    }
}

/// Grows the map, exports it, and resets it once both threads have come to `reset_at`, until they
/// have come to the end.
fn control(
    map: &Map,
    universe: &Universe,
    reset_at: Option<usize>,
    progress: impl Fn() -> usize,
    end: usize,
) {
    let mut reset_at = reset_at;
    let mut exported = false;
    while progress() < end {
        match map.grow() {
            Ok(()) => {}
            Err(error) => panic!("{error:?}"),
        }
        if !exported && progress() > end / 4 {
            export(map, universe, |_, _, _| {});
            exported = true;
        }
        if reset_at.is_some_and(|at| progress() >= at) {
            map.reset().expect("nothing else runs");
            reset_at = None;
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// Calls `visit` for the number, the id and the references of each stack; returns how many there are.
fn export(map: &Map, universe: &Universe, mut visit: impl FnMut(usize, Id, u32)) -> usize {
    let snapshot = map.snapshot().expect("no reset runs");
    let mut frames = [0; MAX_FRAMES];
    let (mut from, mut nr) = (0, 0);
    while let Some(stack) = map
        .next(&snapshot, from, &mut frames)
        .expect("no reset runs")
    {
        from = stack.next();
        nr += 1;
        visit(
            universe.number(&frames[..stack.nr]),
            stack.id,
            stack.ref_count,
        );
    }
    assert_eq!(map.count(&snapshot), Ok(nr));
    nr as usize
}

/// Runs as many rounds as `events` need; prints what happened.
fn scale(
    name: &str,
    bits: u32,
    depths: std::ops::Range<usize>,
    events: usize,
    exhausts: MapCounter,
) {
    let rounds = events.div_ceil(ROUND_MAX).max(16);
    let mut run = Run::new(bits, Universe::new(2 << bits, depths));
    let begun = Instant::now();
    for round in 0..rounds {
        run.round(round, events / rounds / THREADS);
    }
    let count = |counter| run.counts[counter as usize];
    let drops = MapCounter::ALL[MapCounter::DropFull as usize..]
        .iter()
        .map(|&counter| format!("{counter:?} {}", count(counter)))
        .collect::<Vec<_>>();
    println!(
        "# {name}: {} events, {} stacks in {} generations; {} hits, {} inserts, {}; \
         {} bytes stored, {} lost; {:.0?}",
        run.counts.iter().sum::<u64>(),
        run.stacks,
        run.generations,
        count(MapCounter::Hits),
        count(MapCounter::Inserts),
        drops.join(", "),
        run.stored,
        run.lost,
        begun.elapsed()
    );
    assert!(count(exhausts) > 0, "{name} was never exhausted");
}

/// Seven of eight events have shallow stacks, which exhaust the table; the others exhaust the pool.
#[test]
fn two_cpus_record_many_stacks() {
    let events = std::env::var("STACKMAP_SCALE").map_or(1_000_000, |events| {
        events.parse().expect("a number of events")
    });
    let bits = if events < 20_000_000 { 11 } else { 16 };
    scale("shallow", bits, 2..40, events / 8 * 7, MapCounter::DropFull);
    scale(
        "deep",
        10,
        200..MAX_FRAMES,
        events / 8,
        MapCounter::DropPool,
    );
}
