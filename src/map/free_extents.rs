// SPDX-License-Identifier: GPL-2.0

//! FreeExtents: words of the pool that a context has reserved and not published, kept for later records.
//!
//! They come from lost races, from the ends of chunks, and from spares that were larger than the
//! record they were taken for. Together with the records they are all that was ever reserved, so
//! nothing leaks. They are kept in lists by size, one for each power of two, linked through the
//! spares themselves: the first word of a spare is its length and the offset of the next.

use super::{
    pool::{Extent, Pool, HEADER_WORDS},
    sys::{sizes::MAX_FRAMES, AtomicU32, Ordering},
};

/// Lists: the words of the largest record have the largest power of two.
const LISTS: usize = (HEADER_WORDS + MAX_FRAMES as u32).ilog2() as usize + 1;

/// The spares of one context. Only its owner changes them.
pub(super) struct FreeExtents {
    /// The first spare with at least `2^i` words and less than twice as many, or 0.
    firsts: [AtomicU32; LISTS],
    /// The words of all of them.
    words: AtomicU32,
}

impl FreeExtents {
    pub(super) fn new() -> Self {
        Self {
            firsts: core::array::from_fn(|_| AtomicU32::new(0)),
            words: AtomicU32::new(0),
        }
    }

    /// The words of all spares. Context: any.
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

    /// Takes a spare of at least `words` words. Context: any; owner only.
    ///
    /// Of the list of its own size the first one is tried; in those of larger ones any will do.
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

    /// Forgets all. Nobody may own the context meanwhile.
    pub(super) fn clear(&self) {
        for word in self.firsts.iter().chain([&self.words]) {
            word.store(0, Ordering::Relaxed);
        }
    }
}
