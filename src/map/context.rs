// SPDX-License-Identifier: GPL-2.0

//! A context: what one CPU owns at one level of nesting. That is batched references, counters, a leftover, and
//! predictions, see `predict.rs`.
//!
//! A *leftover* is words of the pool that the context has reserved, has not published, and keeps for reuse. They
//! come from lost races, from the ends of chunks, and from the rest of a leftover that was larger than its
//! record. Of two only the larger is kept: the other is lost until the reset. Both are rare.
//!
//! Many CPUs that hit the same stack must not all write the same cache line at every event. So a
//! reference is first counted here, beside the slot of its stack; the count is flushed to the map when
//! other stacks need the set. A reader adds the counts that are still here, see [`Context::batched_refs`], so the
//! sum is exact when nothing is recorded.

use super::{
    current::Current,
    pool::WordRange,
    sys::{
        sizes::{BATCH_ONE_IN, BATCH_SETS, BATCH_WAYS, PREDICTIONS, REFS_BATCH_MAX},
        AtomicU32, AtomicU64, Inside, Ordering,
    },
    word::{halves, high},
    Map, BITS_MAX,
};

/// What a map counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum MapCounter {
    /// Events whose stack was in the map.
    Hits,
    /// Events whose stack was put into the map.
    Inserts,
    /// Ring-buffer bytes not written because an id stood for the stack.
    BytesSaved,
    /// Full stacks because the map holds as many stacks as it may.
    DropFull,
    /// Full stacks because the pool has grown to its limit, or no record can hold the stack.
    DropPool,
    /// Full stacks because pool growth was pending.
    DropGrowing,
    /// Full stacks because all slots up to the probe limit held other stacks.
    DropProbe,
    /// Full stacks because other contexts reserved words at the same time, too often.
    DropContended,
    /// Full stacks because the map was being reset.
    DropReset,
}

impl MapCounter {
    /// All of them; from [`MapCounter::DropFull`] on the reasons of a full stack.
    pub const ALL: [MapCounter; 9] = [
        MapCounter::Hits,
        MapCounter::Inserts,
        MapCounter::BytesSaved,
        MapCounter::DropFull,
        MapCounter::DropPool,
        MapCounter::DropGrowing,
        MapCounter::DropProbe,
        MapCounter::DropContended,
        MapCounter::DropReset,
    ];
}

// A counter that is not in the list would have no word in a context.
const _: () = assert!(MapCounter::DropReset as usize + 1 == MapCounter::ALL.len());

/// A context: what one CPU owns at one level of nesting.
///
/// Only the owner writes, see [`CtxGuard`], and a reset while no owner has a `Current`, so plain loads and
/// stores replace atomic additions. Other CPUs read at any time. The alignment keeps two contexts out of one
/// pair of cache lines, because CPUs fetch such a pair together.
///
/// # Invariants
///
/// - Each slot of `batches`, `by_previous` and `last` is of a stack that the owner has seen in this
///   generation.
/// - All references that were counted here since the map was made are in `batches` or `flushed`.
/// - The words of `leftover` are of the same map and of this generation, and nobody else has them.
#[repr(align(128))]
pub struct Context {
    /// Batched references. The lowest bits of the slot choose the set; the latest is the first.
    batches: [[AtomicU32; BATCH_WAYS]; BATCH_SETS],
    /// Predictions, by the previous stack and the first frame.
    by_previous: [AtomicU32; PREDICTIONS],
    /// The last stack that was not new.
    last: AtomicU32,
    /// References that are not batched any more: flushed to the map, or their stack was reset. Each
    /// event with an id is one reference, so hits need no counter of their own.
    flushed: AtomicU64,
    /// Indexed by [`MapCounter`]; [`MapCounter::Hits`] is not used.
    counters: [AtomicU64; MapCounter::ALL.len()],
    /// The leftover: its number of words in the upper half, its offset in the lower; 0 if there is none.
    leftover: AtomicU64,
}

// P6: five for each CPU, see *Memory* in the manual.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Context>() <= 41 * 128);

