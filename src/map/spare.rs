// SPDX-License-Identifier: GPL-2.0

//! The spare of a context: words of the pool that it has reserved, not published, and keeps for reuse.
//!
//! They come from lost races, from the ends of chunks, and from the rest of a spare that was larger than
//! its record. Of two only the larger is kept: the other is lost until the reset. Both are rare.

use super::{
    current::Current,
    pool::Extent,
    sys::{AtomicU64, Ordering},
    word::{halves, high},
};

/// The extent that one context keeps. Only its owner changes it.
///
/// # Invariants
///
/// 0, or the offset of an extent of this generation of the map that has the context and, in the upper half,
/// the number of its words; nobody else has it.
pub(super) struct Spare(AtomicU64);

impl Spare {
    /// None yet.
    pub(super) fn new() -> Self {
        // INVARIANT: It is 0.
        Self(AtomicU64::new(0))
    }

    /// The number of its words. Context: any.
    pub(super) fn words(&self) -> u32 {
        high(self.0.load(Ordering::Relaxed))
    }

    /// Keeps an extent if it is larger than the one that is kept. Context: any.
    ///
    /// # Safety
    ///
    /// The caller owns the context; the extent is of the map that has it.
    pub(super) unsafe fn keep(&self, extent: Extent<'_>) {
        if extent.words() > self.words() {
            let spare = halves(extent.words(), extent.offset());
            // INVARIANT: The holder gives it up, and nobody else has it.
            self.0.store(spare, Ordering::Relaxed);
        }
    }

    /// Takes the extent if it has so many words, at least one.
    ///
    /// # Safety
    ///
    /// The caller owns the context; `current` is of the map that has it.
    pub(super) unsafe fn take<'s>(&self, current: Current<'s>, words: u32) -> Option<Extent<'s>> {
        let spare = self.0.load(Ordering::Relaxed);
        if high(spare) < words {
            return None;
        }
        // INVARIANT: It is kept no longer.
        self.0.store(0, Ordering::Relaxed);
        // SAFETY: By the invariant, it was given up in this generation; only the owner takes it.
        Some(unsafe { Extent::again(current.pool(), spare as u32, high(spare)) })
    }

    /// Forgets it. Meanwhile no owner keeps or takes one: a reset runs.
    pub(super) fn clear(&self) {
        // INVARIANT: It is 0.
        self.0.store(0, Ordering::Relaxed);
    }
}
