// SPDX-License-Identifier: GPL-2.0

//! How the module walks stacks, as it is in the module, and an unwinder that lies.

#[path = "../../src/unwind/frames.rs"]
mod frames;
#[path = "../../src/unwind/guided.rs"]
pub mod guided;
#[path = "../../src/unwind/hints.rs"]
pub mod hints;
#[path = "../../src/unwind/rules.rs"]
pub mod rules;
#[path = "../../src/unwind/step.rs"]
mod step;
#[path = "../../src/unwind/walk.rs"]
pub mod walk;

use guided::{expected, Guide, Guides};
use hints::{Hinted, Hints};
use rules::{Outcome, Rule, Run, REALIGNED_MAX};
use std::{collections::HashMap, mem::MaybeUninit};
use walk::{Frame, Registers, Stack, Unwinder, WalkCounter};

/// An unwinder, a stack and rules that are made of hostile bytes.
struct Hostile<'a> {
    bytes: std::slice::Iter<'a, u8>,
    stack: Stack,
    rules: HashMap<u64, Rule>,
    counted: u64,
}

impl Hostile<'_> {
    /// The next byte; 0 when there are no more.
    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    /// A number that is near the stack, or anything.
    fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=199 => self.stack.begin() + u64::from(byte) * 8 - 160,
            200..=229 => !u64::from(self.byte()),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn pointers(&mut self) -> Registers {
        Registers {
            ip: self.number(),
            sp: self.number(),
            bp: self.number(),
        }
    }

    fn outcome(&mut self, run: &mut [u32; 2]) -> Outcome {
        let word = |byte: u8| 20 + u32::from(byte);
        match self.byte() % 8 {
            0 => Outcome::Registers(word(self.byte())),
            1 => Outcome::End,
            2 => Outcome::Other,
            from => {
                // The same from both stack pointers, or from both frame pointers.
                run[1] = 400 + 40 * u32::from(from % 2);
                let base = if from < 6 { 0 } else { run[1] };
                let sp = word(self.byte()) + base;
                Outcome::Caller {
                    ip: sp - 1,
                    sp,
                    bp: (from % 3 == 0).then(|| sp.saturating_sub(u32::from(self.byte()))),
                }
            }
        }
    }
}

impl Unwinder for Hostile<'_> {
    unsafe fn load(&self, addr: u64) -> u64 {
        let on = |stack: Stack| stack.begin() <= addr && addr <= stack.end() - 8;
        assert!(
            on(self.stack) || on(self.task()),
            "{addr:#x} is on no stack"
        );
        let begin = self.stack.begin();
        // Words of the stack are addresses in it, or in text.
        let hash = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if hash >> 63 == 0 {
            begin + hash % 600
        } else {
            0xffff_ffff_8100_0000 + hash % 64
        }
    }

    fn rule(&self, ip: u64) -> Rule {
        self.rules.get(&ip).copied().unwrap_or(Rule::UNKNOWN)
    }

    fn learn(&mut self, ip: u64) -> Rule {
        let runs = [400, 440].map(|bp| {
            let mut pointers = [16, bp];
            let outcome = self.outcome(&mut pointers);
            Run {
                sp: 16,
                bp: pointers[1],
                outcome,
            }
        });
        let rule = match self.byte() % 5 {
            0 => Rule::UNKNOWN,
            1 => Rule::learn(&runs),
            2 => Rule::learn_switch(&runs),
            3 => realigned(1 + u32::from(self.byte()) % REALIGNED_MAX),
            _ => Rule::learn(&[runs[0], runs[0]]),
        };
        if rule != Rule::UNKNOWN {
            self.rules.insert(ip, rule);
        }
        rule
    }

    fn is_text(&self, ip: u64) -> bool {
        ip % 7 != 0
    }

    fn is_replaced(&self, ip: u64) -> bool {
        ip % 11 == 0
    }

    fn are_users(&self, stack: &Stack, registers: u64) -> bool {
        stack
            .word(self, registers)
            .is_some_and(|word| word % 2 == 0)
    }

    fn registers(&self, stack: &Stack, registers: u64) -> Option<Registers> {
        let word = |at: u64| stack.word(self, registers.wrapping_add(8 * at));
        let [ip, sp, bp] = [word(0)?, word(1)?, word(2)?];
        Some(Registers { ip, sp, bp })
    }

    fn task(&self) -> Stack {
        let (begin, end) = (self.stack.end(), self.stack.end() + 0x400);
        // SAFETY: As for the other one.
        unsafe { Stack::new(begin, end) }
    }

    fn step(&mut self, frame: Frame) -> Option<Frame> {
        (self.bytes.len() > 0).then(|| Frame {
            at: self.pointers(),
            interrupted: self.byte() % 4 == 0,
            ..frame
        })
    }

    fn count(&mut self, _: WalkCounter, nr: u64) {
        self.counted += nr;
    }
}

