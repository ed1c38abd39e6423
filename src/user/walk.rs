// SPDX-License-Identifier: GPL-2.0

//! The walk of a user stack: by its frame pointers, as the kernel's unwinder walks it, or by the rules of
//! the files that its code is in. The kernel's unwinder also knows uprobes at the entry of a function, in
//! which no task sleeps.

use super::{
    calls::Calls,
    cfi::Machine,
    rule::{Kind, Rule},
    words::{is_user, End, FRAMES_MAX},
};

/// Where a task left user space.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registers {
    /// The instruction that comes next.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// Bytes of a word: 4 or 8.
    pub word: u32,
}

/// Why a word cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreadable {
    /// Nothing is mapped there.
    Unmapped,
    /// It cannot be waited for.
    Absent,
    /// The address space is being changed.
    Busy,
}

/// The memory of a process.
pub trait Memory {
    /// The word at an address.
    fn word(&self, address: u64) -> Result<u64, Unreadable>;
}

/// Sets `ips` to the return addresses of a stack, the innermost first, and returns their number. They are
/// not checked.
pub fn by_frame_pointers(registers: Registers, memory: &impl Memory, ips: &mut [usize]) -> usize {
    let Registers { ip, sp, fp, word } = registers;
    let mut frame = Frame { ip, sp, fp };
    let mut nr = 0;
    for room in ips.iter_mut() {
        *room = frame.ip as usize;
        nr += 1;
        match frame.caller(u64::from(word), memory) {
            Ok(Some(caller)) => frame = caller,
            Ok(None) | Err(_) => break,
        }
    }
    nr
}

/// A frame of a user stack.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Where it goes on.
    pub ip: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer.
    pub fp: u64,
}

impl Frame {
    /// The frame of the caller, if there is one: the stack only goes up.
    fn caller(&self, word: u64, memory: &impl Memory) -> Result<Option<Self>, Unreadable> {
        let ip_at = self.fp.wrapping_add(word);
        let sp = ip_at.wrapping_add(word);
        let aligned = sp & word.wrapping_sub(1) == 0;
        if self.fp < self.sp || sp < self.fp || !aligned {
            return Ok(None);
        }
        Ok(Some(Self {
            ip: memory.word(ip_at)?,
            fp: memory.word(self.fp)?,
            sp,
        }))
    }
}

/// The code of a process.
pub trait Code {
    /// The number of frames that are kept.
    fn frames(&self) -> usize;

    /// What is needed to follow calls in the mapping of the last frame.
    fn calls(&mut self) -> Calls<'_>;

    /// Keeps the next frame, which goes on at `ip`, and returns the rule of its instruction, which is at
    /// `address`: a call may be the last instruction of its function. [`None`]: it is not known now whether
    /// there is one.
    fn frame(&mut self, ip: u64, address: u64) -> Option<Rule>;

    /// The eight bytes before an address. [`None`]: they cannot be read.
    fn bytes_before(&self, address: u64) -> Option<[u8; 8]>;
}

/// Whether the last of these bytes are a call of x86-64, direct or by a register or memory.
fn ends_with_call(bytes: [u8; 8]) -> bool {
    let indirect = |length: usize| {
        let [opcode, form, rest @ ..] = &bytes[8 - length..] else {
            return false;
        };
        let (mode, register, base) = (form >> 6, form >> 3 & 7, form & 7);
        let index = u8::from(mode != 3 && base == 4);
        let base = if index == 1 {
            rest.first().map_or(0, |index| index & 7)
        } else {
            base
        };
        let offset = match (mode, base) {
            (1, _) => 1,
            (2, _) | (0, 5) => 4,
            _ => 0,
        };
        *opcode == 0xff && register == 2 && length == usize::from(2 + index + offset)
    };
    bytes[3] == 0xe8 || (2..=7).any(indirect)
}

