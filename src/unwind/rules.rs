// SPDX-License-Identifier: GPL-2.0

//! The rules of call frames: how one step of a stack walk follows from the address it starts at.
//!
//! Where a function has put its return address, and where the caller's frame pointer, depends on
//! the instruction alone that has made the call: that is what ORC tells, in tables that are
//! searched for each frame. A rule is one entry of such a table, found once by watching the
//! kernel's own unwinder make the step ([`Rule::learn`]), and kept in [`Rules`], a table of fixed
//! size.
//!
//! An entry is one word, so a reader in NMI sees a whole rule or none, also while another CPU
//! writes:
//!
//! ```text
//!  63            32 31       20 19        8 7  6 5  4   3   2   0
//! +----------------+-----------+-----------+----+----+----+------+
//! |  ip, low half  | bp offset | sp offset |  0 | bp |base| kind |
//! +----------------+-----------+-----------+----+----+----+------+
//! ```
//!
//! All text of an x86-64 kernel is in the highest 2 GiB, so half an address names it. Offsets are
//! in words of the stack. Two CPUs that learn the same address learn the same rule: the table may
//! hold it twice, never differently. No operation waits for another, and none orders anything: the
//! word is all that is shared.

use core::{
    ops::Range,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// Entries that one address may be in: a cache line.
const WAYS: usize = 8;

/// Addresses are sign-extended from this bit.
const TEXT: u64 = !0 << 31;

/// Where the kind of a rule is in the word.
const KIND: u32 = 7;
/// A call: the return address is below the new stack pointer.
const CALL: u32 = 1;
/// An entry from elsewhere: all registers are at the new stack pointer.
const REGISTERS: u32 = 2;
/// The new stack pointer is an offset from the frame pointer, not from the old stack pointer.
const BASE_BP: u32 = 1 << 3;
/// The frame pointer is read at an offset from the new stack pointer. Without this and [`BP_AT_BP`]
/// it stays.
const BP_AT_SP: u32 = 1 << 4;
/// The frame pointer is read at an offset from the old one.
const BP_AT_BP: u32 = 2 << 4;
/// Bits of an offset, which has a sign.
pub const OFFSET_BITS: u32 = 12;
/// Where the offset of the new stack pointer is in the word.
const OFFSET_SHIFT: u32 = 8;
/// Where the offset of the frame pointer is.
const BP_OFFSET_SHIFT: u32 = OFFSET_SHIFT + OFFSET_BITS;

/// The step from one frame to its caller's, in a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule(u32);

/// What a rule says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The caller has called: the return address is below the new stack pointer.
    Call,
    /// An entry from elsewhere: all registers are at the new stack pointer.
    Registers,
    /// There is no caller.
    End,
    /// Only the kernel's own unwinder knows how to go on.
    Slow,
}

/// What the kernel's unwinder did on a stack whose words tell where they were read.
///
/// Positions are indices of words on that stack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
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

/// One run of the kernel's unwinder: where the pointers were, and what came of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Run {
    /// The stack pointer.
    pub sp: u32,
    /// The frame pointer.
    pub bp: u32,
    /// What came of it.
    pub outcome: Outcome,
}

impl Rule {
    /// No rule is known. Never in the table.
    pub const UNKNOWN: Self = Self(0);
    /// The walk ends here.
    pub const END: Self = Self(3);
    /// Only the kernel's own unwinder knows how to go on.
    pub const SLOW: Self = Self(4);

    /// What it says.
    #[inline(always)]
    pub const fn kind(self) -> Kind {
        match self.0 & KIND {
            CALL => Kind::Call,
            REGISTERS => Kind::Registers,
            3 => Kind::End,
            _ => Kind::Slow,
        }
    }

    /// The new stack pointer, given the old one and the frame pointer. Of a call or registers.
    #[inline(always)]
    pub const fn sp(self, sp: u64, bp: u64) -> u64 {
        let base = if self.0 & BASE_BP != 0 { bp } else { sp };
        base.wrapping_add_signed(self.bytes(OFFSET_SHIFT))
    }

