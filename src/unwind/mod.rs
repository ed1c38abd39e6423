// SPDX-License-Identifier: GPL-2.0

//! How stacks are walked: by the kernel's unwinder, or by rules that were learnt from it.
//!
//! `walk.rs` is the walk, `step.rs` a step of it, `guided.rs` the walk along a guide, `frames.rs` the walk by
//! frame records, `rules.rs` the table of rules and `hints.rs` what guides have of them. `by_guides.rs` gives
//! the guides of the map, `kernel_unwinder.rs` the kernel, and learns
//! rules. This file chooses how stacks are walked, and compares both walks. `Documentation/design.rst` says
//! why a rule depends only on the address.

mod by_guides;
mod frames;
pub mod guided;
pub mod hints;
mod kernel_unwinder;
pub mod rules;
mod step;
pub mod walk;

pub(crate) use self::by_guides::{expected, expected_behind_tracer, hints, may_guide, Begun};
use self::{
    hints::Hinted,
    kernel_unwinder::{is_stable, KernelUnwinder},
    rules::{Rules, Set, Sets},
    walk::{Stack, WalkCounter},
};
use crate::{
    map::Guide,
    published::Published,
    shim::{self, stackmap_stack, stackmap_text, Frames, Recording, Watched},
};
use core::sync::atomic::{AtomicU64, Ordering};
use kernel::{error::to_result, prelude::*, sync::Arc};

/// Cache lines of rules: 32,768 rules in 256 KiB. On arm64 none is kept.
const SETS: usize = if cfg!(CONFIG_ARM64) { 1 } else { 4096 };

/// As many as the test at load needs.
const TEST_SETS: usize = if cfg!(CONFIG_ARM64) { 1 } else { 64 };

/// Frames left out whose rules are noted; a power of two.
const LEFT_OUT: usize = 4;

/// How often a stack is walked again, both ways, if text that goes may be why they differ: it goes
/// in a few steps.
const ROUNDS: u32 = 3;

/// How the user wants stacks to be walked.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum UnwindChoice {
    /// By rules, if the test at load passes.
    Auto,
    /// By rules or not at all.
    Cached,
    /// By the kernel's unwinder.
    Kernel,
}

/// What a walk by rules needs. There is one as long as the module is loaded, if stacks are to be
/// walked by rules.
struct Walker {
    /// Whether each stack is walked by the kernel's unwinder, too, and compared.
    verify: bool,
    /// By [`Recording::context`].
    notes: KVVec<Notes>,
    /// Nothing while the option is off.
    rules: Published<Rules>,
    /// Rules that made room for others, as the last table that went has counted them.
    replaced: AtomicU64,
}

/// What walks in one context have noted. Only the recorder of this context writes.
#[derive(Default)]
#[repr(align(64))]
struct Notes {
    /// How frames were found, by [`WalkCounter`].
    counts: [AtomicU64; WalkCounter::COUNT],
    /// Where the stack of this CPU for interrupts begins and ends. As long as the kernel runs, that stays.
    irq_stack: [AtomicU64; 2],
    /// The last frames in the kernel's own text that were left out, with their rules, by how many were left.
    left_out: [AtomicU64; LEFT_OUT],
}

/// None while only the kernel's unwinder walks stacks.
static WALKER: Published<Walker> = Published::nothing();

/// Stacks that the kernel's unwinder walked because RCU was not watching.
static UNWATCHED: AtomicU64 = AtomicU64::new(0);

/// Stacks for which both walks gave the same frames.
static VERIFIED: AtomicU64 = AtomicU64::new(0);

/// Stacks for which the walks differed; the kernel's frames were recorded.
static MISMATCHES: AtomicU64 = AtomicU64::new(0);

/// While it lives, stacks are walked as was chosen; then, by the kernel's unwinder alone.
pub(crate) struct Unwinder(());

