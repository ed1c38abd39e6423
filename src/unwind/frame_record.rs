// SPDX-License-Identifier: GPL-2.0

//! Frame records: the words on the stack that the kernel's unwinder follows on some architectures.
//!
//! A function has pushed its caller's frame pointer below its own return address, and its frame pointer
//! is where that is: both words are its record. So one rule, [`UnwindRule::FRAME`], is that of all text. Where
//! a frame pointer leads to something else, the kernel's unwinder takes the step: to registers, whose addresses
//! are odd there; to another stack; and to the end, which it knows by the address of a record.
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
//! the end of the same [`StackBounds`], whose memory is mapped as long as the walk lasts. So a wrong frame pointer
//! can mislead a walk, but not make it fault. Each record is above the one before, so the walk ends. Nobody
//! changes these words: all frames above are of functions that wait on this CPU for the walk to return. A step
//! to something else is taken by the kernel's unwinder, which may run in NMI as well.
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
//! The frame pointer of the last frame leads to such a record, at a fixed address of the task's stack, which
//! the walk has as the end. Another record there is left to the kernel's unwinder. An interrupted
//! function has a mark among its registers: the walk finds a return address there that is none, and the kernel's
//! unwinder takes the step. Else the same is checked as above, as `kunwind_next_frame_record()` and
//! `unwind_consume_stack()` of the kernel do. The kernel's unwinder does not check addresses, so any has
//! the rule. It strips the signatures of return addresses (PAC), and so does the walk.
//!
//! Before Linux 6.13 records have no types. The kernel's unwinder knows the last one by its address alone, and the
//! record of an interrupt is like any other: the frame pointer and the address that were interrupted.
//!
//! A function that is interrupted before it has pushed its frame pointer hides its caller, as it does from
//! the kernel's own unwinder.

use super::{
    frame::StackBounds,
    unwinder::{Unwinder, WalkCounter, RECORD},
};

/// How far below the end of a task's frames the last record may be, too, with copies of its words above: an
/// ftrace handler at the entry of the outermost function leaves them.
const COPIED: u64 = 24;

/// Returns whether a frame is the last one of a task, on its stack.
#[inline(always)]
pub(super) fn is_last<U: Unwinder>(unwinder: &U, stack: &StackBounds, sp: u64, bp: u64) -> bool {
    match U::HAS_MARKS {
        true => bp == stack.end() && unwinder.ends(stack),
        false => sp == stack.end(),
    }
}

/// Returns whether a word is no return address, but marks an interrupted function. Bit 55 tells addresses of the
/// kernel from others, also where the bits above are a signature.
#[inline(always)]
pub(super) fn is_mark<U: Unwinder>(ip: u64) -> bool {
    U::HAS_MARKS && ip >> 55 & 1 == 0
}

/// Returns whether `bp` is the address of a caller's record that the kernel's unwinder would step to without looking
/// at more: see above.
#[inline(always)]
pub(super) fn is_next_record<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    sp: u64,
    bp: u64,
) -> bool {
    let end = stack.end();
    let is_above = bp >= sp && bp <= end.saturating_sub(RECORD) && bp % 8 == 0;
    is_above && !is_copy(unwinder, stack, sp)
}

/// Returns whether the record below `sp` is the last one, with copies of its words above.
#[inline(always)]
pub(super) fn is_copy<U: Unwinder>(unwinder: &U, stack: &StackBounds, sp: u64) -> bool {
    let may_be = !U::HAS_MARKS && sp == stack.end().wrapping_sub(COPIED);
    may_be && is_copied(unwinder, stack, sp)
}

/// Returns whether the words of the record below `sp` are above it a second time. Only a task's stack ends where this
/// can be asked.
#[cold]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
fn is_copied<U: Unwinder>(unwinder: &U, stack: &StackBounds, sp: u64) -> bool {
    let word = |offset| unwinder.word(stack, sp.wrapping_sub(RECORD).wrapping_add(offset));
    word(0) == word(16) && word(8) == word(32)
}

/// Returns why `bp` is not the address of such a record.
#[inline(always)]
pub(super) fn reason(bp: u64) -> WalkCounter {
    if bp & 1 != 0 {
        WalkCounter::Registers
    } else {
        WalkCounter::Stack
    }
}
