// SPDX-License-Identifier: GPL-2.0

//! The walk along guides: frames that were found before, and hints on how to get from each to the next.
//!
//! As long as each return address is that of the guide, a step takes nothing but the hint. Where one is
//! another, another guide may have the same frames up to there. What takes more than that is left to the
//! walk, see `walk.rs`.

use super::{
    frames,
    hints::{Hinted, SAVED_BY_FRAME},
    rules::{Kind, Rule},
    step::based_call,
    walk::{Frame, Registers, Stack, Unwinder},
};
use core::mem::MaybeUninit;

/// Frames that a walk may find, and hints on how to get from each to the next.
pub trait Guide: Copy {
    /// The number of frames.
    fn nr(&self) -> usize;

    /// A frame, if there are so many.
    fn frame(&self, index: usize) -> Option<u64>;

    /// The frames.
    fn frames(&self) -> impl Iterator<Item = u64>;

    /// A frame with its hint.
    ///
    /// # Safety
    ///
    /// There are more frames than `index`.
    unsafe fn hinted(&self, index: usize) -> Hinted;
}

/// The guides that there are.
pub trait Guides: Copy {
    /// Frames that were found before. The hint of the last one is not plain.
    type Guide: Guide;

    /// One to begin with, if it has this frame there.
    fn first(&self, index: usize, frame: u64) -> Option<Self::Guide>;

    /// The one that all frames are likely to be those of, if it begins with this frame.
    fn next(&self, frame: u64) -> Option<Self::Guide>;

    /// One with the first `nr` frames of a guide, and then this one.
    fn other(&self, guide: &Self::Guide, nr: usize, frame: u64) -> Option<Self::Guide>;
}

/// Goes as far as guides lead, from the beginning of a walk: `skip` frames are left out, and of those that
/// follow, `nr` are known already: none, or the one at `before`. Returns the guide that has all frames. If
/// there is none, `left` is set to how far the walk has come: apart, so that it is nowhere else otherwise.
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
    let skip = pass(unwinder, &stack, &mut at, skip);
    if skip > 0 {
        *left = Some(position(at, skip, None));
        return None;
    }
    let shown = unwinder.shown(at.ip);
    let (guide, from) = if shown == Some(at.ip) {
        let first = before.unwrap_or(at.ip);
        if let Some(guide) = guides.next(first) {
            let mut spot = Spot::new(at, nr);
            if guide.frame(nr) == shown {
                // SAFETY: The guide has the frame, which is on the stack.
                let ran = unsafe { run(unwinder, &stack, &guide, &mut spot) };
                if let Ran::All = ran {
                    return Some(guide);
                }
            }
        }
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

/// Leaves frames out by plain rules. Returns how many are left.
#[inline(always)]
fn pass<U: Unwinder>(unwinder: &U, stack: &Stack, at: &mut Registers, mut skip: usize) -> usize {
    while skip > 0 {
        // SAFETY: It is on the stack.
        let Some(caller) = (unsafe { caller(unwinder, stack, *at, unwinder.rule(at.ip)) }) else {
            break;
        };
        *at = caller;
        skip = skip.wrapping_sub(1);
    }
    skip
}

/// The guide to begin with where the first frame is not recorded as it is, in text that calls a tracer of
/// functions; and the frame from which it leads on, if that is known. Of all stacks that begin there, the caller tells which is
/// likely.
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

/// The caller, if a plain rule leads to it, or a frame record.
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
    if U::BY_FRAMES {
        let caller = based_call(unwinder, stack, at, rule).ok()?;
        return (rule == Rule::FRAME && !unwinder.is_replaced(caller.ip)).then_some(caller);
    }
    let plain = rule.plain()?;
    let sp = at.sp.wrapping_add(plain.size());
    if sp > stack.end() {
        return None;
    }
    // SAFETY: It is at least a word behind the stack pointer, and not behind the end.
    let ip = unsafe { unwinder.load_below(sp) };
    if unwinder.is_replaced(ip) {
        return None;
    }
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
                // A hint would have led on.
                Kind::Call if !frame.interrupted && guide.frame(nr) == Some(frame.at.ip) => None,
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
    /// At a frame that takes more than a hint.
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

/// A frame of a guide, and its stack pointer.
pub(super) struct Spot {
    pub(super) nr: usize,
    pub(super) sp: u64,
    /// The last frame whose frame pointer, `bp`, is known, and its stack pointer. From there to `nr` are
    /// calls that hints have led from.
    from: usize,
    low: u64,
    bp: u64,
    /// Words of the last step, which is taken back where the guide has another frame.
    pub(super) size: u64,
}

impl Spot {
    #[inline(always)]
    fn new(at: Registers, nr: usize) -> Self {
        Self {
            nr,
            sp: at.sp,
            from: nr,
            low: at.sp,
            bp: at.bp,
            size: 0,
        }
    }

    /// The address of the frame, if it is recorded as it is.
    #[inline(always)]
    fn found<U: Unwinder>(&self, unwinder: &U, stack: &Stack) -> Option<u64> {
        if self.sp > stack.end() {
            return None;
        }
        // SAFETY: It is on the stack, and was reached by a plain step.
        let ip = unsafe { unwinder.load_below(self.sp) };
        (unwinder.shown(ip) == Some(ip) && !unwinder.is_replaced(ip)).then_some(ip)
    }

    /// Takes the last step back.
    #[inline(always)]
    fn back(&mut self) {
        self.nr = self.nr.wrapping_sub(1);
        self.sp = self.sp.wrapping_sub(self.size.wrapping_mul(8));
    }
}

/// How a run ended.
pub(super) enum Ran {
    /// With the stack: the guide has all of its frames.
    All,
    /// At a frame that takes more than a hint.
    Stopped,
    /// At one that is not that of the guide.
    Away,
}

/// Goes from frame to frame as long as they are those of a guide, and hints tell. Apart from the rest, so
/// that all of it is in registers.
///
/// # Safety
///
/// The guide has the frame of `spot`, whose stack pointer is on the stack.
#[inline(never)]
#[cfg_attr(CONFIG_RUST, link_section = ".kprobes.text")]
unsafe fn run<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    guide: &G,
    spot: &mut Spot,
) -> Ran {
    if U::BY_FRAMES {
        // SAFETY: As required of the caller.
        return unsafe { frames::run(unwinder, stack, guide, spot) };
    }
    let end = stack.end();
    let (mut nr, mut sp) = (spot.nr, spot.sp);
    let ran = 'run: loop {
        // SAFETY: The guide has this frame.
        let mut word = unsafe { guide.hinted(nr) };
        loop {
            let size = word.size();
            if size == 0 {
                break;
            }
            nr = nr.wrapping_add(1);
            sp = sp.wrapping_add(size.wrapping_mul(8));
            if sp <= end {
                // SAFETY: A plain hint takes at least a word, so it is on the stack.
                let ip = unsafe { unwinder.load_below(sp) };
                // SAFETY: The hint of the last frame is not plain.
                word = unsafe { guide.hinted(nr) };
                if word.ip() == ip {
                    continue;
                }
            }
            spot.size = size;
            break 'run Ran::Away;
        }
        let is_last = nr.wrapping_add(1) == guide.nr();
        if let (Some(below), false) = (word.saved(), is_last) {
            let saved = sp.wrapping_sub(below.wrapping_mul(8));
            let bp = match saved >= spot.low {
                // SAFETY: It is at least a word below the stack pointer, and not below that of the first frame.
                true => unsafe { unwinder.load(saved) },
                false => spot.bp,
            };
            if bp < sp || bp > end.wrapping_sub(frames::RECORD) {
                break Ran::Stopped;
            }
            let up = bp.wrapping_add(frames::RECORD);
            // SAFETY: The record at `bp` is between `sp`, which is on the stack, and the end.
            let ip = unsafe { unwinder.load_below(up) };
            let next = nr.wrapping_add(1);
            // SAFETY: There is one more.
            if unsafe { guide.hinted(next) }.ip() != ip {
                break Ran::Stopped;
            }
            (nr, sp) = (next, up);
            continue;
        }
        let rule = Rule::from_bits(word.bits());
        match rule.kind() {
            Kind::Call if !is_last => {
                (spot.nr, spot.sp) = (nr, sp);
                // SAFETY: Hints have led to the frame, and there is one more.
                if !unsafe { call(unwinder, stack, guide, spot, rule) } {
                    break Ran::Stopped;
                }
                (nr, sp) = (spot.nr, spot.sp);
            }
            Kind::Registers
                if is_last && !rule.needs_bp() && unwinder.are_users(stack, rule.sp(sp, 0)) =>
            {
                break Ran::All;
            }
            Kind::End if is_last => break Ran::All,
            _ => break Ran::Stopped,
        }
    };
    (spot.nr, spot.sp) = (nr, sp);
    ran
}

