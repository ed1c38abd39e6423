// SPDX-License-Identifier: GPL-2.0

//! The kernel's unwinder, as walks and what learns rules use it.

use super::{
    hints::Hinted,
    rules::{Outcome, Rule, Rules, Run, Table, REALIGNED_MAX},
    walk::{self, Frame, Registers, Stack, WalkCounter},
    Notes, Walker,
};
use crate::map::Guide;
use crate::shim::{self, stackmap_caller, stackmap_frame, stackmap_trial, Recording, Watched};
use core::sync::atomic::{AtomicBool, Ordering};

/// Where the pointers are on the stack for learning; the frame pointer twice, for two runs.
const SP: u32 = 16;
const BP: [u32; 2] = [400, 440];

/// Words of that stack which are addresses on it, and where these lead.
const LINKS: [(u32, u32); 2] = [
    (shim::STACKMAP_LEARN_LINK_0, shim::STACKMAP_LEARN_LINKED_0),
    (shim::STACKMAP_LEARN_LINK_1, shim::STACKMAP_LEARN_LINKED_1),
];

/// Whether the rule of BPF text is known: [`Rule::FRAME`], as the kernel's unwinder has shown. It has no
/// tables for such text, and takes the same step from all of it.
static BPF_BY_FRAMES: AtomicBool = AtomicBool::new(false);

/// The kernel's unwinder, for one walk.
pub(super) struct KernelUnwinder<'a> {
    recording: &'a Recording<'a>,
    rules: &'a Rules,
    /// The entries of `rules`, so that they are found without it.
    table: Table<'a>,
    pub(super) notes: &'a Notes,
    /// Whether its state is set.
    begun: bool,
    /// Whether it could not take a step that the walk needs: its whole walk may find more.
    #[cfg(CONFIG_ARM64)]
    gave_up: bool,
}

/// Whether there is the same rule for any address, text or not: on arm64, see `frames.rs`.
const ANY_ADDRESS: bool = cfg!(CONFIG_ARM64);

impl<'a> KernelUnwinder<'a> {
    #[inline(always)]
    pub(super) fn new(
        walker: &'a Walker,
        section: &'a Watched<'_>,
        recording: &'a Recording<'a>,
    ) -> Option<Self> {
        let rules = walker.rules.read(section)?;
        Some(Self {
            recording,
            rules,
            table: rules.table(),
            notes: walker.notes.get(recording.context())?,
            begun: false,
            #[cfg(CONFIG_ARM64)]
            gave_up: false,
        })
    }

    /// The rule of an address in the text that calls the trace array's own function tracer. That text may
    /// go and come again, but is always made from the same template: its rule is used only for what is in
    /// it now.
    #[cold]
    #[link_section = ".kprobes.text"]
    pub(super) fn tracer_rule(&self, ip: u64) -> Rule {
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

    /// The rule of an address in text that goes unannounced: none is kept for it, and the kernel is asked
    /// each time whether the text is there.
    #[cold]
    #[link_section = ".kprobes.text"]
    fn fleeting_rule(&self, ip: u64) -> Rule {
        match self.tracer_rule(ip) {
            Rule::UNKNOWN if BPF_BY_FRAMES.load(Ordering::Relaxed) && is_bpf(ip) => Rule::FRAME,
            rule => rule,
        }
    }

    /// Begins at a caller that is on the task's stack.
    #[inline(always)]
    pub(super) fn begin(&self, caller: &stackmap_caller) -> Option<Frame> {
        let frame = self.frame(registers(caller));
        self.is_frame(&frame).then_some(frame)
    }

    /// Whether a walk can be at a frame: it is on its stack, with its return address and what is pushed before
    /// that, and that is the caller's own.
    pub(super) fn is_frame(&self, frame: &Frame) -> bool {
        use walk::Unwinder;

        frame.stack.has(&frame.at) && !self.is_replaced(frame.at.ip)
    }

    /// Begins at a caller on another stack.
    pub(super) fn begin_elsewhere(&mut self, caller: &stackmap_caller) -> Option<Frame> {
        use walk::Unwinder;

        if self.is_replaced(caller.ip) {
            return None;
        }
        let frame = Frame {
            stack: self.notes.irq_stack(),
            ..self.frame(registers(caller))
        };
        if frame.stack.has(&frame.at) {
            return Some(frame);
        }
        let mut at = given(&frame);
        // SAFETY: RCU is watching and preemption is off, as for all that walks; there is room for
        // the state.
        self.begun = unsafe { shim::stackmap_unwind_begin(&mut at, self.recording.state()) };
        let frame = self.begun.then(|| taken(&at))?;
        if at.irq_stack {
            self.notes.set_irq_stack(&frame.stack);
        }
        Some(frame)
    }

    /// A frame on the task's stack.
    #[inline(always)]
    pub(super) fn frame(&self, at: Registers) -> Frame {
        use walk::Unwinder;

        Frame {
            at,
            stack: self.task(),
            interrupted: false,
            registers: 0,
        }
    }

    /// Whether the walk has ended where a step could not be taken that the kernel's unwinder may take in a walk
    /// of its own: then that has to find the whole stack.
    pub(super) fn gave_up(&self) -> bool {
        #[cfg(CONFIG_ARM64)]
        return self.gave_up;
        #[cfg(not(CONFIG_ARM64))]
        false
    }

    /// Counts the frames of a guide that has led to the end, but for so many.
    #[inline(always)]
    pub(super) fn count_known(&self, guide: &Guide<'_>, before: usize) {
        let found = guide.nr().wrapping_sub(before);
        self.notes.count(WalkCounter::Fast, found as u64);
    }
}

#[inline(always)]
pub(super) fn registers(caller: &stackmap_caller) -> Registers {
    Registers {
        ip: caller.ip,
        sp: caller.sp,
        bp: caller.bp,
    }
}

/// A frame that is given to the C side.
fn given(frame: &Frame) -> stackmap_frame {
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

/// A frame that the C side has set.
fn taken(frame: &stackmap_frame) -> Frame {
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
        registers: 0,
    }
}

impl walk::Unwinder for KernelUnwinder<'_> {
    const BY_FRAMES: bool = cfg!(CONFIG_UNWINDER_FRAME_POINTER) || cfg!(CONFIG_ARM64);
    const HAS_MARKS: bool = cfg!(CONFIG_ARM64);

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

