// SPDX-License-Identifier: GPL-2.0

//! On stacks of frame records, and of anything else, the walk finds what the kernel's unwinder finds.

use proptest::{collection::vec, prelude::*};
use stackmap_unwind::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    frame_word::FrameWord,
    rule::{LearnRun, LearnedStep, UnwindRule},
    unwinder::{StackWord, Unwinder, WalkCounter},
    walk_predicted, words_of,
};
use std::collections::HashSet;

/// The first address of a kernel's text.
const TEXT: u64 = 0xffff_ffff_8100_0000;
/// The address that a tracer puts in place of a return address.
const REPLACED: u64 = TEXT + 1;
/// Words of each stack.
const WORDS: usize = 96;
const SIZE: u64 = WORDS as u64 * 8;
/// The stack of an interrupt, whose last word leads to the task's; and the task's, which lies higher.
const STACKS: [u64; 2] = [0xffff_8880_0000_0000, 0xffff_8880_1000_0000];
const TASK: usize = 1;
/// Bytes of all registers, and where some of them are.
const REGS: u64 = 21 * 8;
const REGS_BP: u64 = 4 * 8;
const REGS_IP: u64 = 16 * 8;
const REGS_CS: u64 = 17 * 8;
/// Where the registers of user space are, or memory for them.
const USER: u64 = STACKS[TASK] + SIZE - REGS;

/// What the kernel's unwinder knows of a walk: `struct unwind_state`.
#[derive(Clone, Copy)]
struct State {
    stack: usize,
    bp: u64,
    regs: Option<u64>,
    ip: u64,
}

/// The kernel: `arch/x86/kernel/unwind_frame.c`, and two stacks.
struct Kernel {
    words: [Vec<u64>; 2],
    state: Option<State>,
    rules: HashSet<u64>,
    steps: usize,
}

fn holds(stack: usize, addr: u64, len: u64) -> bool {
    let end = STACKS[stack] + SIZE;
    (STACKS[stack]..end).contains(&addr) && addr + len <= end
}

impl Kernel {
    fn new(words: [Vec<u64>; 2]) -> Self {
        Self {
            words,
            state: None,
            rules: HashSet::new(),
            steps: 0,
        }
    }

    /// Eight bytes at any address of a stack.
    fn word(&self, addr: u64) -> u64 {
        let stack = usize::from(addr >= STACKS[TASK]);
        assert!(holds(stack, addr, 8), "{addr:#x} is not on a stack");
        let (at, bits) = ((addr - STACKS[stack]) as usize, addr % 8 * 8);
        let words = &self.words[stack];
        match bits {
            0 => words[at / 8],
            _ => words[at / 8] >> bits | words[at / 8 + 1] << (64 - bits),
        }
    }

    fn is_user(&self, regs: u64) -> bool {
        self.word(regs + REGS_CS) & 3 != 0
    }

    fn return_address(&self, addr: u64) -> u64 {
        match self.word(addr) {
            // A tracer knows by the address.
            REPLACED => TEXT + 0x1000 + addr % 4096 * 16,
            ip => ip,
        }
    }

    fn is_last(&self, bp: u64) -> bool {
        let last = USER - 16;
        let same = |one, two| self.word(one) == self.word(two);
        bp == last
            || bp == last - 8 && same(bp + 8, last + 8)
            || bp == last - 24 && same(bp, bp + 16) && same(bp + 8, bp + 32)
    }

