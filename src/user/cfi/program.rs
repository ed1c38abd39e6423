// SPDX-License-Identifier: GPL-2.0

//! The program of a function, which says for each of its addresses where the caller's registers are.

use super::super::rule::{Base, Rule, Saved};
use super::{
    cursor::Cursor, description::Common, Computed, File, Machine, Tracked, Unknown, Value,
};

/// Steps of the programs of one address.
const STEPS_MAX: u32 = 10_000;
/// How deep a program may nest its remembered rows.
const ROWS_MAX: usize = 8;
/// Bytes of an expression that can be one of those that are known.
const EXPRESSION_MAX: u64 = 16;
/// The first operation of an expression that adds an offset to a register: that of register 0.
const BREG: u8 = 0x70;
/// That of the last register that is known.
const BREG_LAST: u8 = BREG + 15;

/// Where the frame of the caller is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Frame {
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
enum RegisterRule {
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
    frame: Frame,
    /// The first address at which the frame's end has this offset.
    since: u64,
    fp: RegisterRule,
    ra: RegisterRule,
    /// Whether a register is restored that returns a value, and whether one is that has an argument.
    restores: (bool, bool),
    /// Where the register is that is tracked.
    tracked: RegisterRule,
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

    /// Returns where the caller's frame pointer is, if a rule can say that.
    fn saved_fp(&self, machine: &Machine) -> Option<Saved> {
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
    /// is, in place of the frame pointer.
    pub(super) fn tracked(&self, machine: &Machine, register: u64) -> Tracked {
        let saved = self.tracked.saved().filter(|_| !self.enters_handler());
        let is_called = self.ra == RegisterRule::Offset(machine.ra_offset);
        let rule = match (self.frame, self.saved_fp(machine)) {
            (
                Frame::At {
                    register: base,
                    offset,
                },
                Some(fp),
            ) if is_called && base == register => Rule::tracked_call(offset, fp),
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
            let register = Some(register as u8).filter(|_| register < machine.ra);
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
            ip: caller(self.ra, None)?,
            sp: caller(self.tracked, Some(end))?,
            fp: caller(self.fp, value(machine.fp, None, 0, None))?,
        })
    }

    /// The rule that says the same.
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

