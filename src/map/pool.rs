// SPDX-License-Identifier: GPL-2.0

//! The pool: records of stacks at their own length, in chunks that are added as they are needed.
//!
//! A record is one header word and the frames. It is named by the offset of its header in words
//! from the start of the pool, never 0, and lies within one chunk:
//!
//! ```text
//!  63        32 31         0
//! +------------+------------+---------+---------+ ...
//! |     0      |   epoch    | frame 0 | frame 1 |
//! +------------+------------+---------+---------+ ...
//! ```
//!
//! `word.rs` says what a frame is. The frames and the epoch of a published record never change; only cached rules
//! come and go.
//!
//! Offsets are reserved in ascending order; only a reset rewinds them. Words that were reserved but
//! not published, because the writer lost a race, become the *leftover* of its context, see `context.rs`.

use super::{
    sys::{
        sizes::{CHUNK_WORDS, CURSOR_TRIES},
        Array, AtomicPtr, AtomicU32, AtomicU64, CachePadded, Inside, Ordering,
    },
    word::{frame_of, without_rule},
    Fallback,
};
use core::marker::PhantomData;

/// Words in front of the frames.
pub(super) const HEADER_WORDS: u32 = 1;

/// Words of the pool that its holder alone may write, for as long as a section.
///
/// # Invariants
///
/// The words are below the limit of `pool`, in one chunk, and in this generation no record and no other
/// `WordRange` has any of them. The first `record` of them, if any, are a record.
pub(super) struct WordRange<'s> {
    pool: &'s Pool,
    offset: u32,
    words: u32,
    record: u32,
    section: PhantomData<Inside<'s>>,
}

impl<'s> WordRange<'s> {
    /// Restores a range of which only `offset` and `words` were kept.
    ///
    /// # Safety
    ///
    /// The holder has given it up, in this generation, and it is taken back only once.
    pub(super) unsafe fn restore(pool: &'s Pool, offset: u32, words: u32) -> Self {
        // INVARIANT: By the requirement, as it was, without a record.
        Self {
            pool,
            offset,
            words,
            record: 0,
            section: PhantomData,
        }
    }

    /// Returns whether its words are of this pool.
    pub(super) fn is_of(&self, pool: &Pool) -> bool {
        core::ptr::eq(self.pool, pool)
    }

    /// Returns the offset of its first word, never 0.
    pub(super) const fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns the number of its words.
    pub(super) const fn words(&self) -> u32 {
        self.words
    }

    /// Writes a record to its beginning.
    ///
    /// # Panics
    ///
    /// If it has fewer words than the record.
    pub(super) fn fill(self, epoch: u32, frames: &[u64]) -> Self {
        // SAFETY: By the invariant, the words are there.
        let words = unsafe { self.pool.words(self.offset, self.words as usize) };
        let words = &words[..HEADER_WORDS as usize + frames.len()];
        words[0].store(u64::from(epoch), Ordering::Relaxed);
        let mask = match self.pool.has_cached_rules {
            true => without_rule(u64::MAX),
            false => u64::MAX,
        };
        for (word, frame) in words[HEADER_WORDS as usize..].iter().zip(frames) {
            word.store(*frame & mask, Ordering::Relaxed);
        }
        // INVARIANT: Just written.
        Self {
            record: words.len() as u32,
            ..self
        }
    }

    /// Returns the number of frames of its record, if it has one.
    pub(super) fn nr(&self) -> Option<u32> {
        self.record.checked_sub(HEADER_WORDS)
    }

    /// Returns the words, perhaps none, after the record, which has been published.
    pub(super) fn rest(self) -> Self {
        // INVARIANT: They are words of the range, which is used up, and not of the record.
        Self {
            offset: self.offset + self.record,
            words: self.words - self.record,
            record: 0,
            ..self
        }
    }
}

/// Memory for records.
///
/// # Invariants
///
/// - `limit` is a multiple of [`CHUNK_WORDS`]; the first `limit / CHUNK_WORDS` elements of `chunks`
///   point to arrays of [`CHUNK_WORDS`] words, the others are null.
/// - Chunks go away only in [`Pool::rewind`] and when the pool is dropped.
pub(super) struct Pool {
    /// Whether frames can have cached rules.
    pub(super) has_cached_rules: bool,
    chunks: Array<AtomicPtr<AtomicU64>>,
    limit: AtomicU32,
    cursor: CachePadded<AtomicU32>,
}

impl Pool {
    /// Makes a pool that may grow to `max_chunks` chunks. Context: process. [`None`]: no memory.
    pub(super) fn new(has_cached_rules: bool, max_chunks: usize) -> Option<Self> {
        let chunks = Array::new(max_chunks, || AtomicPtr::new(core::ptr::null_mut()))?;
        // INVARIANT: No chunk, so `limit` is 0.
        let pool = Self {
            has_cached_rules,
            chunks,
            limit: AtomicU32::new(0),
            // Offset 0 is no record's: a slot that is 0 is empty.
            cursor: CachePadded(AtomicU32::new(1)),
        };
        for _ in 0..pool.first_chunks() {
            pool.grow()?;
        }
        Some(pool)
    }

    /// Adds a chunk if the pool may have one more. [`None`]: no memory.
    ///
    /// Context: process, may sleep. Callers exclude each other and [`Pool::rewind`].
    pub(super) fn grow(&self) -> Option<()> {
        let limit = self.limit.load(Ordering::Relaxed);
        let Some(next) = self.chunks.get((limit / CHUNK_WORDS) as usize) else {
            return Some(());
        };
        let chunk = Array::new(CHUNK_WORDS as usize, || AtomicU64::new(0))?;
        next.store(chunk.into_raw(), Ordering::Relaxed);
        // INVARIANT: The chunk was stored just before.
        // ORDERING: Release; O3, pairs with the load in `reserve`.
        self.limit.store(limit + CHUNK_WORDS, Ordering::Release);
        Some(())
    }

