// SPDX-License-Identifier: GPL-2.0

//! The walk: from return address to return address, by rules.
//!
//! Where a rule is known, a step is a few loads from the stack. Where none is, where the return address was
//! replaced, or where a rule leads to no stack that the walk knows, the kernel's unwinder takes that one
//! step, and the walk goes on from there. The kernel is behind [`Unwinder`], so that the host tests the walk
//! on stacks that are made up.

use super::{
    guided::leave_out,
    rules::{Kind, Rule},
    step::{based_call, kind},
};
use core::mem::MaybeUninit;

/// How a frame was found: by a rule, or by the kernel's unwinder because...
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(usize)]
pub enum WalkCounter {
    /// By a rule.
    Fast,
    /// The rule was not known yet, or not any more.
    New,
    /// The text may go at any time: no rule is kept.
    Text,
    /// There is no rule for what is there.
    Odd,
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

/// The memory of a stack.
///
/// # Invariants
///
/// Its `size` bytes from `begin` on may be read with [`Unwinder::load`], as long as the walk lasts.
/// A word begins at so many of them: `words`.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    begin: u64,
    size: u64,
    words: u64,
}

impl Stack {
    /// The stack from `begin` to `end`.
    ///
    /// # Safety
    ///
    /// The memory in between, if there is any, may be read with [`Unwinder::load`], as long as the
    /// walk lasts.
    pub unsafe fn new(begin: u64, end: u64) -> Self {
        // SAFETY: As required of the caller.
        unsafe { Self::with_size(begin, end.saturating_sub(begin)) }
    }

    /// A stack of so many bytes.
    ///
    /// # Safety
    ///
    /// As for [`Stack::new`].
    #[inline(always)]
    pub unsafe fn with_size(begin: u64, size: u64) -> Self {
        // INVARIANT: As required of the caller; the last 7 bytes begin no word.
        Self {
            begin,
            size,
            words: size.saturating_sub(7),
        }
    }

    /// Where it begins, the lowest address.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Where it ends, the first address after it.
    pub fn end(&self) -> u64 {
        self.begin.wrapping_add(self.size)
    }

    /// Whether this can be a stack pointer of this stack, from its beginning to its end, both included.
    #[inline(always)]
    pub fn reaches(&self, sp: u64) -> bool {
        sp.wrapping_sub(self.begin) <= self.size
    }

    /// Whether `len` bytes at `addr` are on it; `len` is not 0.
    #[inline(always)]
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        addr.wrapping_sub(self.begin) < self.size.saturating_sub(len.wrapping_sub(1))
    }

    /// Whether a frame can be at these registers: its return address and a word below that are on the stack.
    #[inline(always)]
    pub fn has(&self, at: &Registers) -> bool {
        self.holds(at.sp.wrapping_sub(16), 16)
    }

    /// The word at `addr`, if it is on the stack.
    #[inline(always)]
    pub fn word<U: Unwinder>(&self, unwinder: &U, addr: u64) -> Option<u64> {
        if addr.wrapping_sub(self.begin) >= self.words {
            return None;
        }
        // SAFETY: By the invariant, all words of the stack may be read.
        Some(unsafe { unwinder.load(addr) })
    }
}

/// A frame: where its function goes on, and the stack that it is on.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// What a rule steps from.
    pub at: Registers,
    /// The stack that it is on.
    pub stack: Stack,
    /// Whether it was interrupted, or is where an interrupt goes on: `ip` is no return address.
    pub interrupted: bool,
    /// Where its registers are, if it was interrupted and the walk itself has found them; or 0.
    pub registers: u64,
}

/// The registers of a frame that a rule knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registers {
    /// The return address; or where it was interrupted.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, whatever it is used for.
    pub bp: u64,
}

/// The kernel functions and the table of rules that a walk uses.
pub trait Unwinder {
    /// Whether the kernel's unwinder follows frame records, see `frames.rs`. Then all rules are
    /// [`Rule::FRAME`], and the stack of a task ends where its last frame does.
    const BY_FRAMES: bool = false;

    /// Whether, besides, the kernel has marked the last record and registers by records of their own, as on
    /// arm64. Then the stack of a task ends where the frame pointer of its last frame leads.
    const HAS_MARKS: bool = false;

    /// Whether the record where a stack ends is such a mark of the last one.
    fn ends(&self, stack: &Stack) -> bool {
        let _ = stack;
        false
    }

    /// Reads a word of a stack.
    ///
    /// # Safety
    ///
    /// The 8 bytes from `addr` on are on a [`Stack`].
    unsafe fn load(&self, addr: u64) -> u64;

