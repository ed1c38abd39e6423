// SPDX-License-Identifier: GPL-2.0

//! The callers of code without CFI, by decoding its function.
//!
//! From the frame on, the instructions say what is popped until the function returns, so where its return address is.
//! From the entry of the function, they say what it has pushed; its entry is the target of the call before a return
//! address. Where both agree, or where only one can be decoded, see [`Decoder::caller`].

pub mod arm64;
pub(super) mod bytes;
mod instruction;
mod state;

use super::{
    encoded::is_user,
    frame::{Caller, CallerPointer, Code, Frame, Memory},
};
use bytes::{begins_thread, indirect_call, target_of};
use core::mem::take;
use instruction::{is_between_functions, Instruction};
use state::{Flow, FrameState, Layout};

/// The maximum number of words and instructions that are read for a stack.
const READS_MAX: u32 = 16_384;
/// The maximum number of these reads for a frame: whether it is decoded does not depend on what is remembered of others.
const FRAME_READS_MAX: u32 = 4096;
/// The number of these reads from which on it is remembered that a frame was not decoded.
const FAILURE_READS: u32 = 512;
/// The maximum number of words of a frame.
const WORDS_MAX: u64 = 1024;

/// Bytes from what gcc's function that calls destructors does first to its end, at most.
const DESTRUCTORS_MAX: u64 = 48;

/// Instructions that are decoded, all of which begin with one [`Layout`].
#[derive(Clone, Copy, Default)]
struct Decoded {
    start: u64,
    depth: i32,
    saved: i16,
    /// As many as are read for a frame have fewer bytes than this counts.
    size: u16,
}

/// The paths through the instructions of a function: where decoding goes on, and what is decoded.
struct Paths {
    next: [(u64, FrameState); Self::NEXT_MAX],
    nr_next: usize,
    done: [Decoded; Self::DONE_MAX],
    nr_done: usize,
    /// A path was left: its end may differ from the others.
    is_partial: bool,
    /// Paths join with another depth, or another place of the caller's frame pointer.
    differ: bool,
}

impl Paths {
    const NEXT_MAX: usize = 24;
    const DONE_MAX: usize = 192;

    fn new(start: u64, state: FrameState) -> Self {
        Self {
            next: [(start, state); Self::NEXT_MAX],
            nr_next: 1,
            done: [Decoded::default(); Self::DONE_MAX],
            nr_done: 0,
            is_partial: false,
            differ: false,
        }
    }

    /// Adds a path, unless there are too many: then not all are decoded.
    fn add(&mut self, address: u64, state: FrameState) {
        match self.next.get_mut(self.nr_next) {
            Some(next) if self.nr_done < Self::DONE_MAX => {
                *next = (address, state);
                self.nr_next += 1;
            }
            _ => self.is_partial = true,
        }
    }

    /// Follows an instruction of a path, which leads up to `address`. Returns whether the path goes on there at once.
    fn follow(
        &mut self,
        flow: Flow,
        (address, state): (u64, &mut FrameState),
        goal: Goal,
        memory: &impl Memory,
    ) -> bool {
        match flow {
            Flow::Next => return true,
            Flow::Call => {
                state.pointer = None;
                state.has_called = true;
                if goal == Goal::Return || !self.has_certain() {
                    return true;
                }
                state.follows_call = true;
                self.add(address, *state);
            }
            Flow::Branch(target) => {
                self.add(target, *state);
                return true;
            }
            Flow::Jump(target) => self.add(target, *state),
            Flow::JumpBy(at) => match memory.code(at) {
                Ok(target) => self.add(target, *state),
                Err(_) => self.is_partial = true,
            },
            Flow::Switch if goal != Goal::Return => {
                state.is_guessed = true;
                self.add(address, *state);
            }
            Flow::Switch | Flow::Lost => self.is_partial = true,
            Flow::Return | Flow::ReturnAndPop | Flow::End => {}
        }
        false
    }

    /// Returns whether there is a path without a call, which may not return.
    fn has_certain(&self) -> bool {
        let mut paths = self.next.iter().take(self.nr_next);
        paths.any(|(_, state)| state.is_certain())
    }

