// SPDX-License-Identifier: GPL-2.0

//! The kernel's unwinder, as walks and what learns rules use it.

use super::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    frame_word::FrameWord,
    rule::{LearnRun, LearnedStep, UnwindRule, REALIGNED_MAX},
    rules::{RulesRef, UnwindRules},
    unwinder::{StackWord, Unwinder, WalkCounter},
    walker::{WalkContext, Walker},
};
use crate::{
    map::PredictedStack,
    shim::{self, stackmap_caller, stackmap_frame, stackmap_trial, WalkInput, Watched},
};
use core::sync::atomic::{AtomicBool, Ordering};

/// Where the pointers are on the stack for learning; the frame pointer twice, for two runs.
const SP: u32 = 16;
const BP: [u32; 2] = [400, 440];

/// Words of that stack which are addresses on it, and where these lead.
const LINKS: [(u32, u32); 2] = [
    (shim::STACKMAP_LEARN_LINK_0, shim::STACKMAP_LEARN_LINKED_0),
    (shim::STACKMAP_LEARN_LINK_1, shim::STACKMAP_LEARN_LINKED_1),
];

/// Whether the rule of BPF text is known: [`UnwindRule::FRAME`], as the kernel's unwinder has shown. It has no
/// tables for such text, and takes the same step from all of it.
static BPF_HAS_FRAME_RULE: AtomicBool = AtomicBool::new(false);

/// The kernel's unwinder, for one walk.
pub(super) struct KernelUnwinder<'a> {
    input: &'a WalkInput<'a>,
    section: &'a Watched<'a>,
    rules: &'a UnwindRules,
    /// The entries of `rules`, so that they are found without it.
    table: RulesRef<'a>,
    context: &'a WalkContext,
    /// Whether its state is set.
    state_is_set: bool,
    /// Whether it could not take a step that the walk needs: its own walk may find more.
    #[cfg(CONFIG_ARM64)]
    gave_up: bool,
}

/// Whether any address, text or not, has the same rule: on arm64, see `frame_record.rs`.
const ANY_ADDRESS: bool = cfg!(CONFIG_ARM64);

impl<'a> KernelUnwinder<'a> {
    #[inline(always)]
    pub(super) fn new(
        walker: &'a Walker,
        section: &'a Watched<'a>,
        input: &'a WalkInput<'a>,
    ) -> Option<Self> {
        let rules = walker.rules.read(section)?;
        Some(Self {
            input,
            section,
            rules,
            table: rules.table(),
            context: walker.contexts.get(input.context())?,
            state_is_set: false,
            #[cfg(CONFIG_ARM64)]
            gave_up: false,
        })
    }

    /// Returns the rule of an address in the text that calls the trace array's own function tracer. That text may
    /// go and come again, but is always made from the same template: its rule is used only while the kernel knows the
    /// tracer.
    #[cold]
    #[link_section = ".kprobes.text"]
    pub(super) fn tracer_rule(&self, ip: u64) -> UnwindRule {
        // In the test at load there is no trace array, and no such text.
        if !self.input.is_in_tracer(self.section, ip) {
            return UnwindRule::UNKNOWN;
        }
        let kept = FrameWord(self.input.tracer_rule().load(Ordering::Relaxed));
        if kept.ip() == ip {
            kept.rule()
        } else {
            UnwindRule::UNKNOWN
        }
    }

    /// Returns the rule of an address in text that goes without a notifier: no rule is kept for it, and the kernel is
    /// asked each time whether the text is there.
    #[cold]
    #[link_section = ".kprobes.text"]
    fn transient_rule(&self, ip: u64) -> UnwindRule {
        match self.tracer_rule(ip) {
            UnwindRule::UNKNOWN
                if BPF_HAS_FRAME_RULE.load(Ordering::Relaxed) && self.section.is_bpf(ip) =>
            {
                UnwindRule::FRAME
            }
            rule => rule,
        }
    }

    /// Starts at a caller, if that is on the task's stack.
    #[inline(always)]
    pub(super) fn start_at(&self, caller: &stackmap_caller) -> Option<KernelFrame> {
        let frame = self.frame(registers(caller));
        self.can_be_at(&frame).then_some(frame)
    }

