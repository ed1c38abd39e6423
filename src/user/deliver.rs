// SPDX-License-Identifier: GPL-2.0

//! From a user stack to its id, which is remembered for the cookie.
//!
//! Mostly it runs in the task whose stack it is, when that returns to user space. Other tracers wait for
//! it, so nothing waits for memory: without it the stack is dropped, or keeps raw addresses.

use super::{
    cfi::NATIVE,
    cookie::{Cookie, Known},
    encoded::{EncodedStack, End, FRAMES_MAX},
    frame::{Memory, Registers},
    mappings::{Mappings, ProcessCode, READS_MAX},
    process::{registers, OwnMemory, OwnMemory32, Process},
    walk, State,
};
use crate::{
    map::{self, Fallback},
    published::Section,
    shim::{self, stackmap_user_counter},
    store,
};
use core::cell::Cell;
use kernel::prelude::*;

/// The memory that the delivery of one stack needs.
pub(super) struct Buffer {
    mappings: Mappings,
    /// Return addresses by frame pointers; a walk by rules does not use them.
    ips: [usize; FRAMES_MAX],
    words: EncodedStack,
}

// SAFETY: Its fields are integers, arrays of them, and `Mappings`.
unsafe impl Zeroable for Buffer {}

/// Returns the id of the current task's user stack, and remembers it for its cookie; 0 if it is not kept.
///
/// Context: task context, may sleep.
///
/// # Safety
///
/// `ips` points to `nr` elements; it can be null if there are none.
#[no_mangle]
unsafe extern "C" fn stackmap_user_id(ips: *const usize, nr: c_uint, cookie: u64) -> c_uint {
    let Some(state) = super::state() else {
        return 0;
    };
    let cookie = Cookie(cookie);
    shim::stackmap_user_count(shim::STACKMAP_USER_DELIVERED);
    let known = state.remembered.get(cookie);
    if let Some(Known::Bound(id)) = known {
        // Another trace array asked first.
        shim::stackmap_user_count(shim::STACKMAP_USER_KNOWN);
        return id;
    }
    let process = Process::current();
    if matches!(known, Some(Known::Pending(before)) if process.is_another(before)) {
        // The stack of another program than that of the request.
        shim::stackmap_user_count(shim::STACKMAP_USER_EXEC_STALE);
        return 0;
    }
    let ips = match nr {
        0 => &[],
        // SAFETY: By the requirement.
        _ => unsafe { core::slice::from_raw_parts(ips, nr as usize) },
    };
    let registers = registers();
    // The kernel has walked the stack by frame pointers, now or earlier in this entry. If a signal's handler
    // has changed the registers since, they are of another stack.
    let unchanged = ips.first().is_none_or(|ip| *ip as u64 == registers.ip);
    let id = match registers.word == 8 && unchanged {
        true => state.id_by_rules(&process, registers, &OwnMemory::new(), true, || true),
        // Rules are those of 64 bits. Without the kernel's walk:
        false if nr == 0 && registers.word == 4 => {
            let memory = OwnMemory32(OwnMemory::new());
            let walk = |ips: &mut [usize]| walk::by_frame_pointers(registers, &memory, ips);
            state.id_by_pointers(&process, walk, || true)
        }
        false => state.id_by_pointers(&process, |to| copy(ips, to), || true),
    };
    // Unless it was settled meanwhile.
    state.remembered.bind(cookie, id.unwrap_or(0))
}

/// Returns the id that a cookie is bound to, 0 if none is known. Context: process.
#[no_mangle]
extern "C" fn stackmap_user_known(cookie: u64) -> c_uint {
    match super::state().and_then(|state| state.remembered.get(Cookie(cookie))) {
        Some(Known::Bound(id)) => id,
        Some(Known::Pending(_)) | None => 0,
    }
}

impl State {
    /// Returns the id of a stack by the rules of its code; see [`State::id_of`]. What is missing of a file is read ahead by
    /// the current task, if it may wait for that.
    pub(super) fn id_by_rules<M: Memory>(
        &self,
        process: &Process<'_>,
        registers: Registers,
        memory: &M,
        may_wait: bool,
        still_valid: impl Fn() -> bool,
    ) -> Option<u32> {
        self.rules.in_one_era(|in_era| {
            let walk = |buffer: &mut Buffer| {
                let reads = Cell::new(READS_MAX);
                let mut code = ProcessCode {
                    state: self,
                    process,
                    mappings: &mut buffer.mappings,
                    words: &mut buffer.words,
                    memory,
                    may_wait,
                    is_own: may_wait,
                    learnt: 0,
                    reads: &reads,
                    open: None,
                };
                let user_end = shim::facts().user_end;
                walk::by_rules(&NATIVE, registers, memory, &mut code, user_end)
            };
            self.id_of(process, walk, || in_era() && still_valid())
        })
    }

