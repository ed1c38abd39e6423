// SPDX-License-Identifier: GPL-2.0

//! Which hook makes the kernel call us: what the user wants, and what this kernel can take.

use crate::shim;
use kernel::{error::to_result, pr_info_once, prelude::*};

/// How the user wants the kernel to be hooked.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum HookChoice {
    /// The jump where it fits, else the kprobe.
    Auto,
    /// The jump or nothing.
    Jump,
    /// The kprobe.
    Kprobe,
}

/// How the kernel is hooked.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Hook {
    /// A jump in the padding before the function.
    Jump,
    /// A kprobe.
    Kprobe,
}

impl Hook {
    /// Picks the hook that `choice` allows and this kernel can take now. Says so in the log if it
    /// is another one than `last`.
    pub(crate) fn choose(choice: HookChoice, last: Option<Hook>) -> Result<Self> {
        let (hook, why) = if choice == HookChoice::Kprobe {
            (Hook::Kprobe, None)
        } else {
            match to_result(shim::stackmap_jump_check()) {
                Ok(()) => (Hook::Jump, None),
                Err(error) if choice == HookChoice::Jump => {
                    pr_err!("hook=jump: {}\n", refusal(error));
                    return Err(error);
                }
                Err(error) => (Hook::Kprobe, Some(refusal(error))),
            }
        };
        if last != Some(hook) {
            match why {
                Some(why) => pr_info!("hook: {} ({})\n", hook.name(), why),
                None => pr_info!("hook: {}\n", hook.name()),
            }
        }
        Ok(hook)
    }

    /// Returns the name that users give it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Hook::Jump => "jump",
            Hook::Kprobe => "kprobe",
        }
    }

    const fn raw(self) -> shim::stackmap_hook {
        match self {
            Hook::Jump => shim::STACKMAP_HOOK_JUMP,
            Hook::Kprobe => shim::STACKMAP_HOOK_KPROBE,
        }
    }

    /// Hooks.
    ///
    /// # Safety
    ///
    /// All that recording needs is there; no hook is installed, and the caller keeps others from
    /// installing one.
    pub(crate) unsafe fn install(self) -> Result {
        // SAFETY: As required of the caller.
        to_result(unsafe { shim::stackmap_hook_install(self.raw()) })
            .inspect_err(|error| pr_err!("hook: {} failed ({})\n", self.name(), error.to_errno()))
    }

    /// Unhooks. Context: process; callers serialise.
    pub(crate) fn remove(self) {
        if shim::stackmap_hook_remove(self.raw()) != 0 {
            pr_info_once!(
                "hook: the jump stays: a kprobe is on the entry of __ftrace_trace_stack; \
                 the jump now bypasses the module\n"
            );
        }
    }

    /// Restores the text where a kprobe kept [`Hook::remove`] from it, in this load or an earlier
    /// one. No hook is installed.
    pub(crate) fn restore_text() {
        // Where the text is as it was, this does nothing.
        shim::stackmap_hook_remove(Hook::Jump.raw());
    }
}

fn refusal(error: Error) -> &'static str {
    match error {
        ENOENT => "jump unavailable: this kernel lacks a needed symbol",
        ERANGE => "jump unavailable: the module is too far from the kernel's text",
        EBUSY => "jump unavailable: a kprobe is on __ftrace_trace_stack or where the jump would be",
        ENOSPC => "jump unavailable: other code is where the jump would be",
        _ => "jump unavailable: unexpected code at __ftrace_trace_stack",
    }
}