    /// Where the frame pointer is read, given the new stack pointer and the old frame pointer;
    /// [`None`] if it stays. Of a call.
    #[inline(always)]
    pub const fn bp_at(self, sp: u64, bp: u64) -> Option<u64> {
        let base = match self.0 & (BP_AT_SP | BP_AT_BP) {
            0 => return None,
            BP_AT_SP => sp,
            _ => bp,
        };
        Some(base.wrapping_add_signed(self.bytes(BP_OFFSET_SHIFT)))
    }

    /// An offset, in bytes.
    #[inline(always)]
    const fn bytes(self, shift: u32) -> i64 {
        let unused = 32 - OFFSET_BITS;
        ((self.0 << (unused - shift)) as i32 >> unused) as i64 * 8
    }

    /// The rule that explains two runs with different frame pointers; [`Rule::SLOW`] if none does.
    pub fn learn(runs: &[Run; 2]) -> Self {
        match (runs[0].outcome, runs[1].outcome) {
            (Outcome::End, Outcome::End) => Self::END,
            (Outcome::Registers(one), Outcome::Registers(two)) => {
                Self::based(REGISTERS, runs, [one, two]).unwrap_or(Self::SLOW)
            }
            (Outcome::Caller { .. }, Outcome::Caller { .. }) => {
                Self::call(runs).unwrap_or(Self::SLOW)
            }
            _ => Self::SLOW,
        }
    }

    /// A rule whose new stack pointer was `sp`.
    fn based(kind: u32, runs: &[Run; 2], sp: [u32; 2]) -> Option<Self> {
        let (base, offset) = if let Some(offset) = same(sp, [runs[0].sp, runs[1].sp]) {
            (0, offset)
        } else {
            (BASE_BP, same(sp, [runs[0].bp, runs[1].bp])?)
        };
        Some(Self(kind | base | field(offset)? << OFFSET_SHIFT))
    }

    fn call(runs: &[Run; 2]) -> Option<Self> {
        let mut sp = [0; 2];
        let mut bp = [None; 2];
        for (index, run) in runs.iter().enumerate() {
            let Outcome::Caller {
                ip,
                sp: new,
                bp: read,
            } = run.outcome
            else {
                return None;
            };
            if ip.checked_add(1) != Some(new) {
                return None;
            }
            sp[index] = new;
            bp[index] = read;
        }
        let rule = Self::based(CALL, runs, sp)?;
        let (kind, offset) = match bp {
            [None, None] => (0, 0),
            [Some(one), Some(two)] => match same([one, two], sp) {
                Some(offset) => (BP_AT_SP, offset),
                None => (BP_AT_BP, same([one, two], [runs[0].bp, runs[1].bp])?),
            },
            _ => return None,
        };
        Some(Self(rule.0 | kind | field(offset)? << BP_OFFSET_SHIFT))
    }
}

/// How far both are from their bases, if equally far.
fn same(at: [u32; 2], base: [u32; 2]) -> Option<i32> {
    let offset = at[0].wrapping_sub(base[0]);
    (offset == at[1].wrapping_sub(base[1])).then_some(offset as i32)
}

/// An offset as it is kept, if it can be.
fn field(offset: i32) -> Option<u32> {
    let limit = 1 << (OFFSET_BITS - 1);
    (-limit..limit)
        .contains(&offset)
        .then_some(offset as u32 & ((1 << OFFSET_BITS) - 1))
}

/// A cache line of entries, 0 where there is none.
#[repr(align(64))]
#[derive(Default)]
pub struct Set([AtomicU64; WAYS]);

/// The memory of a table, from whatever allocator there is.
#[cfg(CONFIG_RUST)]
pub type Sets = kernel::alloc::KVVec<Set>;
/// The memory of a table, from whatever allocator there is.
#[cfg(not(CONFIG_RUST))]
pub type Sets = Vec<Set>;

