// SPDX-License-Identifier: GPL-2.0

//! A lock-free map from kernel stacks to ids that is right in NMI on every CPU at once.
//!
//! # The map
//!
//! A table of `2^(bits+1)` slots for at most `2^bits` stacks, and a pool of records, one a stack.
//! A slot is one 64-bit word, 0 while it is empty:
//!
//! ```text
//!  63         43 42      32 31          0
//! +-------------+----------+-------------+
//! |  hash tag   |    nr    |   record    |
//! +-------------+----------+-------------+
//! ```
//!
//! A stack is searched for from the slot that its hash names, upwards, to the first empty slot,
//! [`PROBE_LIMIT`] slots at most. For a new stack the complete record is written first. Then one
//! compare-and-swap turns the empty slot into a word that names the record. So a slot is empty or
//! complete: no CPU waits for the unfinished insert of another, and an insert that is interrupted
//! and never resumed leaves an empty slot.
//!
//! The id is the slot's number under a generation (see `id.rs`), so finding a stack by its id is
//! one load. A reset makes a new generation; ids of an older one resolve to nothing.
//!
//! # Contexts
//!
//! [`Entered::get_id`] runs in any context, on a [`Context`] that is its caller's own, and inside a
//! read-side section (in the kernel: with preemption off). [`Map::grow`], [`Map::reset`] and
//! [`Map::snapshot`] run in process context. A reset first makes `get_id` return
//! [`Fallback::Resetting`], then waits until each CPU has left `get_id`, and only then clears the
//! map. Exports check the generation inside their read-side section.
//!
//! # Properties
//!
//! `Documentation/map.rst` says how to run the tests named here, and lists their results.
//!
//! - **P1** A stack has one id, even if several contexts insert it at the same time, such as an NMI
//!   on top of an interrupt on top of a task. All inserts of a stack try the same slots in the same
//!   order, no slot becomes empty again, and the loser of a swap compares with the winner's stack.
//!   *loom: `inserts`, `interrupts`; `scale.rs`.*
//! - **P2** [`Entered::get_id`] never allocates, locks, waits or faults, and ends whatever other
//!   CPUs do. With `n` frames it makes at most `P(n + 4) + 2n + 3L + 3T + 33` accesses to atomic
//!   words, where `P` = 128 slots, `L` = 11 lists of free extents, `T` = 16 attempts to reserve:
//!   3,226 for 20 frames. A hit with a memo makes `n + 6`; one by guides `n + 19`, and 16 more for each
//!   other guide that it goes on with; to give hints takes `3n` more. *loom: every model counts the accesses.*
//! - **P3** A stack without an id gets a [`Fallback`] with the reason; each reason has a counter.
//!   Nothing leaks: the words of a record that lost a race serve a later stack, see
//!   `free_extents.rs`, and an unused entry is released. *loom: `inserts`, `pool`, `interrupts`;
//!   `property.rs`; the models' `settle` adds up every word of the pool.*
//! - **P4** A stack keeps its id until a reset, is found at every load, full map and pool included
//!   (the search never needs memory, and the table is at most half full, which keeps it short), and
//!   reads back as it was. *`map.rs`, `property.rs`, `scale.rs`.*
//! - **P5** An id is a positive `int` with the generation inside; one from before a reset resolves
//!   to nothing until 1,023 resets at least have removed stacks, see `id.rs`. Finding a stack by
//!   its id is one load of a slot. *`map.rs`: 1,024 resets of the largest map, and 1,023 of it
//!   without a stack; loom: `resets`, `exports`.*
//! - **P6** The table takes 16 bytes for each stack of capacity, and where there are guides as much again
//!   for branches. The pool has at most 1.25 × the bytes of its records and 1 MiB, at any time:
//!   [`Map::grow`] adds no chunk that would break this, also when races have left many free extents.
//!   *`map.rs`, `property.rs`; loom: `pool`, `control`.*
//! - **P7** References and counters are exact when nothing is recorded, and saturate. Hits of a hot
//!   stack that a memo or a guide tells are counted in a memo; only one in 32,768 writes a word that
//!   other CPUs write too, see `context.rs`. *loom: `counts`; `scale.rs`; `tools/bench`.*
//! - **P8** The hash is seeded, 64 bits wide, and spreads real and nearly equal stacks as a random
//!   function would, see `hash.rs`. *`hash.rs` of the tests.*
//!
//! # Memory ordering
//!
//! | pair | release side | acquire side | what it carries |
//! |---|---|---|---|
//! | O1 | the swap in `get_id` that publishes a slot | loads of a slot | the record's words |
//! | O2 | the store of the new generation in `reset` | the load of the state by `get_id`, guides and exports | the cleared table, contexts and pool |
//! | O3 | the store of the pool's limit in `grow` | the load of the limit in `reserve` | the chunk's pointer and zeroed words |
//! | O4 | the end of a growth or reset | the begin of the next | all that the last one wrote |
//!
//! Each pair has models in `selftests/map/loom/` and litmus tests in `selftests/litmus/`, and both
//! fail without it. All else is relaxed: words of a record are written before O1's release and read
//! after its acquire, hints come and go in words whose frames stay, a branch is followed through O1,
//! sums of counters are approximate while they change, and the epoch (see
//! [`Map::snapshot`]) relies on the grace period.

