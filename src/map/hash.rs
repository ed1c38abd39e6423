// SPDX-License-Identifier: GPL-2.0

//! The hash of a stack: two frames a step, seeded per map, 64 bits wide.
//!
//! The state is two 64-bit words. A step mixes a frame into each of them and multiplies them: the
//! two halves of the 128-bit product are the next state. That is three instructions for two frames
//! on x86-64; jhash spends about thirty. The product of two words is 0 only if one of them is, that
//! is if a frame happens to equal a word which depends on the seed, so no frame that an outsider
//! chooses can wipe out what came before it. The end is the folded product of the wyhash family.
//!
//! The hash only spreads the stacks over the table: whether two stacks are the same is always
//! decided by comparing every frame.

/// The secret that a map hashes with. Two maps with different seeds place stacks independently.
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

    /// Hashes `frames`, their number included.
    #[inline(always)]
    pub fn hash(self, frames: &[u64]) -> u64 {
        let mut state = Self::halves(self.0[0] ^ frames.len() as u64, self.0[1]);
        let mut eights = frames.chunks_exact(8);
        for eight in &mut eights {
            for pair in eight.chunks_exact(2) {
                state = mix(state, pair[0], pair[1]);
            }
        }
        let mut pairs = eights.remainder().chunks_exact(2);
        for pair in &mut pairs {
            state = mix(state, pair[0], pair[1]);
        }
        if let [last] = pairs.remainder() {
            state = mix(state, *last, 0);
        }
        state as u64 ^ (state >> 64) as u64
    }

    #[inline(always)]
    const fn halves(low: u64, high: u64) -> u128 {
        (high as u128) << 64 | low as u128
    }
}

/// Mixes a frame into each half of the state and multiplies the halves.
#[inline(always)]
const fn mix(state: u128, low: u64, high: u64) -> u128 {
    let state = state ^ Seed::halves(low, high);
    (state as u64 as u128) * (state >> 64)
}