    /// Returns whether a walk can be at a frame: its return address and the word below are on the stack, and no tracer
    /// has replaced it.
    pub(super) fn can_be_at(&self, frame: &KernelFrame) -> bool {
        frame.stack.has(&frame.at) && !self.is_replaced(frame.at.ip)
    }

    /// Starts at a caller on another stack.
    pub(super) fn start_elsewhere(&mut self, caller: &stackmap_caller) -> Option<KernelFrame> {
        if self.is_replaced(caller.ip) {
            return None;
        }
        let frame = KernelFrame {
            stack: self.context.irq_stack(),
            ..self.frame(registers(caller))
        };
        if frame.stack.has(&frame.at) {
            return Some(frame);
        }
        let mut at = to_c(&frame);
        self.state_is_set = self.input.unwind_begin(self.section, &mut at);
        let frame = self.state_is_set.then(|| from_c(&at))?;
        if at.irq_stack {
            self.context.set_irq_stack(&frame.stack);
        }
        Some(frame)
    }

    /// Returns the frame with these registers on the task's stack.
    #[inline(always)]
    pub(super) fn frame(&self, at: FrameRegisters) -> KernelFrame {
        KernelFrame {
            at,
            stack: self.task(),
            interrupted: false,
            registers: 0,
        }
    }

    /// Returns whether the walk has ended where a step could not be taken that the kernel's unwinder may take in a walk
    /// of its own: then that has to walk the whole stack.
    pub(super) fn gave_up(&self) -> bool {
        #[cfg(CONFIG_ARM64)]
        return self.gave_up;
        #[cfg(not(CONFIG_ARM64))]
        false
    }

    /// Counts the frames of a stack that was identified by prediction, but for the first `nr`.
    #[inline(always)]
    pub(super) fn count_predicted(&self, predicted: &PredictedStack<'_>, nr: usize) {
        let found = predicted.nr().wrapping_sub(nr);
        self.context.count(WalkCounter::Fast, found as u64);
    }
}

/// Returns the registers of a caller.
#[inline(always)]
pub(super) fn registers(caller: &stackmap_caller) -> FrameRegisters {
    FrameRegisters {
        ip: caller.ip,
        sp: caller.sp,
        bp: caller.bp,
    }
}

/// Returns a frame for the C side.
fn to_c(frame: &KernelFrame) -> stackmap_frame {
    stackmap_frame {
        ip: frame.at.ip,
        sp: frame.at.sp,
        bp: frame.at.bp,
        begin: frame.stack.begin(),
        end: frame.stack.end(),
        registers: frame.registers,
        interrupted: frame.interrupted,
        irq_stack: false,
    }
}

/// Returns a frame that the C side has set.
fn from_c(frame: &stackmap_frame) -> KernelFrame {
    KernelFrame {
        at: FrameRegisters {
            ip: frame.ip,
            sp: frame.sp,
            bp: frame.bp,
        },
        // SAFETY: By the contract of the C side, it is a stack of this task or CPU, and we are on it or above it.
        stack: unsafe { StackBounds::new(frame.begin, frame.end) },
        interrupted: frame.interrupted,
        registers: 0,
    }
}

