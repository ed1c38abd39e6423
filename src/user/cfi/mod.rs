// SPDX-License-Identifier: GPL-2.0

//! How a function is left at one address: what the call frame information of its file says.
//!
//! An ELF file that can be unwound has for each function a description with a program, in `.eh_frame`,
//! which is run up to the address. What comes out is a [`Rule`] of 29 bits, enough for the next walks
//! through the same call. Most files have a sorted table of the descriptions, `.eh_frame_hdr`; those that
//! are linked statically have none, and are read from the first description to the last.
//!
//! A file is what its owner made of it: nothing is allocated, each loop is bounded, and what is not
//! understood gives no rule. In this module, only [`Machine`] knows the processor.

mod cursor;
mod description;
mod gopclntab;
mod image;
mod program;

pub use self::image::Elf;

use self::{
    cursor::Cursor,
    description::{end_of, Common},
    image::Image,
    program::{Program, Row},
};
use super::rule::{Rule, Saved};

/// Bytes of a file.
pub trait File {
    /// Fills `bytes` from an offset on.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown>;

    /// The number of bytes.
    fn size(&self) -> u64;
}

/// Why there is no rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unknown {
    /// A part of the file is not in memory: later it may be.
    Absent,
    /// So much was read that others wait: later it may be learnt.
    Later,
    /// It is no ELF file for this processor.
    NoElf,
    /// It is damaged.
    Damaged,
    /// It describes no functions.
    NoTable,
    /// It describes no function that is there.
    NoFunction,
    /// Neither a rule nor a [`Computed`] can express it: an expression that is not known, a frame pointer that is lost.
    Inexpressible,
    /// It takes too many steps.
    TooLong,
}

/// A sum, or the word in memory at that address plus a number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Value {
    /// The register of the sum. [`None`]: the frame's end.
    pub register: Option<u8>,
    /// A register that is added eight times.
    pub index: Option<u8>,
    /// The number that is added.
    pub offset: i32,
    /// The number that is added to the word in memory. [`None`]: the sum is the value.
    pub by: Option<i32>,
}

/// How the caller's registers are computed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Computed {
    /// The frame's end.
    pub end: Value,
    /// The return address.
    pub ip: Value,
    /// The stack pointer.
    pub sp: Value,
    /// The frame pointer.
    pub fp: Value,
}

/// What a file says of a register at one address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tracked {
    /// The rule of a frame whose base is this register, in place of the frame pointer.
    pub rule: Option<Rule>,
    /// Where the caller's value is. [`None`]: a rule cannot say.
    pub saved: Option<Saved>,
    /// If it is the stack pointer: how the caller's registers are computed.
    pub computed: Option<Computed>,
}

/// What the information calls the registers of a processor.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// `e_machine` of its files.
    pub elf: u16,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// The return address.
    pub ra: u64,
    /// A register in which a function returns a value.
    pub value: u64,
    /// One that has an argument.
    pub argument: u64,
    /// The other registers that a function restores.
    pub saved: [u64; 5],
    /// Where a return address is, from the frame's end.
    pub ra_offset: i64,
    /// Of a signal frame, from the stack pointer: where the stack pointer, the return address and the
    /// frame pointer are.
    pub signal: [i64; 3],
    /// The type of a relocation that is relative to the address of the file.
    pub relative: u64,
    /// The loop in which a retpoline catches speculation.
    pub speculation_trap: [u8; 7],
}

impl Machine {
    /// Returns whether a register can be tracked. In the innermost frame each can that is not a base anyway.
    fn can_track(&self, register: u64) -> bool {
        register < self.ra && register != self.sp && register != self.fp
    }
}

/// That of x86-64. A signal frame is the kernel's `struct rt_sigframe` without its first word.
pub const X86_64: Machine = Machine {
    elf: 62,
    sp: 7,
    fp: 6,
    ra: 16,
    value: 0,
    argument: 2,
    saved: [3, 12, 13, 14, 15],
    ra_offset: -8,
    signal: [160, 168, 120],
    relative: 8,
    // pause; lfence; jmp
    speculation_trap: [0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9],
};

/// Returns the rule to keep of an instruction of which this was found; `None` if that is not known yet.
pub fn rule_of(found: Result<Rule, Unknown>) -> Option<Rule> {
    match found {
        Ok(rule) => Some(rule),
        Err(Unknown::Absent | Unknown::Later) => None,
        Err(Unknown::NoElf) => Some(Rule::GENERATED),
        Err(Unknown::NoTable | Unknown::NoFunction) => Some(Rule::UNKNOWN),
        Err(Unknown::Damaged | Unknown::Inexpressible | Unknown::TooLong) => {
            Some(Rule::INEXPRESSIBLE)
        }
    }
}

