// SPDX-License-Identifier: GPL-2.0

//! An unwind rule: the step of a walk from one frame to its caller.
//!
//! Where a function has put its return address, and where the caller's frame pointer, depends on
//! the instruction alone that has made the call: that is what ORC describes, in tables that are
//! searched for each frame. A rule is one entry of such a table, found once by watching the
//! kernel's own unwinder make the step ([`UnwindRule::learn`]), and kept in a table of fixed size, see `rules.rs`.
//!
//! ```text
//!  31       20 19        8   6    4     3    2   0
//! +-----------+-----------+----+-----+----+------+
//! |   size    | bp offset |  0 |saved|  0 |   0  |  plain
//! +-----------+-----------+----+-----+----+------+
//! |     0     | sp offset |slow|saved|base| kind |  other
//! +-----------+-----------+----+-----+----+------+
//! |     0     | sp offset |    saved at   | kind |  switch
//! +-----------+-----------+---------------+------+
//! |     0     |     0     |   sp words    | kind |  realigned
//! +-----------+-----------+---------------+------+
//! ```
//!
//! Offsets are in words of the stack. Nearly all rules are *plain*: the caller is further up from the stack pointer,
//! and its frame pointer, if it was saved, in between; both offsets are from the old stack pointer, and
//! positive. Of the others, the offset is from the old stack pointer or the frame pointer, and the
//! caller's frame pointer, if it was saved, is where `push %rbp` puts it: the second word below the new
//! stack pointer. A *switch* leads to another stack: the offset is from the word at the old stack pointer, and the
//! caller's frame pointer, if it was saved, is one of the words below the return address. A function that has
//! *realigned* its stack has the caller's frame pointer where its own leads, and the new stack pointer in one of the
//! words below.

/// The bits of a rule that are its kind, if it is not plain.
pub(super) const KIND: u32 = 7;
/// A call that is not plain: the return address is below the new stack pointer.
const CALL: u32 = 2;
/// An entry from elsewhere: all registers are at the new stack pointer.
const REGISTERS: u32 = 4;
/// No caller.
const END: u32 = 6;
/// A call from another stack, whose stack pointer is the word at the old stack pointer.
const SWITCH: u32 = 1;
/// Where a switch has the caller's frame pointer: this number of words further from the new stack pointer than
/// the return address. 0: it stays.
const SWITCH_SAVED_SHIFT: u32 = 3;
/// The largest of these.
const SWITCH_SAVED_MAX: i32 = 31;
/// A call by a function that has realigned its stack.
pub(super) const REALIGNED: u32 = 5;
/// Where it has how many words below the frame pointer the new stack pointer is.
const REALIGNED_SHIFT: u32 = 3;
/// The most of these: gcc pushes five registers at most before.
pub const REALIGNED_MAX: u32 = 7;
/// The new stack pointer is an offset from the frame pointer, not from the old stack pointer.
const BASE_BP: u32 = 1 << 3;
/// The caller's frame pointer was saved. Without this, it stays.
const SAVED: u32 = 1 << 4;
/// Where a rule that is not plain has the caller's frame pointer: this number of words from the new stack
/// pointer.
const SAVED_AT: i32 = -2;
/// Bits of an offset, which has a sign, and of a size, which has none.
pub const OFFSET_BITS: u32 = 12;
/// Where the size is in the word; 0 if the rule is not plain.
pub(super) const SIZE_SHIFT: u32 = 20;
/// Where the offset is.
pub(super) const OFFSET_SHIFT: u32 = SIZE_SHIFT - OFFSET_BITS;

/// The step from one frame to its caller's, in a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnwindRule(u32);

/// The kind of a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RuleKind {
    /// The caller has called: the return address is below the new stack pointer.
    Call,
    /// The same from another stack.
    Switch,
    /// The same by a function that has realigned its stack.
    Realigned,
    /// An entry from elsewhere: all registers are at the new stack pointer.
    Registers,
    /// There is no caller.
    End,
    /// Only the kernel's own unwinder knows how to go on.
    Slow,
}

/// What the kernel's unwinder did on a stack whose words encode where they were read.
///
/// Positions are indices of words on that stack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LearnedStep {
    /// It found the caller.
    Caller {
        /// Where the return address was read.
        ip: u32,
        /// The stack pointer after the return.
        sp: u32,
        /// Where the frame pointer was read; [`None`] if it stayed.
        bp: Option<u32>,
    },
    /// It found all registers, the first of them there.
    Registers(u32),
    /// It ended without looking at the stack.
    End,
    /// It did something else.
    Other,
}

/// One run of the kernel's unwinder: where the pointers were, and its result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LearnRun {
    /// The stack pointer.
    pub sp: u32,
    /// The frame pointer.
    pub bp: u32,
    /// Its result.
    pub step: LearnedStep,
}

