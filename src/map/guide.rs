// SPDX-License-Identifier: GPL-2.0

//! Stacks that a walk is expected to find.
//!
//! Most stacks that are recorded are in the map already, and most steps of a walk follow from the frame
//! alone. So the frames of a stack that was recorded before, and what the owner of the map has noted with
//! each of them (its *hint*), guide the walk of the next one: as long as each frame that is found is that
//! of the guide, nothing is searched for. Where one is another, the walk goes on with another guide that
//! has the same frames up to there and then this one, if the map has a *branch* to one. A guide that leads
//! to the end is the stack. The one that a walk begins with is one of its context, by the first frame.

use super::{
    current::Current,
    get_id::Entered,
    id::Id,
    pool::{frame_of, give_hints},
    sys::{AtomicU64, Ordering},
    Found, Map,
};

/// A stack of the map whose frames are compared with those of a walk.
///
/// # Invariants
///
/// `words` are those of the record in `slot`, which stays as it is: but hints come and go. In that of
/// the last one, the upper 12 bits are 0: it is not plain.
#[derive(Clone, Copy)]
pub struct Guide<'a> {
    words: &'a [AtomicU64],
    /// The slot; and [`BRANCHED`], if another guide led to this one, or [`NEXT`], if the last stack did. A
    /// whole word: without padding, it is copied faster.
    slot: u64,
}

const BRANCHED: u64 = 1 << 32;
const NEXT: u64 = 1 << 33;

/// Entries that one branch may be in; a power of two.
const BRANCH_WAYS: usize = 4;

impl Guide<'_> {
    #[inline(always)]
    fn slot(&self) -> u32 {
        self.slot as u32
    }

    /// The number of its frames.
    #[inline(always)]
    pub fn nr(&self) -> usize {
        self.words.len()
    }

    /// A frame, if it has so many.
    #[inline(always)]
    pub fn frame(&self, index: usize) -> Option<u64> {
        self.word(index).map(frame_of)
    }

    /// A frame, in the lower half, and its hint; if it has so many.
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

    /// Gives its frames their hints, as [`Entered::make_guide`] does. Context: any.
    #[cold]
    pub fn give_hints(&self, hint: impl FnMut(u64, u64) -> u32) {
        give_hints(self.words, hint);
    }

    /// Its frames.
    #[inline(always)]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        let words = self.words.iter();
        words.map(|word| frame_of(word.load(Ordering::Relaxed)))
    }

    /// Those behind so many.
    #[inline(always)]
    pub fn frames_behind(&self, nr: usize) -> impl ExactSizeIterator<Item = u64> + '_ {
        let words = self.words.get(nr..).unwrap_or(&[]).iter();
        words.map(|word| frame_of(word.load(Ordering::Relaxed)))
    }
}

/// The guides of a map, from the ones that a context begins with.
#[derive(Clone, Copy)]
pub struct Guides<'a> {
    entered: &'a Entered<'a>,
    current: Current<'a>,
}

impl<'a> Entered<'a> {
    /// The guides, unless a reset runs. Context: any.
    #[inline(always)]
    pub fn guides(&'a self) -> Option<Guides<'a>> {
        let current = self.current()?;
        Some(Guides {
            entered: self,
            current,
        })
    }

    /// Makes the stack of `found`, which has these frames, a guide: gives it hints, and has it found by its
    /// first frame, or by a branch from the guide that the walk has left, after so many frames. `hint` gives
    /// the hint of a frame, by it and its caller's, 0 if there is none. Does nothing in a map of
    /// [`Words::Whole`](super::Words). Context: any.
    #[cold]
    pub fn make_guide(
        &self,
        guide: Option<(Guide<'_>, usize)>,
        frames: &[u64],
        found: Found,
        hint: impl FnMut(u64, u64) -> u32,
    ) {
        // INVARIANT of `Guide`: without hints no slot gets into a context, so there is no guide.
        if !self.map.pool.has_hints() {
            return;
        }
        let slot = self.map.layout.slot(found.id);
        // Nothing leads to a stack that ends where the guide goes on.
        let Some(frame) = frames.get(guide.map_or(0, |(_, nr)| nr)) else {
            return;
        };
        let Some(word) = self.current().and_then(|current| current.word(slot)) else {
            return;
        };
        word.record().give_hints(hint);
        match guide {
            None => self
                .ctx
                .set_start(start_frame(frames.iter().copied()), slot),
            Some((guide, nr)) => Branch::new(guide.slot(), nr).set(self.map, *frame, slot),
        }
    }
}

/// The frame by which a stack is found to begin with: the innermost that is an address in text. Others stand
/// for addresses that many stacks begin with.
#[inline(always)]
fn start_frame(frames: impl Iterator<Item = u64>) -> u64 {
    let mut frames = frames;
    let first = frames.next().unwrap_or(0);
    match first as i64 {
        0.. => frames.next().unwrap_or(0),
        _ => first,
    }
}

impl Map {
    /// Removes the hints of all frames in `text`. Those that are given meanwhile may stay. Context: process.
    pub fn remove_hints(&self, text: impl Fn(u64) -> bool) {
        // A reset takes everything.
        let _ = self.each(self.generation(), 0, |_, _, word| {
            word.record().remove_hints(&text);
            None::<()>
        });
    }
}

impl<'a> Guides<'a> {
    /// The guide that the context begins with for stacks that are found by `frame`, if it has that as its
    /// frame number `index`. Context: any.
    #[inline(always)]
    pub fn first(&self, index: usize, frame: u64) -> Option<Guide<'a>> {
        self.guide(self.entered.ctx.start(frame)?, 0, index, frame)
    }

    /// The stack that came after the last one both times, if it is found by this frame and has that as its
    /// frame number `index`. Context: any.
    #[inline(always)]
    pub fn next(&self, index: usize, frame: u64) -> Option<Guide<'a>> {
        self.guide(self.entered.ctx.next(frame)?, NEXT, index, frame)
    }

