// SPDX-License-Identifier: GPL-2.0

//! From the return addresses that the kernel's unwinder found to an id, and to the event that binds
//! the id to a cookie.
//!
//! All of it runs in the task whose stack it is, when that returns to user space. Other tracers wait for
//! it, so nothing waits for memory: what cannot be had leaves the stack out, or addresses in place of files.

use super::{
    binaries::{VDSO, VDSO32},
    cookie::{exec_id, Cookie, Known},
    words::{self, End, Word, FRAMES_MAX, WORDS_MAX},
    State,
};
use crate::{
    map::Fallback,
    shim::{
        self, stackmap_binary, stackmap_mapping, stackmap_task, stackmap_user_counter,
        STACKMAP_MAPPINGS,
    },
    store,
};
use kernel::prelude::*;

/// The index of a mapping that has no binary.
const NO_BINARY: u32 = u32::MAX;

/// Room for the delivery of one stack.
#[derive(Zeroable)]
pub(super) struct Buffer {
    mappings: [stackmap_mapping; STACKMAP_MAPPINGS as usize],
    /// By mapping: the index of its binary.
    indices: [u32; STACKMAP_MAPPINGS as usize],
    /// By frame: the mapping.
    which: [u8; FRAMES_MAX],
    words: [u64; WORDS_MAX],
}

/// The id of the current task's user stack, which is remembered for its cookie; 0 if it is not kept.
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
    shim::stackmap_user_count(shim::stackmap_user_counter_STACKMAP_USER_DELIVERED);
    let mut task = stackmap_task::default();
    match state.remembered.get(cookie) {
        // Another trace array asked first.
        Some(Known::Bound(id)) => {
            shim::stackmap_user_count(shim::stackmap_user_counter_STACKMAP_USER_KNOWN);
            return id;
        }
        Some(Known::Pending(before)) => {
            shim::stackmap_user_task(&mut task);
            if before != exec_id(task.exec_id) {
                // The stack of another program than that of the request.
                shim::stackmap_user_count(shim::stackmap_user_counter_STACKMAP_USER_EXEC_STALE);
                return 0;
            }
        }
        None => {}
    }
    let ips = match nr {
        0 => &[],
        // SAFETY: By the requirement.
        _ => unsafe { core::slice::from_raw_parts(ips, nr as usize) },
    };
    let id = state.id_of(ips).unwrap_or(0);
    state.remembered.bind(cookie, id);
    id
}

/// The id that a cookie is bound to, 0 if none is known. Context: process.
#[no_mangle]
extern "C" fn stackmap_user_known(cookie: u64) -> c_uint {
    match super::state().and_then(|state| state.remembered.get(Cookie(cookie))) {
        Some(Known::Bound(id)) => id,
        Some(Known::Pending(_)) | None => 0,
    }
}

impl State {
    /// The id of the stack with these return addresses, the innermost first. [`None`]: it is not kept.
    fn id_of(&self, ips: &[usize]) -> Option<u32> {
        let mut buffer = self.buffers.take()?;
        let nr = buffer.fill(self, ips);
        let id = self.insert(&buffer.words[..nr]);
        self.buffers.put_back(buffer);
        id
    }

    /// Keeps a stack.
    fn insert(&self, words: &[u64]) -> Option<u32> {
        let store = &store::USER;
        let here = shim::NoPreemption::enter();
        let map = store.map_in(&here)?;
        // SAFETY: A context for each CPU, which only tasks enter, and none while another one is in it:
        // preemption is off.
        let entered = unsafe { map.enter(here.cpu()) };
        match entered.get_id(words) {
            Ok(found) => {
                if found.inserted && map.wants_growth() {
                    store.request_growth();
                }
                Some(found.id.get())
            }
            Err(reason) => {
                entered.add(reason.counter(), 1);
                if reason == Fallback::Growing {
                    store.request_growth();
                }
                None
            }
        }
    }

