// SPDX-License-Identifier: GPL-2.0

//! From a stack to its id: the path that every event takes.

use super::{
    context::Memo,
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
    /// A stack that no record can hold gets [`Fallback::PoolFull`]: one of more than [`MAX_FRAMES`] frames,
    /// or, with [`Words::Hinted`](super::Words), with a frame that is not in the lowest or highest 2 GiB.
    /// Context: any, NMI included.
    #[inline(always)]
    pub fn get_id(&self, frames: &[u64]) -> Result<Found, Fallback> {
        let generation = self.map.generation().ok_or(Fallback::Resetting)?;
        let memo = self.ctx.memo(frames.len(), |index| frames[index]);
        if let Some(slot) = self.recall(&memo, frames) {
            return Ok(found(generation, slot, false));
        }
        self.search::<true>(generation, memo, frames)
    }

    /// Finds the id of a stack that has one, and counts it. Context: any, NMI included.
    pub fn find(&self, frames: &[u64]) -> Option<Found> {
        let generation = self.map.generation()?;
        let memo = self.ctx.memo(frames.len(), |index| frames[index]);
        match self.recall(&memo, frames) {
            Some(slot) => Some(found(generation, slot, false)),
            None => self.search::<false>(generation, memo, frames).ok(),
        }
    }

    /// Adds to a counter. Context: any.
    #[inline(always)]
    pub fn add(&self, counter: Counter, n: u64) {
        self.ctx.add(counter, n);
    }

    /// Whether [`Map::grow`] should be called soon. Context: any.
    pub fn wants_growth(&self) -> bool {
        self.map.wants_growth()
    }

    /// Counts a stack that this context has a memo of, and returns its slot.
    #[inline(always)]
    fn recall(&self, memo: &Memo<'_>, frames: &[u64]) -> Option<u32> {
        if frames.len() < 2 {
            // Such stacks are rare, and a word with 0 frames could also be an empty slot.
            return None;
        }
        let slot = memo.slot()?;
        let word = self.map.word(slot);
        if word.nr() != frames.len() || !self.map.pool.holds(word.record(), frames) {
            return None;
        }
        memo.add_ref();
        Some(slot)
    }

    /// Finds a stack by its hash, or inserts it. Without `INSERT`, any error if it is not there.
    #[inline(never)]
    fn search<const INSERT: bool>(
        &self,
        generation: Generation,
        memo: Memo<'_>,
        frames: &[u64],
    ) -> Result<Found, Fallback> {
        if frames.len() > MAX_FRAMES {
            return Err(Fallback::PoolFull);
        }
        let hash = self.map.seed.hash(frames);
        let fingerprint = Word::fingerprint(hash, frames.len());
        for probe in 0..PROBE_LIMIT {
            let slot = self.map.slot(hash, probe);
            let word = self.map.word(slot);
            if word.is_empty() {
                if !INSERT {
                    break;
                }
                return self.insert(generation, memo, frames, hash, probe);
            }
            if self.matches(word, fingerprint, frames) {
                self.add_ref(&memo, slot);
                return Ok(found(generation, slot, false));
            }
        }
        Err(Fallback::ProbeLimit)
    }

    /// Inserts a stack that the first `from` probes did not find.
    #[cold]
    #[inline(never)]
    fn insert(
        &self,
        generation: Generation,
        memo: Memo<'_>,
        frames: &[u64],
        hash: u64,
        from: u32,
    ) -> Result<Found, Fallback> {
        let map = self.map;
        let fingerprint = Word::fingerprint(hash, frames.len());
        let mut prepared = None;
        for probe in from..PROBE_LIMIT {
            let slot = map.slot(hash, probe);
            let mut word = map.word(slot);
            if word.is_empty() {
                let extent = match prepared {
                    Some(extent) => extent,
                    None => *prepared.insert(self.prepare(frames)?),
                };
                if map.publish(slot, Word::new(fingerprint, extent.offset)) {
                    self.finish(extent, frames);
                    self.add_ref(&memo, slot);
                    return Ok(found(generation, slot, true));
                }
                word = map.word(slot);
            }
            if self.matches(word, fingerprint, frames) {
                self.put_back(prepared);
                self.add_ref(&memo, slot);
                return Ok(found(generation, slot, false));
            }
        }
        self.put_back(prepared);
        Err(Fallback::ProbeLimit)
    }

    /// Whether a non-empty word names the record of the stack with these frames.
    #[inline(always)]
    fn matches(&self, word: Word, fingerprint: u32, frames: &[u64]) -> bool {
        word.has(fingerprint) && self.map.pool.holds(word.record(), frames)
    }

    /// Claims an entry, takes an extent, and writes the record to the front of the extent.
    fn prepare(&self, frames: &[u64]) -> Result<Extent, Fallback> {
        let (map, free_extents) = (self.map, &self.ctx.free_extents);
        if !map.pool.can_hold(frames) {
            return Err(Fallback::PoolFull);
        }
        if !map.claim_entry() {
            return Err(Fallback::Full);
        }
        let words = HEADER_WORDS + frames.len() as u32;
        let extent = match free_extents.take(&map.pool, words) {
            Some(extent) => extent,
            None => map
                .pool
                .reserve(words, |passed_over| {
                    free_extents.keep(&map.pool, passed_over)
                })
                .map_err(|error| {
                    map.release_entry();
                    Fallback::from(error)
                })?,
        };
        let epoch = map.epoch.load(Ordering::Relaxed);
        map.pool.fill(extent, epoch, frames);
        Ok(extent)
    }

    /// Gives back the entry and the extent that [`Entered::prepare`] took.
    fn put_back(&self, prepared: Option<Extent>) {
        if let Some(extent) = prepared {
            self.ctx.free_extents.keep(&self.map.pool, extent);
            self.map.release_entry();
        }
    }

    /// Counts a published stack, and keeps the rest of its extent as a free extent.
    fn finish(&self, extent: Extent, frames: &[u64]) {
        let words = HEADER_WORDS + frames.len() as u32;
        if let Some(rest) = extent.rest_after(words) {
            self.ctx.free_extents.keep(&self.map.pool, rest);
        }
        self.ctx.inserted(words);
    }

    pub(super) fn add_ref(&self, memo: &Memo<'_>, slot: u32) {
        self.ctx.add_ref(memo, slot, |slot, refs| {
            // This context has seen the slot's word in this generation, and only a reset changes
            // it.
            let record = self.map.word(slot).record();
            self.map.pool.add_refs(record, refs);
        });
    }
}

#[inline(always)]
pub(super) const fn found(generation: Generation, slot: u32, inserted: bool) -> Found {
    Found {
        id: generation.id(slot),
        inserted,
    }
}
