// SPDX-License-Identifier: GPL-2.0

//! The walk along the guide of the map that is predicted.

use super::{
    guided,
    hints::{Hinted, Hints},
    kernel_unwinder::{is_replaced, registers, KernelUnwinder},
    rules::Rule,
    walk::{Registers, Unwinder},
    WALKER,
};
use crate::{
    map::{Guide, Guides, LAST_HINT},
    shim::{self, Recording, Watched},
};
use core::sync::atomic::Ordering;

// The walk relies on it: the hint of a guide's last frame has no size.
const _: () = assert!(Hinted(LAST_HINT).words() == 0);

/// Where a walk on the task's stack is before its first frame: at these registers, with so many frames to
/// leave out.
#[derive(Clone, Copy)]
pub(crate) struct Begun(pub(super) Registers, pub(super) usize);

/// Begins a walk on the task's stack, and follows the predicted guide. Returns it if it has all frames. If not,
/// stores in `begun` where [`frames`](super::frames) goes on, if the walk has begun.
#[inline(always)]
pub(crate) fn expected<'m>(
    recording: &Recording<'_>,
    section: &Watched<'_>,
    guides: &Guides<'m>,
    begun: &mut Option<Begun>,
) -> Option<Guide<'m>> {
    let walker = WALKER.read(section)?;
    let unwinder = KernelUnwinder::new(walker, section, recording)?;
    let (caller, mut skip) = recording.caller()?;
    let mut frame = unwinder.frame(registers(caller));
    let (nr, first) = (recording.known(), recording.first());
    let guide = guided::expected(&unwinder, &mut frame, &mut skip, nr, first, guides);
    match guide {
        Some(guide) => unwinder.count_known(&guide, nr),
        None => *begun = unwinder.is_frame(&frame).then_some(Begun(frame.at, skip)),
    }
    guide
}

/// The same for a walk that begins in the text that calls the trace array's own function tracer, if the rule
/// of that is known. What most walks begin with is in no such text.
#[inline(always)]
pub(crate) fn expected_behind_tracer<'m>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    guides: &Guides<'m>,
    begun: Option<Begun>,
) -> Option<Guide<'m>> {
    let Begun(at, skip) = begun?;
    let kept = Hinted(recording.tracer_rule().load(Ordering::Relaxed));
    if kept.ip() != at.ip || skip > 0 || recording.known() > 0 {
        return None;
    }
    behind_tracer(recording, section, guides, at)
}

#[inline(never)]
#[link_section = ".kprobes.text"]
fn behind_tracer<'m>(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    guides: &Guides<'m>,
    at: Registers,
) -> Option<Guide<'m>> {
    recording.set_tracer();
    let unwinder = KernelUnwinder::new(WALKER.read(section)?, section, recording)?;
    let marker = shim::STACKMAP_TRAMPOLINE_MARKER.into();
    let (frame, rule) = (unwinder.frame(at), unwinder.tracer_rule(at.ip));
    let guide = guided::expected_behind(&unwinder, &frame, rule, marker, guides)?;
    unwinder.count_known(&guide, 0);
    Some(guide)
}

// SAFETY: By the invariant of `Guide`; where words have no hints, they tell of no size.
unsafe impl guided::Guide for Guide<'_> {
    #[inline(always)]
    fn nr(&self) -> usize {
        Guide::nr(self)
    }

    #[inline(always)]
    fn frame(&self, index: usize) -> Option<u64> {
        Guide::frame(self, index)
    }

    #[inline(always)]
    fn frames_after(&self, nr: usize) -> impl ExactSizeIterator<Item = u64> {
        Guide::frames_after(self, nr)
    }

    #[inline(always)]
    unsafe fn hinted(&self, index: usize) -> Hinted {
        // SAFETY: As required of the caller.
        Hinted(unsafe { self.word_unchecked(index) })
    }
}

impl<'a> guided::Guides for Guides<'a> {
    type Guide = Guide<'a>;

    #[inline(always)]
    fn next(&self, frame: u64) -> Option<Guide<'a>> {
        Guides::next(self, frame)
    }
}

/// Whether a stack with these frames may guide others: where frames need no hints, it may have none that a
/// tracer has put there, since another task returns elsewhere from it. Context: any.
#[inline(always)]
pub(crate) fn may_guide(frames: &[u64]) -> bool {
    !KernelUnwinder::HAS_MARKS || !frames.iter().any(|ip| is_replaced(*ip))
}

/// Gives the hints of a stack, from the innermost frame on, by it and its caller's. Context: any.
#[inline(always)]
pub(crate) fn hints<'a>(
    section: &'a Watched<'_>,
    recording: &Recording<'a>,
) -> Option<impl FnMut(u64, u64) -> u32 + 'a> {
    // A stack that does not begin at a caller has no guide.
    recording.caller()?;
    let table = WALKER.read(section)?.rules.read(section)?.table();
    let mut hints = Hints::default();
    Some(move |ip, next| {
        hints.hint(match is_replaced(next) {
            // The kernel knows where the caller is.
            true => Rule::UNKNOWN,
            false => table.get(ip),
        })
    })
}
