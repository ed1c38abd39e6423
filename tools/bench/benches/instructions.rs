// SPDX-License-Identifier: GPL-2.0

//! Instructions, counted by valgrind: they repeat from run to run and from machine to machine.
//!
//! `tools/bench/map` divides by the number of operations that a bench says in its name.

#![allow(missing_docs, reason = "what the macros make has none")]

use gungraun::{library_benchmark, library_benchmark_group, main};
use stackmap_bench::{jhash, map, record, stack, stacks};
use stackmap_map::{CtxGuard, Map, ReadSide, Seed};
use std::hint::black_box;

/// The context that records, and the stacks.
struct Case {
    guard: CtxGuard<'static>,
    stacks: Vec<Vec<u64>>,
}

type Prepared = &'static Case;

/// Prepares a map with capacity for all stacks that follow.
fn case(map: Map, context: usize, stacks: Vec<Vec<u64>>) -> Prepared {
    let map = Box::leak(Box::new(map));
    let section = Box::leak(Box::new(ReadSide::enter()));
    // SAFETY: The only thread, in a section that never ends.
    let guard = unsafe { map.enter(section.inside(), context) };
    Box::leak(Box::new(Case { guard, stacks }))
}

#[inline(always)]
fn get_id(case: Prepared) -> u32 {
    let found = case.guard.get_id(black_box(&case.stacks[0]));
    found.map_or(0, |found| found.id.get())
}

/// A stack whose references this context holds back.
fn batched(depth: usize) -> Prepared {
    let (map, frames) = (map(10, 1), stack(0, depth));
    record(&map, 0, &frames).expect("an id");
    case(map, 0, vec![frames])
}

/// A stack that another context has seen.
fn known(depth: usize) -> Prepared {
    let (map, frames) = (map(10, 2), stack(0, depth));
    record(&map, 0, &frames).expect("an id");
    case(map, 1, vec![frames])
}

/// A new stack.
fn new(depth: usize) -> Prepared {
    case(map(10, 1), 0, vec![stack(0, depth)])
}

/// Stacks to look up in a table with this many percent of its stacks.
const LOOKUPS: usize = 1024;

fn loaded(percent: u64) -> Prepared {
    let map = map(14, 2);
    let nr = u64::from(map.capacity()) * percent / 100;
    let all = stacks(0, nr);
    for frames in &all {
        record(&map, 0, frames).expect("an id");
    }
    // Evenly spread over the order of insertion: the last stacks have the longest searches.
    let looked_up = (0..LOOKUPS).map(|n| all[n * all.len() / LOOKUPS].clone());
    case(map, 1, looked_up.collect())
}

#[library_benchmark]
#[benches::depth(args = [4, 8, 16, 32, 64, 128], setup = batched)]
fn hit_batched(case: Prepared) -> u32 {
    get_id(case)
}

#[library_benchmark]
#[benches::depth(args = [4, 8, 16, 32, 64, 128], setup = known)]
fn hit_not_batched(case: Prepared) -> u32 {
    get_id(case)
}

#[library_benchmark]
#[benches::depth(args = [4, 8, 16, 32, 64, 128], setup = new)]
fn insert(case: Prepared) -> u32 {
    get_id(case)
}

#[library_benchmark]
#[benches::percent(args = [10, 50, 95, 100], setup = loaded)]
fn lookup_1024(case: Prepared) -> usize {
    let found = |frames: &&Vec<u64>| case.guard.get_id(black_box(frames)).is_ok();
    case.stacks.iter().filter(found).count()
}

#[library_benchmark]
#[benches::depth(args = [4, 8, 16, 32, 64, 128], setup = frames)]
fn hash(frames: &'static [u64]) -> u64 {
    Seed::new([5, 6]).hash(black_box(frames))
}

fn frames(depth: usize) -> &'static [u64] {
    stack(0, depth).leak()
}

#[library_benchmark]
#[benches::depth(args = [4, 8, 16, 32, 64, 128], setup = words)]
fn hash_by_jhash(words: &'static [u32]) -> u32 {
    jhash(black_box(words), 5)
}

fn words(depth: usize) -> &'static [u32] {
    let halves = |frame: u64| [frame as u32, (frame >> 32) as u32];
    let words: Vec<u32> = stack(0, depth).into_iter().flat_map(halves).collect();
    words.leak()
}

library_benchmark_group!(
    name = map_costs,
    benchmarks = [
        hit_batched,
        hit_not_batched,
        insert,
        lookup_1024,
        hash,
        hash_by_jhash
    ]
);

main!(library_benchmark_groups = map_costs);
