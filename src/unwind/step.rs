// SPDX-License-Identifier: GPL-2.0

//! One step of a walk: from a frame to its caller, by a rule.

use super::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    frame_record::{is_last, is_mark, is_next_record, reason},
    rule::{RuleKind, UnwindRule},
    unwinder::{StackCursor, Unwinder, WalkCounter},
};

/// Returns the rule that leads to the caller, or [`UnwindRule::UNKNOWN`] if that takes the kernel's unwinder.
#[inline(always)]
pub(super) fn rule_of<U: Unwinder>(unwinder: &U, frame: &KernelFrame) -> UnwindRule {
    match frame.rule_address() {
        Some(ip) => unwinder.rule(ip),
        None => UnwindRule::UNKNOWN,
    }
}

/// Returns the kind of a rule at a frame: where the stack ends, no rule of a call leads on.
#[inline(always)]
pub(super) fn kind_at<U: Unwinder>(
    unwinder: &U,
    rule: UnwindRule,
    stack: &StackBounds,
    at: FrameRegisters,
) -> RuleKind {
    if U::USES_FRAME_RECORDS && rule == UnwindRule::FRAME && is_last(unwinder, stack, at.sp, at.bp)
    {
        return RuleKind::End;
    }
    rule.kind()
}

/// Steps to the caller. Errors: why the rule does not lead to it.
#[inline(never)]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
pub(super) fn step_to_caller<U: Unwinder>(
    unwinder: &U,
    frame: &KernelFrame,
    rule: UnwindRule,
) -> Result<KernelFrame, WalkCounter> {
    let (stack, at) = (&frame.stack, frame.at);
    let (at, stack) = match rule.kind() {
        RuleKind::Switch => switch(unwinder, stack, at, rule)?,
        RuleKind::Realigned => (realigned_call(unwinder, stack, at, rule)?, *stack),
        _ => (call(unwinder, stack, at, rule)?, *stack),
    };
    if unwinder.is_replaced(at.ip) {
        return Err(WalkCounter::Return);
    }
    Ok(KernelFrame {
        at,
        stack,
        interrupted: false,
        registers: 0,
    })
}

/// Steps to the frame that was interrupted, by the registers that the rule leads to.
#[inline(never)]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
pub(super) fn step_to_interrupted<U: Unwinder>(
    unwinder: &U,
    frame: &KernelFrame,
    rule: UnwindRule,
) -> Option<KernelFrame> {
    let registers = rule.sp(frame.at.sp, frame.at.bp);
    let at = unwinder.registers(&frame.stack, registers)?;
    if unwinder.is_replaced(at.ip) {
        return None;
    }
    let task = unwinder.task();
    let stack = if frame.stack.reaches(at.sp) {
        frame.stack
    } else if frame.stack.begin() != task.begin() && task.reaches(at.sp) {
        task
    } else {
        return None;
    };
    // As for a call: no walk goes back.
    if stack.begin() == frame.stack.begin() && at.sp <= frame.at.sp {
        return None;
    }
    Some(KernelFrame {
        at,
        stack,
        interrupted: true,
        registers,
    })
}

/// Steps from a function that runs on another stack to its caller on the task's.
#[inline(always)]
fn switch<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    at: FrameRegisters,
    rule: UnwindRule,
) -> Result<(FrameRegisters, StackBounds), WalkCounter> {
    let task = unwinder.task();
    if stack.begin() == task.begin() {
        return Err(WalkCounter::Stack);
    }
    let top = unwinder.word(stack, at.sp).ok_or(WalkCounter::Stack)?;
    let sp = rule.switched_sp(top);
    let word = |addr| unwinder.word(&task, addr).ok_or(WalkCounter::Stack);
    let ip = word(sp.wrapping_sub(8))?;
    let bp = match rule.switched_bp(sp) {
        Some(at) => word(at)?,
        None => at.bp,
    };
    Ok((FrameRegisters { ip, sp, bp }, task))
}

