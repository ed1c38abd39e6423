// SPDX-License-Identifier: GPL-2.0

//! The expressions of DWARF that rules know.

use super::{
    cursor::Cursor,
    row::{Frame, RegisterRule},
    File, Machine, Unknown,
};

/// The maximum number of bytes of an expression that is known.
const EXPRESSION_MAX: u64 = 16;
/// The first operation of an expression that adds an offset to a register: that of register 0.
const BREG: u8 = 0x70;
/// The operation that adds an offset to the last register that can be an index.
const BREG_LAST: u8 = BREG + 15;

/// Reads the expression of a frame at the address `ip`.
pub(super) fn frame_by<F: File>(
    cursor: &mut Cursor<'_, F>,
    machine: &Machine,
    ip: u64,
) -> Result<Frame, Unknown> {
    let (bytes, length) = expression(cursor)?;
    let bytes = bytes.get(..length).unwrap_or_default();
    // That of the linker's stubs for calls of other files: sp + 8 + ((ip & 15) >= 11) * 8.
    let (sp, ra) = (machine.sp, machine.ra);
    if let [one, 8, two, 0, 0x3f, 0x1a, last @ (0x3a | 0x3b), 0x2a, 0x33, 0x24, 0x22] = bytes {
        let breg = |register| u64::from(BREG) + register;
        let is_stub = (u64::from(*one), u64::from(*two)) == (breg(sp), breg(ra));
        if machine.has_link() || !is_stub {
            return Ok(Frame::Other);
        }
        let pushed = ip & 15 >= u64::from(last - 0x30);
        return Ok(Frame::At {
            register: machine.sp,
            offset: if pushed { 16 } else { 8 },
        });
    }
    Ok(in_memory(bytes).unwrap_or(Frame::Other))
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

/// Reads the expression of a register, which must be an offset from another one.
pub(super) fn rule_by<F: File>(cursor: &mut Cursor<'_, F>) -> Result<RegisterRule, Unknown> {
    let (bytes, length) = expression(cursor)?;
    let bytes = bytes.get(..length).unwrap_or_default();
    Ok(match from_register(bytes) {
        Some((register, offset, [])) => RegisterRule::From { register, offset },
        _ => RegisterRule::Other,
    })
}

/// Reads an expression; one that is too long to be known is skipped, and has length 0.
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
