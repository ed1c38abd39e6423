// SPDX-License-Identifier: GPL-2.0

//! Where the caller of a frame is on the stack, and the word that remembers it.

use super::super::walk::{Frame, Memory};

/// The frame pointer of a caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallerPointer {
    /// That of the frame.
    Unchanged,
    /// The word at this address.
    At(u64),
    /// It is not known.
    Unknown,
}

/// What was decoded of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Caller {
    /// The address of the return address.
    pub slot: u64,
    /// The caller's frame pointer.
    pub fp: CallerPointer,
    /// No return address is verified: this is the most likely one.
    pub is_guessed: bool,
}

/// The parts of a [word](Caller::word), from its lowest bit on: what is known of the frame pointer, whether the caller is
/// guessed, and, in words from the stack pointer on, where the return address is and where the frame pointer.
const POINTER: u64 = 3;
const UNCHANGED: u64 = 1;
const AT: u64 = 2;
const UNKNOWN: u64 = 3;
const GUESSED: u64 = 4;
const SLOT: u32 = 3;
const FP: u32 = 33;
const OFFSET_MAX: u64 = (1 << 30) - 1;

impl Caller {
    /// Returns the caller of a frame. [`None`]: its return address cannot be read.
    pub(super) fn frame(&self, frame: &Frame, memory: &impl Memory) -> Option<Frame> {
        Some(Frame {
            ip: memory.word(self.slot).ok()?,
            sp: self.slot.wrapping_add(8),
            // 0 is below any frame: what needs it ends the walk.
            fp: match self.fp {
                CallerPointer::Unchanged => frame.fp,
                CallerPointer::At(address) => memory.word(address).unwrap_or(0),
                CallerPointer::Unknown => 0,
            },
        })
    }

    /// Returns the caller as a word that is not 0, by offsets from the frame's stack pointer. [`None`]: they are too large,
    /// or no words.
    pub fn word(&self, frame: &Frame) -> Option<u64> {
        let words = |address: u64| {
            let offset = address.wrapping_sub(frame.sp);
            (offset % 8 == 0 && offset / 8 <= OFFSET_MAX).then_some(offset / 8)
        };
        let fp = match self.fp {
            CallerPointer::Unchanged => UNCHANGED,
            CallerPointer::At(address) => AT | words(address)? << FP,
            CallerPointer::Unknown => UNKNOWN,
        };
        let guessed = if self.is_guessed { GUESSED } else { 0 };
        Some(fp | guessed | words(self.slot)? << SLOT)
    }

    /// Returns what a [word](Self::word) says of a frame.
    pub fn of_word(word: u64, frame: &Frame) -> Self {
        let address = |shift| {
            let words = word >> shift & OFFSET_MAX;
            frame.sp.wrapping_add(8 * words)
        };
        Self {
            slot: address(SLOT),
            fp: match word & POINTER {
                UNCHANGED => CallerPointer::Unchanged,
                AT => CallerPointer::At(address(FP)),
                _ => CallerPointer::Unknown,
            },
            is_guessed: word & GUESSED != 0,
        }
    }
}
