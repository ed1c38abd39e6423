// SPDX-License-Identifier: GPL-2.0

//! Free extents: words of the pool that a context has reserved, not published, and keeps for reuse.
//!
//! They come from lost races, from the ends of chunks, and from the rest of a free extent that was
//! larger than its record. Records and free extents together are all reserved words, so nothing
//! leaks. Free extents are in linked lists by size, one list for each power of two: the first word
//! of a free extent holds its length and the offset of the next one.

use super::{
    pool::{Extent, Pool, HEADER_WORDS},
    sys::{sizes::MAX_FRAMES, AtomicU32, Ordering},
};

/// Number of lists; the last one is for the size of the largest record.
const LISTS: usize = (HEADER_WORDS + MAX_FRAMES as u32).ilog2() as usize + 1;

/// The free extents of one context. Only its owner changes them.
pub(super) struct FreeExtents {
    /// The offset of the first free extent of `2^i` to `2^(i+1) - 1` words, or 0.
    firsts: [AtomicU32; LISTS],
    /// The sum of their words.
    words: AtomicU32,
}

impl FreeExtents {
    pub(super) fn new() -> Self {
        Self {
            firsts: core::array::from_fn(|_| AtomicU32::new(0)),
            words: AtomicU32::new(0),
        }
    }

    /// The words of all free extents. Context: any.
    pub(super) fn words(&self) -> u32 {
        self.words.load(Ordering::Relaxed)
    }

    /// Keeps an extent for later records. Context: any; owner only.
    pub(super) fn keep(&self, pool: &Pool, extent: Extent) {
        let first = &self.firsts[extent.words.ilog2() as usize];
        let next = first.load(Ordering::Relaxed);
        let link = u64::from(extent.words) << 32 | u64::from(next);
        pool.first_word(extent.offset)
            .store(link, Ordering::Relaxed);
        first.store(extent.offset, Ordering::Relaxed);
        self.words
            .store(self.words() + extent.words, Ordering::Relaxed);
    }

    /// Takes a free extent of at least `words` words. Context: any; owner only.
    ///
    /// In the list of the requested size only the first extent is tried, as it may be too small;
    /// each extent of a larger list fits.
    pub(super) fn take(&self, pool: &Pool, words: u32) -> Option<Extent> {
        for first in &self.firsts[words.ilog2() as usize..] {
            let offset = first.load(Ordering::Relaxed);
            if offset == 0 {
                continue;
            }
            let link = pool.first_word(offset).load(Ordering::Relaxed);
            let extent = Extent {
                offset,
                words: (link >> 32) as u32,
            };
            if extent.words >= words {
                first.store(link as u32, Ordering::Relaxed);
                self.words
                    .store(self.words() - extent.words, Ordering::Relaxed);
                return Some(extent);
            }
        }
        None
    }

    /// Empties all lists. The context has no owner meanwhile.
    pub(super) fn clear(&self) {
        for word in self.firsts.iter().chain([&self.words]) {
            word.store(0, Ordering::Relaxed);
        }
    }
}
