// SPDX-License-Identifier: GPL-2.0

//! Prediction: which stack comes next.
//!
//! Programs repeat what they do. So a context stores which stack followed which, by the previous stack and
//! the first frame. A stack that followed twice in a row is predicted, and a rule is cached with each of its frames:
//! what the unwinder needs to step to the next frame. The walk compares each frame that it finds with that of the
//! predicted stack. If all are equal, the stack is identified by prediction, and the map is not searched.

use super::{
    context::CtxGuard,
    current::Current,
    id::Id,
    record::Record,
    sys::{AtomicU64, Ordering},
    word::frame_of,
    Lookup, Map,
};

/// A stack of the map that a walk is expected to find.
///
/// # Invariants
///
/// `words` are those of the record in `slot`, whose frames never change. Where words have cached rules, the upper 12
/// bits of the last frame's word are 0: its cached rule has no size.
#[derive(Clone, Copy)]
pub struct PredictedStack<'a> {
    words: &'a [AtomicU64],
    slot: u32,
}

impl PredictedStack<'_> {
    /// Returns the number of its frames.
    #[inline(always)]
    pub fn nr(&self) -> usize {
        self.words.len()
    }

    /// Returns frame `index`, or [`None`] past the end.
    #[inline(always)]
    pub fn frame(&self, index: usize) -> Option<u64> {
        self.word(index).map(frame_of)
    }

    /// Returns frame `index` in the lower half, and its cached rule; or [`None`] past the end.
    #[inline(always)]
    pub fn word(&self, index: usize) -> Option<u64> {
        Some(self.words.get(index)?.load(Ordering::Relaxed))
    }

    /// Returns the same as [`PredictedStack::word`], without a check.
    ///
    /// # Safety
    ///
    /// There are more frames than `index`.
    #[inline(always)]
    pub unsafe fn word_unchecked(&self, index: usize) -> u64 {
        // SAFETY: As required of the caller.
        unsafe { self.words.get_unchecked(index) }.load(Ordering::Relaxed)
    }

    /// Iterates over the words of the frames after the first `nr`.
    #[inline(always)]
    pub fn words_after(&self, nr: usize) -> impl Iterator<Item = u64> + '_ {
        let words = self.words.get(nr..).unwrap_or(&[]).iter();
        words.map(|word| word.load(Ordering::Relaxed))
    }
}

/// The predictions of a context.
#[derive(Clone, Copy)]
pub struct Predictor<'a> {
    guard: &'a CtxGuard<'a>,
    current: Current<'a>,
}

impl<'s> CtxGuard<'s> {
    /// Returns the predictions of this context, or [`None`] while a reset runs. Context: any.
    #[inline(always)]
    pub fn predictor(&self) -> Option<Predictor<'_>> {
        let current = self.current()?;
        Some(Predictor {
            guard: self,
            current,
        })
    }

    /// Stores that the stack of `lookup`, which has these frames, followed the last one, so that
    /// [`Predictor::predict`] returns it when it did so twice in a row. Returns its record if it is predicted now, but
    /// its frames have no cached rules. Does nothing in a map without cached rules. Context: any.
    #[inline(always)]
    pub fn train(&self, frames: &[u64], lookup: Lookup) -> Option<Record<'s>> {
        // INVARIANT: Without cached rules no slot gets into a context, so there is no `PredictedStack`.
        if !self.map.pool.has_cached_rules {
            return None;
        }
        let slot = lookup.id.slot(self.map.slots.len() as u32);
        if !self.update_prediction(first_text(frames), slot) {
            return None;
        }
        let record = self.current()?.record(slot)?;
        (!record.has_cached_rules()).then_some(record)
    }
}

/// Returns the frame by which a stack is predicted: the innermost that is an address in text. Others stand for
/// addresses that many stacks begin with.
#[inline(always)]
fn first_text(frames: &[u64]) -> u64 {
    match *frames {
        [first, second, ..] if first as i64 >= 0 => second,
        [first, ..] => first,
        [] => 0,
    }
}

impl Map {
    /// Removes the cached rules of all frames in `text`, and of outer frames of the same stack. Rules that are
    /// cached meanwhile may stay. Context: process.
    pub fn remove_cached_rules(&self, text: impl Fn(u64) -> bool) {
        // A reset takes everything.
        let _ = self.each(self.generation(), 0, |_, _, record| {
            record.remove_cached_rules(&text);
            None::<()>
        });
    }
}

impl<'a> Predictor<'a> {
    /// Predicts the whole stack from its first frame. The caller must compare all frames: it may have other
    /// ones. Context: any.
    #[inline(always)]
    pub fn predict(&self, frame: u64) -> Option<PredictedStack<'a>> {
        let slot = self.guard.predicted_slot(frame)?;
        let words = self.current.record(slot)?.words();
        Some(PredictedStack { words, slot })
    }

    /// Returns the id of a predicted stack. Context: any.
    #[inline(always)]
    pub fn id(&self, predicted: &PredictedStack<'_>) -> Id {
        self.current.id(predicted.slot)
    }

    /// Counts an event whose stack was identified by prediction. Context: any.
    #[inline(always)]
    pub fn hit(&self, predicted: &PredictedStack<'_>) -> Lookup {
        self.guard.count_ref(predicted.slot);
        self.guard.set_last(predicted.slot);
        self.current.lookup(predicted.slot, false)
    }
}
