// SPDX-License-Identifier: GPL-2.0

//! The control path: the option's on and off, reset, and the end.

use crate::{
    counters,
    hook::{Hook, HookChoice},
    map::{ControlError, Map, Seed, BITS_DEFAULT, CONTEXTS_MAX},
    modules, record, shim,
    tracefs::{instances::Instances, TraceArray},
    unwind,
};
use kernel::{
    bindings,
    error::to_result,
    global_lock,
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta},
};

/// All that the module has while it is loaded, but what is found without a lock: see
/// [`crate::published`].
struct Control {
    bits: u32,
    choice: HookChoice,
    /// The hook that is, or was last, or will be used.
    hook: Hook,
    enabled: bool,
    /// Whether a reset runs.
    resetting: bool,
    /// What tells this load of the module from all others; never 0, which means that a writer of
    /// the binary format has none.
    load_id: u32,
    /// The top-level trace array: there while the module can record.
    top: Option<TraceArray>,
    instances: Instances,
}

global_lock! {
    // SAFETY: Initialised in `Recorder::begin`, before anything takes it.
    unsafe(uninit) static CONTROL: Mutex<Control> = Control {
        bits: BITS_DEFAULT,
        choice: HookChoice::Auto,
        hook: Hook::Kprobe,
        enabled: false,
        resetting: false,
        load_id: 0,
        top: None,
        instances: Instances::new(),
    };
}

/// From when the module can record until it cannot any more.
pub(crate) struct Recorder(());

impl Recorder {
    /// Checks that a hook can be installed, and chooses it. Context: process, once.
    pub(crate) fn begin(bits: u32, choice: HookChoice, top: TraceArray) -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { CONTROL.init() };
        let [word] = random();
        let hook = Hook::choose(choice, None)?;
        // SAFETY: `drop` waits until nobody records.
        unsafe { top.serve() }?;
        *CONTROL.lock() = Control {
            bits,
            choice,
            hook,
            enabled: false,
            resetting: false,
            load_id: (word % u64::from(u32::MAX)) as u32 + 1,
            top: Some(top),
            instances: Instances::new(),
        };
        Ok(Self(()))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Nobody drops a static: the memory of the list goes here.
        drop(core::mem::replace(
            &mut CONTROL.lock().instances,
            Instances::new(),
        ));
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
    CONTROL.lock().load_id
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
            "out of memory for a map of {} stacks; options/stackmap stays 0\n",
            1 << control.bits
        );
    })?;
    if let Some(top) = &control.top {
        top.announce();
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
    shim::stackmap_hook_drain();
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
    let map = Map::new(
        bits,
        shim::stackmap_contexts() as usize,
        Seed::new(random()),
    )
    .ok_or(ENOMEM)?;
    let map = Arc::new(map, GFP_KERNEL)?;
    // SAFETY: Process context, once: the caller holds the lock and has seen no map.
    to_result(unsafe { shim::stackmap_stack_alloc(unwind::is_cached(), unwind::verifies()) })?;
    record::set_map(Some(map));
    Ok(())
}

impl Control {
    /// Whether the top level or a listed instance records.
    fn tracing_is_on(&self) -> bool {
        let top = self.top.as_ref().is_some_and(TraceArray::tracing_is_on);
        top || self.instances.tracing_is_on()
    }
}

/// Has `change` see or change the list of instances. Context: process.
pub(crate) fn instances<R>(change: impl FnOnce(&mut Instances) -> R) -> R {
    change(&mut CONTROL.lock().instances)
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
    let Some(map) = begin_reset()? else {
        return Ok(());
    };
    modules::reset(|| {
        // Growth holds the map for no longer than one allocation.
        while map.reset() == Err(ControlError::Busy) {
            fsleep(Delta::from_millis(1));
        }
        // Going off adds up what the kprobe missed.
        let _control = CONTROL.lock();
        counters::reset();
    });
    CONTROL.lock().resetting = false;
    Ok(())
}

/// What is to be reset. Another reset is refused until the control says that this one has ended.
fn begin_reset() -> Result<Option<Arc<Map>>> {
    let mut control = CONTROL.lock();
    if control.resetting || control.tracing_is_on() {
        return Err(EBUSY);
    }
    let map = record::map();
    control.resetting = map.is_some();
    Ok(map)
}
