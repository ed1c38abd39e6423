// SPDX-License-Identifier: GPL-2.0

//! The walk along guides: frames that were found before, and hints on how to get from each to the next.
//!
//! As long as each return address is that of the guide, a step takes nothing but the hint. Where one is
//! another, another guide may have the same frames up to there. What takes more than that is left to the
//! walk, see `walk.rs`.

use super::{
    hints::Hinted,
    rules::{Kind, Rule},
    run::{run, saved_bp, steps, Ran, Spot},
    step::based_call,
    walk::{Frame, Registers, Stack, Unwinder},
};
use core::mem::MaybeUninit;

/// Frames that a walk may find, and hints on how to get from each to the next.
///
/// # Safety
///
/// The number of frames never changes, and the hint of the last one has no size: [`Hinted::words`] is 0.
pub unsafe trait Guide: Copy {
    /// The number of frames.
    fn nr(&self) -> usize;

    /// A frame, if there are so many.
    fn frame(&self, index: usize) -> Option<u64>;

    /// The frames.
    fn frames(&self) -> impl ExactSizeIterator<Item = u64>;

    /// Those behind so many.
    fn frames_behind(&self, nr: usize) -> impl ExactSizeIterator<Item = u64> {
        let mut frames = self.frames();
        if nr > 0 {
            let _ = frames.nth(nr - 1);
        }
        frames
    }

    /// A frame with its hint.
    ///
    /// # Safety
    ///
    /// There are more frames than `index`.
    unsafe fn hinted(&self, index: usize) -> Hinted;
}

/// The guides that there are.
pub trait Guides: Copy {
    /// Frames that were found before.
    type Guide: Guide;

    /// One to begin with, if it has this frame there.
    fn first(&self, index: usize, frame: u64) -> Option<Self::Guide>;

    /// The one that all frames are likely to be those of, if it is found by this one: that it has it is not
    /// said.
    fn next(&self, frame: u64) -> Option<Self::Guide>;

    /// One with the first `nr` frames of a guide, and then this one.
    fn other(&self, guide: &Self::Guide, nr: usize, frame: u64) -> Option<Self::Guide>;
}

/// Leaves `skip` frames out as far as noted rules lead, then follows the guide that is expected next. Of the
/// frames that follow, `nr` are known already: none, or the one at `before`. Returns the guide if it has all
/// frames. If not, [`retrace`] goes on from where `frame` and `skip` are then, if the frame that it began with
/// is one.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn expected<U: Unwinder, G: Guides>(
    unwinder: &U,
    frame: &mut Frame,
    skip: &mut usize,
    nr: usize,
    before: Option<u64>,
    guides: &G,
) -> Option<G::Guide> {
    let (mut at, stack) = (frame.at, frame.stack);
    if !stack.has(&at) {
        return None;
    }
    // What is noted, or has a hint, is no address that a tracer has put there.
    let left = pass(*skip, &mut at, |left, at| {
        // SAFETY: It is on the stack.
        unsafe { called(unwinder, &stack, at, unwinder.noted(left, at.ip)) }
    });
    let guide = match left {
        0 => next(unwinder, &stack, at, nr, before, guides),
        _ => None,
    };
    if guide.is_none() && !unwinder.is_replaced(at.ip) {
        (frame.at, *skip) = (at, left);
    }
    guide
}

/// The guide that is expected next, if it has the known frame and all from this one on.
#[inline(always)]
fn next<U: Unwinder, G: Guides>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    nr: usize,
    before: Option<u64>,
    guides: &G,
) -> Option<G::Guide> {
    let guide = guides.next(before.unwrap_or(at.ip))?;
    let begins = before.is_none() || guide.frame(0) == before;
    (begins && leads(unwinder, stack, at, nr, &guide)).then_some(guide)
}

