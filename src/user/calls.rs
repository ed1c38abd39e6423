// SPDX-License-Identifier: GPL-2.0

//! Frames of a user stack that are plain calls with known rules, in one mapping: nearly all frames are.
//!
//! They are followed apart from all others, so that what a frame needs is at hand, in registers.

use super::{
    cfi::Machine,
    rules::{Rules, Site},
    walk::{Frame, Memory},
    words::StackWords,
};

/// A mapping, as far as it is needed for each frame.
#[cfg_attr(CONFIG_RUST, derive(kernel::prelude::Zeroable))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Its first address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// The word of the first address. 0: the mapping has no binary.
    pub word: u64,
    /// The first address as a place in the file.
    pub site: Site,
}

impl Place {
    /// Whether an address lies in it.
    #[inline(always)]
    pub const fn has(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.size
    }
}

/// What is needed to follow calls.
pub struct Calls<'a> {
    /// The mapping that they are in.
    pub place: Place,
    /// What is known of them.
    pub rules: &'a Rules,
    /// Where their frames are kept.
    pub words: &'a mut StackWords,
}

impl Calls<'_> {
    /// Keeps frames, from one on that has called, as long as each is in the mapping and its rule and its memory are
    /// at hand. Returns the first other one, which is not kept.
    #[inline(never)]
    pub fn follow(self, machine: &Machine, memory: &impl Memory, frame: Frame) -> Frame {
        let Self {
            place,
            rules,
            words,
        } = self;
        let Some(rules) = rules.table() else {
            return frame;
        };
        if place.word == 0 {
            return frame;
        }
        let Frame {
            mut ip,
            mut sp,
            mut fp,
        } = frame;
        // From an address that a call returns to. The one behind the mapping is left out.
        let first = place.start.wrapping_add(1);
        let addresses = place.size.saturating_sub(1);
        let word = place.word.wrapping_add(1);
        words.keep_all(|| {
            let at = ip.wrapping_sub(first);
            if at >= addresses {
                return None;
            }
            let rule = rules.get(place.site.behind(at))?;
            if !rule.is_plain() {
                return None;
            }
            let end = rule.end(sp, fp);
            // The stack only goes up.
            if end <= sp {
                return None;
            }
            let return_address = memory
                .word(end.wrapping_add_signed(machine.ra_offset))
                .ok()?;
            if let Some(address) = rule.fp_at(end) {
                fp = memory.word(address).ok()?;
            }
            (ip, sp) = (return_address, end);
            Some(word.wrapping_add(at))
        });
        Frame { ip, sp, fp }
    }
}
