// SPDX-License-Identifier: GPL-2.0

//! The walk along a predicted stack.
//!
//! As long as each return address is that of the predicted stack, a step takes nothing but the cached rule. If one
//! differs, or if a frame takes more than that, the walk by rules goes on, see `walk.rs`.

use super::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    frame_record::{is_copy, is_last},
    frame_word::FrameWord,
    rule::{RuleKind, UnwindRule},
    step::{caller, raw_caller, skip_frames},
    unwinder::{FrameSize, StackCursor, Unwinder},
};
use crate::map::{PredictedStack, Predictor, LAST_WORD};

/// Skips `skip` frames as far as cached rules lead, then follows the stack that is predicted by the first frame. Of the
/// frames after these, `nr` are known already: none, or the one at `first`. Returns the predicted stack if all of its
/// frames are there. If not, a walk goes on from where `frame` and `skip` are then, if it can be at the frame that it
/// began with.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn follow<'m, U: Unwinder>(
    unwinder: &U,
    frame: &mut KernelFrame,
    skip: &mut usize,
    nr: usize,
    first: Option<u64>,
    predictor: &Predictor<'m>,
) -> Option<PredictedStack<'m>> {
    let (mut at, stack) = (frame.at, frame.stack);
    let mut cursor = StackCursor::at_frame(&stack, &at)?;
    // An address whose rule is cached is none that a tracer has put there.
    let to_skip = skip_frames(*skip, &mut at, |to_skip, at| {
        let rule = unwinder.skip_rule(to_skip, at.ip);
        raw_caller(unwinder, &stack, &mut cursor, at, rule)
    });
    if to_skip == 0 {
        if let Some(predicted) = predictor.predict(first.unwrap_or(at.ip)) {
            let begins = first.is_none() || predicted.frame(0) == first;
            if begins && matches(unwinder, &stack, at, nr, &predicted) {
                return Some(predicted);
            }
        }
    }
    if !unwinder.is_replaced(at.ip) {
        (frame.at, *skip) = (at, to_skip);
    }
    None
}

/// Follows a prediction where the first frame is in text that calls a function tracer, and `rule` leads to its caller:
/// then `marker` is recorded for it.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn follow_past_tracer<'m, U: Unwinder>(
    unwinder: &U,
    frame: &KernelFrame,
    rule: UnwindRule,
    marker: u64,
    predictor: &Predictor<'m>,
) -> Option<PredictedStack<'m>> {
    let stack = frame.stack;
    let mut cursor = StackCursor::new(&stack, frame.at.sp)?;
    let at = caller(unwinder, &stack, &mut cursor, frame.at, rule)?;
    let predicted = predictor.predict(at.ip)?;
    let begins = predicted.frame(0) == Some(marker);
    (begins && matches(unwinder, &stack, at, 1, &predicted)).then_some(predicted)
}

/// Returns whether frame `nr` of a predicted stack is the one at `at`, and all frames after it are there.
#[inline(always)]
fn matches<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    at: FrameRegisters,
    nr: usize,
    predicted: &PredictedStack<'_>,
) -> bool {
    if predicted.frame(nr) != Some(at.ip) {
        return false;
    }
    // If its rule is cached, it is text that stays, and its address is the one that is recorded.
    if U::USES_FRAME_RECORDS {
        match_records(unwinder, stack, at, nr, predicted)
    } else {
        match_words(unwinder, stack, &at, nr, predicted)
    }
}

/// A frame of a predicted stack.
///
/// # Invariants
///
/// `word` was read from frame `nr`.
#[derive(Clone, Copy)]
struct Position<'m> {
    predicted: PredictedStack<'m>,
    nr: usize,
    word: FrameWord,
}

// No stack ends with a cached rule that has a size.
const _: () = assert!(FrameWord(LAST_WORD).words() == 0);

impl<'m> Position<'m> {
    /// Returns the position of frame `nr`, or [`None`] past the end.
    #[inline(always)]
    fn new(predicted: &PredictedStack<'m>, nr: usize) -> Option<Self> {
        let word = FrameWord(predicted.word(nr)?);
        // INVARIANT: Just read.
        Some(Self {
            predicted: *predicted,
            nr,
            word,
        })
    }

