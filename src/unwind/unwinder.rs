// SPDX-License-Identifier: GPL-2.0

//! What a walk needs of the kernel, and its reads of stacks.

use super::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    rule::{PlainRule, UnwindRule},
};

/// How a frame was found: by a rule, or by the kernel's unwinder because...
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum WalkCounter {
    /// By a rule.
    Fast,
    /// The rule was not known yet, or not any more.
    New,
    /// The text can go at any time: no rule is kept.
    Text,
    /// No rule can describe this frame.
    Unsupported,
    /// It was interrupted and its rule is not known, or its frame pointer leads to registers, or the saved
    /// registers are on no known stack or lead back.
    Registers,
    /// The return address was replaced: by the function graph tracer, a kretprobe or an fprobe.
    Return,
    /// The next frame is on another stack.
    Stack,
    /// Whole stacks, not frames: from registers, or RCU was not watching.
    Whole,
}

impl WalkCounter {
    /// The number of counters.
    pub const COUNT: usize = WalkCounter::Whole as usize + 1;
}

/// The kernel functions and the table of rules that a walk uses.
pub trait Unwinder {
    /// Whether the kernel's unwinder follows frame records, see `frame_record.rs`. Then all rules are
    /// [`UnwindRule::FRAME`], and the stack of a task ends where its last frame does.
    const USES_FRAME_RECORDS: bool = false;

    /// Whether, besides, the kernel has marked the last record and registers by records of their own, as on
    /// arm64. Then the stack of a task ends where the frame pointer of its last frame leads.
    const HAS_MARKS: bool = false;

    /// Returns whether the record where a stack ends is such a mark of the last one.
    fn ends(&self, stack: &StackBounds) -> bool {
        let _ = stack;
        false
    }

    /// Reads a word of a stack.
    fn load<const OFFSET: i32>(&self, word: StackWord<OFFSET>) -> u64;

    /// Reads the word at `addr` if it is on the stack.
    #[inline(always)]
    fn word(&self, stack: &StackBounds, addr: u64) -> Option<u64> {
        // INVARIANT: So it is.
        (stack.holds_word(addr)).then(|| self.load(StackWord::<0>(addr)))
    }

    /// Returns the return address that a word of a stack has: the CPU may have signed it.
    #[inline(always)]
    fn strip_signature(&self, word: u64) -> u64 {
        word
    }

    /// Returns the rule of the call that returns to `ip`, or [`UnwindRule::UNKNOWN`]. An address with a rule is in
    /// text.
    fn rule(&self, ip: u64) -> UnwindRule;

    /// Returns the cached rule of a frame that is skipped, when `to_skip` are still to be; a replaced return address
    /// has none.
    fn skip_rule(&self, to_skip: usize, ip: u64) -> UnwindRule {
        let _ = to_skip;
        match self.is_replaced(ip) {
            true => UnwindRule::UNKNOWN,
            false => self.rule(ip),
        }
    }

    /// Caches the rule of such a frame.
    fn cache_skip_rule(&self, to_skip: usize, ip: u64, rule: UnwindRule) {
        let _ = (to_skip, ip, rule);
    }

    /// Learns the rule of the call that returns to `ip`. Returns [`UnwindRule::UNKNOWN`] if none is kept, as for
    /// an address that a tracer has put in place of return addresses.
    fn learn(&mut self, ip: u64) -> UnwindRule;

    /// Returns whether there is text at the address.
    fn is_text(&self, ip: u64) -> bool;

    /// Returns whether a tracer has put this address in place of a return address: the kernel knows which.
    fn is_replaced(&self, ip: u64) -> bool;

    /// Returns whether the registers at an address on the stack are the user's, where a walk ends.
    fn are_users(&self, stack: &StackBounds, registers: u64) -> bool;

    /// Returns the registers at an address on the stack, if they are the kernel's.
    fn registers(&self, stack: &StackBounds, registers: u64) -> Option<FrameRegisters>;

    /// Returns the stack of the task.
    fn task(&self) -> StackBounds;

    /// Steps to the caller, if there is one, by the kernel's unwinder.
    fn step(&mut self, frame: KernelFrame) -> Option<KernelFrame>;

    /// Counts frames.
    fn count(&mut self, counter: WalkCounter, nr: u64);
}

/// A word at an offset in bytes from an address.
///
/// # Invariants
///
/// Its 8 bytes are on a stack with [`StackBounds`].
pub struct StackWord<const OFFSET: i32>(u64);

impl<const OFFSET: i32> StackWord<OFFSET> {
    /// Returns the address that the offset is from.
    #[inline(always)]
    pub fn base(&self) -> u64 {
        self.0
    }

    /// Returns the address of the word.
    #[inline(always)]
    pub fn address(&self) -> u64 {
        self.0.wrapping_add_signed(OFFSET.into())
    }
}

/// Bytes of a frame record, see `frame_record.rs`.
pub(super) const RECORD: u64 = 16;

/// A stack pointer that a walk moves up.
///
/// # Invariants
///
/// `first`, `sp` and `end` are in this order, and on one stack with [`StackBounds`], of which `end` is the end.
#[derive(Clone, Copy)]
pub(super) struct StackCursor {
    first: u64,
    sp: u64,
    end: u64,
}

impl StackCursor {
    /// Returns a cursor at a stack pointer, if that is on the stack.
    #[inline(always)]
    pub(super) fn new(stack: &StackBounds, sp: u64) -> Option<Self> {
        // INVARIANT: So it is.
        stack.reaches(sp).then(|| Self {
            first: sp,
            sp,
            end: stack.end(),
        })
    }