    /// Returns whether less than one chunk is free and the pool may still grow. Context: any.
    pub(super) fn wants_growth(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        // The cursor may already be above the `limit` that was read: both may have moved since.
        let free = limit.saturating_sub(self.cursor.load(Ordering::Relaxed));
        self.may_grow(limit) && free < CHUNK_WORDS
    }

    /// Returns the number of chunks that a new or a reset pool has.
    fn first_chunks(&self) -> usize {
        self.chunks.len().min(2)
    }

    fn may_grow(&self, limit: u32) -> bool {
        ((limit / CHUNK_WORDS) as usize) < self.chunks.len()
    }

    /// Returns the number of bytes of all chunks.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.limit.load(Ordering::Relaxed)) * 8
    }

    /// Returns the number of bytes that were reserved; the unused word at offset 0 does not count.
    pub(super) fn reserved_bytes(&self) -> u64 {
        u64::from(self.cursor.load(Ordering::Relaxed) - 1) * 8
    }

    /// Reserves `words` words, at most [`CHUNK_WORDS`]. Context: any, NMI included.
    ///
    /// Words skipped at the end of a chunk go to `skip`.
    ///
    /// # Safety
    ///
    /// The caller is in a read-side section of the current generation for as long as `'s`.
    pub(super) unsafe fn reserve<'s>(
        &'s self,
        words: u32,
        skip: impl FnOnce(WordRange<'s>),
    ) -> Result<WordRange<'s>, Fallback> {
        for _ in 0..CURSOR_TRIES {
            let cursor = self.cursor.load(Ordering::Relaxed);
            // ORDERING: Acquire; O3, pairs with the store in `grow`: the chunk is set.
            let limit = self.limit.load(Ordering::Acquire);
            let left = CHUNK_WORDS - cursor % CHUNK_WORDS;
            let start = if left < words { cursor + left } else { cursor };
            if start + words > limit {
                return Err(if self.may_grow(limit) {
                    Fallback::Growing
                } else {
                    Fallback::PoolFull
                });
            }
            if self
                .cursor
                .compare_exchange(cursor, start + words, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                // INVARIANT: The range ends at or below `limit`. It starts at the next chunk if it
                // would cross a chunk's end. The skipped words end where their chunk ends. Nobody else
                // has moved the cursor over any of them.
                let range = |offset, words| WordRange {
                    pool: self,
                    offset,
                    words,
                    record: 0,
                    section: PhantomData,
                };
                if start != cursor {
                    skip(range(cursor, start - cursor));
                }
                return Ok(range(start, words));
            }
        }
        Err(Fallback::Contended)
    }

    /// Returns `words` words from `offset` on.
    ///
    /// # Safety
    ///
    /// The words belong to a range, or to a record in it, of the current generation, and the caller is
    /// in a read-side section of that generation for as long as the result is used.
    #[inline(always)]
    pub(super) unsafe fn words(&self, offset: u32, words: usize) -> &[AtomicU64] {
        let within = offset % CHUNK_WORDS;
        debug_assert!(within as usize + words <= CHUNK_WORDS as usize);
        // Relaxed: the reservation acquired O3, and its offset came through O1 or is the caller's.
        let index = (offset / CHUNK_WORDS) as usize;
        debug_assert!(index < self.chunks.len());
        // SAFETY: By the type invariants a range lies in one chunk below `limit`, and the chunks below it are elements
        // of `chunks` that are not null. They are not freed before the caller's read-side section ends.
        unsafe {
            let chunk = self.chunks.get_unchecked(index).load(Ordering::Relaxed);
            debug_assert!(!chunk.is_null());
            core::slice::from_raw_parts(chunk.add(within as usize), words)
        }
    }

    /// Returns whether a record can hold these frames.
    pub(super) fn can_hold(&self, frames: &[u64]) -> bool {
        !self.has_cached_rules || frames.iter().all(|frame| frame_of(*frame) == *frame)
    }

    /// Removes all records and frees all chunks but the first ones.
    ///
    /// # Safety
    ///
    /// A grace period has passed since the last CPU could reserve or reach a record, no CPU can
    /// until this returns, and no call of [`Pool::grow`] runs.
    pub(super) unsafe fn rewind(&self) {
        let keep = self.first_chunks();
        // SAFETY: By the requirement, no CPU uses the chunks.
        unsafe { self.free_from(keep) };
        self.cursor.store(1, Ordering::Relaxed);
    }

    /// Frees the chunks from the `keep`-th on.
    ///
    /// # Safety
    ///
    /// No CPU uses these chunks, and no call of [`Pool::grow`] runs.
    unsafe fn free_from(&self, keep: usize) {
        let have = (self.limit.load(Ordering::Relaxed) / CHUNK_WORDS) as usize;
        if have <= keep {
            return;
        }
        // INVARIANT: The elements from `keep` on become null below, before any CPU uses the pool.
        self.limit
            .store(keep as u32 * CHUNK_WORDS, Ordering::Relaxed);
        for chunk in &self.chunks[keep..have] {
            let ptr = chunk.load(Ordering::Relaxed);
            chunk.store(core::ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: By the type invariants `ptr` is from `Array::into_raw` of an array of
            // `CHUNK_WORDS` words; by the requirement no CPU uses it.
            drop(unsafe { Array::from_raw(ptr, CHUNK_WORDS as usize) });
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: The exclusive borrow shows that no other user of the pool exists.
        unsafe { self.free_from(0) };
    }
}
