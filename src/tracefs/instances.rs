// SPDX-License-Identifier: GPL-2.0

//! The instances of ftrace whose stacks become ids, as those of the top level do.
//!
//! An instance that is listed is held: it cannot be removed until it is taken off the list.

use crate::shim;
use kernel::{
    bindings,
    error::{from_err_ptr, to_result},
    global_lock,
    prelude::*,
};

/// A listed instance.
///
/// # Invariants
///
/// `file` is from `stackmap_instance_get()`, which found `served`; so long, both are there.
struct Instance {
    name: KVec<u8>,
    file: *mut bindings::file,
    served: shim::stackmap_served,
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
        let path = path(name, b"")?;
        let mut copy = KVec::new();
        copy.extend_from_slice(name, GFP_KERNEL)?;
        let mut served = shim::stackmap_served::default();
        // SAFETY: A string that is the path of one directory; `served` may be written.
        let file = from_err_ptr(unsafe {
            shim::stackmap_instance_get(path.as_ptr().cast(), &mut served)
        })?;
        // INVARIANT: Just got.
        Ok(Self {
            name: copy,
            file,
            served,
        })
    }

    /// Whether its buffer is to be read after the next boot, when no map knows its ids.
    fn outlives_the_kernel(&self) -> Result<bool> {
        let path = path(&self.name, b"/last_boot_info")?;
        // SAFETY: tracefs is mounted, and the path is a string.
        match unsafe { shim::stackmap_tracefs_exists(path.as_ptr().cast()) } {
            0 => Ok(false),
            1 => Ok(true),
            errno => Err(Error::from_errno(errno)),
        }
    }

    /// Records its stacks as ids. ENOSPC: there are too many instances.
    fn serve(&self) -> Result {
        // SAFETY: By the type invariant its event is there; callers hold the lock.
        unsafe {
            to_result(shim::stackmap_serve(&self.served))?;
            shim::stackmap_event_announce(self.served.file);
        }
        Ok(())
    }

    /// Records its stacks as full stacks again. Who records one as an id may be at it until the next
    /// drain.
    fn unserve(&self) {
        // SAFETY: Callers hold the lock.
        unsafe { shim::stackmap_unserve(self.served.tr) };
    }

    fn tracing_is_on(&self) -> bool {
        // SAFETY: By the type invariant the trace array is there.
        unsafe { shim::stackmap_tracing_is_on(self.served.tr) }
    }
}

/// A path below the directory of an instance, as a string.
fn path(name: &[u8], file: &[u8]) -> Result<KVec<u8>> {
    let mut path = KVec::new();
    for part in [b"instances/", name, file, b"\0"] {
        path.extend_from_slice(part, GFP_KERNEL)?;
    }
    Ok(path)
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
            listed.iter().for_each(Instance::unserve);
            shim::drain();
        }
        // Nobody drops a static: its memory goes here, that of an empty list too.
        *listed = KVec::new();
    }
}

/// Adds an instance. ENOENT: there is none of this name; EOPNOTSUPP: its buffer is kept over a boot;
/// ENOSPC: there are too many. Context: process.
pub(crate) fn add(name: &[u8]) -> Result {
    let mut listed = LISTED.lock();
    let instance = Instance::find(name)?;
    if listed
        .iter()
        .any(|other| other.served.tr == instance.served.tr)
    {
        return Ok(());
    }
    if instance.outlives_the_kernel()? {
        pr_warn!("stack_map_instances: a buffer that is kept over a boot records full stacks\n");
        return Err(shim::errno(bindings::EOPNOTSUPP));
    }
    listed.reserve(1, GFP_KERNEL)?;
    instance.serve().inspect_err(|_| {
        pr_warn!(
            "stack_map_instances: no more than {} instances\n",
            listed.len()
        );
    })?;
    listed.push(instance, GFP_KERNEL)?;
    Ok(())
}

/// Takes an instance off the list. ENOENT: it is not there. Context: process.
pub(crate) fn remove(name: &[u8]) -> Result {
    let mut listed = LISTED.lock();
    let index = listed.iter().position(|instance| instance.name == name);
    let instance = listed.remove(index.ok_or(ENOENT)?).map_err(|_| ENOENT)?;
    instance.unserve();
    shim::drain();
    drop(instance);
    Ok(())
}

/// Shows the names one by one. Context: process.
pub(crate) fn each(mut show: impl FnMut(&[u8])) {
    for instance in LISTED.lock().iter() {
        show(&instance.name);
    }
}

/// Whether a listed instance records. Context: process.
pub(crate) fn tracing_is_on() -> bool {
    LISTED.lock().iter().any(Instance::tracing_is_on)
}