mod context;
mod control;
mod export;
mod free_extents;
mod get_id;
mod guide;
mod hash;
mod id;
mod pool;
mod sys;
mod word;

#[cfg(loom)]
pub use self::sys::model;
pub use self::{
    context::{Context, Counter},
    control::ControlError,
    export::{Frames, InsertEpoch, Snapshot, Stack, Stale},
    get_id::Entered,
    guide::{Guide, Guides},
    hash::Seed,
    id::Id,
    pool::{Words, CONTEXTS_MAX},
    sys::{
        sizes::{BITS_MIN, MAX_FRAMES, POOL_BYTES_PER_STACK, PROBE_LIMIT},
        ReadSide,
    },
};

use self::{
    id::{Generation, Layout},
    pool::{Pool, ReserveError, HEADER_WORDS},
    sys::{sizes::CHUNK_WORDS, Array, AtomicU32, AtomicU64, CachePadded, Ordering},
    word::Word,
};

/// The default `bits`: the map holds up to `2^bits` stacks.
pub const BITS_DEFAULT: u32 = 14;

/// The largest `bits`, see [`BITS_DEFAULT`].
pub const BITS_MAX: u32 = 20;

/// Bytes of the pool that the record of a stack of so many frames takes.
pub const fn record_bytes(frames: usize) -> usize {
    8 * (HEADER_WORDS as usize + frames)
}

/// Set in the state while a reset runs, above the bits of an id.
const RESETTING: u32 = 1 << 31;

/// The id of a stack that was recorded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Found {
    /// The id.
    pub id: Id,
    /// Whether the stack was new.
    pub inserted: bool,
}

/// Why a stack got no id. The caller records the full stack and counts the reason.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fallback {
    /// The map holds as many stacks as it may.
    Full,
    /// The pool has grown to its limit, or no record can hold the stack.
    PoolFull,
    /// Pool growth is pending.
    Growing,
    /// All slots up to the probe limit hold other stacks.
    ProbeLimit,
    /// Other CPUs reserved records at the same time, too often.
    Contended,
    /// The map is being reset.
    Resetting,
}

impl Fallback {
    /// The counter of this reason.
    pub const fn counter(self) -> Counter {
        match self {
            Fallback::Full => Counter::DropFull,
            Fallback::PoolFull => Counter::DropPool,
            Fallback::Growing => Counter::DropGrowing,
            Fallback::ProbeLimit => Counter::DropProbe,
            Fallback::Contended => Counter::DropContended,
            Fallback::Resetting => Counter::DropReset,
        }
    }
}

impl From<ReserveError> for Fallback {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Full => Fallback::PoolFull,
            ReserveError::Growing => Fallback::Growing,
            ReserveError::Contended => Fallback::Contended,
        }
    }
}

/// The map.
///
/// # Invariants
///
/// - `slots.len()` is a power of two and not 0; it is the number of slots that `layout` knows.
/// - In a generation a slot changes once, from 0 to a word that names a filled record. Of a
///   published record only the references and hints change. Only a reset makes the slot 0 again.
/// - Where `branches` say that a stack leads to another one after some frames, both have these.
/// - `control` is 1 while, and only while, a growth or a reset runs.
pub struct Map {
    slots: Array<AtomicU64>,
    /// As many as slots, if there are guides.
    branches: Array<AtomicU64>,
    pool: Pool,
    contexts: Array<Context>,
    seed: Seed,
    layout: Layout,
    capacity: u32,
    /// The generation, and [`RESETTING`].
    state: AtomicU32,
    /// Raised by every [`Snapshot`]; written into each record.
    epoch: AtomicU32,
    control: AtomicU32,
    /// Indexed by [`Counter`]: the values at the last reset.
    before: [AtomicU64; Counter::COUNT],
    /// Claimed entries: stacks in the map and stacks being inserted.
    entries: CachePadded<AtomicU32>,
}

impl Map {
    /// Makes a map for `2^bits` stacks that `contexts` contexts can use. [`None`]: no memory, or
    /// more contexts than [`CONTEXTS_MAX`].
    ///
    /// `bits` is clamped to [`BITS_MIN`]`..=`[`BITS_MAX`]. Context: process, may sleep.
    pub fn new(bits: u32, contexts: usize, seed: Seed) -> Option<Self> {
        Self::of(Words::Whole, bits, contexts, seed)
    }

