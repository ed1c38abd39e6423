// SPDX-License-Identifier: GPL-2.0

//! On stacks of frame records with marks, as arm64 has them, the walk finds what the kernel's unwinder finds,
//! or gives up.

use proptest::{collection::vec, prelude::*};
use stackmap_unwind::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    frame_word::FrameWord,
    rule::UnwindRule,
    unwinder::{StackWord, Unwinder, WalkCounter},
    walk_predicted, words_of,
};

/// The first address of a kernel's text.
const TEXT: u64 = 0xffff_ffff_8100_0000;
/// The address that a tracer puts in place of a return address.
const REPLACED: u64 = TEXT + 1;
/// What may be a signature in a return address: all above 48 bits but bit 55.
const SIGNATURE: u64 = 0xff7f_0000_0000_0000;
/// Words of each stack.
const WORDS: usize = 128;
const SIZE: u64 = WORDS as u64 * 8;
/// The stack of an interrupt, and the task's, which lies higher.
const STACKS: [u64; 2] = [0xffff_8880_0000_0000, 0xffff_8880_1000_0000];
const TASK: usize = 1;
/// Bytes of all registers; where some of them are, and the record that marks them.
const REGS: u64 = 24 * 8;
const REGS_FP: u64 = 3 * 8;
const REGS_PC: u64 = 6 * 8;
const REGS_MARK: u64 = 20 * 8;
/// The record that marks the end of a task's frames.
const LAST: u64 = STACKS[TASK] + SIZE - REGS + REGS_MARK;
/// What the third word of a mark says.
const FINAL: u64 = 1;
const REGISTERS: u64 = 2;

/// `ptrauth_strip_kernel_insn_pac()`.
fn strip(word: u64) -> u64 {
    match word >> 55 & 1 {
        1 => word | SIGNATURE,
        _ => word & !SIGNATURE,
    }
}

/// What the kernel's unwinder knows of a walk: `struct kunwind_state`. Of the stack that it is on, the memory from
/// `low` on is left; of the others that it has not left, all.
#[derive(Clone, Copy)]
struct State {
    pc: u64,
    fp: u64,
    stack: usize,
    low: u64,
    left: [bool; 2],
}

/// The kernel: `arch/arm64/kernel/stacktrace.c`, and two stacks.
struct Kernel {
    words: [Vec<u64>; 2],
    gave_up: bool,
    steps: usize,
}

fn stack_of(addr: u64, len: u64) -> Option<usize> {
    (0..2).find(|stack| {
        let end = STACKS[*stack] + SIZE;
        (STACKS[*stack]..end).contains(&addr) && addr + len <= end
    })
}

impl Kernel {
    /// Eight bytes at any address of a stack.
    fn word(&self, addr: u64) -> u64 {
        let stack = stack_of(addr, 8).unwrap_or_else(|| panic!("{addr:#x} is not on a stack"));
        let (at, bits) = ((addr - STACKS[stack]) as usize, addr % 8 * 8);
        let words = &self.words[stack];
        match bits {
            0 => words[at / 8],
            _ => words[at / 8] >> bits | words[at / 8 + 1] << (64 - bits),
        }
    }

    /// Whether the record where a task's frames end says that it is the last one.
    fn has_last(&self) -> bool {
        [0, 8, 16].map(|at| self.word(LAST + at)) == [0, 0, FINAL]
    }

    /// `unwind_find_stack()` and `unwind_consume_stack()`.
    fn consume(&self, state: &mut State, addr: u64, len: u64) -> Option<()> {
        let stack = stack_of(addr, len)?;
        let is_left = match stack == state.stack {
            true => addr >= state.low,
            false => state.left[stack],
        };
        state.left[state.stack] &= !is_left;
        state.left[stack] = false;
        (state.stack, state.low) = (stack, addr + len);
        is_left.then_some(())
    }

    /// `kunwind_next()`.
    fn next(&self, mut state: State) -> Option<State> {
        let record = state.fp;
        if record % 8 != 0 {
            return None;
        }
        let before = state;
        self.consume(&mut state, record, 16)?;
        let (fp, lr) = (self.word(record), self.word(record + 8));
        if fp == 0 && lr == 0 {
            state = before;
            stack_of(record, 24).filter(|_| self.word(record + 16) == REGISTERS)?;
            let regs = record - REGS_MARK;
            self.consume(&mut state, regs, REGS)?;
            state.fp = self.word(regs + REGS_FP);
            state.pc = strip(self.word(regs + REGS_PC));
        } else {
            state.fp = fp;
            state.pc = strip(lr);
        }
        if state.pc == REPLACED {
            // A tracer knows by the address.
            state.pc = TEXT + 0x1000 + state.fp % 4096 * 16;
        }
        Some(state)
    }

