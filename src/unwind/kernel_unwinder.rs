// SPDX-License-Identifier: GPL-2.0

//! The kernel's unwinder, as walks and what learns rules use it.

use super::{
    rules::{Hinted, Outcome, Rule, Rules, Run, Table},
    walk::{self, Frame, Registers, Stack, WalkCounter},
    Counts, Walker,
};
use crate::shim::{self, stackmap_facts, stackmap_frame, stackmap_trial, Recording, Watched};
use core::sync::atomic::Ordering;

/// Where the pointers are on the stack for learning; the frame pointer twice, for two runs.
const SP: u32 = 16;
const BP: [u32; 2] = [400, 440];

/// The kernel's unwinder, for one walk.
pub(super) struct KernelUnwinder<'a> {
    recording: &'a Recording<'a>,
    rules: &'a Rules,
    /// The entries of `rules`, so that they are found without it.
    table: Table<'a>,
    pub(super) counts: &'a Counts,
    /// Whether its state is set.
    pub(super) begun: bool,
}

impl<'a> KernelUnwinder<'a> {
    #[inline(always)]
    pub(super) fn new(
        walker: &'a Walker,
        section: &'a Watched<'_>,
        recording: &'a Recording<'a>,
        begun: bool,
    ) -> Option<Self> {
        let rules = walker.rules.read(section)?;
        Some(Self {
            recording,
            rules,
            table: rules.table(),
            counts: walker.counts.get(recording.context())?,
            begun,
        })
    }

    /// The rule of an address in the text that calls the trace array's own function tracer. That text may
    /// go and come again, but is always made from the same template: its rule is used only for what is in
    /// it now.
    #[cold]
    fn tracer_rule(&self, ip: u64) -> Rule {
        // In the test at load there is no trace array, and no such text.
        if !self.recording.is_in_tracer(ip) {
            return Rule::UNKNOWN;
        }
        let kept = Hinted(self.recording.tracer_rule().load(Ordering::Relaxed));
        if kept.ip() == ip {
            kept.rule()
        } else {
            Rule::UNKNOWN
        }
    }

    /// Begins at a caller, which another stack than the task's may belong to.
    #[inline(always)]
    pub(super) fn begin(&mut self, caller: &stackmap_frame) -> Option<Frame> {
        use walk::Unwinder;

        if self.is_replaced(caller.ip) {
            return None;
        }
        let frame = self.frame(caller);
        if frame.stack.holds(frame.at.sp.wrapping_sub(16), 16) {
            return Some(frame);
        }
        let mut caller = *caller;
        // SAFETY: RCU is watching and preemption is off, as for all that walks; there is room for
        // the state.
        self.begun = unsafe { shim::stackmap_unwind_begin(&mut caller, self.recording.state()) };
        self.begun.then(|| self.frame(&caller))
    }

    #[inline(always)]
    fn frame(&self, frame: &stackmap_frame) -> Frame {
        Frame {
            at: Registers {
                ip: frame.ip,
                sp: frame.sp,
                bp: frame.bp,
            },
            // SAFETY: It is a stack of this task or CPU, as the C side says, and we are on it or
            // above it.
            stack: unsafe { Stack::new(frame.begin, frame.end) },
            interrupted: frame.interrupted,
        }
    }
}

