// SPDX-License-Identifier: GPL-2.0

//! What one CPU owns at one level of nesting: references that it batches, counters, a spare, and the
//! stacks that it predicts, see `guide.rs`.
//!
//! A *spare* is words of the pool that the context has reserved, has not published, and keeps for reuse. They
//! come from lost races, from the ends of chunks, and from the rest of a spare that was larger than its
//! record. Of two only the larger is kept: the other is lost until the reset. Both are rare.
//!
//! Many CPUs that hit the same stack must not all write the same cache line at every event. So a
//! reference is first counted here, beside the slot of its stack; the count is flushed to the map when
//! other stacks need the set. A reader adds the counts that are still here, see [`Context::held`], so the
//! sum is exact when nothing is recorded.

use super::{
    current::Current,
    get_id::Entered,
    pool::Extent,
    record::{halves, high},
    sys::{
        sizes::{HELD_ONE_IN, HELD_SETS, HELD_WAYS, NEXTS, REFS_BATCH_MAX},
        AtomicU32, AtomicU64, Ordering,
    },
    BITS_MAX,
};

/// What is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum Counter {
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

impl Counter {
    /// All of them; from [`Counter::DropFull`] on the reasons of a full stack.
    pub const ALL: [Counter; 9] = [
        Counter::Hits,
        Counter::Inserts,
        Counter::BytesSaved,
        Counter::DropFull,
        Counter::DropPool,
        Counter::DropGrowing,
        Counter::DropProbe,
        Counter::DropContended,
        Counter::DropReset,
    ];
}

// A counter that is not in the list would have no word in a context.
const _: () = assert!(Counter::DropReset as usize + 1 == Counter::ALL.len());

/// What one CPU owns at one level of nesting.
///
/// Only the owner writes, see [`Entered`], and a reset while no owner has a `Current`, so plain loads and
/// stores replace atomic additions. Other CPUs read at any time. The alignment keeps two contexts out of one
/// pair of cache lines, because CPUs fetch such a pair together.
///
/// # Invariants
///
/// - Each slot of `held`, `nexts` and `last` is of a stack that the owner has seen in this
///   generation.
/// - All references that were counted here since the map was made are in `held` or `moved`.
/// - An extent in `spare` is of the same map and of this generation, and nobody else has it.
#[repr(align(128))]
pub struct Context {
    /// Batched references. The lowest bits of the slot choose the set; the latest is the first.
    held: [[AtomicU32; HELD_WAYS]; HELD_SETS],
    /// The stacks that followed others, by the previous stack and their first frame.
    nexts: [AtomicU32; NEXTS],
    /// The last stack that was not new.
    last: AtomicU32,
    /// References that are not batched any more: flushed to the map, or their stack was reset. Each
    /// event with an id is one reference, so hits need no counter of their own.
    moved: AtomicU64,
    /// Indexed by [`Counter`]; [`Counter::Hits`] is not used.
    counters: [AtomicU64; Counter::ALL.len()],
    /// The spare: its number of words in the upper half, its offset in the lower; or 0.
    spare: AtomicU64,
}

// P6: five for each CPU, see *Memory* in the manual.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Context>() <= 41 * 128);

impl Context {
    pub(super) fn new() -> Self {
        // INVARIANT: There is nothing.
        Self {
            held: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU32::new(0))),
            nexts: core::array::from_fn(|_| AtomicU32::new(0)),
            last: AtomicU32::new(0),
            moved: AtomicU64::new(0),
            counters: core::array::from_fn(|_| AtomicU64::new(0)),
            spare: AtomicU64::new(0),
        }
    }

    /// Reads a counter. Context: any.
    pub(super) fn get(&self, counter: Counter) -> u64 {
        if counter != Counter::Hits {
            return self.counters[counter as usize].load(Ordering::Relaxed);
        }
        let held = self.held.iter().flatten();
        let held = held.map(|way| u64::from(Held::load(way).refs()));
        let references = held.fold(self.moved.load(Ordering::Relaxed), u64::saturating_add);
        references.saturating_sub(self.get(Counter::Inserts))
    }

    /// Returns the batched references of the stack in `slot`. Context: any.
    pub(super) fn held(&self, slot: u32) -> u64 {
        let held = self.held_set(slot).iter().map(Held::load);
        let of_slot = held.filter(|held| held.is_of(slot));
        of_slot.map(|held| u64::from(held.refs())).sum()
    }

    #[inline(always)]
    fn held_set(&self, slot: u32) -> &[AtomicU32; HELD_WAYS] {
        &self.held[slot as usize % HELD_SETS]
    }

    /// Words of the spare. Context: any.
    pub(super) fn spare_words(&self) -> u32 {
        high(self.spare.load(Ordering::Relaxed))
    }

    /// Clears all but the counters. Meanwhile the owner of the context may only add to counters.
    pub(super) fn clear(&self) {
        // INVARIANT: The next generation has no stack yet.
        for held in self.held.iter().flatten() {
            add(&self.moved, Held::load(held).refs().into());
            held.store(0, Ordering::Relaxed);
        }
        for slot in self.nexts.iter().chain([&self.last]) {
            slot.store(0, Ordering::Relaxed);
        }
        self.spare.store(0, Ordering::Relaxed);
    }
}

