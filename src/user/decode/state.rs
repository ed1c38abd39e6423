// SPDX-License-Identifier: GPL-2.0

//! The frame of a function of x86-64, as its instructions change it.

use super::{
    super::frame::{Caller, CallerPointer, Frame},
    instruction::{Instruction, Operand, RAX, RBP, RSP},
};

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
    /// Nowhere.
    End,
    /// It is not known where, or with which stack pointer.
    Lost,
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

/// What paths that meet must agree on: the depth, and where the caller's `rbp` is saved, in words.
pub(super) type Layout = (i32, i16);

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
    /// Whether the instruction follows a call, which may not return.
    pub(super) follows_call: bool,
    /// Whether the instruction may belong to another function.
    pub(super) is_guessed: bool,
}

impl FrameState {
    /// The state at the entry of a function.
    pub(super) const ENTRY: Self = Self {
        depth: Some(0),
        fp: FramePointer::Callers,
        saved: None,
        pointer: None,
        has_called: false,
        follows_call: false,
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

    /// Returns the address of the return address of a frame that has this state, by the depth and by the frame pointer.
    /// They differ in a loop that calls alloca(), or that moves a pointer in `rbp`.
    pub(super) fn slots(&self, frame: &Frame) -> [Option<u64>; 2] {
        let by_depth = self
            .depth
            .map(|depth| frame.sp.wrapping_add_signed(depth.into()));
        let by_fp = match self.fp {
            FramePointer::Below(depth) => Some(frame.fp.wrapping_add_signed(depth.into())),
            _ => None,
        };
        [by_depth, by_fp]
    }

    /// Returns the address of the return address of a frame that has this state, unless depth and frame pointer disagree.
    pub(super) fn slot(&self, frame: &Frame) -> Option<u64> {
        match self.slots(frame) {
            [Some(slot), Some(other)] => (slot == other).then_some(slot),
            [by_depth, by_fp] => by_depth.or(by_fp),
        }
    }

    /// Returns what another path to the same instruction must agree on.
    pub(super) fn layout(&self) -> Layout {
        let saved = match (self.fp, self.saved) {
            (_, Some(below)) if self.depth.is_none_or(|depth| depth >= below) => (below / 8) as i16,
            (FramePointer::Callers, _) => i16::MIN,
            _ => i16::MAX,
        };
        (self.depth.unwrap_or(i32::MIN), saved)
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

    /// Returns whether the instruction is certainly reached: no call that may not return is before it.
    pub(super) fn is_certain(&self) -> bool {
        !self.is_guessed && !self.has_called
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
            RSP => return Flow::Lost,
            RBP => self.fp = FramePointer::Other,
            _ => {}
        }
        Flow::Next
    }

    /// Sets a register to an address.
    fn point(&mut self, register: u8, address: u64) -> Flow {
        let flow = self.change(register);
        self.pointer = Some((register, address));
        flow
    }

    fn change_operand(&mut self, operand: Operand) -> Flow {
        match operand {
            Operand::Register(register) => self.change(register),
            _ => Flow::Next,
        }
    }

    /// Executes an instruction that may change both operands of the ModRM byte at an index.
    fn change_both(&mut self, instruction: &Instruction<'_>, form: usize) -> Flow {
        match self.change(instruction.register(form)) {
            Flow::Next => self.change_operand(instruction.operand(form)),
            flow => flow,
        }
    }

    /// Executes an instruction that changes registers other than stack and frame pointer.
    fn change_others(&mut self) -> Flow {
        self.pointer = None;
        Flow::Next
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
            _ => Flow::Lost,
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
            (_, Operand::Address(address)) => self.point(register, address),
            _ => self.change(register),
        }
    }