impl Unwinder {
    /// Chooses, and says so in the log. Context: process, once, before modules are watched.
    pub(crate) fn begin(choice: UnwindChoice, verify: bool) -> Result<Self> {
        // Dropped, and the walker with it, if this fails.
        let unwinder = Self(());
        if choice == UnwindChoice::Kernel {
            pr_info!("unwind: kernel\n");
            return Ok(unwinder);
        }
        match use_rules(verify) {
            Ok(()) => pr_info!("unwind: cached{}\n", if verify { ", verified" } else { "" }),
            Err(error) if choice == UnwindChoice::Cached => {
                pr_err!("unwind=cached: {}\n", refusal(error));
                return Err(error);
            }
            Err(error) => {
                stop();
                pr_info!("unwind: kernel ({})\n", refusal(error));
            }
        }
        Ok(unwinder)
    }
}

impl Drop for Unwinder {
    fn drop(&mut self) {
        stop();
    }
}

fn refusal(error: Error) -> &'static str {
    match error {
        ENOENT => "rules unavailable: this kernel lacks a needed symbol",
        ENOMEM => "rules unavailable: out of memory for the test at load",
        EINVAL => "rules unavailable: the test at load differs from the kernel's unwinder",
        _ => "rules unavailable: the kernel's unwinder is neither ORC nor frame pointers",
    }
}

/// Makes the walker, and tests whether rules give the frames of the kernel's unwinder.
fn use_rules(verify: bool) -> Result {
    to_result(shim::stackmap_unwind_prepare())?;
    let walker = Arc::new(Walker::new(verify)?, GFP_KERNEL)?;
    WALKER.replace(Some(walker.clone()));
    walker.set_rules(TEST_SETS)?;
    let tested = to_result(shim::stackmap_unwind_test());
    walker.drop_rules();
    tested
}

/// Stops walking by rules; only the kernel's unwinder walks stacks. Context: process.
fn stop() {
    free();
    WALKER.replace(None);
}

impl Walker {
    fn new(verify: bool) -> Result<Self> {
        let contexts = shim::contexts();
        let mut notes = KVVec::with_capacity(contexts, GFP_KERNEL)?;
        for _ in 0..contexts {
            notes.push(Notes::default(), GFP_KERNEL)?;
        }
        Ok(Self {
            verify,
            notes,
            rules: Published::nothing(),
            replaced: AtomicU64::new(0),
        })
    }

    /// Makes room for rules. Context: process; callers serialise.
    fn set_rules(&self, nr: usize) -> Result {
        let mut sets = Sets::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            sets.push(Set::default(), GFP_KERNEL)?;
        }
        let before = self.replaced.load(Ordering::Relaxed);
        let rules = Rules::new(sets, before).ok_or(EINVAL)?;
        self.rules.replace(Some(Arc::new(rules, GFP_KERNEL)?));
        Ok(())
    }

    /// Forgets all rules, and their memory. Context: process; callers serialise.
    fn drop_rules(&self) {
        if let Some(rules) = self.rules.get() {
            // Before the table goes, so that what is shown never becomes less; and what came until
            // then.
            self.replaced.store(rules.replaced(), Ordering::Relaxed);
            self.rules.replace(None);
            self.replaced.store(rules.replaced(), Ordering::Relaxed);
        }
    }
}

/// Makes room for rules, if they are used and there is none. Context: process; callers serialise.
pub(crate) fn allocate() -> Result {
    match WALKER.get() {
        Some(walker) if walker.rules.get().is_none() => walker.set_rules(SETS),
        _ => Ok(()),
    }
}

/// Forgets all rules, and their memory. Context: process; callers serialise.
pub(crate) fn free() {
    if let Some(walker) = WALKER.get() {
        walker.drop_rules();
    }
}

fn rules() -> Option<Arc<Rules>> {
    WALKER.get()?.rules.get()
}

/// The number of rules that are known. Context: process.
pub(crate) fn nr_rules() -> u32 {
    rules().map_or(0, |rules| rules.nr())
}

/// The number of rules that had to make room for others. Context: process.
pub(crate) fn nr_replaced() -> u64 {
    let Some(walker) = WALKER.get() else {
        return 0;
    };
    let now = walker.rules.get().map_or(0, |rules| rules.replaced());
    now.max(walker.replaced.load(Ordering::Relaxed))
}

