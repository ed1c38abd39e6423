// SPDX-License-Identifier: GPL-2.0

//! The user stacks of tasks that stay in the kernel: bound without waiting for the tasks.

use super::{
    cookie::{Cookie, Known},
    frame::Unreadable,
    process::Sleeper,
    walk, State,
};
use crate::shim;
use core::ptr::NonNull;
use kernel::{bindings, prelude::*, sync::aref::ARef, task::Task};

/// How often a task is tried whose address space is just being changed.
const TRIES: usize = 3;

/// The outcome of settling a task.
enum Outcome {
    /// Its stack is bound.
    Settled,
    /// Its address space is being changed.
    Busy,
    /// It has run meanwhile, or its stack cannot be read or is not kept.
    Lost,
}

/// Returns the tasks that have a user stack requested and not delivered, or the thread `pid` if that is not 0.
/// Context: process; the caller holds the lock of the control path.
pub(crate) fn tasks(pid: i32) -> Result<KVVec<ARef<Task>>> {
    let mut max = 64;
    loop {
        let mut pointers: KVVec<*mut bindings::task_struct> =
            KVVec::with_capacity(max, GFP_KERNEL)?;
        let mut tasks = KVVec::with_capacity(max, GFP_KERNEL)?;
        let list = pointers.as_mut_ptr();
        // SAFETY: `max` pointers can be written.
        let nr = unsafe { shim::stackmap_sleepers(list, max as u32, pid) } as usize;
        // SAFETY: At most `max`, and `nr`, were written.
        unsafe { pointers.inc_len(nr.min(max)) };
        for task in &pointers {
            if let Some(task) = NonNull::new(task.cast::<Task>()) {
                // SAFETY: `stackmap_sleepers()` has taken a reference.
                tasks.push(unsafe { ARef::from_raw(task) }, GFP_KERNEL)?;
            }
        }
        if nr <= max {
            return Ok(tasks);
        }
        max = 2 * nr;
    }
}

/// Binds the user stack of such a task, if it stays in the kernel; with `unasked`, whether or not it is
/// requested. Context: process, may sleep; the caller holds the lock of the control path.
pub(crate) fn settle(task: &Task, unasked: bool) {
    let Some(state) = super::state() else {
        return;
    };
    for _ in 0..TRIES {
        let Some(sleeper) = Sleeper::begin(task, unasked) else {
            break;
        };
        match state.settle(&sleeper) {
            Outcome::Busy => {}
            Outcome::Settled => {
                shim::stackmap_user_count(shim::STACKMAP_USER_SETTLED);
                return;
            }
            Outcome::Lost => break,
        }
    }
    shim::stackmap_user_count(shim::STACKMAP_USER_SETTLE_LOST);
}

impl State {
    fn settle(&self, sleeper: &Sleeper) -> Outcome {
        let cookie = Cookie(sleeper.cookie());
        let process = sleeper.process();
        let id = match self.remembered.get(cookie) {
            // It was delivered to another trace array, or settled before.
            Some(Known::Bound(id)) => id,
            // The stack of another program than that of the request.
            Some(Known::Pending(before)) if process.is_another(before) => return Outcome::Lost,
            // Forgotten. A request is delivered before exec unless a probe could not.
            None if !sleeper.is_unasked() && exec_was_late() => return Outcome::Lost,
            _ => match self.id_of_sleeper(sleeper) {
                // Unless the task has delivered it meanwhile.
                Some(id) => self.remembered.bind(cookie, id),
                None if sleeper.unreadable() == Some(Unreadable::Busy) => return Outcome::Busy,
                None => return Outcome::Lost,
            },
        };
        match id != 0 && sleeper.bind(id) {
            true => Outcome::Settled,
            false => Outcome::Lost,
        }
    }

    /// Returns the id of a task's stack, if all of it could be read and the task has not run meanwhile.
    fn id_of_sleeper(&self, sleeper: &Sleeper) -> Option<u32> {
        let process = sleeper.process();
        let registers = sleeper.registers();
        let valid = || sleeper.unreadable().is_none() && sleeper.stays();
        if registers.word == 8 {
            // Whoever settles does not wait for the files of others.
            return self.id_by_rules(&process, registers, sleeper, false, valid);
        }
        let walk = |ips: &mut [usize]| walk::by_frame_pointers(registers, sleeper, ips);
        self.id_by_pointers(&process, walk, valid)
    }
}

fn exec_was_late() -> bool {
    shim::stackmap_user_counted(shim::STACKMAP_USER_EXEC_LATE) != 0
}
