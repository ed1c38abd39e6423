// SPDX-License-Identifier: GPL-2.0

//! What one CPU owns at one level of nesting: memos of recent stacks, counters, free extents, and the
//! stacks that walks begin with, see `guide.rs`.
//!
//! Many CPUs that hit the same stack must not all write the same cache line at every event. So a
//! reference is first counted here, beside the slot of its stack, in a small direct-mapped cache;
//! the count moves to the record when another stack takes the memo. A reader adds the counts that
//! are still held here, see [`Context::held`], so the sum is exact when nothing is recorded.
//!
//! A few frames of a stack select its memo. A memo also names the slot of its stack, so a recently
//! recorded stack is only compared, not hashed.

use super::{
    free_extents::FreeExtents,
    sys::{
        sizes::{MEMOS, NEXTS, REFS_BATCH_MAX, STARTS},
        AtomicU64, Ordering,
    },
};

/// In [`Context::nexts`]: it was so the last two times.
const TWICE: u64 = 1 << 33;

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
    /// Full stacks because the pool has grown to its limit.
    DropPool,
    /// Full stacks because the pool was still growing.
    DropGrowing,
    /// Full stacks because all slots up to the probe limit held other stacks.
    DropProbe,
    /// Full stacks because other CPUs reserved records at the same time, too often.
    DropContended,
    /// Full stacks because the map was being reset.
    DropReset,
}

impl Counter {
    /// The number of counters.
    pub const COUNT: usize = Counter::DropReset as usize + 1;

    /// All of them; from [`Counter::DropFull`] on the reasons of a full stack.
    pub const ALL: [Counter; Counter::COUNT] = [
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

/// The memos, counters, free extents and first guides of one CPU at one level of nesting.
///
/// Only the owner (see `Map::enter`) writes, so plain loads and stores replace atomic additions.
/// Other CPUs read at any time. The alignment keeps two contexts out of one pair of cache lines,
/// because CPUs fetch such a pair together.
#[repr(align(128))]
pub struct Context {
    memos: [AtomicU64; MEMOS],
    /// Slots of the stacks that walks begin with, by their first frame. Bit 32 is set: there is one.
    starts: [AtomicU64; STARTS],
    /// The same by the stack that came before, too: where stacks come in turn, the next one.
    nexts: [AtomicU64; NEXTS],
    /// The slot of the last stack that a guide has told. Bit 32 is set: there is one.
    last: AtomicU64,
    /// References that moved from memos to records. Each event with an id is one reference, so
    /// hits need no counter of their own.
    moved: AtomicU64,
    /// Indexed by [`Counter`]; [`Counter::Hits`] is not used.
    counters: [AtomicU64; Counter::COUNT],
    /// Words of the records that were published here since the last reset.
    stored: AtomicU64,
    pub(super) free_extents: FreeExtents,
}

impl Context {
    pub(super) fn new() -> Self {
        Self {
            memos: core::array::from_fn(|_| AtomicU64::new(0)),
            starts: core::array::from_fn(|_| AtomicU64::new(0)),
            nexts: core::array::from_fn(|_| AtomicU64::new(0)),
            last: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            counters: core::array::from_fn(|_| AtomicU64::new(0)),
            stored: AtomicU64::new(0),
            free_extents: FreeExtents::new(),
        }
    }

    /// Adds to a counter, saturating. Context: any; owner only.
    #[inline(always)]
    pub(super) fn add(&self, counter: Counter, n: u64) {
        add(&self.counters[counter as usize], n);
    }

    /// Reads a counter. Context: any.
    pub(super) fn get(&self, counter: Counter) -> u64 {
        if counter != Counter::Hits {
            return self.counters[counter as usize].load(Ordering::Relaxed);
        }
        let held = self.memos.iter().map(|memo| MemoWord::load(memo).refs());
        let references = held.fold(self.moved.load(Ordering::Relaxed), u64::saturating_add);
        references.saturating_sub(self.get(Counter::Inserts))
    }

    /// Counts a new stack whose record has `words` words. Context: any; owner only.
    pub(super) fn inserted(&self, words: u32) {
        self.add(Counter::Inserts, 1);
        add(&self.stored, u64::from(words));
    }

    /// Words of the records that were published here. Context: any.
    pub(super) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// The memo that a stack with these frames uses in this context.
    #[inline(always)]
    pub(super) fn memo(&self, nr: usize, frame: impl Fn(usize) -> u64) -> Memo<'_> {
        Memo(&self.memos[memo_index(nr, frame)])
    }

    /// The references held back for the stack with these frames in `slot`. Context: any.
    pub(super) fn held(&self, slot: u32, frames: &[u64]) -> u64 {
        let held = MemoWord::load(&self.memos[memo_index(frames.len(), |index| frames[index])]);
        if held.slot() == slot {
            held.refs()
        } else {
            0
        }
    }

    /// Counts a reference to the stack in `slot`, whose memo is `memo`. Context: any; owner only.
    ///
    /// If the memo is full or holds another stack, its references go to `flush(slot, refs)`.
    #[inline(always)]
    pub(super) fn add_ref(&self, memo: &Memo<'_>, slot: u32, flush: impl FnOnce(u32, u32)) {
        let Memo(memo) = memo;
        let held = MemoWord::load(memo);
        if held.slot() == slot && held.has_room() {
            memo.store(held.one_more().0, Ordering::Relaxed);
            return;
        }
        if held.refs() != 0 {
            flush(held.slot(), held.refs() as u32);
            add(&self.moved, held.refs());
        }
        memo.store(MemoWord::first(slot).0, Ordering::Relaxed);
    }

    /// The slot of the stack to begin with, whose first frame is most likely this. Context: any; owner only.
    #[inline(always)]
    pub(super) fn start(&self, frame: u64) -> Option<u32> {
        let start = self.starts[start_index(frame)].load(Ordering::Relaxed);
        (start != 0).then_some(start as u32)
    }

    /// Sets it. Context: any; owner only.
    #[inline(always)]
    pub(super) fn set_start(&self, frame: u64, slot: u32) {
        self.starts[start_index(frame)].store(1 << 32 | u64::from(slot), Ordering::Relaxed);
    }

    /// The slot of the stack that came after the last one and began with this frame, if it did so twice in a
    /// row. Context: any; owner only.
    #[inline(always)]
    pub(super) fn next(&self, frame: u64) -> Option<u32> {
        let last = self.last.load(Ordering::Relaxed);
        let next = self.nexts[next_index(frame, last)].load(Ordering::Relaxed);
        (next & TWICE != 0).then_some(next as u32)
    }

    /// Notes that a stack, which begins with this frame, came after the last one. Returns whether that was
    /// the same. Context: any; owner only.
    #[inline(always)]
    pub(super) fn set_next(&self, frame: u64, slot: u32) -> bool {
        let now = 1 << 32 | u64::from(slot);
        let last = self.last.load(Ordering::Relaxed);
        let next = &self.nexts[next_index(frame, last)];
        let new = match next.load(Ordering::Relaxed) & !TWICE == now {
            true => now | TWICE,
            false => now,
        };
        next.store(new, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
        last == now
    }

    /// Notes that the stack came that [`Context::next`] has told. Context: any; owner only.
    #[inline(always)]
    pub(super) fn set_last(&self, slot: u32) {
        self.last
            .store(1 << 32 | u64::from(slot), Ordering::Relaxed);
    }

    /// Clears memos, free extents and what walks begin with; counters stay. Meanwhile the owner of the context may only
    /// add to counters.
    pub(super) fn clear(&self) {
        for memo in &self.memos {
            add(&self.moved, MemoWord::load(memo).refs());
            memo.store(0, Ordering::Relaxed);
        }
        for start in &self.starts {
            start.store(0, Ordering::Relaxed);
        }
        for next in &self.nexts {
            next.store(0, Ordering::Relaxed);
        }
        self.last.store(0, Ordering::Relaxed);
        self.stored.store(0, Ordering::Relaxed);
        self.free_extents.clear();
    }
}

/// What a CPU remembers of a stack; only the owner of the context has one.
pub(super) struct Memo<'a>(&'a AtomicU64);

impl Memo<'_> {
    /// The slot of the remembered stack, if the memo has room for one more reference.
    #[inline(always)]
    pub(super) fn slot(&self) -> Option<u32> {
        let held = MemoWord::load(self.0);
        held.has_room().then_some(held.slot())
    }

