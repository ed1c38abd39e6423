// SPDX-License-Identifier: GPL-2.0

//! The walk along guides: frames that were found before, and hints on how to get from each to the next.
//!
//! As long as each return address is that of the guide, a step takes nothing but the hint. Where one is
//! another, another guide may have the same frames up to there. What takes more than that is left to the
//! walk, see `walk.rs`.

use super::{
    rules::{Hinted, Kind},
    walk::{based_call, call, Registers, Stack, Unwinder},
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

    /// One that begins with this frame.
    fn first(&self, frame: u64) -> Option<Self::Guide>;

    /// One with the first `nr` frames of a guide, and then this one.
    fn other(&self, guide: &Self::Guide, nr: usize, frame: u64) -> Option<Self::Guide>;
}

/// Goes as far as guides lead, from the beginning of a walk. One address may be known already, `before` the
/// first.
///
/// Context: that of the [`Unwinder`].
#[inline(always)]
pub fn retrace<U: Unwinder, G: Guides>(
    unwinder: &U,
    stack: &Stack,
    position: &mut Position<G::Guide>,
    before: Option<u64>,
    guides: &G,
) -> Followed {
    if !stack.reaches(position.at.sp) || position.skip > 0 && !position.pass(unwinder, stack) {
        return Followed::Stopped;
    }
    let first = match before {
        None => unwinder.shown(position.at.ip),
        Some(ip) => Some(ip),
    };
    position.guide = first.and_then(|ip| guides.first(ip));
    let Some(guide) = &position.guide else {
        return Followed::Stopped;
    };
    let shown = match before {
        None => first,
        Some(_) => unwinder.shown(position.at.ip),
    };
    if shown.is_none() || guide.frame(position.nr) != shown {
        return Followed::Stopped;
    }
    resume(unwinder, stack, position, guides)
}

/// How far a walk has come.
pub struct Position<G> {
    pub(super) at: Registers,
    /// Frames to leave out.
    pub(super) skip: usize,
    /// Frames that are found, not this one.
    pub(super) nr: usize,
    /// A guide that has these, and the address of `at`.
    pub(super) guide: Option<G>,
    /// The caller of `at` is not the guide's, and no branch leads to another one.
    pub(super) parted: bool,
}

impl<G: Guide> Position<G> {
    /// Goes to the caller by the rule of a frame that has no hint, as it is not recorded as it is. Returns
    /// the guide that has the caller, too; if there is none, the position is as it was.
    #[inline(always)]
    fn step<U: Unwinder>(
        &mut self,
        unwinder: &U,
        stack: &Stack,
        guide: &G,
        guides: &impl Guides<Guide = G>,
    ) -> Option<G> {
        if guide.frame(self.nr) == Some(self.at.ip) {
            return None;
        }
        let rule = unwinder.rule(self.at.ip);
        if rule.kind() != Kind::Call {
            return None;
        }
        let caller = call(unwinder, stack, self.at, rule).ok()?;
        let frame = unwinder.shown(caller.ip)?;
        let nr = self.nr.wrapping_add(1);
        let guide = if guide.frame(nr) == Some(frame) {
            *guide
        } else {
            guides.other(guide, nr, frame)?
        };
        (self.at, self.nr) = (caller, nr);
        Some(guide)
    }
}

impl<G> Position<G> {
    /// The beginning of a walk: frames to leave out, and the number of those that are known.
    #[inline(always)]
    pub fn new(at: Registers, skip: usize, nr: usize) -> Self {
        Self {
            at,
            skip,
            nr,
            guide: None,
            parted: false,
        }
    }

    /// The guide, if there is one.
    #[inline(always)]
    pub fn guide(&self) -> Option<&G> {
        self.guide.as_ref()
    }

