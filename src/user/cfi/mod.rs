// SPDX-License-Identifier: GPL-2.0

//! How a function is left at one address: what the call frame information of its file says.
//!
//! An ELF file that can be unwound has for each function a description with a program, in `.eh_frame`,
//! which is run up to the address. What comes out is a [`Rule`] of 29 bits, enough for the next walks
//! through the same call. Most files have a sorted table of the descriptions, `.eh_frame_hdr`; static
//! programs have none, and are read from the first description to the last.
//!
//! A file is what its owner made of it: nothing is allocated, each loop is bounded, and what is not
//! understood gives no rule. In this module, only [`Machine`] knows the processor.

mod cursor;
mod description;
mod expression;
mod gopclntab;
mod image;
mod program;
mod row;

pub use self::image::Elf;

use self::{
    cursor::Cursor,
    description::{end_of, Cie},
    image::Image,
    program::Program,
    row::Row,
};
use super::rule::{Rule, Saved};

/// Bytes of a file.
pub trait File {
    /// Fills `bytes` from an offset on.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown>;

    /// Returns the number of bytes.
    fn size(&self) -> u64;
}

/// Why there is no rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unknown {
    /// A part of the file is not in memory: later it may be.
    Absent,
    /// The limit of reads is reached, as other tracers wait: later it may be learnt.
    Later,
    /// It is no ELF file for this processor.
    NoElf,
    /// It is damaged.
    Damaged,
    /// It describes no functions.
    NoTable,
    /// It describes no function at the address.
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
    /// The rule of a frame whose base is this register instead of the frame pointer.
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
    /// One that has an argument, which a function that enters a handler of an exception does not restore.
    pub argument: u64,
    /// The other registers that a function restores.
    pub saved: &'static [u64],
    /// The number of registers that the information can name as bases.
    pub registers: u64,
    /// Where the stack pointer is at the entry of a function, from the frame's end: the return address is there, or, if this
    /// is 0, in the link register.
    pub ra_offset: i64,
    /// Of a signal frame, from the stack pointer: where the stack pointer, the return address and the
    /// frame pointer are.
    pub signal: [i64; 3],
    /// The type of a relocation that is relative to the address of the file.
    pub relative: u64,
    /// The loop in which a retpoline catches speculation.
    pub speculation_trap: Option<[u8; 7]>,
    /// What generated code has between functions.
    pub padding: Option<[u8; 4]>,
}

impl Machine {
    /// Returns whether a register can be tracked. In the innermost frame each can that is not a base anyway.
    fn can_track(&self, register: u64) -> bool {
        ![self.ra, self.sp, self.fp].contains(&register) && register < self.registers
    }

    /// Returns whether a call leaves its return address in a register.
    pub const fn has_link(&self) -> bool {
        self.ra_offset == 0
    }

    /// Returns where the return address is by the rule of a frame with this end. [`None`]: in the link register. Where there is
    /// one, it is saved after the frame pointer, or alone, which a rule says by a frame pointer as far above the end.
    #[inline(always)]
    pub const fn ra_at(&self, rule: Rule, end: u64) -> Option<u64> {
        if !self.has_link() {
            return Some(end.wrapping_add_signed(self.ra_offset));
        }
        match rule.fp_at(end) {
            None => None,
            Some(above) if above > end => Some(end.wrapping_add(end).wrapping_sub(above)),
            Some(fp) => Some(fp.wrapping_add(8)),
        }
    }

    /// Returns where the caller's frame pointer is by the rule of a frame with this end. [`None`]: in its register.
    #[inline(always)]
    pub const fn fp_at(&self, rule: Rule, end: u64) -> Option<u64> {
        match rule.fp_at(end) {
            Some(above) if self.has_link() && above > end => None,
            fp => fp,
        }
    }
}

/// x86-64. A signal frame is the kernel's `struct rt_sigframe` without its first word.
pub const X86_64: Machine = Machine {
    elf: 62,
    sp: 7,
    fp: 6,
    ra: 16,
    value: 0,
    argument: 2,
    saved: &[3, 12, 13, 14, 15],
    registers: 16,
    ra_offset: -8,
    signal: [160, 168, 120],
    relative: 8,
    // pause; lfence; jmp
    speculation_trap: Some([0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9]),
    // int3
    padding: Some([0xcc; 4]),
};

/// arm64. A signal frame is the kernel's `struct rt_sigframe`.
pub const ARM64: Machine = Machine {
    elf: 183,
    sp: 31,
    fp: 29,
    ra: 30,
    value: 0,
    argument: 4,
    saved: &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28],
    registers: 32,
    ra_offset: 0,
    signal: [560, 568, 544],
    relative: 1027,
    speculation_trap: None,
    padding: None,
};

/// The machine that this is built for.
pub const NATIVE: Machine = match cfg!(target_arch = "aarch64") {
    true => ARM64,
    false => X86_64,
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

/// Returns the rule of the instruction at an offset of a file.
pub fn learn(file: &impl File, machine: &Machine, offset: u64) -> Result<Rule, Unknown> {
    Elf::read(file, machine)?.learn(file, machine, offset)
}

/// Bytes of the call and the trap that a retpoline begins with.
const RETPOLINE_MIN: u64 = 12;

/// Returns whether a speculation trap is in the `N` bytes of a file from an offset on, or in as many as follow.
fn has_trap<const N: usize>(
    file: &impl File,
    machine: &Machine,
    offset: u64,
) -> Result<bool, Unknown> {
    let Some(trap) = machine.speculation_trap else {
        return Ok(false);
    };
    let mut bytes = [0; N];
    let left = file.size().saturating_sub(offset).min(N as u64) as usize;
    let bytes = bytes.get_mut(..left).unwrap_or_default();
    if left >= trap.len() {
        file.read(offset, bytes)?;
    }
    Ok(bytes.windows(trap.len()).any(|bytes| *bytes == trap))
}

impl Elf {
    /// Returns the rule of the instruction at an offset of the file, whose headers these are.
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
                    Err(Unknown::NoTable | Unknown::NoFunction) => {
                        image.undescribed(machine, offset)
                    }
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
        let common = Cie::read(&mut head, machine)?;
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
