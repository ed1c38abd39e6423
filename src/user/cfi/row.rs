// SPDX-License-Identifier: GPL-2.0

//! What the program of a function says of one address, and the rule that says the same.

use super::{
    super::rule::{Base, Rule, Saved},
    Computed, Machine, Tracked, Unknown, Value,
};

/// Where the frame of the caller is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Frame {
    #[default]
    Unknown,
    /// At an offset from a register.
    At {
        register: u64,
        offset: i64,
    },
    /// `by` bytes above the address that a word in memory holds. The word is at an offset from a register, plus eight times
    /// the register `index`.
    InMemory {
        register: u64,
        index: Option<u8>,
        offset: i64,
        by: i32,
    },
    Other,
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum RegisterRule {
    /// As it is.
    #[default]
    Same,
    /// Lost.
    Undefined,
    /// At an offset from the caller's frame.
    Offset(i64),
    /// At an offset from a register.
    From {
        register: u64,
        offset: i64,
    },
    /// In a register.
    In(u64),
    Other,
}

impl RegisterRule {
    /// Returns where the caller's register is, if a rule can say that.
    fn saved(self) -> Option<Saved> {
        match self {
            Self::Same => Some(Saved::No),
            Self::Offset(offset) => Some(Saved::At(offset)),
            _ => None,
        }
    }
}

/// What a program says of one address.
#[derive(Clone, Copy, Default)]
pub(super) struct Row {
    pub(super) frame: Frame,
    /// The first address at which the frame's end has this offset.
    pub(super) since: u64,
    pub(super) fp: RegisterRule,
    pub(super) ra: RegisterRule,
    /// Whether a register is restored that returns a value, and whether one is that has an argument.
    pub(super) restores: (bool, bool),
    /// Where the register is that is tracked.
    pub(super) tracked: RegisterRule,
}

impl Row {
    /// Returns the address from which the frame ends at two words from a register other than the frame pointer.
    pub(super) fn frame_set(&self, machine: &Machine) -> Option<u64> {
        let is_two =
            matches!(self.frame, Frame::At { register, offset: 16 } if register != machine.fp);
        is_two.then_some(self.since)
    }

    /// Returns whether the function enters a handler of an exception, to which it passes values: it may have put the
    /// handler's registers where its caller's were. Others that restore values, as mcount(), restore arguments, too.
    fn enters_handler(&self) -> bool {
        self.restores == (true, false)
    }

    /// Returns where the caller's frame pointer is, if a rule can say that and where the return address is; see
    /// [`Machine::ra_at`].
    fn saved_fp(&self, machine: &Machine) -> Option<Saved> {
        if machine.has_link() {
            return match (self.fp, self.ra) {
                (RegisterRule::Same, RegisterRule::Same) => Some(Saved::No),
                (RegisterRule::Same, RegisterRule::Offset(ra @ ..0)) => {
                    Some(Saved::At(ra.wrapping_neg()))
                }
                (RegisterRule::Offset(fp @ ..0), RegisterRule::Offset(ra)) if ra == fp + 8 => {
                    Some(Saved::At(fp))
                }
                _ => None,
            };
        }
        if self.ra != RegisterRule::Offset(machine.ra_offset) {
            return None;
        }
        let empty = Frame::At {
            register: machine.sp,
            offset: -machine.ra_offset,
        };
        match self.fp {
            // The frame is left, and the frame pointer is the caller's.
            RegisterRule::From { register, .. }
                if register == machine.fp && self.frame == empty =>
            {
                Some(Saved::No)
            }
            RegisterRule::From {
                register,
                offset: 0,
            } if register == machine.fp => Some(Saved::AtFp),
            other => other.saved(),
        }
    }

