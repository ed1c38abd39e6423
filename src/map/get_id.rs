// SPDX-License-Identifier: GPL-2.0

//! From a stack to its id: the path that every event takes.

use super::{
    context::Place,
    id::Generation,
    pool::{Extent, HEADER_WORDS},
    sys::Ordering,
    word::Word,
    Context, Counter, Fallback, Found, Map, MAX_FRAMES, PROBE_LIMIT,
};

/// A map and the context that the holder may write, see [`Map::enter`].
pub struct Entered<'a> {
    pub(super) map: &'a Map,
    pub(super) ctx: &'a Context,
}

impl Entered<'_> {
    /// Finds the id of a stack, or gives it one, and counts it.
    ///
    /// A stack of more than [`MAX_FRAMES`] frames gets [`Fallback::PoolFull`]: no record can hold
    /// it. Context: any, NMI included.
    #[inline(always)]
    pub fn get_id(&self, frames: &[u64]) -> Result<Found, Fallback> {
        let generation = self.map.generation().ok_or(Fallback::Resetting)?;
        let place = self.ctx.place(frames);
        if let Some(slot) = self.recall(&place, frames) {
            return Ok(found(generation, slot, false));
        }
        self.search(generation, place, frames)
    }

    /// Adds to a counter. Context: any.
    #[inline(always)]
    pub fn add(&self, counter: Counter, n: u64) {
        self.ctx.add(counter, n);
    }

    /// Counts a stack that this context has seen lately and returns its slot.
    #[inline(always)]
    fn recall(&self, place: &Place<'_>, frames: &[u64]) -> Option<u32> {
        if frames.len() < 2 {
            // They are rare, and nothing in a slot distinguishes no frames from no stack.
            return None;
        }
        let slot = place.slot()?;
        let word = self.map.word(slot);
        if word.nr() != frames.len() || !self.map.pool.holds(word.record(), frames) {
            return None;
        }
        place.add_ref();
        Some(slot)
    }

    /// Finds a stack by its hash, or inserts it.
    #[inline(never)]
    fn search(
        &self,
        generation: Generation,
        place: Place<'_>,
        frames: &[u64],
    ) -> Result<Found, Fallback> {
        if frames.len() > MAX_FRAMES {
            return Err(Fallback::PoolFull);
        }
        let hash = self.map.seed.hash(frames);
        let print = Word::print(hash, frames.len());
        for probe in 0..PROBE_LIMIT {
            let slot = self.map.slot(hash, probe);
            let word = self.map.word(slot);
            if word.is_empty() {
                return self.insert(generation, place, frames, hash, probe);
            }
            if self.is_at(word, print, frames) {
                self.add_ref(&place, slot);
                return Ok(found(generation, slot, false));
            }
        }
        Err(Fallback::Neighbourhood)
    }

    /// Inserts a stack that is not in the slots before the `from`-th attempt.
    #[cold]
    #[inline(never)]
    fn insert(
        &self,
        generation: Generation,
        place: Place<'_>,
        frames: &[u64],
        hash: u64,
        from: u32,
    ) -> Result<Found, Fallback> {
        let map = self.map;
        let print = Word::print(hash, frames.len());
        let mut prepared = None;
        for probe in from..PROBE_LIMIT {
            let slot = map.slot(hash, probe);
            let mut word = map.word(slot);
            if word.is_empty() {
                let extent = match prepared {
                    Some(extent) => extent,
                    None => *prepared.insert(self.prepare(frames)?),
                };
                if map.publish(slot, Word::new(print, extent.offset)) {
                    self.finish(extent, frames);
                    self.add_ref(&place, slot);
                    return Ok(found(generation, slot, true));
                }
                word = map.word(slot);
            }
            if self.is_at(word, print, frames) {
                self.put_back(prepared);
                self.add_ref(&place, slot);
                return Ok(found(generation, slot, false));
            }
        }
        self.put_back(prepared);
        Err(Fallback::Neighbourhood)
    }

    /// Whether a word that is not empty names the record of a stack.
    #[inline(always)]
    fn is_at(&self, word: Word, print: u32, frames: &[u64]) -> bool {
        word.has(print) && self.map.pool.holds(word.record(), frames)
    }

    /// Takes a place and an extent, and writes the record to its front.
    fn prepare(&self, frames: &[u64]) -> Result<Extent, Fallback> {
        let (map, spares) = (self.map, &self.ctx.spares);
        if !map.take_place() {
            return Err(Fallback::Full);
        }
        let words = HEADER_WORDS + frames.len() as u32;
        let extent = match spares.take(&map.pool, words) {
            Some(spare) => spare,
            None => map
                .pool
                .reserve(words, |passed_over| spares.keep(&map.pool, passed_over))
                .map_err(|refusal| {
                    map.give_place_back();
                    Fallback::from(refusal)
                })?,
        };
        let epoch = map.epoch.load(Ordering::Relaxed);
        map.pool.fill(extent, epoch, frames);
        Ok(extent)
    }

    /// Gives back what [`Entered::prepare`] took.
    fn put_back(&self, prepared: Option<Extent>) {
        if let Some(extent) = prepared {
            self.ctx.spares.keep(&self.map.pool, extent);
            self.map.give_place_back();
        }
    }

    /// Counts a stack that was published, and keeps what is behind its record in the extent.
    fn finish(&self, extent: Extent, frames: &[u64]) {
        let words = HEADER_WORDS + frames.len() as u32;
        if let Some(rest) = extent.behind(words) {
            self.ctx.spares.keep(&self.map.pool, rest);
        }
        self.ctx.inserted(words);
    }

    fn add_ref(&self, place: &Place<'_>, slot: u32) {
        self.ctx.add_ref(place, slot, |slot, refs| {
            // This context has seen the slot in this generation: it still sees what is there.
            let record = self.map.word(slot).record();
            self.map.pool.add_refs(record, refs);
        });
    }
}

#[inline(always)]
const fn found(generation: Generation, slot: u32, inserted: bool) -> Found {
    Found {
        id: generation.id(slot),
        inserted,
    }
}