    /// A walk that begins at a record.
    fn start(&self, stack: usize, record: u64) -> State {
        let mut left = [true; 2];
        left[stack] = false;
        State {
            pc: strip(self.word(record + 8)),
            fp: self.word(record),
            stack,
            low: record + 16,
            left,
        }
    }

    /// All frames of a walk from there.
    fn frames(&self, start: State, skip: usize, max: usize) -> Vec<u64> {
        let states = std::iter::successors(Some(start), |state| self.next(*state));
        states.map(|state| state.pc).skip(skip).take(max).collect()
    }

    fn walk(&mut self, start: State, skip: usize, max: usize, known: &[u64]) -> (Vec<u64>, bool) {
        (self.gave_up, self.steps) = (false, 0);
        let mut ips = vec![0; max];
        let frame = KernelFrame {
            at: FrameRegisters {
                ip: start.pc,
                sp: start.low,
                bp: start.fp,
            },
            stack: on(start.stack),
            interrupted: false,
            registers: 0,
        };
        let predicted = (!known.is_empty()).then_some(known);
        let Some(nr) = walk_predicted(self, frame, skip, &mut ips, 0, predicted) else {
            return (
                known.iter().map(|word| FrameWord(*word).ip()).collect(),
                true,
            );
        };
        ips.truncate(nr);
        (ips, false)
    }
}

/// A stack as the module has it.
fn on(stack: usize) -> StackBounds {
    let end = match stack {
        TASK => LAST,
        other => STACKS[other] + SIZE,
    };
    // SAFETY: Only `load` reads there, and it makes it up.
    unsafe { StackBounds::new(STACKS[stack], end) }
}

fn known(frames: &[u64]) -> Vec<u64> {
    words_of(frames, |_| UnwindRule::FRAME)
}

impl Unwinder for Kernel {
    const USES_FRAME_RECORDS: bool = true;
    const HAS_MARKS: bool = true;

    fn load<const OFFSET: i32>(&self, word: StackWord<OFFSET>) -> u64 {
        let addr = word.address();
        self.word(addr)
    }

    fn ends(&self, stack: &StackBounds) -> bool {
        stack.begin() == STACKS[TASK] && self.has_last()
    }

    fn strip_signature(&self, word: u64) -> u64 {
        word | SIGNATURE
    }

    fn rule(&self, ip: u64) -> UnwindRule {
        match self.is_replaced(ip) {
            true => UnwindRule::UNKNOWN,
            false => UnwindRule::FRAME,
        }
    }

    fn learn(&mut self, _: u64) -> UnwindRule {
        UnwindRule::UNKNOWN
    }

    fn is_text(&self, _: u64) -> bool {
        true
    }

    fn is_replaced(&self, ip: u64) -> bool {
        ip == REPLACED
    }

    fn are_users(&self, _: &StackBounds, _: u64) -> bool {
        unreachable!("no rule says so")
    }

    fn registers(&self, _: &StackBounds, _: u64) -> Option<FrameRegisters> {
        unreachable!("no rule says so")
    }

    fn task(&self) -> StackBounds {
        unreachable!("no rule says so")
    }

    /// As `frame_record.c` takes it: from one stack to the other only upwards, and not to what was replaced.
    fn step(&mut self, frame: KernelFrame) -> Option<KernelFrame> {
        self.steps += 1;
        let stack = usize::from(frame.stack.begin() == STACKS[TASK]);
        let state = State {
            pc: frame.at.ip,
            fp: frame.at.bp,
            stack,
            low: frame.at.sp,
            left: [false, stack != TASK],
        };
        let is_end = stack == TASK && frame.at.bp == LAST && self.has_last();
        let next = self.next(state);
        let next = next.filter(|next| next.pc < TEXT + 0x1000);
        self.gave_up = next.is_none() && !is_end;
        next.map(|next| KernelFrame {
            at: FrameRegisters {
                ip: next.pc,
                sp: next.low,
                bp: next.fp,
            },
            stack: on(next.stack),
            interrupted: next.low - frame.at.bp != 16,
            registers: 0,
        })
    }

    fn count(&mut self, _: WalkCounter, _: u64) {}
}

/// What a word of a stack is.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// This number of words further up.
    Up(u64),
    /// Somewhere on the task's stack.
    Task(u64),
    Last,
    /// A return address, signed.
    Text(u64, u64),
    Replaced(u64),
    Number(u64),
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        2 => (0..40_u64).prop_map(Word::Up),
        1 => (0..SIZE).prop_map(Word::Task),
        1 => Just(Word::Last),
        1 => (0..8_u64, any::<u64>()).prop_map(|(nr, bits)| Word::Text(nr, bits)),
        1 => any::<u64>().prop_map(Word::Replaced),
        2 => prop_oneof![4 => 0..4_u64, 1 => any::<u64>()].prop_map(Word::Number),
    ]
}

