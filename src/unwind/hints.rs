// SPDX-License-Identifier: GPL-2.0

//! Hints: what a guide tells of its frames beside their addresses.
//!
//! The hint of a frame is its rule. Where that is [`Rule::FRAME`], the walk must know the frame pointer,
//! which is where an inner frame has saved it. As long as all frames from there on have plain rules, that is
//! at a fixed distance below the stack pointer, the same for each stack with these frames. Then the hint has
//! the distance instead of an offset that is always the same, and a kind of its own.

use super::rules::{Rule, KIND, OFFSET_BITS, OFFSET_SHIFT, SIZE_SHIFT};

/// The kind of [`Rule::FRAME`] with a distance. No rule has it.
const SAVED: u32 = 3;

/// The largest distance.
const SAVED_MAX: u32 = (1 << OFFSET_BITS) - 1;

/// How far below the stack pointer behind a [`Rule::FRAME`] the frame pointer was saved, in words.
pub(super) const SAVED_BY_FRAME: u32 = 2;

/// An address in text, its lower half, and in the upper half its hint.
#[derive(Clone, Copy)]
pub struct Hinted(pub u64);

impl Hinted {
    /// Both; the hint is a rule.
    pub const fn new(ip: u64, rule: Rule) -> Self {
        Self((rule.bits() as u64) << 32 | ip & 0xffff_ffff)
    }

    /// The address.
    #[inline(always)]
    pub const fn ip(self) -> u64 {
        self.0 as i32 as u64
    }

    /// Its rule; [`Rule::UNKNOWN`] if there is none.
    #[inline(always)]
    pub const fn rule(self) -> Rule {
        match self.saved() {
            Some(_) => Rule::FRAME,
            None => Rule::from_bits(self.bits()),
        }
    }

    /// The hint.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// How far the stack pointer of the caller is, in words; 0 if the rule is not plain.
    #[inline(always)]
    pub const fn size(self) -> u64 {
        self.0 >> (32 + SIZE_SHIFT)
    }

    /// How far below the stack pointer the frame pointer was saved, in words, at least one; [`None`] if that
    /// is not told.
    #[inline(always)]
    pub const fn saved(self) -> Option<u64> {
        if self.size() == 0 && self.bits() & KIND == SAVED {
            Some((self.bits() >> OFFSET_SHIFT) as u64)
        } else {
            None
        }
    }
}

/// Makes the hints of a stack, from the innermost frame on.
#[derive(Default)]
pub struct Hints {
    /// How far below the stack pointer the frame pointer was saved, in words, if that is known.
    saved: Option<u32>,
}

impl Hints {
    /// The hint of the next frame, which has this rule.
    #[inline(always)]
    pub fn hint(&mut self, rule: Rule) -> u32 {
        let saved = self.saved.take();
        if let Some(plain) = rule.plain() {
            let words = |bytes: u64| bytes as u32 / 8;
            let size = words(plain.size());
            self.saved = match plain.bp() {
                Some(offset) => Some(size - words(offset)),
                None => saved.map(|below| below + size),
            };
        } else if rule == Rule::FRAME {
            self.saved = Some(SAVED_BY_FRAME);
            if let Some(below) = saved.filter(|below| *below <= SAVED_MAX) {
                return SAVED | below << OFFSET_SHIFT;
            }
        }
        rule.bits()
    }
}