    /// The same, of frames that are kept as `words` says.
    pub fn of(words: Words, bits: u32, contexts: usize, seed: Seed) -> Option<Self> {
        if contexts > CONTEXTS_MAX {
            return None;
        }
        let bits = bits.clamp(BITS_MIN, BITS_MAX);
        let pool_bytes = POOL_BYTES_PER_STACK << bits;
        let layout = Layout::new(bits + 1);
        let branches = match words {
            Words::Whole => 0,
            Words::Hinted => 2 << bits,
        };
        // INVARIANT: All slots are 0, no growth or reset runs.
        Some(Self {
            slots: Array::new(2 << bits, || AtomicU64::new(Word::EMPTY.bits()))?,
            branches: Array::new(branches, || AtomicU64::new(0))?,
            pool: Pool::new(words, pool_bytes / (CHUNK_WORDS as usize * 8))?,
            contexts: Array::new(contexts, Context::new)?,
            seed,
            layout,
            capacity: 1 << bits,
            state: AtomicU32::new(layout.first(seed).bits()),
            epoch: AtomicU32::new(0),
            control: AtomicU32::new(0),
            before: core::array::from_fn(|_| AtomicU64::new(0)),
            entries: CachePadded(AtomicU32::new(0)),
        })
    }

    /// Enters a context. The caller owns it until the result is dropped.
    ///
    /// # Safety
    ///
    /// Until the result is dropped no other caller enters the context `index`; all earlier accesses
    /// to it happened before this call. The caller stays in a region that a grace period waits
    /// for: with preemption off, or a [`ReadSide`].
    ///
    /// # Panics
    ///
    /// If `index` is not below the number of contexts.
    #[inline(always)]
    pub unsafe fn enter(&self, index: usize) -> Entered<'_> {
        Entered {
            map: self,
            ctx: &self.contexts[index],
        }
    }

    /// The most stacks that the map can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The number of slots of the table.
    pub fn table_size(&self) -> usize {
        self.slots.len()
    }

    /// Stacks in the map now.
    pub fn entries(&self) -> u32 {
        self.entries_claimed().min(self.capacity)
    }

    /// The entries that are claimed now. Inserts in progress count, also those that find the map
    /// full, so this can exceed [`Map::entries`]. When nothing is recorded, both are the number of
    /// stacks.
    pub fn entries_claimed(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Bytes of the pool now.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.bytes()
    }

    /// Bytes of the pool that were reserved: those of all records and all free extents.
    pub fn reserved_bytes(&self) -> u64 {
        self.pool.reserved_bytes()
    }

    /// Bytes of the records of all stacks, headers included.
    ///
    /// Exact when nothing is recorded; otherwise stacks being inserted may be missing.
    pub fn stored_bytes(&self) -> u64 {
        self.contexts.iter().map(Context::stored).sum::<u64>() * 8
    }

    /// Bytes of the free extents of all contexts.
    pub fn free_extent_bytes(&self) -> u64 {
        let words = |ctx: &Context| u64::from(ctx.free_extents.words());
        self.contexts.iter().map(words).sum::<u64>() * 8
    }

    /// Bytes of the table and of its branches.
    pub fn table_bytes(&self) -> u64 {
        (self.slots.len() + self.branches.len()) as u64 * 8
    }

    /// The sum of a counter over all contexts since the last reset.
    ///
    /// Exact when nothing is recorded, otherwise approximate. Context: any.
    pub fn total(&self, counter: Counter) -> u64 {
        let before = self.before[counter as usize].load(Ordering::Relaxed);
        self.total_since_new(counter).saturating_sub(before)
    }

    /// The sum of a counter over all contexts since the map was made, saturating.
    fn total_since_new(&self, counter: Counter) -> u64 {
        let counts = self.contexts.iter().map(|ctx| ctx.get(counter));
        counts.fold(0, u64::saturating_add)
    }

    /// The generation, or [`None`] while a reset runs. A generation that is read inside a read-side
    /// section is valid until the section ends.
    #[inline(always)]
    fn generation(&self) -> Option<Generation> {
        // ORDERING: Acquire; O2, pairs with the store in `reset`.
        let state = self.state.load(Ordering::Acquire);
        (state & RESETTING == 0).then_some(Generation::from_bits(state))
    }

    /// The slot of the `probe`-th probe for a hash.
    #[inline(always)]
    fn slot(&self, hash: u64, probe: u32) -> u32 {
        (hash as u32).wrapping_add(probe) & (self.slots.len() - 1) as u32
    }

    /// What a slot holds.
    #[inline(always)]
    fn word(&self, slot: u32) -> Word {
        // ORDERING: Acquire; O1, pairs with the swap in `publish`.
        Word::from_bits(self.slots[slot as usize].load(Ordering::Acquire))
    }

    /// Publishes a word in an empty slot. Returns false if the slot is not empty any more.
    fn publish(&self, slot: u32, word: Word) -> bool {
        // INVARIANT: The record of `word` has been filled.
        // ORDERING: Release; O1, pairs with the load in `word`.
        self.slots[slot as usize]
            .compare_exchange(
                Word::EMPTY.bits(),
                word.bits(),
                Ordering::Release,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Claims one of the `capacity` entries. A caller that publishes no record must release it.
    fn claim_entry(&self) -> bool {
        if self.entries.load(Ordering::Relaxed) >= self.capacity {
            return false;
        }
        if self.entries.fetch_add(1, Ordering::Relaxed) < self.capacity {
            return true;
        }
        self.release_entry();
        false
    }

    fn release_entry(&self) {
        self.entries.fetch_sub(1, Ordering::Relaxed);
    }
}
