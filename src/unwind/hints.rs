// SPDX-License-Identifier: GPL-2.0

//! Hints: what a guide tells of its frames beside their addresses.
//!
//! The hint of a frame is its rule. Where that is [`Rule::FRAME`], the walk must know the frame pointer,
//! which is where an inner frame has saved it. As long as all frames from there on have plain rules, that is
//! at a fixed distance below the stack pointer, the same for each stack with these frames. Then the hint has
//! the distance instead of an offset that is always the same, and a kind of its own. If none of them has saved
//! it, it is where the walk had it when it came to the first of them: the distance leads to below that. A function
//! that has realigned its stack needs the frame pointer, too. How far its caller is from there differs, so the walk
//! has the frame pointer again after it.

use super::rules::{Kind, Rule, KIND, OFFSET_BITS, OFFSET_SHIFT, REALIGNED, SIZE_SHIFT};

/// The kind of [`Rule::FRAME`] with a distance. No rule has all of these bits.
const SAVED: u32 = 3;

/// The kind of the rule of a realigned stack with a distance. No rule has it.
const REALIGNED_SAVED: u32 = SAVED | REALIGNED;

/// The largest distance.
const SAVED_MAX: u32 = (1 << OFFSET_BITS) - 1;

/// How far below the stack pointer after a [`Rule::FRAME`] the frame pointer was saved, in words.
pub(super) const SAVED_BY_FRAME: u32 = 2;

/// Whether there are no hints but the one that is not kept, [`Rule::FRAME`]: on arm64, where the kernel's
/// unwinder takes the same step from any address.
const NONE: bool = cfg!(CONFIG_ARM64);

/// An address in text, its lower half, and in the upper half its hint. On arm64 all of it is the address.
#[derive(Clone, Copy)]
pub struct Hinted(pub u64);

impl Hinted {
    /// Both; the hint is a rule.
    pub const fn new(ip: u64, rule: Rule) -> Self {
        match NONE {
            true => Self(ip),
            false => Self((rule.bits() as u64) << 32 | ip & 0xffff_ffff),
        }
    }

    /// The address.
    #[inline(always)]
    pub const fn ip(self) -> u64 {
        match NONE {
            true => self.0,
            false => self.0 as i32 as u64,
        }
    }

    /// Its rule; [`Rule::UNKNOWN`] if there is none.
    #[inline(always)]
    pub const fn rule(self) -> Rule {
        match (self.words(), self.bits() & KIND) {
            (0, SAVED) => Rule::FRAME,
            (0, REALIGNED_SAVED) => Rule::realigned(self.realigned_words() as u32),
            _ => Rule::from_bits(self.bits()),
        }
    }

    /// The hint.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        match NONE {
            true => Rule::FRAME.bits(),
            false => (self.0 >> 32) as u32,
        }
    }

    /// How far the stack pointer of the caller is, in words; 0 if the rule is not plain.
    #[inline(always)]
    pub const fn words(self) -> u64 {
        match NONE {
            true => 0,
            false => self.0 >> (32 + SIZE_SHIFT),
        }
    }

    /// How far below the stack pointer the frame pointer was saved, in words, at least one; [`None`] if that
    /// is not told.
    #[inline(always)]
    pub const fn saved_words(self) -> Option<u64> {
        if self.words() == 0 && self.bits() & SAVED == SAVED {
            Some((self.bits() >> OFFSET_SHIFT) as u64)
        } else {
            None
        }
    }

    /// Whether its function has realigned its stack. Of a hint with a distance.
    #[inline(always)]
    pub const fn is_realigned(self) -> bool {
        self.bits() & REALIGNED_SAVED == REALIGNED_SAVED
    }

    /// How many words below the frame pointer the stack pointer of the caller is. Of a realigned stack.
    #[inline(always)]
    pub const fn realigned_words(self) -> u64 {
        Rule::from_bits(self.bits()).realigned_words()
    }
}

/// Makes the hints of a stack, from the innermost frame on.
#[derive(Default)]
pub struct Hints {
    /// How far above the first frame's the stack pointer is, in words, or further.
    sp: u32,
    /// How far the place is where the frame pointer was saved, and one more; 0, which is below all frames, if
    /// none has saved it since the walk had it; or [`UNKNOWN`].
    saved: u32,
}

/// A frame has no rule, which may have saved the frame pointer.
const UNKNOWN: u32 = u32::MAX;

impl Hints {
    /// The hint of the next frame, which has this rule.
    #[inline(always)]
    pub fn hint(&mut self, rule: Rule) -> u32 {
        if let Some(plain) = rule.plain() {
            if let Some(offset) = plain.bp() {
                self.saved = self.sp.wrapping_add(offset as u32 / 8 + 1);
            }
            self.sp = self.sp.wrapping_add(plain.size() as u32 / 8);
            return rule.bits();
        }
        self.other(rule)
    }

    #[inline(never)]
    fn other(&mut self, rule: Rule) -> u32 {
        let is_realigned = rule.kind() == Kind::Realigned;
        if rule != Rule::FRAME && !is_realigned {
            // A walk has the frame pointer after a step that takes more than a hint.
            self.saved = if rule == Rule::UNKNOWN { UNKNOWN } else { 0 };
            return rule.bits();
        }
        let below = (self.sp + 1).wrapping_sub(self.saved);
        let is_known = self.saved != UNKNOWN && below <= SAVED_MAX;
        // Its own is right below the new stack pointer. After a realigned stack, the walk has it, and this leads to
        // below that.
        self.sp = SAVED_BY_FRAME;
        self.saved = 1;
        let kept = if is_realigned { rule.bits() } else { 0 };
        match is_known {
            true => kept | SAVED | below << OFFSET_SHIFT,
            false => rule.bits(),
        }
    }
}