    /// Stores a register to memory, or to another register.
    fn store(&mut self, to: Operand, register: u8, is_64_bits: bool) -> Flow {
        match to {
            Operand::Register(to) => self.load(to, Operand::Register(register), is_64_bits),
            Operand::Stack(offset)
                if register == RBP && is_64_bits && self.fp == FramePointer::Callers =>
            {
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
            // movq between vector registers
            0x7e if instruction.has_prefix(0xf3) => Flow::Next,
            // Of vectors, prefetch, nop, emms, bt, movnti
            0x0d
            | 0x10..=0x1d
            | 0x1f
            | 0x28..=0x2b
            | 0x2e
            | 0x2f
            | 0x51..=0x77
            | 0x7c
            | 0x7d
            | 0x7f
            | 0xa3
            | 0xc2..=0xc4
            | 0xc6
            | 0xd0..=0xd6
            | 0xd8..=0xfe => Flow::Next,
            // syscall, rdtsc, cpuid
            0x05 | 0x31 | 0xa2 => self.change_others(),
            0x02
            | 0x03
            | 0x2c
            | 0x2d
            | 0x40..=0x50
            | 0xaf
            | 0xb2
            | 0xb4..=0xb8
            | 0xbc..=0xbf
            | 0xc5
            | 0xd7 => self.change(instruction.register(2)),
            // Stores; xgetbv and others change more.
            0x00
            | 0x01
            | 0x7e
            | 0x90..=0x9f
            | 0xa4
            | 0xa5
            | 0xab..=0xae
            | 0xb3
            | 0xba
            | 0xbb
            | 0xc7 => {
                self.pointer = None;
                self.change_operand(instruction.operand(2))
            }
            // cmpxchg, which may change rax
            0xb0 | 0xb1 => {
                self.pointer = None;
                self.change_both(instruction, 2)
            }
            // endbr64, rdssp; xadd
            0x1e | 0xc0 | 0xc1 => self.change_both(instruction, 2),
            0xc8..=0xcf => self.change(instruction.of_opcode(1)),
            map @ (0x38 | 0x3a) if !is_general(2 | map >> 1 & 1, instruction.byte(2)) => {
                self.change_others()
            }
            0x38 | 0x3a => self.change_both(instruction, 3),
            _ => Flow::Lost,
        }
    }

    /// Executes an instruction of VEX or EVEX, whose opcode is at an index and has a prefix of bits.
    fn execute_vector(&mut self, instruction: &Instruction<'_>, opcode: usize) -> Flow {
        let map = match opcode {
            2 => 1,
            3 => instruction.byte(1) & 0x1f,
            _ => instruction.byte(1) & 7,
        };
        self.pointer = None;
        if !is_general(map, instruction.byte(opcode)) {
            return Flow::Next;
        }
        // The upper bits of registers are left out: it may be another one.
        let (form, other) = (
            instruction.byte(opcode + 1),
            instruction.byte(opcode.min(3) - 1),
        );
        let registers = [form >> 3, form, !other >> 3].map(|register| register & 7);
        let flows = registers.map(|register| self.change(register));
        match flows {
            [Flow::Next, Flow::Next, Flow::Next] => Flow::Next,
            _ => Flow::Lost,
        }
    }

    /// Executes an instruction. Returns where the program goes on.
    pub(super) fn execute(&mut self, instruction: &Instruction<'_>) -> Flow {
        let opcode = instruction.byte(0);
        let is_64_bits = instruction.is_64_bits();
        let register = || instruction.register(1);
        let operand = || instruction.operand(1);
        match opcode {
            0x50..=0x5f | 0x68 | 0x6a | 0x8f | 0x9c | 0x9d | 0xc9
                if instruction.has_prefix(0x66) =>
            {
                Flow::Lost
            }
            0x0f => self.execute_long(instruction),
            // cmp, test, mov to a segment or memory, fwait, sahf
            0x38..=0x3d | 0x84 | 0x85 | 0x8e | 0x9b | 0x9e | 0xa2 | 0xa3 | 0xa8 | 0xa9 => {
                Flow::Next
            }
            // The operations with two operands: to a register, from one, and to the accumulator.
            0x00..=0x37 if opcode & 6 == 2 => self.change(register()),
            0x00..=0x37 if opcode & 6 == 0 => self.change_operand(operand()),
            0x00..=0x37 if opcode & 6 == 4 => self.change(RAX),
            0x50..=0x57 => self.push(instruction.of_opcode(0) == RBP),
            0x58..=0x5f => self.pop(instruction.of_opcode(0)),
            0x62 => self.execute_vector(instruction, 4),
            0x63 | 0x69 | 0x6b | 0x8a => self.change(register()),
            0x68 | 0x6a | 0x9c => self.push(false),
            0x70..=0x7f => Flow::Branch(instruction.target(true)),
            0x81 | 0x83 => self.add(instruction),
            // xchg
            0x86 | 0x87 => self.change_both(instruction, 1),
            // cmp
            0x80 if instruction.extension() == 7 => Flow::Next,
            0x80 | 0x88 | 0x8c => self.change_operand(operand()),
            0x89 => self.store(operand(), register(), is_64_bits),
            0x8b => self.load(register(), operand(), is_64_bits),
            0x8d => self.load_address(register(), operand(), is_64_bits),
            // XOP
            0x8f if instruction.extension() != 0 => Flow::Lost,
            0x8f => match operand() {
                Operand::Register(register) => self.pop(register),
                _ => self.pop(RAX),
            },
            0x90..=0x97 => {
                self.change(RAX);
                self.change(instruction.of_opcode(0))
            }
            // cltq, cqto, lahf, mov from memory, strings
            0x98 | 0x99 | 0x9f..=0xa1 | 0xa4..=0xa7 | 0xaa..=0xaf => self.change_others(),
            0x9d => self.pop(RAX),
            0xb8..=0xbf if !is_64_bits && !instruction.has_prefix(0x66) => {
                // Without REX.W it is extended by zeros: an address in a program that is not position-independent.
                let address = u64::from(instruction.signed(1) as u32);
                self.point(instruction.of_opcode(0), address)
            }
            0xb0..=0xbf => self.change(instruction.of_opcode(0)),
            0xc0.. => self.execute_high(instruction),
            _ => Flow::Lost,
        }
    }

    /// Executes an instruction of the opcodes from c0 on.
    fn execute_high(&mut self, instruction: &Instruction<'_>) -> Flow {
        let opcode = instruction.byte(0);
        let operand = || instruction.operand(1);
        match opcode {
            // Flags.
            0xf5 | 0xf8 | 0xf9 | 0xfc | 0xfd => Flow::Next,
            0xc0 | 0xc1 | 0xd0..=0xd3 => self.change_operand(operand()),
            // x87, xlat, int
            0xcd | 0xd7..=0xdf => self.change_others(),
            // loop
            0xe0..=0xe2 => {
                self.pointer = None;
                Flow::Branch(instruction.target(true))
            }
            0xe3 => Flow::Branch(instruction.target(true)),
            0xc3 => Flow::Return,
            0xc2 => Flow::ReturnAndPop,
            0xc4 => self.execute_vector(instruction, 3),
            0xc5 => self.execute_vector(instruction, 2),
            // mov, and no xbegin
            0xc6 | 0xc7 if instruction.extension() == 0 => self.change_operand(operand()),
            // int3, int1, hlt
            0xcc | 0xf1 | 0xf4 => Flow::End,
            0xc9 => match self.leave_to(0) {
                Flow::Next => self.pop(RBP),
                flow => flow,
            },
            0xe8 => match instruction.last(false) {
                // It reads its own address, and pops it.
                0 => Flow::Lost,
                _ => Flow::Call,
            },
            0xe9 => Flow::Jump(instruction.target(false)),
            0xeb => Flow::Jump(instruction.target(true)),
            0xf6 | 0xf7 => match instruction.extension() {
                0 | 1 => Flow::Next,
                2 | 3 => self.change_operand(operand()),
                _ => self.change_others(),
            },
            0xfe => self.change_operand(operand()),
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
                _ => Flow::Lost,
            },
            // Instructions of the kernel, invalid ones, and unknown ones.
            _ => Flow::Lost,
        }
    }
}

/// Returns whether an opcode of a map that vector instructions are in changes general registers that its operands name.
fn is_general(map: u8, opcode: u8) -> bool {
    match map {
        // cvt(t)s2si, movmsk, cvt(t)s2usi, movd, kmov, pextrw, pmovmskb
        1 | 5 => matches!(
            opcode,
            0x2c | 0x2d | 0x50 | 0x78 | 0x79 | 0x7e | 0x93 | 0xc5 | 0xd7
        ),
        // cmpccxadd, crc32, movbe, andn, bls, bzhi, pdep, mulx, adx, shifts
        2 => opcode >= 0xe0,
        // pextr, rorx
        3 => matches!(opcode, 0x14..=0x17 | 0xf0),
        6 => false,
        _ => true,
    }
}
