// SPDX-License-Identifier: GPL-2.0

//! The callers of arm64 code without CFI, by frame records and by decoding its function.
//!
//! A return address may be in the link register, or in the frame record that x29 points to: x29 of the caller, and the
//! return address. Which one it is, and where the caller's stack pointer is, say the instructions from the entry of the
//! function to the frame; the entry is the target of the call before the return address. Where that call has none, a
//! record is a guess.

use super::super::{
    frame::{Code, Frame, Memory},
    rule::RuleKind,
};

/// The registers.
const FP: u32 = 29;
const LINK: u32 = 30;
const SP: u32 = 31;

/// How large a function is at most.
const FUNCTION_MAX: u64 = 1 << 16;
/// The maximum number of instructions that are decoded for a frame.
const STEPS_MAX: u32 = 4096;
/// Instructions from the restore of x29 and x30 to the end of a function.
const POPS_MAX: u64 = 12;
/// The maximum number of paths that are left to decode, and of ranges that are.
const PATHS_MAX: usize = 24;
const DONE_MAX: usize = 64;

/// What x29 holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Pointer {
    /// What it held at the entry.
    Callers,
    /// An address at this offset from the stack pointer at the entry.
    At(i64),
    Other,
}

/// What the instructions from the entry of a function on have done. Offsets are from the stack pointer at the entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct State {
    /// The stack pointer.
    sp: Option<i64>,
    fp: Pointer,
    /// The return address is in its register.
    has_link: bool,
    /// Where the caller's frame pointer is, and the return address.
    saved: [Option<i64>; 2],
}

/// Where an instruction leads to.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Call,
    Branch(u64),
    Jump(u64),
    End,
}

/// Returns the bits of an instruction from `low` on, `nr` of them, as a number with a sign.
const fn signed(code: u32, low: u32, nr: u32) -> i64 {
    ((code << (32 - low - nr)) as i32 >> (32 - nr)) as i64
}

/// Returns where a direct call leads to that precedes `address`; `Err`: the instruction is an indirect call. [`None`]: it is no
/// call.
fn call_before(address: u64, code: &mut impl Code) -> Option<Result<u64, ()>> {
    let [.., a, b, c, d] = code.bytes_before(address)?;
    let call = u32::from_le_bytes([a, b, c, d]);
    match (call & 0xfc00_0000, call & 0xfe60_0000) {
        // bl; blr, blraa
        (0x9400_0000, _) => {
            let offset = 4 * signed(call, 0, 26) - 4;
            Some(Ok(address.wrapping_add_signed(offset)))
        }
        (_, 0xd620_0000) => Some(Err(())),
        _ => None,
    }
}

impl State {
    const ENTRY: Self = Self {
        sp: Some(0),
        fp: Pointer::Callers,
        has_link: true,
        saved: [None; 2],
    };

    /// Returns where the address in a register is, if that is the stack pointer, or the frame pointer set from it.
    fn offset_of(&self, register: u32) -> Option<i64> {
        match (register, self.fp) {
            (SP, _) => self.sp,
            (FP, Pointer::At(offset)) => Some(offset),
            _ => None,
        }
    }

    /// Sets a register, to an address if that is known.
    fn set(&mut self, register: u32, offset: Option<i64>) {
        match register {
            SP => self.sp = offset,
            FP => self.fp = offset.map_or(Pointer::Other, Pointer::At),
            LINK => self.has_link = false,
            _ => {}
        }
    }

    /// Stores or loads a register at an offset. [`None`]: another function's prologue.
    fn access(&mut self, register: u32, is_load: bool, offset: Option<i64>) -> Option<()> {
        let nr = match register {
            FP => 0,
            LINK => 1,
            _ => return Some(()),
        };
        let is_callers = [self.fp == Pointer::Callers, self.has_link][nr];
        let restores = is_load && offset.is_some() && self.saved[nr] == offset;
        match (is_load, is_callers) {
            (true, _) => self.set(register, None),
            (false, true) => self.saved[nr] = offset,
            (false, false) if register == LINK => return None,
            (false, false) => {}
        }
        match register {
            _ if !restores => {}
            FP => (self.fp, self.saved[nr]) = (Pointer::Callers, None),
            _ => (self.has_link, self.saved[nr]) = (true, None),
        }
        Some(())
    }

