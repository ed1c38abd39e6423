// SPDX-License-Identifier: GPL-2.0

//! The walk: from return address to return address, by rules.
//!
//! Where a rule is known, a step is a few loads from the stack. Where none is, where the return address was
//! replaced, or where a rule leads to no stack that the walk knows, the kernel's unwinder takes that one
//! step, and the walk goes on from there. The kernel is used through [`Unwinder`], so that the host tests the walk
//! on stacks that are made up.

use super::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    rule::{RuleKind, UnwindRule},
    step::{call, kind_at, rule_of, skip_by_rules, step_to_caller, step_to_interrupted},
    unwinder::{StackCursor, Unwinder, WalkCounter},
};

/// Finds return addresses, from that of `frame` on, the innermost first, and as the kernel's
/// unwinder finds them. The first `skip` of them are skipped, the others written to `ips`, after the
/// first `nr`: none or one. Returns how many `ips` has then.
///
/// Context: that of the [`Unwinder`].
#[inline(never)]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
pub fn walk<U: Unwinder>(
    unwinder: &mut U,
    mut frame: KernelFrame,
    mut skip: usize,
    ips: &mut [u64],
    mut nr: usize,
) -> usize {
    if !frame.interrupted {
        skip = skip_by_rules(unwinder, &mut frame, skip);
    }
    let mut fast = 0_u64;
    loop {
        // Nearly all frames are calls whose rules are known, and none is skipped.
        let cursor = match frame.interrupted || skip > 0 {
            true => None,
            false => StackCursor::new(&frame.stack, frame.at.sp),
        };
        let (rule, stuck) = match cursor {
            None => (rule_of(unwinder, &frame), None),
            Some(cursor) => {
                let at = frame.at;
                let mut calls = Calls { at, ips, nr };
                let (rule, end) = calls.follow(unwinder, &frame.stack, &cursor);
                let found = calls.nr.wrapping_sub(nr) as u64;
                Calls {
                    at: frame.at,
                    nr,
                    ..
                } = calls;
                let stuck = match end {
                    CallsEnd::Full => {
                        fast = fast.wrapping_add(found);
                        break;
                    }
                    CallsEnd::Other => None,
                    CallsEnd::Stuck(reason) => Some(reason),
                };
                // The frame where it is stuck is written, and counted below.
                fast = fast.wrapping_add(found.wrapping_sub(stuck.is_some().into()));
                (rule, stuck)
            }
        };
        let next = match stuck {
            Some(reason) => Next::Kernel(reason),
            None => step(unwinder, &frame, rule, &mut skip, ips, &mut nr),
        };
        let caller = match next {
            Next::Frame(caller) => Some(caller),
            Next::End => None,
            Next::Kernel(reason) => {
                unwinder.count(reason, 1);
                unwinder.step(frame)
            }
        };
        let Some(caller) = caller else {
            break;
        };
        frame = caller;
    }
    unwinder.count(WalkCounter::Fast, fast);
    nr
}

/// What comes after a frame.
enum Next {
    /// Its caller.
    Frame(KernelFrame),
    /// A step of the kernel's unwinder.
    Kernel(WalkCounter),
    /// Nothing: the stack or the buffer ends.
    End,
}

/// Writes a frame, if it is not skipped, and steps by its rule; learns that if it is not known.
#[inline(always)]
fn step<U: Unwinder>(
    unwinder: &mut U,
    frame: &KernelFrame,
    mut rule: UnwindRule,
    skip: &mut usize,
    ips: &mut [u64],
    nr: &mut usize,
) -> Next {
    let has_rule = rule != UnwindRule::UNKNOWN;
    if !has_rule && !unwinder.is_text(frame.at.ip) {
        return Next::End;
    }
    if let (false, Some(ip)) = (has_rule, frame.rule_address()) {
        rule = unwinder.learn(ip);
    }
    if *skip > 0 {
        *skip -= 1;
    } else if !push(ips, nr, frame.at.ip) {
        return Next::End;
    }
    let counter = match has_rule {
        true => WalkCounter::Fast,
        false => WalkCounter::New,
    };
    let next = match kind_at(unwinder, rule, &frame.stack, frame.at) {
        RuleKind::Call | RuleKind::Switch | RuleKind::Realigned => {
            step_to_caller(unwinder, frame, rule)
        }
        RuleKind::Registers
            if !unwinder.are_users(&frame.stack, rule.sp(frame.at.sp, frame.at.bp)) =>
        {
            step_to_interrupted(unwinder, frame, rule).ok_or(WalkCounter::Registers)
        }
        RuleKind::Registers | RuleKind::End => {
            unwinder.count(counter, 1);
            return Next::End;
        }
        RuleKind::Slow if rule != UnwindRule::UNKNOWN => Err(WalkCounter::Unsupported),
        RuleKind::Slow if frame.interrupted => Err(WalkCounter::Registers),
        RuleKind::Slow => Err(WalkCounter::Text),
    };
    match next {
        Ok(next) => {
            unwinder.count(counter, 1);
            Next::Frame(next)
        }
        Err(reason) => Next::Kernel(reason),
    }
}

