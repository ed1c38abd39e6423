// SPDX-License-Identifier: GPL-2.0

//! The walk of a user stack: by its frame pointers, as the kernel's unwinder walks it, or by the rules of
//! the files that its code is in. The kernel's unwinder also knows uprobes at the entry of a function, in
//! which no task sleeps.

use super::{
    cfi::{Machine, NATIVE},
    decode::{arm64, bytes::begins_thread, Decoder},
    encoded::{is_user, EncodedStack, End, FRAMES_MAX},
    frame::{Code, Frame, Memory, Registers},
    rule::{Rule, RuleKind, Saved},
    step::Next,
};

/// Sets `ips` to the return addresses of a stack, the innermost first, and returns their number. They are
/// not checked. On arm64 programs of 32 bits have no frame pointers that lead there.
pub fn by_frame_pointers(registers: Registers, memory: &impl Memory, ips: &mut [usize]) -> usize {
    let Registers {
        ip, sp, fp, word, ..
    } = registers;
    let mut frame = Frame { ip, sp, fp };
    let mut nr = 0;
    for to in ips.iter_mut() {
        *to = frame.ip as usize;
        nr += 1;
        match frame.caller(u64::from(word), memory) {
            Ok(Some(caller)) if !NATIVE.has_link() => frame = caller,
            _ => break,
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
    words: &mut EncodedStack,
    mut keep: impl FnMut(&mut EncodedStack, u64) -> Result<(), End>,
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

/// What a program that begins has popped at most, in bytes: arguments of the dynamic linker.
const START_STACK: u64 = 4096;

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
    let mut walk = Walk {
        machine,
        registers,
        memory,
        decoder: Decoder::new(),
        first: 0,
        doubtful: None,
        link: match machine.has_link() {
            true => Some(memory.without_signature(code.register(machine.ra))),
            false => None,
        },
    };
    loop {
        if !interrupted {
            frame = code.follow(machine, memory, frame);
        }
        let slot = (!interrupted).then(|| frame.sp.wrapping_add_signed(machine.ra_offset));
        if let Some(original) = code.original(&frame, slot) {
            frame = original;
        }
        let nr = code.frames();
        if interrupted {
            walk.first = nr;
        }
        if nr >= FRAMES_MAX {
            return End::Depth;
        }
        if !is_user(frame.ip, user_end) {
            return End::BadAddress;
        }
        let rule = match code.frame(frame.ip, frame.address(interrupted), interrupted) {
            Ok(rule) => rule,
            Err(end) => return end,
        };
        if interrupted && code.changes() && frame.calls_probe(code) {
            return End::Inexpressible;
        }
        if walk.doubtful == Some(frame.fp) && !rule.is_plain() {
            code.guess();
            walk.doubtful = None;
        }
        if frame.is_lost(machine) {
            match frame.sp_by_record(machine, rule) {
                Some(sp) => frame.sp = sp,
                None => return End::NoCfi,
            }
        }
        let next = match walk.caller(rule, (nr, &frame), interrupted, code) {
            Ok(next) => next,
            Err(end) => return end,
        };
        // Before its signal frame is left.
        walk.link = None;
        if next.1 && machine.has_link() {
            walk.link = frame.interrupted_link(machine, memory);
            if walk.link.is_none() {
                return End::Fault;
            }
        }
        (frame, interrupted) = next;
    }
}

/// What a walk by rules knows besides its frame.
struct Walk<'w, M> {
    machine: &'w Machine,
    registers: Registers,
    memory: &'w M,
    decoder: Decoder,
    /// The number of the last frame that was interrupted.
    first: usize,
    /// A frame pointer that may be another frame's.
    doubtful: Option<u64>,
    /// The return address in the link register, of a frame that was interrupted.
    link: Option<u64>,
}

impl<M: Memory> Walk<'_, M> {
    /// Returns what follows the frame `nr`, which has this rule.
    #[inline(always)]
    fn caller(
        &mut self,
        rule: Rule,
        (nr, frame): (usize, &Frame),
        interrupted: bool,
        code: &mut impl Code,
    ) -> Next {
        let Self {
            machine,
            memory,
            link,
            ..
        } = *self;
        match rule.kind() {
            // gcc says that the frame still ends at an offset from the frame pointer.
            RuleKind::Call
                if link.is_some() && !rule.is_plain() && arm64::has_popped(frame.ip, code) =>
            {
                Err(End::Inexpressible)
            }
            RuleKind::Call => {
                frame.called(machine, rule, rule.end(frame.sp, frame.fp), link, memory)
            }
            RuleKind::Aligned => frame.aligned(machine, rule, link, memory),
            RuleKind::Outermost => Err(End::Complete),
            RuleKind::Signal => frame.interrupted(machine, memory),
            RuleKind::Inexpressible => Err(End::Inexpressible),
            kind @ (RuleKind::Computed | RuleKind::Tracked(_) | RuleKind::Handler) => {
                self.by_file(kind, (nr, frame), interrupted, code)
            }
            kind @ (RuleKind::Start | RuleKind::Unknown | RuleKind::Generated) => {
                self.without_cfi(kind, frame, interrupted, code)
            }
        }
    }

    /// Returns what follows the frame `nr`, of which its file says more than a rule can.
    #[cold]
    fn by_file(
        &mut self,
        kind: RuleKind,
        (nr, frame): (usize, &Frame),
        interrupted: bool,
        code: &mut impl Code,
    ) -> Next {
        let Self {
            machine,
            registers,
            memory,
            link,
            ..
        } = *self;
        let address = frame.address(interrupted);
        match kind {
            RuleKind::Tracked(register) => {
                let tracked = registers.track(machine, register, (nr, frame), memory, code);
                let (rule, base) = tracked.ok_or(End::Inexpressible)?;
                let end = rule.end(frame.sp, base);
                frame.called_anyhow(machine, rule, end, link, memory)
            }
            RuleKind::Handler => {
                let next = frame.enters_handler(machine, address, memory, code);
                // It, or what it has just called, may have put the handler's frame pointer where its caller's was:
                // libgcc's uw_install_context_1(), which calls no other function.
                if let (Ok((caller, _)), true) = (next, nr.wrapping_sub(self.first) < 2) {
                    self.doubtful = Some(caller.fp);
                }
                next
            }
            _ => {
                // The code of uprobes for this frame may have changed registers.
                let is_first = nr == 0 && frame.ip == registers.ip;
                frame.computed(machine, address, is_first, link, memory, code)
            }
        }
    }

    /// Returns what follows a frame of code without CFI.
    #[inline(never)]
    fn without_cfi(
        &mut self,
        kind: RuleKind,
        frame: &Frame,
        interrupted: bool,
        code: &mut impl Code,
    ) -> Next {
        let Self {
            machine, memory, ..
        } = *self;
        let generated = kind == RuleKind::Generated;
        let is_start = kind == RuleKind::Start
            && frame.sp.wrapping_sub(code.stack()) < START_STACK
            && !frame.is_lost(machine);
        if is_start {
            // Nothing was pushed yet: it was not called.
            return Err(End::Complete);
        }
        if !generated && frame.calls_sigreturn(machine, code) {
            return frame.interrupted(machine, memory);
        }
        let found = if machine.has_link() {
            arm64::caller(frame, self.link, generated, memory, code)
        } else {
            let decoded = match generated {
                true => None,
                false => self.decoder.caller(frame, interrupted, memory, code),
            };
            match decoded {
                None if !generated && begins_thread(frame.ip, code) => return Err(End::Complete),
                None => frame.by_pointer(interrupted, generated, memory, code),
                decoded => decoded,
            }
        };
        let (caller, is_guessed) = found.ok_or(End::NoCfi)?;
        if is_guessed {
            code.guess();
        }
        Ok((caller, false))
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
            let address = frame.address(callee == 0);
            let rule = code.rule(address)?;
            let link = (machine.has_link() && callee == 0)
                .then(|| memory.without_signature(code.register(machine.ra)));
            let end = rule.end(frame.sp, frame.fp);
            let caller = match rule.kind() {
                RuleKind::Call => frame.called(machine, rule, end, link, memory),
                RuleKind::Aligned => frame.aligned(machine, rule, link, memory),
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
        let address = frame.address(nr == 0);
        Some((code.track(address, register)?.rule?, value))
    }
}
