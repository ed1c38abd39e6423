// SPDX-License-Identifier: GPL-2.0

//! The rule of one call in a file: how its frame is left, in 29 bits.
//!
//! ```text
//!  28        20 19            3 2    0
//! +------------+---------------+------+
//! | fp offset  | frame offset  | kind |
//! +------------+---------------+------+
//! ```
//!
//! Offsets are in words. The frame pointer's has a sign and is from the frame's end; 0: it is in its register; -256: it is
//! where the frame pointer points. Most frame offsets are positive: 1,024 is added to them, so that frames of up to
//! a megabyte have rules.

/// How a frame is left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule(u32);

/// What a rule says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RuleKind {
    /// The return address is the last word of the frame.
    Call,
    /// The same, and the frame's end is a distance from an address in memory: code that aligns its stack.
    Aligned,
    /// There is no caller.
    Outermost,
    /// A signal frame: the registers are in it.
    Signal,
    /// No call frame information describes the code.
    Unknown,
    /// It does, but no rule can say the same.
    Inexpressible,
    /// The file says how the caller's registers are computed.
    Computed,
    /// The frame ends at an offset from this register, which is tracked through the callees.
    Tracked(u64),
    /// A function that enters a handler of an exception. The file says where its frame ends.
    Handler,
    /// Undescribed code where a program begins.
    Start,
    /// Undescribed code of a compiler that keeps frame pointers, in memory or in a file.
    Generated,
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
    /// Where the frame pointer points: how far that is from the frame's end depends on how the stack was aligned.
    AtFp,
}

/// Bits of a rule.
pub const BITS: u32 = 29;

const KIND: u32 = 7;
/// Set in the kinds whose base is the frame pointer.
const BY_FP: u32 = 1;
const UNKNOWN: u32 = 1;
const CALL: u32 = 2;
const ALIGNED: u32 = 4;
const OUTERMOST: u32 = 6;
const SIGNAL: u32 = 7;
const OFFSET_SHIFT: u32 = 3;
/// Set with the number of a register that is tracked.
const TRACKED: u32 = 1 << 8;
const OFFSET_BITS: u32 = 17;
const OFFSET_BIAS: i64 = 1024;
const OFFSET: u32 = ((1 << OFFSET_BITS) - 1) << OFFSET_SHIFT;
/// The offset of an aligned frame has fewer bits: the upper ones are the distance, in words, of the frame's end from the
/// address that the memory there holds.
const BY_SHIFT: u32 = OFFSET_SHIFT + 11;
const SHORT: u32 = ((1 << BY_SHIFT) - 1) & OFFSET;
const FP_SHIFT: u32 = OFFSET_SHIFT + OFFSET_BITS;
const FP_BITS: u32 = BITS - FP_SHIFT;
/// The offset of a frame pointer that is where the frame pointer points.
const AT_FP: u32 = 1 << (FP_BITS - 1);
const WORD: i64 = 8;

impl Rule {
    /// The walk is complete.
    pub const OUTERMOST: Self = Self(OUTERMOST);
    /// A signal frame.
    pub const SIGNAL: Self = Self(SIGNAL);
    /// Code that no call frame information describes.
    pub const UNKNOWN: Self = Self(UNKNOWN);
    /// Call frame information that no rule can express.
    pub const INEXPRESSIBLE: Self = Self(UNKNOWN | 1 << OFFSET_SHIFT);
    /// Undescribed code where a program begins.
    pub const START: Self = Self(UNKNOWN | 2 << OFFSET_SHIFT);
    /// Undescribed code of a compiler that keeps frame pointers.
    pub const GENERATED: Self = Self(UNKNOWN | 3 << OFFSET_SHIFT);
    /// A function that enters a handler of an exception: its frame ends at an offset from the frame pointer.
    pub const HANDLER: Self = Self(UNKNOWN | 4 << OFFSET_SHIFT);
    /// A frame whose file says how the caller's registers are computed.
    pub const COMPUTED: Self = Self(UNKNOWN | 5 << OFFSET_SHIFT);

    /// Returns the rule of a frame whose base is another register than stack and frame pointer.
    pub const fn tracked(register: u64) -> Self {
        Self(UNKNOWN | (TRACKED | register as u32) << OFFSET_SHIFT)
    }

    /// Returns the rule of a call whose frame ends at an offset from a base, in bytes. [`None`]: an offset is
    /// too large, or is no multiple of a word; or the frame pointer would be where the frame ends, or where it
    /// points.
    pub fn call(base: Base, offset: i64, saved: Saved) -> Option<Self> {
        Self::made(CALL, base, offset, saved).filter(|_| saved != Saved::AtFp)
    }

    /// Returns the rule of a call whose frame ends at an offset, in bytes, from the register that is tracked, which
    /// [`end`](Self::end) gets instead of the frame pointer.
    pub fn tracked_call(offset: i64, saved: Saved) -> Option<Self> {
        Self::made(CALL, Base::Fp, offset, saved)
    }

