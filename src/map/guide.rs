// SPDX-License-Identifier: GPL-2.0

//! Stacks that a walk is expected to find.
//!
//! Programs repeat what they do. So a context stores which stack followed which, by the previous stack and
//! the first frame. A stack that followed twice in a row is predicted, and its frames get *hints*: what
//! the owner of the map needs to step from each of them to the next. Then it is the *guide* of the walk, which
//! compares each frame that it finds with that of the guide. If all are alike, the guide is the stack, and
//! nothing is searched for.

use super::{
    current::Current,
    get_id::Entered,
    id::Id,
    record::{frame_of, Record},
    sys::{AtomicU64, Ordering},
    Found, Map,
};

/// A stack of the map whose frames are compared with those of a walk.
///
/// # Invariants
///
/// `words` are those of the record in `slot`, which stays as it is, but hints come and go. Where words have
/// hints, the upper 12 bits of the last frame's word are 0: its hint has no size.
#[derive(Clone, Copy)]
pub struct Guide<'a> {
    words: &'a [AtomicU64],
    slot: u32,
}

impl Guide<'_> {
    /// The number of its frames.
    #[inline(always)]
    pub fn nr(&self) -> usize {
        self.words.len()
    }

    /// Returns frame `index`, or [`None`] past the end.
    #[inline(always)]
    pub fn frame(&self, index: usize) -> Option<u64> {
        self.word(index).map(frame_of)
    }

    /// Returns frame `index` in the lower half, and its hint; or [`None`] past the end.
    #[inline(always)]
    pub fn word(&self, index: usize) -> Option<u64> {
        Some(self.words.get(index)?.load(Ordering::Relaxed))
    }

    /// As [`Guide::word`], without a check.
    ///
    /// # Safety
    ///
    /// It has more frames than `index`.
    #[inline(always)]
    pub unsafe fn word_unchecked(&self, index: usize) -> u64 {
        // SAFETY: As required of the caller.
        unsafe { self.words.get_unchecked(index) }.load(Ordering::Relaxed)
    }

    /// The frames after the first `nr`.
    #[inline(always)]
    pub fn frames_after(&self, nr: usize) -> impl ExactSizeIterator<Item = u64> + '_ {
        let words = self.words.get(nr..).unwrap_or(&[]).iter();
        words.map(|word| frame_of(word.load(Ordering::Relaxed)))
    }
}

/// The guides of a map, as a context predicts them.
#[derive(Clone, Copy)]
pub struct Guides<'a> {
    entered: &'a Entered<'a>,
    current: Current<'a>,
}

impl<'s> Entered<'s> {
    /// Returns the guides, or [`None`] while a reset runs. Context: any.
    #[inline(always)]
    pub fn guides(&self) -> Option<Guides<'_>> {
        let current = self.current()?;
        Some(Guides {
            entered: self,
            current,
        })
    }

    /// Stores that the stack of `found`, which has these frames, followed the last one, so that
    /// [`Guides::next`] predicts it when it did so twice in a row. Returns its record if it is
    /// predicted now, but its frames have no hints. Does nothing in a map without hints. Context: any.
    #[inline(always)]
    pub fn came(&self, frames: &[u64], found: Found) -> Option<Record<'s>> {
        // INVARIANT of `Guide`: without hints no slot gets into a context, so there is no guide.
        if !self.map.pool.has_hints {
            return None;
        }
        let slot = found.id.slot(self.map.slots.len() as u32);
        if !self.set_next(first_text(frames), slot) {
            return None;
        }
        let record = self.current()?.record(slot)?;
        (!record.has_hints()).then_some(record)
    }
}

/// The frame by which a stack is predicted: the innermost that is an address in text. Others stand for
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
    /// Removes the hints of all frames in `text`, and of outer frames of the same stack. Those that are
    /// given meanwhile may stay. Context: process.
    pub fn remove_hints(&self, text: impl Fn(u64) -> bool) {
        // A reset takes everything.
        let _ = self.each(self.generation(), 0, |_, _, record| {
            record.remove_hints(&text);
            None::<()>
        });
    }
}

impl<'a> Guides<'a> {
    /// Predicts the whole stack from its first frame. The caller must compare all frames: it may have other
    /// ones. Context: any.
    #[inline(always)]
    pub fn next(&self, frame: u64) -> Option<Guide<'a>> {
        let slot = self.entered.next(frame)?;
        let words = self.current.record(slot)?.words();
        Some(Guide { words, slot })
    }

    /// The id of the stack that `guide` is. Context: any.
    #[inline(always)]
    pub fn id(&self, guide: &Guide<'_>) -> Id {
        self.current.id(guide.slot)
    }

    /// Counts the stack that a walk has found to be that of `guide`. Context: any.
    #[inline(always)]
    pub fn hit(&self, guide: &Guide<'_>) -> Found {
        self.entered.count_ref(guide.slot);
        self.entered.set_last(guide.slot);
        self.current.found(guide.slot, false)
    }
}
