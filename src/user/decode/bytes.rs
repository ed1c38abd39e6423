// SPDX-License-Identifier: GPL-2.0

//! What code without CFI says by its bytes: calls, prologues, and system calls that make or leave frames.

use super::super::{
    cfi::Machine,
    encoded::is_user,
    frame::{Code, Frame, Memory},
    rule::RuleKind,
};

/// How large a function is at most, where the frame is marked as guessed.
const GUESSED_FUNCTION_MAX: u64 = 1 << 16;

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

/// Returns whether generated code may return to after these bytes: a call by a register or memory, or the jump
/// before which HotSpot's interpreter has pushed that address.
fn returns_after(bytes: [u8; 8]) -> bool {
    // jmp *(%r10, %rbx, 8)
    indirect_call(bytes).is_some() || bytes.ends_with(&[0x41, 0xff, 0x24, 0xda])
}

/// Returns whether a thread begins where this is a return address: musl's clone() calls its function, and exits.
#[cold]
#[inline(never)]
pub(in super::super) fn begins_thread(ip: u64, code: &mut impl Code) -> bool {
    // mov %eax, %edi; xor %eax, %eax; mov $60, %al; syscall
    const EXIT: [u8; 8] = [0x89, 0xc7, 0x31, 0xc0, 0xb0, 60, 0x0f, 0x05];
    // jne; xor %ebp, %ebp; pop %rdi; call *%r9
    let before = code.bytes_before(ip);
    matches!(before, Some([0x75, _, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1]))
        && code.bytes_before(ip.wrapping_add(8)) == Some(EXIT)
}

/// Returns the length of the instructions that save the frame pointer and set it, if these bytes begin with them.
fn prologue(bytes: [u8; 8]) -> Option<u64> {
    match bytes {
        [0x55, 0x48, 0x89, 0xe5, ..] | [0x55, 0x48, 0x8b, 0xec, ..] => Some(4),
        [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5] => Some(8),
        _ => None,
    }
}

impl Frame {
    /// Returns whether the frame is where a signal handler returns to, by the instructions that debuggers know.
    pub(in super::super) fn calls_sigreturn(
        &self,
        machine: &Machine,
        code: &mut impl Code,
    ) -> bool {
        // mov $15, %rax; syscall
        const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
        // mov x8, #139; svc #0
        const ARM64: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 1, 0, 0, 0xd4];
        if machine.has_link() {
            return code.bytes_before(self.ip.wrapping_add(8)) == Some(ARM64);
        }
        let instruction = code.instruction(self.ip);
        instruction.is_some_and(|(bytes, _)| bytes.starts_with(&SIGRETURN))
    }

    /// Returns whether the frame is about to call an optimised uprobe, and has left the red zone: its file does not say so.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn calls_probe(&self, code: &mut impl Code) -> bool {
        let call = code.bytes_before(self.ip.wrapping_add(8));
        // lea -128(%rsp), %rsp
        let before = code.bytes_before(self.ip);
        matches!(call, Some([0xe8, ..]))
            && matches!(before, Some([.., 0x48, 0x8d, 0x64, 0x24, 0x80]))
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

    /// Returns the caller by the frame pointer, which is always guessed: it may be an outer frame's, and callers would be
    /// missing; or none, as compilers keep other addresses in its register.
    pub(in super::super) fn by_pointer(
        &self,
        interrupted: bool,
        generated: bool,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Option<(Self, bool)> {
        let caller = self.caller(8, memory).ok()??;
        let has_frame = !interrupted || self.has_frame(memory, code);
        let is_called = has_frame && self.may_be_called(caller.ip, generated, code)?;
        is_called.then_some((caller, true))
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
        before.is_none_or(|before| before[3] != 0xe8 && !returns_after(before))
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
            return Some(generated && returns_after(before));
        };
        let is_unknown = matches!(
            code.rule(entry)?.kind(),
            RuleKind::Unknown | RuleKind::Generated
        );
        let bytes = code.bytes_before(entry.wrapping_add(8))?;
        let inside = self.ip.wrapping_sub(entry);
        let is_inside =
            prologue(bytes).is_some_and(|length| (length..GUESSED_FUNCTION_MAX).contains(&inside));
        Some(is_unknown && (generated || is_inside))
    }
}