impl walk::Unwinder for KernelUnwinder<'_> {
    #[inline(always)]
    unsafe fn load(&self, addr: u64) -> u64 {
        // SAFETY: As required of the caller.
        unsafe { load(addr) }
    }

    #[inline(always)]
    unsafe fn load_below(&self, addr: u64) -> u64 {
        // SAFETY: As required of the caller.
        unsafe { load_at::<-8>(addr) }
    }

    #[inline(always)]
    fn rule(&self, ip: u64) -> Rule {
        match self.table.get(ip) {
            Rule::UNKNOWN => self.tracer_rule(ip),
            rule => rule,
        }
    }

    #[cold]
    fn learn(&mut self, ip: u64) -> Rule {
        let is_tracer = self.recording.is_in_tracer(ip);
        if !is_tracer && (self.is_replaced(ip) || !is_stable(ip)) {
            return Rule::UNKNOWN;
        }
        let rule = Rule::learn(&[run(ip, BP[0], true), run(ip, BP[1], false)]);
        if is_tracer {
            let word = Hinted::new(ip, rule).0;
            self.recording.tracer_rule().store(word, Ordering::Relaxed);
        } else {
            self.rules.put(ip, rule);
        }
        rule
    }

    fn is_text(&self, ip: u64) -> bool {
        // SAFETY: As for `begin`.
        unsafe { shim::stackmap_unwind_is_text(ip as usize) }
    }

    #[inline(always)]
    fn is_replaced(&self, ip: u64) -> bool {
        is_replaced(self.recording.facts(), ip)
    }

    #[inline(always)]
    fn shown(&self, ip: u64) -> Option<u64> {
        if self.recording.trampoline().contains(&ip) {
            return Some(shim::STACKMAP_TRAMPOLINE_MARKER.into());
        }
        let facts = self.recording.facts();
        let is_core = || facts.stext <= ip && ip < facts.etext;
        // No trampoline has a rule in the table.
        let has_rule = || self.table.get(ip) != Rule::UNKNOWN;
        (!self.recording.wants_tracer() || is_core() || has_rule()).then_some(ip)
    }

    #[inline(always)]
    fn are_users(&self, stack: &Stack, registers: u64) -> bool {
        let facts = self.recording.facts();
        if !stack.holds(registers, facts.regs_size.into()) {
            return false;
        }
        // SAFETY: All of the registers are on the stack, and these two are some of them.
        let (cs, ip) = unsafe {
            (
                load(registers.wrapping_add(facts.regs_cs.into())),
                load(registers.wrapping_add(facts.regs_ip.into())),
            )
        };
        cs & 3 != 0 && ip < facts.user_end
    }

    #[cold]
    fn step(&mut self, frame: Frame) -> Option<Frame> {
        let mut at = stackmap_frame {
            ip: frame.at.ip,
            sp: frame.at.sp,
            bp: frame.at.bp,
            begin: frame.stack.begin(),
            end: frame.stack.end(),
            interrupted: frame.interrupted,
        };
        // SAFETY: As for `begin`; it sets the state if nothing has.
        let stepped =
            unsafe { shim::stackmap_unwind_step(&mut at, self.recording.state(), self.begun) };
        self.begun = true;
        stepped.then(|| self.frame(&at))
    }

    #[inline(always)]
    fn count(&mut self, found: WalkCounter, nr: u64) {
        self.counts.add(found, nr);
    }
}

/// Reads a word of a stack. KASAN does not check it: frames of others have what it must not see.
///
/// # Safety
///
/// The 8 bytes from `addr` on may be read.
#[inline(always)]
unsafe fn load(addr: u64) -> u64 {
    // SAFETY: As required of the caller.
    unsafe { load_at::<0>(addr) }
}

/// The same, so many bytes further.
///
/// # Safety
///
/// These 8 bytes may be read.
#[inline(always)]
unsafe fn load_at<const OFFSET: i32>(addr: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        let word;
        // SAFETY: As required of the caller; it reads, and does nothing else.
        unsafe {
            core::arch::asm!("mov {}, qword ptr [{} + {}]", out(reg) word, in(reg) addr, const OFFSET,
                 options(nostack, preserves_flags, readonly))
        };
        word
    }
    // Stacks are not walked by rules there.
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: As required of the caller.
    unsafe {
        (addr.wrapping_add_signed(OFFSET.into()) as *const u64).read_volatile()
    }
}

/// Whether a rule may be kept for text: it stays as it is, or is told of when it goes.
///
/// Context: any in which stacks are walked: RCU is watching.
pub(super) fn is_stable(ip: u64) -> bool {
    // SAFETY: RCU is watching, and preemption is off, as for all that walks.
    unsafe { shim::stackmap_unwind_is_stable(ip as usize) }
}

#[inline(always)]
pub(super) fn is_replaced(facts: &stackmap_facts, ip: u64) -> bool {
    ip == facts.return_to_handler || ip == facts.rethook_trampoline
}

/// Has the kernel's unwinder make the step after the call that returns to `ip`.
fn run(ip: u64, bp: u32, signal: bool) -> Run {
    let mut trial = stackmap_trial::default();
    // SAFETY: RCU is watching, as for all that learns; both are words of the stack for learning.
    unsafe { shim::stackmap_unwind_try(ip as usize, SP, bp, signal, &mut trial) };
    Run {
        sp: SP,
        bp,
        outcome: outcome(&trial, bp, signal).unwrap_or(Outcome::Other),
    }
}

fn outcome(trial: &stackmap_trial, bp: u32, signal: bool) -> Option<Outcome> {
    if !trial.next {
        // It has not even looked whether the frame was interrupted.
        return (trial.signal == signal).then_some(Outcome::End);
    }
    if !trial.same_stack {
        return None;
    }
    if trial.some_regs {
        return trial
            .all_regs
            .then(|| word(trial.regs))?
            .map(Outcome::Registers);
    }
    if trial.signal {
        return None;
    }
    let ip = index(trial.ip)?;
    let sp = word(trial.sp)?;
    let bp = if trial.bp == u64::from(bp) * 8 {
        None
    } else {
        Some(index(trial.bp_word)?)
    };
    Some(Outcome::Caller { ip, sp, bp })
}

/// A number of bytes as one of words of the stack for learning.
fn word(bytes: u64) -> Option<u32> {
    if bytes % 8 == 0 {
        index(bytes / 8)
    } else {
        None
    }
}

/// A word of the stack for learning, or the end of it.
fn index(word: u64) -> Option<u32> {
    (word <= u64::from(shim::STACKMAP_LEARN_WORDS)).then_some(word as u32)
}
