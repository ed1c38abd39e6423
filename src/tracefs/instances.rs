// SPDX-License-Identifier: GPL-2.0

//! The instances of ftrace whose stacks become ids, as those of the top level do.
//!
//! An instance that is listed is held: it cannot be removed until it is taken off the list.

use super::{Mount, TraceArray};
use crate::shim;
use kernel::{
    bindings,
    prelude::*,
    str::{BStr, CString},
};

/// A listed instance.
struct Instance {
    name: KVec<u8>,
    array: TraceArray,
}

/// All of them. Their stacks become ids until they are taken off the list, or the list is dropped.
pub(crate) struct Instances(KVec<Instance>);

impl Instances {
    /// None.
    pub(crate) const fn new() -> Self {
        Self(KVec::new())
    }

    /// Adds an instance. ENOENT: there is none of this name; EOPNOTSUPP: its buffer is kept over a
    /// boot; ENOSPC: there are too many. Context: process.
    pub(crate) fn add(&mut self, name: &[u8]) -> Result {
        if name.is_empty() {
            return Err(EINVAL);
        }
        // Nothing that would lead out of the directory of instances, or make another string of it.
        if name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return Err(ENOENT);
        }
        let tracefs = Mount::new()?;
        let array = tracefs.instance(&path(name, b"")?)?;
        if self.0.iter().any(|other| other.array == array) {
            return Ok(());
        }
        // A buffer that is read after the next boot, when no map knows its ids.
        if tracefs.has(&path(name, b"/last_boot_info")?)? {
            pr_warn!(
                "stack_map_instances: instance refused, its ring buffer persists across boots\n"
            );
            return Err(shim::errno(bindings::EOPNOTSUPP));
        }
        let mut copy = KVec::new();
        copy.extend_from_slice(name, GFP_KERNEL)?;
        self.0.reserve(1, GFP_KERNEL)?;
        // SAFETY: What takes it off the list, and drops it, waits as required.
        unsafe { array.serve() }.inspect_err(|_| {
            pr_warn!(
                "stack_map_instances: instance refused, the limit is {} instances\n",
                self.0.len()
            );
        })?;
        array.announce();
        self.0.push(Instance { name: copy, array }, GFP_KERNEL)?;
        Ok(())
    }

    /// Takes an instance off the list. ENOENT: it is not there. Context: process.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Result {
        let index = self.0.iter().position(|instance| instance.name == name);
        let instance = self.0.remove(index.ok_or(ENOENT)?).map_err(|_| ENOENT)?;
        instance.array.unserve();
        drain();
        drop(instance);
        Ok(())
    }

    /// Lets the stacks of all ask for user stacks. The log says for which the kernel cannot.
    pub(crate) fn serve_user(&self) {
        for instance in &self.0 {
            if instance.array.serve_user().is_err() {
                pr_warn!(
                    "stack_map_instances: {}: no user stacks: the kernel serves as many tracers as it can\n",
                    BStr::from_bytes(&instance.name)
                );
            }
        }
    }

    /// The names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|instance| &*instance.name)
    }

    /// Whether one of them records. Context: process.
    pub(crate) fn tracing_is_on(&self) -> bool {
        self.0.iter().any(|instance| instance.array.tracing_is_on())
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.0.iter().for_each(|instance| instance.array.unserve());
            drain();
        }
    }
}

/// Waits until no CPU and no task uses an instance that is no longer served.
fn drain() {
    shim::stackmap_hook_drain();
    // SAFETY: No user stack is requested for such an instance any more.
    unsafe { shim::stackmap_user_cancel(false) };
}

/// A path below the directory of an instance, as a string.
fn path(name: &[u8], file: &[u8]) -> Result<CString> {
    let mut path = KVec::new();
    for part in [b"instances/", name, file, b"\0"] {
        path.extend_from_slice(part, GFP_KERNEL)?;
    }
    let path = CStr::from_bytes_with_nul(&path).map_err(|_| ENOENT)?;
    Ok(CString::try_from(path)?)
}
