// SPDX-License-Identifier: GPL-2.0

//! The pool: records of stacks at their own length, in chunks that are added as they are needed.
//!
//! A record is one header word and the frames. It is named by the offset of its header in words
//! from the start of the pool, never 0, and lies within one chunk:
//!
//! ```text
//!  63        32 31         0
//! +------------+------------+---------+---------+ ...
//! | references |   epoch    | frame 0 | frame 1 |
//! +------------+------------+---------+---------+ ...
//! ```
//!
//! What a frame is depends on the map: the whole word, or its lower half, which says all of an address in
//! text; then the upper half has a *hint*, see `guide.rs`. The frames of a published record stay. Only its
//! references and hints change.
//!
//! Offsets are reserved in ascending order; only a reset rewinds them. Words that were reserved but
//! not published, because the writer lost a race, become a *free extent*, see `free_extents.rs`.

use super::sys::{
    sizes::{CHUNK_WORDS, CURSOR_TRIES, REFS_BATCH_MAX, REFS_MAX},
    Array, AtomicPtr, AtomicU32, AtomicU64, CachePadded, Ordering,
};

/// The maximum number of contexts of a map. If each adds a batch at the same time to a record just
/// below [`REFS_MAX`], its references stay below 2^32.
pub const CONTEXTS_MAX: usize =
    ((u32::MAX as u64 - (REFS_MAX - 1)) / REFS_BATCH_MAX as u64) as usize;

/// Chunks that a new or a reset pool has.
const INITIAL_CHUNKS: usize = 2;

/// Words in front of the frames.
pub(super) const HEADER_WORDS: u32 = 1;

/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: u64 = CHUNK_WORDS as u64 * 8;

/// What the frames of a map are, and what a word of a record has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Words {
    /// Any word is a frame.
    Whole,
    /// A frame is what sign extension makes of the lower half of a word; the upper half is a hint, see
    /// [`Guide`](super::Guide).
    Hinted,
}

/// What a word with a hint has of the frame.
const FRAME: u64 = 0xffff_ffff;

/// What the word of the last frame may have of a hint: no size of a plain rule.
const LAST: u64 = 0x000f_ffff_ffff_ffff;

/// The frame of a word that has a hint.
#[inline(always)]
pub(super) const fn frame_of(word: u64) -> u64 {
    word as i32 as u64
}

/// Why no record could be reserved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReserveError {
    /// The pool has reached its maximum size.
    Full,
    /// Pool growth is pending: the next chunk is not allocated yet.
    Growing,
    /// Other CPUs moved the cursor too often.
    Contended,
}

/// Words of the pool that one context has reserved and not published.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Extent {
    pub(super) offset: u32,
    pub(super) words: u32,
}

impl Extent {
    /// The rest after the first `words` words, if it is not empty.
    pub(super) fn rest_after(self, words: u32) -> Option<Self> {
        (words < self.words).then(|| Self {
            offset: self.offset + words,
            words: self.words - words,
        })
    }
}

/// Memory for records.
///
/// # Invariants
///
/// - `limit` is a multiple of [`CHUNK_WORDS`]; the first `limit / CHUNK_WORDS` elements of `chunks`
///   point to arrays of [`CHUNK_WORDS`] words, the others are null.
/// - Chunks go away only in [`Pool::rewind`] and when the pool is dropped.
/// - Every extent returned by [`Pool::reserve`] has its words below `limit` and in one chunk.
pub(super) struct Pool {
    content: Words,
    chunks: Array<AtomicPtr<AtomicU64>>,
    limit: AtomicU32,
    cursor: CachePadded<AtomicU32>,
}

