// SPDX-License-Identifier: GPL-2.0

//! Instructions of x86-64, as far as they change the frame of their function.

use super::{
    super::walk::Frame,
    caller::{Caller, CallerPointer},
};

const RAX: u8 = 0;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// An operand of an instruction.
#[derive(Clone, Copy, PartialEq)]
enum Operand {
    Register(u8),
    /// The memory at an offset from `rsp`.
    Stack(i32),
    /// The memory at an offset from `rbp`.
    Frame(i32),
    /// The memory at an address, relative to `rip`.
    Address(u64),
    Other,
}

/// Where the program goes on after an instruction.
pub(super) enum Flow {
    Next,
    Call,
    Branch(u64),
    Jump(u64),
    /// To the address in a word of memory.
    JumpBy(u64),
    /// To an address that is not known: of another function, or of a `switch`.
    Switch,
    /// To the caller.
    Return,
    /// To the caller, with another stack pointer than that above the return address.
    ReturnAndPop,
    /// Nowhere, or with a stack pointer that is not known.
    End,
}

/// What `rbp` holds.
#[derive(Clone, Copy, PartialEq)]
enum FramePointer {
    /// What the caller had in it.
    Callers,
    /// An address below the first stack pointer, by this number of bytes.
    Below(i32),
    Other,
}

/// The frame of a function before one of its instructions. Offsets are from the stack pointer where decoding began: at
/// the entry of the function that is the address of its return address.
#[derive(Clone, Copy)]
pub(super) struct FrameState {
    /// How many bytes below the first one the stack pointer is. [`None`]: they vary, as the stack is aligned.
    pub(super) depth: Option<i32>,
    fp: FramePointer,
    /// How many bytes below it the caller's `rbp` is saved.
    saved: Option<i32>,
    /// A register with the address of code.
    pub(super) pointer: Option<(u8, u64)>,
    /// Whether a call was decoded on the way.
    pub(super) has_called: bool,
    /// Whether the instruction may belong to another function.
    pub(super) is_guessed: bool,
}

/// An instruction, as far as it is decoded.
pub(super) struct Instruction<'a> {
    bytes: &'a [u8; 16],
    /// The index of its opcode.
    opcode: usize,
    length: usize,
    rex: u8,
    has_16_bits: bool,
    pub(super) next: u64,
}

impl<'a> Instruction<'a> {
    /// Skips the prefixes of an instruction, which has this `length` and is at an address.
    pub(super) fn new(bytes: &'a [u8; 16], length: usize, address: u64) -> Self {
        let is_prefix = |byte: &u8| {
            matches!(
                byte,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
            )
        };
        let prefixes = bytes.iter().take(length).take_while(|byte| is_prefix(byte));
        let prefixes = prefixes.count();
        let rex = match bytes.get(prefixes) {
            Some(rex @ 0x40..=0x4f) => *rex,
            _ => 0,
        };
        Self {
            bytes,
            opcode: prefixes + usize::from(rex != 0),
            length,
            rex,
            has_16_bits: bytes.iter().take(prefixes).any(|byte| *byte == 0x66),
            next: address.wrapping_add(length as u64),
        }
    }

    /// Returns a byte after the opcode; 0 if the instruction is shorter.
    fn byte(&self, index: usize) -> u8 {
        let index = self.opcode + index;
        self.bytes.get(index).map_or(0, |byte| *byte)
    }

    fn signed(&self, index: usize) -> i32 {
        i32::from_le_bytes([0, 1, 2, 3].map(|byte| self.byte(index + byte)))
    }

    /// Returns the operand that ends the instruction, of one byte or four.
    fn last(&self, is_byte: bool) -> i32 {
        let size = if is_byte { 1 } else { 4 };
        let index = self.length.saturating_sub(self.opcode + size);
        match is_byte {
            true => i32::from(self.byte(index) as i8),
            false => self.signed(index),
        }
    }

    fn target(&self, is_short: bool) -> u64 {
        self.next.wrapping_add_signed(self.last(is_short).into())
    }

    fn is_64_bits(&self) -> bool {
        self.rex & 8 != 0
    }

    /// Returns the register of an opcode.
    fn of_opcode(&self) -> u8 {
        self.byte(0) & 7 | (self.rex & 1) << 3
    }