impl Unwinder for KernelUnwinder<'_> {
    const USES_FRAME_RECORDS: bool = cfg!(CONFIG_UNWINDER_FRAME_POINTER) || cfg!(CONFIG_ARM64);
    const HAS_MARKS: bool = cfg!(CONFIG_ARM64);

    #[inline(always)]
    fn load<const OFFSET: i32>(&self, word: StackWord<OFFSET>) -> u64 {
        // SAFETY: By the invariants of `StackWord` and `StackBounds`.
        unsafe { load_at::<OFFSET>(word.base()) }
    }

    #[cfg(CONFIG_ARM64)]
    #[inline(always)]
    fn ends(&self, stack: &StackBounds) -> bool {
        // Nothing may be mapped after another stack.
        if stack.begin() != self.task().begin() {
            return false;
        }
        // Without types of records, the address alone counts.
        if shim::STACKMAP_MARK_FINAL == 0 {
            return true;
        }
        // SAFETY: After a task's frames come the registers of user space, with this record.
        let [fp, lr, kind] =
            [0, 8, 16].map(|at| unsafe { load_at::<0>(stack.end().wrapping_add(at)) });
        fp | lr == 0 && kind == shim::STACKMAP_MARK_FINAL.into()
    }

    #[cfg(CONFIG_ARM64)]
    #[inline(always)]
    fn strip_signature(&self, word: u64) -> u64 {
        word | shim::facts().signature
    }

    #[inline(always)]
    fn rule(&self, ip: u64) -> UnwindRule {
        if ANY_ADDRESS {
            return match self.is_replaced(ip) {
                true => UnwindRule::UNKNOWN,
                false => UnwindRule::FRAME,
            };
        }
        match self.table.get(ip) {
            UnwindRule::UNKNOWN => self.transient_rule(ip),
            rule => rule,
        }
    }

    #[inline(always)]
    fn skip_rule(&self, to_skip: usize, ip: u64) -> UnwindRule {
        let cached = self.context.skipped(to_skip);
        match cached.ip() == ip {
            true => cached.rule(),
            false => UnwindRule::UNKNOWN,
        }
    }

    #[inline(always)]
    fn cache_skip_rule(&self, to_skip: usize, ip: u64, rule: UnwindRule) {
        if is_core(ip) && !is_replaced(ip) && rule != UnwindRule::UNKNOWN {
            self.context.set_skipped(to_skip, FrameWord::new(ip, rule));
        }
    }

    #[cold]
    fn learn(&mut self, ip: u64) -> UnwindRule {
        let is_tracer = self.input.is_in_tracer(self.section, ip);
        let is_stable = !is_tracer && !self.is_replaced(ip) && self.section.is_stable(ip);
        if !is_tracer && !is_stable && !self.section.is_bpf(ip) {
            return UnwindRule::UNKNOWN;
        }
        let section = self.section;
        let run = |sp, bp, signal| run(section, ip, sp, bp, signal);
        let mut rule = UnwindRule::learn(&[run(SP, BP[0], true), run(SP, BP[1], false)]);
        if rule == UnwindRule::SLOW {
            rule = UnwindRule::learn_switch(&LINKS.map(|(word, sp)| LearnRun {
                sp,
                ..run(word, BP[0], false)
            }));
        }
        for words in 1..=REALIGNED_MAX {
            if rule == UnwindRule::SLOW {
                let runs = LINKS.map(|(word, sp)| LearnRun {
                    sp,
                    ..run(SP, word + words, false)
                });
                rule = UnwindRule::learn_realigned(words, &runs);
            }
        }
        if is_tracer {
            // The tracer may be unregistered since: then the kernel's unwinder has guessed that there is a frame
            // pointer. The text of a tracer has none, where that is not so of all text.
            if rule == UnwindRule::FRAME && !Self::USES_FRAME_RECORDS {
                return UnwindRule::UNKNOWN;
            }
            let word = FrameWord::new(ip, rule).0;
            self.input.tracer_rule().store(word, Ordering::Relaxed);
        } else if is_stable {
            self.rules.put(ip, rule);
        } else if rule == UnwindRule::FRAME {
            BPF_HAS_FRAME_RULE.store(true, Ordering::Relaxed);
        }
        rule
    }

    fn is_text(&self, ip: u64) -> bool {
        self.section.is_text(ip)
    }

    #[inline(always)]
    fn is_replaced(&self, ip: u64) -> bool {
        is_replaced(ip)
    }

    #[inline(always)]
    fn are_users(&self, stack: &StackBounds, registers: u64) -> bool {
        if !stack.holds(registers, shim::STACKMAP_REGS_SIZE.into()) {
            return false;
        }
        // SAFETY: All of the registers are on the stack, and these two are some of them.
        let [cs, ip] = unsafe {
            [
                load_at::<{ shim::STACKMAP_REGS_CS as i32 }>(registers),
                load_at::<{ shim::STACKMAP_REGS_IP as i32 }>(registers),
            ]
        };
        cs & 3 != 0 && ip < shim::facts().user_end
    }

    fn registers(&self, stack: &StackBounds, registers: u64) -> Option<FrameRegisters> {
        if !stack.holds(registers, shim::STACKMAP_REGS_SIZE.into()) {
            return None;
        }
        let word = |at: u32| self.word(stack, registers.wrapping_add(at.into()));
        let (cs, ip) = (word(shim::STACKMAP_REGS_CS)?, word(shim::STACKMAP_REGS_IP)?);
        let (sp, bp) = (word(shim::STACKMAP_REGS_SP)?, word(shim::STACKMAP_REGS_BP)?);
        (cs & 3 == 0).then_some(FrameRegisters { ip, sp, bp })
    }

    #[inline(always)]
    fn task(&self) -> StackBounds {
        let begin = self.input.task_stack();
        // SAFETY: It is the stack of this task, which is running.
        unsafe { StackBounds::with_size(begin, shim::STACKMAP_STACK_SIZE.into()) }
    }

    #[cold]
    fn step(&mut self, frame: KernelFrame) -> Option<KernelFrame> {
        let mut at = to_c(&frame);
        let stepped = self
            .input
            .unwind_step(self.section, &mut at, self.state_is_set);
        // Only the mark of the task's last record ends a walk.
        #[cfg(CONFIG_ARM64)]
        {
            let is_last = frame.at.bp == frame.stack.end() && self.ends(&frame.stack);
            self.gave_up = !stepped && !is_last;
        }
        self.state_is_set = true;
        stepped.then(|| from_c(&at))
    }

    #[inline(always)]
    fn count(&mut self, counter: WalkCounter, nr: u64) {
        self.context.count(counter, nr);
    }
}

