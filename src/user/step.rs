// SPDX-License-Identifier: GPL-2.0

//! The step from a frame to its caller, by the rule of the frame's code.

use super::{
    cfi::{Machine, Value},
    encoded::End,
    frame::{Code, Frame, Memory, Unreadable},
    rule::{Rule, RuleKind},
};

/// What follows a frame, and whether a signal interrupted that; or how the stack ends.
pub(super) type Next = Result<(Frame, bool), End>;

impl From<Unreadable> for End {
    fn from(_: Unreadable) -> Self {
        Self::Fault
    }
}

impl Frame {
    /// Returns the stack pointer of a frame at a call, whose frame pointer points to its record; [`LOST`](Self::LOST), if
    /// the rule needs none. [`None`]: the rule does not say where the record is.
    #[cold]
    pub(super) fn sp_by_record(&self, machine: &Machine, rule: Rule) -> Option<u64> {
        match rule.kind() {
            RuleKind::Call => {
                const ANOTHER: u64 = 1 << 48;
                // As far from the end as in another frame.
                let record = machine.fp_at(rule, ANOTHER)?;
                let end = self.fp.wrapping_add(ANOTHER.wrapping_sub(record));
                Some(match rule.is_plain() {
                    true => end.wrapping_sub(rule.end(0, 0)),
                    false => self.fp,
                })
            }
            RuleKind::Outermost | RuleKind::Start | RuleKind::Unknown | RuleKind::Generated => {
                Some(self.sp)
            }
            _ => None,
        }
    }

    /// Returns what follows a frame that ends there. `link` is the link register of a frame that was interrupted.
    #[inline(always)]
    pub(super) fn called(
        &self,
        machine: &Machine,
        rule: Rule,
        end: u64,
        link: Option<u64>,
        memory: &impl Memory,
    ) -> Next {
        let ra_at = machine.ra_at(rule, end);
        // The stack only goes up; with a return address in its register there may be nothing on it.
        if end < self.sp || end == self.sp && ra_at.is_some() {
            return Err(End::BadAddress);
        }
        let caller = Self {
            ip: match ra_at {
                Some(address) => memory.without_signature(memory.word(address)?),
                // After a call it is that call's.
                None => link.ok_or(End::Inexpressible)?,
            },
            fp: match machine.fp_at(rule, end) {
                Some(address) => memory.word(address)?,
                None => self.fp,
            },
            sp: end,
        };
        Ok((caller, false))
    }

    /// Returns what follows a frame whose return address is at an offset from an address in memory.
    pub(super) fn aligned(
        &self,
        machine: &Machine,
        rule: Rule,
        link: Option<u64>,
        memory: &impl Memory,
    ) -> Next {
        let (at, by) = rule.kept(self.sp, self.fp);
        let end = memory.word(at)?.wrapping_add(by);
        self.called_anyhow(machine, rule, end, link, memory)
    }

    /// Returns what follows a frame whose file says how the caller's registers are computed. Only in the first one registers
    /// other than stack and frame pointer are known.
    #[cold]
    pub(super) fn computed(
        &self,
        machine: &Machine,
        address: u64,
        is_first: bool,
        link: Option<u64>,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Next {
        // The file may be in memory later.
        let found = code.track(address, machine.sp).ok_or(End::NoRule)?;
        let computed = found.computed.ok_or(End::Inexpressible)?;
        let register = |number: u8| match u64::from(number) {
            number if number == machine.sp => Ok(self.sp),
            number if number == machine.fp => Ok(self.fp),
            number if machine.has_link() && number == machine.ra => link.ok_or(End::Inexpressible),
            number if is_first => Ok(code.register(number)),
            _ => Err(End::Inexpressible),
        };
        let value = |value: Value, end| -> Result<u64, End> {
            let base = value.register.map_or(Ok(end), register)?;
            let words = value.index.map_or(Ok(0), register)?;
            let sum = base.wrapping_add(words.wrapping_mul(8));
            let sum = sum.wrapping_add_signed(value.offset.into());
            Ok(match value.by {
                Some(by) => memory.word(sum)?.wrapping_add_signed(by.into()),
                None => sum,
            })
        };
        let end = value(computed.end, 0)?;
        let caller = Self {
            ip: memory.without_signature(value(computed.ip, end)?),
            sp: value(computed.sp, end)?,
            fp: value(computed.fp, end)?,
        };
        // The first one may have popped its return address, or not saved it yet.
        let is_inner = is_first || link.is_some();
        match caller.sp > self.sp || is_inner && caller.sp == self.sp {
            true => Ok((caller, false)),
            false => Err(End::BadAddress),
        }
    }

    /// Returns what follows the frame of a function that enters a handler of an exception.
    #[cold]
    pub(super) fn enters_handler(
        &self,
        machine: &Machine,
        address: u64,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Next {
        let rule = code.track(address, machine.fp).and_then(|fp| fp.rule);
        let rule = rule.ok_or(End::Inexpressible)?;
        self.called(machine, rule, rule.end(self.sp, self.fp), None, memory)
    }

    /// Returns what follows a frame that ends there, wherever the caller's frame pointer is.
    #[cold]
    pub(super) fn called_anyhow(
        &self,
        machine: &Machine,
        rule: Rule,
        end: u64,
        link: Option<u64>,
        memory: &impl Memory,
    ) -> Next {
        let Some(rest) = rule.without_at_fp() else {
            return self.called(machine, rule, end, link, memory);
        };
        let (caller, interrupted) = self.called(machine, rest, end, link, memory)?;
        // Where the frame's end is in a register, the frame pointer may be the caller's already, which no CFI says: then
        // it does not point into this frame, to below a copy of the return address.
        let is_own =
            (self.sp..end).contains(&self.fp) && memory.word(self.fp.wrapping_add(8))? == caller.ip;
        let fp = if is_own {
            memory.word(self.fp)?
        } else {
            self.fp
        };
        Ok((Self { fp, ..caller }, interrupted))
    }

    /// Returns what a signal interrupted whose frame this is: its stack may be elsewhere.
    pub(super) fn interrupted(&self, machine: &Machine, memory: &impl Memory) -> Next {
        if self.is_lost(machine) {
            return Err(End::NoCfi);
        }
        let [sp, ip, fp] = machine.signal;
        let word = |offset| memory.word(self.sp.wrapping_add_signed(offset));
        let (ip, sp, fp) = (word(ip)?, word(sp)?, word(fp)?);
        Ok((Self { ip, sp, fp }, true))
    }

    /// Returns the link register of what a signal interrupted whose frame this is: it is after the frame pointer. [`None`]: it
    /// cannot be read.
    #[cold]
    pub(super) fn interrupted_link(&self, machine: &Machine, memory: &impl Memory) -> Option<u64> {
        let [_, _, fp] = machine.signal;
        let link = memory.word(self.sp.wrapping_add_signed(fp + 8)).ok()?;
        Some(memory.without_signature(link))
    }
}
