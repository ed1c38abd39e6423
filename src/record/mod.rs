// SPDX-License-Identifier: GPL-2.0

//! Recording a stack: the path of every event.

pub(crate) mod print;

use crate::{
    map::{CtxGuard, Fallback, Lookup, MapCounter, PredictedStack, Predictor},
    published::Section,
    shim::{stackmap_stack, Recording, Unreserved, Watched},
    store,
    unwind::{self, WalkStart},
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

/// Returns whether a CPU may be recording. Context: any.
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

/// Returns the number of full stacks because RCU was not watching.
pub(crate) fn unwatched() -> u64 {
    UNWATCHED.load(Ordering::Relaxed)
}

/// Returns the number of full stacks because the event is in another trace array's buffer.
pub(crate) fn foreign() -> u64 {
    FOREIGN.load(Ordering::Relaxed)
}

/// How a stack was recorded.
enum Outcome<'a> {
    /// As the id of a stack that was in the map.
    Known(Lookup),
    /// As the id of a stack that was put into the map.
    New,
    /// As a full stack, or it will be.
    Full(FullReason<'a>),
    /// Not at all: the ring buffer refused the event.
    Refused,
}

/// Why a full stack is recorded.
#[derive(Clone, Copy)]
enum FullReason<'a> {
    /// RCU was not watching.
    Unwatched,
    /// There is no map: only while the option is turned on or off.
    NoMap,
    /// The ring buffer is not that of the event's trace array.
    Foreign,
    /// The map gave no id.
    Map(&'a CtxGuard<'a>, Fallback),
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
    record::<false>(unsafe { Recording::new(stack) })
}

/// Does the same, and requests the user stack. Its code is separate, so that kernel stacks alone cost no more.
///
/// # Safety
///
/// As for [`stackmap_record`].
#[no_mangle]
#[link_section = ".kprobes.text"]
unsafe extern "C" fn stackmap_record_user(stack: *mut stackmap_stack) -> bool {
    // SAFETY: As required of the caller.
    record::<true>(unsafe { Recording::new(stack) })
}

/// Records one stack, by prediction if possible. Returns false as [`stackmap_record`] does.
#[inline(always)]
fn record<const USER: bool>(mut recording: Recording<'_>) -> bool {
    let Some(section) = recording.watched() else {
        return record_full(&mut recording, None, FullReason::Unwatched);
    };
    let Some(map) = store::KERNEL.map_in(&section) else {
        return record_full(&mut recording, Some(&section), FullReason::NoMap);
    };
    // SAFETY: Only this recording uses the context of this level of nesting.
    let guard = unsafe { map.enter(section.inside(), recording.context()) };
    let predictor = guard.predictor();
    let mut start = None;
    if let Some(predictor) = &predictor {
        let predicted = unwind::follow_prediction(&recording, &section, predictor, &mut start)
            .or_else(|| {
                unwind::follow_prediction_past_tracer(&mut recording, &section, predictor, start)
            });
        if let Some(predicted) = predicted {
            // If each stack is compared, the kernel's unwinder has walked this one before.
            if recording.kernel_frames().is_some() {
                return record_walked::<USER>(
                    &mut recording,
                    &section,
                    &guard,
                    None,
                    Some(&predicted),
                );
            }
            record_predicted::<USER>(&mut recording, &section, &guard, predictor, &predicted);
            return true;
        }
    }
    record_walked::<USER>(&mut recording, &section, &guard, start, None)
}

/// Records a stack that was identified by prediction.
#[inline(always)]
fn record_predicted<const USER: bool>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    guard: &CtxGuard<'_>,
    predictor: &Predictor<'_>,
    predicted: &PredictedStack<'_>,
) {
    let cookie = cookie::<USER>(recording, section);
    match recording.write_id(predictor.id(predicted).get(), cookie) {
        Ok(()) => {
            predictor.hit(predicted);
            count_saved(recording, guard, cookie.is_some(), predicted.nr());
        }
        Err(Unreserved::Refused) => {}
        Err(Unreserved::Foreign) => {
            let frames = unwind::copy_predicted(recording, predicted);
            write_full(recording, recording.frames(frames), FullReason::Foreign);
        }
    }
}

