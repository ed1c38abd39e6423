// SPDX-License-Identifier: GPL-2.0

//! The map's interface to its environment: the kernel, a host program or a loom model. Only this
//! module knows for which of them the map is compiled.
//!
//! It provides atomics, memory, grace periods and sizes. Everything else in `src/map/` is the same
//! source in all three environments.
//!
//! The atomics are those of `core` in the kernel too, and not `kernel::sync::atomic`: without
//! `CONFIG_RUST_INLINE_HELPERS` each operation of the latter is a call to a `rust_helper_*`
//! function of vmlinux, and those functions can be traced. A tracer's callback must not call
//! functions that can be traced. The map shares no atomic with C code, so the kernel's memory model
//! and Rust's never meet on one variable.

#[cfg(MODULE)]
mod kernel;
#[cfg(MODULE)]
use self::kernel as imp;

#[cfg(all(not(MODULE), not(loom)))]
#[path = "../../selftests/map/host.rs"]
mod host;
#[cfg(all(not(MODULE), not(loom)))]
use self::host as imp;

#[cfg(all(not(MODULE), loom))]
#[path = "../../selftests/map/model.rs"]
pub mod model;
#[cfg(all(not(MODULE), loom))]
use self::model as imp;

#[cfg(not(MODULE))]
#[path = "../../selftests/map/heap.rs"]
mod heap;

pub(super) use self::imp::{synchronize, Array, AtomicPtr, AtomicU32, AtomicU64};
pub(super) use core::sync::atomic::Ordering;

use core::{marker::PhantomData, ops::Deref};

/// A read-side critical section: what a reset waits for. Context: any where RCU is watching; it must not sleep.
pub use self::imp::ReadSide;

/// Evidence of a read-side section: a grace period that begins in it ends after it. Neither `Send` nor `Sync`.
///
/// # Invariants
///
/// The holder is in such a section, on one CPU or in one task, for as long as `'s`.
#[derive(Clone, Copy)]
pub struct Inside<'s>(PhantomData<&'s ()>, PhantomData<*const ()>);

impl Inside<'_> {
    /// # Safety
    ///
    /// The caller is in such a section for as long as `'s`, as with preemption off where RCU is watching.
    #[inline(always)]
    pub const unsafe fn new() -> Self {
        // INVARIANT: By the requirement.
        Self(PhantomData, PhantomData)
    }
}

impl ReadSide {
    /// Shows that this section has been entered and not been left.
    #[inline(always)]
    pub fn inside(&self) -> Inside<'_> {
        // SAFETY: It lasts as long as it is borrowed.
        unsafe { Inside::new() }
    }
}

/// A cache-padded value: many CPUs write it, so it shares no cache line with values read often.
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Sizes and limits.
#[cfg(not(loom))]
pub(super) mod sizes {
    /// The smallest `bits`.
    pub const BITS_MIN: u32 = 10;

    /// The deepest stack in frames: what ftrace itself records at most.
    pub const MAX_FRAMES: usize = 1024;

    /// Probe limit: slots that the search for one stack visits at most. In the largest table, half
    /// full, the longest expected run of used slots is about 75 slots.
    pub const PROBE_LIMIT: u32 = 128;

    /// Words of 8 bytes in one chunk of the pool; a power of two.
    ///
    /// 256 KiB: small enough to stay within the memory bound of the pool, large enough that a
    /// chunk is allocated about once in 1,500 new stacks of 20 frames.
    pub(in super::super) const CHUNK_WORDS: u32 = 32 * 1024;

    /// Bytes of pool that each stack of capacity allows: 255 frames on average.
    pub const POOL_BYTES_PER_STACK: usize = 2048;

    /// Attempts to move the pool's cursor before a reservation is given up as contended.
    pub(in super::super) const CURSOR_TRIES: u32 = 16;

    /// Sets of stacks whose references one context batches; a power of two.
    pub(in super::super) const BATCH_SETS: usize = 32;

    /// Stacks in one set.
    pub(in super::super) const BATCH_WAYS: usize = 8;

    /// The number of stacks, missing from a full set, of which one is put into it.
    pub(in super::super) const BATCH_ONE_IN: u64 = 16;

    /// Predictions of a context, by the previous stack and the first frame; a power of two. Where two that come in
    /// turn share one, neither is predicted: of four, that happens in 0.6 % of all maps.
    pub(in super::super) const PREDICTIONS: usize = 1024;

    /// References at which those of a stack saturate. One batch of each context that is between
    /// the check and the addition fits above it.
    pub(in super::super) const REFS_MAX: u64 = i32::MAX as u64;

    /// References to one stack that a context batches at most; a power of two. The larger it is, the fewer
    /// contexts a map can have, see [`CONTEXTS_MAX`](super::super::CONTEXTS_MAX).
    pub(in super::super) const REFS_BATCH_MAX: u32 = 1 << 15;

    /// Slots that an export looks at in one read-side section.
    pub(in super::super) const SLOTS_AT_ONCE: u32 = 1024;
}

/// Small sizes and limits for a model, which tries each step in each order.
#[cfg(loom)]
#[allow(missing_docs)]
pub(super) mod sizes {
    pub const BITS_MIN: u32 = 1;
    pub const MAX_FRAMES: usize = 4;
    pub const PROBE_LIMIT: u32 = 2;
    pub(in super::super) const CHUNK_WORDS: u32 = 8;
    pub const POOL_BYTES_PER_STACK: usize = 128;
    pub(in super::super) const CURSOR_TRIES: u32 = 2;
    pub(in super::super) const BATCH_SETS: usize = 1;
    pub(in super::super) const BATCH_WAYS: usize = 2;
    pub(in super::super) const BATCH_ONE_IN: u64 = 2;
    pub(in super::super) const PREDICTIONS: usize = 2;
    pub(in super::super) const REFS_MAX: u64 = 8;
    pub(in super::super) const REFS_BATCH_MAX: u32 = 2;
    pub(in super::super) const SLOTS_AT_ONCE: u32 = 2;
}