/// The rules that are known.
///
/// # Invariants
///
/// `mask` is one less than the number of `sets`, which is a power of two and does not change.
pub struct Rules {
    sets: Sets,
    mask: usize,
    nr: AtomicU32,
    replaced: AtomicU64,
}

impl Rules {
    /// An empty table in `sets`, whose number is a power of two. It goes on counting from
    /// `replaced`.
    pub fn new(sets: Sets, replaced: u64) -> Option<Self> {
        let nr = sets.len();
        // INVARIANT: So it is here, and `sets` is never written.
        nr.is_power_of_two().then(|| Self {
            sets,
            mask: nr - 1,
            nr: AtomicU32::new(0),
            replaced: AtomicU64::new(replaced),
        })
    }

    /// The number of rules in the table.
    pub fn nr(&self) -> u32 {
        self.nr.load(Relaxed)
    }

    /// The number of rules that had to go to make room for others: the table's pressure.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Relaxed)
    }

    /// The entries in which `ip` may be if it is text, and the one of them to look at first.
    #[inline(always)]
    fn set(&self, ip: u64) -> Option<(&Set, usize)> {
        if ip < TEXT {
            return None;
        }
        // Fibonacci hashing; the golden ratio in 64 bits.
        let hash = ip.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (hash >> 32) as usize & self.mask;
        // SAFETY: By the invariant, no index under the mask is out of range.
        let set = unsafe { self.sets.get_unchecked(index) };
        Some((set, (hash >> 61) as usize))
    }

    /// The rule of the call that returns to `ip`; [`Rule::UNKNOWN`] if it has not been learnt.
    ///
    /// Context: any, NMI included.
    #[inline(always)]
    pub fn get(&self, ip: u64) -> Rule {
        let Some((set, first)) = self.set(ip) else {
            return Rule::UNKNOWN;
        };
        for way in first..first + WAYS {
            let entry = set.0[way % WAYS].load(Relaxed);
            if (entry >> 32) as u32 == ip as u32 {
                return Rule(entry as u32);
            }
        }
        Rule::UNKNOWN
    }

    /// Keeps the rule of an address, in the place of another one if need be.
    ///
    /// Context: any, NMI included.
    pub fn put(&self, ip: u64, rule: Rule) {
        let Some((set, first)) = self.set(ip) else {
            return;
        };
        if rule == Rule::UNKNOWN {
            return;
        }
        let new = ip << 32 | u64::from(rule.0);
        for way in first..first + WAYS {
            let entry = &set.0[way % WAYS];
            let old = entry.load(Relaxed);
            if (old >> 32) as u32 == ip as u32 && old != 0 {
                return;
            }
            if old == 0 && exchange(entry, 0, new) {
                self.nr.fetch_add(1, Relaxed);
                return;
            }
        }
        // Another CPU may replace the same entry at the same time and win.
        let way = self.replaced.fetch_add(1, Relaxed) as usize % WAYS;
        let entry = &set.0[way];
        let old = entry.load(Relaxed);
        if exchange(entry, old, new) && old == 0 {
            self.nr.fetch_add(1, Relaxed);
        }
    }

    /// Forgets the rules of all addresses in `text`.
    ///
    /// Context: any. A CPU that is just learning a rule may keep it afterwards.
    pub fn forget(&self, text: &Range<u64>) {
        for entry in self.sets.iter().flat_map(|set| &set.0) {
            let old = entry.load(Relaxed);
            // The address after a call may be the first behind the text.
            let ip = TEXT | old >> 32;
            if old != 0 && text.start < ip && ip <= text.end && exchange(entry, old, 0) {
                self.nr.fetch_sub(1, Relaxed);
            }
        }
    }
}

fn exchange(entry: &AtomicU64, old: u64, new: u64) -> bool {
    entry.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
}