    /// Returns what the row says of a tracked register: where the caller's is, and the rule of a frame whose base it
    /// is instead of the frame pointer.
    pub(super) fn tracked(&self, machine: &Machine, register: u64) -> Tracked {
        let saved = self.tracked.saved().filter(|_| !self.enters_handler());
        let rule = match (self.frame, self.saved_fp(machine)) {
            (
                Frame::At {
                    register: base,
                    offset,
                },
                Some(fp),
            ) if base == register => Rule::tracked_call(offset, fp),
            _ => None,
        };
        Tracked {
            rule,
            saved,
            computed: match register == machine.sp {
                true => self.computed(machine),
                false => None,
            },
        }
    }

    /// Returns how the caller's registers are computed, if that can be said. The stack pointer is tracked.
    fn computed(&self, machine: &Machine) -> Option<Computed> {
        let end = Value {
            register: None,
            index: None,
            offset: 0,
            by: None,
        };
        let value = |register, index, offset: i64, by| {
            let register = Some(register as u8).filter(|_| register < machine.registers);
            Some(Value {
                register: Some(register?),
                index,
                offset: offset.try_into().ok()?,
                by,
            })
        };
        let caller = |rule, same| match rule {
            RegisterRule::Same => same,
            RegisterRule::Offset(offset) => Some(Value {
                offset: offset.try_into().ok()?,
                by: Some(0),
                ..end
            }),
            // What is where the frame pointer points may be its caller's.
            RegisterRule::From { register, offset } if register != machine.fp => {
                value(register, None, offset, Some(0))
            }
            RegisterRule::In(register) => value(register, None, 0, None),
            _ => None,
        };
        let link = match machine.has_link() {
            true => value(machine.ra, None, 0, None),
            false => None,
        };
        let by = match self.frame {
            _ if self.enters_handler() => None,
            Frame::At { register, offset } => value(register, None, offset, None),
            Frame::InMemory {
                register,
                index,
                offset,
                by,
            } => value(register, index, offset, Some(by)),
            _ => None,
        };
        Some(Computed {
            end: by?,
            ip: caller(self.ra, link)?,
            sp: caller(self.tracked, Some(end))?,
            fp: caller(self.fp, value(machine.fp, None, 0, None))?,
        })
    }

    /// Returns the rule that says the same.
    pub(super) fn rule(&self, machine: &Machine, signal: bool) -> Result<Rule, Unknown> {
        if self.ra == RegisterRule::Undefined {
            return Ok(Rule::OUTERMOST);
        }
        if signal {
            return self.signal(machine);
        }
        let computed = || self.computed(machine).map(|_| Rule::COMPUTED);
        let rule = self.call(machine).or_else(computed);
        rule.ok_or(Unknown::Inexpressible)
    }

    /// Returns the rule of a call, if that is enough. The stack pointer is tracked.
    fn call(&self, machine: &Machine) -> Option<Rule> {
        if self.tracked != RegisterRule::Same {
            return None;
        }
        let base = |register| match register {
            _ if register == machine.sp => Some(Base::Sp),
            _ if register == machine.fp => Some(Base::Fp),
            _ => None,
        };
        let saved = self.saved_fp(machine)?;
        match self.frame {
            _ if self.enters_handler() => Some(Rule::HANDLER),
            Frame::At { register, .. } if machine.can_track(register) => self
                .tracked(machine, register)
                .rule
                .map(|_| Rule::tracked(register)),
            Frame::At { register, offset } => Rule::call(base(register)?, offset, saved),
            Frame::InMemory {
                register,
                index: None,
                offset,
                by,
            } => Rule::aligned(base(register)?, offset, by.into(), saved),
            _ => None,
        }
    }

    /// Returns the rule of a signal frame, if it is one as the kernel makes it.
    fn signal(&self, machine: &Machine) -> Result<Rule, Unknown> {
        let [sp, ra, fp] = machine.signal;
        let from = |offset| RegisterRule::From {
            register: machine.sp,
            offset,
        };
        let frame = Frame::InMemory {
            register: machine.sp,
            index: None,
            offset: sp,
            by: 0,
        };
        if self.frame == frame && self.ra == from(ra) && self.fp == from(fp) {
            Ok(Rule::SIGNAL)
        } else {
            Err(Unknown::Inexpressible)
        }
    }
}