    /// `unwind_next_frame()`.
    fn next(&self, mut state: State) -> Option<State> {
        let next = match state.regs {
            Some(regs) if self.is_user(regs) => return None,
            Some(regs) => self.word(regs + REGS_BP),
            None if self.is_last(state.bp) => {
                // The registers of user space, which are no frame.
                return self.is_user(USER).then_some(State {
                    regs: Some(USER),
                    ip: 0,
                    ..state
                });
            }
            None => self.word(state.bp),
        };
        // `update_stack_state()`.
        let prev_end = state.regs.map_or(state.bp + 16, |regs| regs + REGS);
        let prev = state.stack;
        let (frame, len) = match next & 1 {
            0 => (next, 16),
            _ => (next & !1, REGS),
        };
        if !holds(state.stack, frame, len) {
            let up = STACKS[0] + SIZE - 8;
            if state.stack == TASK || !holds(TASK, self.word(up), 1) || !holds(TASK, frame, len) {
                return None;
            }
            state.stack = TASK;
        }
        if state.stack == prev && frame < prev_end {
            return None;
        }
        state.regs = (len == REGS).then_some(frame);
        state.bp = frame;
        state.ip = match state.regs {
            Some(regs) if self.is_user(regs) => 0,
            Some(regs) => self.return_address(regs + REGS_IP),
            None => self.return_address(frame + 8),
        };
        Some(state)
    }

    /// All frames of a walk from there.
    fn frames(&self, start: State, skip: usize, max: usize) -> Vec<u64> {
        let states = std::iter::successors(Some(start), |state| self.next(*state));
        let ips = states.map(|state| state.ip);
        let text = ips.take_while(|ip| self.is_text(*ip));
        text.skip(skip).take(max).collect()
    }

    /// As the module sees a state.
    fn frame(&self, state: State) -> KernelFrame {
        let at = match state.regs {
            Some(regs) => FrameRegisters {
                ip: state.ip,
                sp: regs,
                bp: 0,
            },
            None => FrameRegisters {
                ip: state.ip,
                sp: state.bp + 16,
                bp: self.word(state.bp),
            },
        };
        let end = match state.stack {
            TASK => USER,
            other => STACKS[other] + SIZE - 1,
        };
        KernelFrame {
            at,
            // SAFETY: Only `load` reads there, and it makes it up.
            stack: unsafe { StackBounds::new(STACKS[state.stack], end) },
            interrupted: state.regs.is_some(),
            registers: 0,
        }
    }

    /// A walk that begins at a record on the task's stack.
    fn start(&self, bp: u64) -> State {
        State {
            stack: TASK,
            bp,
            regs: None,
            ip: self.word(bp + 8),
        }
    }

    fn walk(&mut self, start: State, skip: usize, max: usize, known: &[u64]) -> (Vec<u64>, bool) {
        self.state = (start.stack != TASK).then_some(start);
        let mut ips = vec![0; max];
        let frame = self.frame(start);
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

    /// The words of a predicted stack with these frames.
    fn words_of(&self, frames: &[u64]) -> Vec<u64> {
        let rule = |ip: &u64| self.rules.contains(ip);
        words_of(frames, |ip| match rule(&ip) {
            true => UnwindRule::FRAME,
            false => UnwindRule::UNKNOWN,
        })
    }
}

impl Unwinder for Kernel {
    const USES_FRAME_RECORDS: bool = true;

    fn load<const OFFSET: i32>(&self, word: StackWord<OFFSET>) -> u64 {
        let addr = word.address();
        self.word(addr)
    }

    fn rule(&self, ip: u64) -> UnwindRule {
        match self.rules.contains(&ip) {
            true => UnwindRule::FRAME,
            false => UnwindRule::UNKNOWN,
        }
    }

    fn learn(&mut self, ip: u64) -> UnwindRule {
        // Some text can be freed at any time.
        if self.is_replaced(ip) || ip % 16 == 8 {
            return UnwindRule::UNKNOWN;
        }
        self.rules.insert(ip);
        UnwindRule::FRAME
    }

