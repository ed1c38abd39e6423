// SPDX-License-Identifier: GPL-2.0

//! Stacks that are made up, and what knows them.
#![allow(dead_code)] // Each test uses a part.

use proptest::prelude::*;
use stackmap_unwind::{
    frame::{FrameRegisters, KernelFrame, StackBounds},
    frame_word::FrameWord,
    rule::{LearnRun, LearnedStep, UnwindRule, REALIGNED_MAX},
    unwinder::{StackWord, Unwinder, WalkCounter},
    walk::walk,
    walk_predicted, words_of,
};
use std::{cell::RefCell, collections::HashMap};

/// The first address of a kernel's text.
pub(crate) const TEXT: u64 = 0xffff_ffff_8100_0000;

/// The address that a tracer puts in place of a return address.
pub(crate) const REPLACED: u64 = TEXT + 1;

/// The stack of an interrupt, then the task's, which lies higher.
pub(crate) const STACKS: [u64; 2] = [0xffff_8880_0000_0000, 0xffff_8880_1000_0000];

/// Bytes of each.
pub(crate) const SIZE: u64 = 1 << 16;

/// How one frame leads to the next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// By the stack pointer.
    Sp,
    /// By the frame pointer.
    Bp,
    /// Only the kernel knows how.
    Unsupported,
    /// By text that can be freed at any time.
    Fleeting,
    /// The next one has been interrupted.
    Interrupt,
    /// The same, and it is on the task's stack.
    Exception,
    /// A tracer has replaced the return address.
    Traced,
    /// To the other stack, where the frame pointer leads; when there already, as by the frame pointer.
    Switch,
    /// To the task's stack, where the word at the stack pointer leads; from there, only the kernel knows how.
    Entry,
    /// By one of the words below where the frame pointer leads: the stack was realigned.
    Realigned,
}

/// Where a stack ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The registers of user space.
    User,
    /// A function without a caller.
    Outermost,
    /// An address that is no text.
    NoText,
}

/// Words of one frame: how many, and where the frame pointer is saved, if it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) link: Link,
    pub(crate) words: u64,
    pub(crate) saved: Option<u64>,
    pub(crate) bp: u64,
}

impl Shape {
    /// Whether the next frame has been interrupted.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self.link, Link::Interrupt | Link::Exception)
    }

    pub(crate) fn is_by_bp(&self) -> bool {
        matches!(self.link, Link::Bp | Link::Switch | Link::Realigned)
    }
}

pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    let link = prop_oneof![
        8 => Just(Link::Sp),
        4 => Just(Link::Bp),
        1 => Just(Link::Unsupported),
        1 => Just(Link::Fleeting),
        1 => Just(Link::Interrupt),
        1 => Just(Link::Exception),
        1 => Just(Link::Traced),
        1 => Just(Link::Switch),
        1 => Just(Link::Entry),
        2 => Just(Link::Realigned),
    ];
    // Nearly all that is found by the frame pointer is where `push %rbp` has left it.
    let bp = prop_oneof![2 => Just(2), 1 => 0..20_u64];
    (link, 2..20_u64, proptest::option::of(0..20_u64), bp).prop_map(|(link, words, saved, bp)| {
        // Registers take four; an entry has its link, and what it saves below the return address; what is realigned
        // its link, two that are saved, and the return address.
        let words = match link {
            Link::Interrupt | Link::Exception | Link::Entry | Link::Realigned => words.max(4),
            _ => words,
        };
        let bp = match link {
            Link::Realigned => 2 + bp % (words - 3),
            _ => bp % words,
        };
        Shape {
            link,
            words,
            saved: saved.map(|at| match link {
                // Where `push %rbp` puts it.
                Link::Bp => words - 2,
                // This number of words below the return address.
                Link::Entry => 1 + at % (words - 2),
                // This number of words below where the frame pointer leads.
                Link::Realigned => 1 + at % (words - bp).min(REALIGNED_MAX.into()),
                _ => at % (words - 1),
            }),
            bp,
        }
    })
}

pub(crate) fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::User), Just(End::Outermost), Just(End::NoText)]
}

