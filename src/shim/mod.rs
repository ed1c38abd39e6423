// SPDX-License-Identifier: GPL-2.0

//! The C side as Rust sees it: the bindings made by bindgen, and safe wrappers for the hot path.
//!
//! C header: [`include/stackmap_shim.h`](../../include/stackmap_shim.h)

use crate::published::Section;
use core::{
    marker::PhantomData,
    ops::{Deref, Range},
    sync::atomic::AtomicU64,
};
use kernel::{error::from_err_ptr, prelude::*, types::NotThreadSafe};

/// What bindgen made of the header.
#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub
)]
mod generated {
    use kernel::{
        bindings::{dentry, file, file_operations, mm_struct, module, task_struct, umode_t},
        ffi,
    };

    include!(env!("STACKMAP_BINDINGS"));
}

pub(crate) use generated::*;

// SAFETY: A C structure of integers and arrays of them.
unsafe impl Zeroable for stackmap_binary {}

/// What bindgen made of [`include/stackmap_sizes.h`](../../include/stackmap_sizes.h).
#[allow(non_camel_case_types, unreachable_pub)]
mod sizes {
    use kernel::ffi;

    include!(env!("STACKMAP_SIZES"));
}

pub(crate) use sizes::*;

/// Returns an errno of `kernel::bindings` as an error, where the kernel crate has no name for it.
pub(crate) fn errno(code: u32) -> Error {
    Error::from_errno(-(code as c_int))
}

/// Wraps C functions without preconditions that follow no pointers except references.
macro_rules! safe {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {$(
        pub(crate) fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: It has no precondition; references are valid, and pointers are not followed.
            unsafe { generated::$name($($arg),*) }
        }
    )*};
}

safe! {
    stackmap_symbols_resolve() -> c_int;
    stackmap_prototypes_check() -> c_int;
    stackmap_event_type() -> c_int;
    stackmap_seq_ip(seq: &mut trace_seq, ip: usize, flags: usize);
    stackmap_seq_form(seq: &mut trace_seq, flags: usize) -> c_uint;
    stackmap_seq_full(seq: &mut trace_seq) -> bool;
    stackmap_mismatch_report(found: &stackmap_mismatch);
    stackmap_tracefs_allowed() -> c_int;
    stackmap_tracefs_drain();
    stackmap_tracefs_enter() -> bool;
    stackmap_modules_unwatch();
    stackmap_unwind_prepare() -> c_int;
    stackmap_unwind_test() -> c_int;
    stackmap_jump_check() -> c_int;
    stackmap_hook_drain();
    stackmap_hook_remove(hook: stackmap_hook) -> c_int;
    stackmap_hook_missed() -> c_ulong;
    stackmap_stack_nested() -> c_ulong;
    stackmap_user_resolve() -> c_int;
    stackmap_user_unprobe_idle() -> bool;
    stackmap_user_count(counter: stackmap_user_counter);
    stackmap_user_add(counter: stackmap_user_counter, nr: usize);
    stackmap_instruction_length(code: &stackmap_code) -> c_uint;
    stackmap_user_counted(counter: stackmap_user_counter) -> c_ulong;
    stackmap_process_current(process: &mut stackmap_process);
    stackmap_user_registers(registers: &mut stackmap_registers);
    stackmap_this_cpu() -> c_uint;
    stackmap_preempt_disable();
    stackmap_cpus() -> c_uint;
}

/// Returns the number of contexts, one for each level of each possible CPU number: [`WalkInput::context`] is below it.
pub(crate) fn contexts() -> usize {
    (stackmap_cpus() * STACKMAP_LEVELS) as usize
}

/// What a walk knows of the stack that is recorded, for the time `'h` in which we run inside the hook.
///
/// # Invariants
///
/// `stack` is as the C side has made it: its pointers are valid, `ips` and `kernel` have [`STACKMAP_MAX_FRAMES`] words,
/// all of them initialised, and the first `nr` of `ips` and `nr_kernel` of `kernel` are frames.
/// Preemption is off, and `stackmap_hook_drain()` waits for the end of `'h`.
pub(crate) struct WalkInput<'h> {
    stack: &'h mut stackmap_stack,
    _here: NotThreadSafe,
}

/// A stack that is being recorded: what is known of it, and buffers for its frames.
pub(crate) struct Recording<'h> {
    input: WalkInput<'h>,
}

impl<'h> Deref for Recording<'h> {
    type Target = WalkInput<'h>;

    fn deref(&self) -> &WalkInput<'h> {
        &self.input
    }
}

/// Evidence that RCU is watching inside the hook.
///
/// # Invariants
///
/// RCU is watching, and preemption is off, for as long as `'h`.
pub(crate) struct Watched<'h>(PhantomData<&'h ()>, NotThreadSafe);

