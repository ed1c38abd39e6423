// SPDX-License-Identifier: GPL-2.0

//! The rules that were learnt, by file and offset: a table of fixed size that all processes share.
//!
//! An entry is one word, so readers and writers need no lock:
//!
//! ```text
//!  63       29 28      0
//! +-----------+---------+
//! |    tag    |  rule   |
//! +-----------+---------+
//! ```
//!
//! The lower 15 bits of a site choose its set, and the other 35 are the tag: an entry is of one site only.

use super::rule::{self, Rule};
use core::{
    cell::Cell,
    sync::atomic::{fence, AtomicU32, AtomicU64, Ordering},
};

/// Bits of an offset in a file, and of a site.
const OFFSET_BITS: u32 = 32;
const SITE_BITS: u32 = 50;

/// How far the sites of a file are after those of the file before: no two files have one site, and offsets that
/// many files have are in different sets.
const STRIDE: u64 = (1 << OFFSET_BITS) + 0x4f1b;

/// Indices of files are below this.
pub const INDICES: u32 = ((1_u64 << SITE_BITS) / STRIDE) as u32;

/// Bits of the number of a set.
const SET_BITS: u32 = 15;
const _: () = assert!(SITE_BITS - SET_BITS + rule::BITS == u64::BITS);

/// The number of sets.
pub const SETS: usize = 1 << SET_BITS;

/// Entries that one site may be in.
const WAYS: usize = 4;

/// The bits of a rule.
const RULE: u64 = (1 << rule::BITS) - 1;

/// The entries of some sites, all 0 at first.
#[repr(align(32))]
#[derive(Default)]
pub struct Set([AtomicU64; WAYS]);

/// The memory of a table, from whatever allocator there is.
#[cfg(MODULE)]
pub type Sets = kernel::alloc::KVVec<Set>;
/// The memory of a table, from whatever allocator there is.
#[cfg(not(MODULE))]
pub type Sets = Vec<Set>;

/// The rules that are known.
pub struct Rules {
    sets: Sets,
    /// How many entries were replaced.
    replaced: AtomicU32,
    /// How often indices of files began anew.
    era: AtomicU32,
}

/// The rules, as readers need them.
#[derive(Clone, Copy)]
pub struct RuleTable<'a>(&'a [Set; SETS]);

/// A file and an offset in it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Site(u64);

impl Site {
    /// Returns the site of an offset in a file. [`None`]: the offset or the index is too large.
    ///
    /// No two files that are known at once have the same index, see `FileRuleTable`. Before an index is used again
    /// another [era](Rules::era) begins.
    pub const fn new(index: u32, offset: u64) -> Option<Self> {
        if offset >> OFFSET_BITS != 0 || index >= INDICES {
            return None;
        }
        Some(Self(index as u64 * STRIDE + offset))
    }

    /// Returns whether it is in the file with this index.
    pub const fn is_in(self, index: u32) -> bool {
        self.0.wrapping_sub(index as u64 * STRIDE) >> OFFSET_BITS == 0
    }

    /// Returns the site `bytes` after this one, which is in the same file.
    #[inline(always)]
    pub const fn after(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Returns a number that no other site has in the same [era](Rules::era).
    pub const fn number(self) -> u64 {
        self.0
    }

    #[inline(always)]
    const fn set(self) -> usize {
        self.0 as usize % SETS
    }

    #[inline(always)]
    const fn tag(self) -> u64 {
        self.0 >> SET_BITS << rule::BITS
    }
}

impl Rules {
    /// Returns an empty table in `sets`. [`None`]: their number is not [`SETS`].
    pub fn new(sets: Sets) -> Option<Self> {
        (sets.len() == SETS).then_some(Self {
            sets,
            replaced: AtomicU32::new(0),
            era: AtomicU32::new(0),
        })
    }

    /// Returns a view for readers. [`None`]: never. Context: any.
    #[inline(always)]
    pub fn table(&self) -> Option<RuleTable<'_>> {
        self.sets[..].try_into().ok().map(RuleTable)
    }

    /// Returns the rule of a site. [`None`]: it is not known. Context: any.
    #[inline(always)]
    pub fn get(&self, site: Site) -> Option<Rule> {
        self.table()?.get(site)
    }

    /// Stores the rule of a site; in a full set it replaces another one. Context: any.
    pub fn put(&self, site: Site, rule: Rule) {
        let Some(Set(entries)) = self.sets.get(site.set()) else {
            return;
        };
        let known = |entry: &&AtomicU64| {
            let bits = entry.load(Ordering::Relaxed);
            bits == 0 || bits & !RULE == site.tag()
        };
        let replaced = || {
            let next = self.replaced.fetch_add(1, Ordering::Relaxed);
            entries.get(next as usize % WAYS)
        };
        if let Some(entry) = entries.iter().find(known).or_else(replaced) {
            let bits = site.tag() | u64::from(rule.bits());
            entry.store(bits, Ordering::Relaxed);
        }
    }

    /// Returns a number that changes before the index of a file is used again. Context: any.
    pub fn era(&self) -> u32 {
        // ORDERING: Acquire; O6 in Documentation/design.rst: whose rule was seen, its era is seen.
        fence(Ordering::Acquire);
        self.era.load(Ordering::Relaxed)
    }

    /// Returns what `read` finds by rules of files whose indices it looks up under a lock that the beginning of an era
    /// takes: the load before it cannot be later than that. `read` gets a function that returns whether what it has read is
    /// right, and is called again if it was not. Context: any.
    pub fn in_one_era<T>(&self, mut read: impl FnMut(&dyn Fn() -> bool) -> Option<T>) -> Option<T> {
        loop {
            let era = self.era();
            let ended = Cell::new(false);
            let found = read(&|| {
                ended.set(self.era() != era);
                !ended.get()
            });
            if !ended.get() {
                return found;
            }
        }
    }

    /// Forgets all rules, as indices of files are used again. Context: any.
    pub fn begin_era(&self) {
        self.era.fetch_add(1, Ordering::Relaxed);
        self.forget();
    }

    /// Forgets all rules, except for rules that are just being put. Context: any.
    pub fn forget(&self) {
        for Set(entries) in &self.sets {
            for entry in entries {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl RuleTable<'_> {
    /// Returns the rule of a site. [`None`]: it is not known. Context: any.
    #[inline(always)]
    pub fn get(&self, site: Site) -> Option<Rule> {
        let Set(entries) = &self.0[site.set()];
        for entry in entries {
            let bits = entry.load(Ordering::Relaxed) ^ site.tag();
            if bits <= RULE {
                return Rule::from_bits(bits as u32);
            }
        }
        None
    }
}