/// A stack that was made up, and the kernel that knows it.
pub(crate) struct Made {
    pub(crate) memory: HashMap<u64, u64>,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) end: End,
    /// All frames, the innermost first, and one more: nothing.
    pub(crate) frames: Vec<KernelFrame>,
    pub(crate) rules: HashMap<u64, UnwindRule>,
    pub(crate) learnt: usize,
    pub(crate) steps: usize,
    pub(crate) counts: [u64; WalkCounter::COUNT],
    /// The frames that were skipped, with their rules, by how many were to be skipped.
    skip_cache: RefCell<HashMap<usize, (u64, UnwindRule)>>,
    /// The frame in text whose rule is asked for each time, and whether that text is still there.
    pub(crate) image: Option<(usize, bool)>,
    /// Called at each read of a stack.
    pub(crate) on_load: Option<Box<dyn Fn()>>,
}

impl Made {
    pub(crate) fn new(shapes: Vec<Shape>, end: End) -> Self {
        // SAFETY: Only `load` reads there, and it makes it up.
        let stacks = STACKS.map(|begin| unsafe { StackBounds::new(begin, begin + SIZE) });
        let leaves =
            |shape: &Shape| matches!(shape.link, Link::Switch | Link::Entry | Link::Exception);
        let switches = shapes.iter().any(leaves);
        let mut stack = stacks[usize::from(!switches)];
        let mut sp = stack.begin() + 4096;
        let mut interrupted = false;
        let mut frames = Vec::new();
        for index in 0..=shapes.len() {
            frames.push(KernelFrame {
                at: FrameRegisters {
                    ip: TEXT + 16 + index as u64 * 16,
                    sp,
                    bp: 0,
                },
                stack,
                interrupted,
                registers: 0,
            });
            let Some(shape) = shapes.get(index) else {
                break;
            };
            sp += shape.words * 8;
            interrupted = shape.is_interrupted();
            if leaves(shape) && stack.begin() == STACKS[0] {
                stack = stacks[1];
                sp = stack.begin() + 4096;
            }
        }
        let mut made = Self {
            memory: HashMap::new(),
            shapes,
            end,
            frames,
            rules: HashMap::new(),
            learnt: 0,
            steps: 0,
            counts: [0; WalkCounter::COUNT],
            skip_cache: RefCell::default(),
            image: None,
            on_load: None,
        };
        made.lay_out();
        made
    }

    /// Chooses frame pointers, and writes what the frames have on the stack.
    pub(crate) fn lay_out(&mut self) {
        let nr = self.shapes.len();
        for index in (0..=nr).rev() {
            self.frames[index].at.bp = match self.shapes.get(index) {
                Some(shape) if shape.is_by_bp() => self.frames[index + 1].at.sp - 8 * shape.bp,
                // It stays for the caller, which may need it.
                Some(shape) if shape.saved.is_none() => self.frames[index + 1].at.bp,
                _ => 0xb0b0 + index as u64,
            };
        }
        for index in 0..nr {
            let (frame, caller) = (self.frames[index], self.frames[index + 1]);
            let shape = &mut self.shapes[index];
            if shape.is_interrupted() {
                let registers = [caller.at.ip, 0x10, caller.at.sp, caller.at.bp];
                self.memory
                    .extend((frame.at.sp..).step_by(8).zip(registers));
                continue;
            }
            if caller.at.bp != frame.at.bp {
                shape.saved.get_or_insert(match shape.link {
                    Link::Bp => shape.words - 2,
                    Link::Entry | Link::Realigned => 1,
                    _ => 0,
                });
            }
            if shape.link == Link::Entry {
                self.memory
                    .insert(frame.at.sp, caller.at.sp - 8 * shape.words);
            }
            if let Some(at) = shape.saved {
                if shape.link == Link::Realigned {
                    self.memory.insert(frame.at.bp - 8 * at, caller.at.sp);
                }
                let at = match shape.link {
                    Link::Realigned => frame.at.bp,
                    Link::Entry => caller.at.sp - 8 * (at + 1),
                    _ => frame.at.sp + 8 * at,
                };
                self.memory.insert(at, caller.at.bp);
            }
            let ip = match shape.link {
                Link::Traced => REPLACED,
                _ => caller.at.ip,
            };
            self.memory.insert(caller.at.sp - 8, ip);
        }
        // User space's: ip, cs.
        let last = self.frames[nr].at.sp;
        self.memory.extend([(last, 0x1000), (last + 8, 0x33)]);
    }

