// SPDX-License-Identifier: GPL-2.0

//! Words of slots and records: which bits mean what.
//!
//! A slot holds one word, 0 while it is empty:
//!
//! ```text
//!  63         43 42      32 31          0
//! +-------------+----------+-------------+
//! |    hash     |    nr    |   record    |
//! +-------------+----------+-------------+
//! |<---- fingerprint ----->|
//! ```
//!
//! The record's offset is never 0, so a word that names one is never 0. The fingerprint has the highest bits
//! of the hash. The lowest bits select the slot, so fingerprint and slot are independent.
//!
//! A frame of a record is a whole word, or its lower half, which says all of an address in text; then the upper
//! half has a *cached rule*, see `predict.rs`.

/// The bits of a fingerprint that are the number of frames.
const NR: u32 = (1 << 11) - 1;

/// The bits that a last frame's word may have: its cached rule has no size, so no walk goes beyond it.
pub const LAST_WORD: u64 = 0x000f_ffff_ffff_ffff;

/// Returns a word of two halves.
#[inline(always)]
pub(super) const fn halves(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Returns the higher half of a word.
#[inline(always)]
pub(super) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Returns the fingerprint of a stack: the highest bits of its hash, and its number of frames.
#[inline(always)]
pub(super) const fn fingerprint(hash: u64, nr: usize) -> u32 {
    high(hash) & !NR | nr as u32
}

/// Returns the number of frames of the stack that the word of a slot is of.
#[inline(always)]
pub(super) const fn nr_frames(slot_word: u64) -> usize {
    (high(slot_word) & NR) as usize
}

/// Returns a word without its cached rule. On arm64 a walk takes the same step from each address and needs no
/// cached rules, and kernel addresses differ in their upper half: there, the word is returned as it is.
#[inline(always)]
pub(super) const fn without_rule(word: u64) -> u64 {
    match cfg!(CONFIG_ARM64) {
        true => word,
        false => word as u32 as u64,
    }
}

/// Returns the frame of a word that may have a cached rule.
#[inline(always)]
pub(super) const fn frame_of(word: u64) -> u64 {
    match cfg!(CONFIG_ARM64) {
        true => word,
        false => word as i32 as u64,
    }
}