    fn is_text(&self, ip: u64) -> bool {
        ip >= TEXT
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

    fn step(&mut self, frame: KernelFrame) -> Option<KernelFrame> {
        self.steps += 1;
        let mut state = self.state.unwrap_or(State {
            stack: TASK,
            bp: 0,
            regs: None,
            ip: 0,
        });
        if !frame.interrupted {
            state.bp = frame.at.sp - 16;
            state.regs = None;
            state.ip = frame.at.ip;
        }
        let next = self.next(state);
        self.state = next.or(Some(state));
        next.map(|state| self.frame(state))
    }

    fn count(&mut self, _: WalkCounter, _: u64) {}
}

/// What a word of a stack is.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// This number of words further up.
    Up(u64),
    /// The same, as the kernel encodes registers.
    Registers(u64),
    /// Somewhere on the task's stack.
    Task(u64),
    /// What the word before the last one is.
    Copy,
    Text(u64),
    Replaced,
    Number(u64),
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        2 => (0..40_u64).prop_map(Word::Up),
        1 => (0..24_u64).prop_map(Word::Registers),
        1 => (0..SIZE).prop_map(Word::Task),
        1 => Just(Word::Copy),
        1 => (0..8_u64).prop_map(Word::Text),
        1 => Just(Word::Replaced),
        1 => prop_oneof![0..4_u64, any::<u64>()].prop_map(Word::Number),
    ]
}

/// A record: nearly always one that leads on, to a text address.
fn record() -> impl Strategy<Value = [Word; 2]> {
    let bp = prop_oneof![12 => (1..4_u64).prop_map(|records| Word::Up(2 * records)), 2 => word()];
    let ip =
        prop_oneof![12 => (0..8_u64).prop_map(Word::Text), 1 => Just(Word::Replaced), 1 => word()];
    (bp, ip).prop_map(|(bp, ip)| [bp, ip])
}

fn stack() -> impl Strategy<Value = Vec<Word>> {
    // What is above the last record of the task is a whole number of records only with one word more.
    (vec(record(), WORDS / 2), any::<bool>()).prop_map(|(records, shifted)| {
        let mut words = records.concat();
        words.rotate_right(shifted.into());
        words
    })
}

fn made(stacks: [Vec<Word>; 2], users: bool) -> Kernel {
    let mut words = [Vec::new(), Vec::new()];
    for ((stack, begin), words) in stacks.iter().zip(STACKS).zip(&mut words) {
        for (index, word) in stack.iter().enumerate() {
            let here = begin + index as u64 * 8;
            words.push(match *word {
                Word::Up(nr) => here + nr * 8,
                Word::Registers(nr) => here + nr * 8 + 1,
                Word::Task(bytes) => STACKS[TASK] + bytes,
                Word::Copy => words.iter().nth_back(1).copied().unwrap_or(0),
                Word::Text(nr) => TEXT + 16 + nr * 8,
                Word::Replaced => REPLACED,
                Word::Number(number) => number,
            });
        }
    }
    words[TASK][((USER + REGS_CS - STACKS[TASK]) / 8) as usize] = if users { 0x33 } else { 0 };
    Kernel::new(words)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(4000)
    })]

    #[test]
    fn the_walk_finds_the_frames_of_the_kernel(
        stacks in (stack(), stack()),
        users: bool,
        on_task: bool,
        first in prop_oneof![9 => (0..10_u64).prop_map(|nr| 8 * nr), 1 => Just(4)],
        skip in 0..4_usize,
        max in prop_oneof![Just(200_usize), 1..20_usize],
        cut in 0..20_usize,
        taken in vec(0..20_usize, 0..3),
    ) {
        let mut kernel = made([stacks.0, stacks.1], users);
        let stack = usize::from(on_task);
        let bp = STACKS[stack] + first;
        let start = State { stack, bp, regs: None, ip: kernel.word(bp + 8) };
        // There the module leaves all to the kernel.
        prop_assume!(start.ip != REPLACED);
        let wanted = kernel.frames(start, skip, max);
        prop_assert_eq!(kernel.walk(start, skip, max, &[]).0, &wanted[..]);
        prop_assert_eq!(kernel.walk(start, skip, max, &[]).0, &wanted[..]);
        if wanted.is_empty() {
            return Ok(());
        }
        let all = kernel.words_of(&wanted);
        let mut less = all.clone();
        for index in taken {
            if let Some(word) = less.get_mut(index) {
                *word &= 0xffff_ffff;
            }
        }
        let nr = cut.clamp(1, wanted.len());
        let shorter = kernel.words_of(&wanted[..nr]);
        let other = kernel.words_of(&[&wanted[..nr], &[TEXT + 0x100, TEXT + 0x108][..]].concat());
        for known in [all, less, shorter, other] {
            prop_assert_eq!(kernel.walk(start, skip, max, &known).0, &wanted[..]);
        }
    }
}

