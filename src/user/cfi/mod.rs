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
mod image;
mod program;

pub use self::image::Elf;

use self::{
    cursor::Cursor,
    description::{end_of, Common},
    image::Image,
    program::Program,
};
use super::rule::Rule;

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
    /// A rule cannot express it: another base than stack and frame pointer, an expression, a frame
    /// pointer that is lost or in a register, offsets that are too large.
    Inexpressible,
    /// It takes too many steps.
    TooLong,
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
    /// Where a return address is, from the frame's end.
    pub ra_offset: i64,
    /// Of a signal frame, from the stack pointer: where the stack pointer, the return address and the
    /// frame pointer are.
    pub signal: [i64; 3],
}

/// That of x86-64. A signal frame is the kernel's `struct rt_sigframe` without its first word.
pub const X86_64: Machine = Machine {
    elf: 62,
    sp: 7,
    fp: 6,
    ra: 16,
    ra_offset: -8,
    signal: [160, 168, 120],
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

impl Elf {
    /// The rule of the instruction at an offset of the file, whose headers these are.
    pub fn learn<F: File>(
        &self,
        file: &F,
        machine: &Machine,
        offset: u64,
    ) -> Result<Rule, Unknown> {
        let found = match self.by_table(file, machine, offset) {
            Err(Unknown::NoTable) => self.by_search(file, machine, offset),
            found => found,
        };
        match found {
            Err(Unknown::NoTable | Unknown::NoFunction) => {
                Image::new(self, file, offset)?.undescribed(offset)
            }
            _ => found,
        }
    }

    /// The same by the table of functions.
    pub fn by_table<F: File>(
        &self,
        file: &F,
        machine: &Machine,
        offset: u64,
    ) -> Result<Rule, Unknown> {
        let image = Image::new(self, file, offset)?;
        let (_begin, described) = image.by_table()?;
        rule(&image, machine, described)
    }

    /// The same without the table, which takes longer.
    pub fn by_search<F: File>(
        &self,
        file: &F,
        machine: &Machine,
        offset: u64,
    ) -> Result<Rule, Unknown> {
        let image = Image::new(self, file, offset)?;
        rule(&image, machine, image.by_search(machine)?)
    }
}

/// The rule at the address, in the function whose description is loaded there.
fn rule<F: File>(image: &Image<'_, F>, machine: &Machine, described: u64) -> Result<Rule, Unknown> {
    let mut cursor = image.at(described)?;
    let start = cursor.at();
    let end = end_of(&mut cursor)?;
    let here = cursor.at();
    let back = u64::from(cursor.u32()?);
    if back == 0 {
        return Err(Unknown::Damaged);
    }
    let common = here.checked_sub(back).ok_or(Unknown::Damaged)?;
    let mut head = Cursor::new(image.file, common);
    let common = Common::read(&mut head, machine)?;
    let field = described.wrapping_add(cursor.at() - start);
    let (begin, length) = common.range(&mut cursor, field)?;
    if image.address.wrapping_sub(begin) >= length {
        return Err(Unknown::NoFunction);
    }
    common.skip_augmentation(&mut cursor)?;
    let mut program = Program::new(machine, &common, begin, image.address);
    program.run_common(&mut head)?;
    program.run(&mut cursor, end)?;
    program.row().rule(machine, common.signal)
}
