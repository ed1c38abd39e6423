// SPDX-License-Identifier: GPL-2.0

//! The control path: turning the option on and off, reset, and unload.

use crate::{
    counters,
    hook::{Hook, HookChoice},
    map::{MapError, CONTEXTS_MAX},
    modules, record, shim, store,
    tracefs::{instances::Instance, TraceArray},
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
    /// The hook in use, or the one chosen last.
    hook: Hook,
    /// Whether it is installed: something records ids.
    hooked: bool,
    /// Returns whether the top level records ids.
    enabled: bool,
    /// Whether the top level records user stacks, too, while it records ids.
    user: bool,
    /// Whether a reset runs.
    resetting: bool,
    /// A random number that identifies this load of the module; never 0, which means unknown in the
    /// binary format.
    load_id: u32,
    /// The top-level trace array; [`None`] only before [`Recorder::begin`].
    top: Option<TraceArray>,
    /// The instances that record ids.
    instances: KVec<Instance>,
}

global_lock! {
    // SAFETY: Initialised in `Recorder::begin`, before anything takes it.
    unsafe(uninit) static CONTROL: Mutex<Control> = Control {
        bits: 0,
        user_bits: 0,
        choice: HookChoice::Auto,
        hook: Hook::Kprobe,
        hooked: false,
        enabled: false,
        user: false,
        resetting: false,
        load_id: 0,
        top: None,
        instances: KVec::new(),
    };
}

/// While this value exists, ids can be recorded. Dropping it ends recording.
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
        let mut control = CONTROL.lock();
        (control.bits, control.user_bits) = (bits, user_bits);
        (control.choice, control.hook) = (choice, hook);
        control.load_id = (word % u64::from(u32::MAX)) as u32 + 1;
        control.top = Some(top);
        Ok(Self(()))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut control = CONTROL.lock();
        // A static is never dropped, so free the list here.
        let instances = core::mem::take(&mut control.instances);
        instances
            .iter()
            .for_each(|instance| instance.array.unserve());
        control.unserve_top();
        if control.hooked {
            control.drain();
        }
        // The kprobe that prevented restoring the text may be removed by now.
        Hook::restore_text();
        // SAFETY: The hook is removed and drained, so no stack is walked and no user stack is requested;
        // after the works are cancelled none is delivered, and no growth is requested.
        unsafe {
            shim::stackmap_user_unprobe();
            let listed = instances.iter().map(|instance| &instance.array);
            Iterator::chain(listed, &control.top).for_each(|array| array.cancel_user());
            shim::stackmap_user_end();
            shim::stackmap_readahead_drain();
            shim::stackmap_growth_stop();
            shim::stackmap_stack_free();
        }
        drop(instances);
        // No task is on its way out of the text that reads ahead.
        shim::stackmap_hook_drain();
        // The files are gone: only the trace may still show stacks.
        store::KERNEL.free();
        store::USER.free();
        user::free();
        unwind::free();
    }
}

/// Returns whether the top level records user stacks, too.
pub(crate) fn user_enabled() -> bool {
    CONTROL.lock().user
}

/// Has the top level record user stacks, too, or request none any more: those that were requested are still
/// bound. EOPNOTSUPP: the kernel lacks what user stacks need; EBUSY: the deferral has no free bit.
/// Context: process.
pub(crate) fn set_user(on: bool) -> Result {
    let mut control = CONTROL.lock();
    if !on {
        control.user = false;
        if let Some(top) = &control.top {
            top.ask_user(false);
        }
        control.end_user();
        return Ok(());
    }
    if let (Some(top), false) = (&control.top, control.user) {
        control.begin_user(top)?;
        top.ask_user(control.enabled);
    }
    control.user = true;
    Ok(())
}