    pub(crate) fn index_of(&self, ip: u64) -> usize {
        (ip.wrapping_sub(TEXT + 16) / 16) as usize
    }

    /// Whether the address is in text whose rule is asked for each time; and if so, whether that is there.
    fn image(&self, ip: u64) -> Option<bool> {
        let index = self.index_of(ip);
        let image = self.image.filter(|image| image.0 == index);
        image.map(|image| image.1)
    }

    /// What the kernel's unwinder does at a frame, from other pointers.
    pub(crate) fn try_from(&self, index: usize, sp: u32, bp: u32) -> LearnedStep {
        let Some(shape) = self.shapes.get(index) else {
            return match self.end {
                End::User => LearnedStep::Registers(sp),
                _ => LearnedStep::End,
            };
        };
        let new = match shape.link {
            Link::Sp | Link::Traced => sp + shape.words as u32,
            Link::Bp | Link::Switch => bp + shape.bp as u32,
            Link::Interrupt | Link::Exception => return LearnedStep::Registers(sp),
            Link::Unsupported | Link::Fleeting | Link::Entry | Link::Realigned => {
                return LearnedStep::Other
            }
        };
        LearnedStep::Caller {
            ip: new - 1,
            sp: new,
            bp: shape.saved.map(|at| match shape.link {
                Link::Bp => new - (shape.words - at) as u32,
                _ => sp + at as u32,
            }),
        }
    }

    /// The same where the stack pointer is a word that leads to another one.
    fn try_link(&self, index: usize, linked: u32) -> LearnedStep {
        let Some(shape) = self.shapes.get(index) else {
            return LearnedStep::Other;
        };
        if shape.link != Link::Entry {
            return self.try_from(index, 8, 400);
        }
        let sp = linked + shape.words as u32;
        LearnedStep::Caller {
            ip: sp - 1,
            sp,
            bp: shape.saved.map(|at| sp - 1 - at as u32),
        }
    }

    /// The same where the word so far below the frame pointer leads to another one.
    fn try_realigned(&self, index: usize, words: u32, linked: u32) -> LearnedStep {
        match self.shapes.get(index) {
            Some(shape) if shape.link != Link::Realigned => self.try_from(index, 16, 8 + words),
            Some(shape) if shape.saved == Some(words.into()) => LearnedStep::Caller {
                ip: linked - 1,
                sp: linked,
                bp: Some(8 + words),
            },
            _ => LearnedStep::Other,
        }
    }

    /// All return addresses.
    pub(crate) fn ips(&self) -> Vec<u64> {
        let mut ips: Vec<u64> = self.frames.iter().map(|frame| frame.at.ip).collect();
        if let End::NoText = self.end {
            ips.pop();
        }
        ips
    }

    /// Returns the frames that the walk finds.
    pub(crate) fn walk(&mut self, skip: usize, max: usize) -> Vec<u64> {
        self.walk_with(None, skip, max).0
    }

    /// The same with a prediction; and whether that has all frames.
    pub(crate) fn walk_with(
        &mut self,
        known: Option<&[u64]>,
        skip: usize,
        max: usize,
    ) -> (Vec<u64>, bool) {
        let mut ips = vec![0; max];
        let frame = self.frames[0];
        let Some(nr) = walk_predicted(self, frame, skip, &mut ips, 0, known) else {
            return (known.map_or(Vec::new(), frames), true);
        };
        ips.truncate(nr);
        (ips, false)
    }

