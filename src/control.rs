// SPDX-License-Identifier: GPL-2.0

//! The control path: turning the option on and off, reset, and unload.

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

/// State of the loaded module under one lock. State that is read without a lock is in
/// [`crate::published`] values.
struct Control {
    bits: u32,
    choice: HookChoice,
    /// The hook in use, or the one chosen last while the option is off.
    hook: Hook,
    enabled: bool,
    /// Whether a reset runs.
    resetting: bool,
    /// A random number that identifies this load of the module; never 0, which means unknown in the
    /// binary format.
    load_id: u32,
    /// The top-level trace array; [`None`] only before [`Recorder::begin`].
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

/// While this value exists, the option can be turned on. Dropping it ends recording.
pub(crate) struct Recorder(());

impl Recorder {
    /// Checks that a hook can be installed, and chooses it. Context: process, once.
    pub(crate) fn begin(bits: u32, choice: HookChoice, top: TraceArray) -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { CONTROL.init() };
        let [word] = random();
        let hook = Hook::choose(choice, None)?;
        // SAFETY: `drop` waits until no CPU records.
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
        // A static is never dropped, so free the list here.
        drop(core::mem::replace(
            &mut CONTROL.lock().instances,
            Instances::new(),
        ));
        disable();
        // The kprobe that prevented restoring the text may be removed by now.
        Hook::restore_text();
        if record::map().is_some() {
            // SAFETY: Process context. The hook is removed, so no CPU requests growth or walks a
            // stack.
            unsafe {
                shim::stackmap_growth_stop();
                shim::stackmap_stack_free();
            }
            // The files are removed; only readers of the trace may still use the map.
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

/// A number that identifies this load of the module; never 0.
pub(crate) fn load_id() -> u32 {
    CONTROL.lock().load_id
}

/// The name of the hook in use, or of the one chosen last.
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

/// Allocates the buffers and the map, and installs the hook.
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
    // SAFETY: The buffers and the map are allocated; no hook is installed, and the caller holds the
    // lock.
    unsafe { control.hook.install() }
}

/// Turns the option off, and waits until no CPU records. Context: process.
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

/// Allocates the rules, the frame buffers and the map, as far as they do not exist yet.
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

/// Calls `change` with the list of instances, under the lock. Context: process.
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

/// Removes all stacks and counts. Context: process.
///
/// Errors: EBUSY while tracing is on, at the top level or in a listed instance, or while another
/// reset runs.
pub(crate) fn reset() -> Result {
    let Some(map) = begin_reset()? else {
        return Ok(());
    };
    modules::reset(|| {
        // Pool growth keeps the map busy for one allocation at most.
        while map.reset() == Err(ControlError::Busy) {
            fsleep(Delta::from_millis(1));
        }
        // Under the lock, because turning the option off adds to the missed hits of the kprobe.
        let _control = CONTROL.lock();
        counters::reset();
    });
    CONTROL.lock().resetting = false;
    Ok(())
}

/// Returns the map to reset, if there is one, and refuses other resets until `resetting` is false.
fn begin_reset() -> Result<Option<Arc<Map>>> {
    let mut control = CONTROL.lock();
    if control.resetting || control.tracing_is_on() {
        return Err(EBUSY);
    }
    let map = record::map();
    control.resetting = map.is_some();
    Ok(map)
}
