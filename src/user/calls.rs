// SPDX-License-Identifier: GPL-2.0

//! The fast path of the walk of a user stack: plain calls.
//!
//! The rule of a plain call is known, its frame ends at an offset from the stack pointer, and its code is in the
//! mapping of the frame before. Nearly all frames are plain calls. They have a loop of their own, so that all it
//! needs stays in registers.

use super::{
    cfi::Machine,
    encoded::EncodedStack,
    frame::{Frame, Memory},
    rules::{Rules, Site},
};

/// A mapping, as far as it is needed for each frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// The word of the first address. 0: the mapping has no binary.
    pub word: u64,
    /// The site of the first address.
    pub site: Site,
    /// Processes may write to what is mapped.
    pub changes: bool,
}

impl Mapping {
    /// Returns whether an address lies in it.
    #[inline(always)]
    pub const fn has(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.size
    }
}

/// What is needed to follow calls.
pub struct Calls<'a> {
    /// The mapping that they are in.
    pub mapping: Mapping,
    /// What is known of them.
    pub rules: &'a Rules,
    /// The stack that their frames are added to.
    pub words: &'a mut EncodedStack,
}

impl Calls<'_> {
    /// Keeps `frame`, which goes on at a return address, and its callers, as long as they are plain calls in this
    /// mapping whose words of the stack can be read. Returns the first one that is not; it is not kept.
    #[inline(never)]
    pub fn follow(self, machine: &Machine, memory: &impl Memory, frame: Frame) -> Frame {
        let Self {
            mapping,
            rules,
            words,
        } = self;
        let Some(rules) = rules.table() else {
            return frame;
        };
        if mapping.word == 0 {
            return frame;
        }
        let Frame {
            mut ip,
            mut sp,
            mut fp,
        } = frame;
        // A call returns to the byte after it. One that ends the mapping is left to the walk.
        let first = mapping.start.wrapping_add(1);
        let addresses = mapping.size.saturating_sub(1);
        let word = mapping.word.wrapping_add(1);
        words.keep_all(|| {
            let at = ip.wrapping_sub(first);
            if at >= addresses {
                return None;
            }
            let rule = rules.get(mapping.site.after(at))?;
            if !rule.is_plain() {
                return None;
            }
            let end = rule.end(sp, fp);
            // The stack only goes up.
            if end <= sp {
                return None;
            }
            let return_address = memory.word(machine.ra_at(rule, end)?).ok()?;
            let return_address = memory.without_signature(return_address);
            if let Some(address) = machine.fp_at(rule, end) {
                fp = memory.word(address).ok()?;
            }
            (ip, sp) = (return_address, end);
            Some(word.wrapping_add(at))
        });
        Frame { ip, sp, fp }
    }
}
