// SPDX-License-Identifier: GPL-2.0

//! The control path: the option's on and off, reset, and the end.

use crate::{
    counters,
    hook::{Hook, HookChoice},
    map::{ControlError, Map, Seed, BITS_DEFAULT, CONTEXTS_MAX},
    modules, record,
    shim::{self, stackmap_served},
    tracefs::instances,
    unwind,
};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use kernel::{
    bindings,
    error::to_result,
    global_lock,
    prelude::*,
    sync::{Arc, SetOnce},
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

/// The top level, set before the option can go on.
static TOP: SetOnce<TopLevel> = SetOnce::new();

struct TopLevel(stackmap_served);

// SAFETY: The top-level trace array never goes, and any thread may use it.
unsafe impl Send for TopLevel {}
// SAFETY: As above.
unsafe impl Sync for TopLevel {}

/// What tells this load of the module from all others; 0 before it is drawn.
static LOAD_ID: AtomicU32 = AtomicU32::new(0);

/// Whether a reset runs.
static RESETTING: AtomicBool = AtomicBool::new(false);

/// From when the module can record until it cannot any more.
pub(crate) struct Lifetime(());

impl Lifetime {
    /// Checks that a hook can be installed, and chooses it.
    pub(crate) fn begin(bits: u32, choice: HookChoice, top: stackmap_served) -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { CONTROL.init() };
        // Any number but 0, which means that a writer of the binary format has none.
        let [word] = random();
        LOAD_ID.store((word % u64::from(u32::MAX)) as u32 + 1, Ordering::Relaxed);
        let hook = Hook::choose(choice, None)?;
        // SAFETY: Nothing else is served yet.
        to_result(unsafe { shim::stackmap_serve(&top) })?;
        TOP.populate(TopLevel(top));
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
        disable();
        // What has kept the text from being restored may be gone by now.
        Hook::restore_text();
        if record::map().is_some() {
            // SAFETY: Process context. The hook is gone, so nobody asks for growth or walks a stack.
            unsafe {
                shim::stackmap_growth_stop();
                shim::stackmap_stack_free();
            }
            // The files are gone: only the trace may still show stacks.
            record::set_map(None);
        }
        unwind::free();
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
    hook(&mut control).inspect_err(|_| {
        record::set_on(false);
        unwind::free();
    })?;
    control.enabled = true;
    Ok(())
}

/// Allocates what recording needs, and begins it.
fn hook(control: &mut Control) -> Result {
    allocate(control.bits).inspect_err(|_| {
        pr_err!(
            "no memory for a map of {} stacks: the option stays off\n",
            1 << control.bits
        );
    })?;
    if let Some(TopLevel(top)) = TOP.as_ref() {
        // SAFETY: The top level's event is there as long as the module.
        unsafe { shim::stackmap_event_announce(top.file) };
    }
    // The kernel may have changed since the last time, for example by a kprobe of the user.
    control.hook = Hook::choose(control.choice, Some(control.hook))?;
    record::set_on(true);
    // SAFETY: The buffers and the map are there; no hook is installed, and the caller holds the lock.
    unsafe { control.hook.install() }
}

/// Turns the option off, and waits until nobody records. Context: process.
pub(crate) fn disable() {
    let mut control = CONTROL.lock();
    if !control.enabled {
        return;
    }
    // SAFETY: This hook is installed; we hold the lock.
    unsafe { control.hook.remove() };
    control.enabled = false;
    shim::drain();
    record::set_on(false);
    unwind::free();
}

/// Allocates what recording needs and is not there yet.
fn allocate(bits: u32) -> Result {
    const _: () = assert!((bindings::NR_CPUS * shim::STACKMAP_LEVELS) as usize <= CONTEXTS_MAX);
    unwind::allocate()?;
    if record::map().is_some() {
        return Ok(());
    }
    let map = Map::new(bits, shim::contexts(), Seed::new(random())).ok_or(ENOMEM)?;
    let map = Arc::new(map, GFP_KERNEL)?;
    // SAFETY: Process context, once: the caller holds the lock and has seen no map.
    to_result(unsafe { shim::stackmap_stack_alloc(unwind::is_cached(), unwind::verifies()) })?;
    record::set_map(Some(map));
    Ok(())
}

/// Whether the top level or a listed instance records. Context: process.
fn tracing_is_on() -> bool {
    let top = TOP.as_ref().is_some_and(|TopLevel(top)| {
        // SAFETY: The top-level trace array never goes.
        unsafe { shim::stackmap_tracing_is_on(top.tr) }
    });
    top || instances::tracing_is_on()
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
    if tracing_is_on() {
        return Err(EBUSY);
    }
    let Some(map) = record::map() else {
        return Ok(());
    };
    // ORDERING: Acquire; pairs with the Release below: a reset sees what the last one did.
    if RESETTING.swap(true, Ordering::Acquire) {
        return Err(EBUSY);
    }
    modules::reset(|| {
        // Growth holds the map for no longer than one allocation.
        while map.reset() == Err(ControlError::Busy) {
            fsleep(Delta::from_millis(1));
        }
        // Going off adds up what the kprobe missed.
        let _control = CONTROL.lock();
        counters::reset();
    });
    // ORDERING: Release; see above.
    RESETTING.store(false, Ordering::Release);
    Ok(())
}