impl Pool {
    /// Makes a pool that may grow to `max_chunks` chunks. Context: process. [`None`]: no memory.
    pub(super) fn new(content: Words, max_chunks: usize) -> Option<Self> {
        let chunks = Array::new(max_chunks, || AtomicPtr::new(core::ptr::null_mut()))?;
        // INVARIANT: No chunk, so `limit` is 0.
        let pool = Self {
            content,
            chunks,
            limit: AtomicU32::new(0),
            cursor: CachePadded(AtomicU32::new(HEADER_WORDS)),
        };
        for _ in 0..INITIAL_CHUNKS.min(max_chunks) {
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

    /// Whether less than one chunk is free and the pool may still grow. Context: any.
    pub(super) fn wants_growth(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        // The cursor may already be above the `limit` that was read: both may have moved since.
        let free = limit.saturating_sub(self.cursor.load(Ordering::Relaxed));
        self.may_grow(limit) && free < CHUNK_WORDS
    }

    fn may_grow(&self, limit: u32) -> bool {
        ((limit / CHUNK_WORDS) as usize) < self.chunks.len()
    }

    /// Bytes of all chunks.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.limit.load(Ordering::Relaxed)) * 8
    }

    /// Bytes that were reserved; the unused word at offset 0 does not count.
    pub(super) fn reserved_bytes(&self) -> u64 {
        u64::from(self.cursor.load(Ordering::Relaxed) - HEADER_WORDS) * 8
    }

    /// Reserves `words` words, at most [`CHUNK_WORDS`]. Context: any, NMI included.
    ///
    /// Words skipped at the end of a chunk go to `leave`.
    pub(super) fn reserve(
        &self,
        words: u32,
        leave: impl FnOnce(Extent),
    ) -> Result<Extent, ReserveError> {
        for _ in 0..CURSOR_TRIES {
            let cursor = self.cursor.load(Ordering::Relaxed);
            // ORDERING: Acquire; O3, pairs with the store in `grow`: the chunk is set.
            let limit = self.limit.load(Ordering::Acquire);
            let room = CHUNK_WORDS - cursor % CHUNK_WORDS;
            let start = if room < words { cursor + room } else { cursor };
            if start + words > limit {
                return Err(if self.may_grow(limit) {
                    ReserveError::Growing
                } else {
                    ReserveError::Full
                });
            }
            let passed_over = Extent {
                offset: cursor,
                words: start - cursor,
            };
            let extent = Extent {
                offset: start,
                words,
            };
            if self
                .cursor
                .compare_exchange(cursor, start + words, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                if passed_over.words != 0 {
                    leave(passed_over);
                }
                // INVARIANT: The extent ends at or below `limit`. It starts at the next chunk if it
                // would cross a chunk's end. The skipped words end where their chunk ends.
                return Ok(extent);
            }
        }
        Err(ReserveError::Contended)
    }

    /// `words` words from `offset` on.
    ///
    /// The words belong to an extent, or to a record in it, of the current generation. The caller
    /// is in a read-side section of that generation, or has the pool for itself.
    #[inline(always)]
    fn words(&self, offset: u32, words: usize) -> &[AtomicU64] {
        let within = offset % CHUNK_WORDS;
        debug_assert!(within as usize + words <= CHUNK_WORDS as usize);
        // Relaxed: the reservation acquired O3, and its offset came through O1 or is the caller's.
        let index = (offset / CHUNK_WORDS) as usize;
        debug_assert!(index < self.chunks.len());
        // SAFETY: By the type invariants an extent lies in one chunk below `limit`, and the chunks
        // below it are elements of `chunks`.
        let chunk = unsafe { self.chunks.get_unchecked(index) }.load(Ordering::Relaxed);
        debug_assert!(!chunk.is_null());
        // SAFETY: By the type invariants the chunk is not null and contains the words; it is not
        // freed before the caller's read-side section ends.
        unsafe { core::slice::from_raw_parts(chunk.add(within as usize), words) }
    }

    /// The frames of a record with `nr` frames.
    #[inline(always)]
    pub(super) fn frames(&self, offset: u32, nr: usize) -> &[AtomicU64] {
        &self.words(offset, HEADER_WORDS as usize + nr)[HEADER_WORDS as usize..]
    }

    fn header(&self, offset: u32) -> &AtomicU64 {
        &self.words(offset, 1)[0]
    }

    /// The first word of an unpublished extent, which its owner may overwrite.
    pub(super) fn first_word(&self, offset: u32) -> &AtomicU64 {
        self.header(offset)
    }

    /// Whether a record can hold these frames.
    pub(super) fn can_hold(&self, frames: &[u64]) -> bool {
        self.content == Words::Whole || frames.iter().all(|frame| frame_of(*frame) == *frame)
    }

    /// Writes a record to the front of an extent that is large enough, without hints.
    pub(super) fn fill(&self, extent: Extent, epoch: u32, frames: &[u64]) {
        let words = self.words(extent.offset, extent.words as usize);
        words[0].store(u64::from(epoch), Ordering::Relaxed);
        let mask = match self.content {
            Words::Whole => u64::MAX,
            Words::Hinted => FRAME,
        };
        for (word, frame) in words[HEADER_WORDS as usize..].iter().zip(frames) {
            word.store(*frame & mask, Ordering::Relaxed);
        }
    }

    /// Removes the hints of the frames in `text` from a published record of `nr` frames.
    pub(super) fn remove_hints(&self, offset: u32, nr: usize, text: impl Fn(u64) -> bool) {
        if self.content == Words::Whole {
            return;
        }
        for word in self.frames(offset, nr) {
            let hinted = word.load(Ordering::Relaxed);
            if hinted & !FRAME != 0 && text(frame_of(hinted)) {
                word.store(hinted & FRAME, Ordering::Relaxed);
            }
        }
    }

    /// Whether a published record of `frames.len()` frames holds exactly `frames`.
    #[inline(always)]
    pub(super) fn holds(&self, offset: u32, frames: &[u64]) -> bool {
        let words = self.frames(offset, frames.len());
        match self.content {
            Words::Whole => all_equal(words, frames, |word| word),
            Words::Hinted => all_equal(words, frames, frame_of),
        }
    }

    /// A frame of a published record.
    #[inline(always)]
    pub(super) fn frame(&self, word: &AtomicU64) -> u64 {
        let word = word.load(Ordering::Relaxed);
        match self.content {
            Words::Whole => word,
            Words::Hinted => frame_of(word),
        }
    }

    /// Copies the frames of a published record to the front of `frames`.
    pub(super) fn copy(&self, offset: u32, nr: usize, frames: &mut [u64]) {
        for (frame, word) in frames.iter_mut().zip(self.frames(offset, nr)) {
            *frame = self.frame(word);
        }
    }

    /// The epoch that a published record was inserted in.
    pub(super) fn epoch(&self, offset: u32) -> u32 {
        self.header(offset).load(Ordering::Relaxed) as u32
    }

    /// The references of a published record, at most [`REFS_MAX`].
    pub(super) fn refs(&self, offset: u32) -> u64 {
        (self.header(offset).load(Ordering::Relaxed) >> 32).min(REFS_MAX)
    }

    /// Adds `refs` references, saturating. Context: any.
    pub(super) fn add_refs(&self, offset: u32, refs: u32) {
        let header = self.header(offset);
        // Between this check and the addition each other context may add a batch of its own.
        // No carry: a map has at most `CONTEXTS_MAX` contexts.
        if header.load(Ordering::Relaxed) >> 32 < REFS_MAX {
            header.fetch_add(u64::from(refs) << 32, Ordering::Relaxed);
        }
    }

    /// Forgets all records and frees all chunks but the first ones.
    ///
    /// # Safety
    ///
    /// A grace period has passed since the last CPU could reserve or reach a record, no CPU can
    /// until this returns, and no call of [`Pool::grow`] runs.
    pub(super) unsafe fn rewind(&self) {
        let keep = INITIAL_CHUNKS.min(self.chunks.len());
        // SAFETY: By the requirement, no CPU uses the chunks.
        unsafe { self.free_from(keep) };
        self.cursor.store(HEADER_WORDS, Ordering::Relaxed);
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

/// Gives the frames of a published record their hints, each by the frame and its caller's, 0 if there is
/// none. Hints that are there stay if there are none: their rules were replaced. Words that stay are not
/// written: other CPUs read them.
pub(super) fn give_hints(mut words: &[AtomicU64], hint: impl Fn(u64, u64) -> u32) {
    while let [word, more @ ..] = words {
        let old = word.load(Ordering::Relaxed);
        let frame = frame_of(old);
        let (next, mask) = match more {
            [] => (0, LAST),
            [next, ..] => (frame_of(next.load(Ordering::Relaxed)), u64::MAX),
        };
        let hinted = (u64::from(hint(frame, next)) << 32 | frame & FRAME) & mask;
        if hinted & !FRAME != 0 && hinted != old {
            word.store(hinted, Ordering::Relaxed);
        }
        words = more;
    }
}

/// Whether the words of a record are those of a stack; eight at a time.
#[inline(always)]
fn all_equal(mut words: &[AtomicU64], mut frames: &[u64], frame_of: impl Fn(u64) -> u64) -> bool {
    let equal = |words: &[AtomicU64], frames: &[u64]| {
        let mut pairs = words.iter().zip(frames);
        pairs.all(|(word, frame)| frame_of(word.load(Ordering::Relaxed)) == *frame)
    };
    while let (Some((eight_words, more_words)), Some((eight_frames, more_frames))) = (
        words.split_first_chunk::<8>(),
        frames.split_first_chunk::<8>(),
    ) {
        if !equal(eight_words, eight_frames) {
            return false;
        }
        (words, frames) = (more_words, more_frames);
    }
    frames.is_empty() || equal(words, frames)
}