    /// The words of its stack, with the rules that were learnt.
    pub(crate) fn words_of(&self, frames: &[u64]) -> Vec<u64> {
        let replaced = |ip: u64| {
            let index = self.index_of(ip);
            self.shapes
                .get(index)
                .is_some_and(|shape| shape.link == Link::Traced)
        };
        words_of(frames, |ip| match self.rules.get(&ip) {
            Some(rule) if !replaced(ip) => *rule,
            _ => UnwindRule::UNKNOWN,
        })
    }
}

impl Unwinder for Made {
    fn load<const OFFSET: i32>(&self, word: StackWord<OFFSET>) -> u64 {
        let addr = word.address();
        if let Some(on_load) = &self.on_load {
            on_load();
        }
        let on = |begin: &u64| (*begin..=begin + SIZE - 8).contains(&addr);
        assert!(STACKS.iter().any(on), "{addr:#x} is on no stack");
        self.memory.get(&addr).copied().unwrap_or(0xdead)
    }

    fn rule(&self, ip: u64) -> UnwindRule {
        match self.image(ip) {
            Some(true) => UnwindRule::FRAME,
            Some(false) => UnwindRule::UNKNOWN,
            None => self.rules.get(&ip).copied().unwrap_or(UnwindRule::UNKNOWN),
        }
    }

    fn skip_rule(&self, to_skip: usize, ip: u64) -> UnwindRule {
        match self.skip_cache.borrow().get(&to_skip) {
            Some((cached, rule)) if *cached == ip => *rule,
            _ => UnwindRule::UNKNOWN,
        }
    }

    fn cache_skip_rule(&self, to_skip: usize, ip: u64, rule: UnwindRule) {
        if !self.is_replaced(ip) && rule != UnwindRule::UNKNOWN {
            self.skip_cache.borrow_mut().insert(to_skip, (ip, rule));
        }
    }

    fn learn(&mut self, ip: u64) -> UnwindRule {
        let index = self.index_of(ip);
        if self
            .shapes
            .get(index)
            .is_some_and(|shape| shape.link == Link::Fleeting)
        {
            return UnwindRule::UNKNOWN;
        }
        let runs = [400, 440].map(|bp| LearnRun {
            sp: 16,
            bp,
            step: self.try_from(index, 16, bp),
        });
        let mut rule = UnwindRule::learn(&runs);
        if rule == UnwindRule::SLOW {
            rule = UnwindRule::learn_switch(&[200, 250].map(|sp| LearnRun {
                sp,
                bp: 400,
                step: self.try_link(index, sp),
            }));
        }
        for words in 1..=REALIGNED_MAX {
            if rule == UnwindRule::SLOW {
                let runs = [200, 250].map(|sp| LearnRun {
                    sp,
                    bp: 8 + words,
                    step: self.try_realigned(index, words, sp),
                });
                rule = UnwindRule::learn_realigned(words, &runs);
            }
        }
        assert!(self.rules.insert(ip, rule).is_none(), "learnt twice");
        self.learnt += 1;
        rule
    }

    fn is_text(&self, ip: u64) -> bool {
        let nr = match self.end {
            End::NoText => self.shapes.len(),
            _ => self.frames.len(),
        };
        self.index_of(ip) < nr && self.image(ip) != Some(false)
    }

    fn is_replaced(&self, ip: u64) -> bool {
        ip == REPLACED
    }

    fn are_users(&self, stack: &StackBounds, registers: u64) -> bool {
        stack.holds(registers, 16)
            && self
                .word(stack, registers + 8)
                .is_some_and(|cs| cs & 3 != 0)
            && self.word(stack, registers).is_some_and(|ip| ip < 1 << 47)
    }

    fn registers(&self, stack: &StackBounds, registers: u64) -> Option<FrameRegisters> {
        let word = |at: u64| self.word(stack, registers + 8 * at);
        let [ip, cs, sp, bp] = [word(0)?, word(1)?, word(2)?, word(3)?];
        (cs & 3 == 0).then_some(FrameRegisters { ip, sp, bp })
    }

    fn task(&self) -> StackBounds {
        // SAFETY: Only `load` reads there, and it makes it up.
        unsafe { StackBounds::new(STACKS[1], STACKS[1] + SIZE) }
    }

