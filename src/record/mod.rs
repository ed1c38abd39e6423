// SPDX-License-Identifier: GPL-2.0

//! The path that every stack takes.

pub(crate) mod print;

use crate::{
    map::{Counter, Fallback},
    shim::{stackmap_stack, Recording, Unreserved, Watched},
    store, unwind, user,
};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether a CPU may be recording: true from before the hook is installed until after the drain.
static ON: AtomicBool = AtomicBool::new(false);

/// Full stacks because RCU was not watching, where a reset could not wait for us.
static UNWATCHED: AtomicU64 = AtomicU64::new(0);

/// Full stacks because the ring buffer is not that of the event's trace array.
static FOREIGN: AtomicU64 = AtomicU64::new(0);

/// Bytes of a `ftrace:stack_id` event in the ring buffer.
const ID_BYTES: u64 = 16;

/// Bytes of a `ftrace:stack_id_user` event in the ring buffer.
const ID_USER_BYTES: u64 = 24;

/// Whether a CPU may be recording. Context: any.
pub(crate) fn is_on() -> bool {
    // ORDERING: Acquire; pairs with the store in `set_on`: if false, the map has all recorded
    // stacks.
    ON.load(Ordering::Acquire)
}

/// Sets whether a CPU may be recording. Context: process.
pub(crate) fn set_on(on: bool) {
    // ORDERING: Release; pairs with the load in `is_on`.
    ON.store(on, Ordering::Release);
}

/// Full stacks because RCU was not watching.
pub(crate) fn unwatched() -> u64 {
    UNWATCHED.load(Ordering::Relaxed)
}

/// Full stacks because the event is in another trace array's buffer.
pub(crate) fn foreign() -> u64 {
    FOREIGN.load(Ordering::Relaxed)
}

/// Records one stack: an id if the map gives one, else the full stack. Returns false if the
/// kernel's unwinder has to walk the stack first; the caller then calls this function again.
///
/// The section of this function excludes kprobes.
///
/// Context: any, NMI included; preemption off.
///
/// # Safety
///
/// As for [`Recording::new`]; `stackmap_hook_drain()` waits for this function.
#[no_mangle]
#[link_section = ".kprobes.text"]
unsafe extern "C" fn stackmap_record(stack: *mut stackmap_stack) -> bool {
    // SAFETY: As required of the caller.
    unsafe { recorded::<false>(stack) }
}

/// The same while user stacks are recorded, too: what that costs is in code of its own.
///
/// # Safety
///
/// As for [`stackmap_record`].
#[no_mangle]
#[link_section = ".kprobes.text"]
unsafe extern "C" fn stackmap_record_user(stack: *mut stackmap_stack) -> bool {
    // SAFETY: As required of the caller.
    unsafe { recorded::<true>(stack) }
}

/// # Safety
///
/// As for [`stackmap_record`].
#[inline(always)]
unsafe fn recorded<const USER: bool>(stack: *mut stackmap_stack) -> bool {
    // SAFETY: As required of the caller.
    let mut recording = unsafe { Recording::new(stack) };
    let section = recording.watched();
    let Some(frames) = unwind::frames(&mut recording, section.as_ref()) else {
        return false;
    };
    let frames = recording.frames(frames);
    match &section {
        Some(section) => record::<USER>(&recording, section, frames),
        None => count_full(&recording, frames, &UNWATCHED),
    }
    true
}

#[inline(always)]
fn record<const USER: bool>(recording: &Recording<'_>, section: &Watched<'_>, frames: &[u64]) {
    let Some(map) = store::KERNEL.map_in(section) else {
        recording.write_full(frames);
        return;
    };
    // SAFETY: RCU is watching and preemption is off, so grace periods wait for this CPU. Only the
    // caller uses the context of this level of nesting.
    let entered = unsafe { map.enter(recording.context()) };
    // Before the event is reserved: the request may be recorded itself.
    let cookie = if USER {
        user::request(recording, section)
    } else {
        None
    };
    let event = match recording.reserve_id(cookie) {
        Ok(event) => event,
        Err(Unreserved::NoRoom) => return,
        Err(Unreserved::Foreign) => return count_full(recording, frames, &FOREIGN),
    };
    match entered.get_id(frames) {
        Ok(found) => {
            event.commit(found.id.get());
            let bytes = cookie.map_or(ID_BYTES, |_| ID_USER_BYTES);
            let saved = recording.full_bytes(frames.len()).wrapping_sub(bytes);
            entered.add(Counter::BytesSaved, saved);
            if found.inserted && map.wants_growth() {
                store::KERNEL.request_growth();
            }
        }
        Err(reason) => {
            event.discard();
            if recording.write_full(frames) {
                entered.add(reason.counter(), 1);
            }
            if reason == Fallback::Growing {
                store::KERNEL.request_growth();
            }
        }
    }
}

/// Records a full stack, and counts it in a counter outside the map.
#[cold]
fn count_full(recording: &Recording<'_>, frames: &[u64], counter: &AtomicU64) {
    if recording.write_full(frames) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
