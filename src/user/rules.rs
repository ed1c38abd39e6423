// SPDX-License-Identifier: GPL-2.0

//! The rules that were learnt, by file and offset: a table of fixed size that all processes share.
//!
//! An entry is a key of 64 bits and a rule of 32, more than one word. So each set of entries has a
//! sequence number, which is odd while the set is written: a reader whose number has changed has read
//! nothing. Readers and writers give up rather than wait; then a rule is learnt once more.

use super::rule::Rule;
use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

/// Entries that one key may be in.
const WAYS: usize = 4;

/// How often a reader tries.
const TRIES: u32 = 4;

/// The bits of no rule: it is known that there is none.
const NONE: u32 = 0;

/// A cache line of entries. A key of 0 is no entry.
#[repr(align(64))]
#[derive(Default)]
pub struct Set {
    sequence: AtomicU32,
    /// The entry that is replaced next.
    next: AtomicU32,
    rules: [AtomicU32; WAYS],
    keys: [AtomicU64; WAYS],
}

/// The memory of a table, from whatever allocator there is.
#[cfg(CONFIG_RUST)]
pub type Sets = kernel::alloc::KVVec<Set>;
/// The memory of a table, from whatever allocator there is.
#[cfg(not(CONFIG_RUST))]
pub type Sets = Vec<Set>;

/// The rules that are known, and the addresses that are known to have none.
pub struct Rules {
    sets: Sets,
}

impl Rules {
    /// An empty table in `sets`. [`None`]: their number is no power of two.
    pub fn new(sets: Sets) -> Option<Self> {
        sets.len().is_power_of_two().then_some(Self { sets })
    }

    fn set(&self, key: u64) -> Option<&Set> {
        // Fibonacci hashing; the golden ratio in 64 bits.
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mask = self.sets.len().wrapping_sub(1);
        self.sets.get((hash >> 32) as usize & mask)
    }

    /// What is known of a key: a rule, or that there is none. [`None`]: nothing. Context: any.
    pub fn get(&self, key: u64) -> Option<Option<Rule>> {
        let set = self.set(key).filter(|_| key != 0)?;
        for _ in 0..TRIES {
            // ORDERING: Acquire; the entries are read afterwards. Pairs with the release in `write`.
            let before = set.sequence.load(Ordering::Acquire);
            let mut entries = set.keys.iter().zip(&set.rules);
            let found = entries.find(|(other, _)| other.load(Ordering::Relaxed) == key);
            let bits = found.map(|(_, rule)| rule.load(Ordering::Relaxed));
            // ORDERING: The entries are read before the number; pairs with the fence in `write`.
            fence(Ordering::Acquire);
            if before % 2 == 0 && set.sequence.load(Ordering::Relaxed) == before {
                return bits.map(Rule::from_bits);
            }
        }
        None
    }

    /// Keeps what was learnt of a key, in the place of another one if need be. Context: any; the caller is
    /// not preempted.
    pub fn put(&self, key: u64, rule: Option<Rule>) {
        let Some(set) = self.set(key).filter(|_| key != 0) else {
            return;
        };
        set.write(|| {
            let has = |wanted| {
                let mut keys = set.keys.iter();
                keys.position(|other| other.load(Ordering::Relaxed) == wanted)
            };
            let way = has(key).or_else(|| has(0)).unwrap_or_else(|| {
                let next = set.next.load(Ordering::Relaxed);
                set.next.store(next.wrapping_add(1), Ordering::Relaxed);
                next as usize % WAYS
            });
            if let (Some(place), Some(bits)) = (set.keys.get(way), set.rules.get(way)) {
                place.store(key, Ordering::Relaxed);
                bits.store(rule.map_or(NONE, Rule::bits), Ordering::Relaxed);
            }
        });
    }

    /// Forgets all rules, but those that are just being put. Context: any; the caller is not preempted.
    pub fn forget(&self) {
        for set in &self.sets {
            set.write(|| {
                for key in &set.keys {
                    key.store(0, Ordering::Relaxed);
                }
            });
        }
    }
}

impl Set {
    /// Has `change` write the entries, unless another writer does.
    fn write(&self, change: impl FnOnce()) {
        let before = self.sequence.load(Ordering::Relaxed);
        let odd = before.wrapping_add(1);
        // ORDERING: Acquire; pairs with the release below: the last writer is done.
        let exchange = |old, new| {
            self.sequence
                .compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed)
        };
        if before % 2 != 0 || exchange(before, odd).is_err() {
            return;
        }
        // ORDERING: The number is odd before an entry changes; pairs with the fence in `get`.
        fence(Ordering::Release);
        change();
        // ORDERING: Release; pairs with the loads in `get` and above.
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }
}