    #[cfg(CONFIG_ARM64)]
    #[inline(always)]
    fn ends(&self, stack: &Stack) -> bool {
        // Behind another stack there may be nothing.
        if stack.begin() != self.task().begin() {
            return false;
        }
        // Without types of records, the place alone counts.
        if shim::STACKMAP_MARK_FINAL == 0 {
            return true;
        }
        // SAFETY: After a task's frames is room for the registers of user space, with this record.
        let [fp, lr, kind] = [0, 8, 16].map(|at| unsafe { load(stack.end().wrapping_add(at)) });
        fp | lr == 0 && kind == shim::STACKMAP_MARK_FINAL.into()
    }

    #[cfg(CONFIG_ARM64)]
    #[inline(always)]
    fn returns_to(&self, word: u64) -> u64 {
        word | shim::facts().signature
    }

    #[inline(always)]
    fn rule(&self, ip: u64) -> Rule {
        if ANY_ADDRESS {
            return match self.is_replaced(ip) {
                true => Rule::UNKNOWN,
                false => Rule::FRAME,
            };
        }
        match self.table.get(ip) {
            Rule::UNKNOWN => self.fleeting_rule(ip),
            rule => rule,
        }
    }

    #[inline(always)]
    fn noted(&self, left: usize, ip: u64) -> Rule {
        let noted = self.notes.left_out(left);
        match noted.ip() == ip {
            true => noted.rule(),
            false => Rule::UNKNOWN,
        }
    }

    #[inline(always)]
    fn note(&self, left: usize, ip: u64, rule: Rule) {
        if is_core(ip) && !is_replaced(ip) && rule != Rule::UNKNOWN {
            self.notes.leave_out(left, Hinted::new(ip, rule));
        }
    }

    #[cold]
    fn learn(&mut self, ip: u64) -> Rule {
        let is_tracer = self.recording.is_in_tracer(ip);
        let is_stable = !is_tracer && !self.is_replaced(ip) && is_stable(ip);
        if !is_tracer && !is_stable && !is_bpf(ip) {
            return Rule::UNKNOWN;
        }
        let run = |sp, bp, signal| run(ip, sp, bp, signal);
        let mut rule = Rule::learn(&[run(SP, BP[0], true), run(SP, BP[1], false)]);
        if rule == Rule::SLOW {
            rule = Rule::learn_switch(&LINKS.map(|(word, sp)| Run {
                sp,
                ..run(word, BP[0], false)
            }));
        }
        for words in 1..=REALIGNED_MAX {
            if rule == Rule::SLOW {
                let runs = LINKS.map(|(word, sp)| Run {
                    sp,
                    ..run(SP, word + words, false)
                });
                rule = Rule::learn_realigned(words, &runs);
            }
        }
        if is_tracer {
            // The tracer may be unregistered since: then the kernel's unwinder has guessed that there is a frame
            // pointer. The text of a tracer has none, where that is not so of all text.
            if rule == Rule::FRAME && !Self::BY_FRAMES {
                return Rule::UNKNOWN;
            }
            let word = Hinted::new(ip, rule).0;
            self.recording.tracer_rule().store(word, Ordering::Relaxed);
        } else if is_stable {
            self.rules.put(ip, rule);
        } else if rule == Rule::FRAME {
            BPF_BY_FRAMES.store(true, Ordering::Relaxed);
        }
        rule
    }

