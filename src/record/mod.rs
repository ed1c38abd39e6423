// SPDX-License-Identifier: GPL-2.0

//! The path that every stack takes, and the growth that it asks for.

pub(crate) mod print;

use crate::{
    map::{ControlError, Counter, Fallback, Map},
    shim::{self, stackmap_layout, stackmap_stack, Recording, Unreserved},
    unwind,
};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use kernel::{bindings, pr_warn_once, prelude::*, sync::SetOnce};

/// Null before the option first goes on, and when the module goes.
static MAP: AtomicPtr<Map> = AtomicPtr::new(core::ptr::null_mut());

/// The layout of `ftrace:kernel_stack`, set before anything can be recorded.
static LAYOUT: SetOnce<stackmap_layout> = SetOnce::new();

/// Whether anybody may be recording: from before a hook is installed until after the drain.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether growth has been asked for and not come yet.
static GROWTH_ASKED: AtomicBool = AtomicBool::new(false);

/// Full stacks because RCU was not watching, where a reset could not wait for us.
static UNWATCHED: AtomicU64 = AtomicU64::new(0);

/// Full stacks because the event is in the buffer of another trace array than it says.
static FOREIGN: AtomicU64 = AtomicU64::new(0);

/// Bytes of a `ftrace:stack_id` event in the ring buffer.
const ID_BYTES: u64 = 16;

/// The map, if the option was ever on. Context: any, while the module is loaded.
#[inline(always)]
pub(crate) fn map() -> Option<&'static Map> {
    // ORDERING: Acquire; pairs with the store in `set_map`.
    let map = MAP.load(Ordering::Acquire);
    // SAFETY: Either null or a leaked box, which `free_map` frees when nobody can have it any more.
    unsafe { map.as_ref() }
}

/// Whether anybody may be recording. Context: any.
pub(crate) fn is_on() -> bool {
    // ORDERING: Acquire; pairs with the store in `set_on`: what was recorded is in the map.
    ON.load(Ordering::Acquire)
}

/// Says whether anybody may be recording.
pub(crate) fn set_on(on: bool) {
    // ORDERING: Release; pairs with the load in `is_on`.
    ON.store(on, Ordering::Release);
}

/// Gives the map to the recorders, for good.
pub(crate) fn set_map(map: KBox<Map>) {
    // ORDERING: Release; pairs with the load in `map`.
    MAP.store(KBox::into_raw(map), Ordering::Release);
}

/// Frees the map. Who shows the trace may still look at it, inside a read-side section.
///
/// # Safety
///
/// Process context. There is a map, and nobody else has a reference to it or calls [`map`].
pub(crate) unsafe fn free_map() {
    let map = MAP.swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: Process context.
    unsafe { bindings::synchronize_rcu() };
    // SAFETY: `set_map` made it of a box; by the requirement, and since the grace period, nobody
    // else has it.
    drop(unsafe { KBox::from_raw(map) });
}

/// Says how full stacks are written.
pub(crate) fn set_layout(layout: stackmap_layout) {
    LAYOUT.populate(layout);
}

/// Hits of the kprobe hook that the kernel could not deliver; it recorded full stacks.
pub(crate) fn missed() -> u64 {
    // SAFETY: No requirements.
    unsafe { shim::stackmap_hook_missed() as u64 }
}

/// Stacks that found no level of nesting free.
pub(crate) fn nested() -> u64 {
    // SAFETY: No requirements.
    unsafe { shim::stackmap_stack_nested() as u64 }
}

/// Full stacks because RCU was not watching.
pub(crate) fn unwatched() -> u64 {
    UNWATCHED.load(Ordering::Relaxed)
}

/// Full stacks because the event is in another trace array's buffer.
pub(crate) fn foreign() -> u64 {
    FOREIGN.load(Ordering::Relaxed)
}

/// Records one stack: an id where the map can, the full stack where it cannot. Returns false if the
/// kernel's unwinder has to walk it: then this is called again.
///
/// Context: any, NMI included; preemption off.
///
/// # Safety
///
/// As for [`Recording::new`]; the hook is not gone before this returns.
#[no_mangle]
unsafe extern "C" fn stackmap_record(stack: *mut stackmap_stack) -> bool {
    let (Some(map), Some(layout)) = (map(), LAYOUT.as_ref()) else {
        return true;
    };
    // SAFETY: As required of the caller.
    let mut recording = unsafe { Recording::new(stack) };
    let Some(frames) = unwind::frames(&mut recording) else {
        return false;
    };
    record(map, layout, &recording, recording.frames(frames));
    true
}

#[inline(always)]
fn record(map: &Map, layout: &stackmap_layout, recording: &Recording<'_>, frames: &[u64]) {
    let site = recording.site();
    let write_full = || {
        // SAFETY: As for `reserve_id` below; the layout is the running kernel's.
        unsafe { site.write_full(layout, frames) }
    };
    if !recording.is_watched() {
        if write_full() {
            UNWATCHED.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    // SAFETY: RCU is watching and preemption is off, so grace periods wait for us; the level of
    // nesting on this CPU is the caller's own.
    let entered = unsafe { map.enter(recording.context()) };
    // SAFETY: `site` came from the kernel; preemption is off until this function returns.
    let event = match unsafe { site.reserve_id() } {
        Ok(event) => event,
        Err(Unreserved::NoRoom) => return,
        Err(Unreserved::Foreign) => {
            if write_full() {
                FOREIGN.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
    };
    match entered.get_id(frames) {
        Ok(found) => {
            event.commit(found.id.get());
            entered.add(
                Counter::BytesSaved,
                full_bytes(layout, frames.len()) - ID_BYTES,
            );
            if found.inserted && map.wants_growth() {
                ask_for_growth();
            }
        }
        Err(reason) => {
            event.discard();
            if write_full() {
                entered.add(reason.counter(), 1);
            }
            if reason == Fallback::Growing {
                ask_for_growth();
            }
        }
    }
}

/// Bytes of a `ftrace:kernel_stack` event in the ring buffer: a word of header, a second one from
/// 113 bytes of data on (`RINGBUF_TYPE_DATA_TYPE_LEN_MAX`), the data.
const fn full_bytes(layout: &stackmap_layout, nr: usize) -> u64 {
    let data = layout.caller_offset as u64 + nr as u64 * 8;
    let header = if data > 112 { 8 } else { 4 };
    header + data
}

#[cold]
fn ask_for_growth() {
    if !GROWTH_ASKED.swap(true, Ordering::Relaxed) {
        // SAFETY: The worker is stopped only when nobody records any more.
        unsafe { shim::stackmap_growth_kick() };
    }
}

/// Adds memory to the map. Called by the worker, which comes back later if it could not.
///
/// Context: process.
#[no_mangle]
extern "C" fn stackmap_grow() -> c_int {
    GROWTH_ASKED.store(false, Ordering::Relaxed);
    let Some(map) = map() else {
        return 0;
    };
    let error = match map.grow() {
        // A reset makes room itself.
        Ok(()) | Err(ControlError::Busy) => return 0,
        Err(ControlError::Unused) => EAGAIN,
        Err(ControlError::NoMemory) => {
            pr_warn_once!("no memory for more stacks: new ones are recorded in full meanwhile\n");
            ENOMEM
        }
    };
    // The worker retries by itself; no need to kick it at every event.
    GROWTH_ASKED.store(true, Ordering::Relaxed);
    error.to_errno()
}
