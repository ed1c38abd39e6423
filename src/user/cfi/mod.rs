// SPDX-License-Identifier: GPL-2.0

//! How a function is left at one address: what the call frame information of its file says.
//!
//! An ELF file that can be unwound has a table of its functions, `.eh_frame_hdr`, which is searched, and
//! for each function a program, in `.eh_frame`, which is run up to the address. What comes out is a
//! [`Rule`] of 32 bits, enough for the next walks through the same call.
//!
//! A file is what its owner made of it: nothing is allocated, each loop is bounded, and what is not
//! understood gives no rule. Only [`Machine`] knows the processor.

mod cursor;
mod program;

use self::{
    cursor::{encoding, Cursor},
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
    /// It is no ELF file for this processor, or damaged.
    Damaged,
    /// It has no table of functions.
    NoTable,
    /// No function of the table is there.
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

/// Program headers that are looked at.
const HEADERS_MAX: u16 = 64;
/// Segments of a file that are loaded, at most.
const LOADS_MAX: usize = 16;
/// Bytes of an augmentation string.
const AUGMENTATION_MAX: usize = 8;

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const ELF_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// The rule of the instruction at an offset of a file.
pub fn learn(file: &impl File, machine: &Machine, offset: u64) -> Result<Rule, Unknown> {
    let image = Image::read(file, machine, offset)?;
    let function = image.function()?;
    image.rule(machine, function)
}

/// A part of a file that is loaded.
#[derive(Clone, Copy, Default)]
struct Load {
    offset: u64,
    address: u64,
    size: u64,
}

/// A file, and the address that is looked for.
struct Image<'f, F> {
    file: &'f F,
    loads: [Load; LOADS_MAX],
    /// The address in the terms of the file.
    address: u64,
    /// The table of functions.
    table: Load,
}

impl<'f, F: File> Image<'f, F> {
    fn read(file: &'f F, machine: &Machine, offset: u64) -> Result<Self, Unknown> {
        let mut cursor = Cursor::new(file, 0);
        let magic = cursor.bytes::<6>()?;
        // 64 bits, the low byte first.
        if magic != *b"\x7fELF\x02\x01" {
            return Err(Unknown::Damaged);
        }
        cursor.at = 18;
        if cursor.u16()? != machine.elf {
            return Err(Unknown::Damaged);
        }
        cursor.at = 32;
        let headers = cursor.u64()?;
        cursor.at = ELF_HEADER as u64 - 10;
        if usize::from(cursor.u16()?) != PROGRAM_HEADER {
            return Err(Unknown::Damaged);
        }
        let nr = cursor.u16()?.min(HEADERS_MAX);
        let mut image = Self {
            file,
            loads: [Load::default(); LOADS_MAX],
            address: 0,
            table: Load::default(),
        };
        let (mut found, mut loads) = (false, 0);
        cursor.at = headers;
        for _ in 0..nr {
            let (kind, _flags) = (cursor.u32()?, cursor.u32()?);
            let (start, address) = (cursor.u64()?, cursor.u64()?);
            let (_physical, size) = (cursor.u64()?, cursor.u64()?);
            let (_memory, _align) = (cursor.u64()?, cursor.u64()?);
            let part = Load {
                offset: start,
                address,
                size,
            };
            match kind {
                PT_LOAD => {
                    *image.loads.get_mut(loads).ok_or(Unknown::TooLong)? = part;
                    loads += 1;
                    if offset >= start && offset - start < size {
                        image.address = address.wrapping_add(offset - start);
                        found = true;
                    }
                }
                PT_GNU_EH_FRAME => image.table = part,
                _ => {}
            }
        }
        match (found, image.table.size) {
            (false, _) => Err(Unknown::NoFunction),
            (true, 0) => Err(Unknown::NoTable),
            (true, _) => Ok(image),
        }
    }