impl Context {
    pub(super) fn new() -> Self {
        // INVARIANT: It has no slot, reference or leftover.
        Self {
            batches: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU32::new(0))),
            by_previous: core::array::from_fn(|_| AtomicU32::new(0)),
            last: AtomicU32::new(0),
            flushed: AtomicU64::new(0),
            counters: core::array::from_fn(|_| AtomicU64::new(0)),
            leftover: AtomicU64::new(0),
        }
    }

    /// Reads a counter. Context: any.
    pub(super) fn get(&self, counter: MapCounter) -> u64 {
        if counter != MapCounter::Hits {
            return self.counters[counter as usize].load(Ordering::Relaxed);
        }
        let batches = self.batches.iter().flatten();
        let counts = batches.map(|way| u64::from(RefBatch::load(way).refs()));
        let references = counts.fold(self.flushed.load(Ordering::Relaxed), u64::saturating_add);
        references.saturating_sub(self.get(MapCounter::Inserts))
    }

    /// Returns the batched references of the stack in `slot`. Context: any.
    pub(super) fn batched_refs(&self, slot: u32) -> u64 {
        let batches = self.batch_set(slot).iter().map(RefBatch::load);
        let of_slot = batches.filter(|batch| batch.is_of(slot));
        of_slot.map(|batch| u64::from(batch.refs())).sum()
    }

    #[inline(always)]
    fn batch_set(&self, slot: u32) -> &[AtomicU32; BATCH_WAYS] {
        &self.batches[slot as usize % BATCH_SETS]
    }

    /// Returns the number of words of the leftover. Context: any.
    pub(super) fn leftover_words(&self) -> u32 {
        high(self.leftover.load(Ordering::Relaxed))
    }

    /// Clears everything except counters. Meanwhile the owner may only add to counters.
    pub(super) fn clear(&self) {
        // INVARIANT: The next generation has no stack yet.
        for batch in self.batches.iter().flatten() {
            add(&self.flushed, RefBatch::load(batch).refs().into());
            batch.store(0, Ordering::Relaxed);
        }
        for slot in self.by_previous.iter().chain([&self.last]) {
            slot.store(0, Ordering::Relaxed);
        }
        self.leftover.store(0, Ordering::Relaxed);
    }
}

/// A context that the holder owns, and its map; see [`Map::enter`].
///
/// # Invariants
///
/// - `ctx` is one of `map`. For as long as `'s` nobody else owns it.
/// - Only a reset writes it, too, while the section has no [`Current`]; who gets one afterwards sees these
///   writes by O2.
pub struct CtxGuard<'s> {
    pub(super) map: &'s Map,
    ctx: &'s Context,
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
    pub unsafe fn enter<'s>(&'s self, section: Inside<'s>, index: usize) -> CtxGuard<'s> {
        // INVARIANT: It is one of this map; and by the requirement.
        CtxGuard {
            map: self,
            ctx: &self.contexts[index],
            section,
        }
    }
}

impl<'s> CtxGuard<'s> {
    /// Returns the map in its generation, or [`None`] while a reset runs. Context: any.
    #[inline(always)]
    pub(super) fn current(&self) -> Option<Current<'s>> {
        self.map.current_in(self.section)
    }

    /// Adds to a counter, saturating. Context: any.
    #[inline(always)]
    pub fn add(&self, counter: MapCounter, n: u64) {
        add(&self.ctx.counters[counter as usize], n);
    }

    /// Counts a reference to the stack in `slot`, which the context has seen in this generation. Context: any.
    #[inline(always)]
    pub(super) fn count_ref(&self, slot: u32) {
        let last = &self.ctx.batch_set(slot)[0];
        let batch = RefBatch::load(last);
        if batch.is_of(slot) && !batch.is_full() {
            last.store(batch.one_more().0, Ordering::Relaxed);
        } else {
            self.count_ref_slow(slot);
        }
    }

    #[inline(never)]
    fn count_ref_slow(&self, slot: u32) {
        let set = self.ctx.batch_set(slot);
        let of_slot = set.iter().find(|way| RefBatch::load(way).is_of(slot));
        let mut new = RefBatch::first(slot);
        if let Some(way) = of_slot {
            let batch = RefBatch::load(way);
            if !batch.is_full() {
                // It is found at once the next time.
                way.store(RefBatch::load(&set[0]).0, Ordering::Relaxed);
                set[0].store(batch.one_more().0, Ordering::Relaxed);
                return;
            }
            way.store(new.0, Ordering::Relaxed);
            new = batch;
        } else if self.may_batch_in(set) {
            for way in set {
                let old = RefBatch::load(way);
                way.store(new.0, Ordering::Relaxed);
                new = old;
                if old.refs() == 0 {
                    return;
                }
            }
        }
        // INVARIANT: References that are not batched any more are flushed.
        self.map.add_refs(new.slot(slot), new.refs());
        add(&self.ctx.flushed, new.refs().into());
    }

    /// Returns whether references to a stack that is not in the set are batched there. If the set is full, most
    /// are not: otherwise stacks that take turns, more than the set holds, would replace each other, and all be
    /// counted in the map.
    #[inline(always)]
    fn may_batch_in(&self, set: &[AtomicU32; BATCH_WAYS]) -> bool {
        RefBatch::load(&set[BATCH_WAYS - 1]).refs() == 0
            || self.ctx.flushed.load(Ordering::Relaxed) % BATCH_ONE_IN == 0
    }

    /// Keeps words of this map for later records, if they are more than the leftover has. Context: any.
    pub(super) fn keep_leftover(&self, range: WordRange<'_>) {
        if range.words() > self.ctx.leftover_words() && range.is_of(&self.map.pool) {
            let leftover = halves(range.words(), range.offset());
            // INVARIANT: Just checked; the holder gives them up, and nobody else has them.
            self.ctx.leftover.store(leftover, Ordering::Relaxed);
        }
    }

    /// Takes the leftover if there is one with at least `words` words. Context: any.
    ///
    /// # Safety
    ///
    /// `current` is of this map.
    pub(super) unsafe fn take_leftover(
        &self,
        current: Current<'s>,
        words: u32,
    ) -> Option<WordRange<'s>> {
        let leftover = self.ctx.leftover.load(Ordering::Relaxed);
        if high(leftover) < words {
            return None;
        }
        // INVARIANT: There is none any more.
        self.ctx.leftover.store(0, Ordering::Relaxed);
        // SAFETY: By the invariant, the words were given up in this generation of the map; only the owner takes them.
        Some(unsafe { WordRange::restore(current.pool(), leftover as u32, high(leftover)) })
    }

    /// Predicts the slot of a stack that begins with this frame: of the one that followed the last stack twice in
    /// a row. Context: any.
    #[inline(always)]
    pub(super) fn predicted_slot(&self, frame: u64) -> Option<u32> {
        let last = self.ctx.last.load(Ordering::Relaxed);
        let prediction =
            Prediction(self.ctx.by_previous[prediction_index(frame, last)].load(Ordering::Relaxed));
        prediction.is_verified().then(|| prediction.slot())
    }

    /// Stores that the stack in `slot`, which begins with this frame, followed the last one. Returns whether it
    /// did so at least twice in a row. Context: any.
    #[inline(always)]
    pub(super) fn update_prediction(&self, frame: u64, slot: u32) -> bool {
        let first = Prediction::first(slot);
        let last = self.ctx.last.load(Ordering::Relaxed);
        let prediction = &self.ctx.by_previous[prediction_index(frame, last)];
        let old = prediction.load(Ordering::Relaxed);
        let is_repeated = old == first.0 || old == first.repeated().0;
        let new = if is_repeated { first.repeated() } else { first };
        prediction.store(new.0, Ordering::Relaxed);
        self.set_last(slot);
        is_repeated
    }

    /// Stores that the stack in `slot` is the last one. Context: any.
    #[inline(always)]
    pub(super) fn set_last(&self, slot: u32) {
        self.ctx
            .last
            .store(Prediction::first(slot).0, Ordering::Relaxed);
    }
}