    /// Counts a reference to the stack of [`Memo::slot`].
    #[inline(always)]
    pub(super) fn add_ref(&self) {
        let held = MemoWord::load(self.0);
        self.0.store(held.one_more().0, Ordering::Relaxed);
    }
}

/// The content of a memo: references not yet in the record, above the slot of the stack.
#[derive(Clone, Copy)]
struct MemoWord(u64);

// `MemoWord::has_room` looks at one bit.
const _: () = assert!(REFS_BATCH_MAX.is_power_of_two());

impl MemoWord {
    const ONE: u64 = 1 << 32;

    #[inline(always)]
    fn load(memo: &AtomicU64) -> Self {
        Self(memo.load(Ordering::Relaxed))
    }

    const fn first(slot: u32) -> Self {
        Self(Self::ONE | slot as u64)
    }

    #[inline(always)]
    const fn slot(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    const fn refs(self) -> u64 {
        self.0 / Self::ONE
    }

    /// Whether one more reference can be held back.
    #[inline(always)]
    const fn has_room(self) -> bool {
        self.0 & (REFS_BATCH_MAX as u64 * Self::ONE) == 0
    }

    #[inline(always)]
    const fn one_more(self) -> Self {
        Self(self.0.wrapping_add(Self::ONE))
    }
}

/// The index of the memo for a stack, computed from three of its frames.
///
/// Consecutive stacks often have the same innermost frame (the event) and the same outermost frames
/// (the system call). The callers of the event and the middle frame distinguish stacks about as
/// well as a hash of all frames, see `Documentation/map.rst`. Stacks of two frames are too rare to
/// matter.
#[inline(always)]
fn memo_index(nr: usize, frame: impl Fn(usize) -> u64) -> usize {
    if nr < 3 {
        return 0;
    }
    let sum = frame(1).wrapping_add(frame(2)).wrapping_add(frame(nr / 2));
    // The highest bits of a product depend on all bits of its factors.
    (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - MEMOS.ilog2())) as usize
}

#[inline(always)]
const fn start_index(frame: u64) -> usize {
    ((frame as u32).wrapping_mul(0x9e37_79b1) >> (u32::BITS - STARTS.ilog2())) as usize
}

#[inline(always)]
const fn next_index(frame: u64, last: u64) -> usize {
    (((frame ^ last) as u32).wrapping_mul(0x9e37_79b1) >> (u32::BITS - NEXTS.ilog2())) as usize
}

/// Adds to a word that only the caller writes, saturating.
#[inline(always)]
fn add(word: &AtomicU64, n: u64) {
    let sum = word.load(Ordering::Relaxed).saturating_add(n);
    word.store(sum, Ordering::Relaxed);
}