/// Binds the user stacks that are requested and not delivered, as far as their tasks stay in the kernel; or, if
/// `pid` is not 0, the user stack of this thread, requested or not. EINTR: a signal is pending; EBUSY: a reset
/// runs; ESRCH: there is no such thread, or it is the current one. Context: process.
pub(crate) fn settle(pid: i32) -> Result {
    let tasks = {
        let _control = CONTROL.lock();
        user::settle::tasks(pid)?
    };
    if pid != 0 && tasks.is_empty() {
        return Err(ESRCH);
    }
    for task in &tasks {
        if current!().signal_pending() {
            return Err(EINTR);
        }
        // Others come in between: there may be many tasks.
        let control = CONTROL.lock();
        if control.resetting {
            return Err(EBUSY);
        }
        user::settle::settle(task, pid != 0);
    }
    Ok(())
}

/// Returns whether the top level records ids.
pub(crate) fn enabled() -> bool {
    CONTROL.lock().enabled
}

/// Returns the `bits` that the module was loaded with.
pub(crate) fn bits() -> u32 {
    CONTROL.lock().bits
}

/// Returns a number that identifies this load of the module; never 0.
pub(crate) fn load_id() -> u32 {
    CONTROL.lock().load_id
}

/// Returns the name of the hook in use, or of the one chosen last.
pub(crate) fn hook_name() -> &'static str {
    CONTROL.lock().hook.name()
}

/// Has the top level record ids; or full stacks again, and waits until no CPU records ids there.
/// Context: process.
pub(crate) fn set_enabled(on: bool) -> Result {
    let mut control = CONTROL.lock();
    if on == control.enabled {
        return Ok(());
    }
    if !on {
        control.unserve_top();
        control.drain();
        return Ok(());
    }
    control.hook()?;
    control.enabled = true;
    if let Some(top) = &control.top {
        // SAFETY: `set_enabled` ends it and waits, and `Recorder` cancels.
        unsafe { top.serve() };
        top.ask_user(control.user);
    }
    Ok(())
}

/// Lists an instance, with user stacks or without, or changes that of one that is listed. User stacks
/// that were requested before are still bound.
///
/// Errors: those of [`Instance::open`]; those of [`Control::begin_user`], if `user`; ENOMEM; if it would
/// be the first to record ids, those of the hook. Nothing has changed then. Context: process.
pub(crate) fn add_instance(name: &[u8], user: bool) -> Result {
    let mut control = CONTROL.lock();
    if let Some(index) = control.index(name) {
        let listed = &control.instances[index];
        if user {
            control.begin_user(&listed.array)?;
        }
        listed.array.ask_user(user);
        control.instances[index].user = user;
        control.end_user();
        return Ok(());
    }
    let mut instance = Instance::open(&control.instances, name)?;
    control.instances.reserve(1, GFP_KERNEL)?;
    if user {
        control.begin_user(&instance.array)?;
    }
    control.hook().inspect_err(|_| {
        // SAFETY: It was not served.
        unsafe { instance.array.cancel_user() };
        control.end_user();
    })?;
    // SAFETY: `remove_instance` and `Recorder` end it, wait, and cancel, before they drop it.
    unsafe { instance.array.serve() };
    instance.array.ask_user(user);
    instance.user = user;
    Ok(control.instances.push(instance, GFP_KERNEL)?)
}

/// Takes an instance off the list, and waits until no CPU records ids there and no user stack is bound.
/// ENOENT: it is not listed. Context: process.
pub(crate) fn remove_instance(name: &[u8]) -> Result {
    let mut control = CONTROL.lock();
    let index = control.index(name).ok_or(ENOENT)?;
    let instance = control.instances.remove(index).map_err(|_| ENOENT)?;
    instance.array.unserve();
    control.drain();
    // SAFETY: Just waited.
    unsafe { instance.array.cancel_user() };
    control.end_user();
    Ok(())
}

/// Has `show` see each listed instance. Context: process.
pub(crate) fn instances(show: impl FnMut(&Instance)) {
    CONTROL.lock().instances.iter().for_each(show);
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
    store::KERNEL.make(bits, shim::contexts()).inspect_err(|_| {
        // SAFETY: As above.
        unsafe { shim::stackmap_stack_free() };
    })
}

