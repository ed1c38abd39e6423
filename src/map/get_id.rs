// SPDX-License-Identifier: GPL-2.0

//! From a stack to its id: the path of every event that no guide tells.

use super::{
    context::Context,
    current::Current,
    pool::{Extent, HEADER_WORDS},
    record::fingerprint,
    sys::{Inside, Ordering},
    Counter, Fallback, Found, Map, MAX_FRAMES, PROBE_LIMIT,
};

/// A map and the context that the holder owns, see [`Map::enter`].
///
/// # Invariants
///
/// - `ctx` is one of `map`. For as long as `'s` nobody else owns it.
/// - Only a reset writes it, too, while the section has no [`Current`]; who gets one afterwards sees these
///   writes by O2.
pub struct Entered<'s> {
    pub(super) map: &'s Map,
    pub(super) ctx: &'s Context,
    section: Inside<'s>,
}

impl Map {
    /// Enters a context inside a section. The caller owns it for as long as `'s`.
    ///
    /// # Safety
    ///
    /// For as long as `'s` no other caller enters the context `index`; all earlier accesses to it
    /// happened before this call.
    ///
    /// # Panics
    ///
    /// If `index` is not below the number of contexts.
    #[inline(always)]
    pub unsafe fn enter<'s>(&'s self, section: Inside<'s>, index: usize) -> Entered<'s> {
        // INVARIANT: It is one of this map; and by the requirement.
        Entered {
            map: self,
            ctx: &self.contexts[index],
            section,
        }
    }
}

impl<'s> Entered<'s> {
    /// Finds the id of a stack, or gives it one, and counts it.
    ///
    /// A stack that no record can hold gets [`Fallback::PoolFull`]: one of more than [`MAX_FRAMES`] frames,
    /// or, in a map with hints, with a frame that is not in the lowest or highest 2 GiB.
    /// Context: any, NMI included.
    #[inline(always)]
    pub fn get_id(&self, frames: &[u64]) -> Result<Found, Fallback> {
        let current = self.current().ok_or(Fallback::Resetting)?;
        self.search::<true>(current, frames)
    }

    /// Finds the id of a stack that has one, and counts it. Context: any, NMI included.
    pub fn find(&self, frames: &[u64]) -> Option<Found> {
        self.search::<false>(self.current()?, frames).ok()
    }

    /// Whether [`Map::grow`] should be called soon. Context: any.
    pub fn wants_growth(&self) -> bool {
        self.map.wants_growth()
    }

    /// The map in its generation, unless a reset runs.
    #[inline(always)]
    pub(super) fn current(&self) -> Option<Current<'s>> {
        self.map.current_in(self.section)
    }

    /// Finds a stack by its hash, or inserts it. Without `INSERT`, any error if it is not there. `current`
    /// is of `self`, here and below.
    #[inline(never)]
    fn search<const INSERT: bool>(
        &self,
        current: Current<'s>,
        frames: &[u64],
    ) -> Result<Found, Fallback> {
        if frames.len() > MAX_FRAMES {
            return Err(Fallback::PoolFull);
        }
        let hash = self.map.seed.hash(frames);
        let fingerprint = fingerprint(hash, frames.len());
        for probe in 0..PROBE_LIMIT {
            let slot = self.map.probed(hash, probe);
            match current.record(slot) {
                None if INSERT => return self.insert(current, frames, hash, probe),
                None => break,
                Some(record) if record.is(fingerprint, frames) => {
                    self.count_ref(slot);
                    return Ok(current.found(slot, false));
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
    ) -> Result<Found, Fallback> {
        let fingerprint = fingerprint(hash, frames.len());
        let mut prepared = None;
        for probe in from..PROBE_LIMIT {
            let slot = self.map.probed(hash, probe);
            let mut there = current.record(slot);
            if there.is_none() {
                let extent = match prepared.take() {
                    Some(extent) => extent,
                    None => self.prepare(current, frames)?,
                };
                // SAFETY: `prepare` has taken the extent in this map.
                match unsafe { current.publish(slot, hash, extent) } {
                    Ok(rest) => {
                        // SAFETY: As above.
                        unsafe { self.keep(rest) };
                        self.add(Counter::Inserts, 1);
                        self.count_ref(slot);
                        return Ok(current.found(slot, true));
                    }
                    Err(extent) => prepared = Some(extent),
                }
                there = current.record(slot);
            }
            if there.is_some_and(|record| record.is(fingerprint, frames)) {
                self.put_back(prepared);
                self.count_ref(slot);
                return Ok(current.found(slot, false));
            }
        }
        self.put_back(prepared);
        Err(Fallback::ProbeLimit)
    }

    /// Claims an entry, takes an extent, and writes the record to the front of the extent.
    fn prepare(&self, current: Current<'s>, frames: &[u64]) -> Result<Extent<'s>, Fallback> {
        let map = self.map;
        if !map.pool.can_hold(frames) {
            return Err(Fallback::PoolFull);
        }
        if !map.claim_entry() {
            return Err(Fallback::Full);
        }
        let words = HEADER_WORDS + frames.len() as u32;
        // SAFETY: Each `Current` here is of this map.
        let extent = match unsafe { self.take(current, words) } {
            Some(extent) => extent,
            None => current
                // SAFETY: By that, it is reserved in this map.
                .reserve(words, |passed_over| unsafe { self.keep(passed_over) })
                .inspect_err(|_| map.release_entry())?,
        };
        Ok(extent.fill(map.epoch.load(Ordering::Relaxed), frames))
    }

    /// Gives back the entry and the extent that [`Entered::prepare`] took.
    fn put_back(&self, prepared: Option<Extent<'_>>) {
        if let Some(extent) = prepared {
            // SAFETY: `prepare` has taken it in this map.
            unsafe { self.keep(extent) };
            self.map.release_entry();
        }
    }
}

impl Map {
    /// The slot that is looked at after `probe` others for a stack of this hash.
    #[inline(always)]
    fn probed(&self, hash: u64, probe: u32) -> u32 {
        (hash as u32).wrapping_add(probe) & (self.slots.len() as u32).wrapping_sub(1)
    }
}