// SAFETY: By the invariant; regions with preemption off are read-side sections.
unsafe impl Section for Watched<'_> {}

/// Evidence that preemption is off on this CPU.
pub(crate) struct NoPreemption(NotThreadSafe);

// SAFETY: Regions with preemption off are read-side sections where RCU is watching, as it does in task
// context.
unsafe impl Section for NoPreemption {}

impl NoPreemption {
    /// Turns preemption off. Context: task.
    pub(crate) fn enter() -> Self {
        stackmap_preempt_disable();
        Self(NotThreadSafe)
    }

    /// Returns the number of this CPU.
    pub(crate) fn cpu(&self) -> usize {
        stackmap_this_cpu() as usize
    }
}

impl Drop for NoPreemption {
    fn drop(&mut self) {
        // SAFETY: It was turned off by `enter`.
        unsafe { stackmap_preempt_enable() };
    }
}

/// Frames in a buffer of a [`Recording`]: that of the kernel's unwinder or the other one.
///
/// # Invariants
///
/// `nr` is at most [`STACKMAP_MAX_FRAMES`].
#[derive(Clone, Copy)]
pub(crate) struct Frames {
    by_kernel: bool,
    nr: usize,
}

/// Returns what the hot path must know of the running kernel.
pub(crate) fn facts() -> &'static stackmap_facts {
    let facts = &raw const self::stackmap_facts;
    // SAFETY: It does not change after load, and nothing else is called before it is set.
    unsafe { &*facts }
}

/// Wraps C functions that may be called where RCU is watching and preemption is off.
macro_rules! watched {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {
        impl Watched<'_> {$(
            $(#[$doc])*
            pub(crate) fn $name(&self, ip: u64) -> bool {
                // SAFETY: RCU is watching and preemption is off, by the invariant.
                unsafe { generated::$function(ip as usize) }
            }
        )*}
    };
}

watched! {
    /// Returns whether a rule may be kept for text: it stays as it is, or a notifier is called when it goes.
    is_stable = stackmap_unwind_is_stable;
    /// Returns whether the kernel's unwinder knows the trampoline of a tracer that an address is in.
    is_tracer = stackmap_is_tracer;
    /// Returns whether a call that returns to an address is in a BPF image that is there now.
    is_bpf = stackmap_unwind_is_bpf;
    /// Returns whether there is text at an address.
    is_text = stackmap_unwind_is_text;
}

impl Watched<'_> {
    /// Runs the kernel's unwinder for one step from `ip`, on the stack for learning: `sp` and `bp` are words of it.
    pub(crate) fn unwind_try(&self, ip: u64, sp: u32, bp: u32, signal: bool) -> stackmap_trial {
        let mut trial = stackmap_trial::default();
        let [sp, bp] = [sp, bp].map(|word| word.min(STACKMAP_LEARN_WORDS));
        // SAFETY: RCU is watching, by the invariant; both are words of that stack, or its end.
        unsafe { stackmap_unwind_try(ip as usize, sp, bp, signal, &mut trial) };
        trial
    }
}

impl<'h> WalkInput<'h> {
    /// Returns the number of this CPU's context at this level of nesting, which nobody else uses.
    pub(crate) fn context(&self) -> usize {
        self.stack.context as usize
    }

    /// Returns evidence that grace periods wait for us: they do where RCU is watching.
    pub(crate) fn watched(&self) -> Option<Watched<'h>> {
        // INVARIANT: The C side says so, by the invariant.
        (self.stack.watched).then_some(Watched(PhantomData, NotThreadSafe))
    }

    /// Returns where a walk begins, and how many callers it skips; if it begins at a caller.
    pub(crate) fn caller(&self) -> Option<(&stackmap_caller, usize)> {
        let stack = &self.stack;
        (stack.from_caller).then_some((&stack.caller, stack.skip as usize))
    }

    /// Returns where the stack of the task begins, which has [`STACKMAP_STACK_SIZE`] bytes.
    pub(crate) fn task_stack(&self) -> u64 {
        self.stack.caller.begin
    }

    /// Starts the kernel's unwinder at a frame, and sets the bounds of its stack. Returns whether they are known.
    pub(crate) fn unwind_begin(&self, _: &Watched<'_>, frame: &mut stackmap_frame) -> bool {
        // SAFETY: RCU is watching and preemption is off; `state` is valid, by the invariant.
        unsafe { stackmap_unwind_begin(frame, self.stack.state) }
    }

    /// Steps to the caller of a frame by the kernel's unwinder, from its state, if that is set. Returns whether there
    /// is one.
    pub(crate) fn unwind_step(
        &self,
        _: &Watched<'_>,
        frame: &mut stackmap_frame,
        state_is_set: bool,
    ) -> bool {
        // SAFETY: RCU is watching and preemption is off; `state` is valid, by the invariant.
        unsafe { stackmap_unwind_step(frame, self.stack.state, state_is_set) }
    }

    /// Returns the number of frames that are known before the walk: none or one.
    pub(crate) fn nr_known(&self) -> usize {
        self.stack.nr as usize
    }

    /// Returns how often the kernel's unwinder was asked again.
    pub(crate) fn retries(&self) -> u32 {
        self.stack.retries
    }

    /// Returns the text of the trace array's own function tracer, if that has any.
    pub(crate) fn trampoline(&self) -> Range<u64> {
        self.stack.trampoline.start..self.stack.trampoline.end
    }

    /// Returns whether a return address is in that text, while the kernel's unwinder knows it.
    pub(crate) fn is_in_tracer(&self, section: &Watched<'_>, ip: u64) -> bool {
        self.trampoline().contains(&ip) && section.is_tracer(ip)
    }

    /// Returns the cached rule of the text that calls this tracer, kept as long as the trace array is served.
    pub(crate) fn tracer_rule(&self) -> &AtomicU64 {
        // SAFETY: By the invariant, and only by this function from now on.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.stack.site.slot).rule) }
    }
}