    /// Returns the rule of a frame that ends `by` bytes above the address that the memory at an offset from a base holds.
    pub fn aligned(base: Base, offset: i64, by: i64, saved: Saved) -> Option<Self> {
        let by = u32::try_from(words(by)?).ok()?;
        let Self(bits) = Self::made(ALIGNED, base, offset, saved)?;
        let is_short = bits & OFFSET & !SHORT == 0 && by <= (OFFSET & !SHORT) >> BY_SHIFT;
        is_short.then_some(Self(bits | by << BY_SHIFT))
    }

    fn made(kind: u32, base: Base, offset: i64, saved: Saved) -> Option<Self> {
        let base = match base {
            Base::Sp => 0,
            Base::Fp => BY_FP,
        };
        let fp = match saved {
            Saved::No => 0,
            Saved::At(0) => return None,
            Saved::AtFp => AT_FP << FP_SHIFT,
            Saved::At(offset) => signed(offset)? << FP_SHIFT,
        };
        let offset = u32::try_from(words(offset)? + OFFSET_BIAS).ok()?;
        if offset >> OFFSET_BITS != 0 {
            return None;
        }
        Some(Self(kind | base | fp | offset << OFFSET_SHIFT))
    }

    /// Returns the rule of these bits. [`None`]: no rule has them.
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits & KIND {
            0 => None,
            _ => Some(Self(bits)),
        }
    }

    /// Returns the bits of the rule, of which the upper three are 0, and some others are not.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the kind of the rule.
    #[inline(always)]
    pub const fn kind(self) -> RuleKind {
        if self.0 & (KIND & !BY_FP) == CALL {
            return RuleKind::Call;
        }
        match self.0 & KIND {
            OUTERMOST => RuleKind::Outermost,
            SIGNAL => RuleKind::Signal,
            UNKNOWN => match self {
                Self::INEXPRESSIBLE => RuleKind::Inexpressible,
                Self::START => RuleKind::Start,
                Self::GENERATED => RuleKind::Generated,
                Self::HANDLER => RuleKind::Handler,
                Self::COMPUTED => RuleKind::Computed,
                Self(bits) if bits >> OFFSET_SHIFT & TRACKED != 0 => {
                    RuleKind::Tracked((bits >> OFFSET_SHIFT & !TRACKED) as u64)
                }
                _ => RuleKind::Unknown,
            },
            _ => RuleKind::Aligned,
        }
    }

    /// Returns whether the rule is a call's, and its frame ends at an offset from the stack pointer.
    #[inline(always)]
    pub const fn is_plain(self) -> bool {
        self.0 & KIND == CALL
    }

    /// Returns where the memory is from which an aligned frame's end is computed, and the bytes that are added.
    pub const fn kept(self, sp: u64, fp: u64) -> (u64, u64) {
        let by = (self.0 & OFFSET & !SHORT) >> BY_SHIFT;
        (
            Self(self.0 & (SHORT | KIND)).end(sp, fp),
            by as u64 * WORD as u64,
        )
    }

    /// Returns where the frame of a call ends, the caller's stack pointer.
    #[inline(always)]
    pub const fn end(self, sp: u64, fp: u64) -> u64 {
        let base = if self.0 & BY_FP != 0 { fp } else { sp };
        let words = (self.0 >> OFFSET_SHIFT & ((1 << OFFSET_BITS) - 1)) as i64;
        base.wrapping_add_signed((words - OFFSET_BIAS) * WORD)
    }

    /// Returns the rule without where the caller's frame pointer is, if that is where the frame pointer points.
    pub const fn without_at_fp(self) -> Option<Self> {
        match self.0 >> FP_SHIFT {
            AT_FP => Some(Self(self.0 & ((1 << FP_SHIFT) - 1))),
            _ => None,
        }
    }

    /// Returns where the caller's frame pointer is, given the end of the frame; [`None`]: in its register.
    #[inline(always)]
    pub const fn fp_at(self, end: u64) -> Option<u64> {
        if self.0 >> FP_SHIFT == 0 {
            return None;
        }
        let words = (self.0 << (32 - BITS)) as i32 >> (32 - FP_BITS);
        Some(end.wrapping_add_signed(words as i64 * WORD))
    }
}

/// Returns an offset in bytes as one in words, if it is a multiple of a word.
fn words(offset: i64) -> Option<i64> {
    (offset % WORD == 0).then_some(offset / WORD)
}

/// Returns the offset of a frame pointer as the rule has it, if it fits.
fn signed(offset: i64) -> Option<u32> {
    let limit = 1 << (FP_BITS - 1);
    let words = words(offset)?;
    (1 - limit..limit)
        .contains(&words)
        .then_some(words as u32 & ((1 << FP_BITS) - 1))
}