impl Control {
    /// Allocates the buffers and the map, and installs the hook, unless it is installed. ENOMEM: no
    /// memory for them, or why there is no hook.
    fn hook(&mut self) -> Result {
        if self.hooked {
            return Ok(());
        }
        self.install().inspect_err(|_| {
            record::set_on(false);
            unwind::free();
        })?;
        self.hooked = true;
        Ok(())
    }

    fn install(&mut self) -> Result {
        allocate(self.bits).inspect_err(|_| {
            pr_err!(
                "out of memory for a map of {} stacks; no ids are recorded\n",
                1 << self.bits
            );
        })?;
        // The kernel may have changed since the last time, for example by a kprobe of the user.
        self.hook = Hook::choose(self.choice, Some(self.hook))?;
        record::set_on(true);
        // SAFETY: The buffers and the map are allocated; no hook is installed, and the caller holds the
        // lock.
        unsafe { self.hook.install() }
    }

    /// Waits until no CPU uses a trace array that is no longer served. Removes the hook if none is.
    fn drain(&mut self) {
        let unhook = self.hooked && !self.enabled && self.instances.is_empty();
        if unhook {
            self.hook.remove();
            self.hooked = false;
        }
        shim::stackmap_hook_drain();
        if unhook {
            record::set_on(false);
            unwind::free();
        }
    }

    /// Has the top level record full stacks again; ids may still be recorded until the next drain.
    fn unserve_top(&mut self) {
        self.enabled = false;
        if let Some(top) = &self.top {
            top.unserve();
        }
    }

    /// Returns the index of a listed instance.
    fn index(&self, name: &[u8]) -> Option<usize> {
        self.instances
            .iter()
            .position(|instance| instance.name() == name)
    }

    /// Prepares the user stacks of a trace array.
    ///
    /// Errors: EOPNOTSUPP: the kernel lacks what user stacks need; ENOMEM; EBUSY: the deferral has no free bit.
    /// Trace arrays that have stopped requesting lose theirs before that, and what is pending for them.
    fn begin_user(&self, array: &TraceArray) -> Result {
        user::allocate(self.user_bits)?;
        if store::USER.map().is_none() {
            store::USER.make(self.user_bits, shim::stackmap_cpus() as usize)?;
        }
        match array.begin_user() {
            Err(EBUSY) => {}
            done => return done.inspect_err(|_| self.end_user()),
        }
        shim::stackmap_hook_drain();
        let instances = self.instances.iter().filter(|instance| !instance.user);
        let top = self.top.iter().filter(|_| !self.user);
        for idle in Iterator::chain(instances.map(|instance| &instance.array), top) {
            // SAFETY: It requests none, and has not since the wait above.
            unsafe { idle.cancel_user() };
        }
        array.begin_user().inspect_err(|_| self.end_user())
    }

    /// Stops watching exec and exit, if no trace array has user stacks. While a task with a pending request is
    /// inside exec for longer than 10 ms, this is left to the next change.
    fn end_user(&self) {
        if self.user || self.instances.iter().any(|instance| instance.user) {
            return;
        }
        for _ in 0..10 {
            if shim::stackmap_user_unprobe_idle() {
                return;
            }
            fsleep(Delta::from_millis(1));
        }
    }

    /// Returns whether a trace array that records ids has tracing on.
    fn tracing_is_on(&self) -> bool {
        let top = self.top.as_ref().is_some_and(TraceArray::tracing_is_on);
        let listed = |instance: &Instance| instance.array.tracing_is_on();
        (self.enabled && top) || self.instances.iter().any(listed)
    }
}

/// Removes all stacks and counts. Context: process.
///
/// Errors: EBUSY while a trace array that records ids has tracing on, or while another reset runs.
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