/// What the owner of a context does with it.
impl<'s> Entered<'s> {
    /// Adds to a counter, saturating. Context: any.
    #[inline(always)]
    pub fn add(&self, counter: Counter, n: u64) {
        add(&self.ctx.counters[counter as usize], n);
    }

    /// Counts a reference to the stack in `slot`, which the context has seen in this generation. Context: any.
    #[inline(always)]
    pub(super) fn count_ref(&self, slot: u32) {
        let last = &self.ctx.held_set(slot)[0];
        let held = Held::load(last);
        if held.is_of(slot) && held.has_room() {
            last.store(held.one_more().0, Ordering::Relaxed);
        } else {
            self.count_ref_behind(slot);
        }
    }

    #[inline(never)]
    fn count_ref_behind(&self, slot: u32) {
        let set = self.ctx.held_set(slot);
        let of_slot = set.iter().find(|way| Held::load(way).is_of(slot));
        let mut new = Held::first(slot);
        if let Some(way) = of_slot {
            let held = Held::load(way);
            if held.has_room() {
                // It is found at once the next time.
                way.store(Held::load(&set[0]).0, Ordering::Relaxed);
                set[0].store(held.one_more().0, Ordering::Relaxed);
                return;
            }
            way.store(new.0, Ordering::Relaxed);
            new = held;
        } else if self.is_held_back_in(set) {
            for way in set {
                let old = Held::load(way);
                way.store(new.0, Ordering::Relaxed);
                new = old;
                if old.refs() == 0 {
                    return;
                }
            }
        }
        // INVARIANT: What is not batched any more is flushed.
        self.map.add_refs(new.slot(slot), new.refs());
        add(&self.ctx.moved, new.refs().into());
    }

    /// Whether a stack that is not in the set is batched there. If the set is full, most are not: otherwise
    /// stacks that take turns, more than the set holds, would replace each other, and all be counted in the map.
    #[inline(always)]
    fn is_held_back_in(&self, set: &[AtomicU32; HELD_WAYS]) -> bool {
        Held::load(&set[HELD_WAYS - 1]).refs() == 0
            || self.ctx.moved.load(Ordering::Relaxed) % HELD_ONE_IN == 0
    }

    /// Keeps an extent for later records, if it is larger than the spare. Context: any.
    ///
    /// # Safety
    ///
    /// The extent is of this map.
    pub(super) unsafe fn keep(&self, extent: Extent<'_>) {
        if extent.words() > self.ctx.spare_words() {
            let spare = halves(extent.words(), extent.offset());
            // INVARIANT: By the requirement; the holder gives it up, and nobody else has it.
            self.ctx.spare.store(spare, Ordering::Relaxed);
        }
    }

