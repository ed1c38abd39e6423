// SPDX-License-Identifier: GPL-2.0

//! The program of a function, which says for each of its addresses where the caller's registers are.

use super::{
    cursor::Cursor,
    description::Cie,
    expression::{frame_by, rule_by},
    row::{Frame, RegisterRule, Row},
    File, Machine, Unknown,
};

/// Steps of the programs of one address.
const STEPS_MAX: u32 = 10_000;
/// How deep a program may nest its remembered rows.
const ROWS_MAX: usize = 8;

/// A program that runs up to an address.
pub(super) struct Program<'c> {
    machine: &'c Machine,
    common: &'c Cie,
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
    /// Returns the program of a function that begins at `begin`, up to the address `wanted`.
    pub(super) fn new(
        machine: &'c Machine,
        common: &'c Cie,
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

    /// Returns the row of the address.
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

    /// Executes an instruction without an operand in its code. Returns whether the address is reached.
    fn extended<F: File>(&mut self, code: u8, cursor: &mut Cursor<'_, F>) -> Result<bool, Unknown> {
        match code {
            // nop
            0x00 => {}
            // advance_loc1, 2, 4
            0x02 => return cursor.u8().map(|by| self.advance(by.into())),
            0x03 => return cursor.u16().map(|by| self.advance(by.into())),
            0x04 => return cursor.u32().map(|by| self.advance(by.into())),
            // restore_extended
            0x06 => {
                let register = cursor.unsigned()?;
                self.restore(register);
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
            0x0f => self.row.frame = frame_by(cursor, self.machine, self.wanted)?,
            // AARCH64_negate_ra_state_with_pc, AARCH64_negate_ra_state: what a signature adds is removed anyway.
            0x2c | 0x2d if self.machine.has_link() => {}
            // GNU_args_size
            0x2e => drop(cursor.unsigned()?),
            0x05 | 0x07..=0x09 | 0x10 | 0x11 | 0x14..=0x16 => {
                let register = cursor.unsigned()?;
                let rule = self.rule_of(code, register, cursor)?;
                self.set(register, rule);
            }
            _ => return Err(Unknown::Inexpressible),
        }
        Ok(false)
    }

    /// Returns where an instruction says that a register is.
    fn rule_of<F: File>(
        &self,
        code: u8,
        register: u64,
        cursor: &mut Cursor<'_, F>,
    ) -> Result<RegisterRule, Unknown> {
        Ok(match code {
            // offset_extended, offset_extended_sf
            0x05 => RegisterRule::Offset(self.scaled(cursor.unsigned()? as i64)),
            0x11 => RegisterRule::Offset(self.scaled(cursor.signed()?)),
            // undefined
            0x07 => RegisterRule::Undefined,
            // same_value
            0x08 => RegisterRule::Same,
            // register
            0x09 => RegisterRule::In(cursor.unsigned()?),
            // expression
            0x10 => rule_by(cursor)?,
            // val_offset, val_offset_sf: the frame's end is the stack pointer that is assumed anyway.
            0x14 | 0x15 => match cursor.unsigned()? {
                0 if register == self.machine.sp => RegisterRule::Same,
                _ => RegisterRule::Other,
            },
            // val_expression
            _ => {
                let bytes = cursor.unsigned()?;
                cursor.skip(bytes)?;
                RegisterRule::Other
            }
        })
    }

    /// Goes on to another address. Returns whether that is after the wanted one.
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
}
