// SPDX-License-Identifier: GPL-2.0

//! How the module walks stacks, as it is in the module, and an unwinder that lies.

#[path = "../../src/unwind/frame.rs"]
pub mod frame;
#[path = "../../src/unwind/frame_record.rs"]
mod frame_record;
#[path = "../../src/unwind/frame_word.rs"]
pub mod frame_word;
#[path = "../../src/unwind/predict.rs"]
pub mod predict;
#[path = "../../src/unwind/rule.rs"]
pub mod rule;
#[path = "../../src/unwind/rules.rs"]
pub mod rules;
#[path = "../../src/unwind/step.rs"]
mod step;
#[path = "../../src/unwind/unwinder.rs"]
pub mod unwinder;
#[path = "../../src/unwind/walk.rs"]
pub mod walk;

use frame::{FrameRegisters, KernelFrame, StackBounds};
use frame_word::{FrameWord, RuleEncoder};
use map::{Map, Predictor, ReadSide, Seed};
use predict::follow;
use rule::{LearnRun, LearnedStep, UnwindRule, REALIGNED_MAX};
/// The map, as the files of the module name it.
pub use stackmap_map as map;
use std::collections::HashMap;
use unwinder::{StackWord, Unwinder, WalkCounter};

/// An unwinder, a stack and rules that are made of hostile bytes.
struct Hostile<'a> {
    bytes: std::slice::Iter<'a, u8>,
    stack: StackBounds,
    rules: HashMap<u64, UnwindRule>,
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

    fn pointers(&mut self) -> FrameRegisters {
        FrameRegisters {
            ip: self.number(),
            sp: self.number(),
            bp: self.number(),
        }
    }

    fn step_of(&mut self, run: &mut [u32; 2]) -> LearnedStep {
        let word = |byte: u8| 20 + u32::from(byte);
        match self.byte() % 8 {
            0 => LearnedStep::Registers(word(self.byte())),
            1 => LearnedStep::End,
            2 => LearnedStep::Other,
            from => {
                // The same from both stack pointers, or from both frame pointers.
                run[1] = 400 + 40 * u32::from(from % 2);
                let base = if from < 6 { 0 } else { run[1] };
                let sp = word(self.byte()) + base;
                LearnedStep::Caller {
                    ip: sp - 1,
                    sp,
                    bp: (from % 3 == 0).then(|| sp.saturating_sub(u32::from(self.byte()))),
                }
            }
        }
    }
}