impl UnwindRule {
    /// Returns the word.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the rule of a word.
    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// No rule is known. Never in the table.
    pub const UNKNOWN: Self = Self(0);
    /// The walk ends here.
    pub const END: Self = Self(END);
    /// Only the kernel's own unwinder knows how to go on.
    pub const SLOW: Self = Self(1 << 6);
    /// The return address and the caller's frame pointer are where the frame pointer says.
    pub const FRAME: Self = Self(CALL | BASE_BP | SAVED | (-SAVED_AT as u32) << OFFSET_SHIFT);

    /// Returns its kind.
    pub const fn kind(self) -> RuleKind {
        if self.plain().is_some() {
            return RuleKind::Call;
        }
        match self.0 & KIND {
            CALL => RuleKind::Call,
            SWITCH => RuleKind::Switch,
            REALIGNED => RuleKind::Realigned,
            REGISTERS => RuleKind::Registers,
            END => RuleKind::End,
            _ => RuleKind::Slow,
        }
    }

    /// Returns the rule if it is plain.
    pub const fn plain(self) -> Option<PlainRule> {
        if self.0 >> SIZE_SHIFT != 0 {
            Some(PlainRule(self.0))
        } else {
            None
        }
    }

    /// Returns the new stack pointer, given the old one and the frame pointer. Of a call or registers.
    pub const fn sp(self, sp: u64, bp: u64) -> u64 {
        if let Some(plain) = self.plain() {
            return sp.wrapping_add(plain.size());
        }
        let base = if self.0 & BASE_BP != 0 { bp } else { sp };
        base.wrapping_add_signed(self.offset())
    }

    /// Returns the offset of the new stack pointer, in bytes. Of a rule that is not plain.
    const fn offset(self) -> i64 {
        let unused = u32::BITS - OFFSET_BITS;
        let words = (self.0 << (unused - OFFSET_SHIFT)) as i32 >> unused;
        words as i64 * 8
    }

    /// Returns the new stack pointer, given the word at the old one. Of a switch.
    pub const fn switched_sp(self, word: u64) -> u64 {
        word.wrapping_add_signed(self.offset())
    }

    /// Returns where the frame pointer is read, given the new stack pointer; [`None`] if it stays. Of a switch.
    pub const fn switched_bp(self, sp: u64) -> Option<u64> {
        match self.0 >> SWITCH_SAVED_SHIFT & SWITCH_SAVED_MAX as u32 {
            0 => None,
            words => Some(sp.wrapping_sub((words as u64 + 1) * 8)),
        }
    }

    /// Returns the rule of a function that has realigned its stack: the new stack pointer is this number of words below
    /// the frame pointer.
    pub(super) const fn realigned(words: u32) -> Self {
        Self(REALIGNED | words << REALIGNED_SHIFT)
    }

    /// Returns how many words below the frame pointer the new stack pointer is. Of a function that has realigned
    /// its stack.
    pub const fn realigned_words(self) -> u64 {
        (self.0 >> REALIGNED_SHIFT & REALIGNED_MAX) as u64
    }

    /// Returns where the frame pointer is read, given the old stack pointer and the new one; [`None`] if it
    /// stays. Of a call.
    pub const fn bp_at(self, old: u64, new: u64) -> Option<u64> {
        if self.0 & SAVED == 0 {
            return None;
        }
        match self.plain() {
            Some(plain) => match plain.bp() {
                Some(offset) => Some(old.wrapping_add(offset)),
                None => None,
            },
            None => Some(new.wrapping_add_signed(SAVED_AT as i64 * 8)),
        }
    }

    /// Returns the rule that explains two runs with different frame pointers, or [`UnwindRule::SLOW`].
    pub fn learn(runs: &[LearnRun; 2]) -> Self {
        match (runs[0].step, runs[1].step) {
            (LearnedStep::End, LearnedStep::End) => Self::END,
            (LearnedStep::Registers(one), LearnedStep::Registers(two)) => {
                Self::based(REGISTERS, runs, [one, two]).unwrap_or(Self::SLOW)
            }
            (LearnedStep::Caller { .. }, LearnedStep::Caller { .. }) => {
                Self::call(runs).unwrap_or(Self::SLOW)
            }
            _ => Self::SLOW,
        }
    }

    /// Returns the rule whose new stack pointer was `sp`.
    fn based(kind: u32, runs: &[LearnRun; 2], sp: [u32; 2]) -> Option<Self> {
        let (base, offset) = if let Some(offset) = same(sp, [runs[0].sp, runs[1].sp]) {
            (0, offset)
        } else {
            (BASE_BP, same(sp, [runs[0].bp, runs[1].bp])?)
        };
        Some(Self(kind | base | field(offset)?))
    }

