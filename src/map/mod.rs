// SPDX-License-Identifier: GPL-2.0

//! A lock-free map from stacks to ids that is right in NMI on every CPU at once.
//!
//! # The map
//!
//! A table of `2^(bits+1)` slots for at most `2^bits` stacks, and a pool of records, one a stack.
//! A slot is one 64-bit word, 0 while it is empty:
//!
//! ```text
//!  63         43 42      32 31          0
//! +-------------+----------+-------------+
//! |    hash     |    nr    |   record    |
//! +-------------+----------+-------------+
//! ```
//!
//! A stack is searched for from the slot that its hash names, upwards, to the first empty slot. For a new
//! stack the complete record is written first. Then one compare-and-swap turns the empty slot into a word
//! that names the record. So a slot is empty or complete: no CPU waits for the unfinished insert of
//! another, and an insert that is interrupted and never resumed leaves an empty slot, an entry and words
//! that nobody uses.
//!
//! ```text
//! get_id(frames):
//!     refuse if a reset runs
//!     hash the frames; for each of PROBE_LIMIT slots from the one that the hash names:
//!         if the slot is empty:
//!             if there is no record yet: claim an entry, take words, write the record
//!             swap the slot from 0 to a word that names the record
//!             if that has swapped: count a reference, return the id of the slot
//!         if the slot names a record of these frames:
//!             keep the words as a leftover, release the entry
//!             count a reference, return the id of the slot
//!     keep and release as above, refuse
//! ```
//!
//! The id is the slot's number under a generation (see `id.rs`), so finding a stack by its id is
//! one load. A reset makes a new generation; ids of an older one resolve to nothing.
//!
//! # Contexts
//!
//! [`CtxGuard::get_id`] runs in any context, on a [`Context`] that is its caller's own, and inside a
//! read-side section (in the kernel: with preemption off). [`Map::grow`], [`Map::reset`] and
//! [`Map::snapshot`] run in process context. A reset first makes `get_id` return
//! [`Fallback::Resetting`], then waits until each CPU has left `get_id`, and only then clears the
//! map. Exports check the generation inside their read-side section.
//!
//! What is valid only inside a section has a type that only a section gives: [`Inside`] shows that there is
//! one, `Current` that its generation was read there, `Record` that a stack was published in it,
//! `WordRange` that nobody else has these words, and which of them are a record, [`CtxGuard`] that nobody else
//! has a context. None of them outlives the section. Words are taken only with a `Current`, because a reset
//! takes all of them back.
//!
//! # Properties
//!
//! `Documentation/map.rst` says which tests show them.
//!
//! - **P1** In a generation a stack has one id, even if several contexts insert it at the same time, such as
//!   an NMI on top of an interrupt on top of a task. *Proof.* All inserts of a stack try the same slots in
//!   the same order; none outlives its generation, in which no slot becomes empty again. Let a stack be
//!   published in two slots. The insert that published it in the later one passed the earlier one, so it
//!   found a word there, by a load or by the load after a swap that failed. That word never changes, so it
//!   is the one that names this stack. By O1 the insert saw its frames, which cached rules do not change, found
//!   them equal, and returned the id of the earlier slot: a contradiction.
//! - **P2** [`CtxGuard::get_id`] never allocates, locks, waits or faults, and ends whatever other
//!   CPUs do. With `n` frames it makes at most `P(n + 4) + n + 3T + 3W + 30` accesses to atomic
//!   words, where `P` is `PROBE_LIMIT`, `T` `CURSOR_TRIES` and `W` `BATCH_WAYS`; 8 more to update a prediction,
//!   and `3n` more if rules are cached. A stack that was predicted takes at most `n + 3W + 14`. One
//!   access is one instruction on x86, and on arm64 with LSE; else a swap is a loop there that only ends when
//!   no other CPU writes the same line between its load and its store: then it is lock-free, not wait-free.
//! - **P3** A stack without an id gets a [`Fallback`] with the reason; each reason has a counter. An unused
//!   entry is released. Words that were reserved and not published serve a later stack of their context;
//!   of two such ranges only the smaller is lost, until the reset.
//! - **P4** A stack keeps its id until a reset, is found at every load, full map and pool included
//!   (the search never needs memory, and the table is at most half full, which keeps it short), and
//!   reads back as it was.
//! - **P5** An id is a positive `int` with the generation inside; one from before a reset resolves
//!   to nothing until as many resets as there are generations have removed stacks, see `id.rs`.
//! - **P6** The table takes 24 bytes for each stack of capacity; a context takes 5.1 KiB. The pool has the
//!   bytes of its records, at most two chunks ahead, a leftover for each context, and what is lost: at most a
//!   thirtieth at the ends of chunks, and at most a record for each lost swap after which the stack was found
//!   in the map or refused.
//! - **P7** References and counters are exact when nothing is recorded, and saturate. The frames and the
//!   epoch of a record never change. A hit whose references are batched writes only its context,
//!   which no other recorder reads. The exceptions: one hit in `REFS_BATCH_MAX` adds to the references in the
//!   map, and a hit of a stack that was not predicted may write cached rules.
//! - **P8** The hash is seeded, 64 bits wide, and spreads real and nearly equal stacks as a random
//!   function would, see `hash.rs`.
//!
//! # Memory ordering
//!
//! | pair | release side | acquire side | what it carries |
//! |---|---|---|---|
//! | O1 | the swap in `publish` | loads of a slot | the record's words |
//! | O2 | the store of the new generation in `reset` | the load of the state by `get_id`, `predictor` and exports | the cleared table, contexts and pool |
//! | O3 | the store of the pool's limit in `grow` | the load of the limit in `reserve` | the chunk's pointer and zeroed words |
//! | O4 | the end of a growth or reset | the begin of the next | all that the last one wrote |
//!
//! All else is relaxed: words of a record are written before O1's release and read
//! after its acquire, cached rules come and go in words whose frames stay, sums of counters are approximate
//! while they change, and the epoch (see [`Map::snapshot`]) relies on the grace period.

