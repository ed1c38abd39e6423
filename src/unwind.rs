// SPDX-License-Identifier: GPL-2.0

//! How stacks are walked: by the kernel's unwinder, or by rules that were learnt from it.
//!
//! The walk itself is `src/shim/unwind_orc.c`. Here is what it knows, and how that is learnt: the
//! kernel's unwinder is run after a call of interest, on a stack whose words tell their own places.
//! `Documentation/design.rst` says why a rule is a function of the address alone.

pub mod rules;

use self::rules::{Outcome, Rule, Rules, Run, Set, Sets};
use crate::shim::{self, stackmap_tried, stackmap_unwound};
use core::{
    ops::Range,
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::{bindings, error::to_result, prelude::*};

/// Cache lines of rules: 32,768 rules in 256 KiB.
const SETS: usize = 4096;

/// As many as the test at load needs.
const TEST_SETS: usize = 64;

/// Where the pointers are on the stack for learning; the frame pointer twice, for two runs.
const SP: u32 = 16;
const BP: [u32; 2] = [400, 440];

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

/// Null while there are no rules.
static RULES: AtomicPtr<Rules> = AtomicPtr::new(core::ptr::null_mut());

/// The frames that the kernel's unwinder was asked for, by reason, as `stack_map_stat` calls them.
pub(crate) const SLOW: [(&str, stackmap_unwound); 6] = [
    ("unwind_slow_new:", shim::stackmap_unwound_STACKMAP_SLOW_NEW),
    (
        "unwind_slow_text:",
        shim::stackmap_unwound_STACKMAP_SLOW_TEXT,
    ),
    ("unwind_slow_odd:", shim::stackmap_unwound_STACKMAP_SLOW_ODD),
    (
        "unwind_slow_regs:",
        shim::stackmap_unwound_STACKMAP_SLOW_REGS,
    ),
    (
        "unwind_slow_return:",
        shim::stackmap_unwound_STACKMAP_SLOW_RETURN,
    ),
    (
        "unwind_slow_stack:",
        shim::stackmap_unwound_STACKMAP_SLOW_STACK,
    ),
];

/// Frames that were found by a rule.
pub(crate) const FAST: stackmap_unwound = shim::stackmap_unwound_STACKMAP_FAST;

/// Whole stacks that the kernel's unwinder walked, where rules are used for others.
pub(crate) const WHOLE: stackmap_unwound = shim::stackmap_unwound_STACKMAP_SLOW_WHOLE;

// The C side follows what the Rust side has learnt.
const _: () = {
    assert!(Rule::CALL == shim::stackmap_rule_bits_STACKMAP_RULE_CALL);
    assert!(Rule::REGISTERS == shim::stackmap_rule_bits_STACKMAP_RULE_REGISTERS);
    assert!(Rule::END.bits() == shim::stackmap_rule_bits_STACKMAP_RULE_END);
    assert!(Rule::SLOW.bits() == shim::stackmap_rule_bits_STACKMAP_RULE_SLOW);
    assert!(rules::BASE_BP == shim::stackmap_rule_bits_STACKMAP_RULE_BASE_BP);
    assert!(rules::BP_AT_SP == shim::stackmap_rule_bits_STACKMAP_RULE_BP_AT_SP);
    assert!(rules::BP_AT_BP == shim::stackmap_rule_bits_STACKMAP_RULE_BP_AT_BP);
    assert!(rules::OFFSET_BITS == shim::stackmap_rule_bits_STACKMAP_RULE_OFFSET);
    assert!(rules::OFFSET_SHIFT == shim::stackmap_rule_bits_STACKMAP_RULE_SHIFT);
    assert!(rules::BP_OFFSET_SHIFT == shim::stackmap_rule_bits_STACKMAP_RULE_BP_SHIFT);
};

/// While it lives, stacks are walked as was chosen; then, by the kernel's unwinder alone.
pub(crate) struct Unwinder(());

impl Unwinder {
    /// Chooses, and says so in the log. Context: process, once, before modules are watched.
    pub(crate) fn begin(choice: UnwindChoice, verify: bool) -> Result<Self> {
        let tested = if choice == UnwindChoice::Kernel {
            Err(None)
        } else {
            test().map_err(Some)
        };
        match (choice, tested) {
            (_, Ok(())) => pr_info!("unwind: cached{}\n", if verify { ", verified" } else { "" }),
            (UnwindChoice::Cached, Err(Some(error))) => {
                pr_err!("unwind=cached: {}\n", refusal(error));
                return Err(error);
            }
            (_, Err(Some(error))) => pr_info!("unwind: kernel ({})\n", refusal(error)),
            _ => pr_info!("unwind: kernel\n"),
        }
        // SAFETY: Nothing is recorded yet.
        unsafe { shim::stackmap_stack_use(tested.is_ok(), verify) };
        Ok(Self(()))
    }
}

impl Drop for Unwinder {
    fn drop(&mut self) {
        // SAFETY: Process context. Who has begun to follow rules is waited for.
        unsafe {
            shim::stackmap_stack_use(false, false);
            bindings::synchronize_rcu();
        }
    }
}

fn refusal(error: Error) -> &'static str {
    match error {
        ENOENT => "this kernel lacks a symbol that it needs",
        ENOMEM => "no memory for its test",
        EINVAL => "its test did not find what the kernel's unwinder finds",
        _ => "this kernel has another unwinder than ORC",
    }
}

/// Whether rules give here what the kernel's unwinder gives.
fn test() -> Result {
    // SAFETY: Process context; symbols are resolved.
    to_result(unsafe { shim::stackmap_unwind_prepare() })?;
    set(TEST_SETS)?;
    // SAFETY: Process context; rules can be kept.
    let tested = to_result(unsafe { shim::stackmap_unwind_self_test() });
    // SAFETY: The test was all that used it.
    unsafe { free() };
    tested
}

