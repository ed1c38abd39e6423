// SPDX-License-Identifier: GPL-2.0

//! A frame of a walk: its registers, and the bounds of the stack that it is on.

/// The memory of a stack.
///
/// # Invariants
///
/// The `size` bytes from `begin` on may be read with [`Unwinder::load`](super::unwinder::Unwinder::load), as long as
/// the walk lasts. `words` is how many of them begin a word.
#[derive(Clone, Copy, Debug)]
pub struct StackBounds {
    begin: u64,
    size: u64,
    words: u64,
}

impl StackBounds {
    /// Makes the bounds of the stack from `begin` to `end`.
    ///
    /// # Safety
    ///
    /// The memory in between, if there is any, may be read as the invariant says.
    pub unsafe fn new(begin: u64, end: u64) -> Self {
        let size = end.saturating_sub(begin);
        // INVARIANT: As required of the caller; the last 7 bytes begin no word.
        Self {
            begin,
            size,
            words: size.saturating_sub(7),
        }
    }

    /// Makes the bounds of a stack of `size` bytes.
    ///
    /// # Safety
    ///
    /// As for [`StackBounds::new`].
    pub unsafe fn with_size(begin: u64, size: u64) -> Self {
        // INVARIANT: As required of the caller; the last 7 bytes begin no word.
        Self {
            begin,
            size,
            words: size.saturating_sub(7),
        }
    }

    /// Returns the lowest address.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Returns the first address after the stack.
    pub fn end(&self) -> u64 {
        self.begin.wrapping_add(self.size)
    }

    /// Returns whether this can be a stack pointer of this stack, from its beginning to its end, both included.
    pub fn reaches(&self, sp: u64) -> bool {
        sp.wrapping_sub(self.begin) <= self.size
    }

    /// Returns whether `len` bytes at `addr` are on it; `len` is not 0.
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        addr.wrapping_sub(self.begin) < self.size.saturating_sub(len.wrapping_sub(1))
    }

    /// Returns whether the word at `addr` is on it.
    pub fn holds_word(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.begin) < self.words
    }

    /// Returns whether a frame can be at these registers: its return address and the word below are on the stack.
    pub fn has(&self, at: &FrameRegisters) -> bool {
        self.holds(at.sp.wrapping_sub(16), 16)
    }
}

/// A frame: where its function goes on, and the stack that it is on.
#[derive(Clone, Copy, Debug)]
pub struct KernelFrame {
    /// The registers that a rule steps from.
    pub at: FrameRegisters,
    /// The stack that it is on.
    pub stack: StackBounds,
    /// Whether it was interrupted, or is where an interrupt goes on: `ip` is no return address.
    pub interrupted: bool,
    /// Where its registers are, if it was interrupted and the walk itself has found them; or 0.
    pub registers: u64,
}

impl KernelFrame {
    /// Returns the address whose rule leads to the caller, or [`None`] if no rule can. The rule of a call is that of
    /// its last byte, so where a function was interrupted is where a call of one byte would have returned to, less
    /// that byte.
    pub(super) fn rule_address(&self) -> Option<u64> {
        match self.interrupted {
            false => Some(self.at.ip),
            true if self.registers != 0 => Some(self.at.ip.wrapping_add(1)),
            true => None,
        }
    }
}

/// The registers of a frame that a rule knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FrameRegisters {
    /// The return address; or where it was interrupted.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, whatever it is used for.
    pub bp: u64,
}