/// Writes the next address. Returns false if the buffer is full.
#[inline(always)]
fn push(ips: &mut [u64], nr: &mut usize, ip: u64) -> bool {
    let Some(free) = ips.get_mut(*nr) else {
        return false;
    };
    *free = ip;
    *nr = nr.wrapping_add(1);
    true
}

/// Frames that are calls with rules. The first `nr` of `ips` are known.
struct Calls<'a> {
    at: FrameRegisters,
    ips: &'a mut [u64],
    nr: usize,
}

/// Why no call follows.
enum CallsEnd {
    /// The buffer is full.
    Full,
    /// The frame is something else, or has no rule. It is not written.
    Other,
    /// The rule of the frame does not lead to the caller. It is written.
    Stuck(WalkCounter),
}

impl Calls<'_> {
    /// Follows them from `at`, where the cursor is. Returns the rule of the frame where they end. Not inlined, so that
    /// the loop keeps everything in registers.
    #[inline(never)]
    #[cfg_attr(MODULE, link_section = ".kprobes.text")]
    fn follow<U: Unwinder>(
        &mut self,
        unwinder: &U,
        stack: &StackBounds,
        cursor: &StackCursor,
    ) -> (UnwindRule, CallsEnd) {
        let mut cursor = *cursor;
        let ips = &mut *self.ips;
        let (mut at, mut nr) = (self.at, self.nr);
        // Of the frame before; that has not been left if the stack pointer is the same.
        let (mut sp, mut bp) = (at.sp, at.bp);
        let (rule, end) = loop {
            let rule = unwinder.rule(at.ip);
            let Some(plain) = rule.plain() else {
                if kind_at(unwinder, rule, stack, at) != RuleKind::Call {
                    // A tracer's address has no rule, and the kernel knows which address was there.
                    if sp != at.sp && unwinder.is_replaced(at.ip) {
                        let ip = ips.get(nr.wrapping_sub(1)).map_or(0, |ip| *ip);
                        at = FrameRegisters { ip, sp, bp };
                        break (rule, CallsEnd::Stuck(WalkCounter::Return));
                    }
                    break (rule, CallsEnd::Other);
                }
                if !push(ips, &mut nr, at.ip) {
                    break (rule, CallsEnd::Full);
                }
                let (caller, caller_cursor) = match call(unwinder, stack, at, rule) {
                    Ok(caller) => (caller, StackCursor::new(stack, caller.sp)),
                    Err(reason) => break (rule, CallsEnd::Stuck(reason)),
                };
                let Some(caller_cursor) = caller_cursor else {
                    break (rule, CallsEnd::Stuck(WalkCounter::Stack));
                };
                (sp, bp) = (at.sp, at.bp);
                (at, cursor) = (caller, caller_cursor);
                continue;
            };
            if !push(ips, &mut nr, at.ip) {
                break (rule, CallsEnd::Full);
            }
            let (old_sp, old_bp) = (at.sp, at.bp);
            let Some(ip) = cursor.plain_call(unwinder, plain, &mut at.bp) else {
                break (rule, CallsEnd::Stuck(WalkCounter::Stack));
            };
            (sp, bp) = (old_sp, old_bp);
            (at.ip, at.sp) = (ip, cursor.sp());
        };
        (self.at, self.nr) = (at, nr);
        (rule, end)
    }
}
