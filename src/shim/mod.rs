// SPDX-License-Identifier: GPL-2.0

//! The C side as Rust sees it: the bindings made by bindgen, and safe wrappers for the hot path.
//!
//! C header: [`include/stackmap_shim.h`](../../include/stackmap_shim.h)

// A crate of its own on the host.
#[allow(unreachable_pub)]
pub(crate) mod btf;
pub(crate) mod prototypes;

use crate::published::Section;
use core::{marker::PhantomData, mem::MaybeUninit, ops::Range, sync::atomic::AtomicU64};
use kernel::{prelude::*, types::NotThreadSafe};

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

/// An errno of `kernel::bindings` as an error, where the kernel crate has no name for it.
pub(crate) fn errno(code: u32) -> Error {
    Error::from_errno(-(code as c_int))
}

/// Makes safe functions of those that lean on nothing that their caller has done, and follow no
/// pointer but references.
macro_rules! safe {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {$(
        #[inline(always)]
        pub(crate) fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: It may be called at any time, in the contexts that the header names;
            // references are valid, and pointers are not followed.
            unsafe { generated::$name($($arg),*) }
        }
    )*};
}

safe! {
    stackmap_symbols_resolve() -> c_int;
    stackmap_event_type() -> c_int;
    stackmap_seq_ip(seq: &mut trace_seq, ip: usize, flags: usize);
    stackmap_seq_form(seq: &mut trace_seq, flags: usize) -> c_uint;
    stackmap_seq_full(seq: &mut trace_seq) -> bool;
    stackmap_mismatch_report(found: &stackmap_mismatch);
    stackmap_tracefs_allowed() -> c_int;
    stackmap_tracefs_drain();
    stackmap_tracefs_enter() -> bool;
    stackmap_unwind_prepare() -> c_int;
    stackmap_unwind_test() -> c_int;
    stackmap_jump_check() -> c_int;
    stackmap_hook_drain();
    stackmap_hook_missed() -> c_ulong;
    stackmap_stack_nested() -> c_ulong;
    stackmap_user_resolve() -> c_int;
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

/// The kernel's BTF, if it has any. Only after `stackmap_symbols_resolve()`.
pub(crate) fn btf() -> Option<&'static [u8]> {
    let mut len = 0;
    // SAFETY: `len` may be written. Without symbols there is no BTF.
    let start = unsafe { stackmap_btf(&mut len) }.cast::<u8>();
    // SAFETY: If not null, it has `len` bytes of the kernel's own image, which nobody changes.
    (!start.is_null()).then(|| unsafe { core::slice::from_raw_parts(start, len) })
}

/// The number of contexts, [`Recording::context`] is below it: one for each level of each possible CPU number.
pub(crate) fn contexts() -> usize {
    (stackmap_cpus() * STACKMAP_LEVELS) as usize
}

/// A stack that is being recorded: for the time `'h`, in which we run inside the hook.
///
/// # Invariants
///
/// `stack` is as the C side has made it: its pointers are valid, `ips` and `kernel` have room for
/// [`STACKMAP_MAX_FRAMES`], and the first `nr` of `ips` and `nr_kernel` of `kernel` are there.
/// Preemption is off, and `stackmap_hook_drain()` waits for the end of `'h`.
pub(crate) struct Recording<'h> {
    stack: &'h mut stackmap_stack,
    _here: NotThreadSafe,
}

/// Inside the hook, RCU is watching.
///
/// # Invariants
///
/// It is, and preemption is off, for as long as `'h`.
pub(crate) struct Watched<'h>(PhantomData<&'h ()>, NotThreadSafe);

// SAFETY: By the invariant; regions with preemption off are read-side sections.
unsafe impl Section for Watched<'_> {}

/// Preemption is off on this CPU.
pub(crate) struct NoPreemption(NotThreadSafe);

// SAFETY: Regions with preemption off are read-side sections where RCU is watching, as it does in task
// context.
unsafe impl Section for NoPreemption {}

impl NoPreemption {
    /// Turns it off. Context: task.
    pub(crate) fn enter() -> Self {
        stackmap_preempt_disable();
        Self(NotThreadSafe)
    }

    /// The number of this CPU.
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

/// Frames that are in a [`Recording`].
///
/// # Invariants
///
/// So many are there, found by the kernel's unwinder or not.
#[derive(Clone, Copy)]
pub(crate) struct Frames {
    by_kernel: bool,
    nr: usize,
}

/// What the hot path must know of the running kernel.
#[inline(always)]
pub(crate) fn facts() -> &'static stackmap_facts {
    let facts = &raw const self::stackmap_facts;
    // SAFETY: It does not change after load, and nothing else is called before it is set.
    unsafe { &*facts }
}