/// Records one above the other on the task's stack, and the address of the first one.
fn plain(nr: usize) -> (Kernel, State) {
    let mut stack = vec![Word::Number(0); WORDS];
    let first = ((USER - STACKS[TASK]) / 8) as usize + 2 - 4 * nr;
    for index in 0..nr {
        stack[first + 4 * index] = Word::Up(4);
        stack[first + 4 * index + 1] = Word::Text(2 * index as u64);
    }
    let kernel = made([stack.clone(), stack], true);
    let bp = STACKS[TASK] + first as u64 * 8;
    let start = kernel.start(bp);
    (kernel, start)
}

#[test]
fn a_plain_stack_takes_no_step_of_the_kernel() {
    let (mut kernel, start) = plain(12);
    let wanted = kernel.frames(start, 0, 100);
    assert_eq!(wanted.len(), 12);
    assert_eq!(kernel.walk(start, 0, 100, &[]), (wanted.clone(), false));
    let known = kernel.words_of(&wanted);
    kernel.rules.clear();
    assert_eq!(kernel.walk(start, 0, 100, &known), (wanted.clone(), true));
    assert!(kernel.rules.is_empty());
    // Without a cached rule, the text may have gone.
    for without in 0..12 {
        let mut less = known.clone();
        less[without] &= 0xffff_ffff;
        assert_eq!(kernel.walk(start, 0, 100, &less), (wanted.clone(), false));
    }
    // Frames that are skipped have no cached rules: the first time, rules are learnt.
    kernel.rules.clear();
    for is_known in [false, true] {
        let found = kernel.walk(start, 3, 100, &known[3..]);
        assert_eq!(found, (wanted[3..].to_vec(), is_known));
    }
    assert_eq!(kernel.steps, 0);
}

#[test]
fn the_last_record_is_where_the_kernel_has_it() {
    // Of a function that entry code calls, with the copies that tracers and compilers make of its record.
    for (copies, at) in [(0, 2), (1, 3), (3, 5), (0, 5)] {
        for up in 0..6 {
            let mut stack = vec![Word::Text(2); WORDS];
            let last = ((USER - STACKS[TASK]) / 8) as usize - at;
            stack[0] = Word::Task(last as u64 * 8);
            stack[last] = Word::Task((last as u64 + up) * 8);
            if copies == 3 {
                stack[last + 2] = stack[last];
            }
            let mut kernel = made([stack.clone(), stack], true);
            let bp = STACKS[TASK];
            let start = kernel.start(bp);
            let wanted = kernel.frames(start, 0, 100);
            // Without copies above, it is not the last one.
            let is_last = copies > 0 || at == 2;
            assert!(!is_last || wanted.len() == 2, "{copies} copies");
            assert!(is_last || up != 2 || wanted.len() == 3);
            assert_eq!(kernel.walk(start, 0, 100, &[]).0, wanted);
            let known = kernel.words_of(&wanted);
            let (found, is_known) = kernel.walk(start, 0, 100, &known);
            assert!(found == wanted && (is_known || copies > 0 || at > 2));
            let longer = kernel.words_of(&[TEXT + 32; 4]);
            assert_eq!(kernel.walk(start, 0, 100, &longer).0, wanted);
        }
    }
}

#[test]
fn the_rule_of_a_frame_is_what_is_learnt() {
    let run = |bp| LearnRun {
        sp: 16,
        bp,
        step: LearnedStep::Caller {
            ip: bp + 1,
            sp: bp + 2,
            bp: Some(bp),
        },
    };
    assert_eq!(UnwindRule::learn(&[run(400), run(440)]), UnwindRule::FRAME);
}