    /// Returns a cursor at a frame, if a frame can be there.
    #[inline(always)]
    pub(super) fn at_frame(stack: &StackBounds, at: &FrameRegisters) -> Option<Self> {
        // INVARIANT: The words below the stack pointer are on the stack.
        stack.has(at).then(|| Self {
            first: at.sp,
            sp: at.sp,
            end: stack.end(),
        })
    }

    /// Returns the stack pointer.
    #[inline(always)]
    pub(super) fn sp(&self) -> u64 {
        self.sp
    }

    /// Moves to the caller of a frame of this number of words, if that is on the stack. Returns the return address.
    #[inline(always)]
    pub(super) fn call<U: Unwinder>(&mut self, unwinder: &U, size: FrameSize) -> Option<u64> {
        let sp = self.sp.wrapping_add(size.0.wrapping_mul(8));
        if sp > self.end {
            return None;
        }
        // INVARIANT: It is above the last one, and not above the end.
        self.sp = sp;
        // INVARIANT: It is at least a word above the last one, so that word is on the stack.
        Some(unwinder.load(StackWord::<-8>(sp)))
    }

    /// Moves to the caller by a plain rule, if that is on the stack. Returns the return address, and sets the frame
    /// pointer if the function has saved it.
    #[inline(always)]
    pub(super) fn plain_call<U: Unwinder>(
        &mut self,
        unwinder: &U,
        plain: PlainRule,
        bp: &mut u64,
    ) -> Option<u64> {
        let up = self.sp.wrapping_add(plain.size());
        if up > self.end {
            return None;
        }
        let sp = self.sp;
        // INVARIANT: It is above the last one, and not above the end.
        self.sp = up;
        // INVARIANT: By that of `PlainRule`, it is at least a word above the last one, and `bp` was saved between
        // them, both of which are on the stack.
        if let Some(offset) = plain.bp() {
            *bp = unwinder.load(StackWord::<0>(sp.wrapping_add(offset)));
        }
        Some(unwinder.load(StackWord::<-8>(up)))
    }

    /// Reads the word at this number of words below the stack pointer, if that is not below the first one.
    #[inline(always)]
    pub(super) fn saved<U: Unwinder>(&self, unwinder: &U, below: FrameSize) -> Option<u64> {
        let saved = self.sp.wrapping_sub(below.0.wrapping_mul(8));
        // INVARIANT: It is at least a word below the stack pointer, and not below the first one.
        (saved >= self.first).then(|| unwinder.load(StackWord::<0>(saved)))
    }

    /// Returns whether a record at `bp` is on the stack, above the stack pointer.
    #[inline(always)]
    pub(super) fn has_record(&self, bp: u64) -> bool {
        bp >= self.sp && bp <= self.end.saturating_sub(RECORD)
    }

    /// Moves to the caller of a function whose record is at `bp`, if that is on the stack, above the stack pointer.
    /// Returns the return address.
    #[inline(always)]
    pub(super) fn based_call<U: Unwinder>(&mut self, unwinder: &U, bp: u64) -> Option<u64> {
        if !self.has_record(bp) {
            return None;
        }
        // INVARIANT: Just checked.
        self.sp = bp.wrapping_add(RECORD);
        // INVARIANT: All of the record is on the stack.
        Some(unwinder.load(StackWord::<-8>(self.sp)))
    }

    /// Moves to the record at `bp`, if that is on the stack, above the stack pointer. Returns its return address and
    /// its frame pointer.
    #[inline(always)]
    pub(super) fn record<U: Unwinder>(&mut self, unwinder: &U, bp: u64) -> Option<(u64, u64)> {
        let ip = self.based_call(unwinder, bp)?;
        // INVARIANT: All of the record is on the stack.
        Some((ip, unwinder.load(StackWord::<0>(bp))))
    }

    /// Moves to the caller of a function that has realigned its stack, if that is on the stack: the new stack pointer
    /// is this number of words below the record at `bp`. The cursor cannot read below it afterwards. Returns the return
    /// address and the frame pointer.
    #[inline(always)]
    pub(super) fn realigned<U: Unwinder>(
        &mut self,
        unwinder: &U,
        bp: u64,
        words: u64,
    ) -> Option<(u64, u64)> {
        let below = words.wrapping_mul(8);
        if !self.has_record(bp) || bp.wrapping_sub(self.sp) < below {
            return None;
        }
        // INVARIANT: It is not below the stack pointer, and all of the record at `bp` is on the stack.
        let up = unwinder.load(StackWord::<0>(bp.wrapping_sub(below)));
        if up < bp.wrapping_add(8) || up > self.end {
            return None;
        }
        // INVARIANT: Just checked.
        (self.first, self.sp) = (up, up);
        // INVARIANT: It is at least a word above `bp`, and the record at `bp` is on the stack.
        let ip = unwinder.load(StackWord::<-8>(up));
        Some((ip, unwinder.load(StackWord::<0>(bp))))
    }
}

/// A number of words, at least one.
#[derive(Clone, Copy)]
pub struct FrameSize(u64);

impl FrameSize {
    /// Returns [`None`] for 0.
    #[inline(always)]
    pub const fn new(words: u64) -> Option<Self> {
        if words == 0 {
            return None;
        }
        Some(Self(words))
    }

    /// Returns the number.
    #[inline(always)]
    pub const fn get(self) -> u64 {
        self.0
    }
}