    /// Returns the id of a stack by frame pointers: `walk` sets return addresses and returns their number; see
    /// [`State::id_of`].
    pub(super) fn id_by_pointers(
        &self,
        process: &Process<'_>,
        walk: impl FnOnce(&mut [usize]) -> usize,
        still_valid: impl FnOnce() -> bool,
    ) -> Option<u32> {
        self.id_of(
            process,
            |buffer| {
                let Buffer {
                    mappings,
                    ips,
                    words,
                } = buffer;
                let nr = walk(ips);
                let ips = ips.get(..nr).unwrap_or_default();
                walk::unverified(ips, shim::facts().user_end, words, |words, ip| {
                    match mappings.word(self, process, ip) {
                        Some(word) => words.keep(word),
                        None => match mappings.without_file(ip) {
                            Err(End::BadAddress) if words.frames() > 0 => {
                                return Err(End::BadAddress)
                            }
                            _ => words.keep_raw(ip),
                        },
                    }
                    Ok(())
                })
            },
            still_valid,
        )
    }

    /// Returns the id of the stack whose frames `walk` puts into the buffer, and which ends as it returns. [`None`]: it is
    /// not kept, or what was read of the process is not `still_valid`.
    fn id_of(
        &self,
        process: &Process<'_>,
        walk: impl FnOnce(&mut Buffer) -> End,
        still_valid: impl FnOnce() -> bool,
    ) -> Option<u32> {
        let mut buffer = self.buffers.take()?;
        buffer.mappings.clear();
        buffer.words.clear();
        let end = walk(&mut buffer);
        let guessed = buffer.words.guessed() != 0;
        buffer.words.end(process.word(), end);
        let id = match still_valid() {
            true => {
                let raw = buffer.words.raw();
                shim::stackmap_user_add(shim::STACKMAP_USER_RAW_FRAMES, raw);
                shim::stackmap_user_count(match end {
                    End::Complete if guessed => shim::STACKMAP_USER_GUESSED,
                    _ => counter(end),
                });
                self.insert(process.user(), buffer.words.words())
            }
            false => None,
        };
        self.buffers.put_back(buffer);
        id
    }

    /// Keeps a stack of this user's, or finds it.
    fn insert(&self, user: u32, words: &[u64]) -> Option<u32> {
        let store = &store::USER;
        let exhausted = self.stacks.is_exhausted(user);
        let here = shim::NoPreemption::enter();
        let map = store.map_in(&here)?;
        // SAFETY: A context for each CPU, which only tasks enter, and none while another one is in it:
        // preemption is off.
        let guard = unsafe { map.enter(here.inside(), here.cpu()) };
        if exhausted {
            let found = guard.find(words);
            if found.is_none() {
                shim::stackmap_user_count(shim::STACKMAP_USER_DROP_SHARE);
            }
            return Some(found?.id.get());
        }
        let found = match guard.get_id(words) {
            Ok(found) => found,
            Err(reason) => {
                guard.add(reason.counter(), 1);
                if reason == Fallback::Growing {
                    store.request_growth();
                }
                return None;
            }
        };
        if found.inserted {
            if map.wants_growth() {
                store.request_growth();
            }
            drop(here);
            // A long stack uses up the memory of several.
            let bytes = map::record_bytes(words.len()).max(map::POOL_BYTES_PER_STACK);
            self.stacks.add(user, bytes as u64);
        }
        Some(found.id.get())
    }
}

/// Copies as much as fits, and returns the number.
fn copy(from: &[usize], to: &mut [usize]) -> usize {
    let copied = to.iter_mut().zip(from).map(|(to, from)| *to = *from);
    copied.count()
}

/// Returns the counter of stacks with this end: counters are in the order of [`End`].
fn counter(end: End) -> stackmap_user_counter {
    use shim::{STACKMAP_USER_COMPLETE as FIRST, STACKMAP_USER_CUT_COMPLEX_CFI as LAST};
    const _: () = assert!(LAST - FIRST == End::Inexpressible as u32 - End::Complete as u32);
    FIRST + end as stackmap_user_counter - End::Complete as stackmap_user_counter
}
