// SPDX-License-Identifier: GPL-2.0

//! The operands of an instruction of x86-64.

pub(super) const RAX: u8 = 0;
pub(super) const RSP: u8 = 4;
pub(super) const RBP: u8 = 5;

/// An operand of an instruction.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Operand {
    Register(u8),
    /// The memory at an offset from `rsp`.
    Stack(i32),
    /// The memory at an offset from `rbp`.
    Frame(i32),
    /// The memory at an address, relative to `rip`.
    Address(u64),
    Other,
}

/// An instruction, as far as it is decoded.
pub(super) struct Instruction<'a> {
    bytes: &'a [u8; 16],
    /// The index of its opcode.
    opcode: usize,
    length: usize,
    rex: u8,
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
            next: address.wrapping_add(length as u64),
        }
    }

    /// Returns a byte after the opcode; 0 if the instruction is shorter.
    pub(super) fn byte(&self, index: usize) -> u8 {
        let index = self.opcode + index;
        self.bytes.get(index).map_or(0, |byte| *byte)
    }

    pub(super) fn signed(&self, index: usize) -> i32 {
        i32::from_le_bytes([0, 1, 2, 3].map(|byte| self.byte(index + byte)))
    }

    /// Returns the operand that ends the instruction, of one byte or four.
    pub(super) fn last(&self, is_byte: bool) -> i32 {
        let size = if is_byte { 1 } else { 4 };
        let index = self.length.saturating_sub(self.opcode + size);
        match is_byte {
            true => i32::from(self.byte(index) as i8),
            false => self.signed(index),
        }
    }

    pub(super) fn target(&self, is_short: bool) -> u64 {
        self.next.wrapping_add_signed(self.last(is_short).into())
    }

    pub(super) fn is_64_bits(&self) -> bool {
        self.rex & 8 != 0
    }

    pub(super) fn has_prefix(&self, prefix: u8) -> bool {
        self.bytes
            .iter()
            .take(self.opcode)
            .any(|byte| *byte == prefix)
    }

    /// Returns a register by its lower bits, and the bit of the prefix that extends them.
    pub(super) fn number(&self, low: u8, extension: u8) -> u8 {
        let is_byte = match (self.byte(0), self.byte(1)) {
            (0x0f, opcode) => matches!(opcode, 0x90..=0x9f | 0xb0 | 0xc0),
            (0xb0..=0xb7, _) => true,
            (0x00..=0x3f | 0x80..=0x8a | 0xc0 | 0xc6 | 0xd0 | 0xd2 | 0xf6 | 0xfe, _) => {
                self.byte(0) & 1 == 0
            }
            _ => false,
        };
        match self.rex {
            // The second byte of one of the first four.
            0 if is_byte => low & 3,
            0 => low & 7,
            rex => low & 7 | (rex >> extension & 1) << 3,
        }
    }

    /// Returns the register of the last byte of an opcode, which has this index.
    pub(super) fn of_opcode(&self, index: usize) -> u8 {
        self.number(self.byte(index), 0)
    }

    /// Returns the extension of the opcode.
    pub(super) fn extension(&self) -> u8 {
        self.byte(1) >> 3 & 7
    }

    /// Returns the register of the ModRM byte at an index from the opcode.
    pub(super) fn register(&self, form: usize) -> u8 {
        self.number(self.byte(form) >> 3, 2)
    }

    /// Returns the other operand of a ModRM byte.
    pub(super) fn operand(&self, form: usize) -> Operand {
        let (mode, rm) = (self.byte(form) >> 6, self.byte(form) & 7);
        let offset = |at| match mode {
            0 => 0,
            1 => i32::from(self.byte(at) as i8),
            _ => self.signed(at),
        };
        match (mode, rm) {
            (3, _) => Operand::Register(self.number(rm, 0)),
            // By addresses of 32 bits, or of a thread.
            _ if [0x64, 0x65, 0x67]
                .iter()
                .any(|prefix| self.has_prefix(*prefix)) =>
            {
                Operand::Other
            }
            (0, 5) => Operand::Address(self.next.wrapping_add_signed(self.signed(form + 1).into())),
            // Without an index.
            (_, RSP) if self.byte(form + 1) & 0x3f == 0x24 && self.rex & 3 == 0 => {
                Operand::Stack(offset(form + 2))
            }
            (1 | 2, RBP) if self.rex & 1 == 0 => Operand::Frame(offset(form + 1)),
            _ => Operand::Other,
        }
    }
}

/// Returns whether an instruction fills the space between functions, or may begin one.
pub(super) fn is_between_functions(instruction: &Instruction<'_>) -> bool {
    let opcode = (instruction.byte(0), instruction.byte(1));
    matches!(opcode, (0x90, _) | (0x0f, 0x1e | 0x1f))
}