    /// The index of the binary that is mapped there.
    fn index(&self, mapping: &stackmap_mapping, ip: usize) -> Option<u32> {
        match mapping.kind {
            shim::stackmap_mapping_kind_STACKMAP_MAPPING_VDSO => return Some(VDSO),
            shim::stackmap_mapping_kind_STACKMAP_MAPPING_VDSO32 => return Some(VDSO32),
            shim::stackmap_mapping_kind_STACKMAP_MAPPING_FILE => {}
            _ => return None,
        }
        if let Some(index) = self.binaries.lock().index(&mapping.file) {
            return Some(index);
        }
        let mut binary: KBox<stackmap_binary> = KBox::zeroed(GFP_NOWAIT).ok()?;
        if !shim::stackmap_user_binary(ip, &mapping.file, &mut binary) {
            return None;
        }
        let added = self.binaries.lock().add(&mapping.file, &binary);
        if added.is_err() {
            shim::stackmap_user_count(shim::stackmap_user_counter_STACKMAP_USER_BINARIES_FULL);
        }
        added.ok()
    }
}

impl Buffer {
    /// Writes the words of a stack, and returns their number.
    fn fill(&mut self, state: &State, ips: &[usize]) -> usize {
        let (ips, end) = cut(ips);
        // SAFETY: So many addresses and bytes are there.
        let found = unsafe {
            shim::stackmap_user_mappings(
                ips.as_ptr(),
                ips.len() as u32,
                self.mappings.as_mut_ptr(),
                self.which.as_mut_ptr(),
            )
        } as usize;
        let (mut nr, mut raw, mut known) = (0, 0, 0);
        for (ip, which) in ips.iter().zip(&self.which) {
            let which = usize::from(*which);
            let word = self.mappings[..found].get(which).and_then(|mapping| {
                if which >= known {
                    // Mappings are numbered in the order of the frames.
                    self.indices[which] = state.index(mapping, *ip).unwrap_or(NO_BINARY);
                    known = which + 1;
                }
                Word::Binary {
                    index: self.indices[which],
                    offset: (*ip as u64 - mapping.start).checked_add(mapping.offset)?,
                }
                .bits()
            });
            raw += usize::from(word.is_none());
            self.words[nr] = word.unwrap_or(*ip as u64);
            nr += 1;
        }
        if raw != 0 {
            shim::stackmap_user_add(shim::stackmap_user_counter_STACKMAP_USER_RAW_FRAMES, raw);
            let mut task = stackmap_task::default();
            shim::stackmap_user_task(&mut task);
            let process = Word::Process {
                tgid: task.tgid,
                start: words::process(task.start_time, task.exec_id),
            };
            self.words[nr] = process.bits().unwrap_or(0);
            nr += 1;
        }
        shim::stackmap_user_count(counter(end));
        self.words[nr] = end as u64;
        nr + 1
    }
}

/// The frames that are kept of a stack, and how it ends. The kernel's unwinder takes what is on the
/// stack for return addresses, and does not say why it ends.
fn cut(ips: &[usize]) -> (&[usize], End) {
    let user_end = shim::stackmap_user_end();
    let good = |ip: &&usize| words::is_user(**ip as u64, user_end);
    let nr = ips.iter().take_while(good).take(FRAMES_MAX).count();
    let end = match ips.get(nr) {
        None if nr == 0 => End::NoMemory,
        None if nr == FRAMES_MAX => End::Depth,
        None => End::FramePointer,
        Some(0) if nr > 0 => End::Complete,
        Some(_) if nr == FRAMES_MAX => End::Depth,
        Some(_) => End::BadAddress,
    };
    (&ips[..nr], end)
}

/// The counter of stacks that end so.
fn counter(end: End) -> stackmap_user_counter {
    match end {
        End::Complete => shim::stackmap_user_counter_STACKMAP_USER_COMPLETE,
        End::NoRule => shim::stackmap_user_counter_STACKMAP_USER_CUT_NO_RULE,
        End::Fault => shim::stackmap_user_counter_STACKMAP_USER_CUT_FAULT,
        End::Depth => shim::stackmap_user_counter_STACKMAP_USER_CUT_DEPTH,
        End::FramePointer => shim::stackmap_user_counter_STACKMAP_USER_CUT_FP,
        End::NoMemory => shim::stackmap_user_counter_STACKMAP_USER_CUT_NO_MEMORY,
        End::BadAddress => shim::stackmap_user_counter_STACKMAP_USER_CUT_BAD_ADDRESS,
    }
}