/// Steps from a function that has realigned its stack to its caller.
fn realigned_call<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    at: FrameRegisters,
    rule: UnwindRule,
) -> Result<FrameRegisters, WalkCounter> {
    let word = |addr| unwinder.word(stack, addr).ok_or(WalkCounter::Stack);
    let sp = word(at.bp.wrapping_sub(rule.realigned_words().wrapping_mul(8)))?;
    if sp <= at.sp {
        return Err(WalkCounter::Stack);
    }
    let (ip, bp) = (word(sp.wrapping_sub(8))?, word(at.bp)?);
    Ok(FrameRegisters { ip, sp, bp })
}

/// Steps to the caller by a rule of kind [`RuleKind::Call`]; the return address may be a tracer's.
#[inline(always)]
pub(super) fn call<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    at: FrameRegisters,
    rule: UnwindRule,
) -> Result<FrameRegisters, WalkCounter> {
    let word = |addr| unwinder.word(stack, addr).ok_or(WalkCounter::Stack);
    if U::USES_FRAME_RECORDS && !is_next_record(unwinder, stack, at.sp, at.bp) {
        return Err(reason(at.bp));
    }
    let sp = rule.sp(at.sp, at.bp);
    if sp <= at.sp {
        return Err(WalkCounter::Stack);
    }
    let ip = unwinder.strip_signature(word(sp.wrapping_sub(8))?);
    if is_mark::<U>(ip) {
        return Err(WalkCounter::Registers);
    }
    let bp = match rule.bp_at(at.sp, sp) {
        Some(at) => word(at)?,
        None => at.bp,
    };
    Ok(FrameRegisters { ip, sp, bp })
}

/// Skips frames as far as rules lead, and caches these for a prediction. Returns how many are still to be skipped.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub(super) fn skip_by_rules<U: Unwinder>(
    unwinder: &U,
    frame: &mut KernelFrame,
    skip: usize,
) -> usize {
    let stack = frame.stack;
    let Some(mut cursor) = StackCursor::new(&stack, frame.at.sp) else {
        return skip;
    };
    skip_frames(skip, &mut frame.at, |to_skip, at| {
        let rule = unwinder.rule(at.ip);
        unwinder.cache_skip_rule(to_skip, at.ip, rule);
        caller(unwinder, &stack, &mut cursor, at, rule)
    })
}

/// Skips frames as long as there is a caller; `caller` gets how many are to be skipped, and the frame. Returns how many
/// are still to be skipped.
#[inline(always)]
pub(super) fn skip_frames(
    mut skip: usize,
    at: &mut FrameRegisters,
    mut caller: impl FnMut(usize, FrameRegisters) -> Option<FrameRegisters>,
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

/// Returns the caller, if a plain rule or a frame record leads to it, and not if a tracer has replaced its address.
/// `cursor` is at the stack pointer, and moves with it.
#[inline(always)]
pub(super) fn caller<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    cursor: &mut StackCursor,
    at: FrameRegisters,
    rule: UnwindRule,
) -> Option<FrameRegisters> {
    let caller = raw_caller(unwinder, stack, cursor, at, rule);
    caller.filter(|caller| !unwinder.is_replaced(caller.ip))
}

/// Returns the same, whatever its address is.
#[inline(always)]
pub(super) fn raw_caller<U: Unwinder>(
    unwinder: &U,
    stack: &StackBounds,
    cursor: &mut StackCursor,
    at: FrameRegisters,
    rule: UnwindRule,
) -> Option<FrameRegisters> {
    if U::USES_FRAME_RECORDS {
        let caller = call(unwinder, stack, at, rule).ok()?;
        return (rule == UnwindRule::FRAME).then_some(caller);
    }
    let mut bp = at.bp;
    let ip = cursor.plain_call(unwinder, rule.plain()?, &mut bp)?;
    let sp = cursor.sp();
    Some(FrameRegisters { ip, sp, bp })
}