    /// Returns the extension of the opcode.
    fn extension(&self) -> u8 {
        self.byte(1) >> 3 & 7
    }

    /// Returns the register of the ModRM byte at an index from the opcode.
    fn register(&self, form: usize) -> u8 {
        self.byte(form) >> 3 & 7 | (self.rex & 4) << 1
    }

    /// Returns the other operand of a ModRM byte.
    fn operand(&self, form: usize) -> Operand {
        let (mode, rm) = (self.byte(form) >> 6, self.byte(form) & 7);
        let offset = |at| match mode {
            0 => 0,
            1 => i32::from(self.byte(at) as i8),
            _ => self.signed(at),
        };
        let extended = (self.rex & 1) << 3;
        match (mode, rm) {
            (3, _) => Operand::Register(rm | extended),
            (0, 5) => Operand::Address(self.next.wrapping_add_signed(self.signed(form + 1).into())),
            // Without an index.
            (_, RSP) if self.byte(form + 1) & 0x3f == 0x24 && self.rex & 3 == 0 => {
                Operand::Stack(offset(form + 2))
            }
            (1 | 2, RBP) if extended == 0 => Operand::Frame(offset(form + 1)),
            _ => Operand::Other,
        }
    }
}

impl FrameState {
    /// The state at the entry of a function.
    pub(super) const ENTRY: Self = Self {
        depth: Some(0),
        fp: FramePointer::Callers,
        saved: None,
        pointer: None,
        has_called: false,
        is_guessed: false,
    };

    /// Returns the state of a frame whose function has an unknown entry.
    pub(super) fn of(frame: &Frame) -> Self {
        let below = i32::try_from(frame.sp.wrapping_sub(frame.fp) as i64).ok();
        Self {
            fp: below.map_or(FramePointer::Other, FramePointer::Below),
            ..Self::ENTRY
        }
    }

    /// Returns the address of the return address of a frame that has this state.
    pub(super) fn slot(&self, frame: &Frame) -> Option<u64> {
        match (self.depth, self.fp) {
            (Some(depth), _) => Some(frame.sp.wrapping_add_signed(depth.into())),
            (None, FramePointer::Below(depth)) => Some(frame.fp.wrapping_add_signed(depth.into())),
            _ => None,
        }
    }

    /// Returns where the caller of a frame that has this state is, whose return address is at `slot`.
    pub(super) fn caller(&self, slot: u64) -> Caller {
        let saved = |below: i32| CallerPointer::At(slot.wrapping_add_signed(-i64::from(below)));
        Caller {
            slot,
            fp: match (self.fp, self.saved) {
                // It is not popped: instructions that are not followed may have changed the register.
                (_, Some(below)) if self.depth.is_none_or(|depth| depth >= below) => saved(below),
                (FramePointer::Callers, _) => CallerPointer::Unchanged,
                (_, below) => below.map_or(CallerPointer::Unknown, saved),
            },
            is_guessed: false,
        }
    }

    /// Returns where the caller of a frame is whose function returns in this state; decoding began at the frame.
    pub(super) fn caller_at_end(&self, frame: &Frame, slot: u64) -> Caller {
        let popped =
            |below: i32| CallerPointer::At(frame.sp.wrapping_add_signed(-i64::from(below)));
        Caller {
            slot,
            fp: match (self.fp, self.saved) {
                (FramePointer::Callers, Some(below)) => popped(below),
                (FramePointer::Below(_), _) => CallerPointer::Unchanged,
                _ => CallerPointer::Unknown,
            },
            is_guessed: false,
        }
    }

    fn move_by(&mut self, bytes: i32) {
        self.depth = self.depth.map(|depth| depth.wrapping_add(bytes));
    }

    /// Returns how many bytes below the first stack pointer the memory at an offset from `rsp` is.
    fn below(&self, offset: i32) -> Option<i32> {
        self.depth.map(|depth| depth.wrapping_sub(offset))
    }

    /// Executes an instruction that changes a register in a way that is not followed.
    fn change(&mut self, register: u8) -> Flow {
        if self.pointer.is_some_and(|(pointer, _)| pointer == register) {
            self.pointer = None;
        }
        match register {
            RSP => return Flow::End,
            RBP => self.fp = FramePointer::Other,
            _ => {}
        }
        Flow::Next
    }