/// The rule of a function that has realigned its stack: its caller's stack pointer is so many words below the frame
/// pointer.
fn realigned(words: u32) -> Rule {
    let run = |sp, bp| Run {
        sp,
        bp,
        outcome: Outcome::Caller {
            ip: sp - 1,
            sp,
            bp: Some(bp),
        },
    };
    Rule::learn_realigned(words, &[run(200, 20), run(250, 30)])
}

/// A stack that walks have found, with hints.
#[derive(Clone, Copy)]
pub struct KnownStack<'a>(pub &'a [u64]);

// SAFETY: The frames are borrowed, and the last one's word has no hint of a size.
unsafe impl Guide for KnownStack<'_> {
    fn nr(&self) -> usize {
        self.0.len()
    }

    fn frame(&self, index: usize) -> Option<u64> {
        self.0.get(index).map(|word| Hinted(*word).ip())
    }

    fn frames_after(&self, nr: usize) -> impl ExactSizeIterator<Item = u64> {
        let words = self.0.get(nr..).unwrap_or(&[]).iter();
        words.map(|word| Hinted(*word).ip())
    }

    unsafe fn hinted(&self, index: usize) -> Hinted {
        Hinted(self.0[index])
    }
}

/// Guides of which one is predicted, by any frame.
#[derive(Clone, Copy)]
pub struct Predicted<G>(pub G);

impl<G: Guide> Guides for Predicted<G> {
    type Guide = G;

    fn next(&self, _: u64) -> Option<G> {
        Some(self.0)
    }
}

/// Walks a stack as the module does: along the guide that is predicted, if there is one, else by rules. Returns
/// the number of frames, which are written; or [`None`] if the guide has all of them.
pub fn walk_predicted<U: Unwinder>(
    unwinder: &mut U,
    mut frame: Frame,
    mut skip: usize,
    ips: &mut [MaybeUninit<u64>],
    nr: usize,
    predicted: Option<impl Guide>,
) -> Option<usize> {
    // SAFETY: The caller has written the first `nr`.
    let before = (nr > 0).then(|| unsafe { ips[0].assume_init() });
    if let (Some(guide), false) = (predicted, frame.interrupted) {
        let guides = Predicted(guide);
        if let Some(guide) = expected(unwinder, &mut frame, &mut skip, nr, before, &guides) {
            unwinder.count(WalkCounter::Fast, (guide.nr() - nr) as u64);
            return None;
        }
    }
    Some(walk::walk(unwinder, frame, skip, ips, nr))
}

/// The words of a stack: frames with the hints of rules. That of the last one is not plain.
pub fn hinted(frames: &[u64], mut rule: impl FnMut(u64) -> Rule) -> Vec<u64> {
    let mut hints = Hints::default();
    let mut words: Vec<u64> = frames
        .iter()
        .map(|ip| u64::from(hints.hint(rule(*ip))) << 32 | ip & 0xffff_ffff)
        .collect();
    if let Some(last) = words.last_mut() {
        *last &= !0 >> 12;
    }
    words
}

/// Walks a stack that `bytes` describe. Panics if a word beside the stack is read, or more is written
/// than there is room for; and comes to an end, whatever the rules and the kernel say.
pub fn walk_hostile(bytes: &[u8]) {
    // SAFETY: Nothing is read there: `Hostile::load` makes it up.
    let stack = unsafe { Stack::new(0xffff_8880_0000_0000, 0xffff_8880_0000_0400) };
    let mut hostile = Hostile {
        bytes: bytes.iter(),
        stack,
        rules: HashMap::new(),
        counted: 0,
    };
    let frame = Frame {
        at: hostile.pointers(),
        stack,
        interrupted: false,
        registers: 0,
    };
    let skip = usize::from(hostile.byte() % 4);
    let mut ips = vec![MaybeUninit::uninit(); usize::from(hostile.byte())];
    // A guide that says anything.
    let nr = usize::from(hostile.byte() % 16);
    let known: Vec<u64> = (0..nr)
        .map(|_| 0xffff_ffff_8100_0000 + u64::from(hostile.byte() % 64))
        .collect();
    let known = hinted(&known, |ip| hostile.learn(ip));
    let guide = Some(KnownStack(&known));
    let Some(nr) = walk_predicted(&mut hostile, frame, skip, &mut ips, 0, guide) else {
        assert!(!known.is_empty());
        return;
    };
    assert!(nr <= ips.len());
    assert!(hostile.counted <= (nr + skip) as u64);
    for ip in &ips[..nr] {
        // SAFETY: The walk has written them: Miri says if not.
        let _ = unsafe { ip.assume_init() };
    }
}
