// SPDX-License-Identifier: GPL-2.0

//! The rule of one call in a file: how its frame is left, in 32 bits.
//!
//! ```text
//!  31         22 21                    6   5   4   3   2      0
//! +-------------+-----------------------+---+---+----+---------+
//! |  fp offset  |      frame offset     | 0 | fp|base|  kind   |
//! +-------------+-----------------------+---+---+----+---------+
//! ```
//!
//! Offsets are in words, with a sign. The frame pointer's is from the frame's end.

/// How a frame is left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule(u32);

/// What a rule says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The return address is the last word of the frame.
    Call,
    /// The same, and where that word is stands in memory: code that aligns its stack.
    Aligned,
    /// There is no caller.
    Outermost,
    /// A signal came: the registers are in its frame.
    Signal,
}

/// What the frame's end is an offset from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Base {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Fp,
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Saved {
    /// In its register still.
    No,
    /// At an offset from the frame's end, in bytes.
    At(i64),
}

const KIND: u32 = 7;
const CALL: u32 = 1;
const OUTERMOST: u32 = 2;
const SIGNAL: u32 = 3;
const ALIGNED: u32 = 4;
const BASE_FP: u32 = 1 << 3;
const FP_SAVED: u32 = 1 << 4;
const OFFSET_SHIFT: u32 = 6;
const OFFSET_BITS: u32 = 16;
const FP_SHIFT: u32 = OFFSET_SHIFT + OFFSET_BITS;
const FP_BITS: u32 = 32 - FP_SHIFT;
const WORD: i64 = 8;

impl Rule {
    /// The walk is complete.
    pub const OUTERMOST: Self = Self(OUTERMOST);
    /// A signal frame.
    pub const SIGNAL: Self = Self(SIGNAL);

    /// A call whose frame ends at an offset from a base, in bytes. [`None`]: an offset is too large, or
    /// is no multiple of a word.
    pub fn call(base: Base, offset: i64, saved: Saved) -> Option<Self> {
        Self::made(CALL, base, offset, saved)
    }

    /// A call of a frame that keeps at an offset from a base where its return address is.
    pub fn aligned(base: Base, offset: i64, saved: Saved) -> Option<Self> {
        Self::made(ALIGNED, base, offset, saved)
    }

    fn made(kind: u32, base: Base, offset: i64, saved: Saved) -> Option<Self> {
        let base = match base {
            Base::Sp => 0,
            Base::Fp => BASE_FP,
        };
        let fp = match saved {
            Saved::No => 0,
            Saved::At(offset) => FP_SAVED | field(offset, FP_BITS)? << FP_SHIFT,
        };
        Some(Self(
            kind | base | fp | field(offset, OFFSET_BITS)? << OFFSET_SHIFT,
        ))
    }

    /// The rule of these bits. [`None`]: there is none.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits & KIND {
            CALL | OUTERMOST | SIGNAL | ALIGNED => Some(Self(bits)),
            _ => None,
        }
    }

    /// The rule as bits, never 0.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// What it says.
    pub const fn kind(self) -> Kind {
        match self.0 & KIND {
            OUTERMOST => Kind::Outermost,
            SIGNAL => Kind::Signal,
            ALIGNED => Kind::Aligned,
            _ => Kind::Call,
        }
    }

    /// Where the frame of a call ends, the caller's stack pointer; or where that is kept.
    pub const fn end(self, sp: u64, fp: u64) -> u64 {
        let base = if self.0 & BASE_FP != 0 { fp } else { sp };
        base.wrapping_add_signed(self.bytes(OFFSET_SHIFT, OFFSET_BITS))
    }

    /// Where the caller's frame pointer is, given the end of the frame; [`None`]: in its register.
    pub const fn fp_at(self, end: u64) -> Option<u64> {
        if self.0 & FP_SAVED == 0 {
            return None;
        }
        Some(end.wrapping_add_signed(self.bytes(FP_SHIFT, FP_BITS)))
    }

    const fn bytes(self, shift: u32, bits: u32) -> i64 {
        ((self.0 << (32 - shift - bits)) as i32 >> (32 - bits)) as i64 * WORD
    }
}

/// An offset as it is kept, if it can be.
fn field(offset: i64, bits: u32) -> Option<u32> {
    let limit = 1 << (bits - 1);
    let words = offset / WORD;
    (offset % WORD == 0 && (-limit..limit).contains(&words))
        .then_some(words as u32 & ((1 << bits) - 1))
}