    /// Returns the switch that explains two runs whose stack pointers were words with two addresses; `runs` say
    /// where these lead. Returns [`UnwindRule::SLOW`] if it was none.
    pub fn learn_switch(runs: &[LearnRun; 2]) -> Self {
        Self::switch(runs).unwrap_or(Self::SLOW)
    }

    fn switch(runs: &[LearnRun; 2]) -> Option<Self> {
        let (sp, saved) = callers(runs)?;
        let offset = same(sp, [runs[0].sp, runs[1].sp])?;
        let saved = match saved {
            None => 0,
            Some(at) => Some(-1 - at).filter(|words| (1..=SWITCH_SAVED_MAX).contains(words))?,
        };
        Some(Self(
            SWITCH | field(offset)? | (saved as u32) << SWITCH_SAVED_SHIFT,
        ))
    }

    /// Returns the rule of a function that has realigned its stack, if that explains two runs in which the word so
    /// far below the frame pointer was an address; `runs` say where these lead. Otherwise returns
    /// [`UnwindRule::SLOW`].
    pub fn learn_realigned(words: u32, runs: &[LearnRun; 2]) -> Self {
        let is_explained = runs.iter().all(|run| {
            run.step
                == LearnedStep::Caller {
                    ip: run.sp.wrapping_sub(1),
                    sp: run.sp,
                    bp: Some(run.bp),
                }
        });
        match (1..=REALIGNED_MAX).contains(&words) && is_explained {
            true => Self::realigned(words),
            false => Self::SLOW,
        }
    }

    fn call(runs: &[LearnRun; 2]) -> Option<Self> {
        let (sp, saved) = callers(runs)?;
        if let Some(size) = same(sp, [runs[0].sp, runs[1].sp]) {
            if let Some(plain) = Self::by_size(size, saved) {
                return Some(plain);
            }
        }
        let rule = Self::based(CALL, runs, sp)?;
        match saved {
            None => Some(rule),
            Some(SAVED_AT) => Some(Self(rule.0 | SAVED)),
            Some(_) => None,
        }
    }

    /// Returns a plain rule, if it can be one; `saved` is from the new stack pointer.
    fn by_size(size: i32, saved: Option<i32>) -> Option<Self> {
        let word = field(size).filter(|_| size >= 1)? << OFFSET_BITS;
        let at = match saved {
            None => return Some(Self(word)),
            Some(offset) => size + offset,
        };
        // Not where the return address is.
        (0 <= at && at < size - 1).then_some(Self(word | (at as u32) << OFFSET_SHIFT | SAVED))
    }
}

/// A rule of a call whose offsets are from the old stack pointer.
///
/// # Invariants
///
/// The size is at least one word. The frame pointer, if it is there, was saved below the last of them.
#[derive(Clone, Copy)]
pub struct PlainRule(u32);

impl PlainRule {
    /// Returns how far the stack pointer of the caller is, in bytes.
    pub const fn size(self) -> u64 {
        (self.0 >> SIZE_SHIFT) as u64 * 8
    }

    /// Returns how far the frame pointer of the caller is, in bytes; [`None`] if it stays.
    pub const fn bp(self) -> Option<u64> {
        if self.0 & SAVED == 0 {
            return None;
        }
        Some((self.0 >> OFFSET_SHIFT & ((1 << OFFSET_BITS) - 1)) as u64 * 8)
    }
}

/// Returns the stack pointers of two callers, and how far from each the frame pointer was read; [`None`] if these
/// are no calls, or differ.
fn callers(runs: &[LearnRun; 2]) -> Option<([u32; 2], Option<i32>)> {
    let mut sp = [0; 2];
    let mut bp = [None; 2];
    for (index, run) in runs.iter().enumerate() {
        let LearnedStep::Caller {
            ip,
            sp: new,
            bp: read,
        } = run.step
        else {
            return None;
        };
        if ip.checked_add(1) != Some(new) {
            return None;
        }
        sp[index] = new;
        bp[index] = read;
    }
    let saved = match bp {
        [None, None] => None,
        [Some(one), Some(two)] => Some(same([one, two], sp)?),
        _ => return None,
    };
    Some((sp, saved))
}

/// Returns how far both are from their bases, if equally far.
fn same(at: [u32; 2], base: [u32; 2]) -> Option<i32> {
    let offset = at[0].wrapping_sub(base[0]);
    (offset == at[1].wrapping_sub(base[1])).then_some(offset as i32)
}

/// Returns the bits of an offset, if it fits.
fn field(offset: i32) -> Option<u32> {
    let limit = 1 << (OFFSET_BITS - 1);
    (-limit..limit)
        .contains(&offset)
        .then_some((offset as u32 & ((1 << OFFSET_BITS) - 1)) << OFFSET_SHIFT)
}