/// The same where the first frame is in text that calls a tracer of functions, and this rule leads on: then
/// `marker` is recorded.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn expected_behind<U: Unwinder, G: Guides>(
    unwinder: &U,
    frame: &Frame,
    rule: Rule,
    marker: u64,
    guides: &G,
) -> Option<G::Guide> {
    let stack = frame.stack;
    if !stack.reaches(frame.at.sp) {
        return None;
    }
    // SAFETY: It is on the stack.
    let at = unsafe { caller(unwinder, &stack, frame.at, rule) }?;
    let guide = guides.next(at.ip)?;
    let begins = guide.frame(0) == Some(marker);
    (begins && leads(unwinder, &stack, at, 1, &guide)).then_some(guide)
}

/// Whether a guide has the frame at `at`, after so many, and all that follow.
#[inline(always)]
fn leads<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    nr: usize,
    guide: &G,
) -> bool {
    if guide.nr() <= nr {
        return false;
    }
    // SAFETY: There are more frames.
    let hinted = unsafe { guide.hinted(nr) };
    if hinted.ip() != at.ip {
        return false;
    }
    // If it has a hint, and no other frame is led from, it is text that stays, which is recorded as it is.
    let mut spot = Spot::new(at, nr);
    // SAFETY: The guide has the frame, which is on the stack.
    let ran = unsafe { steps::<U, _, false>(unwinder, stack, guide, &mut spot) };
    matches!(ran, Ran::All)
}

/// Goes as far as guides lead, from the beginning of a walk. Returns the guide that has all frames. If there
/// is none, `left` is set to how far the walk has come: apart, so that it is nowhere else otherwise.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn retrace<U: Unwinder, G: Guides>(
    unwinder: &U,
    frame: Frame,
    skip: usize,
    nr: usize,
    before: Option<u64>,
    guides: &G,
    left: &mut Option<Position<G::Guide>>,
) -> Option<G::Guide> {
    let (mut at, stack) = (frame.at, frame.stack);
    let position = |at, skip, guide| Position {
        guide,
        ..Position::new(Frame { at, ..frame }, skip, nr)
    };
    if !stack.reaches(at.sp) {
        *left = Some(position(at, skip, None));
        return None;
    }
    let skip = pass(skip, &mut at, |left, at| {
        let rule = unwinder.rule(at.ip);
        unwinder.note(left, at.ip, rule);
        // SAFETY: It is on the stack.
        unsafe { caller(unwinder, &stack, at, rule) }
    });
    if skip > 0 {
        *left = Some(position(at, skip, None));
        return None;
    }
    let shown = unwinder.shown(at.ip);
    let (guide, from) = if shown == Some(at.ip) {
        let first = before.unwrap_or(at.ip);
        (guides.first(0, first), Some((at, nr)))
    } else {
        begin(unwinder, &stack, at, shown, before, guides)
    };
    let has = |guide: &G::Guide| from.filter(|(at, nr)| guide.frame(*nr) == Some(at.ip));
    let Some((guide, (from, nr))) = guide.and_then(|guide| Some((guide, has(&guide)?))) else {
        *left = Some(position(at, 0, guide));
        return None;
    };
    let mut spot = Spot::new(from, nr);
    // SAFETY: The guide has the frame, which is on the stack.
    let ran = unsafe { run(unwinder, &stack, &guide, &mut spot) };
    if let Ran::All = ran {
        return Some(guide);
    }
    let position = left.insert(position(at, 0, Some(guide)));
    match follow(unwinder, guides, position, spot, ran) {
        Followed::All => position.guide,
        _ => None,
    }
}

/// Leaves frames out, as long as there is a caller, by how many are left and the frame. Returns how many are
/// left.
#[inline(always)]
fn pass(
    mut skip: usize,
    at: &mut Registers,
    caller: impl Fn(usize, Registers) -> Option<Registers>,
) -> usize {
    while skip > 0 {
        let Some(caller) = caller(skip, *at) else {
            break;
        };
        *at = caller;
        skip = skip.wrapping_sub(1);
    }
    skip
}