impl Unwinder for Hostile<'_> {
    fn load<const OFFSET: i32>(&self, word: StackWord<OFFSET>) -> u64 {
        let addr = word.address();
        let on = |stack: StackBounds| stack.begin() <= addr && addr <= stack.end() - 8;
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

    fn rule(&self, ip: u64) -> UnwindRule {
        self.rules.get(&ip).copied().unwrap_or(UnwindRule::UNKNOWN)
    }

    fn learn(&mut self, ip: u64) -> UnwindRule {
        let runs = [400, 440].map(|bp| {
            let mut pointers = [16, bp];
            let step = self.step_of(&mut pointers);
            LearnRun {
                sp: 16,
                bp: pointers[1],
                step,
            }
        });
        let rule = match self.byte() % 5 {
            0 => UnwindRule::UNKNOWN,
            1 => UnwindRule::learn(&runs),
            2 => UnwindRule::learn_switch(&runs),
            3 => realigned(1 + u32::from(self.byte()) % REALIGNED_MAX),
            _ => UnwindRule::learn(&[runs[0], runs[0]]),
        };
        if rule != UnwindRule::UNKNOWN {
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

    fn are_users(&self, stack: &StackBounds, registers: u64) -> bool {
        self.word(stack, registers)
            .is_some_and(|word| word % 2 == 0)
    }

    fn registers(&self, stack: &StackBounds, registers: u64) -> Option<FrameRegisters> {
        let word = |at: u64| self.word(stack, registers.wrapping_add(8 * at));
        let [ip, sp, bp] = [word(0)?, word(1)?, word(2)?];
        Some(FrameRegisters { ip, sp, bp })
    }

    fn task(&self) -> StackBounds {
        let (begin, end) = (self.stack.end(), self.stack.end() + 0x400);
        // SAFETY: As for the other one.
        unsafe { StackBounds::new(begin, end) }
    }

    fn step(&mut self, frame: KernelFrame) -> Option<KernelFrame> {
        (self.bytes.len() > 0).then(|| KernelFrame {
            at: self.pointers(),
            interrupted: self.byte() % 4 == 0,
            ..frame
        })
    }

    fn count(&mut self, _: WalkCounter, nr: u64) {
        self.counted += nr;
    }
}

/// The rule of a function that has realigned its stack: its caller's stack pointer is this number of words below the frame
/// pointer.
fn realigned(words: u32) -> UnwindRule {
    let run = |sp, bp| LearnRun {
        sp,
        bp,
        step: LearnedStep::Caller {
            ip: sp - 1,
            sp,
            bp: Some(bp),
        },
    };
    UnwindRule::learn_realigned(words, &[run(200, 20), run(250, 30)])
}

/// Makes a map whose stacks can be predicted.
pub fn new_map() -> Map {
    Map::with_cached_rules(0, 1, Seed::new([1, 2])).expect("memory for a map")
}

/// Calls `f` with the predictions of a context that predicts one stack. `words` are its frames with cached rules.
pub fn predict_in<R>(map: &Map, words: &[u64], f: impl FnOnce(&Predictor<'_>) -> R) -> R {
    let frames: Vec<u64> = words.iter().map(|word| FrameWord(*word).ip()).collect();
    let section = ReadSide::enter();
    // SAFETY: Nobody else uses this map.
    let guard = unsafe { map.enter(section.inside(), 0) };
    let lookup = guard.get_id(&frames).expect("an id");
    let mut rules = words.iter().map(|word| (word >> 32) as u32);
    map.read(lookup.id, |_, record| {
        record.cache_rules(|_, _| rules.next().expect("as many as frames"))
    });
    // The first stack has none before it.
    for _ in 0..3 {
        guard.train(&frames, lookup);
    }
    f(&guard.predictor().expect("no reset runs"))
}

/// Walks a stack as the module does: along the predicted stack, if there is one, else by rules. Returns the number of
/// frames, which are written; or [`None`] if the predicted stack has all of them.
pub fn walk_predicted<U: Unwinder>(
    unwinder: &mut U,
    frame: KernelFrame,
    skip: usize,
    ips: &mut [u64],
    nr: usize,
    predicted: Option<&[u64]>,
) -> Option<usize> {
    match predicted {
        Some(words) if !frame.interrupted => predict_in(&new_map(), words, |predictor| {
            walk_along(unwinder, frame, skip, ips, nr, predictor)
        }),
        _ => Some(walk::walk(unwinder, frame, skip, ips, nr)),
    }
}

/// Does the same along what a context predicts.
pub fn walk_along<U: Unwinder>(
    unwinder: &mut U,
    mut frame: KernelFrame,
    mut skip: usize,
    ips: &mut [u64],
    nr: usize,
    predictor: &Predictor<'_>,
) -> Option<usize> {
    let first = ips.first().copied().filter(|_| nr > 0);
    if let Some(predicted) = follow(unwinder, &mut frame, &mut skip, nr, first, predictor) {
        unwinder.count(WalkCounter::Fast, (predicted.nr() - nr) as u64);
        return None;
    }
    Some(walk::walk(unwinder, frame, skip, ips, nr))
}

/// The words of a stack: frames with the hints of rules. That of the last one is not plain.
pub fn words_of(frames: &[u64], mut rule: impl FnMut(u64) -> UnwindRule) -> Vec<u64> {
    let mut encoder = RuleEncoder::default();
    let mut words: Vec<u64> = frames
        .iter()
        .map(|ip| u64::from(encoder.encode(rule(*ip))) << 32 | ip & 0xffff_ffff)
        .collect();
    if let Some(last) = words.last_mut() {
        *last &= !0 >> 12;
    }
    words
}

/// Walks a stack that `bytes` describe. Panics if a word beside the stack is read, or more is written
/// than fit; and ends, whatever the rules and the kernel say.
pub fn walk_hostile(bytes: &[u8]) {
    // SAFETY: Nothing is read there: `Hostile::load` makes it up.
    let stack = unsafe { StackBounds::new(0xffff_8880_0000_0000, 0xffff_8880_0000_0400) };
    let mut hostile = Hostile {
        bytes: bytes.iter(),
        stack,
        rules: HashMap::new(),
        counted: 0,
    };
    let frame = KernelFrame {
        at: hostile.pointers(),
        stack,
        interrupted: false,
        registers: 0,
    };
    let skip = usize::from(hostile.byte() % 4);
    let mut ips = vec![0; usize::from(hostile.byte())];
    // A predicted stack with any rules.
    let nr = usize::from(hostile.byte() % 16);
    let known: Vec<u64> = (0..nr)
        .map(|_| 0xffff_ffff_8100_0000 + u64::from(hostile.byte() % 64))
        .collect();
    let known = words_of(&known, |ip| hostile.learn(ip));
    let Some(nr) = walk_predicted(&mut hostile, frame, skip, &mut ips, 0, Some(&known)) else {
        assert!(!known.is_empty());
        return;
    };
    assert!(nr <= ips.len());
    assert!(hostile.counted <= (nr + skip) as u64);
}
