// SPDX-License-Identifier: GPL-2.0

//! How stacks are walked: by the kernel's unwinder, or by rules that were learnt from it.
//!
//! The walk itself is `src/unwind/orc.c`. Here is what it knows, and how that is learnt: the
//! kernel's unwinder is run after a call of interest, on a stack whose words tell their own places.
//! `Documentation/design.rst` says why a rule is a function of the address alone.

pub mod rules;

use self::rules::{Outcome, Rule, Rules, Run, Set, Sets};
use crate::shim::{self, stackmap_text, stackmap_tried, stackmap_unwound};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use kernel::{bindings, error::to_result, global_lock, prelude::*};

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

global_lock! {
    // SAFETY: Initialised in `Unwinder::begin`, before anything takes it.
    unsafe(uninit) static TABLE: Mutex<()> = ();
}

/// Null while there are no rules. Changed, and used by who does not walk a stack, under `TABLE`.
static RULES: AtomicPtr<Rules> = AtomicPtr::new(core::ptr::null_mut());

/// Rules that made room for others, in tables that are gone.
static REPLACED: AtomicU64 = AtomicU64::new(0);

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
        // SAFETY: Called once, by the module's init.
        unsafe { TABLE.init() };
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

/// Makes room for rules, if they are used and there is none. Context: process; callers serialise.
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
    let _table = TABLE.lock();
    // ORDERING: Release; pairs with the load in `known`.
    RULES.store(KBox::into_raw(rules), Ordering::Release);
    Ok(())
}

/// Forgets all rules, and their memory.
///
/// # Safety
///
/// Nobody walks a stack by rules.
pub(crate) unsafe fn free() {
    let _table = TABLE.lock();
    let rules = RULES.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !rules.is_null() {
        // SAFETY: `set` made it of a box; by the requirement and the lock, nobody else has it.
        let rules = unsafe { KBox::from_raw(rules) };
        REPLACED.fetch_add(rules.replaced(), Ordering::Relaxed);
    }
}

#[inline(always)]
fn known() -> Option<&'static Rules> {
    // ORDERING: Acquire; pairs with the store in `set`.
    let rules = RULES.load(Ordering::Acquire);
    // SAFETY: Null or a leaked box, which `free` frees when nobody uses it any more.
    unsafe { rules.as_ref() }
}

/// The number of rules that are known. Context: process.
pub(crate) fn nr_rules() -> u32 {
    let _table = TABLE.lock();
    known().map_or(0, Rules::nr)
}

/// The number of rules that had to make room for others. Context: process.
pub(crate) fn nr_replaced() -> u64 {
    let _table = TABLE.lock();
    known().map_or(0, Rules::replaced) + REPLACED.load(Ordering::Relaxed)
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

/// Forgets the rules of text that goes. Who has seen the module alive may keep one more, until a grace
/// period has passed. Context: process.
pub(crate) fn forget(text: &[stackmap_text]) {
    let _table = TABLE.lock();
    if let Some(rules) = known() {
        for part in text {
            rules.forget(&(part.start..part.end));
        }
    }
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
