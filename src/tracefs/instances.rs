// SPDX-License-Identifier: GPL-2.0

//! The instances of ftrace whose stacks become ids.
//!
//! An instance that is listed is held: it cannot be removed until it is taken off the list.

use super::{Mount, Slot, TraceArray};
use crate::shim;
use kernel::{bindings, prelude::*, str::CString};

/// An instance that is listed, or about to be.
pub(crate) struct Instance {
    name: KVec<u8>,
    pub(crate) array: TraceArray,
    /// Whether its stacks request user stacks.
    pub(crate) user: bool,
}

impl Instance {
    /// Finds the instance of a name, which is none of the listed ones.
    ///
    /// Errors: EINVAL: the name is empty; ENOENT: there is none of this name; ENOSPC: too many are listed;
    /// EOPNOTSUPP: its buffer is kept over a boot. Context: process.
    pub(crate) fn open(listed: &[Self], name: &[u8]) -> Result<Self> {
        if name.is_empty() {
            return Err(EINVAL);
        }
        // Nothing that would lead out of the directory of instances, or make another string of it.
        if name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return Err(ENOENT);
        }
        let is_free = |slot: &Slot| listed.iter().all(|other| other.array.slot() != *slot);
        let Some(slot) = Slot::of_instances().find(is_free) else {
            pr_warn!(
                "stack_map_instances: instance refused, the limit is {} instances\n",
                listed.len()
            );
            return Err(ENOSPC);
        };
        let tracefs = Mount::new()?;
        let array = tracefs.instance(&path(name, b"")?, slot)?;
        // A buffer that is read after the next boot, when no map knows its ids.
        if tracefs.has(&path(name, b"/last_boot_info")?)? {
            pr_warn!(
                "stack_map_instances: instance refused, its ring buffer persists across boots\n"
            );
            return Err(shim::errno(bindings::EOPNOTSUPP));
        }
        let mut copy = KVec::new();
        copy.extend_from_slice(name, GFP_KERNEL)?;
        Ok(Self {
            name: copy,
            array,
            user: false,
        })
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

/// Returns a path below the directory of an instance, as a string.
fn path(name: &[u8], file: &[u8]) -> Result<CString> {
    let mut path = KVec::new();
    for part in [b"instances/", name, file, b"\0"] {
        path.extend_from_slice(part, GFP_KERNEL)?;
    }
    let path = CStr::from_bytes_with_nul(&path).map_err(|_| ENOENT)?;
    Ok(CString::try_from(path)?)
}