/// The guide to begin with where the first frame is in the trampoline of the function tracer, and the frame
/// from which it leads on, if that is known. Many stacks begin there, so the guide is found by the second
/// frame: the traced function.
#[inline(never)]
#[cfg_attr(CONFIG_RUST, link_section = ".kprobes.text")]
fn begin<U: Unwinder, G: Guides>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    shown: Option<u64>,
    before: Option<u64>,
    guides: &G,
) -> (Option<G::Guide>, Option<(Registers, usize)>) {
    if shown.is_none() || before.is_some() {
        return (before.and_then(|ip| guides.first(0, ip)), None);
    }
    // SAFETY: The first frame is on the stack.
    let found = unsafe { caller(unwinder, stack, at, unwinder.marked_rule(at.ip)) };
    let Some(caller) = found.filter(|at| unwinder.shown(at.ip) == Some(at.ip)) else {
        return (None, None);
    };
    let first = guides.first(1, caller.ip);
    (
        first.filter(|guide| guide.frame(0) == shown),
        Some((caller, 1)),
    )
}

/// The caller, if a plain rule leads to it, or a frame record; not where a tracer has put its own address.
///
/// # Safety
///
/// The stack pointer is on the stack.
#[inline(always)]
unsafe fn caller<U: Unwinder>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    rule: Rule,
) -> Option<Registers> {
    // SAFETY: As required of the caller.
    let caller = unsafe { called(unwinder, stack, at, rule) };
    caller.filter(|caller| !unwinder.is_replaced(caller.ip))
}

/// The same, whatever address there is.
///
/// # Safety
///
/// As for [`caller`].
#[inline(always)]
unsafe fn called<U: Unwinder>(
    unwinder: &U,
    stack: &Stack,
    at: Registers,
    rule: Rule,
) -> Option<Registers> {
    if U::BY_FRAMES {
        let caller = based_call(unwinder, stack, at, rule).ok()?;
        return (rule == Rule::FRAME).then_some(caller);
    }
    let plain = rule.plain()?;
    let sp = at.sp.wrapping_add(plain.size());
    if sp > stack.end() {
        return None;
    }
    // SAFETY: It is at least a word behind the stack pointer, and not behind the end.
    let ip = unsafe { unwinder.load_below(sp) };
    let bp = match plain.bp() {
        // SAFETY: A plain rule has the word between.
        Some(offset) => unsafe { unwinder.load(at.sp.wrapping_add(offset)) },
        None => at.bp,
    };
    Some(Registers { ip, sp, bp })
}

/// How far a walk has come.
pub struct Position<G> {
    pub(super) frame: Frame,
    /// Frames to leave out.
    pub(super) skip: usize,
    /// Frames that are found, not this one.
    pub(super) nr: usize,
    /// A guide that has these, and the address of `frame`.
    pub(super) guide: Option<G>,
    /// The caller of `frame` is not the guide's, and no branch leads to another one.
    pub(super) parted: bool,
}

impl<G: Guide> Position<G> {
    /// Goes to a frame that a guide has led to. Returns whether that can be done: if a hint has gone
    /// meanwhile, the position is as it was.
    #[inline(always)]
    fn go<U: Unwinder>(&mut self, unwinder: &U, guide: &G, spot: &Spot) -> bool {
        if spot.nr != self.nr {
            // SAFETY: These frames were followed.
            let Some(bp) = (unsafe { saved_bp(unwinder, guide, spot) }) else {
                return false;
            };
            // SAFETY: There are so many.
            let ip = unsafe { guide.hinted(spot.nr) }.ip();
            let sp = spot.sp;
            self.frame.at = Registers { ip, sp, bp };
            self.nr = spot.nr;
        }
        self.guide = Some(*guide);
        true
    }

