// SPDX-License-Identifier: GPL-2.0

//! A record as its readers see it: a published stack.

use super::{
    pool::{Pool, HEADER_WORDS},
    sys::{AtomicU64, Inside, Ordering},
    word::{frame_of, halves, high, nr_frames, without_rule, LAST_WORD},
};
use core::{marker::PhantomData, num::NonZeroU64};

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
    /// Returns the record that a slot names, or [`None`] if the slot is empty.
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

    /// Returns the number of frames.
    #[inline(always)]
    pub(super) const fn nr(self) -> usize {
        nr_frames(self.word.get())
    }

    /// Returns all of its words.
    #[inline(always)]
    fn all(self) -> &'s [AtomicU64] {
        let nr = HEADER_WORDS as usize + self.nr();
        // SAFETY: By the invariant, a record of this number of frames is there.
        unsafe { self.pool.words(self.word.get() as u32, nr) }
    }

    /// Returns the words of the frames, with cached rules or without.
    #[inline(always)]
    pub(super) fn words(self) -> &'s [AtomicU64] {
        &self.all()[HEADER_WORDS as usize..]
    }

    /// Iterates over the frames, the innermost first, read directly from the pool.
    pub fn frames(self) -> impl Iterator<Item = u64> + 's {
        let has_cached_rules = self.pool.has_cached_rules;
        let words = self.words().iter();
        let words = words.map(|word| word.load(Ordering::Relaxed));
        words.map(move |word| {
            if has_cached_rules {
                frame_of(word)
            } else {
                word
            }
        })
    }

    /// Returns whether it is of the stack that has this fingerprint and these frames. Its own are read only if it
    /// has the same fingerprint, and so as many.
    #[inline(always)]
    pub(super) fn is(self, fingerprint: u32, frames: &[u64]) -> bool {
        high(self.word.get()) == fingerprint
            && match self.pool.has_cached_rules {
                false => all_equal(self.words(), frames, |word| word),
                true => all_equal(self.words(), frames, frame_of),
            }
    }

    /// Returns the epoch that it was inserted in.
    pub(super) fn epoch(self) -> u32 {
        self.all()[0].load(Ordering::Relaxed) as u32
    }

    /// Removes the cached rules of the frames in `text`, and of outer frames, whose cached rules may span these.
    pub(super) fn remove_cached_rules(self, text: impl Fn(u64) -> bool) {
        if !self.pool.has_cached_rules {
            return;
        }
        let mut gone = false;
        for word in self.words() {
            let old = word.load(Ordering::Relaxed);
            gone = gone || text(frame_of(old));
            if gone && old != without_rule(old) {
                word.store(without_rule(old), Ordering::Relaxed);
            }
        }
    }

    /// Returns whether the last frame has a cached rule: a removal takes that of the last one, whichever frame's
    /// text has gone.
    #[inline(always)]
    pub(super) fn has_cached_rules(self) -> bool {
        let last = self.words().last();
        cfg!(CONFIG_ARM64) || last.is_some_and(|word| high(word.load(Ordering::Relaxed)) != 0)
    }

    /// Caches a rule with each frame, from the innermost on: what `rule` returns for the frame and its caller's, 0
    /// if there is none. Rules that are cached stay then: they were replaced in their table. Words that stay are
    /// not written: other CPUs read them. Context: any.
    #[cold]
    pub fn cache_rules(self, mut rule: impl FnMut(u64, u64) -> u32) {
        if cfg!(CONFIG_ARM64) || !self.pool.has_cached_rules {
            return;
        }
        let mut words = self.words();
        while let [word, more @ ..] = words {
            let old = word.load(Ordering::Relaxed);
            let frame = frame_of(old);
            let (next, mask) = match more {
                [] => (0, LAST_WORD),
                [next, ..] => (frame_of(next.load(Ordering::Relaxed)), u64::MAX),
            };
            let new = halves(rule(frame, next), frame as u32) & mask;
            if new != without_rule(new) && new != old {
                word.store(new, Ordering::Relaxed);
            }
            words = more;
        }
    }
}

/// Returns whether the words of a record are those of a stack; compares eight at a time.
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