impl<'h> Recording<'h> {
    /// # Safety
    ///
    /// The invariants hold for `*stack`, which nobody else uses, from now on for as long as `'h`.
    pub(crate) unsafe fn new(stack: *mut stackmap_stack) -> Self {
        // INVARIANT: As required of the caller.
        // SAFETY: As required of the caller.
        let stack = unsafe { &mut *stack };
        Self {
            input: WalkInput {
                stack,
                _here: NotThreadSafe,
            },
        }
    }

    /// Returns the frame that is known before the walk, if there is one.
    pub(crate) fn first_known(&self) -> Option<u64> {
        self.frames(self.written(self.nr_known())).first().copied()
    }

    /// Returns the state of a walk and the part of its buffer after the known frames.
    pub(crate) fn split(&mut self) -> (&WalkInput<'h>, &mut [u64]) {
        let max = STACKMAP_MAX_FRAMES as usize;
        // SAFETY: By the invariant, the buffer has this number of words, which nobody else uses for as long as `self` is borrowed.
        let ips = unsafe { core::slice::from_raw_parts_mut(self.stack.ips.cast(), max) };
        (&self.input, ips)
    }

    /// Returns the first `nr` frames of that buffer.
    pub(crate) fn written(&self, nr: usize) -> Frames {
        // INVARIANT: It is at most this.
        Frames {
            by_kernel: false,
            nr: nr.min(STACKMAP_MAX_FRAMES as usize),
        }
    }

    /// Returns what the kernel's unwinder has found, if it was asked.
    pub(crate) fn kernel_frames(&self) -> Option<Frames> {
        let nr = usize::try_from(self.stack.nr_kernel).ok()?;
        // INVARIANT: By that of `WalkInput`.
        Some(Frames {
            by_kernel: true,
            nr,
        })
    }

    /// Has the kernel's unwinder asked again.
    pub(crate) fn retry(&mut self) {
        self.input.stack.retries += 1;
    }

    /// Returns the return addresses, the innermost first.
    pub(crate) fn frames(&self, frames: Frames) -> &[u64] {
        // SAFETY: By the invariants of `Frames` and `WalkInput`.
        unsafe { core::slice::from_raw_parts(self.ips(frames), frames.nr) }
    }

    /// Returns the same, to change them.
    pub(crate) fn frames_mut(&mut self, frames: Frames) -> &mut [u64] {
        // SAFETY: As above; nobody else uses them.
        unsafe { core::slice::from_raw_parts_mut(self.ips(frames), frames.nr) }
    }

    fn ips(&self, frames: Frames) -> *mut u64 {
        let ips = if frames.by_kernel {
            self.stack.kernel
        } else {
            self.stack.ips
        };
        ips.cast()
    }

    /// Sets what is known of the trace array's own function tracer. Before this is called, nothing is.
    pub(crate) fn set_tracer(&mut self) {
        // SAFETY: By the invariant the slot is the trace array's.
        unsafe { stackmap_set_tracer(self.input.stack) };
    }

    /// Returns whether that tracer is not known yet and can be found.
    pub(crate) fn wants_tracer(&self) -> bool {
        self.stack.tracer_unknown && self.stack.watched
    }

    /// Finds that tracer, if one of the frames is in its text.
    #[cold]
    pub(crate) fn find_tracer(&mut self, frames: Frames) {
        let text = facts().stext..facts().etext;
        if self.frames(frames).iter().any(|ip| !text.contains(ip)) {
            let ips = self.ips(frames).cast();
            // SAFETY: RCU is watching; `nr` frames are there.
            unsafe { stackmap_find_tracer(self.input.stack, ips, frames.nr as u32) };
        }
    }
}

