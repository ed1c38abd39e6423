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
//! 20 (`bits=10`). Generation 0 is never used, hence no id is 0, and an id is recognised as stale
//! for at least `2^(30-bits) - 2` resets: 1,022 with `bits=20`.

/// The id of a stack: 31 bits, positive.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Id(u32);

impl Id {
    /// Takes an id as it was read from a trace.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The number that the trace carries, in `1..=i32::MAX`.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A generation of ids: what all of them have above the slot, at its place. Never 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Generation(u32);

impl Generation {
    /// The id of the stack in `slot`, which is a slot of the table.
    #[inline(always)]
    pub(super) const fn id(self, slot: u32) -> Id {
        Id(self.0 | slot)
    }

    /// The generation as bits of an id, and back.
    #[inline(always)]
    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// See [`Generation::from_bits`].
    pub(super) const fn bits(self) -> u32 {
        self.0
    }
}

/// How ids divide their bits in a table of `2^slot_bits` slots.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    slot_bits: u32,
}

impl Layout {
    pub(super) const fn new(slot_bits: u32) -> Self {
        Self { slot_bits }
    }

    /// The slot that an id names, always one of the table.
    pub(super) const fn slot(self, id: Id) -> u32 {
        id.0 & ((1 << self.slot_bits) - 1)
    }

    /// The generation that an id is of.
    pub(super) const fn generation(self, id: Id) -> Generation {
        Generation(id.0 >> self.slot_bits << self.slot_bits)
    }

    /// The first generation of a map.
    pub(super) const fn first(self) -> Generation {
        Generation(1 << self.slot_bits)
    }

    /// The generation after `generation`; the last one is followed by the first.
    pub(super) const fn next(self, generation: Generation) -> Generation {
        let next = generation.0 + (1 << self.slot_bits);
        if next > i32::MAX as u32 {
            self.first()
        } else {
            Generation(next)
        }
    }
}
