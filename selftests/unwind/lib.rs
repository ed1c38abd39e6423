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
#[path = "../../src/unwind/run.rs"]
mod run;
#[path = "../../src/unwind/step.rs"]
mod step;
#[path = "../../src/unwind/walk.rs"]
pub mod walk;

use guided::{Guide, Guides};
use hints::{Hinted, Hints};
use rules::{Outcome, Rule, Run};
use std::{collections::HashMap, mem::MaybeUninit};
use walk::{Frame, Registers, Stack, Unwinder, WalkCounter, Walked};

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
        let rule = match self.byte() % 4 {
            0 => Rule::UNKNOWN,
            1 => Rule::learn(&runs),
            2 => Rule::learn_switch(&runs),
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

    fn shown(&self, ip: u64) -> Option<u64> {
        match ip % 13 {
            0 => None,
            1 => Some(MARKER),
            _ => Some(ip),
        }
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

/// What is recorded in place of some addresses.
const MARKER: u64 = 0x7fff_ffff;

/// Stacks that walks have found, with hints.
#[derive(Clone, Copy)]
pub struct Known<'a>(pub &'a [Vec<u64>]);

/// One of them.
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

    fn frames(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().map(|word| Hinted(*word).ip())
    }

    unsafe fn hinted(&self, index: usize) -> Hinted {
        Hinted(self.0[index])
    }
}

impl<'a> Guides for Known<'a> {
    type Guide = KnownStack<'a>;

    fn first(&self, index: usize, frame: u64) -> Option<KnownStack<'a>> {
        let begins = |stack: &&Vec<u64>| KnownStack(stack).frame(index) == Some(frame);
        self.0.iter().find(begins).map(|stack| KnownStack(stack))
    }

    fn next(&self, _: u64) -> Option<KnownStack<'a>> {
        None
    }

    fn other(&self, guide: &KnownStack<'a>, nr: usize, frame: u64) -> Option<KnownStack<'a>> {
        let same = |stack: &&Vec<u64>| {
            let known = KnownStack(stack);
            known.frame(nr) == Some(frame) && known.frames().take(nr).eq(guide.frames().take(nr))
        };
        self.0.iter().find(same).map(|stack| KnownStack(stack))
    }
}

/// The words of a stack: frames with the hints of rules. That of the last one is not plain.
pub fn hinted(frames: &[u64], rule: impl Fn(u64) -> Rule) -> Vec<u64> {
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
    // Guides that say anything.
    let known: Vec<Vec<u64>> = (0..hostile.byte() % 4)
        .map(|_| {
            let nr = usize::from(hostile.byte() % 16);
            let mut words: Vec<u64> = (0..nr)
                .map(|_| {
                    let ip = 0xffff_ffff_8100_0000 + u64::from(hostile.byte() % 64);
                    let rule = hostile.learn(ip);
                    Hinted::new(ip, rule).0
                })
                .collect();
            if let Some(last) = words.last_mut() {
                *last &= !0 >> 12;
            }
            words
        })
        .collect();
    let guides = (!known.is_empty()).then_some(Known(&known));
    let nr = match walk::walk(&mut hostile, frame, skip, &mut ips, 0, guides) {
        Walked::Known(guide, _) => {
            assert!(guide.nr() > 0);
            return;
        }
        Walked::Frames(nr, left) => {
            if let Some((guide, same)) = left {
                // SAFETY: The walk has written them.
                let frames = ips[..nr].iter().map(|ip| unsafe { ip.assume_init() });
                let same = same.min(nr).min(guide.nr());
                assert!(guide
                    .frames()
                    .take(same)
                    .zip(frames)
                    .all(|(a, b)| a == b || a == MARKER));
            }
            nr
        }
    };
    assert!(nr <= ips.len());
    assert!(hostile.counted <= (nr + skip) as u64);
    for ip in &ips[..nr] {
        // SAFETY: The walk has written them: Miri says if not.
        let _ = unsafe { ip.assume_init() };
    }
}
