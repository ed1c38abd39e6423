// SPDX-License-Identifier: GPL-2.0

//! P8: the hash spreads stacks over slots and fingerprints no worse than a random function would.
//!
//! The stacks are those of a guest (`data/`, see `data/capture`), and such as differ as little as
//! stacks can. For each set and each of many seeds the counts of stacks in equal parts of the hash's
//! range are compared with those of a random function, for which they are known: the sum of squares
//! is that of a chi-square law, the probes are Knuth's for linear probing.

use stackmap_map::{Seed, PROBE_LIMIT};
use std::{collections::HashSet, path::Path, process::Command};

/// Bits of the hash that are in a fingerprint, its highest; see `src/map/record.rs`.
const FINGERPRINT_BITS: u32 = 21;

const SEEDS: u64 = 64;

type Stacks = Vec<Vec<u64>>;

/// The captured stacks.
fn captured() -> Stacks {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("selftests/map/data/stacks.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(path).output();
    let bytes = unpacked.expect("gzip").stdout;
    let (nr, rest) = bytes.split_first_chunk().expect("the number of frames");
    let (frames, rest) = rest.split_at(8 * u32::from_le_bytes(*nr) as usize);
    let frames: Vec<u64> = frames
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
        .collect();
    let mut numbers = rest
        .chunks_exact(2)
        .map(|bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])));
    let mut stacks = Stacks::new();
    while let Some(nr) = numbers.next() {
        stacks.push(numbers.by_ref().take(nr).map(|n| frames[n]).collect());
    }
    stacks
}

/// The longest captured stack.
fn longest() -> Vec<u64> {
    let stacks = captured();
    stacks.into_iter().max_by_key(Vec::len).expect("a stack")
}

/// `stack` with a change.
fn changed(stack: &[u64], change: impl FnOnce(&mut Vec<u64>)) -> Vec<u64> {
    let mut stack = stack.to_vec();
    change(&mut stack);
    stack
}

/// Stacks that differ from one in one bit.
fn one_bit() -> Stacks {
    let stack = longest();
    let bits = (0..stack.len()).flat_map(|frame| (0..64).map(move |bit| (frame, bit)));
    bits.map(|(frame, bit)| changed(&stack, |stack| stack[frame] ^= 1 << bit))
        .collect()
}

/// Stacks that differ from one in the same bit of two frames: their sum by exclusive or is the same.
fn one_bit_twice() -> Stacks {
    let stack = longest();
    let pairs = (1..stack.len()).flat_map(|frame| (0..48).map(move |bit| (frame, bit)));
    pairs
        .map(|(frame, bit)| {
            changed(&stack, |stack| {
                stack[frame - 1] ^= 1 << bit;
                stack[frame] ^= 1 << bit;
            })
        })
        .collect()
}

/// Stacks of which one frame differs by a little, as calls in one function do.
fn one_frame() -> Stacks {
    let stack = longest();
    (0..4096)
        .map(|n| changed(&stack, |stack| stack[n as usize % 4] += n / 4 * 16))
        .collect()
}

