// SPDX-License-Identifier: GPL-2.0

//! What a slot holds: one word, 0 while the slot is empty.
//!
//! ```text
//!  63         43 42      32 31          0
//! +-------------+----------+-------------+
//! |    hash     |    nr    |   record    |
//! +-------------+----------+-------------+
//! |<---- fingerprint ----->|
//! ```
//!
//! The record's offset is never 0, so a word that names one is never 0. The fingerprint has the highest bits
//! of the hash. The lowest bits select the slot, so fingerprint and slot are independent.

use super::{
    pool::{Filled, Pool, Record},
    sys::Inside,
};
use core::{marker::PhantomData, num::NonZeroU64};

/// The bits of a fingerprint that are the number of frames.
const NR: u32 = (1 << 11) - 1;

/// What an empty slot holds.
pub(super) const EMPTY: u64 = 0;

/// A word of two halves.
#[inline(always)]
pub(super) const fn halves(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// The higher half of a word.
#[inline(always)]
pub(super) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The fingerprint of a stack: the highest bits of its hash, and its number of frames.
#[inline(always)]
pub(super) const fn fingerprint(hash: u64, nr: usize) -> u32 {
    high(hash) & !NR | nr as u32
}

/// The word that publishes a record of this hash. It has as many frames as the word says, or more.
pub(super) const fn naming(hash: u64, record: &Filled<'_>) -> u64 {
    halves(fingerprint(hash, record.nr()), record.offset())
}

/// What a slot holds that is not empty, for as long as a section.
///
/// # Invariants
///
/// It was loaded by O1 from a slot of the map that `pool` is of, in the generation of the section: the
/// record that it names is filled, and stays until the section ends.
#[derive(Clone, Copy)]
pub(super) struct Word<'s> {
    bits: NonZeroU64,
    pool: &'s Pool,
    section: PhantomData<Inside<'s>>,
}

impl<'s> Word<'s> {
    /// [`None`]: the slot is empty.
    ///
    /// # Safety
    ///
    /// `bits` were loaded from a slot as the invariant says.
    #[inline(always)]
    pub(super) unsafe fn new(bits: u64, pool: &'s Pool) -> Option<Self> {
        // INVARIANT: By the requirement.
        NonZeroU64::new(bits).map(|bits| Self {
            bits,
            pool,
            section: PhantomData,
        })
    }

    #[inline(always)]
    pub(super) const fn has(self, fingerprint: u32) -> bool {
        high(self.bits.get()) == fingerprint
    }

    /// The record that it names.
    #[inline(always)]
    pub(super) fn record(self) -> Record<'s> {
        let bits = self.bits.get();
        let nr = high(bits) & NR;
        // SAFETY: By the invariant, a record of so many frames is there.
        unsafe { self.pool.record(bits as u32, nr as usize) }
    }
}
