// SPDX-License-Identifier: GPL-2.0

//! The map in one generation: what is published stays until the section ends.

use super::{
    id::Generation,
    pool::{Extent, Pool},
    record::{fingerprint, halves, Record},
    sys::{Inside, Ordering},
    Fallback, Found, Id, Map,
};

/// The map in one generation, for as long as a section.
///
/// # Invariants
///
/// The generation was loaded by O2 in the section: a reset that begins a new one waits for the end of the
/// section before it removes anything.
#[derive(Clone, Copy)]
pub(super) struct Current<'s> {
    map: &'s Map,
    generation: Generation,
    _section: Inside<'s>,
}

impl Map {
    /// The map in its generation; [`None`] while a reset runs. Context: any.
    #[inline(always)]
    pub(super) fn current_in<'s>(&'s self, section: Inside<'s>) -> Option<Current<'s>> {
        let generation = self.generation()?;
        // INVARIANT: Just loaded, inside `section`.
        Some(Current {
            map: self,
            generation,
            _section: section,
        })
    }
}

impl<'s> Current<'s> {
    /// The generation.
    pub(super) const fn generation(self) -> Generation {
        self.generation
    }

    /// The record that a slot names; [`None`] if it is empty.
    #[inline(always)]
    pub(super) fn record(self, slot: u32) -> Option<Record<'s>> {
        // ORDERING: Acquire; O1, pairs with the swap in `publish`.
        let word = self.map.slots[slot as usize].load(Ordering::Acquire);
        // SAFETY: By the invariant, this is the generation of the section.
        unsafe { Record::new(word, &self.map.pool) }
    }

    /// The pool of the map.
    pub(super) const fn pool(self) -> &'s Pool {
        &self.map.pool
    }

    /// Reserves words, see [`Pool::reserve`].
    pub(super) fn reserve(
        self,
        words: u32,
        leave: impl FnOnce(Extent<'s>),
    ) -> Result<Extent<'s>, Fallback> {
        // SAFETY: By the invariant.
        unsafe { self.map.pool.reserve(words, leave) }
    }

    /// Publishes the record of a stack with this hash in an empty slot. Returns the rest of its extent; or
    /// the extent if the slot is not empty any more, or there is no record.
    ///
    /// # Safety
    ///
    /// The extent is of this map.
    pub(super) unsafe fn publish(
        self,
        slot: u32,
        hash: u64,
        extent: Extent<'s>,
    ) -> Result<Extent<'s>, Extent<'s>> {
        let Some(nr) = extent.nr() else {
            return Err(extent);
        };
        // The record has as many frames as the word says.
        let word = halves(fingerprint(hash, nr as usize), extent.offset());
        // ORDERING: Release; O1, pairs with the load in `record`.
        let swapped = self.map.slots[slot as usize].compare_exchange(
            0,
            word,
            Ordering::Release,
            Ordering::Relaxed,
        );
        match swapped {
            Ok(_) => Ok(extent.rest()),
            Err(_) => Err(extent),
        }
    }

    /// The id of the stack in `slot`.
    #[inline(always)]
    pub(super) const fn id(self, slot: u32) -> Id {
        self.generation.id(slot)
    }

    /// A stack that was recorded.
    #[inline(always)]
    pub(super) const fn found(self, slot: u32, inserted: bool) -> Found {
        Found {
            id: self.id(slot),
            inserted,
        }
    }
}
