// SPDX-License-Identifier: GPL-2.0

//! A trace array whose stacks can become ids: the top level, or an instance.

use crate::shim::{self, stackmap_served};
use kernel::{error::to_result, fs::File, prelude::*, sync::aref::ARef};

/// Where the hook finds a trace array that is served.
///
/// # Invariants
///
/// It is below [`shim::STACKMAP_SLOTS`].
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct Slot(u32);

impl Slot {
    /// The top level's.
    pub(crate) const TOP: Self = Self(0);

    /// Returns the slots of instances.
    pub(crate) fn of_instances() -> impl Iterator<Item = Self> {
        // INVARIANT: By the range.
        (1..shim::STACKMAP_SLOTS).map(Self)
    }
}

/// A trace array, which is there as long as the value.
///
/// # Invariants
///
/// `served` was found by `stackmap_tracefs_find()`, and all that it points to stays until `held` is
/// dropped. No other trace array has the slot.
pub(crate) struct TraceArray {
    served: stackmap_served,
    slot: Slot,
    _held: Option<ARef<File>>,
}

// SAFETY: Any thread can use a trace array that is held.
unsafe impl Send for TraceArray {}

impl TraceArray {
    /// # Safety
    ///
    /// As the type invariant says.
    pub(super) unsafe fn new(
        served: stackmap_served,
        slot: Slot,
        file: Option<ARef<File>>,
    ) -> Self {
        // INVARIANT: By the requirement.
        Self {
            served,
            slot,
            _held: file,
        }
    }

    /// Returns the slot.
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// Records its stacks as ids, and has trace files show them although the event is not enabled.
    /// Context: process; callers serialise.
    ///
    /// # Safety
    ///
    /// Before the value is dropped, it is not served any more, `stackmap_hook_drain()` was called
    /// since, and [`TraceArray::cancel_user`] after that.
    pub(crate) unsafe fn serve(&self) {
        // SAFETY: By the type invariant and the requirement.
        unsafe {
            shim::stackmap_event_announce(&self.served);
            shim::stackmap_serve(self.slot.0, &self.served);
        }
    }

    /// Records its stacks as full stacks again, which request no user stacks. Ids may still be recorded
    /// until the next drain. Context: process; callers serialise.
    pub(crate) fn unserve(&self) {
        // SAFETY: By the invariant of the slot.
        unsafe { shim::stackmap_unserve(self.slot.0) };
    }

    /// Makes the kernel deliver user stacks to it. EBUSY: the kernel can serve no more tracers.
    /// Context: process; callers serialise.
    pub(crate) fn begin_user(&self) -> Result {
        // SAFETY: By the invariant of the slot. `user::allocate` has found the kernel's functions.
        to_result(unsafe { shim::stackmap_user_begin(self.slot.0) })
    }

    /// Has its stacks request user stacks, if [`TraceArray::begin_user`] has succeeded, or not any more. What was
    /// requested is still bound. Context: process; callers serialise.
    pub(crate) fn ask_user(&self, on: bool) {
        // SAFETY: By the invariant of the slot.
        unsafe { shim::stackmap_user_ask(self.slot.0, on) };
    }

    /// Frees what [`TraceArray::begin_user`] took. What is requested and not delivered has no user
    /// stack. Context: process; callers serialise.
    ///
    /// # Safety
    ///
    /// It requests no user stacks, and `stackmap_hook_drain()` was called since.
    pub(crate) unsafe fn cancel_user(&self) {
        // SAFETY: By the invariant of the slot and the requirement.
        unsafe { shim::stackmap_user_cancel(self.slot.0) };
    }

    /// Returns whether it records. Context: process.
    pub(crate) fn tracing_is_on(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { shim::stackmap_tracing_is_on(self.served.tr) }
    }
}
