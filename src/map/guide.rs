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
    context::Came,
    current::Current,
    get_id::Entered,
    id::Id,
    record::{frame_of, give_hints, halves, high},
    sys::{AtomicU64, Ordering},
    Found, Map, BITS_MAX, MAX_FRAMES,
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
    came: Came,
}

/// Entries that one branch may be in.
pub(super) const BRANCH_WAYS: usize = 4;

impl Guide<'_> {
    #[inline(always)]
    fn slot(&self) -> u32 {
        self.came.slot()
    }

    /// Whether it is the stack that came after the last one both times.
    #[inline(always)]
    const fn was_next(&self) -> bool {
        self.came.is_twice()
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
    /// the hint of a frame, by it and its caller's, 0 if there is none. Does nothing in a map
    /// without hints. Context: any.
    #[cold]
    pub fn make_guide(
        &self,
        guide: Option<(Guide<'_>, usize)>,
        frames: &[u64],
        found: Found,
        hint: impl FnMut(u64, u64) -> u32,
    ) {
        // INVARIANT of `Guide`: without hints no slot gets into a context, so there is no guide.
        if !self.map.pool.has_hints {
            return;
        }
        let slot = found.id.slot(self.map.slots.len() as u32);
        // Nothing leads to a stack that ends where the guide goes on.
        let Some(frame) = frames.get(guide.map_or(0, |(_, nr)| nr)) else {
            return;
        };
        let Some(record) = self.current().and_then(|current| current.record(slot)) else {
            return;
        };
        record.give_hints(hint);
        match guide {
            None => self.set_start(start_frame(frames.iter().copied()), slot),
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
    /// Removes the hints of all frames in `text`, and of those behind them in the same stack. Those that are
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
    /// The guide that the context begins with for stacks that are found by `frame`, if it has that as its
    /// frame number `index`. Context: any.
    #[inline(always)]
    pub fn first(&self, index: usize, frame: u64) -> Option<Guide<'a>> {
        self.guide_with(self.entered.start(frame)?, index, frame)
    }

    /// The stack that came after the last one both times, if it is found by this frame: it may have another
    /// one. Context: any.
    #[inline(always)]
    pub fn next(&self, frame: u64) -> Option<Guide<'a>> {
        self.guide(self.entered.next(frame)?)
    }

    /// One that has the first `nr` frames of `guide`, and then this one. Context: any.
    #[inline(always)]
    pub fn other(&self, guide: &Guide<'a>, nr: usize, frame: u64) -> Option<Guide<'a>> {
        let branch = Branch::new(guide.slot(), nr);
        let mut slots = branch.slots(self.entered.map, frame);
        slots.find_map(|slot| self.guide_with(Came::once(slot), nr, frame))
    }

    #[inline(always)]
    fn guide_with(&self, came: Came, nr: usize, frame: u64) -> Option<Guide<'a>> {
        let guide = self.guide(came)?;
        (guide.frame(nr) == Some(frame)).then_some(guide)
    }

    #[inline(always)]
    fn guide(&self, came: Came) -> Option<Guide<'a>> {
        // Another CPU may have inserted it, and this one not have seen it yet.
        let words = self.current.record(came.slot())?.words();
        Some(Guide { words, came })
    }

    /// The id of the stack that `guide` is. Context: any.
    #[inline(always)]
    pub fn id(&self, guide: &Guide<'_>) -> Id {
        self.current.id(guide.slot())
    }

    /// Counts the stack that a walk has found to be that of `guide`. Context: any.
    #[inline(always)]
    pub fn hit(&self, guide: &Guide<'_>) -> Found {
        let entered = self.entered;
        entered.count_ref(guide.slot());
        if guide.was_next() {
            entered.set_last(guide.slot());
        } else {
            let first = start_frame(guide.frames());
            if entered.set_next(first, guide.slot()) {
                entered.set_start(first, guide.slot());
            }
        }
        self.current.found(guide.slot(), false)
    }
}

/// From which guide a branch leads, and after how many frames: the higher half of an entry. The lower half is
/// the slot that it leads to.
///
/// ```text
///  63   62       53 52    32 31  0
/// +----+-----------+--------+-----+
/// |  1 |    nr     |  from  | to  |
/// +----+-----------+--------+-----+
/// ```
#[derive(Clone, Copy)]
struct Branch(u32);

// There is room for both: of the frames, a branch leaves at least one.
const _: () = assert!(MAX_FRAMES <= 1 << 10 && BITS_MAX < 21);

impl Branch {
    #[inline(always)]
    const fn new(from: u32, nr: usize) -> Self {
        Self(1 << 31 | (nr as u32) << 21 | from)
    }

    /// Where it may be kept.
    #[inline(always)]
    fn entries(self, map: &Map, frame: u64) -> &[AtomicU64] {
        let hash = halves(frame as u32, self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mask = map.branches.len().wrapping_sub(1);
        // The highest 19 bits: the largest map has 2^19 sets.
        let set = map.branches.get((hash >> 45) as usize & mask);
        set.map_or(&[], |set| set)
    }

    /// Where it may lead. Branches that have all but the frame in common are told apart by comparing it.
    #[inline(always)]
    fn slots(self, map: &Map, frame: u64) -> impl Iterator<Item = u32> + '_ {
        let entries = self.entries(map, frame).iter();
        let entries = entries.map(|entry| entry.load(Ordering::Relaxed));
        entries
            .filter(move |entry| high(*entry) == self.0)
            .map(|entry| entry as u32)
    }

    /// Keeps it, in the place of the oldest if there is no other. What another CPU keeps at the same time
    /// may get lost.
    fn set(self, map: &Map, frame: u64, slot: u32) {
        let this = halves(self.0, slot);
        let mut new = this;
        for entry in self.entries(map, frame) {
            let old = entry.load(Ordering::Relaxed);
            if old != new {
                entry.store(new, Ordering::Relaxed);
            }
            if old == 0 || old == this {
                break;
            }
            new = old;
        }
    }
}
