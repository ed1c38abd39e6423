// SPDX-License-Identifier: GPL-2.0

//! The path that every stack takes.

pub(crate) mod print;

use crate::{
    map::{Counter, Entered, Fallback, Guide, Guides},
    published::Section,
    shim::{stackmap_stack, Frames, Recording, Unreserved, Watched},
    store,
    unwind::{self, Begun},
    user,
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

/// Records one stack by a guide that has all its frames, or walks it.
///
/// # Safety
///
/// As for [`stackmap_record`].
#[inline(always)]
unsafe fn recorded<const USER: bool>(stack: *mut stackmap_stack) -> bool {
    // SAFETY: As required of the caller.
    let mut recording = unsafe { Recording::new(stack) };
    let Some(section) = recording.watched() else {
        recording.set_tracer();
        let Some(frames) = unwind::frames(&mut recording, None, None) else {
            return false;
        };
        count_full(&recording, recording.frames(frames), &UNWATCHED);
        return true;
    };
    let Some(map) = store::KERNEL.map_in(&section) else {
        return without_map(&mut recording, &section);
    };
    // SAFETY: Only the caller uses the context of this level of nesting.
    let entered = unsafe { map.enter(section.inside(), recording.context()) };
    let guides = entered.guides();
    let mut begun = None;
    if let Some(guides) = &guides {
        let guide = unwind::expected(&recording, &section, guides, &mut begun)
            .or_else(|| unwind::expected_behind_tracer(&mut recording, &section, guides, begun));
        if let Some(guide) = guide {
            // If each one is compared, the kernel's unwinder has found it before.
            if recording.kernels().is_some() {
                return verified::<USER>(&mut recording, &section, &entered, &guide);
            }
            known::<USER>(&mut recording, &section, &entered, guides, &guide);
            return true;
        }
    }
    unpredicted::<USER>(&mut recording, &section, &entered, begun)
}

/// Walks and records a stack that was not predicted. Returns false as [`stackmap_record`] does.
#[inline(never)]
#[link_section = ".kprobes.text"]
fn unpredicted<const USER: bool>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    entered: &Entered<'_>,
    begun: Option<Begun>,
) -> bool {
    recording.set_tracer();
    let walked = unwind::frames(recording, Some(section), begun);
    walked.is_some_and(|frames| {
        record::<USER>(recording, section, entered, frames);
        true
    })
}

/// Records a stack that was predicted and that the kernel's unwinder has found, too.
#[cold]
#[inline(never)]
#[link_section = ".kprobes.text"]
fn verified<const USER: bool>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    entered: &Entered<'_>,
    guide: &Guide<'_>,
) -> bool {
    recording.set_tracer();
    let predicted = unwind::copied(recording, guide);
    let walked = unwind::compared(recording, section, predicted);
    walked.is_some_and(|frames| {
        record::<USER>(recording, section, entered, frames);
        true
    })
}

/// There is no map only while the option is turned on or off.
#[cold]
fn without_map(recording: &mut Recording<'_>, section: &Watched<'_>) -> bool {
    recording.set_tracer();
    let Some(frames) = unwind::frames(recording, Some(section), None) else {
        return false;
    };
    recording.write_full(recording.frames(frames));
    true
}

/// Records the stack that a guide is.
#[inline(always)]
fn known<const USER: bool>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    entered: &Entered<'_>,
    guides: &Guides<'_>,
    guide: &Guide<'_>,
) {
    let cookie = cookie::<USER>(recording, section);
    match recording.write_id(guides.id(guide).get(), cookie) {
        Ok(()) => {
            guides.hit(guide);
            count_saved(recording, entered, cookie.is_some(), guide.nr());
        }
        Err(Unreserved::NoRoom) => {}
        Err(Unreserved::Foreign) => {
            let frames = unwind::copied(recording, guide);
            count_full(recording, recording.frames(frames), &FOREIGN);
        }
    }
}

/// The cookie of the event, if it has a user stack. Before the event is reserved: the request may be
/// recorded itself.
#[inline(always)]
fn cookie<const USER: bool>(recording: &Recording<'_>, section: &Watched<'_>) -> Option<u64> {
    if USER {
        user::request(recording, section)
    } else {
        None
    }
}

/// Counts what the id of a stack with so many frames saves.
#[inline(always)]
fn count_saved(recording: &Recording<'_>, entered: &Entered<'_>, has_user: bool, nr: usize) {
    let bytes = if has_user { ID_USER_BYTES } else { ID_BYTES };
    let saved = recording.full_bytes(nr).wrapping_sub(bytes);
    entered.add(Counter::BytesSaved, saved);
}

/// Records a stack that was walked.
#[inline(always)]
fn record<const USER: bool>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    entered: &Entered<'_>,
    frames: Frames,
) {
    let frames = recording.frames(frames);
    let event = match recording.reserve_id(cookie::<USER>(recording, section)) {
        Ok(event) => event,
        Err(Unreserved::NoRoom) => return,
        Err(Unreserved::Foreign) => {
            count_full(recording, frames, &FOREIGN);
            return;
        }
    };
    match entered.get_id(frames) {
        Ok(found) => {
            let has_user = event.has_user();
            event.commit(found.id.get());
            count_saved(recording, entered, has_user, frames.len());
            if found.inserted {
                // Many stacks never come again: a new one is not predicted.
                if entered.wants_growth() {
                    store::KERNEL.request_growth();
                }
            } else if unwind::may_guide(frames) {
                if let Some(record) = entered.came(frames, found) {
                    if let Some(hints) = unwind::hints(section, recording) {
                        record.give_hints(hints);
                    }
                }
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
