// SPDX-License-Identifier: GPL-2.0

//! A trace array whose stacks can become ids: the top level, or an instance.

use crate::shim::{self, stackmap_served};
use kernel::{error::to_result, fs::File, prelude::*, sync::aref::ARef};

/// A trace array, which is there as long as the value.
///
/// # Invariants
///
/// `served` was found by `stackmap_tracefs_find()`, and all that it points to stays until `held` is
/// dropped.
pub(crate) struct TraceArray {
    served: stackmap_served,
    _held: Option<ARef<File>>,
}

// SAFETY: Any thread can use a trace array that is held.
unsafe impl Send for TraceArray {}

impl TraceArray {
    /// # Safety
    ///
    /// As the type invariant says.
    pub(super) unsafe fn new(served: stackmap_served, held: Option<ARef<File>>) -> Self {
        // INVARIANT: By the requirement.
        Self {
            served,
            _held: held,
        }
    }

    /// Records its stacks as ids. ENOSPC: there are too many trace arrays. Context: process.
    ///
    /// # Safety
    ///
    /// Before the value is dropped, it is not served any more, and `stackmap_hook_drain()` was
    /// called.
    pub(crate) unsafe fn serve(&self) -> Result {
        // SAFETY: By the type invariant and the requirement.
        to_result(unsafe { shim::stackmap_serve(&self.served) })
    }

    /// Records its stacks as full stacks again. Ids may still be recorded until the next drain.
    /// Context: process.
    pub(crate) fn unserve(&self) {
        shim::stackmap_unserve(self.served.tr);
    }

    /// Lets its stacks ask for user stacks. EBUSY: the kernel can serve no more tracers.
    /// Context: process.
    pub(crate) fn serve_user(&self) -> Result {
        // SAFETY: By the type invariant; callers of `serve` serialise.
        to_result(unsafe { shim::stackmap_user_serve(self.served.tr) })
    }

    /// Has trace files of this trace array show ids, although the event is not enabled.
    /// Context: process.
    pub(crate) fn announce(&self) {
        // SAFETY: By the type invariant.
        unsafe { shim::stackmap_event_announce(&self.served) };
    }

    /// Whether it records. Context: process.
    pub(crate) fn tracing_is_on(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { shim::stackmap_tracing_is_on(self.served.tr) }
    }
}

impl PartialEq for TraceArray {
    fn eq(&self, other: &Self) -> bool {
        self.served.tr == other.served.tr
    }
}
