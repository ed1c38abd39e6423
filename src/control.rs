// SPDX-License-Identifier: GPL-2.0

//! The control path: turning the option on and off, reset, and unload.

use crate::{
    counters,
    hook::{Hook, HookChoice},
    map::{MapError, CONTEXTS_MAX},
    modules, record, shim, store,
    tracefs::{instances::Instances, TraceArray},
    unwind, user,
};
use kernel::{
    bindings, current,
    error::to_result,
    global_lock,
    prelude::*,
    time::{delay::fsleep, Delta},
};

/// State of the loaded module under one lock. State that is read without a lock is in
/// [`crate::published`] values.
struct Control {
    bits: u32,
    user_bits: u32,
    choice: HookChoice,
    /// The hook in use, or the one chosen last while the option is off.
    hook: Hook,
    enabled: bool,
    /// Whether user stacks are recorded, too.
    user: bool,
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
        bits: 0,
        user_bits: 0,
        choice: HookChoice::Auto,
        hook: Hook::Kprobe,
        enabled: false,
        user: false,
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
    pub(crate) fn begin(
        bits: u32,
        user_bits: u32,
        choice: HookChoice,
        top: TraceArray,
    ) -> Result<Self> {
        // SAFETY: Called once, by the module's init.
        unsafe { CONTROL.init() };
        let [word] = store::random();
        let hook = Hook::choose(choice, None)?;
        // SAFETY: `drop` waits until no CPU records.
        unsafe { top.serve() }?;
        *CONTROL.lock() = Control {
            bits,
            user_bits,
            choice,
            hook,
            enabled: false,
            user: false,
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
        // SAFETY: The hook is removed and drained, so no stack is walked and no user stack is requested;
        // after the works are cancelled none is delivered, and no growth is requested.
        unsafe {
            shim::stackmap_user_unprobe();
            shim::stackmap_user_cancel(true);
            shim::stackmap_readahead_drain();
            shim::stackmap_growth_stop();
            shim::stackmap_stack_free();
        }
        // No task is on its way out of the text that reads ahead.
        shim::stackmap_hook_drain();
        // The files are gone: only the trace may still show stacks.
        store::KERNEL.free();
        store::USER.free();
        user::free();
        unwind::free();
    }
}

/// Whether user stacks are recorded, too.
pub(crate) fn user_enabled() -> bool {
    CONTROL.lock().user
}

/// Has user stacks recorded, too. EOPNOTSUPP: the kernel has no user unwinder; EBUSY: it serves as many
/// tracers as it can. Context: process.
pub(crate) fn enable_user() -> Result {
    let mut control = CONTROL.lock();
    if control.user {
        return Ok(());
    }
    user::allocate(control.user_bits)?;
    if store::USER.map().is_none() {
        store::USER.make(control.user_bits, shim::stackmap_cpus() as usize)?;
    }
    if let Some(top) = &control.top {
        top.serve_user()?;
    }
    control.instances.serve_user();
    control.user = true;
    control.set_user();
    Ok(())
}

/// Requests no user stacks any more. Those that were requested are still bound. Context: process.
pub(crate) fn disable_user() {
    let mut control = CONTROL.lock();
    control.user = false;
    control.set_user();
}

/// Binds the user stacks that are requested and not delivered, as far as their tasks stay in the kernel.
/// EINTR: a signal is pending; EBUSY: a reset runs. Context: process.
pub(crate) fn settle() -> Result {
    let tasks = {
        let _control = CONTROL.lock();
        user::settle::tasks()?
    };
    for task in &tasks {
        if current!().signal_pending() {
            return Err(EINTR);
        }
        // Others come in between: there may be many tasks.
        let control = CONTROL.lock();
        if control.resetting {
            return Err(EBUSY);
        }
        user::settle::settle(task)?;
    }
    Ok(())
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
    control.set_user();
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
    control.set_user();
    shim::stackmap_hook_drain();
    record::set_on(false);
    unwind::free();
}

/// Allocates the rules, the frame buffers and the map, as far as they do not exist yet.
fn allocate(bits: u32) -> Result {
    const _: () = assert!((bindings::NR_CPUS * shim::STACKMAP_LEVELS) as usize <= CONTEXTS_MAX);
    unwind::allocate()?;
    if store::KERNEL.map().is_some() {
        return Ok(());
    }
    // SAFETY: Process context; nothing is recorded, as the caller holds the lock and has seen no map.
    to_result(unsafe { shim::stackmap_stack_alloc(unwind::is_cached(), unwind::verifies()) })?;
    store::KERNEL
        .make(bits, shim::stackmap_contexts() as usize)
        .inspect_err(|_| {
            // SAFETY: As above.
            unsafe { shim::stackmap_stack_free() };
        })
}

impl Control {
    /// Has user stacks requested while both options are on.
    fn set_user(&self) {
        shim::stackmap_user_set(self.enabled && self.user);
    }

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

/// Adds an instance; see [`Instances::add`].
pub(crate) fn add_instance(name: &[u8]) -> Result {
    let mut control = CONTROL.lock();
    control.instances.add(name)?;
    if control.user {
        control.instances.serve_user();
    }
    Ok(())
}

/// Removes all stacks and counts. Context: process.
///
/// Errors: EBUSY while tracing is on, at the top level or in a listed instance, or while another
/// reset runs.
pub(crate) fn reset() -> Result {
    if !begin_reset()? {
        return Ok(());
    }
    modules::reset(|| {
        // Growth holds the map for no longer than one allocation.
        for map in [store::KERNEL.map(), store::USER.map()].iter().flatten() {
            while map.reset() == Err(MapError::Busy) {
                fsleep(Delta::from_millis(1));
            }
        }
        user::reset();
        // Going off adds up what the kprobe missed.
        let _control = CONTROL.lock();
        counters::reset();
    });
    CONTROL.lock().resetting = false;
    Ok(())
}

/// Returns whether there is a map to reset, and refuses other resets until `resetting` is
/// cleared.
fn begin_reset() -> Result<bool> {
    let mut control = CONTROL.lock();
    if control.resetting || control.tracing_is_on() {
        return Err(EBUSY);
    }
    control.resetting = store::KERNEL.map().is_some() || store::USER.map().is_some();
    Ok(control.resetting)
}