/// The number of frames, or of [`WalkCounter::Whole`] stacks, that were found so. Context: process.
pub(crate) fn count(found: WalkCounter) -> u64 {
    let Some(walker) = WALKER.get() else {
        return 0;
    };
    let of = |notes: &Notes| notes.counts[found as usize].load(Ordering::Relaxed);
    let sum: u64 = walker.notes.iter().map(of).sum();
    match found {
        WalkCounter::Whole => sum + UNWATCHED.load(Ordering::Relaxed),
        _ => sum,
    }
}

/// What the walk does with stacks: `cached` or `kernel`. Context: process.
pub(crate) fn name() -> &'static str {
    if is_cached() {
        "cached"
    } else {
        "kernel"
    }
}

/// Whether stacks are walked by rules where that can be done. Context: process.
pub(crate) fn is_cached() -> bool {
    WALKER.get().is_some()
}

/// Whether each stack is walked by the kernel's unwinder, too. Context: process.
pub(crate) fn verifies() -> bool {
    WALKER.get().is_some_and(|walker| walker.verify)
}

/// Forgets the rules of text that goes. A CPU that saw the module alive may keep one more, until a
/// grace period has passed. Returns whether there were any. Context: process.
pub(crate) fn forget(text: &[stackmap_text]) -> bool {
    let mut found = false;
    if let Some(rules) = rules() {
        for part in text {
            found |= rules.forget(&(part.start..part.end));
        }
    }
    found
}

impl Notes {
    #[inline(always)]
    fn count(&self, found: WalkCounter, nr: u64) {
        let count = &self.counts[found as usize];
        let sum = count.load(Ordering::Relaxed).wrapping_add(nr);
        count.store(sum, Ordering::Relaxed);
    }