    /// Returns the next path: one that is not guessed, and has no call, if there is one.
    fn take(&mut self) -> Option<(u64, FrameState)> {
        let last = self.nr_next.checked_sub(1)?;
        let paths = self.next.get_mut(..=last)?;
        let index = paths
            .iter()
            .rposition(|(_, state)| state.is_certain())
            .or_else(|| paths.iter().rposition(|(_, state)| !state.is_guessed));
        paths.swap(index.unwrap_or(last), last);
        self.nr_next = last;
        paths.last().copied()
    }

    /// Returns whether the instruction at an address is decoded, and if so, whether with this layout.
    fn is_done(&self, address: u64, layout: Layout) -> Option<bool> {
        let mut done = self.done.iter().take(self.nr_done);
        let known = done.find(|known| address.wrapping_sub(known.start) < known.size.into())?;
        Some((known.depth, known.saved) == layout)
    }

    /// Marks the instructions from `start` up to `end` as decoded. If there are too many such ranges, all paths are left.
    fn finish(&mut self, (start, (depth, saved)): (u64, Layout), end: u64) {
        match self.done.get_mut(self.nr_done) {
            Some(done) => {
                *done = Decoded {
                    start,
                    depth,
                    saved,
                    size: end.wrapping_sub(start) as u16,
                };
                self.nr_done += 1;
            }
            None => (self.nr_next, self.is_partial) = (0, true),
        }
    }
}

/// Where decoding leads to.
#[derive(Clone, Copy, PartialEq)]
enum Goal {
    /// An instruction that was interrupted.
    Instruction(u64),
    /// The end of a call, which returns there.
    ReturnTo(u64),
    /// The end of the function.
    Return,
}

/// What precedes a return address.
enum Call {
    To(u64),
    Indirect,
}

