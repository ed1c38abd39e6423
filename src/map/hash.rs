// SPDX-License-Identifier: GPL-2.0

//! The hash of a stack: two frames a step, seeded per map, 64 bits wide.
//!
//! A step is that of the wyhash family: one frame is mixed with the seed, the other with the state,
//! and the two halves of their 128-bit product, folded together, are the next state. That is five
//! instructions for two frames on x86-64; jhash spends about thirty. Each product needs the one before
//! it, so two chains of them, each with every second pair of frames, take half the time of one; a last
//! step joins them. A product is 0 only if a factor is, that is if a frame happens to equal a word which
//! depends on the seed, so no frame that an outsider chooses can cancel the frames before it.
//!
//! The hash only spreads the stacks over the table: whether two stacks are the same is always
//! decided by comparing every frame.

/// The secret that a map hashes with. With different seeds, slots are independent.
#[derive(Clone, Copy)]
pub struct Seed([u64; 2]);

impl Seed {
    /// Makes a seed of two words, which should be random.
    pub const fn new(words: [u64; 2]) -> Self {
        // The constants (the fractions of the square roots of 2 and 3) keep an all-zero seed from
        // cancelling the multiplication.
        Self([
            words[0] ^ 0x6a09_e667_f3bc_c908,
            words[1] ^ 0xbb67_ae85_84ca_a73b,
        ])
    }

    /// Returns a number below `bound`, derived from the seed; it discloses little of the seed.
    pub fn draw(self, bound: u32) -> u32 {
        // The hash of a stack of one frame; the highest half of the product is below `bound`.
        let hash = self.hash(&[0x3c6e_f372_fe94_f82b]) >> 32;
        ((hash * u64::from(bound)) >> 32) as u32
    }

    /// Hashes `frames`, their number included.
    #[inline(always)]
    pub fn hash(self, frames: &[u64]) -> u64 {
        let [first, second] = self.0;
        let step = |state, one, other| fold(one ^ second, other ^ state);
        // They begin differently, so that swapped pairs change the hash.
        let [mut even, mut odd] = [first ^ frames.len() as u64, first];
        let mut eights = frames.chunks_exact(8);
        for eight in &mut eights {
            even = step(even, eight[0], eight[1]);
            odd = step(odd, eight[2], eight[3]);
            even = step(even, eight[4], eight[5]);
            odd = step(odd, eight[6], eight[7]);
        }
        let mut pairs = eights.remainder().chunks_exact(2);
        for pair in &mut pairs {
            (even, odd) = (odd, step(even, pair[0], pair[1]));
        }
        if let [last] = pairs.remainder() {
            even = step(even, *last, 0);
        }
        step(odd, even, 0)
    }
}

/// Multiplies, and returns the exclusive or of both halves of the product.
#[inline(always)]
const fn fold(one: u64, other: u64) -> u64 {
    let product = one as u128 * other as u128;
    product as u64 ^ (product >> 64) as u64
}
