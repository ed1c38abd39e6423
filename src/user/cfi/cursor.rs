// SPDX-License-Identifier: GPL-2.0

//! Reading numbers from a file.

use super::{File, Unknown};

/// Bytes that are read at once.
const WINDOW: usize = 64;

/// The encodings of pointers: a size in the low half, what they are relative to in the high half.
pub(super) mod encoding {
    pub(in super::super) const ABSOLUTE: u8 = 0x00;
    pub(in super::super) const U32: u8 = 0x03;
    pub(in super::super) const U64: u8 = 0x04;
    pub(in super::super) const I32: u8 = 0x0b;
    pub(in super::super) const I64: u8 = 0x0c;
    pub(in super::super) const PC_RELATIVE: u8 = 0x10;
    /// What the table of functions has.
    pub(in super::super) const TABLE: u8 = 0x3b;
}

/// A reader of a file's bytes.
pub(super) struct Cursor<'f, F> {
    file: &'f F,
    /// Bytes of the file, the first `filled` of them, from `start` on.
    window: [u8; WINDOW],
    start: u64,
    filled: usize,
    /// The index of the next byte; it may be past those that are filled.
    next: usize,
}

impl<'f, F: File> Cursor<'f, F> {
    pub(super) fn new(file: &'f F, at: u64) -> Self {
        Self {
            file,
            window: [0; WINDOW],
            start: at,
            filled: 0,
            next: 0,
        }
    }

    /// Returns the offset of the next byte.
    #[inline(always)]
    pub(super) fn at(&self) -> u64 {
        self.start.wrapping_add(self.next as u64)
    }

    /// Goes on at another offset.
    #[inline(always)]
    pub(super) fn seek(&mut self, at: u64) {
        let next = at.wrapping_sub(self.start);
        if next <= self.filled as u64 {
            self.next = next as usize;
        } else {
            (self.start, self.filled, self.next) = (at, 0, 0);
        }
    }

    /// Reads the window at the next byte, which is then its first one. At least `nr` bytes must follow.
    #[inline(never)]
    fn fill(&mut self, nr: usize) -> Result<(), Unknown> {
        let at = self.at();
        let left = self.file.size().saturating_sub(at);
        let filled = left.min(WINDOW as u64) as usize;
        (self.start, self.filled, self.next) = (at, 0, 0);
        let window = self.window.get_mut(..filled).ok_or(Unknown::Damaged)?;
        if filled < nr {
            return Err(Unknown::Damaged);
        }
        self.file.read(at, window)?;
        self.filled = filled;
        Ok(())
    }

    #[inline(always)]
    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Unknown> {
        if self.next + N > self.filled {
            self.fill(N)?;
        }
        let bytes = self.window.get(self.next..self.next + N);
        self.next += N;
        let bytes = bytes.ok_or(Unknown::Damaged)?;
        bytes.try_into().map_err(|_| Unknown::Damaged)
    }

    #[inline(always)]
    pub(super) fn u8(&mut self) -> Result<u8, Unknown> {
        self.bytes().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Unknown> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Unknown> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Unknown> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads an unsigned number of any length.
    #[inline(always)]
    pub(super) fn unsigned(&mut self) -> Result<u64, Unknown> {
        match self.u8()? {
            // Most are one byte.
            byte @ 0..0x80 => Ok(byte.into()),
            byte => self.longer(byte),
        }
    }

    /// Reads the rest of an unsigned number whose first byte is `first`.
    #[inline(never)]
    fn longer(&mut self, first: u8) -> Result<u64, Unknown> {
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Unknown::Damaged);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Unknown::Damaged)
    }

    /// Reads a number of any length with a sign.
    pub(super) fn signed(&mut self) -> Result<i64, Unknown> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            number |= i64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let unused = 64_u32.saturating_sub(shift + 7);
                return Ok(number << unused >> unused);
            }
        }
        Err(Unknown::Damaged)
    }

    pub(super) fn skip(&mut self, bytes: u64) -> Result<(), Unknown> {
        let at = self.at().checked_add(bytes);
        self.seek(at.ok_or(Unknown::Damaged)?);
        Ok(())
    }

    /// Reads a pointer, without adding what it is relative to.
    pub(super) fn pointer(&mut self, encoding: u8) -> Result<u64, Unknown> {
        match encoding & 0x0f {
            encoding::ABSOLUTE | encoding::U64 | encoding::I64 => self.u64(),
            encoding::U32 => self.u32().map(u64::from),
            encoding::I32 => self.u32().map(|word| word as i32 as u64),
            _ => Err(Unknown::Inexpressible),
        }
    }
}
