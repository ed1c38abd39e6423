// SPDX-License-Identifier: GPL-2.0

//! How stacks are walked: by the kernel's unwinder, or by rules that were learnt from it.
//!
//! `frame.rs` and `frame_word.rs` have the types, `rule.rs` a rule and `rules.rs` the table of rules. `step.rs` takes a
//! step, by frame records as `frame_record.rs` says, `predict.rs` follows a predicted stack, and `walk.rs` walks.
//! `unwinder.rs` says what these need of the kernel, and `kernel_unwinder.rs` has it. `walker.rs` has what is kept
//! while the module is loaded. This file chooses the walk of a stack, and compares both walks.
//! `Documentation/design.rst` says why a rule depends only on the address.

pub mod frame;
mod frame_record;
pub mod frame_word;
mod kernel_unwinder;
pub mod predict;
pub mod rule;
pub mod rules;
mod step;
pub mod unwinder;
pub mod walk;
mod walker;

use self::{
    frame::FrameRegisters,
    frame_word::{FrameWord, RuleEncoder},
    kernel_unwinder::{is_replaced, registers, KernelUnwinder},
    rule::UnwindRule,
    unwinder::Unwinder,
    walker::{Walker, UNWATCHED, WALKER},
};
pub(crate) use self::{
    unwinder::WalkCounter,
    walker::{
        allocate, count, forget, free, is_cached, name, nr_replaced, nr_rules, verifies,
        UnwindChoice, UnwindSetup,
    },
};
use crate::{
    map::{PredictedStack, Predictor},
    shim::{self, stackmap_stack, Frames, Recording, Watched},
};
use core::sync::atomic::{AtomicU64, Ordering};
use kernel::prelude::*;

/// How often a stack is walked again, both ways, if text that goes may be why they differ: it goes
/// in a few steps.
const RETRIES: u32 = 3;

/// Stacks for which both walks gave the same frames.
static VERIFIED: AtomicU64 = AtomicU64::new(0);

/// Stacks for which the walks differed; the kernel's frames were recorded.
static MISMATCHES: AtomicU64 = AtomicU64::new(0);

/// Where a walk on the task's stack is before its first frame: at these registers, with this number of frames to skip.
#[derive(Clone, Copy)]
pub(crate) struct WalkStart(FrameRegisters, usize);

/// Starts a walk on the task's stack, and follows the prediction. Returns the predicted stack if all of its frames are
/// there. If not, and the walk could start, stores in `start` where [`walk_stack`] goes on, an out-parameter so that the
/// fast path keeps it in no register.
#[inline(always)]
pub(crate) fn follow_prediction<'m>(
    recording: &Recording<'_>,
    section: &Watched<'_>,
    predictor: &Predictor<'m>,
    start: &mut Option<WalkStart>,
) -> Option<PredictedStack<'m>> {
    let walker = WALKER.read(section)?;
    let unwinder = KernelUnwinder::new(walker, section, recording)?;
    let (caller, mut skip) = recording.caller()?;
    let mut frame = unwinder.frame(registers(caller));
    let (nr, first) = (recording.nr_known(), recording.first_known());
    let predicted = predict::follow(&unwinder, &mut frame, &mut skip, nr, first, predictor);
    match predicted {
        Some(predicted) => unwinder.count_predicted(&predicted, nr),
        None => {
            *start = unwinder
                .can_be_at(&frame)
                .then_some(WalkStart(frame.at, skip))
        }
    }
    predicted
}

/// Does the same for a walk that starts in the text that calls the trace array's own function tracer, if the rule of
/// that is known. Most walks do not.
#[inline(always)]
pub(crate) fn follow_prediction_past_tracer<'m>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    predictor: &Predictor<'m>,
    start: Option<WalkStart>,
) -> Option<PredictedStack<'m>> {
    let WalkStart(at, skip) = start?;
    let cached = FrameWord(recording.tracer_rule().load(Ordering::Relaxed));
    if cached.ip() != at.ip || skip > 0 || recording.nr_known() > 0 {
        return None;
    }
    follow_past_tracer(recording, section, predictor, at)
}

#[inline(never)]
#[link_section = ".kprobes.text"]
fn follow_past_tracer<'m>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    predictor: &Predictor<'m>,
    at: FrameRegisters,
) -> Option<PredictedStack<'m>> {
    recording.set_tracer();
    let unwinder = KernelUnwinder::new(WALKER.read(section)?, section, recording)?;
    let marker = shim::STACKMAP_TRAMPOLINE_MARKER.into();
    let (frame, rule) = (unwinder.frame(at), unwinder.tracer_rule(at.ip));
    let predicted = predict::follow_past_tracer(&unwinder, &frame, rule, marker, predictor)?;
    unwinder.count_predicted(&predicted, 0);
    Some(predicted)
}

/// Returns whether a stack with these frames may be predicted: where frames need no cached rules, it may have none that
/// a tracer has put there, since another task returns elsewhere from it. Context: any.
#[inline(always)]
pub(crate) fn may_predict(frames: &[u64]) -> bool {
    !KernelUnwinder::HAS_MARKS || !frames.iter().any(|ip| is_replaced(*ip))
}

/// Returns a function that encodes the rules to cache with a stack, from the innermost frame on, by the frame and its
/// caller's. Context: any.
#[inline(always)]
pub(crate) fn rules_to_cache<'a>(
    section: &'a Watched<'_>,
    recording: &Recording<'a>,
) -> Option<impl FnMut(u64, u64) -> u32 + 'a> {
    // A stack that does not begin at a caller is not predicted.
    recording.caller()?;
    let table = WALKER.read(section)?.rules.read(section)?.table();
    let mut encoder = RuleEncoder::default();
    Some(move |ip, next| {
        encoder.encode(match is_replaced(next) {
            // The kernel knows where the caller is.
            true => UnwindRule::UNKNOWN,
            false => table.get(ip),
        })
    })
}

