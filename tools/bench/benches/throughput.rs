// SPDX-License-Identifier: GPL-2.0

//! Two CPUs over one: how much more they record together.
//!
//! One thread alone, then both, in short slices by turns. What counts is a slice in which each
//! thread had its CPU to itself, two slices that were at the same time for nine tenths of the
//! longer one, and the median of many: then neither other programs nor a clock that changes its rate
//! are measured, nor two threads that take turns. `--seconds N` bounds the time for each row
//! (default 10).

use rustix::time::{clock_gettime, ClockId, Timespec};
use stackmap_bench::{map, record, stack, stacks};
use stackmap_map::{Map, ReadSide};
use std::{
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Events of one thread in one slice: about a millisecond.
const EVENTS: usize = 30_000;

/// Slices of each kind that are enough.
const ENOUGH: usize = 400;

/// One thread in one slice.
#[derive(Clone, Copy)]
struct Slice {
    begun: Instant,
    ended: Instant,
    /// By the thread's own clock.
    own: Duration,
}

impl Slice {
    /// Whether the thread had its CPU to itself.
    fn undisturbed(self) -> bool {
        self.wall() < self.own.mul_f64(1.05)
    }

    fn wall(self) -> Duration {
        self.ended - self.begun
    }

    /// Nanoseconds per event.
    fn cost(self) -> f64 {
        self.own.as_nanos() as f64 / EVENTS as f64
    }
}

/// Whether two slices overlap by all but a tenth of the longer one.
fn overlap([one, other]: [Slice; 2]) -> bool {
    let both = one
        .ended
        .min(other.ended)
        .checked_duration_since(one.begun.max(other.begun));
    both.is_some_and(|both| both > one.wall().max(other.wall()).mul_f64(0.9))
}

/// Where two threads meet. They wait on their CPUs: to wake a thread up takes as long as a slice.
#[derive(Default)]
struct Gate(AtomicUsize);

impl Gate {
    /// Waits for the other one.
    fn meet(&self) {
        let meeting = self.0.fetch_add(1, Ordering::AcqRel) / 2;
        while self.0.load(Ordering::Acquire) / 2 == meeting {
            std::hint::spin_loop();
        }
    }
}

/// What a thread does in every slice.
struct Work<'a> {
    map: &'a Map,
    context: usize,
    stacks: &'a [Vec<u64>],
}

impl Work<'_> {
    fn slice(&self) -> Slice {
        let section = ReadSide::enter();
        // SAFETY: Each thread has a context of its own; inside a read-side section.
        let guard = unsafe { self.map.enter(section.inside(), self.context) };
        let (begun, own) = (Instant::now(), own_time());
        for frames in self.stacks.iter().cycle().take(EVENTS) {
            black_box(guard.get_id(black_box(frames))).expect("a known stack");
        }
        let own = own_time() - own;
        Slice {
            begun,
            ended: Instant::now(),
            own,
        }
    }
}

fn own_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures two threads over one and prints a line.
fn row(name: &str, works: [Work<'_>; 2], time: Duration) {
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    let mut apart = 0;
    let gate = Gate::default();
    let deadline = Instant::now() + time;
    let [mine, theirs] = works;
    let rounds = thread::scope(|scope| {
        let gate = &gate;
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let (answer, answered) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for () in asked {
                gate.meet();
                answer.send(theirs.slice()).expect("it waits for this");
            }
        });
        let mut rounds = 0;
        while (alone.len() < ENOUGH || together.len() < ENOUGH) && Instant::now() < deadline {
            rounds += 1;
            let slice = mine.slice();
            if slice.undisturbed() {
                alone.push(slice.cost());
            }
            ask.send(()).expect("the thread is there");
            gate.meet();
            let slices = [mine.slice(), answered.recv().expect("an answer")];
            if slices.iter().all(|slice| slice.undisturbed()) {
                if overlap(slices) {
                    together.push(slices[0].cost().max(slices[1].cost()));
                } else {
                    apart += 1;
                }
            }
        }
        rounds
    });
    if alone.is_empty() || together.is_empty() {
        println!(
            "{name:<28} not measured: of {rounds} slices {} alone and {} of two threads, and {apart} \
             of two that were not at the same time",
            alone.len(),
            together.len()
        );
        return;
    }
    let counts = (alone.len(), together.len());
    let (alone, together) = (median(alone), median(together));
    println!(
        "{name:<28} {alone:6.1} ns alone, {together:6.1} ns together: {:.2} times one \
         ({} and {} slices of {rounds}; {apart} of two threads were not at the same time)",
        2.0 * alone / together,
        counts.0,
        counts.1
    );
}

fn seconds() -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--seconds");
    arguments
        .nth(1)
        .map_or(10, |seconds| seconds.parse().expect("a number of seconds"))
}

/// Stacks whose references two contexts hold back in one set: whose slots have the same lowest bits.
fn of_one_set(map: &Map, nr: usize) -> Vec<Vec<u64>> {
    let set = |frames: &Vec<u64>| {
        let found = record(map, 0, frames).expect("an id");
        // More sets than a context has.
        found.id.get() % 1024
    };
    let all = stacks(2048, 4096);
    let first = set(&all[0]);
    let same = all.into_iter().filter(|frames| set(frames) == first);
    same.take(nr).collect()
}

fn main() {
    let time = Duration::from_secs(seconds());
    let shared = map(14, 2);
    let own = [map(14, 1), map(14, 1)];
    let sets = [stacks(0, 512), stacks(512, 512)];
    let hot = [stack(1, stackmap_bench::DEPTH)];
    let many = stacks(1024, 64);
    let two = of_one_set(&shared, 2);
    for frames in sets.iter().flatten().chain(&hot).chain(&many).chain(&two) {
        for map in [&shared, &own[0], &own[1]] {
            record(map, 0, frames).expect("an id");
        }
    }
    let work = |map, context, stacks| Work {
        map,
        context,
        stacks,
    };
    let apart = |stacks| [work(&own[0], 0, stacks), work(&own[1], 0, stacks)];
    let together = |stacks| [work(&shared, 0, stacks), work(&shared, 1, stacks)];
    row("two maps, one stack each", apart(&hot), time);
    row("one map, the same stack", together(&hot), time);
    row("one map, the same 64 stacks", together(&many), time);
    row("one map, two stacks, one set", together(&two), time);
    row("two maps, 512 stacks each", apart(&sets[0]), time);
    let distinct = [work(&shared, 0, &sets[0]), work(&shared, 1, &sets[1])];
    row("one map, distinct stacks", distinct, time);
}