    fn is_text(&self, ip: u64) -> bool {
        // SAFETY: RCU is watching and preemption is off, as for all that walks.
        unsafe { shim::stackmap_unwind_is_text(ip as usize) }
    }

    #[inline(always)]
    fn is_replaced(&self, ip: u64) -> bool {
        is_replaced(ip)
    }

    #[inline(always)]
    fn are_users(&self, stack: &Stack, registers: u64) -> bool {
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

    fn registers(&self, stack: &Stack, registers: u64) -> Option<Registers> {
        if !stack.holds(registers, shim::STACKMAP_REGS_SIZE.into()) {
            return None;
        }
        // SAFETY: All of the registers are on the stack, and these are some of them.
        let load = |at: u32| unsafe { load(registers.wrapping_add(at.into())) };
        let [cs, ip] = [shim::STACKMAP_REGS_CS, shim::STACKMAP_REGS_IP].map(load);
        let [sp, bp] = [shim::STACKMAP_REGS_SP, shim::STACKMAP_REGS_BP].map(load);
        (cs & 3 == 0).then_some(Registers { ip, sp, bp })
    }

    #[inline(always)]
    fn task(&self) -> Stack {
        let begin = self.recording.task_stack();
        // SAFETY: It is that of this task, which is running.
        unsafe { Stack::with_size(begin, shim::STACKMAP_STACK_SIZE.into()) }
    }

    #[cold]
    fn step(&mut self, frame: Frame) -> Option<Frame> {
        let mut at = given(&frame);
        // SAFETY: RCU is watching and preemption is off; there is room for the state, which this sets if nothing has.
        let stepped =
            unsafe { shim::stackmap_unwind_step(&mut at, self.recording.state(), self.begun) };
        // Only the mark of the task's last record ends a walk.
        #[cfg(CONFIG_ARM64)]
        {
            let is_last = frame.at.bp == frame.stack.end() && self.ends(&frame.stack);
            self.gave_up = !stepped && !is_last;
        }
        self.begun = true;
        stepped.then(|| taken(&at))
    }

    #[inline(always)]
    fn count(&mut self, found: WalkCounter, nr: u64) {
        self.notes.count(found, nr);
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

/// Whether a rule may be kept for text: it stays as it is, or is told of when it goes.
///
/// Context: any in which stacks are walked: RCU is watching.
pub(super) fn is_stable(ip: u64) -> bool {
    // SAFETY: RCU is watching, and preemption is off, as for all that walks.
    unsafe { shim::stackmap_unwind_is_stable(ip as usize) }
}

/// Whether an address is in the kernel's own text, which stays.
#[inline(always)]
fn is_core(ip: u64) -> bool {
    let facts = shim::facts();
    facts.stext <= ip && ip < facts.etext
}

/// Whether a call that returns to an address is in a BPF image that is there now.
///
/// Context: as for [`is_stable`].
fn is_bpf(ip: u64) -> bool {
    // SAFETY: RCU is watching, and preemption is off, as for all that walks.
    unsafe { shim::stackmap_unwind_is_bpf(ip as usize) }
}

#[inline(always)]
pub(super) fn is_replaced(ip: u64) -> bool {
    let facts = shim::facts();
    ip == facts.return_to_handler || ip == facts.rethook_trampoline
}

/// Has the kernel's unwinder make the step after the call that returns to `ip`.
fn run(ip: u64, sp: u32, bp: u32, signal: bool) -> Run {
    let mut trial = stackmap_trial::default();
    // SAFETY: RCU is watching, as for all that learns; both are words of the stack for learning.
    unsafe { shim::stackmap_unwind_try(ip as usize, sp, bp, signal, &mut trial) };
    Run {
        sp,
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
        let regs = word(trial.regs)?;
        let has = |at: u32, read: u64| index(read) == Some(regs + at / 8);
        let all = trial.all_regs
            && trial.signal
            && has(shim::STACKMAP_REGS_IP, trial.ip)
            && has(shim::STACKMAP_REGS_BP, trial.bp_word);
        return all.then_some(Outcome::Registers(regs));
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
