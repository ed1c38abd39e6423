// SPDX-License-Identifier: GPL-2.0

//! The walk where the kernel's unwinder follows frame records.
//!
//! A function has pushed its caller's frame pointer below its own return address, and its frame pointer
//! is where that is: both words are its record. So one rule, [`Rule::FRAME`], is that of all text. What
//! else the kernel's unwinder finds where a frame pointer leads is left to it: registers, whose addresses
//! are odd there; another stack; and the end, which it knows by where a record is.
//!
//! ```text
//!  frame pointer ->  +---------------------+
//!                    | caller's            | -> the next record, further up
//!                    | return address      |
//!  stack pointer ->  +---------------------+ <- the end of a task's frames: this is the last one
//! ```
//!
//! In the walk, `sp` of a frame is after its return address, as for all rules, so its record is at
//! `sp - 16`. `bp` is what this record contains: the address of the caller's record.
//!
//! # Why this is safe in any context
//!
//! A step reads two words, the record at `bp`, and only if that is between the end of the record before and
//! the end of the same [`Stack`], whose memory is mapped as long as the walk lasts. So a wrong frame pointer
//! can mislead a walk, but not make it fault. Each record is above the one before, so the walk ends. Nobody
//! changes these words: all frames above are of functions that wait on this CPU for the walk to return. What
//! is not a record takes a step of the kernel's unwinder, which may run in NMI as well.
//!
//! Each step checks what `update_stack_state()` and `is_last_task_frame()` of the kernel check:
//!
//! - `bp >= sp`: further up, and no overlap;
//! - `bp <= end - 16`: the whole record is on this stack;
//! - `bp % 8 == 0`: not the encoded address of registers;
//! - it is not the last record: with `sp == end`, or 24 bytes below and with copies above. Of a record 8
//!   bytes below the end, no `bp` passes the first two checks.
//!
//! # Marks
//!
//! On arm64 the kernel marks ends and registers itself, by a record of two zeros and a word that says which.
//! The frame pointer of the last frame leads to such a record, at a fixed place of the task's stack, which
//! the walk has as the end. A record there that says something else is left to the kernel's unwinder. What
//! was interrupted has one among its registers: the walk finds a return address there that is none, and has
//! the step taken for it. Else the same is checked as above, as `kunwind_next_frame_record()` and
//! `unwind_consume_stack()` of the kernel do. The kernel's unwinder asks nothing of the addresses, so any has
//! the rule. It strips the signatures of return addresses (PAC), and so does the walk.
//!
//! Before Linux 6.13 records have no types. The kernel's unwinder knows the last one by its place alone, and the
//! record of an interrupt is like any other: the frame pointer and the address that were interrupted.
//!
//! A function that is interrupted before it has pushed its frame pointer hides its caller, as it does from
//! the kernel's own unwinder.

use super::{
    guided::Guide,
    rules::Rule,
    walk::{Registers, Stack, Unwinder, WalkCounter},
};

/// Bytes of a record.
pub(super) const RECORD: u64 = 16;

/// How far below the end of a task's frames the last record may be, too, with copies of its words above: an
/// ftrace handler at the entry of the outermost function leaves them.
const COPIED: u64 = 24;

/// Whether a frame is the last one of a task, on its stack.
#[inline(always)]
pub(super) fn is_last<U: Unwinder>(unwinder: &U, stack: &Stack, sp: u64, bp: u64) -> bool {
    match U::HAS_MARKS {
        true => bp == stack.end() && unwinder.ends(stack),
        false => sp == stack.end(),
    }
}

/// Whether what was found as a return address is none, so that it marks what was interrupted. Bit 55 tells
/// addresses of the kernel from others, also where the bits above are a signature.
#[inline(always)]
pub(super) fn is_mark<U: Unwinder>(ip: u64) -> bool {
    U::HAS_MARKS && ip >> 55 & 1 == 0
}

/// The record of the frame with this stack pointer.
#[inline(always)]
pub(super) fn record(sp: u64) -> u64 {
    sp.wrapping_sub(RECORD)
}

/// Whether `bp` is the address of a caller's record that the kernel's unwinder would step to without looking
/// at more: see above.
#[inline(always)]
pub(super) fn leads_on<U: Unwinder>(unwinder: &U, stack: &Stack, sp: u64, bp: u64) -> bool {
    let end = stack.end();
    let is_above = bp >= sp && bp <= end.saturating_sub(RECORD) && bp % 8 == 0;
    let may_be_copied = !U::HAS_MARKS && sp == end.wrapping_sub(COPIED);
    is_above && !(may_be_copied && is_copied(unwinder, stack, sp))
}

/// Whether the words of a record are above it a second time. No other stack than a task's ends where it
/// could be asked.
#[cold]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
fn is_copied<U: Unwinder>(unwinder: &U, stack: &Stack, sp: u64) -> bool {
    let word = |offset| stack.word(unwinder, record(sp).wrapping_add(offset));
    word(0) == word(16) && word(8) == word(32)
}

/// Why it does not, then.
#[inline(always)]
pub(super) fn why_not(bp: u64) -> WalkCounter {
    if bp & 1 != 0 {
        WalkCounter::Registers
    } else {
        WalkCounter::Stack
    }
}

/// Goes from frame to frame as long as they are those of a guide, and have hints. Returns whether the guide has
/// all frames.
///
/// # Safety
///
/// The guide has the frame at `at` after so many.
#[inline(always)]
pub(super) unsafe fn run<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    mut nr: usize,
    guide: &G,
) -> bool {
    if U::HAS_MARKS {
        return run_to_mark(unwinder, stack, at, nr, guide);
    }
    let end = stack.end();
    let (mut sp, mut bp) = (at.sp, at.bp);
    loop {
        // SAFETY: The guide has this frame.
        let word = unsafe { guide.hinted(nr) };
        // Without a hint, the text may have gone.
        if word.rule() != Rule::FRAME {
            return false;
        }
        nr = nr.wrapping_add(1);
        if nr == guide.nr() {
            return sp == end;
        }
        if !leads_on(unwinder, stack, sp, bp) {
            return false;
        }
        sp = bp.wrapping_add(RECORD);
        // SAFETY: The record at `bp` is between the stack pointer before, which is on the stack, and the end.
        let ip = unsafe { unwinder.load_below(sp) };
        // SAFETY: There is one more.
        if unsafe { guide.hinted(nr) }.ip() != ip {
            return false;
        }
        // SAFETY: As above.
        bp = unsafe { unwinder.load(bp) };
    }
}

/// The same with marks: frames need no hints then. That records are aligned is checked once, for all of them.
#[inline(always)]
fn run_to_mark<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    nr: usize,
    guide: &G,
) -> bool {
    let end = stack.end();
    let limit = end.saturating_sub(RECORD);
    let (mut sp, mut bp) = (at.sp, at.bp);
    let mut bits = sp;
    for frame in guide.frames_after(nr.wrapping_add(1)) {
        if bp < sp || bp > limit {
            return false;
        }
        bits |= bp;
        sp = bp.wrapping_add(RECORD);
        // SAFETY: The record at `bp` is between the stack pointer before, which is on the stack, and the end.
        let ip = unwinder.returns_to(unsafe { unwinder.load_below(sp) });
        if ip != frame {
            return false;
        }
        // SAFETY: As above.
        bp = unsafe { unwinder.load(bp) };
    }
    bits % 8 == 0 && bp == end && unwinder.ends(stack)
}