    /// One that has the first `nr` frames of `guide`, and then this one. Context: any.
    #[inline(always)]
    pub fn other(&self, guide: &Guide<'a>, nr: usize, frame: u64) -> Option<Guide<'a>> {
        let branch = Branch::new(guide.slot(), nr);
        let mut slots = branch.slots(self.entered.map, frame);
        slots.find_map(|slot| self.guide(slot, BRANCHED, nr, frame))
    }

    #[inline(always)]
    fn guide(&self, slot: u32, how: u64, nr: usize, frame: u64) -> Option<Guide<'a>> {
        // Another CPU may have inserted it, and this one not have seen it yet.
        let guide = Guide {
            words: self.current.word(slot)?.record().words(),
            slot: u64::from(slot) | how,
        };
        (guide.frame(nr) == Some(frame)).then_some(guide)
    }

    /// The id of the stack that `guide` is. Context: any.
    #[inline(always)]
    pub fn id(&self, guide: &Guide<'_>) -> Id {
        self.current.id(guide.slot())
    }

    /// Counts the stack that a walk has found to be that of `guide`. Context: any; owner only.
    #[inline(always)]
    pub fn hit(&self, guide: &Guide<'_>) -> Found {
        let ctx = self.entered.ctx;
        self.entered.count_ref(guide.slot());
        if guide.slot & NEXT != 0 {
            ctx.set_last(guide.slot());
        } else {
            let first = start_frame(guide.frames());
            if ctx.set_next(first, guide.slot()) && guide.slot & BRANCHED != 0 {
                ctx.set_start(first, guide.slot());
            }
        }
        self.current.found(guide.slot(), false)
    }
}

/// A link from one guide to another: the slots of both, and how many frames they share.
///
/// ```text
///  63   62       53 52    32 31  0
/// +----+-----------+--------+-----+
/// |  1 |    nr     |  from  | to  |
/// +----+-----------+--------+-----+
/// ```
#[derive(Clone, Copy)]
struct Branch(u64);

impl Branch {
    #[inline(always)]
    const fn new(from: u32, nr: usize) -> Self {
        Self(1 << 63 | (nr as u64) << 53 | (from as u64) << 32)
    }

    /// Where it may be kept.
    #[inline(always)]
    fn entries(self, map: &Map, frame: u64) -> &[AtomicU64] {
        let hash = ((self.0 >> 32) ^ frame << 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> 32) as usize & (map.slots.len() - 1) & !(BRANCH_WAYS - 1);
        map.branches.get(first..first + BRANCH_WAYS).unwrap_or(&[])
    }

    /// Where it may lead. Branches that have all but the frame in common are told apart by comparing it.
    #[inline(always)]
    fn slots(self, map: &Map, frame: u64) -> impl Iterator<Item = u32> + '_ {
        let entries = self.entries(map, frame).iter();
        let entries = entries.map(|entry| entry.load(Ordering::Relaxed));
        entries
            .filter(move |entry| (entry ^ self.0) >> 32 == 0)
            .map(|entry| entry as u32)
    }

    /// Keeps it, in the place of the oldest if there is no other. What another CPU keeps at the same time
    /// may get lost.
    fn set(self, map: &Map, frame: u64, slot: u32) {
        let mut new = self.0 | u64::from(slot);
        for entry in self.entries(map, frame) {
            let old = entry.load(Ordering::Relaxed);
            if old != new {
                entry.store(new, Ordering::Relaxed);
            }
            if old == 0 || old == self.0 | u64::from(slot) {
                break;
            }
            new = old;
        }
    }
}