    /// Moves to the next frame. Returns false at the last one.
    #[inline(always)]
    fn advance(&mut self) -> bool {
        let nr = self.nr.wrapping_add(1);
        let Some(word) = self.predicted.word(nr) else {
            return false;
        };
        // INVARIANT: Just read.
        (self.nr, self.word) = (nr, FrameWord(word));
        true
    }

    /// Moves to the next frame if the rule of this one is plain. Returns the size of this one.
    #[inline(always)]
    fn advance_plain(&mut self) -> Option<FrameSize> {
        let size = self.word.size()?;
        self.nr = self.nr.wrapping_add(1);
        // INVARIANT: Just read.
        // SAFETY: The word of the last frame never has a size, so there is one more.
        self.word = FrameWord(unsafe { self.predicted.word_unchecked(self.nr) });
        Some(size)
    }
}

/// Steps by cached rules as long as the frames are those of a predicted stack. Returns whether all of them are. Not
/// inlined, so that the loop keeps everything in registers.
#[inline(never)]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
fn match_words<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    at: &FrameRegisters,
    nr: usize,
    predicted: &PredictedStack<'_>,
) -> bool {
    let (Some(mut cursor), Some(mut position)) =
        (StackCursor::new(stack, at.sp), Position::new(predicted, nr))
    else {
        return false;
    };
    let mut first_bp = at.bp;
    loop {
        while let Some(size) = position.advance_plain() {
            match cursor.call(unwinder, size) {
                Some(ip) if position.word.ip() == ip => {}
                _ => return false,
            }
        }
        let word = position.word;
        if !position.advance() {
            let rule = UnwindRule::from_bits(word.bits());
            return match rule.kind() {
                RuleKind::Registers => unwinder.are_users(stack, rule.sp(cursor.sp(), 0)),
                kind => kind == RuleKind::End,
            };
        }
        let Some(below) = word.saved_words() else {
            return false;
        };
        let bp = cursor.saved(unwinder, below).unwrap_or(first_bp);
        let called = if word.is_realigned() {
            let called = cursor.realigned(unwinder, bp, word.realigned_words());
            called.map(|(ip, caller_bp)| {
                first_bp = caller_bp;
                ip
            })
        } else {
            cursor.based_call(unwinder, bp)
        };
        if called != Some(position.word.ip()) {
            return false;
        }
    }
}

/// Steps from record to record as long as the frames are those of a predicted stack, whose rules are cached where frames
/// need that. Returns whether all of them are. That records are aligned is checked once, for all of them.
#[inline(always)]
fn match_records<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    at: FrameRegisters,
    nr: usize,
    predicted: &PredictedStack<'_>,
) -> bool {
    let Some(mut cursor) = StackCursor::new(stack, at.sp) else {
        return false;
    };
    // Without a cached rule, the text may have gone.
    let stays = |word: FrameWord| U::HAS_MARKS || word.rule() == UnwindRule::FRAME;
    let (mut bp, mut bits) = (at.bp, at.sp);
    let mut words = predicted.words_after(nr).map(FrameWord);
    if !words.next().is_some_and(stays) {
        return false;
    }
    for word in words {
        bits |= bp;
        if !stays(word) || is_copy(unwinder, stack, cursor.sp()) {
            return false;
        }
        match cursor.record(unwinder, bp) {
            Some((ip, next)) if unwinder.strip_signature(ip) == word.ip() => bp = next,
            _ => return false,
        }
    }
    bits % 8 == 0 && is_last(unwinder, stack, cursor.sp(), bp)
}

/// Writes the frames of a predicted stack. Returns how many.
pub fn copy_frames(predicted: &PredictedStack<'_>, ips: &mut [u64]) -> usize {
    for (to, word) in ips.iter_mut().zip(predicted.words_after(0)) {
        *to = FrameWord(word).ip();
    }
    predicted.nr().min(ips.len())
}