impl<'h> Recording<'h> {
    /// # Safety
    ///
    /// The invariants hold for `*stack`, which nobody else uses, from now on for as long as `'h`.
    #[inline(always)]
    pub(crate) unsafe fn new(stack: *mut stackmap_stack) -> Self {
        Self {
            // INVARIANT: As required of the caller.
            // SAFETY: As required of the caller.
            stack: unsafe { &mut *stack },
            _here: NotThreadSafe,
        }
    }

    /// This CPU's at this level of nesting: nobody else's.
    #[inline(always)]
    pub(crate) fn context(&self) -> usize {
        self.stack.context as usize
    }

    /// Evidence that grace periods wait for us: they do where RCU is watching.
    #[inline(always)]
    pub(crate) fn watched(&self) -> Option<Watched<'h>> {
        // INVARIANT: As the C side says, by the invariant.
        (self.stack.watched).then_some(Watched(PhantomData, NotThreadSafe))
    }

    /// Where a walk begins, and how many callers it leaves out; if it begins at a caller.
    #[inline(always)]
    pub(crate) fn caller(&self) -> Option<(&stackmap_caller, usize)> {
        let stack = &self.stack;
        (stack.from_caller).then_some((&stack.caller, stack.skip as usize))
    }

    /// Where the stack of the task begins, which has [`STACKMAP_STACK_SIZE`] bytes.
    #[inline(always)]
    pub(crate) fn task_stack(&self) -> u64 {
        self.stack.caller.begin
    }

    /// Room for the state of the kernel's unwinder.
    #[inline(always)]
    pub(crate) fn state(&self) -> *mut unwind_state {
        self.stack.state
    }

    /// Room for all frames of a walk, after those that are known.
    ///
    /// # Safety
    ///
    /// Until it is dropped, no frames are used.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn room(&self) -> &mut [MaybeUninit<u64>] {
        let room = STACKMAP_MAX_FRAMES as usize;
        // SAFETY: By the invariant there is so much room, which nobody else uses; nor do we.
        unsafe { core::slice::from_raw_parts_mut(self.stack.ips.cast(), room) }
    }

    /// The number of frames that are known before the walk: none or one.
    #[inline(always)]
    pub(crate) fn known(&self) -> usize {
        self.stack.nr as usize
    }

    /// The frame that is known before the walk, if there is one.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<u64> {
        // SAFETY: By the invariant.
        (self.stack.nr > 0).then(|| unsafe { *self.stack.ips.cast() })
    }

    /// So many frames, those that are known included.
    ///
    /// # Safety
    ///
    /// They were written to the [`Recording::room`].
    #[inline(always)]
    pub(crate) unsafe fn filled(&self, nr: usize) -> Frames {
        // INVARIANT: By the requirement.
        Frames {
            by_kernel: false,
            nr,
        }
    }

    /// What the kernel's unwinder has found, if it was asked.
    #[inline(always)]
    pub(crate) fn kernels(&self) -> Option<Frames> {
        let nr = usize::try_from(self.stack.nr_kernel).ok()?;
        Some(Frames {
            by_kernel: true,
            nr,
        })
    }

    /// How often the kernel's unwinder was asked again.
    pub(crate) fn round(&self) -> u32 {
        self.stack.round
    }

    /// Has the kernel's unwinder asked again.
    pub(crate) fn ask_again(&mut self) {
        self.stack.round += 1;
    }

    /// The return addresses, the innermost first.
    #[inline(always)]
    pub(crate) fn frames(&self, frames: Frames) -> &[u64] {
        // SAFETY: By the invariant of `Frames`.
        unsafe { core::slice::from_raw_parts(self.ips(frames), frames.nr) }
    }

    /// The same, to change them.
    #[inline(always)]
    pub(crate) fn frames_mut(&mut self, frames: Frames) -> &mut [u64] {
        // SAFETY: By the invariant of `Frames`; nobody else uses them.
        unsafe { core::slice::from_raw_parts_mut(self.ips(frames), frames.nr) }
    }

    #[inline(always)]
    fn ips(&self, frames: Frames) -> *mut u64 {
        let ips = if frames.by_kernel {
            self.stack.kernel
        } else {
            self.stack.ips
        };
        ips.cast()
    }

    /// Finds out what is known of the trace array's own function tracer. Before this is called, nothing is.
    #[inline(always)]
    pub(crate) fn set_tracer(&mut self) {
        // SAFETY: By the invariant the slot is the trace array's.
        unsafe { stackmap_set_tracer(self.stack) };
    }

    /// The text of the trace array's own function tracer, if that has any.
    #[inline(always)]
    pub(crate) fn trampoline(&self) -> Range<u64> {
        self.stack.trampoline.start..self.stack.trampoline.end
    }

    /// Whether a return address is in that text, while the kernel's unwinder knows it.
    pub(crate) fn is_in_tracer(&self, ip: u64) -> bool {
        // SAFETY: A walk by rules, where RCU is watching and preemption is off.
        self.trampoline().contains(&ip) && unsafe { stackmap_is_tracer(ip as usize) }
    }

    /// What is kept of the text that calls this tracer, as long as the trace array is served.
    #[inline(always)]
    pub(crate) fn tracer_rule(&self) -> &AtomicU64 {
        // SAFETY: By the invariant, and only by this function from now on.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.stack.site.slot).rule) }
    }

    /// Whether it is not known yet and can be found.
    #[inline(always)]
    pub(crate) fn wants_tracer(&self) -> bool {
        self.stack.tracer_unknown && self.stack.watched
    }

    /// Finds it, if one of the frames is in it.
    #[cold]
    pub(crate) fn find_tracer(&mut self, frames: Frames) {
        let text = facts().stext..facts().etext;
        if self.frames(frames).iter().any(|ip| !text.contains(ip)) {
            let ips = self.ips(frames).cast();
            // SAFETY: RCU is watching; so many frames are there.
            unsafe { stackmap_find_tracer(self.stack, ips, frames.nr as u32) };
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
    /// It was reserved with or without.
    cookie: Option<u64>,
}

/// Why there is no event for an id.
pub(crate) enum Unreserved {
    /// The ring buffer takes nothing now.
    NoRoom,
    /// The ring buffer is not that of the trace array.
    Foreign,
}

fn unreserved(why: stackmap_unreserved) -> Unreserved {
    if why == stackmap_unreserved_STACKMAP_FOREIGN {
        Unreserved::Foreign
    } else {
        Unreserved::NoRoom
    }
}

impl Recording<'_> {
    /// Asks for the user stack of the current task.
    #[inline(always)]
    pub(crate) fn request_user(&self) -> Option<UserRequest> {
        let (mut cookie, mut count) = (0, 0);
        // SAFETY: By the invariant the slot is the trace array's, and preemption is off; both may be
        // written.
        let done = unsafe { stackmap_user_request(self.stack.site.slot, &mut cookie, &mut count) };
        if done == stackmap_request_STACKMAP_REQUEST_NONE {
            return None;
        }
        let first = (done == stackmap_request_STACKMAP_REQUEST_FIRST).then_some(count);
        Some(UserRequest { cookie, first })
    }

    /// Writes the event of an id; with a cookie, that of one that has a user stack.
    #[inline(always)]
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
        if done == stackmap_unreserved_STACKMAP_WRITTEN {
            return Ok(());
        }
        Err(unreserved(done))
    }

    /// Reserves an event for an id; with a cookie, for one that has a user stack.
    #[inline(always)]
    pub(crate) fn reserve_id(&self, cookie: Option<u64>) -> Result<IdEvent<'_>, Unreserved> {
        let site = &self.stack.site;
        let mut why = 0;
        // SAFETY: As for `write_id`; `why` may be written.
        let event = unsafe {
            match cookie {
                None => stackmap_id_reserve(site, &mut why),
                Some(_) => stackmap_id_user_reserve(site, &mut why),
            }
        };
        if event.is_null() {
            return Err(unreserved(why));
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

    /// Bytes of the event of a full stack in the ring buffer: a word of header, a second one from
    /// 113 bytes of data on (`RINGBUF_TYPE_DATA_TYPE_LEN_MAX`), the data.
    #[inline(always)]
    pub(crate) fn full_bytes(&self, nr_frames: usize) -> u64 {
        let frames = (nr_frames as u64).wrapping_mul(8);
        let data = u64::from(facts().layout.caller_offset).wrapping_add(frames);
        let header = if data > 112 { 8 } else { 4 };
        data.wrapping_add(header)
    }
}

impl IdEvent<'_> {
    /// Whether it has a user stack.
    #[inline(always)]
    pub(crate) fn has_user(&self) -> bool {
        self.cookie.is_some()
    }

    /// Completes the event.
    #[inline(always)]
    pub(crate) fn commit(self, id: u32) {
        // SAFETY: By the type invariants; `self` is consumed.
        unsafe {
            match self.cookie {
                None => stackmap_id_commit(self.site, self.event, id),
                Some(cookie) => stackmap_id_user_commit(self.site, self.event, id, cookie),
            }
        };
    }

    /// Takes the event back.
    pub(crate) fn discard(self) {
        // SAFETY: By the type invariants; `self` is consumed.
        unsafe { stackmap_id_discard(self.site, self.event) };
    }
}
