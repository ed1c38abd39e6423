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
//!  63            32 31       20 19        8   6    4     3    2   0
//! +----------------+-----------+-----------+----+-----+----+------+
//! |  ip in text    |   size    | bp offset |  0 |saved|  0 |   0  |  plain
//! +----------------+-----------+-----------+----+-----+----+------+
//! |  ip in text    |     0     | sp offset |slow|saved|base| kind |  other
//! +----------------+-----------+-----------+----+-----+----+------+
//! |  ip in text    |     0     | sp offset |    saved at   | kind |  switch
//! +----------------+-----------+-----------+---------------+------+
//! |  ip in text    |     0     |     0     |   sp words    | kind |  realigned
//! +----------------+-----------+-----------+---------------+------+
//! ```
//!
//! All text of an x86-64 kernel is in the highest 2 GiB, so 31 bits of an address name it. Offsets are
//! in words of the stack. Nearly all rules are *plain*: the caller is further up from the stack pointer,
//! and its frame pointer, if it was saved, in between; both offsets are from the old stack pointer, and
//! positive. Of the others, the offset is from the old stack pointer or the frame pointer, and the
//! caller's frame pointer, if it was saved, is where `push %rbp` puts it: the second word below the new
//! stack pointer. A *switch* leads to another stack: the word at the old stack pointer is what the offset is
//! from, and the caller's frame pointer, if it was saved, is one of the words below the return address. A
//! function that has *realigned* its stack has the caller's frame pointer where its own leads, and the new stack
//! pointer in one of the words below.
//! Two CPUs that learn the same address learn the same rule: the table may hold it twice,
//! never differently. No operation waits for another, and none orders anything: the word is all that is
//! shared.