/// Has `code` keep the frames of a stack, the innermost first, at most [`FRAMES_MAX`]. Returns how the
/// stack ends. A frame whose code has no rule is left by its frame pointer, if a call leads there.
pub fn by_rules(
    machine: &Machine,
    registers: Registers,
    memory: &impl Memory,
    code: &mut impl Code,
    user_end: u64,
) -> End {
    let Registers { ip, sp, fp, word } = registers;
    let word = u64::from(word);
    let mut frame = Frame { ip, sp, fp };
    // Whether the address is where the frame goes on, and no return address.
    let mut interrupted = true;
    loop {
        if !interrupted {
            frame = code.calls().follow(machine, memory, frame);
        }
        let nr = code.frames();
        if nr >= FRAMES_MAX {
            return End::Depth;
        }
        if !is_user(frame.ip, user_end) {
            // Programs may end their stack so.
            return match frame.ip == 0 && nr > 0 {
                true => End::Complete,
                false => End::BadAddress,
            };
        }
        let address = frame.ip.wrapping_sub(u64::from(!interrupted));
        let Some(rule) = code.frame(frame.ip, address) else {
            return End::NoRule;
        };
        let step = match rule.kind() {
            Kind::Call => frame.called(machine, rule, rule.end(frame.sp, frame.fp), memory),
            Kind::Aligned => frame.aligned(machine, rule, memory),
            Kind::Outermost => return End::Complete,
            Kind::Signal => frame.interrupted(machine, memory),
            Kind::Unknown => Ok(frame.by_pointer(word, memory, code)),
        };
        match step.unwrap_or_else(Step::from) {
            Step::Caller(caller) => (frame, interrupted) = (caller, false),
            Step::Interrupted(caller) => (frame, interrupted) = (caller, true),
            Step::End(end) => return end,
        }
    }
}

fn is_called(code: &impl Code, address: u64) -> bool {
    code.bytes_before(address).is_some_and(ends_with_call)
}

/// What follows a frame.
enum Step {
    /// The frame that called it.
    Caller(Frame),
    /// The frame that a signal interrupted.
    Interrupted(Frame),
    End(End),
}

impl From<Unreadable> for Step {
    fn from(_: Unreadable) -> Self {
        Self::End(End::Fault)
    }
}

impl Frame {
    /// What follows a frame that ends there.
    #[inline(always)]
    fn called(
        &self,
        machine: &Machine,
        rule: Rule,
        end: u64,
        memory: &impl Memory,
    ) -> Result<Step, Unreadable> {
        // The stack only goes up.
        if end <= self.sp {
            return Ok(Step::End(End::BadAddress));
        }
        Ok(Step::Caller(Self {
            ip: memory.word(end.wrapping_add_signed(machine.ra_offset))?,
            fp: match rule.fp_at(end) {
                Some(address) => memory.word(address)?,
                None => self.fp,
            },
            sp: end,
        }))
    }

    /// What follows a frame that keeps where its return address is.
    fn aligned(
        &self,
        machine: &Machine,
        rule: Rule,
        memory: &impl Memory,
    ) -> Result<Step, Unreadable> {
        let kept = memory.word(rule.end(self.sp, self.fp))?;
        let end = kept.wrapping_sub(machine.ra_offset as u64);
        self.called(machine, rule, end, memory)
    }

    /// A signal may have its stack elsewhere.
    fn interrupted(&self, machine: &Machine, memory: &impl Memory) -> Result<Step, Unreadable> {
        let [sp, ip, fp] = machine.signal;
        let word = |offset| memory.word(self.sp.wrapping_add_signed(offset));
        Ok(Step::Interrupted(Self {
            ip: word(ip)?,
            sp: word(sp)?,
            fp: word(fp)?,
        }))
    }

    /// If the code has not saved the frame pointer, it is that of an outer frame, and callers are left out.
    fn by_pointer(&self, word: u64, memory: &impl Memory, code: &impl Code) -> Step {
        match self.caller(word, memory) {
            Ok(Some(caller)) if is_called(code, caller.ip) => Step::Caller(caller),
            Ok(_) | Err(_) => Step::End(End::NoRule),
        }
    }
}
