// SPDX-License-Identifier: GPL-2.0

//! Walks a user stack of which an input says the code, the rules and the memory, for the fuzzer and the replay of its corpus:
//! whatever they are, the walk ends, reads a bounded number of times, and finds the same frames by what was remembered of those
//! that were decoded.

use stackmap_user::{
    cfi::{Tracked, ARM64, X86_64},
    encoded::{EncodedFrame, EncodedStack, End},
    frame::{Caller, Code, Frame, Memory, Registers, Unreadable},
    rule::{Rule, Saved},
    walk::by_rules,
};
use std::{cell::Cell, collections::HashMap};

const TEXT: u64 = 0x10000;
const STACK: u64 = 0x7fff_0000;
/// Words of the stack: more than a walk may read.
const WORDS: u64 = 1 << 20;
const USER_END: u64 = 0x7fff_ffff_f000;
/// As many rules are learnt for a stack.
const TRACKED_MAX: u32 = 64;
/// More reads than 510 frames need, those that are tracked, and those that are decoded.
const READS_MAX: u32 = 200_000;
/// More instructions than are decoded for a stack, and looked at.
const INSTRUCTIONS_MAX: u32 = 20_000;
/// If fewer are read, each frame had as many left as it may.
const ENOUGH: u32 = 12_288;

/// Bytes of code, and words of a stack that are in the code, in the stack, or anywhere, again and again.
struct Hostile<'a> {
    text: &'a [u8],
    stack: &'a [u8],
    reads: &'a Cell<u32>,
}

impl Hostile<'_> {
    fn read(&self) {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < READS_MAX);
    }

    /// Returns code at an address, of which the end may be missing, and how much of it there is.
    fn text(&self, address: u64) -> Option<([u8; 16], usize)> {
        self.read();
        let text = self.text.get(address.checked_sub(TEXT)? as usize..)?;
        let mut bytes = [0xcc; 16];
        let nr = text.len().min(16);
        bytes[..nr].copy_from_slice(&text[..nr]);
        (nr != 0).then_some((bytes, nr))
    }

    fn pair(&self, index: u64) -> Option<u16> {
        let index = (index < WORDS).then(|| (index as usize).checked_rem(self.stack.len() / 2))?;
        let pair = self.stack.chunks_exact(2).nth(index?)?;
        Some(u16::from_le_bytes([pair[0], pair[1]]))
    }
}

impl Memory for Hostile<'_> {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        self.read();
        let at = address.wrapping_sub(STACK);
        let word = self.pair(at / 8).ok_or(Unreadable::Unmapped)?;
        let low = u64::from(word & 0x3fff);
        Ok(match word >> 14 {
            0 => TEXT + low % (self.text.len() as u64 + 1),
            1 => STACK + low,
            2 => low,
            _ => u64::MAX << 14 | low,
        })
    }
}

/// The walk of a stack, by rules of which there are a few.
struct Walk<'a> {
    hostile: &'a Hostile<'a>,
    rules: [Option<Rule>; 4],
    tracked: u32,
    instructions: u32,
    words: EncodedStack,
    arm64: bool,
    decoded: HashMap<[u64; 4], u64>,
}

impl Walk<'_> {
    fn walk(&mut self, registers: Registers) -> (Vec<u64>, usize, End) {
        self.hostile.reads.set(0);
        self.words.clear();
        (self.tracked, self.instructions) = (TRACKED_MAX, 0);
        let machine = if self.arm64 { &ARM64 } else { &X86_64 };
        let end = by_rules(machine, registers, self.hostile, self, USER_END);
        (self.words.words().to_vec(), self.words.guessed(), end)
    }
}

fn key(frame: &Frame, interrupted: bool) -> [u64; 4] {
    [frame.ip, frame.sp, frame.fp, interrupted.into()]
}

