// SPDX-License-Identifier: GPL-2.0

//! What the module seeds its hashes with, here the same each time.

/// Returns words.
pub(crate) fn random<const N: usize>() -> [u64; N] {
    [1; N]
}
