// SPDX-License-Identifier: GPL-2.0

//! What a slot holds: one word, 0 while the slot is empty.
//!
//! ```text
//!  63         43 42      32 31          0
//! +-------------+----------+-------------+
//! |  hash tag   |    nr    |   record    |
//! +-------------+----------+-------------+
//! |<---- fingerprint ----->|
//! ```
//!
//! The record's offset is never 0, so a word that names one is never 0. The tag is the highest bits
//! of the hash. The lowest bits select the slot, so tag and slot are independent.

const NR_BITS: u32 = 11;
const FINGERPRINT_SHIFT: u32 = 32;
const TAG_SHIFT: u32 = FINGERPRINT_SHIFT + NR_BITS;

/// The content of a slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Word(u64);

impl Word {
    pub(super) const EMPTY: Self = Self(0);

    /// The fingerprint of a stack: the tag of its hash, and its number of frames.
    #[inline(always)]
    pub(super) const fn fingerprint(hash: u64, nr: usize) -> u32 {
        (hash >> TAG_SHIFT << NR_BITS) as u32 | nr as u32
    }

    pub(super) const fn new(fingerprint: u32, record: u32) -> Self {
        Self((fingerprint as u64) << FINGERPRINT_SHIFT | record as u64)
    }

    #[inline(always)]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(super) const fn has(self, fingerprint: u32) -> bool {
        (self.0 >> FINGERPRINT_SHIFT) as u32 == fingerprint
    }

    /// The offset of the record in the pool.
    #[inline(always)]
    pub(super) const fn record(self) -> u32 {
        self.0 as u32
    }

    /// The number of frames of the stack.
    #[inline(always)]
    pub(super) const fn nr(self) -> usize {
        (self.0 >> FINGERPRINT_SHIFT) as usize & ((1 << NR_BITS) - 1)
    }
}
