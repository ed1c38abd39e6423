// SPDX-License-Identifier: GPL-2.0

//! Tasks. Upstream: `rust/kernel/task.rs`.

use crate::{bindings, sync::aref::AlwaysRefCounted, types::Opaque};
use core::ptr::NonNull;

/// A `struct task_struct`.
#[repr(transparent)]
pub struct Task(Opaque<bindings::task_struct>);

// SAFETY: Any task can use a task that it has a reference to.
unsafe impl Send for Task {}
// SAFETY: As above.
unsafe impl Sync for Task {}

impl Task {
    /// Returns the pointer to the C structure.
    pub fn as_ptr(&self) -> *mut bindings::task_struct {
        self.0.get()
    }
}

// SAFETY: The reference count of `struct task_struct` keeps it.
unsafe impl AlwaysRefCounted for Task {
    unsafe fn dec_ref(task: NonNull<Self>) {
        // SAFETY: The caller gives its reference away.
        unsafe { bindings::stackmap_rust_put_task(task.as_ptr().cast()) }
    }
}

/// The running task, as [`current!`](crate::current) returns it.
pub struct CurrentTask(());

impl CurrentTask {
    #[doc(hidden)]
    pub const fn current() -> Self {
        Self(())
    }

    /// Returns whether a signal is pending. Context: process.
    pub fn signal_pending(&self) -> bool {
        // SAFETY: It has no precondition.
        unsafe { bindings::stackmap_rust_signal_pending() }
    }
}

/// Returns the running task. Context: process.
#[macro_export]
macro_rules! current {
    () => {
        $crate::task::CurrentTask::current()
    };
}
