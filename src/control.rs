// SPDX-License-Identifier: GPL-2.0

//! The control path: the option's on and off, reset, and the end.

use crate::{
    hook::{Hook, HookChoice},
    instances,
    map::{ControlError, Map, Seed, BITS_DEFAULT, CONTEXTS_MAX},
    record,
    shim::{self, stackmap_layout},
    symbols, unwind,
};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use kernel::{
    bindings,
    error::{from_err_ptr, to_result},
    global_lock, pr_warn_once,
    prelude::*,
    time::{delay::fsleep, Delta},
};

struct Control {
    bits: u32,
    choice: HookChoice,
    /// The hook that is, or was last, or will be used.
    hook: Hook,
    enabled: bool,
}

global_lock! {
    // SAFETY: Initialised in `Lifetime::begin`, before anything takes it.
    unsafe(uninit) static CONTROL: Mutex<Control> = Control {
        bits: BITS_DEFAULT,
        choice: HookChoice::Auto,
        hook: Hook::Kprobe,
        enabled: false,
    };
}

/// What tells this load of the module from all others; 0 before it is drawn.
static LOAD_ID: AtomicU32 = AtomicU32::new(0);

/// Whether a reset runs.
static RESETTING: AtomicBool = AtomicBool::new(false);

/// From when the module can record until it cannot any more.
pub(crate) struct Lifetime(());

impl Lifetime {
    /// Checks that a hook can be installed, and chooses it.
    pub(crate) fn begin(bits: u32, layout: stackmap_layout, choice: HookChoice) -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { CONTROL.init() };
        record::set_layout(layout);
        // Any number but 0, which means that a writer of the binary format has none.
        let [word] = random();
        LOAD_ID.store((word % u64::from(u32::MAX)) as u32 + 1, Ordering::Relaxed);
        // SAFETY: No requirements.
        if unsafe { shim::stackmap_event_type() } == 0 {
            pr_err!("the kernel did not register ftrace:stack_id\n");
            return Err(EINVAL);
        }
        let hook = Hook::choose(choice, None)?;
        *CONTROL.lock() = Control {
            bits,
            choice,
            hook,
            enabled: false,
        };
        Ok(Self(()))
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        let mut warned = false;
        while disable().is_err() {
            if !warned {
                pr_warn!("unloading waits until the kprobe on __ftrace_trace_stack is gone\n");
                warned = true;
            }
            fsleep(Delta::from_millis(100));
        }
        if record::map().is_some() {
            // SAFETY: The files are gone, and so is the hook.
            unsafe { Self::end() };
        }
        // SAFETY: No hook leads to a walk, and modules are not watched any more.
        unsafe { unwind::free() };
    }
}

impl Lifetime {
    /// Frees what recording needed.
    ///
    /// # Safety
    ///
    /// There is a map. The files are gone, no hook is installed, and nobody installs one.
    unsafe fn end() {
        // SAFETY: Process context. The hook is gone, and after the drain nobody asks for growth.
        unsafe {
            shim::stackmap_hook_drain();
            shim::stackmap_growth_stop();
            shim::stackmap_stack_free();
        }
        // SAFETY: The files are gone, nobody records and no worker runs: only the trace is shown.
        unsafe { record::free_map() };
    }
}

/// Whether the option is on.
pub(crate) fn enabled() -> bool {
    CONTROL.lock().enabled
}

/// The `bits` that the module was loaded with.
pub(crate) fn bits() -> u32 {
    CONTROL.lock().bits
}

/// A number that tells this load of the module from others; never 0.
pub(crate) fn load_id() -> u32 {
    LOAD_ID.load(Ordering::Relaxed)
}

/// The name of the hook in use, or that will be used.
pub(crate) fn hook_name() -> &'static str {
    CONTROL.lock().hook.name()
}

/// Turns the option on. Context: process.
pub(crate) fn enable() -> Result {
    let mut control = CONTROL.lock();
    if control.enabled {
        return Ok(());
    }
    if record::map().is_none() {
        allocate(control.bits).inspect_err(|_| {
            pr_err!(
                "no memory for a map of {} stacks: the option stays off\n",
                1 << control.bits
            );
        })?;
    }
    let format = c"events/ftrace/stack_id/format".as_char_ptr();
    // SAFETY: tracefs is mounted as long as files of ours exist, and the path is a string.
    let event = from_err_ptr(unsafe { shim::stackmap_event_announce(format) })?;
    // SAFETY: No hook is installed, and we hold the lock.
    unsafe { shim::stackmap_serve_top(event) };
    // The kernel may have changed since the last time, for example by a kprobe of the user.
    control.hook = Hook::choose(control.choice, Some(control.hook))?;
    // SAFETY: The buffers and the map are there; no hook is installed, and we hold the lock.
    unsafe { control.hook.install() }?;
    control.enabled = true;
    Ok(())
}

/// Turns the option off. Context: process.
pub(crate) fn disable() -> Result {
    let mut control = CONTROL.lock();
    if !control.enabled {
        return Ok(());
    }
    // SAFETY: This hook is installed; we hold the lock.
    unsafe { control.hook.remove() }.inspect_err(|_| {
        pr_warn_once!("there is a kprobe on __ftrace_trace_stack: remove it first\n");
    })?;
    control.enabled = false;
    Ok(())
}

/// Allocates all that recording needs.
fn allocate(bits: u32) -> Result {
    const _: () = assert!((bindings::NR_CPUS * shim::STACKMAP_LEVELS) as usize <= CONTEXTS_MAX);
    // SAFETY: No requirements.
    let contexts = unsafe { shim::stackmap_contexts() } as usize;
    let map = Map::new(bits, contexts, Seed::new(random())).ok_or(ENOMEM)?;
    let map = KBox::new(map, GFP_KERNEL)?;
    unwind::allocate()?;
    // SAFETY: Process context, once: the caller holds the lock and has seen no map.
    to_result(unsafe { shim::stackmap_stack_alloc() })?;
    record::set_map(map);
    Ok(())
}

/// Random words.
fn random<const N: usize>() -> [u64; N] {
    let mut words = [0_u64; N];
    // SAFETY: The buffer may be written for its whole length.
    unsafe { bindings::get_random_bytes(words.as_mut_ptr().cast(), size_of_val(&words)) };
    words
}

/// Clears the map. EBUSY while tracing is on, at the top level or in a listed instance, or another reset runs. Context: process.
pub(crate) fn reset() -> Result {
    if instances::tracing_is_on() {
        return Err(EBUSY);
    }
    let Some(map) = record::map() else {
        return Ok(());
    };
    // ORDERING: Acquire; pairs with the Release below: a reset sees what the last one did.
    if RESETTING.swap(true, Ordering::Acquire) {
        return Err(EBUSY);
    }
    // Growth holds the map for no longer than one allocation.
    while map.reset() == Err(ControlError::Busy) {
        fsleep(Delta::from_millis(1));
    }
    symbols::forget();
    // ORDERING: Release; see above.
    RESETTING.store(false, Ordering::Release);
    Ok(())
}