mod context;
mod control;
mod current;
mod export;
mod get_id;
mod hash;
mod id;
mod pool;
mod predict;
mod record;
mod sys;
mod word;

#[cfg(loom)]
pub use self::sys::model;
pub use self::{
    context::{Context, CtxGuard, MapCounter},
    export::{Epoch, ExportedStack},
    hash::Seed,
    id::Id,
    predict::{PredictedStack, Predictor},
    record::Record,
    sys::{
        sizes::{BITS_MIN, MAX_FRAMES, POOL_BYTES_PER_STACK, PROBE_LIMIT},
        Inside, ReadSide,
    },
    word::LAST_WORD,
};

use self::{
    id::Generation,
    pool::{Pool, HEADER_WORDS},
    sys::{
        sizes::{CHUNK_WORDS, REFS_BATCH_MAX, REFS_MAX},
        Array, AtomicU32, AtomicU64, CachePadded, Ordering,
    },
};

/// The largest `bits`: the map holds up to `2^bits` stacks.
pub const BITS_MAX: u32 = 20;

/// The maximum number of contexts of a map. If each adds a batch at the same time to references that are
/// just below `REFS_MAX`, these stay below 2^32.
pub const CONTEXTS_MAX: usize = ((u32::MAX as u64 - REFS_MAX) / REFS_BATCH_MAX as u64) as usize;

/// Returns the number of bytes of the pool that the record of a stack of `nr` frames takes.
pub const fn record_bytes(frames: usize) -> usize {
    8 * (HEADER_WORDS as usize + frames)
}

/// The result of [`CtxGuard::get_id`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lookup {
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
    /// Other contexts reserved words at the same time, too often.
    Contended,
    /// The map is being reset.
    Resetting,
}

impl Fallback {
    /// Returns the counter of this reason.
    pub const fn counter(self) -> MapCounter {
        match self {
            Fallback::Full => MapCounter::DropFull,
            Fallback::PoolFull => MapCounter::DropPool,
            Fallback::Growing => MapCounter::DropGrowing,
            Fallback::ProbeLimit => MapCounter::DropProbe,
            Fallback::Contended => MapCounter::DropContended,
            Fallback::Resetting => MapCounter::DropReset,
        }
    }
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MapError {
    /// A reset is running; for a growth or a reset, also a growth.
    Busy,
    /// No memory.
    NoMemory,
    /// A reset has removed the stacks of the snapshot, or is running.
    Stale,
}

/// The map.
///
/// # Invariants
///
/// - `slots.len()` is a power of two and at least 2.
/// - In a generation a slot changes once, from 0 to a word that names a filled record. The frames and the
///   epoch of a published record stay. Only a reset makes the slot 0 again.
/// - `refs` has an element for each slot: the references that were flushed in this generation, at most
///   `REFS_MAX` and what the contexts added at the same time.
/// - `control` is 1 while, and only while, a growth or a reset runs.
pub struct Map {
    slots: Array<AtomicU64>,
    refs: Array<AtomicU32>,
    pool: Pool,
    contexts: Array<Context>,
    seed: Seed,
    capacity: u32,
    /// The generation, or 0 while a reset runs.
    state: AtomicU32,
    /// Raised by every [`Map::snapshot`]; written into each record.
    epoch: AtomicU32,
    control: AtomicU32,
    /// Indexed by [`MapCounter`]: the values at the last reset.
    before: [AtomicU64; MapCounter::ALL.len()],
    /// Claimed entries: stacks in the map and stacks being inserted.
    entries: CachePadded<AtomicU32>,
}

impl Map {
    /// Makes a map for `2^bits` stacks that `contexts` contexts can use. Returns [`None`] without memory, or with
    /// more contexts than [`CONTEXTS_MAX`].
    ///
    /// `bits` is clamped to [`BITS_MIN`]`..=`[`BITS_MAX`]. Context: process, may sleep.
    pub fn new(bits: u32, contexts: usize, seed: Seed) -> Option<Self> {
        Self::of(false, bits, contexts, seed)
    }

