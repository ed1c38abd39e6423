// SPDX-License-Identifier: GPL-2.0

//! The table of unwind rules.
//!
//! An entry is one word, so a reader in NMI sees a whole rule or none, also while another CPU writes:
//!
//! ```text
//!  63            32 31          0
//! +----------------+-------------+
//! |  ip in text    |    rule     |
//! +----------------+-------------+
//! ```
//!
//! All text of an x86-64 kernel is in the highest 2 GiB, so 31 bits of an address name it. Two CPUs that learn the
//! same address learn the same rule: the table may hold it twice, never differently. No operation waits for another,
//! and none orders anything: nothing but the word is shared.

use super::rule::UnwindRule;
use core::{
    ops::Range,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// Entries that one address may be in: a cache line.
const WAYS: usize = 8;

/// The maximum number of lines of a table, which the bits of a hash bound.
const MAX_LINES: usize = 1 << 12;

/// Where text begins, the highest 2 GiB: an entry has how far an address is from here.
const TEXT: u64 = !0 << 31;

/// A cache line of entries, 0 where there is none.
#[repr(C, align(64))]
#[derive(Default)]
pub struct RuleLine([AtomicU64; WAYS]);

/// The memory of a table.
#[cfg(MODULE)]
pub type RuleLines = kernel::alloc::KVVec<RuleLine>;
/// The memory of a table.
#[cfg(not(MODULE))]
pub type RuleLines = Vec<RuleLine>;

/// The rules that are known.
///
/// # Invariants
///
/// `mask` is one less than the number of entries in `sets`, which is a power of two and does not change.
pub struct UnwindRules {
    lines: RuleLines,
    mask: usize,
    nr: AtomicU32,
    replaced: AtomicU64,
}

impl UnwindRules {
    /// Makes an empty table in `lines`, whose number is a power of two and at most 4,096. It goes on counting
    /// from `replaced`.
    pub fn new(lines: RuleLines, replaced: u64) -> Option<Self> {
        let nr = lines.len();
        // INVARIANT: So it is here, and `sets` is never written.
        (nr.is_power_of_two() && nr <= MAX_LINES).then(|| Self {
            lines,
            mask: nr * WAYS - 1,
            nr: AtomicU32::new(0),
            replaced: AtomicU64::new(replaced),
        })
    }

    /// Returns the number of rules in the table.
    pub fn nr(&self) -> u32 {
        self.nr.load(Relaxed)
    }

    /// Returns the number of rules that others have replaced: the table's pressure.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Relaxed)
    }

    /// Returns the entries, for one walk.
    #[inline(always)]
    pub fn table(&self) -> RulesRef<'_> {
        // INVARIANT: It is that of `self`.
        RulesRef {
            lines: &self.lines,
            mask: self.mask,
        }
    }

    /// Returns the rule of the call that returns to `ip`, or [`UnwindRule::UNKNOWN`] if it has not been learnt.
    ///
    /// Context: any, NMI included.
    pub fn get(&self, ip: u64) -> UnwindRule {
        self.table().get(ip)
    }

    /// Stores the rule of an address, and replaces another one if need be.
    ///
    /// Context: any, NMI included.
    pub fn put(&self, ip: u64, rule: UnwindRule) {
        let key = key(ip);
        if ip < TEXT || rule == UnwindRule::UNKNOWN {
            return;
        }
        let table = self.table();
        let first = table.first(key);
        let new = key << 32 | u64::from(rule.bits());
        for way in 0..WAYS {
            let entry = table.entry(first, way);
            let old = entry.load(Relaxed);
            if old >> 32 == key && old != 0 {
                return;
            }
            if old == 0 && exchange(entry, 0, new) {
                self.nr.fetch_add(1, Relaxed);
                return;
            }
        }
        // Another CPU may replace the same entry at the same time and win.
        let way = self.replaced.fetch_add(1, Relaxed) as usize;
        let entry = table.entry(first, way);
        let old = entry.load(Relaxed);
        if exchange(entry, old, new) && old == 0 {
            self.nr.fetch_add(1, Relaxed);
        }
    }

    /// Removes the rules of all addresses in `text`. Returns whether there were any.
    ///
    /// Context: any. A CPU that is just learning a rule may store it afterwards.
    pub fn forget(&self, text: &Range<u64>) -> bool {
        let mut found = false;
        for entry in self.lines.iter().flat_map(|set| &set.0) {
            let old = entry.load(Relaxed);
            // The address after a call may be the first after the text.
            let ip = TEXT.wrapping_add(old >> 32);
            if old == 0 || ip <= text.start || text.end < ip {
                continue;
            }
            found = true;
            if exchange(entry, old, 0) {
                self.nr.fetch_sub(1, Relaxed);
            }
        }
        found
    }
}

/// Returns what an entry has of an address: how far it is after the beginning of text. That of an address which is
/// not text does not fit.
#[inline(always)]
fn key(ip: u64) -> u64 {
    ip.wrapping_sub(TEXT)
}

/// The entries of a table.
///
/// # Invariants
///
/// `mask` is one less than their number, which is a power of two.
#[derive(Clone, Copy)]
pub struct RulesRef<'a> {
    lines: &'a [RuleLine],
    mask: usize,
}

impl<'a> RulesRef<'a> {
    /// Returns the first entry to look at for a key.
    #[inline(always)]
    fn first(&self, key: u64) -> usize {
        // Fibonacci hashing: the golden ratio in 32 bits, and as many of the highest bits as the largest
        // table needs.
        let hash = (key as u32).wrapping_mul(0x9e37_79b1);
        (hash >> (32 - (MAX_LINES * WAYS).ilog2())) as usize & self.mask
    }

    /// Returns an entry of the cache line that `first` is in: the first one, and those after it, in turn.
    #[inline(always)]
    fn entry(&self, first: usize, way: usize) -> &'a AtomicU64 {
        &self.lines[first / WAYS].0[first.wrapping_add(way) % WAYS]
    }

    /// Returns the rule of the call that returns to `ip`, or [`UnwindRule::UNKNOWN`] if it has not been learnt.
    ///
    /// Context: any, NMI included.
    #[inline(always)]
    pub fn get(&self, ip: u64) -> UnwindRule {
        let key = key(ip);
        let first = self.first(key);
        // SAFETY: By the invariant, there are `len` entries; a set is nothing but its entries.
        let entry = unsafe { &*self.lines.as_ptr().cast::<AtomicU64>().add(first) };
        let entry = entry.load(Relaxed);
        // The key of an address that is not text is too large.
        if entry >> 32 == key {
            return UnwindRule::from_bits(entry as u32);
        }
        self.get_slow(key, first)
    }

    #[cold]
    #[cfg_attr(MODULE, link_section = ".kprobes.text")]
    fn get_slow(&self, key: u64, first: usize) -> UnwindRule {
        for way in 1..WAYS {
            let entry = self.entry(first, way).load(Relaxed);
            if entry >> 32 == key {
                return UnwindRule::from_bits(entry as u32);
            }
        }
        UnwindRule::UNKNOWN
    }
}

fn exchange(entry: &AtomicU64, old: u64, new: u64) -> bool {
    entry.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
}
