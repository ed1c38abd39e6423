// SPDX-License-Identifier: GPL-2.0

//! A run along one guide: from frame to frame, as long as each is the guide's and its hint leads on.

use super::{
    frames,
    guided::Guide,
    hints::SAVED_BY_FRAME,
    rules::{Kind, Rule},
    step::based_call,
    walk::{Registers, Stack, Unwinder},
};

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
    pub(super) words: u64,
}

impl Spot {
    #[inline(always)]
    pub(super) fn new(at: Registers, nr: usize) -> Self {
        Self {
            nr,
            sp: at.sp,
            from: nr,
            low: at.sp,
            bp: at.bp,
            words: 0,
        }
    }

    /// The address of the frame, if it is recorded as it is.
    #[inline(always)]
    pub(super) fn found<U: Unwinder>(&self, unwinder: &U, stack: &Stack) -> Option<u64> {
        if self.sp > stack.end() {
            return None;
        }
        // SAFETY: It is on the stack, and was reached by a plain step.
        let ip = unwinder.returns_to(unsafe { unwinder.load_below(self.sp) });
        let is_here = !frames::is_mark::<U>(ip) && unwinder.shown(ip) == Some(ip);
        (is_here && !unwinder.is_replaced(ip)).then_some(ip)
    }

    /// Takes the last step back.
    #[inline(always)]
    pub(super) fn back(&mut self) {
        self.nr = self.nr.wrapping_sub(1);
        self.sp = self.sp.wrapping_sub(self.words.wrapping_mul(8));
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
pub(super) unsafe fn run<U: Unwinder, G: Guide>(
    unwinder: &U,
    stack: &Stack,
    guide: &G,
    spot: &mut Spot,
) -> Ran {
    // SAFETY: As required of the caller.
    unsafe { steps::<U, G, true>(unwinder, stack, guide, spot) }
}

/// The same; without `CALLS`, no further than plain hints and distances lead.
///
/// # Safety
///
/// As for [`run`].
#[inline(always)]
pub(super) unsafe fn steps<U: Unwinder, G: Guide, const CALLS: bool>(
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
            let words = word.words();
            if words == 0 {
                break;
            }
            nr = nr.wrapping_add(1);
            sp = sp.wrapping_add(words.wrapping_mul(8));
            if sp <= end {
                // SAFETY: A plain hint takes at least a word, so it is on the stack.
                let ip = unsafe { unwinder.load_below(sp) };
                // SAFETY: By the requirement of `Guide`, the hint of the last frame has no size, so there is one more.
                word = unsafe { guide.hinted(nr) };
                if word.ip() == ip {
                    continue;
                }
            }
            spot.words = words;
            break 'run Ran::Away;
        }
        let is_last = nr.wrapping_add(1) == guide.nr();
        if let (Some(below), false) = (word.saved_words(), is_last) {
            let saved = sp.wrapping_sub(below.wrapping_mul(8));
            let bp = match saved >= spot.low {
                // SAFETY: It is at least a word below the stack pointer, and not below `low`.
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
            Kind::Call if CALLS && !is_last => {
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
pub(super) unsafe fn saved_bp<U: Unwinder, G: Guide>(
    unwinder: &U,
    guide: &G,
    spot: &Spot,
) -> Option<u64> {
    if U::BY_FRAMES {
        // SAFETY: It was followed, so its record is on the stack.
        return Some(unsafe { unwinder.load(frames::record(spot.sp)) });
    }
    let mut sp = spot.sp;
    // Meanwhile a hint may go or come, but never becomes another rule: that depends only on text that stays
    // until the section ends. So these are the words that the run has passed.
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
