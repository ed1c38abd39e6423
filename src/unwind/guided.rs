// SPDX-License-Identifier: GPL-2.0

//! The walk along a guide: frames that were found before, and hints on how to get from each to the next.
//!
//! As long as each return address is that of the guide, a step takes nothing but the hint. What is not the
//! guide, or takes more than that, is left to the walk, see `walk.rs`.

use super::{
    frames,
    hints::Hinted,
    rules::{Kind, Rule},
    step::based_call,
    walk::{Frame, Registers, Stack, Unwinder},
};
use core::mem::MaybeUninit;

/// Frames that a walk may find, and hints on how to get from each to the next.
///
/// # Safety
///
/// The number of frames never changes, and the hint of the last one has no size: [`Hinted::words`] is 0.
pub unsafe trait Guide: Copy {
    /// The number of frames.
    fn nr(&self) -> usize;

    /// Returns frame `index`, or [`None`] past the end.
    fn frame(&self, index: usize) -> Option<u64>;

    /// The frames after the first `nr`.
    fn frames_after(&self, nr: usize) -> impl ExactSizeIterator<Item = u64>;

    /// A frame with its hint.
    ///
    /// # Safety
    ///
    /// There are more frames than `index`.
    unsafe fn hinted(&self, index: usize) -> Hinted;
}

/// The guides that there are.
pub trait Guides: Copy {
    /// Frames that were found before.
    type Guide: Guide;

    /// Predicts the whole stack from its first frame. The caller must compare all frames.
    fn next(&self, frame: u64) -> Option<Self::Guide>;
}

/// Leaves `skip` frames out as far as noted rules lead, then follows the guide that is predicted by the
/// first frame. Of the frames that follow, `nr` are known already: none, or the one at `before`. Returns the
/// guide if it has all frames. If not, a walk goes on from where `frame` and `skip` are then, if the frame that
/// it began with is one.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn expected<U: Unwinder, G: Guides>(
    unwinder: &U,
    frame: &mut Frame,
    skip: &mut usize,
    nr: usize,
    before: Option<u64>,
    guides: &G,
) -> Option<G::Guide> {
    let (mut at, stack) = (frame.at, frame.stack);
    if !stack.has(&at) {
        return None;
    }
    // What is noted, or has a hint, is no address that a tracer has put there.
    let left = pass(*skip, &mut at, |left, at| {
        // SAFETY: It is on the stack.
        unsafe { called(unwinder, &stack, at, unwinder.noted(left, at.ip)) }
    });
    if left == 0 {
        if let Some(guide) = guides.next(before.unwrap_or(at.ip)) {
            let begins = before.is_none() || guide.frame(0) == before;
            if begins && leads(unwinder, &stack, at, nr, &guide) {
                return Some(guide);
            }
        }
    }
    if !unwinder.is_replaced(at.ip) {
        (frame.at, *skip) = (at, left);
    }
    None
}

/// The same where the first frame is in text that calls a tracer of functions, and this rule leads on: then
/// `marker` is recorded.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn expected_behind<U: Unwinder, G: Guides>(
    unwinder: &U,
    frame: &Frame,
    rule: Rule,
    marker: u64,
    guides: &G,
) -> Option<G::Guide> {
    let stack = frame.stack;
    if !stack.reaches(frame.at.sp) {
        return None;
    }
    // SAFETY: It is on the stack.
    let at = unsafe { caller(unwinder, &stack, frame.at, rule) }?;
    let guide = guides.next(at.ip)?;
    let begins = guide.frame(0) == Some(marker);
    (begins && leads(unwinder, &stack, at, 1, &guide)).then_some(guide)
}

/// Leaves frames out as far as rules lead, and notes these for [`expected`]. Returns how many are left.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub(super) fn leave_out<U: Unwinder>(unwinder: &U, frame: &mut Frame, skip: usize) -> usize {
    let stack = frame.stack;
    if !stack.reaches(frame.at.sp) {
        return skip;
    }
    pass(skip, &mut frame.at, |left, at| {
        let rule = unwinder.rule(at.ip);
        unwinder.note(left, at.ip, rule);
        // SAFETY: It is on the stack.
        unsafe { caller(unwinder, &stack, at, rule) }
    })
}

/// Leaves frames out, as long as there is a caller, by how many are left and the frame. Returns how many are
/// left.
#[inline(always)]
fn pass(
    mut skip: usize,
    at: &mut Registers,
    caller: impl Fn(usize, Registers) -> Option<Registers>,
) -> usize {
    while skip > 0 {
        let Some(caller) = caller(skip, *at) else {
            break;
        };
        *at = caller;
        skip = skip.wrapping_sub(1);
    }
    skip
}

/// The caller, if a plain rule leads to it, or a frame record; not where a tracer has put its own address.
///
/// # Safety
///
/// The stack pointer is on the stack.
#[inline(always)]
unsafe fn caller<U: Unwinder>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    rule: Rule,
) -> Option<Registers> {
    // SAFETY: As required of the caller.
    let caller = unsafe { called(unwinder, stack, at, rule) };
    caller.filter(|caller| !unwinder.is_replaced(caller.ip))
}

