// SPDX-License-Identifier: GPL-2.0

//! The instances of ftrace whose stacks become ids, as those of the top level do.
//!
//! An instance that is listed is held: it cannot be removed until it is taken off the list.

use crate::shim;
use core::ptr::null_mut;
use kernel::{bindings, error::from_err_ptr, global_lock, prelude::*};

/// A listed instance.
///
/// # Invariants
///
/// `file` is from `stackmap_instance_get()`, which found `tr` under `name`; `name` ends with a NUL.
struct Instance {
    name: KVec<u8>,
    file: *mut bindings::file,
    tr: *mut shim::trace_array,
    /// Its `ftrace:stack_id`; null before it is announced.
    event: *mut shim::trace_event_file,
}

// SAFETY: A file and a trace array that are held can be used by any thread.
unsafe impl Send for Instance {}

impl Instance {
    /// Finds an instance by its name.
    fn find(name: &[u8]) -> Result<Self> {
        if name.is_empty() {
            return Err(EINVAL);
        }
        // Nothing that would lead out of the directory of instances, or make another string of it.
        if name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return Err(ENOENT);
        }
        let mut string = KVec::with_capacity(name.len() + 1, GFP_KERNEL)?;
        string.extend_from_slice(name, GFP_KERNEL)?;
        string.push(0, GFP_KERNEL)?;
        let path = string.as_ptr().cast();
        let mut tr = null_mut();
        // SAFETY: A string that is the name of one file; `tr` may be written.
        let file = from_err_ptr(unsafe { shim::stackmap_instance_get(path, &mut tr) })?;
        // INVARIANT: Just got.
        Ok(Self {
            name: string,
            file,
            tr,
            event: null_mut(),
        })
    }

    fn name(&self) -> &[u8] {
        self.name.strip_suffix(b"\0").unwrap_or(&self.name)
    }

    /// Whether its buffer is to be read after the next boot, when no map knows its ids.
    fn outlives_the_kernel(&self) -> Result<bool> {
        let file = c"last_boot_info".as_char_ptr();
        // SAFETY: By the type invariant the name is a string.
        match unsafe { shim::stackmap_instance_has(self.name.as_ptr().cast(), file) } {
            0 => Ok(false),
            1 => Ok(true),
            errno => Err(Error::from_errno(errno)),
        }
    }

    /// Prepares its buffer for ids.
    fn announce(&mut self) -> Result {
        let name = self.name.as_ptr().cast();
        // SAFETY: By the type invariant the name is a string.
        self.event = from_err_ptr(unsafe { shim::stackmap_instance_announce(name) })?;
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { shim::stackmap_instance_put(self.file) };
    }
}

global_lock! {
    // SAFETY: Initialised in `List::begin`, before anything takes it.
    unsafe(uninit) static LISTED: Mutex<KVec<Instance>> = KVec::new();
}

/// The list, from when it is used until it is dropped.
pub(crate) struct List(());

impl List {
    /// Begins with an empty one. Context: process, once.
    pub(crate) fn begin() -> Self {
        // SAFETY: Called once, by the module's init.
        unsafe { LISTED.init() };
        Self(())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let mut listed = LISTED.lock();
        if !listed.is_empty() {
            serve(&[]);
            drain();
        }
        // Nobody drops a static: its memory goes here, that of an empty list too.
        *listed = KVec::new();
    }
}

/// Adds an instance. ENOENT: there is none of this name; EOPNOTSUPP: its buffer is kept over a boot;
/// ENOSPC: there are too many. Context: process.
pub(crate) fn add(name: &[u8]) -> Result {
    let mut listed = LISTED.lock();
    let mut instance = Instance::find(name)?;
    if listed.iter().any(|other| other.tr == instance.tr) {
        return Ok(());
    }
    if listed.len() == shim::STACKMAP_INSTANCES as usize {
        pr_warn!(
            "stack_map_instances: no more than {} instances\n",
            listed.len()
        );
        return Err(ENOSPC);
    }
    if instance.outlives_the_kernel()? {
        pr_warn!("stack_map_instances: a buffer that is kept over a boot records full stacks\n");
        return Err(shim::errno(bindings::EOPNOTSUPP));
    }
    instance.announce()?;
    listed.push(instance, GFP_KERNEL)?;
    serve(&listed);
    Ok(())
}

/// Takes an instance off the list. ENOENT: it is not there. Context: process.
pub(crate) fn remove(name: &[u8]) -> Result {
    let mut listed = LISTED.lock();
    let index = listed.iter().position(|instance| instance.name() == name);
    let instance = listed.remove(index.ok_or(ENOENT)?).map_err(|_| ENOENT)?;
    serve(&listed);
    drain();
    drop(instance);
    Ok(())
}

/// Shows the names one by one. Context: process.
pub(crate) fn each(mut show: impl FnMut(&[u8])) {
    for instance in LISTED.lock().iter() {
        show(instance.name());
    }
}

/// Whether the top level or a listed instance records. Context: process.
pub(crate) fn tracing_is_on() -> bool {
    // SAFETY: Null is the top level.
    let is_on = |tr| unsafe { shim::stackmap_tracing_is_on(tr) };
    is_on(null_mut()) || LISTED.lock().iter().any(|instance| is_on(instance.tr))
}

/// Says whose stacks become ids. The caller holds the lock.
fn serve(listed: &[Instance]) {
    let mut served = [shim::stackmap_served::default(); shim::STACKMAP_INSTANCES as usize];
    for (served, instance) in served.iter_mut().zip(listed) {
        (served.tr, served.file) = (instance.tr, instance.event);
    }
    // SAFETY: There are so many, all announced; the lock serialises.
    unsafe { shim::stackmap_serve(served.as_ptr(), listed.len() as u32) };
}

/// Waits until nobody records for an instance that is not served any more. Context: process.
fn drain() {
    // SAFETY: Process context.
    unsafe { shim::stackmap_hook_drain() };
}
