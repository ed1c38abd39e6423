// SPDX-License-Identifier: GPL-2.0

//! The path of each recorded stack, and the request for pool growth.

pub(crate) mod print;

use crate::{
    map::{ControlError, Counter, Fallback, Map},
    published::{Published, Section},
    shim::{self, stackmap_stack, Recording, Unreserved, Watched},
    unwind,
};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kernel::{pr_warn_once, prelude::*, sync::Arc};

/// The map; none before the option is first turned on, and none at unload.
static MAP: Published<Map> = Published::nothing();

/// Whether a CPU may be recording: true from before the hook is installed until after the drain.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether pool growth is pending.
static GROWTH_ASKED: AtomicBool = AtomicBool::new(false);

/// Full stacks because RCU was not watching: a reset could not wait for this CPU.
static UNWATCHED: AtomicU64 = AtomicU64::new(0);

/// Full stacks because the ring buffer is not that of the event's trace array.
static FOREIGN: AtomicU64 = AtomicU64::new(0);

/// Bytes of a `ftrace:stack_id` event in the ring buffer.
const ID_BYTES: u64 = 16;

/// The map, if the option was ever on. Context: process.
pub(crate) fn map() -> Option<Arc<Map>> {
    MAP.get()
}

/// The map, for the duration of a read-side section. Context: any.
#[inline(always)]
pub(crate) fn map_in<'s>(section: &'s impl Section) -> Option<&'s Map> {
    MAP.read(section)
}

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

/// Gives a map to the recorders, or takes it from them. Context: process; callers serialise.
pub(crate) fn set_map(map: Option<Arc<Map>>) {
    MAP.replace(map);
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
    let mut recording = unsafe { Recording::new(stack) };
    let section = recording.watched();
    let Some(frames) = unwind::frames(&mut recording, section.as_ref()) else {
        return false;
    };
    let frames = recording.frames(frames);
    match &section {
        Some(section) => record(&recording, section, frames),
        None => count_full(&recording, frames, &UNWATCHED),
    }
    true
}

#[inline(always)]
fn record(recording: &Recording<'_>, section: &Watched<'_>, frames: &[u64]) {
    let Some(map) = map_in(section) else {
        recording.write_full(frames);
        return;
    };
    // SAFETY: RCU is watching and preemption is off, so grace periods wait for this CPU. Only the
    // caller uses the context of this level of nesting.
    let entered = unsafe { map.enter(recording.context()) };
    let event = match recording.reserve_id() {
        Ok(event) => event,
        Err(Unreserved::NoRoom) => return,
        Err(Unreserved::Foreign) => return count_full(recording, frames, &FOREIGN),
    };
    match entered.get_id(frames) {
        Ok(found) => {
            event.commit(found.id.get());
            let saved = recording.full_bytes(frames.len()).wrapping_sub(ID_BYTES);
            entered.add(Counter::BytesSaved, saved);
            if found.inserted && map.wants_growth() {
                ask_for_growth();
            }
        }
        Err(reason) => {
            event.discard();
            if recording.write_full(frames) {
                entered.add(reason.counter(), 1);
            }
            if reason == Fallback::Growing {
                ask_for_growth();
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

#[cold]
fn ask_for_growth() {
    if !GROWTH_ASKED.swap(true, Ordering::Relaxed) {
        // SAFETY: The worker is stopped only after the drain, when no CPU records.
        unsafe { shim::stackmap_growth_kick() };
    }
}

/// Adds memory to the map. Called by the worker, which retries after a second on failure.
///
/// Context: process.
#[no_mangle]
extern "C" fn stackmap_grow() -> c_int {
    GROWTH_ASKED.store(false, Ordering::Relaxed);
    let Some(map) = map() else {
        return 0;
    };
    let error = match map.grow() {
        // A reset empties the pool.
        Ok(()) | Err(ControlError::Busy) => return 0,
        Err(ControlError::EnoughFree) => EAGAIN,
        Err(ControlError::NoMemory) => {
            pr_warn_once!(
                "out of memory for pool growth; new stacks are recorded as full stacks\n"
            );
            ENOMEM
        }
    };
    // The worker retries by itself, so new events need not kick it.
    GROWTH_ASKED.store(true, Ordering::Relaxed);
    error.to_errno()
}