/// Makes room for rules, if there is none yet. Context: process; callers serialise.
pub(crate) fn allocate() -> Result {
    // SAFETY: No requirements.
    if unsafe { shim::stackmap_stack_by_rules() } && known().is_none() {
        set(SETS)
    } else {
        Ok(())
    }
}

fn set(nr: usize) -> Result {
    let mut sets = Sets::with_capacity(nr, GFP_KERNEL)?;
    for _ in 0..nr {
        sets.push(Set::default(), GFP_KERNEL)?;
    }
    let rules = KBox::new(Rules::new(sets).ok_or(EINVAL)?, GFP_KERNEL)?;
    // ORDERING: Release; pairs with the load in `known`.
    RULES.store(KBox::into_raw(rules), Ordering::Release);
    Ok(())
}

/// Forgets all rules, and their memory.
///
/// # Safety
///
/// Nobody walks a stack by rules, and no module is watched.
pub(crate) unsafe fn free() {
    let rules = RULES.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !rules.is_null() {
        // SAFETY: `set` made it of a box; by the requirement, nobody else has it.
        drop(unsafe { KBox::from_raw(rules) });
    }
}

#[inline(always)]
fn known() -> Option<&'static Rules> {
    // ORDERING: Acquire; pairs with the store in `set`.
    let rules = RULES.load(Ordering::Acquire);
    // SAFETY: Null or a leaked box, which `free` frees when nobody uses it any more.
    unsafe { rules.as_ref() }
}

/// The number of rules that are known.
pub(crate) fn nr_rules() -> u32 {
    known().map_or(0, Rules::nr)
}

/// The number of rules that had to make room for others.
pub(crate) fn nr_replaced() -> u64 {
    known().map_or(0, Rules::replaced)
}

/// What was counted, over all CPUs.
pub(crate) fn count(how: stackmap_unwound) -> u64 {
    // SAFETY: No requirements.
    unsafe { shim::stackmap_unwound(how) as u64 }
}

/// The number of stacks that were compared with the kernel's, and were the same.
pub(crate) fn nr_verified() -> u64 {
    // SAFETY: No requirements.
    unsafe { shim::stackmap_verified() as u64 }
}

/// The number of stacks that were not, and that the kernel's were taken for.
pub(crate) fn nr_mismatches() -> u64 {
    // SAFETY: No requirements.
    unsafe { shim::stackmap_mismatches() as u64 }
}

/// What the walk does with stacks: `cached` or `kernel`.
pub(crate) fn name() -> &'static str {
    // SAFETY: No requirements.
    if unsafe { shim::stackmap_stack_by_rules() } {
        "cached"
    } else {
        "kernel"
    }
}

/// Forgets the rules of text that comes or goes. Nothing of it runs now. Context: process.
pub(crate) fn forget(text: &Range<u64>) {
    let Some(rules) = known() else {
        return;
    };
    rules.forget(text);
    // Whoever has seen the module alive may have been about to keep a rule.
    // SAFETY: Process context.
    unsafe { bindings::synchronize_rcu() };
    rules.forget(text);
}

/// Context: any, NMI included.
#[no_mangle]
extern "C" fn stackmap_rule(ip: usize) -> u32 {
    known().map_or(0, |rules| rules.get(ip as u64).bits())
}

/// Context: any in which RCU is watching, NMI included; preemption off.
#[no_mangle]
extern "C" fn stackmap_learn(ip: usize) -> u32 {
    // SAFETY: As required of the caller.
    if !unsafe { shim::stackmap_unwind_keeps(ip) } {
        return Rule::UNKNOWN.bits();
    }
    let rule = Rule::learn(&[run(ip, BP[0], true), run(ip, BP[1], false)]);
    if let Some(rules) = known() {
        rules.put(ip as u64, rule);
    }
    rule.bits()
}

/// Has the kernel's unwinder make the step after the call that returns to `ip`.
fn run(ip: usize, bp: u32, signal: bool) -> Run {
    let mut tried = stackmap_tried::default();
    // SAFETY: As required of the caller of `stackmap_learn`; both are words of the stack for learning.
    unsafe { shim::stackmap_unwind_try(ip, SP, bp, signal, &mut tried) };
    Run {
        sp: SP,
        bp,
        outcome: outcome(&tried, bp, signal).unwrap_or(Outcome::Other),
    }
}

fn outcome(tried: &stackmap_tried, bp: u32, signal: bool) -> Option<Outcome> {
    if !tried.next {
        // It has not even looked whether the frame was interrupted.
        return (tried.signal == signal).then_some(Outcome::End);
    }
    if !tried.same_stack {
        return None;
    }
    if tried.some_regs {
        return tried
            .all_regs
            .then(|| word(tried.regs))?
            .map(Outcome::Registers);
    }
    if tried.signal {
        return None;
    }
    let ip = index(tried.ip)?;
    let sp = word(tried.sp)?;
    let bp = if tried.bp == u64::from(bp) * 8 {
        None
    } else {
        Some(index(tried.bp_word)?)
    };
    Some(Outcome::Caller { ip, sp, bp })
}

/// A number of bytes as one of words of the stack for learning.
fn word(bytes: u64) -> Option<u32> {
    if bytes % 8 == 0 {
        index(bytes / 8)
    } else {
        None
    }
}

/// A word of the stack for learning, or the end of it.
fn index(word: u64) -> Option<u32> {
    (word <= u64::from(shim::STACKMAP_LEARN_WORDS)).then_some(word as u32)
}