/// Reads the word of a stack at an offset in bytes from `addr`. KASAN does not check it: frames of others have what it must
/// not see.
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
    #[cfg(all(target_arch = "aarch64", CONFIG_KASAN))]
    {
        let word;
        // SAFETY: As above.
        unsafe {
            core::arch::asm!("ldr {}, [{}, {}]", out(reg) word, in(reg) addr, const OFFSET,
                 options(nostack, preserves_flags, readonly))
        };
        word
    }
    // Where the compiler may choose the instruction, a step takes one less.
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", CONFIG_KASAN))))]
    // SAFETY: As required of the caller.
    unsafe {
        (addr.wrapping_add_signed(OFFSET.into()) as *const u64).read_volatile()
    }
}

/// Returns whether an address is in the kernel's own text, which stays.
#[inline(always)]
fn is_core(ip: u64) -> bool {
    let facts = shim::facts();
    facts.stext <= ip && ip < facts.etext
}

/// Returns whether a tracer has put this address in place of a return address.
#[inline(always)]
pub(super) fn is_replaced(ip: u64) -> bool {
    let facts = shim::facts();
    ip == facts.return_to_handler || ip == facts.rethook_trampoline
}

/// Runs the kernel's unwinder for the step after the call that returns to `ip`.
fn run(section: &Watched<'_>, ip: u64, sp: u32, bp: u32, signal: bool) -> LearnRun {
    let trial = section.unwind_try(ip, sp, bp, signal);
    LearnRun {
        sp,
        bp,
        step: learned_step(&trial, bp, signal).unwrap_or(LearnedStep::Other),
    }
}

/// Returns what the kernel's unwinder did, or [`None`] if no rule describes it.
fn learned_step(trial: &stackmap_trial, bp: u32, signal: bool) -> Option<LearnedStep> {
    if !trial.next {
        // It has not even looked whether the frame was interrupted.
        return (trial.signal == signal).then_some(LearnedStep::End);
    }
    if !trial.same_stack {
        return None;
    }
    if trial.some_regs {
        let regs = word(trial.regs)?;
        let has = |at: u32, read: u64| index(read) == Some(regs + at / 8);
        let all = trial.all_regs
            && trial.signal
            && has(shim::STACKMAP_REGS_IP, trial.ip)
            && has(shim::STACKMAP_REGS_BP, trial.bp_word);
        return all.then_some(LearnedStep::Registers(regs));
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
    Some(LearnedStep::Caller { ip, sp, bp })
}

/// Returns a number of bytes as one of words of the stack for learning.
fn word(bytes: u64) -> Option<u32> {
    if bytes % 8 == 0 {
        index(bytes / 8)
    } else {
        None
    }
}

/// Returns the index of a word of the stack for learning, or of its end.
fn index(word: u64) -> Option<u32> {
    (word <= u64::from(shim::STACKMAP_LEARN_WORDS)).then_some(word as u32)
}
