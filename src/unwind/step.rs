// SPDX-License-Identifier: GPL-2.0

//! One step of a walk: from a frame to the next, as a rule says.

use super::{
    frames,
    rules::{Kind, Rule},
    walk::{Frame, Registers, Stack, Unwinder, WalkCounter},
};

impl Frame {
    /// The rule that leads to the caller; [`Rule::UNKNOWN`] if that takes the kernel's unwinder.
    #[inline(always)]
    pub(super) fn rule<U: Unwinder>(&self, unwinder: &U) -> Rule {
        match self.address() {
            Some(ip) => unwinder.rule(ip),
            None => Rule::UNKNOWN,
        }
    }

    /// The address that the rule is that of. The rule of a call is that of its last byte, so where a
    /// function was interrupted is where a call of one byte would have returned to, less that byte.
    #[inline(always)]
    pub(super) fn address(&self) -> Option<u64> {
        match self.interrupted {
            false => Some(self.at.ip),
            true if self.registers != 0 => Some(self.at.ip.wrapping_add(1)),
            true => None,
        }
    }

    /// The caller, or why the rule cannot tell.
    #[inline(never)]
    #[cfg_attr(MODULE, link_section = ".kprobes.text")]
    pub(super) fn called<U: Unwinder>(
        &self,
        unwinder: &U,
        rule: Rule,
    ) -> Result<Self, WalkCounter> {
        let (at, stack) = match rule.kind() {
            Kind::Switch => switch(unwinder, &self.stack, self.at, rule)?,
            Kind::Realigned => (
                realigned_call(unwinder, &self.stack, self.at, rule)?,
                self.stack,
            ),
            _ => (
                based_call(unwinder, &self.stack, self.at, rule)?,
                self.stack,
            ),
        };
        if unwinder.is_replaced(at.ip) {
            return Err(WalkCounter::Return);
        }
        Ok(Self {
            at,
            stack,
            interrupted: false,
            registers: 0,
        })
    }

    /// The frame that was interrupted, by registers where a rule says.
    #[inline(never)]
    #[cfg_attr(MODULE, link_section = ".kprobes.text")]
    pub(super) fn resumed<U: Unwinder>(&self, unwinder: &U, rule: Rule) -> Option<Self> {
        let registers = rule.sp(self.at.sp, self.at.bp);
        let at = unwinder.registers(&self.stack, registers)?;
        if unwinder.is_replaced(at.ip) {
            return None;
        }
        let task = unwinder.task();
        let stack = if self.stack.reaches(at.sp) {
            self.stack
        } else if self.stack.begin() != task.begin() && task.reaches(at.sp) {
            task
        } else {
            return None;
        };
        // As for a call: no walk goes back.
        if stack.begin() == self.stack.begin() && at.sp <= self.at.sp {
            return None;
        }
        Some(Self {
            at,
            stack,
            interrupted: true,
            registers,
        })
    }
}

/// The caller on the task's stack of a function that runs on another one.
#[inline(always)]
fn switch<U: Unwinder>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    rule: Rule,
) -> Result<(Registers, Stack), WalkCounter> {
    let task = unwinder.task();
    if stack.begin() == task.begin() {
        return Err(WalkCounter::Stack);
    }
    let top = stack.word(unwinder, at.sp).ok_or(WalkCounter::Stack)?;
    let sp = rule.switched_sp(top);
    let word = |addr| task.word(unwinder, addr).ok_or(WalkCounter::Stack);
    let ip = word(sp.wrapping_sub(8))?;
    let bp = match rule.switched_bp(sp) {
        Some(at) => word(at)?,
        None => at.bp,
    };
    Ok((Registers { ip, sp, bp }, task))
}

/// The caller of a function that has realigned its stack.
fn realigned_call<U: Unwinder>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    rule: Rule,
) -> Result<Registers, WalkCounter> {
    let word = |addr| stack.word(unwinder, addr).ok_or(WalkCounter::Stack);
    let sp = word(at.bp.wrapping_sub(rule.realigned_words().wrapping_mul(8)))?;
    if sp <= at.sp {
        return Err(WalkCounter::Stack);
    }
    let (ip, bp) = (word(sp.wrapping_sub(8))?, word(at.bp)?);
    Ok(Registers { ip, sp, bp })
}

/// What a rule says where the stack ends, too.
#[inline(always)]
pub(super) fn kind<U: Unwinder>(unwinder: &U, rule: Rule, stack: &Stack, at: Registers) -> Kind {
    if U::BY_FRAMES && rule == Rule::FRAME && frames::is_last(unwinder, stack, at.sp, at.bp) {
        return Kind::End;
    }
    rule.kind()
}

/// The caller, or why the rule cannot tell; the return address may be a tracer's.
#[inline(always)]
pub(super) fn based_call<U: Unwinder>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    rule: Rule,
) -> Result<Registers, WalkCounter> {
    let word = |addr| stack.word(unwinder, addr).ok_or(WalkCounter::Stack);
    if U::BY_FRAMES && !frames::leads_on(unwinder, stack, at.sp, at.bp) {
        return Err(frames::why_not(at.bp));
    }
    let sp = rule.sp(at.sp, at.bp);
    if sp <= at.sp {
        return Err(WalkCounter::Stack);
    }
    let ip = unwinder.returns_to(word(sp.wrapping_sub(8))?);
    if frames::is_mark::<U>(ip) {
        return Err(WalkCounter::Registers);
    }
    let bp = match rule.bp_at(at.sp, sp) {
        Some(at) => word(at)?,
        None => at.bp,
    };
    Ok(Registers { ip, sp, bp })
}