/// The rule of the instruction at an offset of a file.
pub fn learn(file: &impl File, machine: &Machine, offset: u64) -> Result<Rule, Unknown> {
    Elf::read(file, machine)?.learn(file, machine, offset)
}

/// Bytes of the call and the trap that a retpoline begins with.
const RETPOLINE_MIN: u64 = 12;

/// Returns whether a speculation trap is in the `N` bytes of a file from an offset on, or in those that the file has.
fn has_trap<const N: usize>(
    file: &impl File,
    machine: &Machine,
    offset: u64,
) -> Result<bool, Unknown> {
    let trap = machine.speculation_trap;
    let mut bytes = [0; N];
    let left = file.size().saturating_sub(offset).min(N as u64) as usize;
    let bytes = bytes.get_mut(..left).unwrap_or_default();
    if left >= trap.len() {
        file.read(offset, bytes)?;
    }
    Ok(bytes.windows(trap.len()).any(|bytes| *bytes == trap))
}

impl Elf {
    /// The rule of the instruction at an offset of the file, whose headers these are.
    pub fn learn<F: File>(
        &self,
        file: &F,
        machine: &Machine,
        offset: u64,
    ) -> Result<Rule, Unknown> {
        // In a retpoline, from its call to its return, compilers say nothing of what the call has pushed.
        if has_trap::<27>(file, machine, offset.saturating_sub(15))? {
            return Err(Unknown::Inexpressible);
        }
        self.learn_call(file, machine, offset)
    }

    /// Returns the rule of a call at an offset of the file: no call that has not returned is in a retpoline.
    pub fn learn_call<F: File>(
        &self,
        file: &F,
        machine: &Machine,
        offset: u64,
    ) -> Result<Rule, Unknown> {
        match self.row(file, machine, offset, machine.sp) {
            Ok((row, signal)) => row.rule(machine, signal),
            Err(Unknown::NoTable | Unknown::NoFunction) => {
                let image = Image::new(self, file, offset)?;
                match gopclntab::rule(&image, machine) {
                    Err(Unknown::NoTable | Unknown::NoFunction) => image.undescribed(offset),
                    found => found,
                }
            }
            Err(reason) => Err(reason),
        }
    }

    /// Returns what the file says of a register at an offset.
    pub fn track<F: File>(
        &self,
        file: &F,
        machine: &Machine,
        offset: u64,
        register: u64,
    ) -> Result<Tracked, Unknown> {
        match self.row(file, machine, offset, register)? {
            (row, false) => Ok(row.tracked(machine, register)),
            (_, true) => Err(Unknown::Inexpressible),
        }
    }

    /// Returns the row of an offset, and whether its frame is a signal's.
    fn row<F: File>(
        &self,
        file: &F,
        machine: &Machine,
        offset: u64,
        tracked: u64,
    ) -> Result<(Row, bool), Unknown> {
        let image = Image::new(self, file, offset)?;
        let described = match image.by_table() {
            Ok((_begin, described)) => described,
            Err(Unknown::NoTable) => image.by_search(machine)?,
            Err(reason) => return Err(reason),
        };
        let mut cursor = image.at(described)?;
        let start = cursor.at();
        let end = end_of(&mut cursor)?;
        let here = cursor.at();
        let back = u64::from(cursor.u32()?);
        if back == 0 {
            return Err(Unknown::Damaged);
        }
        let common = here.checked_sub(back).ok_or(Unknown::Damaged)?;
        let mut head = Cursor::new(file, common);
        let common = Common::read(&mut head, machine)?;
        let field = described.wrapping_add(cursor.at() - start);
        let (begin, length) = common.range(&mut cursor, field)?;
        if image.address.wrapping_sub(begin) >= length {
            return Err(Unknown::NoFunction);
        }
        common.skip_augmentation(&mut cursor)?;
        let mut program = Program::new(machine, &common, tracked, begin, image.address);
        program.run_common(&mut head)?;
        program.run(&mut cursor, end)?;
        let row = *program.row();
        // After a retpoline's trap gcc says where the frame ends, and leaves it so up to the next push or pop.
        let set = row
            .frame_set(machine)
            .filter(|set| set.wrapping_sub(begin) >= RETPOLINE_MIN);
        if let Some(set) = set {
            let since = image.address.wrapping_sub(set);
            let trap = offset.wrapping_sub(since).wrapping_sub(7);
            if has_trap::<7>(file, machine, trap)? {
                return Err(Unknown::Inexpressible);
            }
        }
        Ok((row, common.signal))
    }
}
