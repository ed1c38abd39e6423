// SPDX-License-Identifier: GPL-2.0

//! What walks by rules need as long as the module is loaded: the table of rules, and what is kept for each context.

use super::{
    frame::StackBounds,
    frame_word::FrameWord,
    rules::{RuleLine, RuleLines, UnwindRules},
    unwinder::WalkCounter,
};
use crate::{
    published::Published,
    shim::{self, stackmap_text},
};
use core::sync::atomic::{AtomicU64, Ordering};
use kernel::{error::to_result, prelude::*, sync::Arc};

/// Cache lines of rules: 32,768 rules in 256 KiB. On arm64 none is kept.
const RULE_LINES: usize = if cfg!(CONFIG_ARM64) { 1 } else { 4096 };

/// The cache lines that the test at load needs.
const TEST_LINES: usize = if cfg!(CONFIG_ARM64) { 1 } else { 64 };

/// Skipped frames whose rules are cached; a power of two.
const SKIP_CACHE: usize = 4;

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

/// The rules, and what is kept for each context.
pub(super) struct Walker {
    /// Whether each stack is walked by the kernel's unwinder, too, and compared.
    pub(super) verify: bool,
    /// By [`Recording::context`].
    pub(super) contexts: KVVec<WalkContext>,
    /// None while the option is off.
    pub(super) rules: Published<UnwindRules>,
    /// Rules that others have replaced, as counted by the last table that was freed.
    replaced: AtomicU64,
}

/// What is kept for walks in one context. Only the recorder of this context writes.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct WalkContext {
    /// How frames were found, by [`WalkCounter`].
    counts: [AtomicU64; WalkCounter::COUNT],
    /// Where the stack of this CPU for interrupts begins and ends. That never changes.
    irq_stack: [AtomicU64; 2],
    /// The last frames in the kernel's own text that were skipped, with their rules, by how many were to be skipped.
    skip_cache: [AtomicU64; SKIP_CACHE],
}

/// None while only the kernel's unwinder walks stacks.
pub(super) static WALKER: Published<Walker> = Published::nothing();

/// Stacks that the kernel's unwinder walked because RCU was not watching.
pub(super) static UNWATCHED: AtomicU64 = AtomicU64::new(0);

/// While it exists, stacks are walked as was chosen; then, by the kernel's unwinder alone.
pub(crate) struct UnwindSetup(());

impl UnwindSetup {
    /// Chooses, and logs the choice. Context: process, once, before modules are watched.
    pub(crate) fn begin(choice: UnwindChoice, verify: bool) -> Result<Self> {
        // Dropped, and the walker with it, if this fails.
        let setup = Self(());
        if choice == UnwindChoice::Kernel {
            pr_info!("unwind: kernel\n");
            return Ok(setup);
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
        Ok(setup)
    }
}

impl Drop for UnwindSetup {
    fn drop(&mut self) {
        stop();
    }
}

/// Returns why stacks are not walked by rules.
fn refusal(error: Error) -> &'static str {
    match error {
        ENOENT => "rules unavailable: this kernel lacks a needed symbol",
        ENOMEM => "rules unavailable: out of memory for the test at load",
        EINVAL => "rules unavailable: the test at load differs from the kernel's unwinder",
        _ => "rules unavailable: the kernel's unwinder is neither ORC nor frame pointers",
    }
}

/// Makes the walker, and tests whether rules find the frames of the kernel's unwinder. Errors: see [`refusal`].
fn use_rules(verify: bool) -> Result {
    to_result(shim::stackmap_unwind_prepare())?;
    let walker = Arc::new(Walker::new(verify)?, GFP_KERNEL)?;
    WALKER.replace(Some(walker.clone()));
    walker.set_rules(TEST_LINES)?;
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
        let nr = shim::contexts();
        let mut contexts = KVVec::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            contexts.push(WalkContext::default(), GFP_KERNEL)?;
        }
        Ok(Self {
            verify,
            contexts,
            rules: Published::nothing(),
            replaced: AtomicU64::new(0),
        })
    }

    /// Allocates a table for rules. Context: process; callers serialise.
    fn set_rules(&self, nr: usize) -> Result {
        let mut lines = RuleLines::with_capacity(nr, GFP_KERNEL)?;
        for _ in 0..nr {
            lines.push(RuleLine::default(), GFP_KERNEL)?;
        }
        let before = self.replaced.load(Ordering::Relaxed);
        let rules = UnwindRules::new(lines, before).ok_or(EINVAL)?;
        self.rules.replace(Some(Arc::new(rules, GFP_KERNEL)?));
        Ok(())
    }

    /// Frees the table of rules. Context: process; callers serialise.
    fn drop_rules(&self) {
        if let Some(rules) = self.rules.get() {
            // Before the table is freed, so that the count never decreases; and again, as it may have grown until
            // then.
            self.replaced.store(rules.replaced(), Ordering::Relaxed);
            self.rules.replace(None);
            self.replaced.store(rules.replaced(), Ordering::Relaxed);
        }
    }
}

