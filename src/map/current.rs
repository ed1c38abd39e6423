// SPDX-License-Identifier: GPL-2.0

//! The map in one generation: what is published stays until the section ends.

use super::{
    id::Generation,
    pool::{Pool, WordRange},
    record::Record,
    sys::{Inside, Ordering},
    word::{fingerprint, halves},
    Fallback, Id, Lookup, Map,
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
    /// Returns the map in its generation, or [`None`] while a reset runs. Context: any.
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
    /// Returns the generation.
    pub(super) const fn generation(self) -> Generation {
        self.generation
    }

    /// Returns the record that a slot names, or [`None`] if the slot is empty.
    #[inline(always)]
    pub(super) fn record(self, slot: u32) -> Option<Record<'s>> {
        // ORDERING: Acquire; O1, pairs with the swap in `publish`.
        let word = self.map.slots[slot as usize].load(Ordering::Acquire);
        // SAFETY: By the invariant, this is the generation of the section.
        unsafe { Record::new(word, &self.map.pool) }
    }

    /// Returns the pool of the map.
    pub(super) const fn pool(self) -> &'s Pool {
        &self.map.pool
    }

    /// Reserves words, see [`Pool::reserve`].
    pub(super) fn reserve(
        self,
        words: u32,
        skip: impl FnOnce(WordRange<'s>),
    ) -> Result<WordRange<'s>, Fallback> {
        // SAFETY: By the invariant.
        unsafe { self.map.pool.reserve(words, skip) }
    }

    /// Publishes the record of a stack with this hash in an empty slot. Returns the words after the
    /// record; or all of the range if the slot is not empty any more, or there is no record.
    ///
    /// # Safety
    ///
    /// The range is of this map.
    pub(super) unsafe fn publish(
        self,
        slot: u32,
        hash: u64,
        range: WordRange<'s>,
    ) -> Result<WordRange<'s>, WordRange<'s>> {
        let Some(nr) = range.nr() else {
            return Err(range);
        };
        // The record has as many frames as the word says.
        let word = halves(fingerprint(hash, nr as usize), range.offset());
        // ORDERING: Release; O1, pairs with the load in `record`.
        let swapped = self.map.slots[slot as usize].compare_exchange(
            0,
            word,
            Ordering::Release,
            Ordering::Relaxed,
        );
        match swapped {
            Ok(_) => Ok(range.rest()),
            Err(_) => Err(range),
        }
    }

    /// Returns the id of the stack in `slot`.
    #[inline(always)]
    pub(super) const fn id(self, slot: u32) -> Id {
        self.generation.id(slot)
    }

    /// Returns the id of a stack that was recorded.
    #[inline(always)]
    pub(super) const fn lookup(self, slot: u32, inserted: bool) -> Lookup {
        Lookup {
            id: self.id(slot),
            inserted,
        }
    }
}