    /// Executes a load or a store of one register, or of two. [`None`]: another function's prologue.
    fn access_memory(&mut self, code: u32) -> Option<()> {
        let (first, base, second) = (code & 31, code >> 5 & 31, code >> 10 & 31);
        let (size, is_vector, is_load) = (code >> 30, code >> 26 & 1 != 0, code >> 22 & 1 != 0);
        let is_pair = code & 0x3800_0000 == 0x2800_0000;
        // Of the two, or of one by its form: where it is, and how the base changes.
        let (offset, by, is_word) = if is_pair {
            let shift = match (is_vector, size) {
                (true, size) => 2 + size,
                (false, 2) => 3,
                // A tag and two registers.
                (false, 1) if !is_load => 4,
                _ => 2,
            };
            let offset = signed(code, 15, 7) << shift;
            let is_word = !is_vector && size == 2;
            match code >> 23 & 3 {
                1 => (0, offset, is_word),
                3 => (offset, offset, is_word),
                _ => (offset, 0, is_word),
            }
        } else {
            let is_word = !is_vector && size == 3 && code >> 23 & 1 == 0;
            match (code >> 24 & 1, code >> 21 & 1, code >> 10 & 3) {
                (1, ..) => (i64::from(code >> 10 & 0xfff) << size, 0, is_word),
                (0, 0, 1) => (0, signed(code, 12, 9), is_word),
                (0, 0, 3) => (signed(code, 12, 9), signed(code, 12, 9), is_word),
                (0, 0, 0) => (signed(code, 12, 9), 0, is_word),
                // Atomic, or by another register.
                _ => (0, 0, false),
            }
        };
        let at = self.offset_of(base);
        let slot = |nr: i64| at.filter(|_| is_word).map(|at| at + offset + 8 * nr);
        let registers = [(first, 0), (second, 1)];
        for (register, nr) in registers.into_iter().take(if is_pair { 2 } else { 1 }) {
            match is_word {
                true => self.access(register, is_load, slot(nr))?,
                false if is_vector => {}
                false => self.set_unless_sp(register),
            }
        }
        if by != 0 {
            self.set(base, at.map(|at| at + by));
        }
        Some(())
    }

    /// Executes an instruction at an address. Returns where the program goes on.
    fn execute(&mut self, code: u32, address: u64) -> Flow {
        let to = |low, nr| address.wrapping_add_signed(4 * signed(code, low, nr));
        let (register, base) = (code & 31, code >> 5 & 31);
        match code >> 24 {
            0x14..=0x17 => return Flow::Jump(to(0, 26)),
            0x94..=0x97 => {
                self.has_link = false;
                return Flow::Call;
            }
            // b.cond, cbz, cbnz; tbz, tbnz
            // A return that names where it was called.
            0x55 => return Flow::End,
            0x54 | 0x34 | 0x35 | 0xb4 | 0xb5 => return Flow::Branch(to(5, 19)),
            0x36 | 0x37 | 0xb6 | 0xb7 => return Flow::Branch(to(5, 14)),
            // By a register: a call, a jump, or a return.
            0xd6 | 0xd7 if code >> 21 & 3 == 1 => {
                self.has_link = false;
                return Flow::Call;
            }
            0xd6 | 0xd7 => return Flow::End,
            // brk, hlt; udf
            0xd4 if code & 1 == 0 => return Flow::End,
            0x00 => return Flow::End,
            // add, sub of a number
            0x91 | 0xd1 if code >> 23 & 1 == 0 => {
                let shift = if code >> 22 & 1 == 0 { 0 } else { 12 };
                let number = i64::from(code >> 10 & 0xfff) << shift;
                let by = if code >> 30 & 1 == 0 { number } else { -number };
                let offset = self.offset_of(base).map(|offset| offset + by);
                self.set(register, offset);
            }
            // Loads and stores.
            _ if code & 0x0a00_0000 == 0x0800_0000 => match (code >> 27 & 7, code >> 26 & 1) {
                (5 | 7, _) => {
                    if self.access_memory(code).is_none() {
                        return Flow::End;
                    }
                }
                // Of several vectors, or tags: the base may change.
                (1, 1) => self.set(base, None),
                (3, _) if code >> 24 == 0xd9 => self.set(base, None),
                // Exclusive, or by the address of the instruction.
                _ => self.set_unless_sp(register),
            },
            // Vectors of any length.
            _ if code & 0x1e00_0000 == 0x0400_0000 => self.set(register, None),
            // System instructions and hints change no register but the one that they name.
            0xd5 if code >> 21 & 1 == 0 => {}
            // Other data: vector instructions change no register that matters.
            _ if code & 0x0e00_0000 == 0x0e00_0000 => {}
            // By numbers, and of extended registers, the stack pointer may be changed.
            _ if code & 0x1c00_0000 == 0x1000_0000 || code & 0x1f20_0000 == 0x0b20_0000 => {
                // Instructions that set flags do not.
                let sets_flags = matches!(code >> 24 & 0x7f, 0x31 | 0x71 | 0x2b | 0x6b | 0x72);
                if register != SP || !sets_flags {
                    self.set(register, None);
                }
            }
            _ => self.set_unless_sp(register),
        }
        Flow::Next
    }

    /// Sets a register to what is not known; number 31 is none here.
    fn set_unless_sp(&mut self, register: u32) {
        if register != SP {
            self.set(register, None);
        }
    }
}