    fn change_operand(&mut self, operand: Operand) -> Flow {
        match operand {
            Operand::Register(register) => self.change(register),
            _ => Flow::Next,
        }
    }

    fn push(&mut self, is_fp: bool) -> Flow {
        self.move_by(8);
        if is_fp && self.fp == FramePointer::Callers {
            self.saved = self.depth;
        }
        Flow::Next
    }

    fn pop(&mut self, register: u8) -> Flow {
        let flow = self.change(register);
        // At or above the first stack pointer is what was pushed before.
        let is_earlier = self.depth.is_some_and(|depth| depth <= 0);
        if register == RBP && (is_earlier || self.depth.is_some() && self.saved == self.depth) {
            self.saved = self.depth;
            self.fp = FramePointer::Callers;
        }
        self.move_by(-8);
        flow
    }

    /// Sets the stack pointer to the address in the frame pointer, and an offset.
    fn leave_to(&mut self, offset: i32) -> Flow {
        match self.fp {
            FramePointer::Below(below) => {
                self.depth = Some(below.wrapping_sub(offset));
                Flow::Next
            }
            _ => Flow::End,
        }
    }

    /// Sets the frame pointer to the stack pointer and an offset.
    fn set_fp(&mut self, offset: i32) -> Flow {
        let flow = self.change(RBP);
        if let Some(below) = self.below(offset) {
            self.fp = FramePointer::Below(below);
        }
        flow
    }

    /// Loads a register from memory, or from another register.
    fn load(&mut self, register: u8, from: Operand, is_64_bits: bool) -> Flow {
        match (register, from) {
            (RSP, Operand::Register(RBP)) if is_64_bits => self.leave_to(0),
            (RBP, Operand::Register(RSP)) if is_64_bits => self.set_fp(0),
            _ => {
                let flow = self.change(register);
                if let (RBP, Operand::Stack(offset), true) = (register, from, is_64_bits) {
                    if self.saved.is_some() && self.saved == self.below(offset) {
                        self.fp = FramePointer::Callers;
                    }
                }
                flow
            }
        }
    }

    /// Computes an address.
    fn load_address(&mut self, register: u8, from: Operand, is_64_bits: bool) -> Flow {
        match (register, from) {
            _ if !is_64_bits => self.change(register),
            (RSP, Operand::Stack(offset)) => {
                self.move_by(offset.wrapping_neg());
                Flow::Next
            }
            (RSP, Operand::Frame(offset)) => self.leave_to(offset),
            (RBP, Operand::Stack(offset)) => self.set_fp(offset),
            (_, Operand::Address(address)) => {
                let flow = self.change(register);
                self.pointer = Some((register, address));
                flow
            }
            _ => self.change(register),
        }
    }

    /// Stores a register to memory, or to another register.
    fn store(&mut self, to: Operand, register: u8, is_64_bits: bool) -> Flow {
        match to {
            Operand::Register(to) => self.load(to, Operand::Register(register), is_64_bits),
            Operand::Stack(offset) if register == RBP && self.fp == FramePointer::Callers => {
                self.saved = self.below(offset);
                Flow::Next
            }
            _ => Flow::Next,
        }
    }

    /// Executes an operation with an immediate operand.
    fn add(&mut self, instruction: &Instruction<'_>) -> Flow {
        let (operand, extension) = (instruction.operand(1), instruction.extension());
        let value = || instruction.last(instruction.byte(0) == 0x83);
        match (extension, operand, instruction.is_64_bits()) {
            // cmp
            (7, ..) => {}
            (0, Operand::Register(RSP), true) => self.move_by(value().wrapping_neg()),
            (5, Operand::Register(RSP), true) => self.move_by(value()),
            // and
            (4, Operand::Register(RSP), true) => self.depth = None,
            _ => return self.change_operand(operand),
        }
        Flow::Next
    }