/// The same, whatever address there is.
///
/// # Safety
///
/// As for [`caller`].
#[inline(always)]
unsafe fn called<U: Unwinder>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    rule: Rule,
) -> Option<Registers> {
    if U::BY_FRAMES {
        let caller = based_call(unwinder, stack, at, rule).ok()?;
        return (rule == Rule::FRAME).then_some(caller);
    }
    let plain = rule.plain()?;
    let sp = at.sp.wrapping_add(plain.size());
    if sp > stack.end() {
        return None;
    }
    // SAFETY: It is at least a word after the stack pointer, and not past the end.
    let ip = unsafe { unwinder.load_below(sp) };
    let bp = match plain.bp() {
        // SAFETY: A plain rule has the word between.
        Some(offset) => unsafe { unwinder.load(at.sp.wrapping_add(offset)) },
        None => at.bp,
    };
    Some(Registers { ip, sp, bp })
}

/// Whether a guide has the frame at `at`, which is on the stack, after so many, and all that follow.
#[inline(always)]
fn leads<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    nr: usize,
    guide: &G,
) -> bool {
    if guide.nr() <= nr {
        return false;
    }
    // SAFETY: There are more frames.
    if unsafe { guide.hinted(nr) }.ip() != at.ip {
        return false;
    }
    // If it has a hint, and no other frame is led from, it is text that stays, which is recorded as it is.
    if U::BY_FRAMES {
        // SAFETY: The guide has the frame.
        return unsafe { frames::run(unwinder, stack, at, nr, guide) };
    }
    // SAFETY: The guide has the frame, which is on the stack.
    unsafe { run(unwinder, stack, at, nr, guide) }
}

/// Goes from frame to frame as long as they are those of a guide, and plain hints and distances lead. Returns
/// whether the guide has all frames. Apart from the rest, so that all of it is in registers.
///
/// # Safety
///
/// The guide has the frame at `at` after so many, and its stack pointer is on the stack.
#[inline(never)]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
unsafe fn run<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    mut at: Registers,
    mut nr: usize,
    guide: &G,
) -> bool {
    let end = stack.end();
    let mut sp = at.sp;
    loop {
        // SAFETY: The guide has this frame.
        let mut word = unsafe { guide.hinted(nr) };
        loop {
            let words = word.words();
            if words == 0 {
                break;
            }
            nr = nr.wrapping_add(1);
            sp = sp.wrapping_add(words.wrapping_mul(8));
            if sp > end {
                return false;
            }
            // SAFETY: A plain hint takes at least a word, so it is on the stack.
            let ip = unsafe { unwinder.load_below(sp) };
            // SAFETY: By the requirement of `Guide`, the hint of the last frame has no size, so there is one more.
            word = unsafe { guide.hinted(nr) };
            if word.ip() != ip {
                return false;
            }
        }
        if nr.wrapping_add(1) == guide.nr() {
            let rule = Rule::from_bits(word.bits());
            return match rule.kind() {
                Kind::Registers => unwinder.are_users(stack, rule.sp(sp, 0)),
                kind => kind == Kind::End,
            };
        }
        let Some(below) = word.saved_words() else {
            return false;
        };
        let saved = sp.wrapping_sub(below.wrapping_mul(8));
        let bp = match saved >= at.sp {
            // SAFETY: It is at least a word below the stack pointer, and not below the first one.
            true => unsafe { unwinder.load(saved) },
            false => at.bp,
        };
        if bp < sp || bp > end.wrapping_sub(frames::RECORD) {
            return false;
        }
        if word.is_realigned() {
            let below = word.realigned_words().wrapping_mul(8);
            if bp.wrapping_sub(sp) < below {
                return false;
            }
            // SAFETY: It is not below the stack pointer, which is on the stack, and at least a word below `bp`.
            let up = unsafe { unwinder.load(bp.wrapping_sub(below)) };
            if up <= bp || up > end {
                return false;
            }
            // SAFETY: The record at `bp` is on the stack, see above.
            at.bp = unsafe { unwinder.load(bp) };
            (at.sp, sp) = (up, up);
        } else {
            sp = bp.wrapping_add(frames::RECORD);
        }
        // SAFETY: It begins above the last stack pointer, which is on the stack, and does not exceed the end.
        let ip = unsafe { unwinder.load_below(sp) };
        nr = nr.wrapping_add(1);
        // SAFETY: There is one more.
        if unsafe { guide.hinted(nr) }.ip() != ip {
            return false;
        }
    }
}

/// Writes the first frames of a guide.
pub fn copy<G: Guide>(guide: &G, nr: usize, ips: &mut [MaybeUninit<u64>]) {
    for (room, frame) in ips.iter_mut().zip(guide.frames_after(0).take(nr)) {
        room.write(frame);
    }
}
