// SPDX-License-Identifier: GPL-2.0

//! Frames of a user stack, and the memory and the code that a walk reads.

use super::{
    cfi::{Machine, Tracked},
    encoded::End,
    rule::Rule,
};

/// Where a task left user space.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registers {
    /// The instruction that comes next.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// Bytes of a word: 4 or 8.
    pub word: u32,
}

/// Why a word cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreadable {
    /// Nothing is mapped there.
    Unmapped,
    /// It cannot be waited for.
    Absent,
    /// The address space is being changed.
    Busy,
}

/// The memory of a process.
pub trait Memory {
    /// Returns the word at an address.
    fn word(&self, address: u64) -> Result<u64, Unreadable>;

    /// Returns the word at an address, of code or of a pointer by which code calls: the stack is readable without it, as it
    /// may be in the page cache.
    fn code(&self, address: u64) -> Result<u64, Unreadable> {
        self.word(address)
    }

    /// Notes that code could be read neither here nor elsewhere: the stack may have more frames.
    fn miss(&self) {}

    /// Returns a return address without the signature that the program may have added to it.
    fn without_signature(&self, address: u64) -> u64 {
        address
    }
}

/// A frame of a user stack.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Where it goes on.
    pub ip: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer.
    pub fp: u64,
}

impl Frame {
    /// The stack pointer of a frame that a record was guessed to lead to: no stack is there.
    pub const LOST: u64 = !7;

    /// Returns whether the stack pointer is not known.
    #[inline(always)]
    pub(super) const fn is_lost(&self, machine: &Machine) -> bool {
        machine.has_link() && self.sp == Self::LOST
    }

    /// Returns the address of its instruction. Only a frame that was `interrupted` goes on there: a call may be the last
    /// instruction of its function.
    #[inline(always)]
    pub(super) const fn address(&self, interrupted: bool) -> u64 {
        self.ip.wrapping_sub(!interrupted as u64)
    }

    /// Returns the caller by the frame pointer, or `None` if it leads down the stack or is not aligned.
    pub(super) fn caller(
        &self,
        word: u64,
        memory: &impl Memory,
    ) -> Result<Option<Self>, Unreadable> {
        let ip_at = self.fp.wrapping_add(word);
        let sp = ip_at.wrapping_add(word);
        let aligned = sp & word.wrapping_sub(1) == 0;
        if self.fp < self.sp || sp < self.fp || !aligned {
            return Ok(None);
        }
        Ok(Some(Self {
            ip: memory.word(ip_at)?,
            fp: memory.word(self.fp)?,
            sp,
        }))
    }
}

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

    /// Returns the same caller. Where `other` has another frame pointer, it is unknown.
    pub(super) fn with_fp_of(self, other: Self) -> Self {
        let fp = match (self.fp, other.fp) {
            (CallerPointer::Unknown, fp) => fp,
            (fp, other) if fp == other => fp,
            _ => CallerPointer::Unknown,
        };
        Self { fp, ..self }
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

/// The code of a process.
pub trait Code {
    /// Returns the number of frames that are kept.
    fn frames(&self) -> usize;

    /// Keeps a frame that goes on at a return address, and its callers, as long as they are plain calls in the mapping of
    /// the last frame. Returns the first frame that is not; it is not kept.
    fn follow(&mut self, _machine: &Machine, _memory: &impl Memory, frame: Frame) -> Frame {
        frame
    }

    /// Keeps the next frame, which goes on at `ip`, and returns the rule of its instruction, which is at `address`. A
    /// frame that was not `interrupted` is kept only if it is in executable memory. `Err`: how the stack ends.
    fn frame(&mut self, ip: u64, address: u64, interrupted: bool) -> Result<Rule, End>;

    /// Returns the rule of code at an address, or `None` if it is not known or no code.
    fn rule(&mut self, address: u64) -> Option<Rule>;

    /// Returns the frame that uprobes have replaced: where the program goes on, or whose return address is at `slot` on the
    /// stack. [`None`]: they have not, or it is not known.
    fn original(&mut self, _frame: &Frame, _slot: Option<u64>) -> Option<Frame> {
        None
    }

    /// Returns the value of a general register where the task left user space.
    fn register(&self, register: u64) -> u64;

    /// Returns what the file of an address says of a register there, or `None` if it cannot be read now.
    fn track(&mut self, address: u64, register: u64) -> Option<Tracked>;

    /// Returns the stack pointer that the program began with.
    fn stack(&self) -> u64;

    /// Returns the eight bytes before an address. [`None`]: they cannot be read.
    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]>;

    /// Returns whether an address whose bytes cannot be read is in executable memory.
    fn is_code(&mut self, _address: u64) -> bool {
        false
    }

    /// Returns the instruction of x86-64 at an address, and the bytes after it, with its length. [`None`]: it cannot be
    /// read or decoded.
    fn instruction(&mut self, address: u64) -> Option<([u8; 16], usize)>;

    /// Returns whether the code of the last frame may not be that of its file.
    fn changes(&self) -> bool {
        false
    }

    /// Marks the frames that are kept from now on as guessed.
    fn guess(&mut self);

    /// Returns what is [remembered](Self::set_decoded) of a frame, which was `interrupted` or not. [`None`]: nothing.
    fn decoded(&mut self, _frame: &Frame, _interrupted: bool) -> Option<Option<Caller>> {
        None
    }

    /// Remembers where the caller of a frame is, or, with [`None`], that it was not decoded.
    fn set_decoded(&mut self, _frame: &Frame, _interrupted: bool, _caller: Option<Caller>) {}
}