    /// Returns the rule of a call, if that is enough.
    fn call(&self, machine: &Machine) -> Option<Rule> {
        if self.ra != RegisterRule::Offset(machine.ra_offset) {
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

    /// That of a signal frame, if it is one as the kernel makes it.
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

/// A program that runs up to an address.
pub(super) struct Program<'c> {
    machine: &'c Machine,
    common: &'c Common,
    /// A register, other than the frame pointer, that is tracked.
    tracked: u64,
    address: u64,
    wanted: u64,
    row: Row,
    /// The row at the beginning of the function.
    first: Row,
    /// Remembered rows.
    rows: [Row; ROWS_MAX],
    depth: usize,
    steps: u32,
}

impl<'c> Program<'c> {
    /// That of a function that begins at `begin`, up to the address `wanted`.
    pub(super) fn new(
        machine: &'c Machine,
        common: &'c Common,
        tracked: u64,
        begin: u64,
        wanted: u64,
    ) -> Self {
        Self {
            machine,
            common,
            tracked,
            address: begin,
            wanted,
            row: Row::default(),
            first: Row::default(),
            rows: [Row::default(); ROWS_MAX],
            depth: 0,
            steps: 0,
        }
    }

    /// Runs the instructions that functions have in common.
    pub(super) fn run_common<F: File>(
        &mut self,
        cursor: &mut Cursor<'_, F>,
    ) -> Result<(), Unknown> {
        self.run(cursor, self.common.end)?;
        self.first = self.row;
        Ok(())
    }

    /// What it says of the address.
    pub(super) fn row(&self) -> &Row {
        &self.row
    }

    /// Runs instructions up to an offset, or up to the address.
    pub(super) fn run<F: File>(
        &mut self,
        cursor: &mut Cursor<'_, F>,
        end: u64,
    ) -> Result<(), Unknown> {
        while cursor.at() < end {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(Unknown::TooLong);
            }
            let code = cursor.u8()?;
            let low = u64::from(code & 0x3f);
            match code >> 6 {
                1 => {
                    if self.advance(low) {
                        return Ok(());
                    }
                }
                2 => {
                    let offset = cursor.unsigned()?;
                    self.set(low, RegisterRule::Offset(self.scaled(offset as i64)));
                }
                3 => self.restore(low),
                _ => {
                    if self.extended(code, cursor)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// An instruction without an operand in its code. Returns whether the address is reached.
    fn extended<F: File>(&mut self, code: u8, cursor: &mut Cursor<'_, F>) -> Result<bool, Unknown> {
        match code {
            // nop
            0x00 => {}
            // advance_loc1, 2, 4
            0x02 => return cursor.u8().map(|by| self.advance(by.into())),
            0x03 => return cursor.u16().map(|by| self.advance(by.into())),
            0x04 => return cursor.u32().map(|by| self.advance(by.into())),
            // offset_extended
            0x05 => {
                let (register, offset) = (cursor.unsigned()?, cursor.unsigned()?);
                self.set(register, RegisterRule::Offset(self.scaled(offset as i64)));
            }
            // restore_extended
            0x06 => {
                let register = cursor.unsigned()?;
                self.restore(register);
            }
            // undefined
            0x07 => {
                let register = cursor.unsigned()?;
                self.set(register, RegisterRule::Undefined);
            }
            // same_value
            0x08 => {
                let register = cursor.unsigned()?;
                self.set(register, RegisterRule::Same);
            }
            // register
            0x09 => {
                let (register, other) = (cursor.unsigned()?, cursor.unsigned()?);
                self.set(register, RegisterRule::In(other));
            }
            // val_offset, val_offset_sf
            0x14 | 0x15 => {
                let (register, _other) = (cursor.unsigned()?, cursor.unsigned()?);
                self.set(register, RegisterRule::Other);
            }
            // remember_state
            0x0a => {
                *self.rows.get_mut(self.depth).ok_or(Unknown::TooLong)? = self.row;
                self.depth += 1;
            }
            // restore_state
            0x0b => {
                self.depth = self.depth.checked_sub(1).ok_or(Unknown::Damaged)?;
                self.row = *self.rows.get(self.depth).ok_or(Unknown::Damaged)?;
            }
            // def_cfa, def_cfa_sf
            0x0c | 0x12 => {
                let register = cursor.unsigned()?;
                let offset = match code {
                    0x0c => cursor.unsigned()? as i64,
                    _ => self.scaled(cursor.signed()?),
                };
                self.row.frame = Frame::At { register, offset };
            }
            // def_cfa_register
            0x0d => {
                let new = cursor.unsigned()?;
                match &mut self.row.frame {
                    Frame::At { register, .. } => *register = new,
                    _ => return Err(Unknown::Damaged),
                }
            }
            // def_cfa_offset, def_cfa_offset_sf
            0x0e | 0x13 => {
                let new = match code {
                    0x0e => cursor.unsigned()? as i64,
                    _ => self.scaled(cursor.signed()?),
                };
                self.row.since = self.address;
                match &mut self.row.frame {
                    Frame::At { offset, .. } => *offset = new,
                    _ => return Err(Unknown::Damaged),
                }
            }
            // def_cfa_expression
            0x0f => self.row.frame = self.frame_by(cursor)?,
            // expression
            0x10 => {
                let register = cursor.unsigned()?;
                let rule = rule_by(cursor)?;
                self.set(register, rule);
            }
            // offset_extended_sf
            0x11 => {
                let (register, offset) = (cursor.unsigned()?, cursor.signed()?);
                self.set(register, RegisterRule::Offset(self.scaled(offset)));
            }
            // val_expression
            0x16 => {
                let register = cursor.unsigned()?;
                let bytes = cursor.unsigned()?;
                cursor.skip(bytes)?;
                self.set(register, RegisterRule::Other);
            }
            // GNU_args_size
            0x2e => drop(cursor.unsigned()?),
            _ => return Err(Unknown::Inexpressible),
        }
        Ok(false)
    }

    /// Goes on to another address. Returns whether that is after the one that is wanted.
    fn advance(&mut self, by: u64) -> bool {
        let by = by.wrapping_mul(self.common.code_align);
        let left = self.wanted.wrapping_sub(self.address);
        self.address = self.address.wrapping_add(by);
        by > left
    }

    fn scaled(&self, offset: i64) -> i64 {
        offset.wrapping_mul(self.common.data_align)
    }

    fn set(&mut self, register: u64, rule: RegisterRule) {
        let is_saved = matches!(rule, RegisterRule::Offset(_));
        if register == self.machine.value {
            self.row.restores.0 = is_saved;
        } else if register == self.machine.argument {
            self.row.restores.1 = is_saved;
        }
        if register == self.machine.fp {
            self.row.fp = rule;
        } else if register == self.machine.ra {
            self.row.ra = rule;
        } else if register == self.tracked {
            self.row.tracked = rule;
        }
    }

    fn restore(&mut self, register: u64) {
        if register == self.machine.value {
            self.row.restores.0 = false;
        } else if register == self.machine.argument {
            self.row.restores.1 = false;
        }
        if register == self.machine.fp {
            self.row.fp = self.first.fp;
        } else if register == self.machine.ra {
            self.row.ra = self.first.ra;
        } else if register == self.tracked {
            self.row.tracked = self.first.tracked;
        }
    }

    /// The frame by one of the expressions that are known.
    fn frame_by<F: File>(&self, cursor: &mut Cursor<'_, F>) -> Result<Frame, Unknown> {
        let (bytes, length) = expression(cursor)?;
        let bytes = bytes.get(..length).unwrap_or_default();
        // That of the linker's stubs for calls of other files: sp + 8 + ((ip & 15) >= 11) * 8.
        let (sp, ip) = (self.machine.sp, self.machine.ra);
        if let [one, 8, two, 0, 0x3f, 0x1a, last @ (0x3a | 0x3b), 0x2a, 0x33, 0x24, 0x22] = bytes {
            let breg = |register| u64::from(BREG) + register;
            if (u64::from(*one), u64::from(*two)) != (breg(sp), breg(ip)) {
                return Ok(Frame::Other);
            }
            let pushed = self.wanted & 15 >= u64::from(last - 0x30);
            return Ok(Frame::At {
                register: self.machine.sp,
                offset: if pushed { 16 } else { 8 },
            });
        }
        Ok(in_memory(bytes).unwrap_or(Frame::Other))
    }
}

/// Returns the frame whose end an expression computes from a word in memory. [`None`]: the expression is another one.
fn in_memory(bytes: &[u8]) -> Option<Frame> {
    let (register, offset, rest) = from_register(bytes)?;
    // breg, lit8, mul, plus
    let (index, rest) = match rest {
        [index @ BREG..=BREG_LAST, 0, 0x38, 0x1e, 0x22, rest @ ..] => (Some(index - BREG), rest),
        _ => (None, rest),
    };
    // deref, plus_uconst
    let by = match rest {
        [0x06] => 0,
        [0x06, 0x23, by @ ..] => match number(by)? {
            (by, _, []) => by.try_into().ok()?,
            _ => return None,
        },
        _ => return None,
    };
    Some(Frame::InMemory {
        register,
        index,
        offset,
        by,
    })
}

/// Where a register is by an expression, if that is an offset from another one.
fn rule_by<F: File>(cursor: &mut Cursor<'_, F>) -> Result<RegisterRule, Unknown> {
    let (bytes, length) = expression(cursor)?;
    let bytes = bytes.get(..length).unwrap_or_default();
    Ok(match from_register(bytes) {
        Some((register, offset, [])) => RegisterRule::From { register, offset },
        _ => RegisterRule::Other,
    })
}

/// An expression that can be one of those that are known; none if it is too long.
fn expression<F: File>(
    cursor: &mut Cursor<'_, F>,
) -> Result<([u8; EXPRESSION_MAX as usize], usize), Unknown> {
    let length = cursor.unsigned()?;
    let mut bytes = [0; EXPRESSION_MAX as usize];
    if length > EXPRESSION_MAX {
        cursor.skip(length)?;
        return Ok((bytes, 0));
    }
    for byte in bytes.iter_mut().take(length as usize) {
        *byte = cursor.u8()?;
    }
    Ok((bytes, length as usize))
}

/// Returns a register, an offset, and what follows their operation, breg.
fn from_register(bytes: &[u8]) -> Option<(u64, i64, &[u8])> {
    let (operation, bytes) = bytes.split_first()?;
    let register = operation.checked_sub(BREG).filter(|nr| *nr < 32)?;
    let (offset, unused, rest) = number(bytes)?;
    Some((register.into(), offset << unused >> unused, rest))
}

/// Returns a number of at most five bytes, how many bits are left of it, and what follows it.
fn number(bytes: &[u8]) -> Option<(i64, u32, &[u8])> {
    let last = bytes.iter().take(5).position(|byte| byte & 0x80 == 0)?;
    let (number, rest) = bytes.split_at_checked(last + 1)?;
    let more = |bits, byte: &u8| bits << 7 | i64::from(byte & 0x7f);
    let bits = number.iter().rev().fold(0, more);
    Some((bits, 64 - 7 * (last as u32 + 1), rest))
}