/// Decodes the functions of a stack.
pub(super) struct Decoder {
    /// How many words and instructions may still be read.
    reads: u32,
    /// The function returns with another stack pointer than that above its return address.
    pops: bool,
    /// Some code cannot be read, or its rule is not known now: another stack may have it.
    is_unknown: bool,
    /// A word that may be a return address was left out, as its call cannot be read.
    is_left_out: bool,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            reads: READS_MAX,
            pops: false,
            is_unknown: false,
            is_left_out: false,
        }
    }

    fn read(&mut self) -> Option<()> {
        self.reads = self.reads.checked_sub(1)?;
        Some(())
    }

    /// Decodes from an instruction on until the goal. Returns the state there, which is guessed where paths differ.
    /// [`None`]: the goal is not met, the ends of the function differ, or there are too many instructions.
    #[inline(never)]
    fn decode(
        &mut self,
        (start, state): (u64, FrameState),
        goal: Goal,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Option<FrameState> {
        let mut paths = Paths::new(start, state);
        let mut end: Option<FrameState> = None;
        while let Some((start, mut state)) = paths.take() {
            // What follows a call that does not return need not agree with a path that is certain.
            if goal != Goal::Return
                && end.is_some_and(|end| end.is_certain())
                && !state.is_certain()
            {
                break;
            }
            let (mut address, mut since) = (start, (start, state.layout()));
            let follows_call = take(&mut state.follows_call);
            let mut is_after_call = goal != Goal::Return && follows_call && !state.is_guessed;
            loop {
                if let Some(is_same) = paths.is_done(address, state.layout()) {
                    paths.differ |= !is_same;
                    break;
                }
                if goal == Goal::Instruction(address) {
                    paths.differ |= end.get_or_insert(state).layout() != state.layout();
                    break;
                }
                if self.read().is_none() {
                    end.iter_mut().for_each(|end| end.is_guessed = true);
                    return end.filter(|_| goal != Goal::Return);
                }
                let Some((bytes, length)) = code.instruction(address) else {
                    self.is_unknown = true;
                    paths.is_partial = true;
                    break;
                };
                let instruction = Instruction::new(&bytes, length, address);
                if is_after_call && is_between_functions(&instruction) {
                    // The call may not return.
                    if goal != Goal::Return {
                        state.is_guessed = true;
                        paths.add(address, state);
                    }
                    break;
                }
                let flow = state.execute(&instruction);
                if goal != Goal::Return && state.depth.is_some_and(|depth| depth < 0) {
                    break;
                }
                address = instruction.next;
                if state.layout() != since.1 {
                    paths.finish(since, address);
                    since = (address, state.layout());
                }
                is_after_call = matches!(flow, Flow::Call);
                match flow {
                    Flow::Call if goal == Goal::ReturnTo(address) => end = end.or(Some(state)),
                    Flow::Return if goal == Goal::Return => {
                        if end.is_some_and(|end| end.depth != state.depth) {
                            return None;
                        }
                        end = end.or(Some(state));
                    }
                    Flow::ReturnAndPop => self.pops = true,
                    flow => {
                        if paths.follow(flow, (address, &mut state), goal, memory) {
                            continue;
                        }
                    }
                }
                break;
            }
            paths.finish(since, address);
        }
        end.iter_mut().for_each(|end| {
            let is_all = goal != Goal::Return && !end.has_called;
            end.is_guessed |= paths.differ || paths.is_partial && !is_all;
        });
        end
    }

    /// Returns the caller of a frame, and whether it is guessed. [`None`]: no return address is verified.
    ///
    /// The caller is verified if the ways from the entry of the function, which is called directly, to the frame put the
    /// return address where it is; also, if the entry is not known, if the ways from the frame to the end of the function
    /// do, and have no call, which may not return.
    #[cold]
    pub(super) fn caller(
        &mut self,
        frame: &Frame,
        interrupted: bool,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Option<(Frame, bool)> {
        let caller = match code.decoded(frame, interrupted) {
            Some(caller) => caller,
            None => {
                let left = self.reads.saturating_sub(FRAME_READS_MAX);
                self.reads -= left;
                let before = self.reads;
                let caller = self.decode_caller(frame, interrupted, memory, code);
                let is_expensive = before - self.reads >= FAILURE_READS;
                self.reads += left;
                // Another stack may have more reads left for the frame.
                if (caller.is_some() || is_expensive) && left > 0 && !self.is_unknown {
                    code.set_decoded(frame, interrupted, caller);
                }
                caller
            }
        }?;
        Some((caller.frame(frame, memory)?, caller.is_guessed))
    }

    /// Returns where the caller is; see [`Decoder::caller`].
    fn decode_caller(
        &mut self,
        frame: &Frame,
        interrupted: bool,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Option<Caller> {
        code.instruction(frame.ip)?;
        let goal = match interrupted {
            true => Goal::Instruction(frame.ip),
            false => Goal::ReturnTo(frame.ip),
        };
        // Whether the end of the function may say something else.
        let mut differs = false;
        (self.pops, self.is_unknown, self.is_left_out) = (false, false, false);
        let end = self.end(frame, memory, code);
        if self.pops {
            return None;
        }
        if let Some((slot, end)) = end {
            let caller = |is_guessed| {
                let caller = end.caller_at_end(frame, slot);
                Some(Caller {
                    is_guessed,
                    ..caller
                })
            };
            match self.called(memory.word(slot).ok()?, memory, code) {
                Some(Call::To(entry)) => {
                    let state = self.decode((entry, FrameState::ENTRY), goal, memory, code);
                    match state {
                        Some(state) if state.slots(frame).contains(&Some(slot)) => {
                            return caller(false).map(|end| end.with_fp_of(state.caller(slot)));
                        }
                        Some(_) => differs = true,
                        None => return caller(true),
                    }
                }
                // The call that it waits for may not return either.
                Some(Call::Indirect) => {
                    let may_not_return = end.has_called || !interrupted;
                    let is_guessed = end.is_guessed
                        || may_not_return && !self.is_startup(frame, slot, goal, memory, code);
                    return caller(is_guessed);
                }
                // Without a call that may not return, the entry leads to another depth.
                None => differs = !end.has_called,
            }
        }
        self.search(frame, goal, differs, memory, code)
    }

    /// Returns the caller by the first word of the stack from which the entry of a function leads to the frame. It is
    /// guessed if the end of the function `differs`.
    fn search(
        &mut self,
        frame: &Frame,
        goal: Goal,
        differs: bool,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Option<Caller> {
        let mut last = None;
        let mut is_first = true;
        for index in 0..WORDS_MAX {
            self.read()?;
            let slot = frame.sp.wrapping_add(8 * index);
            let ip = memory.word(slot).ok()?;
            let Some(call) = self.called(ip, memory, code) else {
                continue;
            };
            // No frame is between this and the outermost one, as no return address is.
            if take(&mut is_first) && begins_thread(ip, code) {
                return Some(Caller {
                    slot,
                    fp: CallerPointer::Unknown,
                    // A return address without a rule was left out.
                    is_guessed: differs || self.is_unknown || self.is_left_out,
                });
            }
            let Call::To(entry) = call else {
                continue;
            };
            let state = match last {
                Some((before, state)) if before == entry => state,
                _ => self.decode((entry, FrameState::ENTRY), goal, memory, code),
            };
            last = Some((entry, state));
            let state = state.filter(|state| state.slot(frame) == Some(slot));
            if let Some(state) = state {
                return Some(Caller {
                    is_guessed: differs || state.is_guessed || self.is_unknown || self.is_left_out,
                    ..state.caller(slot)
                });
            }
        }
        None
    }

    /// Returns whether the frame, whose return address is at `slot` if the function goes on, is in code that each file has
    /// from gcc and libc, without CFI and called by a pointer, whose calls do return: about to begin `_init`, as no other
    /// function begins, or about to end `__do_global_dtors_aux`, which compares a variable first and sets it last.
    fn is_startup(
        &mut self,
        frame: &Frame,
        slot: u64,
        goal: Goal,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> bool {
        let mut bytes = |address| code.instruction(address).map(|(bytes, _)| bytes);
        let Some(here) = bytes(frame.ip) else {
            return false;
        };
        // sub $8, %rsp; mov __gmon_start__(%rip), %rax; test %rax, %rax; je; after endbr64
        if let Some([0x48, 0x83, 0xec, 8, 0x48, 0x8b, 5, _, _, _, _, 0x48, 0x85, 0xc0, 0x74, 2]) =
            match here {
                [0xf3, 0x0f, 0x1e, 0xfa, ..] => bytes(frame.ip.wrapping_add(4)),
                here => Some(here),
            }
        {
            // A call that does not return may precede it.
            return goal == Goal::Instruction(frame.ip);
        }
        // call deregister_tm_clones
        let (skipped, rest) = match here {
            [0xe8, _, _, _, _, ref rest @ ..] => (5, &rest[..]),
            ref all => (0, &all[..]),
        };
        // movb $1, completed(%rip); pop %rbp; ret
        let [0xc6, 0x05, a, b, c, d, 1, 0x5d, 0xc3, ..] = *rest else {
            return false;
        };
        let variable =
            |next: u64, offset| next.wrapping_add_signed(i32::from_le_bytes(offset).into());
        let completed = variable(frame.ip.wrapping_add(skipped + 7), [a, b, c, d]);
        // cmpb $0, completed(%rip)
        let mut compares = |next: u64| match code.bytes_before(next) {
            Some([_, 0x80, 0x3d, a, b, c, d, 0]) => variable(next, [a, b, c, d]) == completed,
            _ => false,
        };
        let mut before = (7..DESTRUCTORS_MAX).map(|distance| frame.ip.wrapping_sub(distance));
        let Some(next) = before.find(|next| compares(*next)) else {
            return false;
        };
        let entry = (next.wrapping_sub(7), FrameState::ENTRY);
        let state = self.decode(entry, goal, memory, code);
        state.is_some_and(|state| !state.is_guessed && state.slot(frame) == Some(slot))
    }

    /// Returns the address of the return address of a frame, and its state at the end of the function.
    fn end(
        &mut self,
        frame: &Frame,
        memory: &impl Memory,
        code: &mut impl Code,
    ) -> Option<(u64, FrameState)> {
        let end = self.decode(
            (frame.ip, FrameState::of(frame)),
            Goal::Return,
            memory,
            code,
        )?;
        let popped = end.depth?.checked_neg().filter(|popped| *popped >= 0)?;
        Some((frame.sp.wrapping_add_signed(popped.into()), end))
    }

    /// Returns the call before an address. [`None`]: no call is there, or no executable memory.
    fn called(&mut self, ip: u64, memory: &impl Memory, code: &mut impl Code) -> Option<Call> {
        let Some(before) = code.bytes_before(ip) else {
            self.is_left_out |= is_user(ip, 1 << 56) && code.is_code(ip.wrapping_sub(1));
            return None;
        };
        let target = match (target_of(before, ip), before) {
            (Some(target), _) => Some(target),
            (None, [_, _, 0xff, 0x15, offset @ ..]) => {
                let offset = i32::from_le_bytes(offset);
                memory.code(ip.wrapping_add_signed(offset.into())).ok()
            }
            _ => {
                indirect_call(before)?;
                None
            }
        };
        if code.rule(ip).is_none() {
            self.is_unknown = true;
            return None;
        }
        Some(target.map_or(Call::Indirect, Call::To))
    }
}