    /// Reads the word below an address.
    ///
    /// # Safety
    ///
    /// The 8 bytes up to `addr` are on a [`Stack`].
    unsafe fn load_below(&self, addr: u64) -> u64 {
        // SAFETY: As required of the caller.
        unsafe { self.load(addr.wrapping_sub(8)) }
    }

    /// The return address that a word of a stack has: the CPU may have signed it.
    #[inline(always)]
    fn returns_to(&self, word: u64) -> u64 {
        word
    }

    /// The rule of the call that returns to `ip`; [`Rule::UNKNOWN`] if there is none. Where there
    /// is a rule there is text.
    fn rule(&self, ip: u64) -> Rule;

    /// The rule noted for a frame that is left out, when so many are still to be; a replaced return address has
    /// none.
    fn noted(&self, left: usize, ip: u64) -> Rule {
        let _ = left;
        match self.is_replaced(ip) {
            true => Rule::UNKNOWN,
            false => self.rule(ip),
        }
    }

    /// Notes the rule of such a frame.
    fn note(&self, left: usize, ip: u64, rule: Rule) {
        let _ = (left, ip, rule);
    }

    /// The rule of the call that returns to `ip`, learnt now; [`Rule::UNKNOWN`] if none is kept, as of what a
    /// tracer has put in place of return addresses.
    fn learn(&mut self, ip: u64) -> Rule;

    /// Whether there is text at the address.
    fn is_text(&self, ip: u64) -> bool;

    /// Whether a tracer has put this address where a return address was: the kernel knows which.
    fn is_replaced(&self, ip: u64) -> bool;

    /// Whether the registers at an address on the stack are the user's, where a walk ends.
    fn are_users(&self, stack: &Stack, registers: u64) -> bool;

    /// The registers at an address on the stack, if they are the kernel's.
    fn registers(&self, stack: &Stack, registers: u64) -> Option<Registers>;

    /// The stack of the task.
    fn task(&self) -> Stack;

    /// Has the kernel's unwinder make the step to the caller, if there is one.
    fn step(&mut self, frame: Frame) -> Option<Frame>;

    /// Counts frames.
    fn count(&mut self, found: WalkCounter, nr: u64);
}

/// Finds return addresses, from that of `frame` on, the innermost first, and as the kernel's
/// unwinder finds them. The first `skip` of them are left out. They are written to `ips`, after the
/// first `nr`: none or one. Returns the number of those that are written then.
///
/// Context: that of the [`Unwinder`].
#[inline(never)]
#[cfg_attr(MODULE, link_section = ".kprobes.text")]
pub fn walk<U: Unwinder>(
    unwinder: &mut U,
    mut frame: Frame,
    mut skip: usize,
    ips: &mut [MaybeUninit<u64>],
    mut nr: usize,
) -> usize {
    if !frame.interrupted {
        skip = leave_out(unwinder, &mut frame, skip);
    }
    let mut fast = 0_u64;
    loop {
        // Nearly all frames are calls whose rules are known, and none is left out.
        let (mut rule, stuck) =
            if frame.interrupted || skip > 0 || !frame.stack.reaches(frame.at.sp) {
                (frame.rule(unwinder), None)
            } else {
                let mut calls = Calls {
                    at: frame.at,
                    ips,
                    nr,
                };
                let (rule, end) = calls.walk(unwinder, &frame.stack);
                let kept = calls.nr.wrapping_sub(nr) as u64;
                Calls {
                    at: frame.at,
                    nr,
                    ..
                } = calls;
                let stuck = match end {
                    CallsEnd::Full => {
                        fast = fast.wrapping_add(kept);
                        break;
                    }
                    CallsEnd::Other => None,
                    CallsEnd::Stuck(why) => Some(why),
                };
                // The frame where it is stuck is kept, and counted below.
                fast = fast.wrapping_add(kept.wrapping_sub(stuck.is_some().into()));
                (rule, stuck)
            };
        let reason = match stuck {
            Some(reason) => reason,
            None => {
                let has_rule = rule != Rule::UNKNOWN;
                if !has_rule && !unwinder.is_text(frame.at.ip) {
                    break;
                }
                if let (false, Some(ip)) = (has_rule, frame.address()) {
                    rule = unwinder.learn(ip);
                }
                if skip > 0 {
                    skip -= 1;
                } else if !keep(ips, &mut nr, frame.at.ip) {
                    break;
                }
                let how = if has_rule {
                    WalkCounter::Fast
                } else {
                    WalkCounter::New
                };
                let next = match kind(unwinder, rule, &frame.stack, frame.at) {
                    Kind::Call | Kind::Switch | Kind::Realigned => frame.called(unwinder, rule),
                    Kind::Registers
                        if !unwinder.are_users(&frame.stack, rule.sp(frame.at.sp, frame.at.bp)) =>
                    {
                        frame.resumed(unwinder, rule).ok_or(WalkCounter::Registers)
                    }
                    Kind::Registers | Kind::End => {
                        unwinder.count(how, 1);
                        break;
                    }
                    Kind::Slow if rule != Rule::UNKNOWN => Err(WalkCounter::Odd),
                    Kind::Slow if frame.interrupted => Err(WalkCounter::Registers),
                    Kind::Slow => Err(WalkCounter::Text),
                };
                match next {
                    Ok(next) => {
                        frame = next;
                        unwinder.count(how, 1);
                        continue;
                    }
                    Err(reason) => reason,
                }
            }
        };
        unwinder.count(reason, 1);
        let Some(caller) = unwinder.step(frame) else {
            break;
        };
        frame = caller;
    }
    unwinder.count(WalkCounter::Fast, fast);
    nr
}