    /// Leaves frames out by plain rules. Returns whether that was all.
    #[inline(always)]
    fn pass<U: Unwinder>(&mut self, unwinder: &U, stack: &Stack) -> bool {
        while self.skip > 0 {
            let Some(plain) = unwinder.rule(self.at.ip).plain() else {
                return false;
            };
            let up = self.at.sp.wrapping_add(plain.size());
            if up > stack.end() {
                return false;
            }
            // SAFETY: It is at least a word behind the stack pointer, and not behind the end.
            let ip = unsafe { unwinder.load_below(up) };
            if unwinder.is_replaced(ip) {
                return false;
            }
            if let Some(offset) = plain.bp() {
                // SAFETY: A plain rule has the word between.
                self.at.bp = unsafe { unwinder.load(self.at.sp.wrapping_add(offset)) };
            }
            self.at.ip = ip;
            self.at.sp = up;
            self.skip = self.skip.wrapping_sub(1);
        }
        true
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
    stack: &Stack,
    position: &mut Position<G::Guide>,
    guides: &G,
) -> Followed {
    let Some(guide) = &position.guide else {
        return Followed::Stopped;
    };
    let mut spot = Spot::new(position);
    // SAFETY: The guide has the frame, which is on the stack.
    match unsafe { run(unwinder, stack, guide, &mut spot) } {
        Ran::All => {
            position.nr = guide.nr();
            Followed::All
        }
        ran => follow(unwinder, stack, guides, position, spot, ran),
    }
}

/// Follows guides from where a run along the guide of `position` has ended.
#[inline(never)]
#[cfg_attr(CONFIG_RUST, link_section = ".kprobes.text")]
fn follow<U: Unwinder, G: Guides>(
    unwinder: &U,
    stack: &Stack,
    guides: &G,
    position: &mut Position<G::Guide>,
    mut spot: Spot,
    mut ran: Ran,
) -> Followed {
    let Some(mut guide) = position.guide else {
        return Followed::Stopped;
    };
    let mut followed = Followed::Stopped;
    loop {
        match ran {
            Ran::All => {
                position.guide = Some(guide);
                position.nr = guide.nr();
                return Followed::All;
            }
            Ran::Stopped if spot.nr == position.nr => {
                match position.step(unwinder, stack, &guide, guides) {
                    Some(next) => {
                        guide = next;
                        spot = Spot::new(position);
                        // SAFETY: It has this frame, which is on the stack.
                        ran = unsafe { run(unwinder, stack, &guide, &mut spot) };
                        continue;
                    }
                    None => break,
                }
            }
            Ran::Stopped => break,
            Ran::Away => {}
        }
        if spot.sp <= stack.end() {
            // SAFETY: It is on the stack.
            let ip = unsafe { unwinder.load_below(spot.sp) };
            if unwinder.shown(ip) == Some(ip) && !unwinder.is_replaced(ip) {
                // Another guide may have the same frames up to here.
                if let Some(other) = guides.other(&guide, spot.nr, ip) {
                    guide = other;
                    // SAFETY: It has this frame, too, which is on the stack.
                    ran = unsafe { run(unwinder, stack, &guide, &mut spot) };
                    continue;
                }
                followed = Followed::Parted;
            }
        }
        spot.nr = spot.nr.wrapping_sub(1);
        spot.sp = spot.sp.wrapping_sub(spot.size.wrapping_mul(8));
        break;
    }
    position.guide = Some(guide);
    position.parted = matches!(followed, Followed::Parted);
    if spot.nr != position.nr {
        // SAFETY: These frames were followed.
        let Some(bp) = (unsafe { saved_bp(unwinder, &guide, &spot) }) else {
            // A hint has gone meanwhile. The position is as it was.
            position.parted = false;
            return Followed::Stopped;
        };
        // SAFETY: There are so many.
        let ip = unsafe { guide.hinted(spot.nr) }.ip();
        position.at = Registers {
            ip,
            sp: spot.sp,
            bp,
        };
        position.nr = spot.nr;
    }
    followed
}

/// A frame of a guide, and its stack pointer.
struct Spot {
    nr: usize,
    sp: u64,
    /// The last frame whose frame pointer, `bp`, is known. From there to `nr` are plain calls.
    from: usize,
    bp: u64,
    /// Words of the last step, which is taken back where the guide has another frame.
    size: u64,
}

impl Spot {
    #[inline(always)]
    fn new<G>(position: &Position<G>) -> Self {
        Self {
            nr: position.nr,
            sp: position.at.sp,
            from: position.nr,
            bp: position.at.bp,
            size: 0,
        }
    }
}

/// How a run ended.
enum Ran {
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
    let end = stack.end();
    let (mut nr, mut sp) = (spot.nr, spot.sp);
    // SAFETY: As required of the caller.
    let mut word = unsafe { guide.hinted(nr) };
    let ran = loop {
        let size = word.size();
        if size != 0 {
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
            break Ran::Away;
        }
        let rule = word.rule();
        let is_last = nr.wrapping_add(1) == guide.nr();
        match rule.kind() {
            Kind::Call if !is_last => {
                (spot.nr, spot.sp) = (nr, sp);
                // SAFETY: These frames were followed.
                let Some(bp) = (unsafe { saved_bp(unwinder, guide, spot) }) else {
                    break Ran::Stopped;
                };
                (spot.from, spot.bp) = (nr, bp);
                let at = Registers { ip: 0, sp, bp };
                let Ok(caller) = based_call(unwinder, stack, at, rule) else {
                    break Ran::Stopped;
                };
                // SAFETY: There is one more.
                word = unsafe { guide.hinted(nr.wrapping_add(1)) };
                if word.ip() != caller.ip {
                    break Ran::Stopped;
                }
                nr = nr.wrapping_add(1);
                sp = caller.sp;
                (spot.from, spot.bp) = (nr, caller.bp);
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

/// The frame pointer of a frame that hints have led to. [`None`]: a hint has gone.
///
/// # Safety
///
/// So they have.
#[inline(always)]
unsafe fn saved_bp<U: Unwinder, G: Guide>(unwinder: &U, guide: &G, spot: &Spot) -> Option<u64> {
    let mut sp = spot.sp;
    for index in (spot.from..spot.nr).rev() {
        // SAFETY: There are more frames.
        let plain = unsafe { guide.hinted(index) }.rule().plain()?;
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