    #[inline(always)]
    fn left_out(&self, left: usize) -> Hinted {
        Hinted(self.left_out[left % LEFT_OUT].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn leave_out(&self, left: usize, frame: Hinted) {
        self.left_out[left % LEFT_OUT].store(frame.0, Ordering::Relaxed);
    }

    /// The stack of this CPU for interrupts; nothing until it is known.
    fn irq_stack(&self) -> Stack {
        let [begin, end] = &self.irq_stack;
        // SAFETY: They are those of a stack of this CPU, or 0. The end was written last.
        unsafe { Stack::new(begin.load(Ordering::Relaxed), end.load(Ordering::Relaxed)) }
    }

    fn set_irq_stack(&self, stack: &Stack) {
        let [begin, end] = &self.irq_stack;
        begin.store(stack.begin(), Ordering::Relaxed);
        end.store(stack.end(), Ordering::Relaxed);
    }
}

/// Walks a stack. [`None`]: the kernel's unwinder has to find it, then this is called again.
#[inline(always)]
pub(crate) fn frames(
    recording: &mut Recording<'_>,
    section: Option<&Watched<'_>>,
    begun: Option<Begun>,
) -> Option<Frames> {
    let walker = section.and_then(|section| WALKER.read(section));
    if let (Some(walker), Some(section)) = (walker, section) {
        if let Some(frames) = by_rules(walker, section, recording, begun) {
            mark(recording, frames);
            return match walker.verify {
                true => compared(recording, section, frames),
                false => Some(frames),
            };
        }
    }
    let frames = recording.kernels()?;
    match walker.and_then(|walker| walker.notes.get(recording.context())) {
        Some(notes) => notes.count(WalkCounter::Whole, 1),
        None if section.is_none() => {
            UNWATCHED.fetch_add(1, Ordering::Relaxed);
        }
        None => {}
    }
    mark(recording, frames);
    Some(frames)
}

/// The frames of a guide, where they can be written from.
#[cold]
pub(crate) fn copied(recording: &mut Recording<'_>, guide: &Guide<'_>) -> Frames {
    // SAFETY: The frames that were found before are not used any more.
    let room = unsafe { recording.room() };
    let nr = guide.nr().min(room.len());
    guided::copy(guide, nr, room);
    // SAFETY: So many are written.
    unsafe { recording.filled(nr) }
}

/// Which of two walks of a stack is taken, if each one is compared: the kernel's if they differ. [`None`]: both
/// are made again.
#[cold]
pub(crate) fn compared(
    recording: &mut Recording<'_>,
    section: &Watched<'_>,
    ours: Frames,
) -> Option<Frames> {
    if !WALKER.read(section)?.verify {
        return Some(ours);
    }
    let kernels = recording.kernels()?;
    mark(recording, kernels);
    let (our, their) = (recording.frames(ours), recording.frames(kernels));
    if our == their {
        VERIFIED.fetch_add(1, Ordering::Relaxed);
        return Some(ours);
    }
    let same = our.iter().zip(their).take_while(|(a, b)| a == b).count();
    let longer = if same < our.len() { our } else { their };
    // After a tracer is unregistered, the kernel's unwinder finds no way out of its trampoline, or
    // guesses; tasks may still be inside it. Of frames that are left out, it is not known.
    let left_out = same == 0 && recording.caller().is_some_and(|(_, skip)| skip > 0);
    let is_stable = || longer.iter().take(same + 1).all(|ip| is_stable(*ip));
    if recording.round() < ROUNDS && (left_out || !is_stable()) {
        recording.ask_again();
        return None;
    }
    MISMATCHES.fetch_add(1, Ordering::Relaxed);
    shim::stackmap_mismatch_report(&shim::stackmap_mismatch {
        frame: same as u32,
        nr: our.len() as u32,
        nr_kernel: their.len() as u32,
        ip: our.get(same).copied().unwrap_or(0),
        kernel_ip: their.get(same).copied().unwrap_or(0),
    });
    Some(kernels)
}

/// Stacks for which both walks gave the same frames. Context: any.
pub(crate) fn verified() -> u64 {
    VERIFIED.load(Ordering::Relaxed)
}

/// Stacks for which the walks differed. Context: any.
pub(crate) fn mismatches() -> u64 {
    MISMATCHES.load(Ordering::Relaxed)
}

/// Walks a stack by rules. [`None`]: that cannot be done here.
///
/// To be called where no kprobe can be.
#[inline(always)]
fn by_rules(
    walker: &Walker,
    section: &Watched<'_>,
    recording: &mut Recording<'_>,
    begun: Option<Begun>,
) -> Option<Frames> {
    let mut unwinder = KernelUnwinder::new(walker, section, recording)?;
    let (caller, skip) = recording.caller()?;
    let (frame, skip) = match begun {
        Some(Begun(at, left)) => (unwinder.frame(at), left),
        None => match unwinder.begin(caller) {
            Some(frame) => (frame, skip),
            None => (unwinder.begin_elsewhere(caller)?, skip),
        },
    };
    // SAFETY: The frames that were found before are not used any more.
    let room = unsafe { recording.room() };
    let nr = walk::walk(&mut unwinder, frame, skip, room, recording.known());
    // SAFETY: So many are written.
    (!unwinder.gave_up()).then(|| unsafe { recording.filled(nr) })
}

/// Marks the frames in the trampoline of the trace array's own function tracer, as the kernel does.
#[inline(always)]
fn mark(recording: &mut Recording<'_>, frames: Frames) {
    if recording.wants_tracer() {
        recording.find_tracer(frames);
    }
    let text = recording.trampoline();
    if text.is_empty() {
        return;
    }
    for ip in recording.frames_mut(frames) {
        if text.contains(ip) {
            *ip = u64::from(shim::STACKMAP_TRAMPOLINE_MARKER);
        }
    }
}

/// Walks a stack by rules, for the test at load. Returns the number of frames, or -1 if rules cannot walk it.
///
/// # Safety
///
/// As for [`Recording::new`].
#[no_mangle]
#[link_section = ".kprobes.text"]
unsafe extern "C" fn stackmap_walk(stack: *mut stackmap_stack) -> c_int {
    // SAFETY: As required of the caller.
    let mut recording = unsafe { Recording::new(stack) };
    let frames = recording
        .watched()
        .and_then(|section| by_rules(WALKER.read(&section)?, &section, &mut recording, None));
    frames.map_or(-1, |frames| recording.frames(frames).len() as c_int)
}