/// Writes the next address, if there is room.
#[inline(always)]
fn keep(ips: &mut [MaybeUninit<u64>], nr: &mut usize, ip: u64) -> bool {
    let Some(room) = ips.get_mut(*nr) else {
        return false;
    };
    room.write(ip);
    *nr = nr.wrapping_add(1);
    true
}

/// Frames that are calls with rules, from one on that is on the stack.
///
/// # Invariants
///
/// The first `nr` of `ips` are written.
struct Calls<'a> {
    at: Registers,
    ips: &'a mut [MaybeUninit<u64>],
    nr: usize,
}

/// Where they end.
enum CallsEnd {
    /// There is no more room.
    Full,
    /// At a frame that is something else, or has no rule. It is not kept.
    Other,
    /// At a frame whose rule cannot tell the caller. It is kept.
    Stuck(WalkCounter),
}

impl Calls<'_> {
    /// Follows them. Apart from the walk, so that all of it is in registers.
    #[inline(never)]
    #[cfg_attr(MODULE, link_section = ".kprobes.text")]
    fn walk<U: Unwinder>(&mut self, unwinder: &U, stack: &Stack) -> (Rule, CallsEnd) {
        let end = stack.end();
        let ips = &mut *self.ips;
        let (mut at, mut nr) = (self.at, self.nr);
        // Of the frame before; that has not been left if the stack pointer is the same.
        let (mut sp, mut bp) = (at.sp, at.bp);
        let (rule, found) = loop {
            let rule = unwinder.rule(at.ip);
            let Some(plain) = rule.plain() else {
                if kind(unwinder, rule, stack, at) != Kind::Call {
                    // A tracer's address has no rule, and the kernel knows which address was there.
                    if sp != at.sp && unwinder.is_replaced(at.ip) {
                        let last = nr.wrapping_sub(1);
                        // SAFETY: A frame was left, so its address has been written.
                        let ip = ips.get(last).map_or(0, |ip| unsafe { ip.assume_init() });
                        at = Registers { ip, sp, bp };
                        break (rule, CallsEnd::Stuck(WalkCounter::Return));
                    }
                    break (rule, CallsEnd::Other);
                }
                if !keep(ips, &mut nr, at.ip) {
                    break (rule, CallsEnd::Full);
                }
                match based_call(unwinder, stack, at, rule) {
                    Ok(caller) => {
                        (sp, bp) = (at.sp, at.bp);
                        at = caller;
                    }
                    Err(why) => break (rule, CallsEnd::Stuck(why)),
                }
                continue;
            };
            if !keep(ips, &mut nr, at.ip) {
                break (rule, CallsEnd::Full);
            }
            let up = at.sp.wrapping_add(plain.size());
            if up > end {
                break (rule, CallsEnd::Stuck(WalkCounter::Stack));
            }
            (sp, bp) = (at.sp, at.bp);
            if let Some(offset) = plain.bp() {
                // SAFETY: `at` is on the stack, and so is its caller; a plain rule has the word between.
                at.bp = unsafe { unwinder.load(sp.wrapping_add(offset)) };
            }
            // SAFETY: The caller is at least a word after `at`, and not past the end.
            at.ip = unsafe { unwinder.load(up.wrapping_sub(8)) };
            at.sp = up;
        };
        // INVARIANT: Each that was counted was written.
        (self.at, self.nr) = (at, nr);
        (rule, found)
    }
}