    /// Goes to the next frame that is a caller's, where that takes more than the hint of a call: by the rule
    /// of a frame that is not recorded as it is, to another stack, or past one that was interrupted. Returns
    /// whether there is a guide that has all frames; if not, the position is as it was.
    fn step<U: Unwinder>(&mut self, unwinder: &U, guides: &impl Guides<Guide = G>) -> bool {
        let Some(guide) = &self.guide else {
            return false;
        };
        let (mut frame, mut nr, mut guide) = (self.frame, self.nr, *guide);
        loop {
            let rule = frame.rule(unwinder);
            let next = match rule.kind() {
                // A hint would have led on, if it may have one. Hints have led here by the address: it may be
                // recorded otherwise.
                Kind::Call
                    if !frame.interrupted
                        && guide.frame(nr) == Some(frame.at.ip)
                        && (unwinder.has_lasting_rule(frame.at.ip)
                            || unwinder.shown(frame.at.ip) != Some(frame.at.ip)) =>
                {
                    None
                }
                Kind::Call | Kind::Switch => frame.called(unwinder, rule).ok(),
                Kind::Registers => frame.resumed(unwinder, rule),
                Kind::End | Kind::Slow => None,
            };
            let Some(next) = next else {
                return false;
            };
            frame = next;
            nr = nr.wrapping_add(1);
            let shown = unwinder.shown(frame.at.ip);
            if shown.is_none() || guide.frame(nr) != shown {
                match shown.and_then(|frame| guides.other(&guide, nr, frame)) {
                    Some(other) => guide = other,
                    None => return false,
                }
            }
            if !frame.interrupted {
                (self.frame, self.nr, self.guide) = (frame, nr, Some(guide));
                return true;
            }
        }
    }
}

impl<G> Position<G> {
    /// The beginning of a walk: frames to leave out, and the number of those that are known.
    #[inline(always)]
    pub fn new(frame: Frame, skip: usize, nr: usize) -> Self {
        Self {
            frame,
            skip,
            nr,
            guide: None,
            parted: false,
        }
    }
}

/// How guides ended.
pub enum Followed {
    /// With the stack: the guide has all of its frames.
    All,
    /// At a frame that takes more than hints and steps between guides.
    Stopped,
    /// At the last frame that the guide shares: its caller is another one.
    Parted,
}

/// Goes as far as guides lead, from a position on the stack.
#[inline(always)]
pub(super) fn resume<U: Unwinder, G: Guides>(
    unwinder: &U,
    position: &mut Position<G::Guide>,
    guides: &G,
) -> Followed {
    let Some(guide) = &position.guide else {
        return Followed::Stopped;
    };
    let mut spot = Spot::new(position.frame.at, position.nr);
    // SAFETY: The guide has the frame, which is on the stack.
    match unsafe { run(unwinder, &position.frame.stack, guide, &mut spot) } {
        Ran::All => {
            position.nr = guide.nr();
            Followed::All
        }
        ran => follow(unwinder, guides, position, spot, ran),
    }
}

/// Follows guides from where a run along the guide of `position` has ended.
#[inline(never)]
#[cfg_attr(CONFIG_RUST, link_section = ".kprobes.text")]
fn follow<U: Unwinder, G: Guides>(
    unwinder: &U,
    guides: &G,
    position: &mut Position<G::Guide>,
    mut spot: Spot,
    mut ran: Ran,
) -> Followed {
    let Some(mut guide) = position.guide else {
        return Followed::Stopped;
    };
    loop {
        match ran {
            Ran::All => {
                position.guide = Some(guide);
                position.nr = guide.nr();
                return Followed::All;
            }
            Ran::Stopped => {
                if !position.go(unwinder, &guide, &spot) || !position.step(unwinder, guides) {
                    return Followed::Stopped;
                }
                let Some(next) = position.guide else {
                    return Followed::Stopped;
                };
                guide = next;
                spot = Spot::new(position.frame.at, position.nr);
            }
            Ran::Away => {
                let found = spot.found(unwinder, &position.frame.stack);
                // Another guide may have the same frames up to here.
                match found.and_then(|ip| guides.other(&guide, spot.nr, ip)) {
                    Some(other) => guide = other,
                    None => {
                        spot.back();
                        position.parted = position.go(unwinder, &guide, &spot) && found.is_some();
                        return match position.parted {
                            true => Followed::Parted,
                            false => Followed::Stopped,
                        };
                    }
                }
            }
        }
        // SAFETY: The guide has this frame, which is on the stack.
        ran = unsafe { run(unwinder, &position.frame.stack, &guide, &mut spot) };
    }
}

/// Writes the first frames of a guide.
pub fn copy<G: Guide>(guide: &G, nr: usize, ips: &mut [MaybeUninit<u64>]) {
    for (room, frame) in ips.iter_mut().zip(guide.frames().take(nr)) {
        room.write(frame);
    }
}