/// Goes to the caller by a rule that is not plain, if that is the guide's next frame. Returns whether it is.
///
/// # Safety
///
/// Hints have led to the frame of `spot`, which is not the guide's last one.
#[inline(never)]
#[cfg_attr(CONFIG_RUST, link_section = ".kprobes.text")]
unsafe fn call<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    guide: &G,
    spot: &mut Spot,
    rule: Rule,
) -> bool {
    // SAFETY: These frames were followed.
    let Some(bp) = (unsafe { saved_bp(unwinder, guide, spot) }) else {
        return false;
    };
    let at = Registers {
        ip: 0,
        sp: spot.sp,
        bp,
    };
    let Ok(caller) = based_call(unwinder, stack, at, rule) else {
        return false;
    };
    let next = spot.nr.wrapping_add(1);
    // SAFETY: There is one more.
    if unsafe { guide.hinted(next) }.ip() != caller.ip {
        return false;
    }
    *spot = Spot::new(caller, next);
    true
}

/// The frame pointer of a frame that hints have led to. [`None`]: a hint has gone.
///
/// # Safety
///
/// So they have.
#[inline(always)]
unsafe fn saved_bp<U: Unwinder, G: Guide>(unwinder: &U, guide: &G, spot: &Spot) -> Option<u64> {
    if U::BY_FRAMES {
        // SAFETY: It was followed, so its record is on the stack.
        return Some(unsafe { unwinder.load(frames::record(spot.sp)) });
    }
    let mut sp = spot.sp;
    for index in (spot.from..spot.nr).rev() {
        // SAFETY: There are more frames.
        let rule = unsafe { guide.hinted(index) }.rule();
        if rule == Rule::FRAME {
            let saved = sp.wrapping_sub(u64::from(SAVED_BY_FRAME).wrapping_mul(8));
            // SAFETY: It was followed, so its frame pointer was read there.
            return Some(unsafe { unwinder.load(saved) });
        }
        let plain = rule.plain()?;
        sp = sp.wrapping_sub(plain.size());
        if let Some(offset) = plain.bp() {
            // SAFETY: It was followed, so it is on the stack.
            return Some(unsafe { unwinder.load(sp.wrapping_add(offset)) });
        }
    }
    Some(spot.bp)
}

/// Writes the first frames of a guide.
pub fn copy<G: Guide>(guide: &G, nr: usize, ips: &mut [MaybeUninit<u64>]) {
    for (room, frame) in ips.iter_mut().zip(guide.frames().take(nr)) {
        room.write(frame);
    }
}