/// Walks a stack and records it; one that was predicted is compared with the walk of the kernel's unwinder. Returns false
/// as [`stackmap_record`] does.
#[inline(never)]
#[link_section = ".kprobes.text"]
fn record_walked<const USER: bool>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    guard: &CtxGuard<'_>,
    start: Option<WalkStart>,
    predicted: Option<&PredictedStack<'_>>,
) -> bool {
    recording.set_tracer();
    let walked = match predicted {
        None => unwind::walk_stack(recording, Some(section), start),
        Some(predicted) => {
            let frames = unwind::copy_predicted(recording, predicted);
            unwind::compare_walks(recording, section, frames)
        }
    };
    let Some(frames) = walked else {
        return false;
    };
    let frames = recording.frames(frames);
    match write_id::<USER>(recording, section, guard, frames) {
        Outcome::Known(lookup) => {
            // Many stacks never come again: a new one is not predicted.
            if unwind::may_predict(frames) {
                if let Some(record) = guard.train(frames, lookup) {
                    if let Some(rules) = unwind::rules_to_cache(section, recording) {
                        record.cache_rules(rules);
                    }
                }
            }
        }
        Outcome::New => {
            if guard.wants_growth() {
                store::KERNEL.request_growth();
            }
        }
        Outcome::Full(reason) => write_full(recording, frames, reason),
        Outcome::Refused => {}
    }
    true
}

/// Writes the event of a stack's id, if it has one or gets one.
#[inline(always)]
fn write_id<'a, const USER: bool>(
    recording: &Recording<'_>,
    section: &Watched<'_>,
    guard: &'a CtxGuard<'a>,
    frames: &[u64],
) -> Outcome<'a> {
    let event = match recording.reserve_id(cookie::<USER>(recording, section)) {
        Ok(event) => event,
        Err(Unreserved::Refused) => return Outcome::Refused,
        Err(Unreserved::Foreign) => return Outcome::Full(FullReason::Foreign),
    };
    match guard.get_id(frames) {
        Ok(lookup) => {
            let has_user = event.has_user();
            event.commit(lookup.id.get());
            count_saved(recording, guard, has_user, frames.len());
            if lookup.inserted {
                Outcome::New
            } else {
                Outcome::Known(lookup)
            }
        }
        Err(reason) => {
            event.discard();
            Outcome::Full(FullReason::Map(guard, reason))
        }
    }
}

/// Walks a stack and records it as a full stack. Returns false as [`stackmap_record`] does.
#[cold]
fn record_full(
    recording: &mut Recording<'_>,
    section: Option<&Watched<'_>>,
    reason: FullReason<'_>,
) -> bool {
    recording.set_tracer();
    let Some(frames) = unwind::walk_stack(recording, section, None) else {
        return false;
    };
    write_full(recording, recording.frames(frames), reason);
    true
}

/// Writes a full stack, and counts why.
#[cold]
fn write_full(recording: &Recording<'_>, frames: &[u64], reason: FullReason<'_>) {
    let is_written = recording.write_full(frames);
    if let FullReason::Map(_, Fallback::Growing) = reason {
        store::KERNEL.request_growth();
    }
    if !is_written {
        return;
    }
    match reason {
        FullReason::Unwatched => {
            UNWATCHED.fetch_add(1, Ordering::Relaxed);
        }
        FullReason::Foreign => {
            FOREIGN.fetch_add(1, Ordering::Relaxed);
        }
        FullReason::NoMap => {}
        FullReason::Map(guard, fallback) => guard.add(fallback.counter(), 1),
    }
}

/// Requests the user stack of the event, and returns its cookie. Before the event is reserved: the request may be
/// recorded itself.
#[inline(always)]
fn cookie<const USER: bool>(recording: &Recording<'_>, section: &Watched<'_>) -> Option<u64> {
    if USER {
        user::request(recording, section)
    } else {
        None
    }
}

/// Counts the bytes that the id of a stack with `nr` frames saves.
#[inline(always)]
fn count_saved(recording: &Recording<'_>, guard: &CtxGuard<'_>, has_user: bool, nr: usize) {
    let bytes = if has_user { ID_USER_BYTES } else { ID_BYTES };
    let saved = recording.full_bytes(nr).wrapping_sub(bytes);
    guard.add(MapCounter::BytesSaved, saved);
}