    /// Executes an instruction of the opcodes that begin with 0f.
    fn execute_long(&mut self, instruction: &Instruction<'_>) -> Flow {
        match instruction.byte(1) {
            // ud2, ud1, ud0
            0x0b | 0xb9 | 0xff => Flow::End,
            0x80..=0x8f => Flow::Branch(instruction.target(false)),
            0xa0 | 0xa8 => self.push(false),
            0xa1 | 0xa9 => self.pop(RAX),
            0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xbc..=0xbf => self.change(instruction.register(2)),
            _ => Flow::Next,
        }
    }

    /// Executes an instruction. Returns where the program goes on.
    pub(super) fn execute(&mut self, instruction: &Instruction<'_>) -> Flow {
        let opcode = instruction.byte(0);
        let is_64_bits = instruction.is_64_bits();
        let register = || instruction.register(1);
        let operand = || instruction.operand(1);
        match opcode {
            0x50..=0x5f | 0x68 | 0x6a | 0x8f | 0x9c | 0x9d | 0xc9 if instruction.has_16_bits => {
                Flow::End
            }
            0x0f => self.execute_long(instruction),
            // The operations with two operands, cmp is none of them: to a register, and from one.
            0x00..=0x37 if opcode & 6 == 2 => self.change(register()),
            0x00..=0x37 if opcode & 6 == 0 => self.change_operand(operand()),
            0x50..=0x57 => self.push(instruction.of_opcode() == RBP),
            0x58..=0x5f => self.pop(instruction.of_opcode()),
            0x63 | 0x69 | 0x6b => self.change(register()),
            0x68 | 0x6a | 0x9c => self.push(false),
            0x70..=0x7f | 0xe0..=0xe3 => Flow::Branch(instruction.target(true)),
            0x81 | 0x83 => self.add(instruction),
            // xchg
            0x87 => match self.change(register()) {
                Flow::Next => self.change_operand(operand()),
                flow => flow,
            },
            0x89 => self.store(operand(), register(), is_64_bits),
            0x8b => self.load(register(), operand(), is_64_bits),
            0x8d => self.load_address(register(), operand(), is_64_bits),
            // XOP
            0x8f if instruction.extension() != 0 => Flow::End,
            0x8f => match operand() {
                Operand::Register(register) => self.pop(register),
                _ => self.pop(RAX),
            },
            0x91..=0x97 => {
                self.change(RAX);
                self.change(instruction.of_opcode())
            }
            0x98 => self.change(RAX),
            0x9d => self.pop(RAX),
            0xb8..=0xbf => self.change(instruction.of_opcode()),
            0xc1 | 0xc7 | 0xd1 | 0xd3 => self.change_operand(operand()),
            0xc3 => Flow::Return,
            0xc2 => Flow::ReturnAndPop,
            // enter, int3, iret, hlt, int1; APX
            0xc8 | 0xca..=0xcc | 0xcf | 0xd5 | 0xf1 | 0xf4 => Flow::End,
            0xc9 => match self.leave_to(0) {
                Flow::Next => self.pop(RBP),
                flow => flow,
            },
            0xe8 => match instruction.last(false) {
                // It reads its own address, and pops it.
                0 => Flow::End,
                _ => Flow::Call,
            },
            0xe9 => Flow::Jump(instruction.target(false)),
            0xeb => Flow::Jump(instruction.target(true)),
            0xf7 => match instruction.extension() {
                0 | 1 => Flow::Next,
                2 | 3 => self.change_operand(operand()),
                _ => self.change(RAX),
            },
            0xff => match (instruction.extension(), operand()) {
                (0 | 1, operand) => self.change_operand(operand),
                (2, _) => Flow::Call,
                (4, Operand::Address(address)) => Flow::JumpBy(address),
                (4, Operand::Register(register)) => match self.pointer {
                    Some((pointer, target)) if pointer == register => Flow::Jump(target),
                    _ => Flow::Switch,
                },
                (4, _) => Flow::Switch,
                (6, _) => self.push(false),
                _ => Flow::End,
            },
            _ => Flow::Next,
        }
    }
}

/// Returns whether an instruction fills the space between functions, or may begin one.
pub(super) fn is_between_functions(instruction: &Instruction<'_>) -> bool {
    let opcode = (instruction.byte(0), instruction.byte(1));
    matches!(opcode, (0x90, _) | (0x0f, 0x1e | 0x1f))
}
