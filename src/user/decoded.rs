// SPDX-License-Identifier: GPL-2.0

//! The callers of frames without CFI that were decoded last: decoding takes many instructions, and a program that calls the
//! kernel in a loop has the same frames each time.

use super::frame::{Caller, Frame, Memory};
use crate::{map::Seed, store};
use core::sync::atomic::{AtomicU64, Ordering};
use kernel::prelude::*;

/// The number of frames that are remembered.
const FRAMES: usize = 2048;

/// How often a frame is not decoded again after that failed: memory that was absent may be present later.
const FAILURES: u64 = 31;

/// The bits of a failure that are not its count, as no [word of a caller](Caller::word) has them.
const FAILED: u64 = 1 << 63;

/// What is remembered of a frame.
#[derive(Default)]
struct Entry {
    /// The hash of its key.
    key: AtomicU64,
    /// The hash of its key, its return address and `word`.
    check: AtomicU64,
    /// A [word of its caller](Caller::word), or [`FAILED`] and how often that is to be taken for granted.
    word: AtomicU64,
}

/// The last frames, each at the index that its hash has; a new one replaces it.
///
/// A frame is the same if its registers, its return address, its process and its file are, which has its code: no process
/// can spoil the frames of another one. A thread that writes an entry while another one does leaves none.
pub(super) struct DecodedFrames {
    entries: KVVec<Entry>,
    seed: Seed,
}

impl DecodedFrames {
    /// Returns none. Context: process.
    pub(super) fn new() -> Result<Self> {
        let mut entries = KVVec::with_capacity(FRAMES, GFP_KERNEL)?;
        for _ in 0..FRAMES {
            entries.push(Entry::default(), GFP_KERNEL)?;
        }
        let seed = Seed::new(store::random());
        Ok(Self { entries, seed })
    }

    /// Forgets all frames. Context: process.
    pub(super) fn forget(&self) {
        let entries = self.entries.iter();
        entries.for_each(|entry| entry.word.store(0, Ordering::Relaxed));
    }

    /// Returns the entry of a frame, and the hash of its key.
    fn find(&self, key: [u64; 7]) -> Option<(&Entry, u64)> {
        let hash = self.seed.hash(&key);
        Some((self.entries.get(hash as usize % FRAMES)?, hash))
    }

    /// Returns the hash of what is remembered. [`None`]: the return address cannot be read.
    fn check(&self, hash: u64, word: u64, frame: &Frame, memory: &impl Memory) -> Option<u64> {
        let return_address = match word & FAILED {
            0 => memory.word(Caller::of_word(word, frame).slot).ok()?,
            _ => 0,
        };
        Some(self.seed.hash(&[hash, word, return_address]))
    }

    fn set(&self, (entry, hash): (&Entry, u64), word: u64, frame: &Frame, memory: &impl Memory) {
        if let Some(check) = self.check(hash, word, frame, memory) {
            entry.key.store(hash, Ordering::Relaxed);
            entry.check.store(check, Ordering::Relaxed);
            entry.word.store(word, Ordering::Relaxed);
        }
    }

    /// Returns the caller of a frame, or `Some(None)` if it was not decoded. [`None`]: it is not remembered.
    pub(super) fn get(
        &self,
        key: [u64; 7],
        frame: &Frame,
        memory: &impl Memory,
    ) -> Option<Option<Caller>> {
        let (entry, hash) = self.find(key)?;
        // Another frame's word says nothing of this memory.
        if entry.key.load(Ordering::Relaxed) != hash {
            return None;
        }
        let word = entry.word.load(Ordering::Relaxed);
        if self.check(hash, word, frame, memory)? != entry.check.load(Ordering::Relaxed) {
            return None;
        }
        if word & FAILED == 0 {
            return Some(Some(Caller::of_word(word, frame)));
        }
        if word == FAILED {
            return None;
        }
        self.set((entry, hash), word - 1, frame, memory);
        Some(None)
    }

    /// Remembers the caller of a frame, or with [`None`], that it was not decoded.
    pub(super) fn put(
        &self,
        key: [u64; 7],
        frame: &Frame,
        caller: Option<Caller>,
        memory: &impl Memory,
    ) {
        let word = match caller {
            Some(caller) => caller.word(frame),
            None => Some(FAILED | FAILURES),
        };
        if let (Some(found), Some(word)) = (self.find(key), word) {
            self.set(found, word, frame, memory);
        }
    }
}