impl Code for Walk<'_> {
    fn frames(&self) -> usize {
        self.words.frames()
    }

    fn frame(&mut self, ip: u64, address: u64, _interrupted: bool) -> Result<Rule, End> {
        let word = EncodedFrame::Binary {
            index: 1,
            offset: ip & 0xff_ffff_ffff,
        };
        self.words.keep(word.bits().unwrap());
        self.rule(address).ok_or(End::NoRule)
    }

    /// Returns the rule for a line of 16 bytes, `rules[line % 8]`, or an unknown rule past their end.
    fn rule(&mut self, address: u64) -> Option<Rule> {
        self.hostile.read();
        let line = address.wrapping_sub(TEXT) / 16;
        match self.rules.get(line as usize % 8) {
            Some(rule) => *rule,
            None => Some(Rule::UNKNOWN),
        }
    }

    fn register(&self, register: u64) -> u64 {
        self.hostile.word(STACK + 8 * register).unwrap_or(0)
    }

    fn track(&mut self, address: u64, _register: u64) -> Option<Tracked> {
        self.tracked = self.tracked.checked_sub(1)?;
        let saved = self.hostile.pair(address % 64)?;
        let rule = self.rule(address);
        Some(Tracked {
            rule,
            saved: Some(Saved::At(i64::from(saved as i8) * 8)),
            computed: None,
        })
    }

    fn stack(&self) -> u64 {
        STACK + 512
    }

    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]> {
        let (bytes, nr) = self.hostile.text(address.checked_sub(8)?)?;
        (nr >= 8).then(|| *bytes.first_chunk().unwrap())
    }

    fn instruction(&mut self, address: u64) -> Option<([u8; 16], usize)> {
        self.instructions += 1;
        assert!(self.instructions < INSTRUCTIONS_MAX);
        let (bytes, _) = self.hostile.text(address)?;
        let instruction = iced_x86::Decoder::new(64, &bytes, 0).decode();
        (!instruction.is_invalid()).then(|| (bytes, instruction.len()))
    }

    fn changes(&self) -> bool {
        self.arm64
    }

    fn guess(&mut self) {
        self.words.guess();
    }

    fn decoded(&mut self, frame: &Frame, interrupted: bool) -> Option<Option<Caller>> {
        let word = *self.decoded.get(&key(frame, interrupted))?;
        Some((word != 0).then(|| Caller::of_word(word, frame)))
    }

    fn set_decoded(&mut self, frame: &Frame, interrupted: bool, caller: Option<Caller>) {
        let word = caller.map_or(Some(0), |caller| caller.word(frame));
        let key = key(frame, interrupted);
        self.decoded.extend(word.map(|word| (key, word)));
    }
}

/// Walks the stack of an input. Returns the number of its frames, the first that is guessed, and how it ends. [`None`]: the
/// input is too short.
pub(crate) fn walk(bytes: &[u8]) -> Option<(usize, usize, End)> {
    let [form, nr, ip, fp, rest @ ..] = bytes else {
        return None;
    };
    let (rules, rest) = rest.split_at_checked(16)?;
    let (text, stack) = rest.split_at((usize::from(*nr) * 2).min(rest.len()));
    let reads = Cell::new(0);
    let hostile = Hostile {
        text,
        stack,
        reads: &reads,
    };
    let rule = |index: usize| {
        let bits = u32::from_le_bytes(*rules[4 * index..].first_chunk().unwrap());
        Rule::from_bits(bits & 0x1fff_ffff)
    };
    let registers = Registers {
        ip: TEXT + u64::from(*ip),
        sp: STACK,
        fp: STACK + 8 * u64::from(*fp),
        word: 8,
    };
    let mut walk = Walk {
        hostile: &hostile,
        rules: [rule(0), rule(1), rule(2), rule(3)],
        tracked: 0,
        instructions: 0,
        words: EncodedStack::default(),
        arm64: form & 1 != 0,
        decoded: HashMap::new(),
    };
    let found = walk.walk(registers);
    if reads.get() < ENOUGH && !walk.decoded.is_empty() {
        assert_eq!(walk.walk(registers), found);
    }
    let (words, guessed, end) = found;
    Some((words.len(), guessed, end))
}