/// A record: nearly always one that leads on, to a text address.
fn record() -> impl Strategy<Value = [Word; 2]> {
    let fp = prop_oneof![12 => (1..4_u64).prop_map(|records| Word::Up(2 * records)), 2 => word()];
    let text = (0..8_u64, any::<u64>()).prop_map(|(nr, bits)| Word::Text(nr, bits));
    let lr = prop_oneof![24 => text, 1 => any::<u64>().prop_map(Word::Replaced), 1 => word()];
    (fp, lr).prop_map(|(fp, lr)| [fp, lr])
}

/// Records, and some sets of registers among them, which lead on.
fn stack() -> impl Strategy<Value = Vec<Word>> {
    let registers = vec((0..WORDS as u64 - REGS / 8, 4..40_u64), 0..3);
    (vec(record(), WORDS / 2), registers).prop_map(|(records, registers)| {
        let mut words = records.concat();
        for (at, up) in registers {
            let at = at as usize & !1;
            let mark = at + (REGS_MARK / 8) as usize;
            words[mark..mark + 3].copy_from_slice(&[
                Word::Number(0),
                Word::Number(0),
                Word::Number(REGISTERS),
            ]);
            words[at + (REGS_FP / 8) as usize] = Word::Up((REGS - REGS_FP) / 8 + up - 3);
            words[at + (REGS_PC / 8) as usize] = Word::Text(up % 8, 0);
        }
        words
    })
}

/// With a record where a task's frames end.
fn made(stacks: [Vec<Word>; 2], last_record: [u64; 3]) -> Kernel {
    let signed = |ip: u64, bits: u64| ip & !SIGNATURE | bits & SIGNATURE;
    let mut words = [Vec::new(), Vec::new()];
    for ((stack, begin), words) in stacks.iter().zip(STACKS).zip(&mut words) {
        for (index, word) in stack.iter().enumerate() {
            let here = begin + index as u64 * 8;
            words.push(match *word {
                Word::Up(nr) => here + nr * 8,
                Word::Task(bytes) => STACKS[TASK] + bytes,
                Word::Last => LAST,
                Word::Text(nr, bits) => signed(TEXT + 16 + nr * 8, bits),
                Word::Replaced(bits) => signed(REPLACED, bits),
                Word::Number(number) => number,
            });
        }
    }
    let last = ((LAST - STACKS[TASK]) / 8) as usize;
    words[TASK][last..last + 3].copy_from_slice(&last_record);
    Kernel {
        words,
        gave_up: false,
        steps: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(4000)
    })]

    #[test]
    fn the_walk_finds_the_frames_of_the_kernel_or_gives_up(
        stacks in (stack(), stack()),
        on_task: bool,
        first in prop_oneof![9 => (0..20_u64).prop_map(|nr| 8 * nr), 1 => Just(4)],
        skip in 0..4_usize,
        max in prop_oneof![Just(200_usize), 1..20_usize],
        cut in 0..20_usize,
        last in prop_oneof![6 => Just([0, 0, FINAL]), 1 => Just([0, 0, REGISTERS]),
                            1 => (prop_oneof![Just(0), Just(LAST + 24)], 0..2_u64, 0..3_u64).prop_map(<[u64; 3]>::from)],
    ) {
        let mut kernel = made([stacks.0, stacks.1], last);
        let stack = usize::from(on_task);
        let start = kernel.start(stack, STACKS[stack] + first);
        if start.pc == REPLACED {
            // There the module leaves all to the kernel.
            return Ok(());
        }
        let wanted = kernel.frames(start, skip, max);
        let found = kernel.walk(start, skip, max, &[]).0;
        prop_assert!(kernel.gave_up || found == wanted, "{found:x?} {wanted:x?}");
        // What the map has is what the kernel has found. Its words on the host hold no other addresses.
        if wanted.is_empty() || wanted.iter().any(|ip| *ip as i32 as u64 != *ip) {
            return Ok(());
        }
        let all = known(&wanted);
        let nr = cut.clamp(1, wanted.len());
        let shorter = known(&wanted[..nr]);
        let other = known(&[&wanted[..nr], &[TEXT + 0x100, TEXT + 0x108][..]].concat());
        for known in [all, shorter, other] {
            let found = kernel.walk(start, skip, max, &known).0;
            prop_assert!(kernel.gave_up || found == wanted, "{found:x?} {wanted:x?} {known:x?}");
        }
    }
}

/// Records one above the other on the task's stack, up to the end, and the address of the first one.
fn plain(nr: usize) -> (Kernel, State) {
    let mut stack = vec![Word::Number(7); WORDS];
    for index in 0..nr {
        stack[4 * index] = Word::Up(4);
        stack[4 * index + 1] = Word::Text(index as u64, u64::MAX << 60);
    }
    stack[4 * nr - 4] = Word::Last;
    let kernel = made([stack.clone(), stack], [0, 0, FINAL]);
    let start = kernel.start(TASK, STACKS[TASK]);
    (kernel, start)
}