/// Stacks of the same frames in other orders.
fn swapped() -> Stacks {
    let mut stack = longest();
    let mut distinct = HashSet::new();
    stack.retain(|frame| distinct.insert(*frame));
    let pairs = (0..stack.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    let mut stacks: Stacks = pairs
        .map(|(i, j)| changed(&stack, |stack| stack.swap(i, j)))
        .collect();
    stacks.extend((1..stack.len()).map(|n| changed(&stack, |stack| stack.rotate_left(n))));
    stacks
}

/// Stacks of which each has one frame more than another: of zeros, of one frame, of a loop.
fn one_more() -> Stacks {
    let stack = longest();
    let recursions = [vec![0], stack[..1].to_vec(), stack[..2].to_vec(), stack];
    let deep = |frames: &[u64], nr| frames.iter().copied().cycle().take(nr).collect();
    recursions
        .iter()
        .flat_map(|frames| (1..=1024).map(move |nr| deep(frames, nr)))
        .collect()
}

/// Stacks of kernels that lie elsewhere: moved by multiples of 2 MiB, as KASLR does.
fn relocated() -> Stacks {
    let stacks = captured();
    let some = stacks.iter().step_by(stacks.len().div_ceil(64));
    some.flat_map(|stack| {
        let by = |n: u64| move |frame: &u64| frame.wrapping_add(n << 21);
        (0..64).map(move |n| stack.iter().map(by(n)).collect())
    })
    .collect()
}

/// How far a sum of squares is beyond that of a random function, in standard deviations.
fn chi_square(parts: impl Iterator<Item = usize>, nr_parts: usize, nr: usize) -> f64 {
    let mut counts = vec![0_u32; nr_parts];
    parts.for_each(|part| counts[part] += 1);
    let expected = nr as f64 / nr_parts as f64;
    let squares = counts.iter().map(|n| (f64::from(*n) - expected).powi(2));
    let freedom = nr_parts as f64 - 1.0;
    (squares.sum::<f64>() / expected - freedom) / (2.0 * freedom).sqrt()
}

/// The slots that are looked at to find each of the stacks in a table that is half full.
fn probes(hashes: &[u64]) -> Vec<u32> {
    let slots = (2 * hashes.len()).next_power_of_two();
    let mut taken = vec![false; slots];
    // The load is to be one half, whatever the number of stacks is.
    let fill = slots / 2 - hashes.len();
    let fillers = (1..=fill as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7);
    let mut insert = |hash: u64| {
        let free = |probe: &u32| !taken[(hash as usize).wrapping_add(*probe as usize) % slots];
        let probe = (0..).find(free).expect("half of the slots are free");
        taken[(hash as usize).wrapping_add(probe as usize) % slots] = true;
        probe + 1
    };
    fillers.for_each(|hash| {
        insert(hash);
    });
    hashes.iter().map(|hash| insert(*hash)).collect()
}

/// Whether the hash is, on this set, as good as a random function; prints how good.
fn check(name: &str, stacks: &Stacks) {
    let distinct: HashSet<&Vec<u64>> = stacks.iter().collect();
    let stacks: Vec<&Vec<u64>> = distinct.into_iter().collect();
    let nr = stacks.len();
    let bits = (nr / 4).ilog2();
    let (mut slots, mut fingerprints, mut worst) = (0.0, 0.0, 0.0_f64);
    let (mut mean, mut longest, mut same_word) = (0.0, 0, 0);
    for seed in 0..SEEDS {
        let seed = Seed::new([seed, seed << 32]);
        let hashes: Vec<u64> = stacks.iter().map(|stack| seed.hash(stack)).collect();
        let distinct: HashSet<&u64> = hashes.iter().collect();
        assert_eq!(distinct.len(), nr, "{name}: two stacks have one hash");
        let part = |shift: u32| hashes.iter().map(move |hash| (hash >> shift) as usize);
        let mask = (1 << bits) - 1;
        let slot = chi_square(part(0).map(|h| h & mask), mask + 1, nr);
        let fingerprint = chi_square(part(64 - bits), mask + 1, nr);
        // The lowest bits of the fingerprint, which distinguish stacks with the same home slot.
        let low = chi_square(part(64 - FINGERPRINT_BITS).map(|h| h & mask), mask + 1, nr);
        (slots, fingerprints) = (slots + slot, fingerprints + fingerprint);
        worst = worst.max(slot).max(fingerprint).max(low);
        let words: HashSet<u64> = hashes
            .iter()
            .map(|hash| hash >> (64 - FINGERPRINT_BITS) << 32 | hash & 0xffff)
            .collect();
        same_word += nr - words.len();
        let probes = probes(&hashes);
        mean += f64::from(probes.iter().sum::<u32>()) / nr as f64;
        longest = longest.max(probes.into_iter().max().unwrap_or(0));
    }
    let seeds = SEEDS as f64;
    let (slots, fingerprints, mean) = (slots / seeds, fingerprints / seeds, mean / seeds);
    println!(
        "# {name}: {nr} stacks, {SEEDS} seeds: chi-square of slots {slots:+.2} and fingerprints {fingerprints:+.2} \
         standard deviations in the mean, {worst:+.1} at worst; probes {mean:.3} in the mean, \
         {longest} at most; {same_word} with the fingerprint and home of another"
    );
    // The mean over 64 seeds has a standard deviation of 1/8.
    assert!(
        slots < 0.6 && fingerprints < 0.6,
        "{name}: worse than random"
    );
    assert!(worst < 6.5, "{name}: far worse than random with one seed");
    // The last insert into a table that is half full makes (1 + 1/(1 - 1/2)^2) / 2 = 2.5 probes,
    // the mean of all is (1 + 1/(1 - 1/2)) / 2 = 1.5: those of a set are between.
    assert!(mean < 2.6, "{name}: {mean} probes");
    assert!(longest <= PROBE_LIMIT, "{name}: {longest} probes");
    // Random: nr^2 / 2^38 pairs for a seed.
    assert!(
        same_word <= 8,
        "{name}: {same_word} share fingerprint and home"
    );
}

#[test]
fn real_stacks_are_spread_evenly() {
    let stacks = captured();
    assert!(stacks.len() >= 2000, "only {} stacks", stacks.len());
    check("captured", &stacks);
}

#[test]
fn similar_stacks_are_spread_evenly() {
    for (name, stacks) in [
        ("one bit", one_bit()),
        ("one bit twice", one_bit_twice()),
        ("one frame", one_frame()),
        ("swapped", swapped()),
        ("one more", one_more()),
        ("relocated", relocated()),
    ] {
        check(name, &stacks);
    }
}

/// Each bit of a frame changes each bit of the hash about every second time, over many seeds.
#[test]
fn every_bit_of_a_frame_changes_the_hash() {
    let stacks: Stacks = captured().into_iter().step_by(5).collect();
    let seed = |n: usize| {
        let words = [n as u64, n as u64 + 1_000_000];
        Seed::new(words.map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    };
    // The last frames are mixed least often.
    for back in 1..=4 {
        for bit in 0..64 {
            let mut flips = [0_u32; 64];
            let mut nr = 0;
            for (n, stack) in stacks.iter().enumerate() {
                if stack.len() < back {
                    continue;
                }
                let seed = seed(n);
                let other = changed(stack, |stack| {
                    let frame = stack.len() - back;
                    stack[frame] ^= 1 << bit;
                });
                let difference = seed.hash(stack) ^ seed.hash(&other);
                for (bit, flips) in flips.iter_mut().enumerate() {
                    *flips += (difference >> bit & 1) as u32;
                }
                nr += 1;
            }
            for (out, flips) in flips.iter().enumerate() {
                let share = f64::from(*flips) / f64::from(nr);
                assert!(
                    (0.4..0.6).contains(&share),
                    "bit {bit} of the frame {back} from the end changes bit {out}: {share:.2}"
                );
            }
        }
    }
}

/// Every number below a bound is drawn as often as any other.
#[test]
fn numbers_are_drawn_evenly() {
    // The generations of the largest and of the smallest map, and the smallest bounds.
    for bound in [1023, (1 << 20) - 1, 1, 2, 3] {
        let nr = 200_000_u64;
        let parts = bound.min(1023) as usize;
        let part = |number: u32| (u64::from(number) * parts as u64 / u64::from(bound)) as usize;
        for words in [
            |n: u64| [n, 0],
            |n: u64| [0, n],
            |n: u64| [n << 32, n << 32],
            |n: u64| [n, n].map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        ] {
            let drawn: Vec<u32> = (0..nr).map(|n| Seed::new(words(n)).draw(bound)).collect();
            assert!(drawn.iter().all(|number| *number < bound));
            let mut seen = vec![false; parts];
            drawn.iter().for_each(|number| seen[part(*number)] = true);
            assert!(seen.iter().all(|seen| *seen), "never drawn below {bound}");
            if parts > 1 {
                let far = chi_square(drawn.iter().map(|n| part(*n)), parts, nr as usize);
                assert!(far < 5.0, "numbers below {bound}: {far}");
            }
        }
    }
}

/// The same stack has unrelated hashes under two seeds, however near they are.
#[test]
fn seeds_are_independent() {
    let stacks = captured();
    for bit in 0..128 {
        let words = [1_u128 << bit, 0].map(|bits| [bits as u64, (bits >> 64) as u64]);
        let [one, two] = words.map(Seed::new);
        let difference = |stack: &Vec<u64>| (one.hash(stack) ^ two.hash(stack)) as usize;
        let bits = (stacks.len() / 4).ilog2();
        let parts = stacks
            .iter()
            .map(|stack| difference(stack) & ((1 << bits) - 1));
        let far = chi_square(parts, 1 << bits, stacks.len());
        assert!(far < 7.0, "seeds that differ in bit {bit}: {far}");
    }
}
