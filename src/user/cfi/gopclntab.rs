// SPDX-License-Identifier: GPL-2.0

//! Rules of code that Go has compiled: its table of functions, `.gopclntab`, says for each instruction how far
//! the stack pointer is below the return address.
//!
//! The table is that of Go 1.18 and later.

use super::{
    super::rule::{Base, Rule, Saved},
    cursor::Cursor,
    image::{Image, Load},
    File, Machine, Unknown,
};

/// What the table begins with: a number for the version, two zeros, the sizes of an instruction and a pointer.
const GO_1_18: [u8; 8] = [0xf0, 0xff, 0xff, 0xff, 0, 0, 1, 8];
const GO_1_20: [u8; 8] = [0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];

/// Functions of a table, at most.
const FUNCTIONS_MAX: u64 = 1 << 24;
/// Steps of the depths of one function.
const STEPS_MAX: u32 = 10_000;
/// The offset in the table of the address where the code begins.
const TEXT: u64 = 3 * 8;
/// Bytes of a relocation.
const RELOCATION: u64 = 24;
/// The offset of `moduledata.text`.
const MODULE_TEXT: u64 = 22 * 8;
/// Go's unwinder stops at the function: the outermost of a goroutine, or one that C, the kernel or a signal may call.
const TOP_FRAME: u8 = 1;
/// The function writes to the stack pointer.
const WRITES_SP: u8 = 2;

/// The name of the function that a goroutine returns to.
const OUTERMOST: &[u8] = b"runtime.goexit\0";

/// How the names of functions without a rule begin: functions that a signal handler calls instead of an instruction, whose
/// return address follows no call; and Go's retpolines, whose depth in the table lacks the word that their call has pushed.
const WITHOUT_RULE: [[u8; 16]; 4] = [
    *b"runtime.sigpanic",
    *b"runtime.asyncPre",
    *b"runtime.debugCal",
    *b"runtime.retpolin",
];

/// Returns the rule of the address of an image.
pub(super) fn rule<F: File>(image: &Image<'_, F>, machine: &Machine) -> Result<Rule, Unknown> {
    let section = image.section(b".gopclntab\0");
    // That of a position-independent program, by Go's linker.
    let section = section.or_else(|_| image.section(b".data.rel.ro.gopclntab\0"));
    let (section, relocated) = match section {
        Ok(section) => (section, 0),
        Err(_) => linked_by_c(image, machine)?,
    };
    let mut cursor = Cursor::new(image.file, section.offset);
    let flags = match cursor.bytes()? {
        GO_1_18 => 37,
        GO_1_20 => 41,
        _ => return Err(Unknown::NoTable),
    };
    let (nr, _files, text) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let names = section.offset.wrapping_add(cursor.u64()?);
    cursor.skip(2 * 8)?;
    let depths = section.offset.wrapping_add(cursor.u64()?);
    let functions = section.offset.wrapping_add(cursor.u64()?);
    let text = match [relocated, text] {
        [0, 0] => text_of(image, section.address)?,
        [0, text] | [text, _] => text,
    };
    let offset = image.address.checked_sub(text).ok_or(Unknown::NoFunction)?;
    // The last function that begins at the address or before it, if there is one after it.
    let entry = |nr: u64| {
        let mut cursor = Cursor::new(image.file, functions.wrapping_add(8 * nr));
        Ok((u64::from(cursor.u32()?), u64::from(cursor.u32()?)))
    };
    let (mut low, mut high) = (0, nr);
    if nr > FUNCTIONS_MAX || offset >= entry(nr)?.0 || offset < entry(0)?.0 {
        return Err(Unknown::NoFunction);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match entry(middle)?.0 <= offset {
            true => low = middle,
            false => high = middle,
        }
    }
    let (begin, function) = entry(low)?;
    // The file may have changed since the search.
    let inside = offset.checked_sub(begin).ok_or(Unknown::Damaged)?;
    let function = functions.wrapping_add(function);
    let mut cursor = Cursor::new(image.file, function.wrapping_add(flags));
    let flags = cursor.u8()?;
    cursor.seek(function.wrapping_add(4));
    let name = names.wrapping_add(cursor.u32()?.into());
    let name: [u8; 16] = Cursor::new(image.file, name).bytes()?;
    if flags & TOP_FRAME != 0 && name.starts_with(OUTERMOST) {
        return Ok(Rule::OUTERMOST);
    }
    if flags & (TOP_FRAME | WRITES_SP) != 0 || WITHOUT_RULE.contains(&name) {
        return Err(Unknown::Inexpressible);
    }
    cursor.seek(function.wrapping_add(16));
    // Functions of C that Go's linker has linked have none.
    let table = match cursor.u32()? {
        0 => return Err(Unknown::NoFunction),
        table => depths.wrapping_add(table.into()),
    };
    let depth = depth(&mut Cursor::new(image.file, table), inside)?;
    // Functions with a frame save the frame pointer below their return address.
    let saved = match depth {
        0 => Saved::No,
        _ => Saved::At(-16),
    };
    Rule::call(Base::Sp, i64::from(depth) + 8, saved).ok_or(Unknown::Inexpressible)
}

/// Returns how far the stack pointer is below the return address at an offset from a function's entry, in bytes.
fn depth<F: File>(cursor: &mut Cursor<'_, F>, offset: u64) -> Result<i32, Unknown> {
    let (mut depth, mut end) = (-1_i32, 0);
    for step in 0..STEPS_MAX {
        let change = cursor.unsigned()? as u32;
        if change == 0 && step != 0 {
            return Err(Unknown::NoFunction);
        }
        let sign = (change & 1).wrapping_neg();
        depth = depth.wrapping_add((change >> 1 ^ sign) as i32);
        end += cursor.unsigned()? & u64::from(u32::MAX);
        if offset < end {
            return Ok(depth);
        }
    }
    Err(Unknown::TooLong)
}

/// Returns the table that C's linker has put at the end of `.data.rel.ro` of a position-independent program, and where the
/// code begins: that is what the last relocation of the section sets.
fn linked_by_c<F: File>(image: &Image<'_, F>, machine: &Machine) -> Result<(Load, u64), Unknown> {
    let data = image.section(b".data.rel.ro\0")?;
    let relocations = image.section(b".rela.dyn\0")?;
    let entry = |nr: u64| {
        let mut cursor = Cursor::new(image.file, relocations.offset.wrapping_add(RELOCATION * nr));
        Ok((cursor.u64()?, cursor.u64()?, cursor.u64()?))
    };
    // Relocations by the address of the program are the first ones, and sorted.
    let (mut low, mut high) = (0, relocations.size / RELOCATION);
    while low < high {
        let middle = low + (high - low) / 2;
        let (address, kind, _) = entry(middle)?;
        match kind == machine.relative && address < data.address.saturating_add(data.size) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    let (address, _, text) = entry(low.checked_sub(1).ok_or(Unknown::NoTable)?)?;
    let table = address.wrapping_sub(data.address).wrapping_sub(TEXT);
    let section = Load {
        offset: data.offset.wrapping_add(table),
        address: data.address.wrapping_add(table),
        ..data
    };
    Ok((section, text))
}

/// Returns where the code begins, for tables that do not say: Go's linker has a section for the data that does.
fn text_of<F: File>(image: &Image<'_, F>, table: u64) -> Result<u64, Unknown> {
    let module = image.section(b".go.module\0")?;
    let mut cursor = Cursor::new(image.file, module.offset);
    if cursor.u64()? != table {
        return Err(Unknown::NoTable);
    }
    cursor.seek(module.offset.wrapping_add(MODULE_TEXT));
    cursor.u64()
}
