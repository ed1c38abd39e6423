// SPDX-License-Identifier: GPL-2.0

//! The path from a stack to its id, of each stack that prediction has not identified.

use super::{
    context::CtxGuard,
    current::Current,
    pool::{WordRange, HEADER_WORDS},
    sys::Ordering,
    word::fingerprint,
    Fallback, Lookup, Map, MapCounter, MAX_FRAMES, PROBE_LIMIT,
};

impl<'s> CtxGuard<'s> {
    /// Finds the id of a stack, or gives it one, and counts it.
    ///
    /// A stack that no record can hold gets [`Fallback::PoolFull`]: one of more than [`MAX_FRAMES`] frames,
    /// or, in a map with cached rules, with a frame that is not in the lowest or highest 2 GiB.
    /// Context: any, NMI included.
    #[inline(always)]
    pub fn get_id(&self, frames: &[u64]) -> Result<Lookup, Fallback> {
        let current = self.current().ok_or(Fallback::Resetting)?;
        self.search::<true>(current, frames)
    }

    /// Finds the id of a stack that has one, and counts it. Context: any, NMI included.
    pub fn find(&self, frames: &[u64]) -> Option<Lookup> {
        self.search::<false>(self.current()?, frames).ok()
    }

    /// Returns whether [`Map::grow`] should be called soon. Context: any.
    pub fn wants_growth(&self) -> bool {
        self.map.wants_growth()
    }

    /// Finds a stack by its hash, or inserts it. Without `INSERT`, returns any error if it is not there. `current`
    /// is of `self`, here and below.
    #[inline(never)]
    fn search<const INSERT: bool>(
        &self,
        current: Current<'s>,
        frames: &[u64],
    ) -> Result<Lookup, Fallback> {
        if frames.len() > MAX_FRAMES {
            return Err(Fallback::PoolFull);
        }
        let hash = self.map.seed.hash(frames);
        let fingerprint = fingerprint(hash, frames.len());
        for probe in 0..PROBE_LIMIT {
            let slot = self.map.probe_slot(hash, probe);
            match current.record(slot) {
                None if INSERT => return self.insert(current, frames, hash, probe),
                None => break,
                Some(record) if record.is(fingerprint, frames) => {
                    self.count_ref(slot);
                    return Ok(current.lookup(slot, false));
                }
                Some(_) => {}
            }
        }
        Err(Fallback::ProbeLimit)
    }

    /// Inserts a stack of this hash that the first `from` probes did not find.
    #[cold]
    #[inline(never)]
    fn insert(
        &self,
        current: Current<'s>,
        frames: &[u64],
        hash: u64,
        from: u32,
    ) -> Result<Lookup, Fallback> {
        let fingerprint = fingerprint(hash, frames.len());
        let mut prepared = None;
        for probe in from..PROBE_LIMIT {
            let slot = self.map.probe_slot(hash, probe);
            let mut there = current.record(slot);
            if there.is_none() {
                let range = match prepared.take() {
                    Some(range) => range,
                    None => self.prepare(current, frames)?,
                };
                // SAFETY: `prepare` has reserved the words in this map.
                match unsafe { current.publish(slot, hash, range) } {
                    Ok(rest) => {
                        self.keep_leftover(rest);
                        self.add(MapCounter::Inserts, 1);
                        self.count_ref(slot);
                        return Ok(current.lookup(slot, true));
                    }
                    Err(range) => prepared = Some(range),
                }
                there = current.record(slot);
            }
            if there.is_some_and(|record| record.is(fingerprint, frames)) {
                self.release(prepared);
                self.count_ref(slot);
                return Ok(current.lookup(slot, false));
            }
        }
        self.release(prepared);
        Err(Fallback::ProbeLimit)
    }

    /// Claims an entry, reserves words, and writes the record to the front of them.
    fn prepare(&self, current: Current<'s>, frames: &[u64]) -> Result<WordRange<'s>, Fallback> {
        let map = self.map;
        if !map.pool.can_hold(frames) {
            return Err(Fallback::PoolFull);
        }
        if !map.claim_entry() {
            return Err(Fallback::Full);
        }
        let words = HEADER_WORDS + frames.len() as u32;
        // SAFETY: `current` is of `self`, see `search`.
        let range = match unsafe { self.take_leftover(current, words) } {
            Some(range) => range,
            None => current
                .reserve(words, |skipped| self.keep_leftover(skipped))
                .inspect_err(|_| map.release_entry())?,
        };
        Ok(range.fill(map.epoch.load(Ordering::Relaxed), frames))
    }

    /// Releases what [`CtxGuard::prepare`] has claimed and reserved.
    fn release(&self, prepared: Option<WordRange<'_>>) {
        if let Some(range) = prepared {
            self.keep_leftover(range);
            self.map.release_entry();
        }
    }
}

impl Map {
    /// Returns the slot that is probed after `probe` others for a stack of this hash.
    #[inline(always)]
    fn probe_slot(&self, hash: u64, probe: u32) -> u32 {
        (hash as u32).wrapping_add(probe) & (self.slots.len() as u32).wrapping_sub(1)
    }
}