    fn step(&mut self, frame: KernelFrame) -> Option<KernelFrame> {
        let index = self.index_of(frame.at.ip);
        let known = self.frames[index];
        assert_eq!(
            (frame.at.sp, frame.at.bp),
            (known.at.sp, known.at.bp),
            "frame {index}"
        );
        assert_eq!(frame.interrupted, known.interrupted, "frame {index}");
        if frame.registers != 0 {
            assert_eq!(frame.registers, self.frames[index - 1].at.sp);
        }
        self.steps += 1;
        self.frames.get(index + 1).copied()
    }

    fn count(&mut self, found: WalkCounter, nr: u64) {
        self.counts[found as usize] += nr;
    }
}

/// The frames of words.
pub(crate) fn frames(words: &[u64]) -> Vec<u64> {
    words.iter().map(|word| FrameWord(*word).ip()).collect()
}

/// A kernel in which all calls are alike, and nothing else is known.
pub(crate) struct Alike {
    pub(crate) stack: StackBounds,
    pub(crate) rule: UnwindRule,
    pub(crate) counts: [u64; WalkCounter::COUNT],
}

impl Alike {
    /// Frames of this number of words; the frame pointer is in the first word.
    pub(crate) fn new(words: u32) -> Self {
        let run = |bp| LearnRun {
            sp: 16,
            bp,
            step: LearnedStep::Caller {
                ip: 15 + words,
                sp: 16 + words,
                bp: (words > 1).then_some(16),
            },
        };
        let rule = UnwindRule::learn(&[run(400), run(440)]);
        assert!(rule.plain().is_some());
        Self {
            // SAFETY: Only `load` reads there, and it makes it up.
            stack: unsafe { StackBounds::new(STACKS[0], STACKS[0] + SIZE) },
            rule,
            counts: [0; WalkCounter::COUNT],
        }
    }

    /// The frame with a stack pointer.
    pub(crate) fn frame(&self, sp: u64) -> KernelFrame {
        KernelFrame {
            at: FrameRegisters {
                ip: TEXT,
                sp,
                bp: 0,
            },
            stack: self.stack,
            interrupted: false,
            registers: 0,
        }
    }

    /// How many frames are found from a stack pointer on.
    pub(crate) fn walk(&mut self, sp: u64, max: usize) -> usize {
        self.counts = [0; WalkCounter::COUNT];
        let frame = self.frame(sp);
        let mut ips = vec![0; max];
        walk(self, frame, 0, &mut ips, 0)
    }

    pub(crate) fn count(&self, found: WalkCounter) -> u64 {
        self.counts[found as usize]
    }
}

impl Unwinder for Alike {
    fn load<const OFFSET: i32>(&self, word: StackWord<OFFSET>) -> u64 {
        let addr = word.address();
        assert!(self.stack.holds(addr, 8), "{addr:#x} is not on it");
        TEXT
    }

    fn rule(&self, _: u64) -> UnwindRule {
        self.rule
    }

    fn learn(&mut self, _: u64) -> UnwindRule {
        self.rule
    }

    fn is_text(&self, _: u64) -> bool {
        true
    }

    fn is_replaced(&self, _: u64) -> bool {
        false
    }

    fn are_users(&self, _: &StackBounds, _: u64) -> bool {
        false
    }

    fn registers(&self, _: &StackBounds, _: u64) -> Option<FrameRegisters> {
        None
    }

    fn task(&self) -> StackBounds {
        self.stack
    }

    fn step(&mut self, _: KernelFrame) -> Option<KernelFrame> {
        None
    }

    fn count(&mut self, found: WalkCounter, nr: u64) {
        self.counts[found as usize] += nr;
    }
}

/// Returns a frame of `words` words that was realigned, whose frame pointer is saved `below` words below.
pub(crate) fn realigned(words: u64, bp: u64, below: u64) -> Shape {
    Shape {
        link: Link::Realigned,
        words,
        saved: Some(below),
        bp,
    }
}

/// PlainRule frames of some words.
pub(crate) fn plain(words: u64) -> Shape {
    Shape {
        link: Link::Sp,
        words,
        saved: None,
        bp: 0,
    }
}