    /// Takes the spare if it has at least `words` words, and one. Context: any.
    ///
    /// # Safety
    ///
    /// `current` is of this map.
    pub(super) unsafe fn take(&self, current: Current<'s>, words: u32) -> Option<Extent<'s>> {
        let spare = self.ctx.spare.load(Ordering::Relaxed);
        if high(spare) < words {
            return None;
        }
        // INVARIANT: It is kept no longer.
        self.ctx.spare.store(0, Ordering::Relaxed);
        // SAFETY: By the invariant, it was given up in this generation of the map; only the owner takes it.
        Some(unsafe { Extent::again(current.pool(), spare as u32, high(spare)) })
    }

    /// Returns the slot of the stack that followed the last one and began with this frame, if it did so twice
    /// in a row. Context: any.
    #[inline(always)]
    pub(super) fn next(&self, frame: u64) -> Option<u32> {
        let last = self.ctx.last.load(Ordering::Relaxed);
        let next = Came(self.ctx.nexts[next_index(frame, last)].load(Ordering::Relaxed));
        next.is_twice().then(|| next.slot())
    }

    /// Stores that the stack in `slot`, which begins with this frame, followed the last one. Returns whether it
    /// did so at least twice in a row. Context: any.
    #[inline(always)]
    pub(super) fn set_next(&self, frame: u64, slot: u32) -> bool {
        let once = Came::once(slot);
        let last = self.ctx.last.load(Ordering::Relaxed);
        let next = &self.ctx.nexts[next_index(frame, last)];
        let old = next.load(Ordering::Relaxed);
        let is_again = old == once.0 || old == once.again().0;
        let new = if is_again { once.again() } else { once };
        next.store(new.0, Ordering::Relaxed);
        self.set_last(slot);
        is_again
    }

    /// Stores that the stack in `slot` is the last one. Context: any.
    #[inline(always)]
    pub(super) fn set_last(&self, slot: u32) {
        self.ctx.last.store(Came::once(slot).0, Ordering::Relaxed);
    }
}

/// A prediction: the slot of a stack, above its hit count, 1 or 2. 0: there is none.
#[derive(Clone, Copy)]
struct Came(u32);

// Both fit into 32 bits.
const _: () = assert!(BITS_MAX < u32::BITS - 2);

impl Came {
    /// The stack in `slot`, for the first time.
    #[inline(always)]
    const fn once(slot: u32) -> Self {
        Self(slot << 2 | 1)
    }

    #[inline(always)]
    const fn again(self) -> Self {
        Self(self.0 + 1)
    }

    #[inline(always)]
    const fn is_twice(self) -> bool {
        self.0 & 3 == 2
    }

    #[inline(always)]
    const fn slot(self) -> u32 {
        self.0 >> 2
    }
}

/// Batched references in a set, above the rest of the slot of their stack; no references where there are
/// none.
#[derive(Clone, Copy)]
struct Held(u32);

// `Held::has_room` looks at one bit.
const _: () = assert!(REFS_BATCH_MAX.is_power_of_two());
const _: () = assert!(REFS_BATCH_MAX.checked_mul(Held::ONE).is_some());

impl Held {
    /// One reference: above what of a slot its set does not tell.
    const ONE: u32 = (2 << BITS_MAX) / HELD_SETS as u32;

    #[inline(always)]
    fn load(way: &AtomicU32) -> Self {
        Self(way.load(Ordering::Relaxed))
    }

    /// The first reference to the stack in `slot`.
    #[inline(always)]
    const fn first(slot: u32) -> Self {
        Self(slot / HELD_SETS as u32).one_more()
    }

    /// Whether it is of `slot`, whose set it is in.
    #[inline(always)]
    const fn is_of(self, slot: u32) -> bool {
        self.0 % Self::ONE == slot / HELD_SETS as u32
    }

    /// The slot that it is of, which is of the same set as another one.
    const fn slot(self, other: u32) -> u32 {
        self.0 % Self::ONE * HELD_SETS as u32 + other % HELD_SETS as u32
    }

    #[inline(always)]
    const fn refs(self) -> u32 {
        self.0 / Self::ONE
    }

    /// Whether one more reference can be batched.
    #[inline(always)]
    const fn has_room(self) -> bool {
        self.0 & (REFS_BATCH_MAX * Self::ONE) == 0
    }

    #[inline(always)]
    const fn one_more(self) -> Self {
        Self(self.0.wrapping_add(Self::ONE))
    }
}

#[inline(always)]
const fn next_index(frame: u64, last: u32) -> usize {
    ((frame as u32 ^ last).wrapping_mul(0x9e37_79b1) >> (u32::BITS - NEXTS.ilog2())) as usize
}

/// Adds to a word that only the caller writes, saturating.
#[inline(always)]
fn add(word: &AtomicU64, n: u64) {
    let sum = word.load(Ordering::Relaxed).saturating_add(n);
    word.store(sum, Ordering::Relaxed);
}
