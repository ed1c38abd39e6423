// SPDX-License-Identifier: GPL-2.0

//! The walk of a user stack: by its frame pointers, as the kernel's unwinder walks it, or by the rules of
//! the files that its code is in. The kernel's unwinder also knows uprobes at the entry of a function, in
//! which no task sleeps.

use super::{
    calls::Calls,
    cfi::{Machine, Tracked, Value},
    decode::{caller::Caller, Decoder},
    rule::{Kind, Rule, Saved},
    words::{is_user, End, StackWords, FRAMES_MAX},
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

    /// The same of code, and of words by which it calls: the stack is readable without it, as it may be in the page cache.
    fn code(&self, address: u64) -> Result<u64, Unreadable> {
        self.word(address)
    }
}

/// Sets `ips` to the return addresses of a stack, the innermost first, and returns their number. They are
/// not checked.
pub fn by_frame_pointers(registers: Registers, memory: &impl Memory, ips: &mut [usize]) -> usize {
    let Registers {
        ip, sp, fp, word, ..
    } = registers;
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

/// Gives `keep` the frames that frame pointers lead to, the innermost first, up to the first one that it
/// refuses. Returns how the stack ends. Nothing verifies the return addresses: all frames but the first are
/// marked as guessed.
pub fn unverified(
    ips: &[usize],
    user_end: u64,
    words: &mut StackWords,
    mut keep: impl FnMut(&mut StackWords, u64) -> Result<(), End>,
) -> End {
    for (nr, ip) in ips.iter().enumerate() {
        let ip = *ip as u64;
        if !is_user(ip, user_end) {
            return match ip {
                0 if nr > 0 => End::FramePointer,
                _ => End::BadAddress,
            };
        }
        words.guess();
        if let Err(end) = keep(words, ip) {
            return end;
        }
    }
    match ips.len() {
        0 => End::NoMemory,
        FRAMES_MAX => End::Depth,
        _ => End::FramePointer,
    }
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

/// How large a function is at most, where the frame is marked as guessed.
const GUESSED_FUNCTION_MAX: u64 = 1 << 16;

/// The code of a process.
pub trait Code {
    /// The number of frames that are kept.
    fn frames(&self) -> usize;

    /// What is needed to follow calls in the mapping of the last frame.
    fn calls(&mut self) -> Calls<'_>;

    /// Keeps the next frame, which goes on at `ip`, and returns the rule of its instruction, which is at
    /// `address`: a call may be the last instruction of its function. A frame that was not `interrupted` is
    /// kept only if it is in executable memory. `Err`: how the stack ends.
    fn frame(&mut self, ip: u64, address: u64, interrupted: bool) -> Result<Rule, End>;

    /// Returns the rule of code at an address, or `None` if it is not known or no code.
    fn rule(&mut self, address: u64) -> Option<Rule>;

    /// Returns the frame that uprobes have put one of theirs in the place of: where the program goes on, or whose return
    /// address is at `slot` on the stack. [`None`]: they have not, or it is not known.
    fn original(&mut self, _frame: &Frame, _slot: Option<u64>) -> Option<Frame> {
        None
    }

    /// Returns the value of a general register where the task left user space.
    fn register(&self, register: u64) -> u64;

    /// Returns what the file of an address says of a register there, or `None` if it cannot be read now.
    fn track(&mut self, address: u64, register: u64) -> Option<Tracked>;

    /// Returns the stack pointer that the program began with.
    fn stack(&self) -> u64;

    /// Returns the eight bytes before an address. [`None`]: they cannot be read.
    fn bytes_before(&mut self, address: u64) -> Option<[u8; 8]>;

    /// Returns the instruction of x86-64 at an address, and the bytes after it, with its length. [`None`]: it cannot be
    /// read or decoded.
    fn instruction(&mut self, address: u64) -> Option<([u8; 16], usize)>;

    /// Marks the frames that are kept from now on as guessed.
    fn guess(&mut self);

    /// Returns what is [remembered](Self::set_decoded) of a frame, which was `interrupted` or not. [`None`]: nothing.
    fn decoded(&mut self, _frame: &Frame, _interrupted: bool) -> Option<Option<Caller>> {
        None
    }

    /// Remembers where the caller of a frame is, or, with [`None`], that it was not decoded.
    fn set_decoded(&mut self, _frame: &Frame, _interrupted: bool, _caller: Option<Caller>) {}
}

/// Returns what a direct call leads to if these bytes, which end with it, are before `address`.
pub(super) fn target_of(bytes: [u8; 8], address: u64) -> Option<u64> {
    let [_, _, _, 0xe8, a, b, c, d] = bytes else {
        return None;
    };
    Some(address.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()))
}

/// Returns the length of a call of x86-64 by a register or memory, without its prefix, if the last of these bytes are
/// one: the shortest that it can be.
pub(super) fn indirect_call(bytes: [u8; 8]) -> Option<usize> {
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
    (2..=7).find(|length| indirect(*length))
}

/// Returns the length of the instructions that save the frame pointer and set it, if these bytes begin with them.
fn prologue(bytes: [u8; 8]) -> Option<u64> {
    match bytes {
        [0x55, 0x48, 0x89, 0xe5, ..] | [0x55, 0x48, 0x8b, 0xec, ..] => Some(4),
        [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5] => Some(8),
        _ => None,
    }
}

/// Has `code` keep the frames of a stack, the innermost first, at most [`FRAMES_MAX`]. Returns how the
/// stack ends. Code without CFI is decoded, see [`Decoder`]; where no return address is verified by that, the frame
/// pointer gives a [guess](Frame::by_pointer).
pub fn by_rules(
    machine: &Machine,
    registers: Registers,
    memory: &impl Memory,
    code: &mut impl Code,
    user_end: u64,
) -> End {
    let Registers { ip, sp, fp, .. } = registers;
    let mut frame = Frame { ip, sp, fp };
    // Whether the address is where the frame goes on, and no return address.
    let mut interrupted = true;
    let mut decoder = Decoder::new();
    // The number of the last frame that was interrupted, and a frame pointer that may be another frame's.
    let (mut first, mut doubtful) = (0, None);
    loop {
        if !interrupted {
            frame = code.calls().follow(machine, memory, frame);
        }
        let slot = (!interrupted).then(|| frame.sp.wrapping_add_signed(machine.ra_offset));
        if let Some(original) = code.original(&frame, slot) {
            frame = original;
        }
        let nr = code.frames();
        if interrupted {
            first = nr;
        }
        if nr >= FRAMES_MAX {
            return End::Depth;
        }
        if !is_user(frame.ip, user_end) {
            return End::BadAddress;
        }
        let address = frame.ip.wrapping_sub(u64::from(!interrupted));
        let rule = match code.frame(frame.ip, address, interrupted) {
            Ok(rule) => rule,
            Err(end) => return end,
        };
        if let Some(fp) = doubtful {
            if fp == frame.fp && !rule.is_plain() {
                code.guess();
                doubtful = None;
            }
        }
        let next = match rule.kind() {
            Kind::Call => frame.called(machine, rule, rule.end(frame.sp, frame.fp), memory),
            Kind::Aligned => frame.aligned(machine, rule, memory),
            Kind::Outermost => Err(End::Complete),
            Kind::Signal => frame.interrupted(machine, memory),
            Kind::Inexpressible => Err(End::Inexpressible),
            Kind::Computed => {
                // What uprobes have put in the place of this frame may have changed registers.
                let is_first = nr == 0 && frame.ip == ip;
                frame.computed(machine, address, is_first, memory, code)
            }
            Kind::Tracked(register) => {
                match registers.track(machine, register, (nr, &frame), memory, code) {
                    Some((rule, base)) => {
                        frame.called_anyhow(machine, rule, rule.end(frame.sp, base), memory)
                    }
                    None => Err(End::Inexpressible),
                }
            }
            Kind::Handler => {
                let next = frame.enters_handler(machine, address, memory, code);
                // It, or what it has just called, may have put the handler's frame pointer where its caller's was.
                if let (Ok((caller, _)), true) = (next, nr.wrapping_sub(first) < 2) {
                    doubtful = Some(caller.fp);
                }
                next
            }
            // Nothing was pushed yet: it was not called.
            Kind::Start if frame.sp >= code.stack() => Err(End::Complete),
            Kind::Start | Kind::Unknown if frame.calls_sigreturn(code) => {
                frame.interrupted(machine, memory)
            }
            Kind::Start | Kind::Unknown => {
                match decoder.caller(&frame, interrupted, memory, code) {
                    Some((caller, is_guessed)) => {
                        if is_guessed {
                            code.guess();
                        }
                        Ok((caller, false))
                    }
                    None => frame.by_pointer(interrupted, false, memory, code),
                }
            }
            Kind::Generated => frame.by_pointer(interrupted, true, memory, code),
        };
        match next {
            Ok(next) => (frame, interrupted) = next,
            Err(end) => return end,
        }
    }
}

impl Registers {
    /// Walks the stack again up to `last`, the frame `nr`, and returns its rule and the value of the register that is
    /// its base. [`None`]: a frame in between is not that of a call, or may have changed the register, or where it is
    /// cannot be read or said.
    #[cold]
    fn track(
        &self,
        machine: &Machine,
        register: u64,
        (nr, last): (usize, &Frame),
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Option<(Rule, u64)> {
        if nr != 0 && !machine.saved.contains(&register) {
            return None;
        }
        let mut value = code.register(register);
        let Self { ip, sp, fp, .. } = *self;
        let mut frame = Frame { ip, sp, fp };
        for callee in 0..nr {
            let address = frame.ip.wrapping_sub(u64::from(callee != 0));
            let rule = code.rule(address)?;
            let caller = match rule.kind() {
                Kind::Call => frame.called(machine, rule, rule.end(frame.sp, frame.fp), memory),
                Kind::Aligned => frame.aligned(machine, rule, memory),
                _ => return None,
            };
            (frame, _) = caller.ok()?;
            if let Saved::At(offset) = code.track(address, register)?.saved? {
                value = memory.word(frame.sp.wrapping_add_signed(offset)).ok()?;
            }
        }
        // Other threads may have written to the stack.
        if (frame.ip, frame.sp) != (last.ip, last.sp) {
            return None;
        }
        let address = frame.ip.wrapping_sub(u64::from(nr != 0));
        Some((code.track(address, register)?.rule?, value))
    }
}

/// What follows a frame, and whether a signal interrupted that; or how the stack ends.
type Next = Result<(Frame, bool), End>;

impl From<Unreadable> for End {
    fn from(_: Unreadable) -> Self {
        Self::Fault
    }
}

impl Frame {
    /// What follows a frame that ends there.
    #[inline(always)]
    fn called(&self, machine: &Machine, rule: Rule, end: u64, memory: &impl Memory) -> Next {
        // The stack only goes up.
        if end <= self.sp {
            return Err(End::BadAddress);
        }
        let caller = Self {
            ip: memory.word(end.wrapping_add_signed(machine.ra_offset))?,
            fp: match rule.fp_at(end) {
                Some(address) => memory.word(address)?,
                None => self.fp,
            },
            sp: end,
        };
        Ok((caller, false))
    }

    /// What follows a frame that keeps where its return address is.
    fn aligned(&self, machine: &Machine, rule: Rule, memory: &impl Memory) -> Next {
        let (at, by) = rule.kept(self.sp, self.fp);
        let end = memory.word(at)?.wrapping_add(by);
        self.called_anyhow(machine, rule, end, memory)
    }

    /// Returns what follows a frame whose file says how the caller's registers are computed. Only in the first one registers
    /// other than stack and frame pointer are known.
    #[cold]
    fn computed(
        &self,
        machine: &Machine,
        address: u64,
        is_first: bool,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Next {
        // The file may be in memory later.
        let found = code.track(address, machine.sp).ok_or(End::NoRule)?;
        let computed = found.computed.ok_or(End::Inexpressible)?;
        let register = |number: u8| match u64::from(number) {
            number if number == machine.sp => Ok(self.sp),
            number if number == machine.fp => Ok(self.fp),
            number if is_first => Ok(code.register(number)),
            _ => Err(End::Inexpressible),
        };
        let value = |value: Value, end| -> Result<u64, End> {
            let base = value.register.map_or(Ok(end), register)?;
            let words = value.index.map_or(Ok(0), register)?;
            let sum = base.wrapping_add(words.wrapping_mul(8));
            let sum = sum.wrapping_add_signed(value.offset.into());
            Ok(match value.by {
                Some(by) => memory.word(sum)?.wrapping_add_signed(by.into()),
                None => sum,
            })
        };
        let end = value(computed.end, 0)?;
        let caller = Self {
            ip: value(computed.ip, end)?,
            sp: value(computed.sp, end)?,
            fp: value(computed.fp, end)?,
        };
        // The first one may have popped its return address.
        match caller.sp > self.sp || is_first && caller.sp == self.sp {
            true => Ok((caller, false)),
            false => Err(End::BadAddress),
        }
    }

    /// Returns what follows the frame of a function that enters a handler of an exception.
    #[cold]
    fn enters_handler(
        &self,
        machine: &Machine,
        address: u64,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Next {
        let rule = code.track(address, machine.fp).and_then(|fp| fp.rule);
        let rule = rule.ok_or(End::Inexpressible)?;
        self.called(machine, rule, rule.end(self.sp, self.fp), memory)
    }

    /// Returns what follows a frame that ends there, wherever the caller's frame pointer is.
    #[cold]
    fn called_anyhow(&self, machine: &Machine, rule: Rule, end: u64, memory: &impl Memory) -> Next {
        let Some(rest) = rule.without_at_fp() else {
            return self.called(machine, rule, end, memory);
        };
        let (caller, interrupted) = self.called(machine, rest, end, memory)?;
        // Where the frame's end is in a register, the frame pointer may be the caller's already, which no CFI says: then
        // it does not point into this frame, to below a copy of the return address.
        let is_own =
            (self.sp..end).contains(&self.fp) && memory.word(self.fp.wrapping_add(8))? == caller.ip;
        let fp = if is_own {
            memory.word(self.fp)?
        } else {
            self.fp
        };
        Ok((Self { fp, ..caller }, interrupted))
    }

    /// A signal may have its stack elsewhere.
    fn interrupted(&self, machine: &Machine, memory: &impl Memory) -> Next {
        let [sp, ip, fp] = machine.signal;
        let word = |offset| memory.word(self.sp.wrapping_add_signed(offset));
        let (ip, sp, fp) = (word(ip)?, word(sp)?, word(fp)?);
        Ok((Self { ip, sp, fp }, true))
    }

    /// Returns whether the frame is where a signal handler returns to, by the instructions that debuggers know.
    fn calls_sigreturn(&self, code: &mut impl Code) -> bool {
        // mov $15, %rax; syscall
        const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
        let instruction = code.instruction(self.ip);
        instruction.is_some_and(|(bytes, _)| bytes.starts_with(&SIGRETURN))
    }

    /// Returns where an optimised uprobe goes on, if the frame is in the kernel's trampoline for these, after its system
    /// call.
    pub fn probed(&self, memory: &impl Memory, code: &mut impl Code) -> Option<Self> {
        let (bytes, _) = code.instruction(self.ip)?;
        // The call was made below the red zone, or at once. pop %rax; pop %r11; pop %rcx; ret
        let skipped = match bytes {
            [0x58, 0x41, 0x5b, 0x59, 0xc2, low, high, ..] => {
                u64::from(u16::from_le_bytes([low, high]))
            }
            [0x58, 0x41, 0x5b, 0x59, 0xc3, ..] => 0,
            _ => return None,
        };
        let slot = self.sp.wrapping_add(24);
        Some(Self {
            ip: memory.word(slot).ok()?,
            sp: slot.wrapping_add(8 + skipped),
            fp: self.fp,
        })
    }

    /// Returns the caller by the frame pointer, marked as guessed: it may be an outer frame's, and callers would be
    /// missing; or none, as compilers keep other addresses in its register.
    fn by_pointer(
        &self,
        interrupted: bool,
        generated: bool,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Next {
        let Ok(Some(caller)) = self.caller(8, memory) else {
            return Err(End::NoCfi);
        };
        let has_frame = !interrupted || self.has_frame(memory, code);
        if !has_frame
            || !self
                .may_be_called(caller.ip, generated, code)
                .unwrap_or(false)
        {
            return Err(End::NoCfi);
        }
        code.guess();
        Ok((caller, false))
    }

    /// Returns whether the function may have set its frame pointer, and not restored its caller's yet: neither does its
    /// next instruction set it, nor is a return address on top of the stack.
    fn has_frame(&self, memory: &impl Memory, code: &mut impl Code) -> bool {
        let here = code.bytes_before(self.ip.wrapping_add(8));
        if let Some([0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..]) = here {
            return false;
        }
        let top = memory
            .word(self.sp)
            .ok()
            .filter(|top| is_user(*top, 1 << 56));
        let before = top.and_then(|top| code.bytes_before(top));
        before.is_none_or(|before| before[3] != 0xe8 && indirect_call(before).is_none())
    }

    /// Returns whether the call before `return_address` may have led to this frame: it calls the function without CFI
    /// that sets its frame pointer at once and may reach up to here. `generated` code may have jumped elsewhere, and be
    /// called by a pointer. [`None`]: that cannot be read.
    fn may_be_called(
        &self,
        return_address: u64,
        generated: bool,
        code: &mut impl Code,
    ) -> Option<bool> {
        let before = code.bytes_before(return_address)?;
        let Some(entry) = target_of(before, return_address) else {
            return Some(generated && indirect_call(before).is_some());
        };
        let is_unknown = matches!(code.rule(entry)?.kind(), Kind::Unknown | Kind::Generated);
        let bytes = code.bytes_before(entry.wrapping_add(8))?;
        let inside = self.ip.wrapping_sub(entry);
        let is_inside =
            prologue(bytes).is_some_and(|length| (length..GUESSED_FUNCTION_MAX).contains(&inside));
        Some(is_unknown && (generated || is_inside))
    }
}