#[test]
fn a_plain_stack_takes_no_step_of_the_kernel() {
    let (mut kernel, start) = plain(12);
    let wanted = kernel.frames(start, 0, 100);
    assert_eq!(wanted.len(), 12);
    for known in [&[][..], &known(&wanted)] {
        let is_known = !known.is_empty();
        assert_eq!(
            kernel.walk(start, 0, 100, known),
            (wanted.clone(), is_known)
        );
        assert!(kernel.steps == 0 && !kernel.gave_up);
    }
    assert_eq!(
        kernel.walk(start, 3, 100, &known(&wanted[3..])),
        (wanted[3..].to_vec(), true)
    );
}

#[test]
fn no_prediction_leads_to_a_record_that_is_not_aligned() {
    let (mut kernel, start) = plain(12);
    let frames = kernel.frames(start, 0, 100);
    // The sixth one, half a word after its return address.
    let words = &mut kernel.words[TASK];
    let (fp, lr) = (words[20], words[21]);
    words[16] = STACKS[TASK] + 21 * 8 + 4;
    words[21] = fp << 32;
    words[22] = fp >> 32 | lr << 32;
    words[23] = lr >> 32;
    assert_eq!(kernel.word(STACKS[TASK] + 21 * 8 + 4), fp);
    let wanted = kernel.frames(start, 0, 100);
    assert_eq!(wanted, frames[..5]);
    let (found, is_known) = kernel.walk(start, 0, 100, &known(&frames));
    assert!(!is_known && (kernel.gave_up || found == wanted));
}

#[test]
fn no_prediction_leads_to_a_record_that_is_half_on_the_stack() {
    let (mut kernel, _) = plain(12);
    kernel.words[0][..2].copy_from_slice(&[0, TEXT + 64]);
    for left in 0..3 {
        kernel.words[0][0] = STACKS[0] + SIZE - 8 * left;
        kernel.words[0][WORDS - 1] = TEXT + 72;
        let start = kernel.start(0, STACKS[0]);
        let frames = [64, 72, 80].map(|offset| TEXT + offset);
        let (_, is_known) = kernel.walk(start, 0, 100, &known(&frames));
        assert!(!is_known);
    }
}

#[test]
fn a_record_at_the_end_that_is_not_the_last_is_left_to_the_kernel() {
    let (mut kernel, start) = plain(12);
    let frames = kernel.frames(start, 0, 100);
    let at = ((LAST - STACKS[TASK]) / 8) as usize;
    for record in [[0, 0, 0], [0, 0, 3], [8, 0, FINAL], [0, TEXT + 96, FINAL]] {
        kernel.words[TASK][at..at + 3].copy_from_slice(&record);
        let wanted = kernel.frames(start, 0, 100);
        for known in [&[][..], &known(&frames)] {
            let found = kernel.walk(start, 0, 100, known).0;
            assert!(
                kernel.steps > 0 && (kernel.gave_up || found == wanted),
                "{record:x?}"
            );
        }
    }
}

#[test]
fn an_interrupted_function_takes_two_steps_of_the_kernel() {
    let (mut kernel, _) = plain(12);
    // Two records on the stack of an interrupt, the second leads to registers on the task's.
    let regs = STACKS[TASK] + 17 * 8;
    let at = |addr: u64| ((addr - STACKS[TASK]) / 8) as usize;
    kernel.words[0][..6].copy_from_slice(&[
        STACKS[0] + 32,
        TEXT + 64,
        7,
        7,
        regs + REGS_MARK,
        TEXT + 72,
    ]);
    kernel.words[TASK][at(regs + REGS_MARK)..][..3].copy_from_slice(&[0, 0, REGISTERS]);
    kernel.words[TASK][at(regs + REGS_FP)] = regs + REGS;
    kernel.words[TASK][at(regs + REGS_PC)] = TEXT + 80;
    kernel.words[TASK][at(regs + REGS)..][..2].copy_from_slice(&[LAST, TEXT + 88]);
    let start = kernel.start(0, STACKS[0]);
    let wanted = [64, 72, 80, 88].map(|offset| TEXT + offset).to_vec();
    assert_eq!(kernel.frames(start, 0, 100), wanted);
    // No prediction leads past a mark.
    for known in [&[][..], &known(&wanted)] {
        let found = kernel.walk(start, 0, 100, known);
        assert_eq!(found, (wanted.clone(), false));
        assert!(kernel.steps == 2 && !kernel.gave_up);
    }
    // Where the tracer has replaced a return address, the kernel knows which.
    kernel.words[TASK][at(regs + REGS + 8)] = REPLACED;
    kernel.walk(start, 0, 100, &[]);
    assert!(kernel.gave_up);
}
