// SPDX-License-Identifier: GPL-2.0

//! A frame's word: its address and its cached rule.
//!
//! The cached rule of a frame is its rule. Where that is [`UnwindRule::FRAME`], the walk must know the frame pointer,
//! which is where an inner frame has saved it. As long as all frames from there on have plain rules, that is
//! at a fixed distance below the stack pointer, the same for each stack with these frames. Then the cached rule has
//! the distance instead of an offset that is always the same, and a kind of its own. If none of them has saved
//! it, it is where the walk had it at the first of them: the distance leads to below that. A function
//! that has realigned its stack needs the frame pointer, too. How far its caller is from there differs, so the walk
//! has the frame pointer again after it.

use super::{
    rule::{RuleKind, UnwindRule, KIND, OFFSET_BITS, OFFSET_SHIFT, REALIGNED, SIZE_SHIFT},
    unwinder::FrameSize,
};

/// The kind of [`UnwindRule::FRAME`] with a distance. No rule has all of these bits.
const SAVED: u32 = 3;

/// The kind of the rule of a realigned stack with a distance. No rule has it.
const REALIGNED_SAVED: u32 = SAVED | REALIGNED;

/// The largest distance.
const SAVED_MAX: u32 = (1 << OFFSET_BITS) - 1;

/// How far below the stack pointer after a [`UnwindRule::FRAME`] the frame pointer was saved, in words.
pub(super) const SAVED_BY_FRAME: u32 = 2;

/// Whether no rule is cached: on arm64, where all rules are [`UnwindRule::FRAME`], as the kernel's unwinder takes the
/// same step from any address.
const UNCACHED: bool = cfg!(CONFIG_ARM64);

/// An address in text, its lower half, in the lower half of a word, and its cached rule in the upper half. On arm64
/// the word is the address.
#[derive(Clone, Copy)]
pub struct FrameWord(pub u64);

impl FrameWord {
    /// Makes the word of an address and its rule.
    pub const fn new(ip: u64, rule: UnwindRule) -> Self {
        match UNCACHED {
            true => Self(ip),
            false => Self((rule.bits() as u64) << 32 | ip & 0xffff_ffff),
        }
    }

    /// Returns the address.
    pub const fn ip(self) -> u64 {
        match UNCACHED {
            true => self.0,
            false => self.0 as i32 as u64,
        }
    }

    /// Returns the rule, or [`UnwindRule::UNKNOWN`] if none is cached.
    pub const fn rule(self) -> UnwindRule {
        match (self.words(), self.bits() & KIND) {
            (0, SAVED) => UnwindRule::FRAME,
            (0, REALIGNED_SAVED) => UnwindRule::realigned(self.realigned_words() as u32),
            _ => UnwindRule::from_bits(self.bits()),
        }
    }

    /// Returns the bits of the cached rule.
    pub const fn bits(self) -> u32 {
        match UNCACHED {
            true => UnwindRule::FRAME.bits(),
            false => (self.0 >> 32) as u32,
        }
    }

    /// Returns how far the stack pointer of the caller is, in words; 0 if the rule is not plain.
    pub const fn words(self) -> u64 {
        match UNCACHED {
            true => 0,
            false => self.0 >> (32 + SIZE_SHIFT),
        }
    }

    /// Returns the same if the rule is plain.
    pub const fn size(self) -> Option<FrameSize> {
        FrameSize::new(self.words())
    }

    /// Returns how far below the stack pointer the frame pointer was saved, in words, or [`None`] if that is not
    /// cached.
    pub const fn saved_words(self) -> Option<FrameSize> {
        if self.words() == 0 && self.bits() & SAVED == SAVED {
            FrameSize::new((self.bits() >> OFFSET_SHIFT) as u64)
        } else {
            None
        }
    }

    /// Returns whether its function has realigned its stack. Of a cached rule with a distance.
    pub const fn is_realigned(self) -> bool {
        self.bits() & REALIGNED_SAVED == REALIGNED_SAVED
    }

    /// Returns how many words below the frame pointer the stack pointer of the caller is. Of a realigned stack.
    pub const fn realigned_words(self) -> u64 {
        UnwindRule::from_bits(self.bits()).realigned_words()
    }
}

/// Encodes the rules that are cached with the frames of a stack, from the innermost frame on.
#[derive(Default)]
pub struct RuleEncoder {
    /// How far the stack pointer is above that of the first frame, in words, or further.
    sp: u32,
    /// One more than how far the word is above it that the frame pointer was saved in; 0, which is below all frames,
    /// if none has saved it since the walk had it; or [`UNKNOWN`].
    saved: u32,
}

/// A frame without a rule may have saved the frame pointer.
const UNKNOWN: u32 = u32::MAX;

impl RuleEncoder {
    /// Encodes the rule of the next frame.
    pub fn encode(&mut self, rule: UnwindRule) -> u32 {
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
    fn other(&mut self, rule: UnwindRule) -> u32 {
        let is_realigned = rule.kind() == RuleKind::Realigned;
        if rule != UnwindRule::FRAME && !is_realigned {
            // A walk knows the frame pointer after a step that takes more than a cached rule.
            self.saved = match rule {
                UnwindRule::UNKNOWN => UNKNOWN,
                _ => 0,
            };
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