/// Returns the state of a frame that goes on at `goal`, of a function with this entry. [`None`]: the function does not lead
/// there, or it has too many instructions.
fn state_at(entry: u64, goal: u64, interrupted: bool, code: &mut impl Code) -> Option<State> {
    let mut next = [(entry, State::ENTRY); PATHS_MAX];
    let mut done = [(0, 0); DONE_MAX];
    let (mut nr_next, mut nr_done, mut steps) = (1_usize, 0, 0);
    while let Some(last) = nr_next.checked_sub(1) {
        nr_next = last;
        let (start, mut state) = *next.get(last)?;
        let mut address = start;
        let is_done = |done: &[(u64, u64)], address| {
            let mut done = done.iter();
            done.any(|(start, end)| (*start..*end).contains(&address))
        };
        while !is_done(done.get(..nr_done)?, address) {
            if interrupted && address == goal {
                return Some(state);
            }
            steps += 1;
            if steps > STEPS_MAX || address.wrapping_sub(entry) >= FUNCTION_MAX {
                break;
            }
            let Some([a, b, c, d, ..]) = code.bytes_before(address.wrapping_add(8)) else {
                break;
            };
            let flow = state.execute(u32::from_le_bytes([a, b, c, d]), address);
            address = address.wrapping_add(4);
            let (path, goes_on) = match flow {
                Flow::Call if !interrupted && address == goal => return Some(state),
                Flow::Next | Flow::Call => (None, true),
                Flow::Branch(target) => (Some(target), true),
                Flow::Jump(target) => (Some(target), false),
                Flow::End => (None, false),
            };
            // Where there are too many paths, the others lead to most of the instructions.
            if let (Some(target), Some(next)) = (path, next.get_mut(nr_next)) {
                *next = (target, state);
                nr_next += 1;
            }
            if !goes_on {
                break;
            }
        }
        *done.get_mut(nr_done)? = (start, address);
        nr_done += 1;
    }
    None
}

/// Returns whether the end of a function has restored x29 and x30 up to this address.
#[cold]
pub fn has_popped(ip: u64, code: &mut impl Code) -> bool {
    for nr in 0..POPS_MAX {
        let before = code.bytes_before(ip.wrapping_sub(4 * nr));
        let Some([.., a, b, c, d]) = before else {
            return false;
        };
        let before = u32::from_le_bytes([a, b, c, d]);
        let mut state = State::ENTRY;
        match state.execute(before, 0) {
            // ldp x29, x30
            Flow::Next if before & 0xfe40_7c1f == 0xa840_781d => return true,
            Flow::Next => {}
            _ => return false,
        }
    }
    false
}

/// Returns the caller of a frame in code without CFI, and whether it is guessed: then its stack pointer is
/// [not known](Frame::LOST). `link` is what the link register of a frame holds that was interrupted. [`None`]: no return
/// address is verified, or may be guessed.
pub fn caller(
    frame: &Frame,
    link: Option<u64>,
    generated: bool,
    memory: &impl Memory,
    code: &mut impl Code,
) -> Option<(Frame, bool)> {
    let record = frame.fp.wrapping_add(8);
    let is_up = frame.fp % 8 == 0 && (frame.fp >= frame.sp || frame.sp == Frame::LOST);
    let recorded = match is_up {
        true => memory.word(record).ok(),
        false => None,
    };
    let recorded = recorded.map(|address| memory.without_signature(address));
    for (ip, is_link) in [(link, true), (recorded, false)] {
        let Some((ip, Some(Ok(entry)))) = ip.map(|ip| (ip, call_before(ip, code))) else {
            continue;
        };
        let Some(state) = state_at(entry, frame.ip, link.is_some(), code) else {
            continue;
        };
        // The stack pointer at the entry, by that of the frame or by where its record is.
        let sp = match (state.sp, state.fp) {
            (_, Pointer::At(offset)) => frame.fp.wrapping_add_signed(-offset),
            (Some(offset), _) if frame.sp != Frame::LOST => frame.sp.wrapping_add_signed(-offset),
            _ => continue,
        };
        let [fp, ra] = state
            .saved
            .map(|slot| slot.map(|slot| sp.wrapping_add_signed(slot)));
        let is_there = match (is_link, ra) {
            // An earlier call may have left its return address in the register.
            (true, Some(at)) => {
                let saved = memory.word(at).map(|ra| memory.without_signature(ra));
                state.has_link && saved == Ok(ip)
            }
            (true, None) => state.has_link,
            (false, ra) => ra == Some(record),
        };
        if is_there && (sp > frame.sp || is_link && sp == frame.sp || frame.sp == Frame::LOST) {
            let fp = match (state.fp, fp) {
                (Pointer::Callers, _) => frame.fp,
                (_, Some(at)) => memory.word(at).ok()?,
                _ => 0,
            };
            return code.rule(ip).map(|_| (Frame { ip, sp, fp }, false));
        }
    }
    // A function that waits for a call has a record, if it keeps one at all.
    let ip = recorded.filter(|_| generated || link.is_none())?;
    code.rule(ip)?;
    if let Ok(entry) = call_before(ip, code)? {
        let is_near = frame.ip.wrapping_sub(entry) < FUNCTION_MAX;
        let kind = code.rule(entry)?.kind();
        if !matches!(kind, RuleKind::Unknown | RuleKind::Generated) || !generated && !is_near {
            return None;
        }
    }
    let fp = memory.word(frame.fp).ok()?;
    let sp = Frame::LOST;
    Some((Frame { ip, sp, fp }, true))
}