use core::{
    ops::Range,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// Entries that one address may be in: a cache line.
const WAYS: usize = 8;

/// The most sets of a table: so many bits of a hash there are.
const MAX_SETS: usize = 1 << 12;

/// Where text begins, the highest 2 GiB: an entry has how far an address is from here.
const TEXT: u64 = !0 << 31;

/// Where the kind of a rule is in the word, if it is not plain.
pub(super) const KIND: u32 = 7;
/// A call that is not plain: the return address is below the new stack pointer.
const CALL: u32 = 2;
/// An entry from elsewhere: all registers are at the new stack pointer.
const REGISTERS: u32 = 4;
/// No caller.
const END: u32 = 6;
/// A call from another stack, whose stack pointer is the word at the old stack pointer.
const SWITCH: u32 = 1;
/// Where a switch has the caller's frame pointer: so many words further from the new stack pointer than
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
/// Where a rule that is not plain has the caller's frame pointer: so many words from the new stack
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
pub struct Rule(u32);

/// What a rule says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
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
    /// The word.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The rule of a word.
    #[inline(always)]
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

    /// What it says.
    #[inline(always)]
    pub const fn kind(self) -> Kind {
        if self.plain().is_some() {
            return Kind::Call;
        }
        match self.0 & KIND {
            CALL => Kind::Call,
            SWITCH => Kind::Switch,
            REALIGNED => Kind::Realigned,
            REGISTERS => Kind::Registers,
            END => Kind::End,
            _ => Kind::Slow,
        }
    }

    /// The same rule, if it is plain.
    #[inline(always)]
    pub const fn plain(self) -> Option<Plain> {
        if self.0 >> SIZE_SHIFT != 0 {
            Some(Plain(self.0))
        } else {
            None
        }
    }

    /// The new stack pointer, given the old one and the frame pointer. Of a call or registers.
    #[inline(always)]
    pub const fn sp(self, sp: u64, bp: u64) -> u64 {
        if let Some(plain) = self.plain() {
            return sp.wrapping_add(plain.size());
        }
        let base = if self.0 & BASE_BP != 0 { bp } else { sp };
        base.wrapping_add_signed(self.offset())
    }

    /// The offset of the new stack pointer, in bytes. Of a rule that is not plain.
    #[inline(always)]
    const fn offset(self) -> i64 {
        let unused = u32::BITS - OFFSET_BITS;
        let words = (self.0 << (unused - OFFSET_SHIFT)) as i32 >> unused;
        words as i64 * 8
    }

    /// The new stack pointer, given the word at the old one. Of a switch.
    pub const fn switched_sp(self, word: u64) -> u64 {
        word.wrapping_add_signed(self.offset())
    }

    /// Where the frame pointer is read, given the new stack pointer; [`None`] if it stays. Of a switch.
    pub const fn switched_bp(self, sp: u64) -> Option<u64> {
        match self.0 >> SWITCH_SAVED_SHIFT & SWITCH_SAVED_MAX as u32 {
            0 => None,
            words => Some(sp.wrapping_sub((words as u64 + 1) * 8)),
        }
    }

    /// The rule of a function that has realigned its stack: the new stack pointer is so many words below the
    /// frame pointer.
    pub(super) const fn realigned(words: u32) -> Self {
        Self(REALIGNED | words << REALIGNED_SHIFT)
    }

    /// How many words below the frame pointer the new stack pointer is. Of a function that has realigned its
    /// stack.
    #[inline(always)]
    pub const fn realigned_words(self) -> u64 {
        (self.0 >> REALIGNED_SHIFT & REALIGNED_MAX) as u64
    }

    /// Where the frame pointer is read, given the old stack pointer and the new one; [`None`] if it
    /// stays. Of a call.
    #[inline(always)]
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
        Some(Self(kind | base | field(offset)?))
    }

    /// The switch that explains two runs whose stack pointers were words with two addresses; `runs` say
    /// where these lead. [`Rule::SLOW`] if it was none.
    pub fn learn_switch(runs: &[Run; 2]) -> Self {
        Self::switch(runs).unwrap_or(Self::SLOW)
    }

    fn switch(runs: &[Run; 2]) -> Option<Self> {
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

    /// The rule of a function that has realigned its stack, if that explains two runs in which the word so far
    /// below the frame pointer was an address; `runs` say where these lead. Otherwise [`Rule::SLOW`].
    pub fn learn_realigned(words: u32, runs: &[Run; 2]) -> Self {
        let is_explained = runs.iter().all(|run| {
            run.outcome
                == Outcome::Caller {
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

    fn call(runs: &[Run; 2]) -> Option<Self> {
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

    /// A plain rule, if it can be one; `saved` is from the new stack pointer.
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
pub struct Plain(u32);

impl Plain {
    /// How far the stack pointer of the caller is, in bytes.
    #[inline(always)]
    pub const fn size(self) -> u64 {
        (self.0 >> SIZE_SHIFT) as u64 * 8
    }

    /// How far the frame pointer of the caller is, in bytes; [`None`] if it stays.
    #[inline(always)]
    pub const fn bp(self) -> Option<u64> {
        if self.0 & SAVED == 0 {
            return None;
        }
        Some((self.0 >> OFFSET_SHIFT & ((1 << OFFSET_BITS) - 1)) as u64 * 8)
    }
}

/// The stack pointers of two callers, and how far from each the frame pointer was read; [`None`] if these
/// are no calls, or differ.
fn callers(runs: &[Run; 2]) -> Option<([u32; 2], Option<i32>)> {
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
    let saved = match bp {
        [None, None] => None,
        [Some(one), Some(two)] => Some(same([one, two], sp)?),
        _ => return None,
    };
    Some((sp, saved))
}

/// How far both are from their bases, if equally far.
fn same(at: [u32; 2], base: [u32; 2]) -> Option<i32> {
    let offset = at[0].wrapping_sub(base[0]);
    (offset == at[1].wrapping_sub(base[1])).then_some(offset as i32)
}

/// An offset where it is kept, if it can be.
fn field(offset: i32) -> Option<u32> {
    let limit = 1 << (OFFSET_BITS - 1);
    (-limit..limit)
        .contains(&offset)
        .then_some((offset as u32 & ((1 << OFFSET_BITS) - 1)) << OFFSET_SHIFT)
}

/// A cache line of entries, 0 where there is none.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Set([AtomicU64; WAYS]);

/// The memory of a table, from whatever allocator there is.
#[cfg(MODULE)]
pub type Sets = kernel::alloc::KVVec<Set>;
/// The memory of a table, from whatever allocator there is.
#[cfg(not(MODULE))]
pub type Sets = Vec<Set>;

/// The rules that are known.
///
/// # Invariants
///
/// `mask` is one less than the number of entries in `sets`, which is a power of two and does not change.
pub struct Rules {
    sets: Sets,
    mask: usize,
    nr: AtomicU32,
    replaced: AtomicU64,
}

impl Rules {
    /// An empty table in `sets`, whose number is a power of two and at most 4,096. It goes on counting
    /// from `replaced`.
    pub fn new(sets: Sets, replaced: u64) -> Option<Self> {
        let nr = sets.len();
        // INVARIANT: So it is here, and `sets` is never written.
        (nr.is_power_of_two() && nr <= MAX_SETS).then(|| Self {
            sets,
            mask: nr * WAYS - 1,
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

    /// What there is to look up with, for one walk.
    #[inline(always)]
    pub fn table(&self) -> Table<'_> {
        // INVARIANT: It is that of `self`.
        Table {
            sets: &self.sets,
            mask: self.mask,
        }
    }

    /// The rule of the call that returns to `ip`; [`Rule::UNKNOWN`] if it has not been learnt.
    ///
    /// Context: any, NMI included.
    pub fn get(&self, ip: u64) -> Rule {
        self.table().get(ip)
    }

    /// Keeps the rule of an address, in the place of another one if need be.
    ///
    /// Context: any, NMI included.
    pub fn put(&self, ip: u64, rule: Rule) {
        let key = key(ip);
        if ip < TEXT || rule == Rule::UNKNOWN {
            return;
        }
        let table = self.table();
        let first = table.first(key);
        let new = key << 32 | u64::from(rule.0);
        for way in 0..WAYS {
            let entry = table.entry(first, way);
            let old = entry.load(Relaxed);
            if old >> 32 == key && old != 0 {
                return;
            }
            if old == 0 && exchange(entry, 0, new) {
                self.nr.fetch_add(1, Relaxed);
                return;
            }
        }
        // Another CPU may replace the same entry at the same time and win.
        let way = self.replaced.fetch_add(1, Relaxed) as usize;
        let entry = table.entry(first, way);
        let old = entry.load(Relaxed);
        if exchange(entry, old, new) && old == 0 {
            self.nr.fetch_add(1, Relaxed);
        }
    }

    /// Forgets the rules of all addresses in `text`. Returns whether there were any.
    ///
    /// Context: any. A CPU that is just learning a rule may keep it afterwards.
    pub fn forget(&self, text: &Range<u64>) -> bool {
        let mut found = false;
        for entry in self.sets.iter().flat_map(|set| &set.0) {
            let old = entry.load(Relaxed);
            // The address after a call may be the first after the text.
            let ip = TEXT.wrapping_add(old >> 32);
            if old == 0 || ip <= text.start || text.end < ip {
                continue;
            }
            found = true;
            if exchange(entry, old, 0) {
                self.nr.fetch_sub(1, Relaxed);
            }
        }
        found
    }
}

/// What an entry has of an address: how far it is after the beginning of text. Of what is no text, it
/// does not fit.
#[inline(always)]
fn key(ip: u64) -> u64 {
    ip.wrapping_sub(TEXT)
}

/// The entries of a table.
///
/// # Invariants
///
/// `mask` is one less than their number, which is a power of two.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    sets: &'a [Set],
    mask: usize,
}

impl<'a> Table<'a> {
    /// The first entry to look at for a key.
    #[inline(always)]
    fn first(&self, key: u64) -> usize {
        // Fibonacci hashing: the golden ratio in 32 bits, and as many of the highest bits as the largest
        // table needs.
        let hash = (key as u32).wrapping_mul(0x9e37_79b1);
        (hash >> (32 - (MAX_SETS * WAYS).ilog2())) as usize & self.mask
    }

    /// An entry of the cache line that `first` is in: the first one, and those after it, in turn.
    #[inline(always)]
    fn entry(&self, first: usize, way: usize) -> &'a AtomicU64 {
        // SAFETY: By the invariant, no index under the mask is out of range, and only the lowest bits are
        // changed, of which each cache line has all.
        let set = unsafe { self.sets.get_unchecked(first / WAYS) };
        &set.0[first.wrapping_add(way) % WAYS]
    }

    /// The rule of the call that returns to `ip`; [`Rule::UNKNOWN`] if it has not been learnt.
    ///
    /// Context: any, NMI included.
    #[inline(always)]
    pub fn get(&self, ip: u64) -> Rule {
        let key = key(ip);
        let first = self.first(key);
        // SAFETY: By the invariant, there are so many entries; a set is nothing but its entries.
        let entry = unsafe { &*self.sets.as_ptr().cast::<AtomicU64>().add(first) };
        let entry = entry.load(Relaxed);
        // Of what is no text, the key is too large.
        if entry >> 32 == key {
            return Rule(entry as u32);
        }
        self.get_behind(key, first)
    }

    #[cold]
    #[cfg_attr(MODULE, link_section = ".kprobes.text")]
    fn get_behind(&self, key: u64, first: usize) -> Rule {
        for way in 1..WAYS {
            let entry = self.entry(first, way).load(Relaxed);
            if entry >> 32 == key {
                return Rule(entry as u32);
            }
        }
        Rule::UNKNOWN
    }
}

fn exchange(entry: &AtomicU64, old: u64, new: u64) -> bool {
    entry.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
}