/// Allocates a table for rules, if they are used and there is none. Errors: ENOMEM. Context: process; callers serialise.
pub(crate) fn allocate() -> Result {
    match WALKER.get() {
        Some(walker) if walker.rules.get().is_none() => walker.set_rules(RULE_LINES),
        _ => Ok(()),
    }
}

/// Frees the table of rules. Context: process; callers serialise.
pub(crate) fn free() {
    if let Some(walker) = WALKER.get() {
        walker.drop_rules();
    }
}

fn rules() -> Option<Arc<UnwindRules>> {
    WALKER.get()?.rules.get()
}

/// Returns the number of rules that are known. Context: process.
pub(crate) fn nr_rules() -> u32 {
    rules().map_or(0, |rules| rules.nr())
}

/// Returns the number of rules that others have replaced. Context: process.
pub(crate) fn nr_replaced() -> u64 {
    let Some(walker) = WALKER.get() else {
        return 0;
    };
    let now = walker.rules.get().map_or(0, |rules| rules.replaced());
    now.max(walker.replaced.load(Ordering::Relaxed))
}

/// Returns the number of frames, or of [`WalkCounter::Whole`] stacks, that were found so. Context: process.
pub(crate) fn count(found: WalkCounter) -> u64 {
    let Some(walker) = WALKER.get() else {
        return 0;
    };
    let of = |context: &WalkContext| context.counts[found as usize].load(Ordering::Relaxed);
    let sum: u64 = walker.contexts.iter().map(of).sum();
    match found {
        WalkCounter::Whole => sum + UNWATCHED.load(Ordering::Relaxed),
        _ => sum,
    }
}

/// Returns how stacks are walked: `cached` or `kernel`. Context: process.
pub(crate) fn name() -> &'static str {
    if is_cached() {
        "cached"
    } else {
        "kernel"
    }
}

/// Returns whether stacks are walked by rules where that can be done. Context: process.
pub(crate) fn is_cached() -> bool {
    WALKER.get().is_some()
}

/// Returns whether each stack is walked by the kernel's unwinder, too. Context: process.
pub(crate) fn verifies() -> bool {
    WALKER.get().is_some_and(|walker| walker.verify)
}

/// Removes the rules of text that goes. A CPU that saw the module alive may store one more, until a
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

impl WalkContext {
    /// Counts frames or stacks.
    #[inline(always)]
    pub(super) fn count(&self, found: WalkCounter, nr: u64) {
        let count = &self.counts[found as usize];
        let sum = count.load(Ordering::Relaxed).wrapping_add(nr);
        count.store(sum, Ordering::Relaxed);
    }

    /// Returns the last frame that was skipped when this number was to be skipped, with its rule.
    #[inline(always)]
    pub(super) fn skipped(&self, to_skip: usize) -> FrameWord {
        FrameWord(self.skip_cache[to_skip % SKIP_CACHE].load(Ordering::Relaxed))
    }

    /// Stores such a frame.
    #[inline(always)]
    pub(super) fn set_skipped(&self, to_skip: usize, frame: FrameWord) {
        self.skip_cache[to_skip % SKIP_CACHE].store(frame.0, Ordering::Relaxed);
    }

    /// Returns the stack of this CPU for interrupts, an empty one until it is known.
    pub(super) fn irq_stack(&self) -> StackBounds {
        let [begin, end] = &self.irq_stack;
        // SAFETY: They are those of a stack of this CPU, or 0. The end was written last.
        unsafe { StackBounds::new(begin.load(Ordering::Relaxed), end.load(Ordering::Relaxed)) }
    }

    /// Stores the stack of this CPU for interrupts.
    pub(super) fn set_irq_stack(&self, stack: &StackBounds) {
        let [begin, end] = &self.irq_stack;
        begin.store(stack.begin(), Ordering::Relaxed);
        end.store(stack.end(), Ordering::Relaxed);
    }
}