/// A prediction: the slot of a stack, above its hit count, 1 or 2. 0: there is none.
#[derive(Clone, Copy)]
struct Prediction(u32);

// Both fit into 32 bits.
const _: () = assert!(BITS_MAX < u32::BITS - 2);

impl Prediction {
    /// Returns the prediction of the stack in `slot` that has followed once.
    #[inline(always)]
    const fn first(slot: u32) -> Self {
        Self(slot << 2 | 1)
    }

    /// Returns the same for a stack that has followed twice in a row.
    #[inline(always)]
    const fn repeated(self) -> Self {
        Self(self.0 + 1)
    }

    #[inline(always)]
    const fn is_verified(self) -> bool {
        self.0 & 3 == 2
    }

    #[inline(always)]
    const fn slot(self) -> u32 {
        self.0 >> 2
    }
}

/// Batched references in a set: their number above those bits of the slot of their stack that do not choose
/// the set.
#[derive(Clone, Copy)]
struct RefBatch(u32);

// `RefBatch::is_full` looks at one bit.
const _: () = assert!(REFS_BATCH_MAX.is_power_of_two());
const _: () = assert!(REFS_BATCH_MAX.checked_mul(RefBatch::ONE).is_some());

impl RefBatch {
    /// One reference, above the bits of the slot.
    const ONE: u32 = (2 << BITS_MAX) / BATCH_SETS as u32;

    #[inline(always)]
    fn load(way: &AtomicU32) -> Self {
        Self(way.load(Ordering::Relaxed))
    }

    /// Returns a batch with one reference to the stack in `slot`.
    #[inline(always)]
    const fn first(slot: u32) -> Self {
        Self(slot / BATCH_SETS as u32).one_more()
    }

    /// Returns whether it is of `slot`, in whose set it is.
    #[inline(always)]
    const fn is_of(self, slot: u32) -> bool {
        self.0 % Self::ONE == slot / BATCH_SETS as u32
    }

    /// Returns its slot; `other` is any slot of the same set.
    const fn slot(self, other: u32) -> u32 {
        self.0 % Self::ONE * BATCH_SETS as u32 + other % BATCH_SETS as u32
    }

    #[inline(always)]
    const fn refs(self) -> u32 {
        self.0 / Self::ONE
    }

    /// Returns whether no more reference can be batched.
    #[inline(always)]
    const fn is_full(self) -> bool {
        self.0 & (REFS_BATCH_MAX * Self::ONE) != 0
    }

    #[inline(always)]
    const fn one_more(self) -> Self {
        Self(self.0.wrapping_add(Self::ONE))
    }
}

#[inline(always)]
const fn prediction_index(frame: u64, last: u32) -> usize {
    ((frame as u32 ^ last).wrapping_mul(0x9e37_79b1) >> (u32::BITS - PREDICTIONS.ilog2())) as usize
}

/// Adds to a word that only the caller writes, saturating.
#[inline(always)]
fn add(word: &AtomicU64, n: u64) {
    let sum = word.load(Ordering::Relaxed).saturating_add(n);
    word.store(sum, Ordering::Relaxed);
}