    /// Makes a map whose frames can have cached rules, see [`PredictedStack`]: a frame is what sign extension makes of
    /// the lower half of a word, the upper half is its rule. On arm64, which needs no cached rules, any word is a
    /// frame.
    pub fn with_cached_rules(bits: u32, contexts: usize, seed: Seed) -> Option<Self> {
        Self::of(true, bits, contexts, seed)
    }

    fn of(has_cached_rules: bool, bits: u32, contexts: usize, seed: Seed) -> Option<Self> {
        if contexts > CONTEXTS_MAX {
            return None;
        }
        let bits = bits.clamp(BITS_MIN, BITS_MAX);
        let pool_bytes = POOL_BYTES_PER_STACK << bits;
        // INVARIANT: All slots are 0, no growth or reset runs.
        Some(Self {
            slots: Array::new(2 << bits, || AtomicU64::new(0))?,
            refs: Array::new(2 << bits, || AtomicU32::new(0))?,
            pool: Pool::new(has_cached_rules, pool_bytes / (CHUNK_WORDS as usize * 8))?,
            contexts: Array::new(contexts, Context::new)?,
            seed,
            capacity: 1 << bits,
            state: AtomicU32::new(Generation::first(seed, 2 << bits).bits()),
            epoch: AtomicU32::new(0),
            control: AtomicU32::new(0),
            before: core::array::from_fn(|_| AtomicU64::new(0)),
            entries: CachePadded(AtomicU32::new(0)),
        })
    }

    /// Returns the most stacks that the map can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of slots of the table.
    pub fn table_size(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of stacks in the map and those being inserted, at most the capacity.
    pub fn entries(&self) -> u32 {
        self.entries_claimed().min(self.capacity)
    }

    /// Returns the number of entries that are claimed now. Inserts in progress count, also those that find the map
    /// full, so this can exceed [`Map::entries`]. When nothing is recorded, both are the number of
    /// stacks.
    pub fn entries_claimed(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the pool now.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.bytes()
    }

    /// Returns the bytes of the pool that were reserved: those of all records and leftovers, and what has been lost.
    pub fn reserved_bytes(&self) -> u64 {
        self.pool.reserved_bytes()
    }

    /// Returns the bytes of the leftovers of all contexts.
    pub fn leftover_bytes(&self) -> u64 {
        let words = self.contexts.iter().map(Context::leftover_words);
        words.map(u64::from).sum::<u64>() * 8
    }

    /// Returns the bytes of the table: of slots and references, but not of contexts.
    pub fn table_bytes(&self) -> u64 {
        self.slots.len() as u64 * 8 + self.refs.len() as u64 * 4
    }

    /// Returns the sum of a counter over all contexts since the last reset.
    ///
    /// Exact when nothing is recorded, otherwise approximate. Context: any.
    pub fn total(&self, counter: MapCounter) -> u64 {
        let before = self.before[counter as usize].load(Ordering::Relaxed);
        self.total_since_new(counter).saturating_sub(before)
    }

    /// Returns the sum of a counter over all contexts since the map was made, saturating.
    fn total_since_new(&self, counter: MapCounter) -> u64 {
        let counts = self.contexts.iter().map(|ctx| ctx.get(counter));
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the generation, or [`None`] while a reset runs. A generation that is read inside a read-side
    /// section is valid until the section ends.
    #[inline(always)]
    fn generation(&self) -> Option<Generation> {
        // ORDERING: Acquire; O2, pairs with the store in `reset`.
        Generation::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Returns the references of the stack in a slot that were flushed, at most [`REFS_MAX`].
    fn refs(&self, slot: u32) -> u64 {
        u64::from(self.refs[slot as usize].load(Ordering::Relaxed)).min(REFS_MAX)
    }

    /// Adds references to the stack in a slot, saturating. Context: any.
    fn add_refs(&self, slot: u32, refs: u32) {
        let sum = &self.refs[slot as usize];
        // Between this check and the addition each other context may add a batch of its own.
        // No carry: a map has at most `CONTEXTS_MAX` contexts.
        if u64::from(sum.load(Ordering::Relaxed)) < REFS_MAX {
            sum.fetch_add(refs, Ordering::Relaxed);
        }
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
