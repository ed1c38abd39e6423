// SPDX-License-Identifier: GPL-2.0

//! Stack ids: a generation above a slot number.
//!
//! ```text
//!  31 30            bits+1 bits             0
//! +--+--------------------+------------------+
//! | 0|     generation     |       slot       |
//! +--+--------------------+------------------+
//! ```
//!
//! The table has `2^(bits+1)` slots, so a generation has `30 - bits` bits: from 10 (`bits=20`) to
//! 20 (`bits=10`). Generation 0 is never used, so no id is 0. That leaves 1,023 (`bits=20`) to
//! 1,048,575 (`bits=10`) generations.
//!
//! **Within a map** a reset that removes a stack moves on to the next generation. A reset that
//! finds no stack keeps the generation, because no id of it was given out. So an id is recognised
//! as stale until as many resets as there are generations have removed stacks: 1,023 with
//! `bits=20`. Then the generation is reused, and the old id names the stack that now is in its
//! slot.
//!
//! **Between maps** generations are random. The ring buffer of a CPU that was offline at unload
//! still holds ids of the freed map. The first generation of a map is drawn from its seed, so an id
//! of another map has this map's generation with a probability of one in the number of generations.
//! Such an id names a wrong stack if its slot is in use.

use super::Seed;

/// The id of a stack: 31 bits, positive.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Id(u32);

impl Id {
    /// Makes an id of the number that a trace has.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the number that the trace has, in `1..=i32::MAX`.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the slot that it names in a table of `slots`, always one of the table.
    pub(super) const fn slot(self, slots: u32) -> u32 {
        self.0 & (slots - 1)
    }
}

/// A generation of ids: the bits above the slot, not shifted down. Never 0. `slots`, the number of slots of the
/// table, is a power of two, and at least 2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Generation(u32);

impl Generation {
    /// Returns the id of the stack in `slot`, which is a slot of the table.
    #[inline(always)]
    pub(super) const fn id(self, slot: u32) -> Id {
        Id(self.0 | slot)
    }

    /// Returns the generation that has these bits in its ids, or [`None`] for 0.
    #[inline(always)]
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }

    /// Returns the bits that its ids have of it.
    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the first generation of a map with this seed; all generations are equally likely.
    pub(super) fn first(seed: Seed, slots: u32) -> Self {
        let generations = (1 << 31) / slots - 1;
        Self((1 + seed.draw(generations)) * slots)
    }

    /// Returns the generation after this one; the highest one is followed by the lowest.
    pub(super) const fn next(self, slots: u32) -> Self {
        match (self.0 + slots) % (1 << 31) {
            0 => Self(slots),
            next => Self(next),
        }
    }
}