    /// A cursor at an address.
    fn at(&self, address: u64) -> Result<Cursor<'f, F>, Unknown> {
        let mut loads = self.loads.iter();
        let load = loads.find(|load| address.wrapping_sub(load.address) < load.size);
        let load = load.ok_or(Unknown::Damaged)?;
        let offset = load.offset.checked_add(address - load.address);
        Ok(Cursor::new(self.file, offset.ok_or(Unknown::Damaged)?))
    }

    /// Where the description of the function begins that the address is in, by the table.
    fn function(&self) -> Result<u64, Unknown> {
        let mut cursor = Cursor::new(self.file, self.table.offset);
        let [version, start, count, table] = cursor.bytes()?;
        if version != 1 || count != encoding::U32 || table != encoding::TABLE {
            return Err(Unknown::NoTable);
        }
        cursor.pointer(start)?;
        let nr = cursor.u32()?;
        let entries = cursor.at;
        if u64::from(nr) > self.table.size / 8 {
            return Err(Unknown::Damaged);
        }
        let base = self.table.address;
        let address = |word: [u8; 4]| base.wrapping_add(i32::from_le_bytes(word) as u64);
        let (mut low, mut high) = (0, u64::from(nr));
        let mut found = None;
        while low < high {
            let middle = low.midpoint(high);
            // Each half of the table is far away from the other.
            let mut entry = [0; 8];
            self.file.read(entries + 8 * middle, &mut entry)?;
            let [a, b, c, d, e, f, g, h] = entry;
            if address([a, b, c, d]) <= self.address {
                found = Some(address([e, f, g, h]));
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        found.ok_or(Unknown::NoFunction)
    }

    /// The rule at the address, in the function that is described there.
    fn rule(&self, machine: &Machine, described: u64) -> Result<Rule, Unknown> {
        let mut cursor = self.at(described)?;
        let end = end_of(&mut cursor)?;
        let here = cursor.at;
        let back = u64::from(cursor.u32()?);
        if back == 0 {
            return Err(Unknown::Damaged);
        }
        let common = here.checked_sub(back).ok_or(Unknown::Damaged)?;
        let common = Common::read(Cursor::new(self.file, common), machine)?;

        let field = described.wrapping_add(cursor.at.wrapping_sub(here).wrapping_add(4));
        let mut begin = cursor.pointer(common.encoding)?;
        match common.encoding & 0xf0 {
            encoding::ABSOLUTE => {}
            encoding::PC_RELATIVE => begin = begin.wrapping_add(field),
            _ => return Err(Unknown::Inexpressible),
        }
        let length = cursor.pointer(common.encoding & 0x0f)?;
        if self.address.wrapping_sub(begin) >= length {
            return Err(Unknown::NoFunction);
        }
        if common.augmented {
            let bytes = cursor.unsigned()?;
            cursor.skip(bytes)?;
        }
        let mut program = Program::new(machine, &common, begin, self.address);
        program.run_common(&mut Cursor::new(self.file, common.program))?;
        program.run(&mut cursor, end)?;
        program.row().rule(machine, common.signal)
    }
}

/// The offset behind a description, whose length is next.
fn end_of<F: File>(cursor: &mut Cursor<'_, F>) -> Result<u64, Unknown> {
    match cursor.u32()? {
        0 => Err(Unknown::Damaged),
        // A length of 64 bits follows: no linker writes it.
        u32::MAX => Err(Unknown::Inexpressible),
        length => cursor
            .at
            .checked_add(u64::from(length))
            .ok_or(Unknown::Damaged),
    }
}

/// What descriptions of functions have in common.
struct Common {
    code_align: u64,
    data_align: i64,
    /// Of the pointers in descriptions.
    encoding: u8,
    /// Descriptions have more data than their program.
    augmented: bool,
    /// The frames are those of signals.
    signal: bool,
    /// The program that all begin with.
    program: u64,
    end: u64,
}

impl Common {
    fn read<F: File>(mut cursor: Cursor<'_, F>, machine: &Machine) -> Result<Self, Unknown> {
        let end = end_of(&mut cursor)?;
        let (id, version) = (cursor.u32()?, cursor.u8()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return Err(Unknown::Damaged);
        }
        let mut augmentation = [0; AUGMENTATION_MAX];
        for (nr, place) in augmentation.iter_mut().enumerate() {
            *place = cursor.u8()?;
            if *place == 0 {
                break;
            }
            if nr + 1 == AUGMENTATION_MAX {
                return Err(Unknown::Inexpressible);
            }
        }
        let code_align = cursor.unsigned()?;
        let data_align = cursor.signed()?;
        let ra = match version {
            1 => u64::from(cursor.u8()?),
            _ => cursor.unsigned()?,
        };
        if ra != machine.ra {
            return Err(Unknown::Inexpressible);
        }
        let mut common = Self {
            code_align,
            data_align,
            encoding: encoding::ABSOLUTE,
            augmented: augmentation[0] == b'z',
            signal: false,
            program: 0,
            end,
        };
        if common.augmented {
            let bytes = cursor.unsigned()?;
            let program = cursor.at.checked_add(bytes).ok_or(Unknown::Damaged)?;
            for letter in augmentation
                .iter()
                .skip(1)
                .take_while(|letter| **letter != 0)
            {
                match letter {
                    b'R' => common.encoding = cursor.u8()?,
                    b'L' => drop(cursor.u8()?),
                    b'P' => {
                        let encoding = cursor.u8()?;
                        cursor.pointer(encoding)?;
                    }
                    b'S' => common.signal = true,
                    _ => return Err(Unknown::Inexpressible),
                }
            }
            cursor.at = program;
        } else if augmentation[0] != 0 {
            return Err(Unknown::Inexpressible);
        }
        common.program = cursor.at;
        Ok(common)
    }
}