/// Walks a stack. Returns [`None`] if the kernel's unwinder has to walk it; then this is called again.
#[inline(always)]
pub(crate) fn walk_stack(
    recording: &mut Recording<'_>,
    section: Option<&Watched<'_>>,
    start: Option<WalkStart>,
) -> Option<Frames> {
    let walker = section.and_then(|section| WALKER.read(section));
    if let (Some(walker), Some(section)) = (walker, section) {
        if let Some(frames) = by_rules(walker, section, recording, start) {
            mark_trampoline(recording, frames);
            return match walker.verify {
                true => compare_walks(recording, section, frames),
                false => Some(frames),
            };
        }
    }
    let frames = recording.kernel_frames()?;
    match walker.and_then(|walker| walker.contexts.get(recording.context())) {
        Some(context) => context.count(WalkCounter::Whole, 1),
        None if section.is_none() => {
            UNWATCHED.fetch_add(1, Ordering::Relaxed);
        }
        None => {}
    }
    mark_trampoline(recording, frames);
    Some(frames)
}

/// Copies the frames of a predicted stack to where they can be recorded from.
#[cold]
pub(crate) fn copy_predicted(
    recording: &mut Recording<'_>,
    predicted: &PredictedStack<'_>,
) -> Frames {
    let nr = predict::copy_frames(predicted, recording.split().1);
    recording.written(nr)
}

/// Compares the walk by rules with that of the kernel's unwinder, if each stack is compared. Returns the frames to
/// record: the kernel's if they differ. Returns [`None`] if both walks are to be repeated.
#[cold]
pub(crate) fn compare_walks(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    ours: Frames,
) -> Option<Frames> {
    if !WALKER.read(section)?.verify {
        return Some(ours);
    }
    let kernels = recording.kernel_frames()?;
    mark_trampoline(recording, kernels);
    let (our, their) = (recording.frames(ours), recording.frames(kernels));
    if our == their {
        VERIFIED.fetch_add(1, Ordering::Relaxed);
        return Some(ours);
    }
    let same = our.iter().zip(their).take_while(|(a, b)| a == b).count();
    let longer = if same < our.len() { our } else { their };
    // After a tracer is unregistered, the kernel's unwinder finds no way out of its trampoline, or
    // guesses; tasks may still be inside it. Whether skipped frames are in one is not known.
    let skipped = same == 0 && recording.caller().is_some_and(|(_, skip)| skip > 0);
    let is_stable = || {
        longer
            .iter()
            .take(same + 1)
            .all(|ip| section.is_stable(*ip))
    };
    if recording.retries() < RETRIES && (skipped || !is_stable()) {
        recording.retry();
        return None;
    }
    MISMATCHES.fetch_add(1, Ordering::Relaxed);
    shim::stackmap_mismatch_report(&shim::stackmap_mismatch {
        frame: same as u32,
        nr: our.len() as u32,
        nr_kernel: their.len() as u32,
        ip: our.get(same).copied().unwrap_or(0),
        kernel_ip: their.get(same).copied().unwrap_or(0),
    });
    Some(kernels)
}

/// Returns the number of stacks for which both walks gave the same frames. Context: any.
pub(crate) fn verified() -> u64 {
    VERIFIED.load(Ordering::Relaxed)
}

/// Returns the number of stacks for which the walks differed. Context: any.
pub(crate) fn mismatches() -> u64 {
    MISMATCHES.load(Ordering::Relaxed)
}

/// Walks a stack by rules. Returns [`None`] if that cannot be done.
///
/// To be called where no kprobe can be.
#[inline(always)]
fn by_rules(
    walker: &Walker,
    section: &Watched<'_>,
    recording: &mut Recording<'_>,
    start: Option<WalkStart>,
) -> Option<Frames> {
    let (input, ips) = recording.split();
    let mut unwinder = KernelUnwinder::new(walker, section, input)?;
    let (caller, skip) = input.caller()?;
    let (frame, skip) = match start {
        Some(WalkStart(at, skip)) => (unwinder.frame(at), skip),
        None => match unwinder.start_at(caller) {
            Some(frame) => (frame, skip),
            None => (unwinder.start_elsewhere(caller)?, skip),
        },
    };
    let nr = walk::walk(&mut unwinder, frame, skip, ips, input.nr_known());
    (!unwinder.gave_up()).then(|| recording.written(nr))
}

/// Replaces the frames in the trampoline of the trace array's own function tracer by the marker, as the kernel does.
#[inline(always)]
fn mark_trampoline(recording: &mut Recording<'_>, frames: Frames) {
    if recording.wants_tracer() {
        recording.find_tracer(frames);
    }
    let text = recording.trampoline();
    if text.is_empty() {
        return;
    }
    for ip in recording.frames_mut(frames) {
        if text.contains(ip) {
            *ip = u64::from(shim::STACKMAP_TRAMPOLINE_MARKER);
        }
    }
}

/// Walks a stack by rules, for the test at load. Returns the number of frames, or -1 if rules cannot walk it.
///
/// # Safety
///
/// As for [`Recording::new`].
#[no_mangle]
#[link_section = ".kprobes.text"]
unsafe extern "C" fn stackmap_walk(stack: *mut stackmap_stack) -> c_int {
    // SAFETY: As required of the caller.
    let mut recording = unsafe { Recording::new(stack) };
    let frames = recording
        .watched()
        .and_then(|section| by_rules(WALKER.read(&section)?, &section, &mut recording, None));
    frames.map_or(-1, |frames| recording.frames(frames).len() as c_int)
}