/// A request for a user stack.
pub(crate) struct UserRequest {
    /// The entry into the kernel.
    pub(crate) cookie: u64,
    /// If it is the first one of this entry: how often the task has called `exec`.
    pub(crate) first: Option<u64>,
}

/// A reserved `ftrace:stack_id` event.
///
/// # Invariants
///
/// `event` was reserved at `site` and neither committed nor discarded; preemption has been off
/// since.
pub(crate) struct IdEvent<'a> {
    site: &'a stackmap_site,
    event: *mut ring_buffer_event,
    /// That of its user stack, if it was reserved for one.
    cookie: Option<u64>,
}

/// Why there is no event for an id.
pub(crate) enum Unreserved {
    /// The ring buffer refuses the event.
    Refused,
    /// The ring buffer is not that of the trace array.
    Foreign,
}

impl Recording<'_> {
    /// Requests the user stack of the current task.
    pub(crate) fn request_user(&self) -> Option<UserRequest> {
        let (mut cookie, mut count) = (0, 0);
        // SAFETY: By the invariant the slot is the trace array's, and preemption is off; both may be
        // written.
        let done = unsafe { stackmap_user_request(self.stack.site.slot, &mut cookie, &mut count) };
        if done == STACKMAP_REQUEST_NONE {
            return None;
        }
        let first = (done == STACKMAP_REQUEST_FIRST).then_some(count);
        Some(UserRequest { cookie, first })
    }

    /// Writes the event of an id; with a cookie, that of one that has a user stack.
    pub(crate) fn write_id(&self, id: u32, cookie: Option<u64>) -> Result<(), Unreserved> {
        let site = &self.stack.site;
        // SAFETY: By the invariant the site is what the kernel has called us with, and preemption is
        // off.
        let done = unsafe {
            match cookie {
                None => stackmap_id_write(site, id),
                Some(cookie) => stackmap_id_user_write(site, id, cookie),
            }
        };
        match done {
            STACKMAP_WRITTEN => Ok(()),
            STACKMAP_FOREIGN => Err(Unreserved::Foreign),
            _ => Err(Unreserved::Refused),
        }
    }

    /// Reserves an event for an id; with a cookie, for one that has a user stack.
    pub(crate) fn reserve_id(&self, cookie: Option<u64>) -> Result<IdEvent<'_>, Unreserved> {
        let site = &self.stack.site;
        // SAFETY: As for `write_id`.
        let event = unsafe { stackmap_id_reserve(site, cookie.is_some()) };
        let event = from_err_ptr(event).map_err(|_| Unreserved::Foreign)?;
        if event.is_null() {
            return Err(Unreserved::Refused);
        }
        // INVARIANT: Just reserved.
        Ok(IdEvent {
            site,
            event,
            cookie,
        })
    }

    /// Writes a full stack as the kernel does. Returns whether the ring buffer took it.
    #[cold]
    pub(crate) fn write_full(&self, frames: &[u64]) -> bool {
        // SAFETY: As for `write_id`. `unsigned long` is `u64` on 64-bit kernels, the only ones
        // that we build for.
        unsafe {
            stackmap_full_write(
                &self.stack.site,
                frames.as_ptr().cast(),
                frames.len() as u32,
            )
        }
    }

    /// Returns the number of bytes of the event of a full stack in the ring buffer: a word of header, a second one from
    /// 113 bytes of data on (`RINGBUF_TYPE_DATA_TYPE_LEN_MAX`), the data.
    pub(crate) fn full_bytes(&self, nr_frames: usize) -> u64 {
        let frames = (nr_frames as u64).wrapping_mul(8);
        let data = u64::from(facts().layout.caller_offset).wrapping_add(frames);
        let header = if data > 112 { 8 } else { 4 };
        data.wrapping_add(header)
    }
}

impl IdEvent<'_> {
    /// Returns whether it has a user stack.
    pub(crate) fn has_user(&self) -> bool {
        self.cookie.is_some()
    }

    /// Completes the event.
    pub(crate) fn commit(self, id: u32) {
        // SAFETY: By the type invariants; `self` is consumed.
        unsafe {
            let has_user = self.has_user();
            let cookie = self.cookie.unwrap_or(0);
            stackmap_id_commit(self.site, self.event, id, has_user, cookie);
        }
    }

    /// Discards the event.
    pub(crate) fn discard(self) {
        // SAFETY: By the type invariants; `self` is consumed.
        unsafe { stackmap_id_discard(self.site, self.event) };
    }
}
