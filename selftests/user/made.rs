// SPDX-License-Identifier: GPL-2.0

//! Stacks and code that tests make up.

use stackmap_user::{
    calls::{Calls, Mapping},
    cfi::{Machine, Tracked, X86_64},
    encoded::{EncodedFrame, EncodedStack, End},
    frame::{Caller, Code, Frame, Memory, Registers, Unreadable},
    rule::{Base, Rule, Saved},
    rules::{Rules, Set, Site, SETS},
    walk::by_rules,
};
use std::collections::HashMap;

pub(crate) const SP: u64 = 0x7fff_0000;

/// Words at addresses; what is `Err` cannot be read.
pub(crate) struct Words(pub(crate) HashMap<u64, Result<u64, Unreadable>>);

impl Memory for Words {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        let word = self.0.get(&address);
        word.copied().unwrap_or(Err(Unreadable::Unmapped))
    }

    /// The bits that arm64 signs with, where addresses have 48.
    fn without_signature(&self, address: u64) -> u64 {
        address & !(0x7f << 48)
    }
}

pub(crate) fn registers(fp: u64, word: u32) -> Registers {
    Registers {
        ip: 0x1000,
        sp: SP,
        fp,
        word,
    }
}

pub(crate) fn memory(words: &[(u64, u64)]) -> Words {
    Words(words.iter().map(|(at, word)| (*at, Ok(*word))).collect())
}

pub(crate) const USER_END: u64 = 0x7fff_ffff_f000;

/// A mapping from the address 0 on.
pub(crate) fn mapping() -> Mapping {
    let word = EncodedFrame::Binary {
        index: 1,
        offset: 0,
    };
    Mapping {
        start: 0,
        size: USER_END,
        word: word.bits().unwrap(),
        site: Site::new(1, 0).unwrap(),
        ..Mapping::default()
    }
}

/// Rules of addresses, and the bytes before addresses.
pub(crate) struct Codes {
    /// The mapping in which calls are followed.
    pub(crate) mapping: Mapping,
    pub(crate) rules: Rules,
    pub(crate) calls: HashMap<u64, [u8; 8]>,
    /// What is known of register 14.
    pub(crate) tracked: HashMap<u64, Tracked>,
    /// What uprobes have replaced, where.
    pub(crate) originals: HashMap<(u64, Option<u64>), u64>,
    /// Instructions, by the address of the first.
    pub(crate) text: Option<(u64, Vec<u8>)>,
    /// Where the program's stack began.
    pub(crate) stack: u64,
    /// Whether the code may not be that of its file.
    pub(crate) changes: bool,
    /// What was decoded of frames, by their stack pointers, as words of a caller; 0: nothing.
    pub(crate) decoded: HashMap<u64, u64>,
    pub(crate) machine: &'static Machine,
    /// On arm64, instructions by their addresses, and what is in the link register.
    pub(crate) instructions: HashMap<u64, u32>,
    pub(crate) link: u64,
    pub(crate) words: EncodedStack,
}

impl Codes {
    pub(crate) fn new(rules: &[(u64, Rule)]) -> Self {
        let table = Rules::new((0..SETS).map(|_| Set::default()).collect()).unwrap();
        for (address, rule) in rules {
            table.put(Site::new(1, *address).unwrap(), *rule);
        }
        Self {
            mapping: mapping(),
            rules: table,
            calls: HashMap::new(),
            tracked: HashMap::new(),
            originals: HashMap::new(),
            text: None,
            stack: SP + 4096,
            changes: false,
            decoded: HashMap::new(),
            machine: &X86_64,
            instructions: HashMap::new(),
            link: 0,
            words: EncodedStack::default(),
        }
    }

    /// Walks a stack whose frame pointer is `fp`.
    pub(crate) fn walk(&mut self, fp: u64, memory: &Words) -> (Vec<usize>, End) {
        self.words.clear();
        let end = by_rules(self.machine, registers(fp, 8), memory, self, USER_END);
        let address = |word: &u64| word.wrapping_sub(mapping().word) as usize;
        (self.words.words().iter().map(address).collect(), end)
    }

    /// The same by single frames, and by following calls, which comes to the same.
    pub(crate) fn walk_twice(&mut self, fp: u64, memory: &Words) -> (Vec<usize>, End) {
        let followed = self.walk(fp, memory);
        self.mapping = Mapping::default();
        assert_eq!(self.walk(fp, memory), followed);
        followed
    }
}

