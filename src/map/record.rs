// SPDX-License-Identifier: GPL-2.0

//! What a slot holds: one word, 0 while the slot is empty, and the record that it names.
//!
//! ```text
//!  63         43 42      32 31          0
//! +-------------+----------+-------------+
//! |    hash     |    nr    |   record    |
//! +-------------+----------+-------------+
//! |<---- fingerprint ----->|
//! ```
//!
//! The record's offset is never 0, so a word that names one is never 0. The fingerprint has the highest bits
//! of the hash. The lowest bits select the slot, so fingerprint and slot are independent.

use super::{
    pool::{Pool, HEADER_WORDS},
    sys::{AtomicU64, Inside, Ordering},
};
use core::{marker::PhantomData, num::NonZeroU64};

/// The bits of a fingerprint that are the number of frames.
const NR: u32 = (1 << 11) - 1;

/// A word of two halves.
#[inline(always)]
pub(super) const fn halves(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// The higher half of a word.
#[inline(always)]
pub(super) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The fingerprint of a stack: the highest bits of its hash, and its number of frames.
#[inline(always)]
pub(super) const fn fingerprint(hash: u64, nr: usize) -> u32 {
    high(hash) & !NR | nr as u32
}

/// The bits that a last frame's word may have: its hint has no size, so no walk goes beyond it.
pub const LAST_HINT: u64 = 0x000f_ffff_ffff_ffff;

/// What a word that may have a hint has of the frame. On arm64 a walk takes the same step from each address
/// and needs no hints, and kernel addresses differ in their upper half: there, it is the word.
#[inline(always)]
pub(super) const fn without_hint(word: u64) -> u64 {
    match cfg!(CONFIG_ARM64) {
        true => word,
        false => word as u32 as u64,
    }
}

/// The frame of a word that may have a hint.
#[inline(always)]
pub(super) const fn frame_of(word: u64) -> u64 {
    match cfg!(CONFIG_ARM64) {
        true => word,
        false => word as i32 as u64,
    }
}

/// A published stack, for as long as a section.
///
/// # Invariants
///
/// `word` was loaded by O1 from a slot of the map that `pool` is of, in the generation of the section: the
/// record that it names is filled, and stays until the section ends.
#[derive(Clone, Copy)]
pub struct Record<'s> {
    word: NonZeroU64,
    pool: &'s Pool,
    section: PhantomData<Inside<'s>>,
}

impl<'s> Record<'s> {
    /// The record that a slot names; [`None`]: the slot is empty.
    ///
    /// # Safety
    ///
    /// `word` was loaded from a slot as the invariant says.
    #[inline(always)]
    pub(super) unsafe fn new(word: u64, pool: &'s Pool) -> Option<Self> {
        // INVARIANT: By the requirement.
        NonZeroU64::new(word).map(|word| Self {
            word,
            pool,
            section: PhantomData,
        })
    }

    /// The number of frames.
    #[inline(always)]
    pub(super) const fn nr(self) -> usize {
        (high(self.word.get()) & NR) as usize
    }

    /// All of its words.
    #[inline(always)]
    fn all(self) -> &'s [AtomicU64] {
        let nr = HEADER_WORDS as usize + self.nr();
        // SAFETY: By the invariant, a record of so many frames is there.
        unsafe { self.pool.words(self.word.get() as u32, nr) }
    }

    /// The words of the frames, with hints or without.
    #[inline(always)]
    pub(super) fn words(self) -> &'s [AtomicU64] {
        &self.all()[HEADER_WORDS as usize..]
    }

    /// The frames, innermost first, read directly from the pool.
    pub fn frames(self) -> impl Iterator<Item = u64> + 's {
        let has_hints = self.pool.has_hints;
        let words = self.words().iter();
        let words = words.map(|word| word.load(Ordering::Relaxed));
        words.map(move |word| if has_hints { frame_of(word) } else { word })
    }

    /// Whether it is of the stack that has this fingerprint and these frames. Its own are read only if it has
    /// the same fingerprint, and so as many.
    #[inline(always)]
    pub(super) fn is(self, fingerprint: u32, frames: &[u64]) -> bool {
        high(self.word.get()) == fingerprint
            && match self.pool.has_hints {
                false => all_equal(self.words(), frames, |word| word),
                true => all_equal(self.words(), frames, frame_of),
            }
    }

    /// The epoch that it was inserted in.
    pub(super) fn epoch(self) -> u32 {
        self.all()[0].load(Ordering::Relaxed) as u32
    }

    /// Removes the hints of the frames in `text`, and of outer frames, whose hints may span these.
    pub(super) fn remove_hints(self, text: impl Fn(u64) -> bool) {
        if !self.pool.has_hints {
            return;
        }
        let mut gone = false;
        for word in self.words() {
            let hinted = word.load(Ordering::Relaxed);
            gone = gone || text(frame_of(hinted));
            if gone && hinted != without_hint(hinted) {
                word.store(without_hint(hinted), Ordering::Relaxed);
            }
        }
    }

    /// Whether the last frame has a hint: a removal takes that of the last one, whichever frame's text has gone.
    #[inline(always)]
    pub(super) fn has_hints(self) -> bool {
        let last = self.words().last();
        cfg!(CONFIG_ARM64) || last.is_some_and(|word| high(word.load(Ordering::Relaxed)) != 0)
    }

    /// Gives the frames their hints, the innermost first, each by the frame and its caller's, 0 if there is
    /// none. Hints that are there stay if there are none: their rules were replaced. Words that stay are not
    /// written: other CPUs read them. Context: any.
    #[cold]
    pub fn give_hints(self, mut hint: impl FnMut(u64, u64) -> u32) {
        if cfg!(CONFIG_ARM64) || !self.pool.has_hints {
            return;
        }
        let mut words = self.words();
        while let [word, more @ ..] = words {
            let old = word.load(Ordering::Relaxed);
            let frame = frame_of(old);
            let (next, mask) = match more {
                [] => (0, LAST_HINT),
                [next, ..] => (frame_of(next.load(Ordering::Relaxed)), u64::MAX),
            };
            let hinted = halves(hint(frame, next), frame as u32) & mask;
            if hinted != without_hint(hinted) && hinted != old {
                word.store(hinted, Ordering::Relaxed);
            }
            words = more;
        }
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