impl Code for Codes {
    fn frames(&self) -> usize {
        self.words.frames()
    }

    fn follow(&mut self, machine: &Machine, memory: &impl Memory, frame: Frame) -> Frame {
        let calls = Calls {
            mapping: self.mapping,
            rules: &self.rules,
            words: &mut self.words,
        };
        calls.follow(machine, memory, frame)
    }

    fn frame(&mut self, ip: u64, address: u64, _interrupted: bool) -> Result<Rule, End> {
        self.words.keep(mapping().word.wrapping_add(ip));
        self.rule(address).ok_or(End::NoRule)
    }

    fn rule(&mut self, address: u64) -> Option<Rule> {
        if address == NOT_NOW {
            return None;
        }
        let rule = Site::new(1, address).and_then(|site| self.rules.get(site));
        Some(rule.unwrap_or(Rule::UNKNOWN))
    }

    fn original(&mut self, frame: &Frame, slot: Option<u64>) -> Option<Frame> {
        let ip = *self.originals.get(&(frame.ip, slot))?;
        Some(Frame { ip, ..*frame })
    }

    fn register(&self, register: u64) -> u64 {
        match register {
            9 => 0,
            11 => 5,
            10 | 14 | 19 => SP + 64,
            30 => self.link,
            _ => unreachable!(),
        }
    }

    fn track(&mut self, address: u64, register: u64) -> Option<Tracked> {
        assert!(matches!(register, 6 | 7 | 10 | 14 | 19 | 31));
        self.tracked.get(&address).copied()
    }

    fn stack(&self) -> u64 {
        self.stack
    }

    /// Instructions of one byte where nothing else is said, before the first frame.
    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]> {
        if self.machine.has_link() {
            let [first, last] = [8, 4].map(|by| self.instructions.get(&address.wrapping_sub(by)));
            let bytes = |code: Option<&u32>| u64::from(code.copied().unwrap_or(0));
            first.or(last)?;
            return Some((bytes(last) << 32 | bytes(first)).to_le_bytes());
        }
        let others = (0xf00..=0x1010).contains(&address);
        let known = self.calls.get(&address).copied();
        known.or(others.then_some([0x90; 8]))
    }

    fn is_code(&mut self, address: u64) -> bool {
        address == ABSENT - 1
    }

    fn instruction(&mut self, address: u64) -> Option<([u8; 16], usize)> {
        let (start, text) = self.text.as_ref()?;
        let text = text.get(address.checked_sub(*start)? as usize..)?;
        let mut bytes = [0xcc; 16];
        let nr = text.len().min(16);
        bytes[..nr].copy_from_slice(&text[..nr]);
        let instruction = iced_x86::Decoder::new(64, &bytes, 0).decode();
        (nr != 0 && !instruction.is_invalid()).then(|| (bytes, instruction.len()))
    }

    fn changes(&self) -> bool {
        self.changes
    }

    fn guess(&mut self) {
        self.words.guess();
    }

    fn decoded(&mut self, frame: &Frame, _interrupted: bool) -> Option<Option<Caller>> {
        let word = *self.decoded.get(&frame.sp)?;
        Some((word != 0).then(|| Caller::of_word(word, frame)))
    }

    fn set_decoded(&mut self, frame: &Frame, _interrupted: bool, caller: Option<Caller>) {
        let word = caller.map_or(Some(0), |caller| caller.word(frame));
        self.decoded.extend(word.map(|word| (frame.sp, word)));
    }
}

/// An address of which it is not known now whether it has a rule.
pub(crate) const NOT_NOW: u64 = 0x7777;

/// A return address whose code is absent.
pub(crate) const ABSENT: u64 = 0x8888;

/// The walk of a stack whose frame pointer is `fp`, by rules of addresses.
pub(crate) fn ruled(fp: u64, rules: &[(u64, Rule)], words: &[(u64, u64)]) -> (Vec<usize>, End) {
    Codes::new(rules).walk_twice(fp, &memory(words))
}

pub(crate) fn call(base: Base, offset: i64, saved: Saved) -> Rule {
    Rule::call(base, offset, saved).unwrap()
}
