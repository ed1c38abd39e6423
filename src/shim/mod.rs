// SPDX-License-Identifier: GPL-2.0

//! The C side as Rust sees it: bindgen's reading of the boundary, and a safe face of the hot path.
//!
//! C header: [`include/stackmap_shim.h`](../../include/stackmap_shim.h)

// A crate of its own on the host.
#[allow(unreachable_pub)]
pub(crate) mod btf;
pub(crate) mod prototypes;

use kernel::{error::to_result, prelude::*};

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
        bindings::{dentry, file, file_operations, module, umode_t},
        ffi,
    };

    include!(env!("STACKMAP_BINDINGS"));
}

pub(crate) use generated::*;

/// An errno of `kernel::bindings` as an error, where the kernel crate has no name for it.
pub(crate) fn errno(code: u32) -> Error {
    Error::from_errno(-(code as c_int))
}

/// Finds what the kernel does not export. Says in the log what is missing.
pub(crate) fn resolve_symbols() -> Result {
    // SAFETY: Process context, once, before anything else is called.
    to_result(unsafe { stackmap_symbols_resolve() })
}

/// The kernel's BTF, if it has any. Only after [`resolve_symbols`].
pub(crate) fn btf() -> Option<&'static [u8]> {
    let mut len = 0;
    // SAFETY: `len` may be written. Without symbols there is no BTF.
    let start = unsafe { stackmap_btf(&mut len) }.cast::<u8>();
    // SAFETY: If not null, it has `len` bytes of the kernel's own image, which nobody changes.
    (!start.is_null()).then(|| unsafe { core::slice::from_raw_parts(start, len) })
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
}

/// Why there is no event for an id.
pub(crate) enum Unreserved {
    /// The ring buffer takes nothing now.
    NoRoom,
    /// The ring buffer is not that of the trace array.
    Foreign,
}

impl stackmap_site {
    /// Reserves an event for an id.
    ///
    /// # Safety
    ///
    /// `self` is what the kernel passed to the function in whose place we run, preemption is off,
    /// and stays off until the event is committed or discarded. Context: any.
    #[inline(always)]
    pub(crate) unsafe fn reserve_id(&self) -> Result<IdEvent<'_>, Unreserved> {
        let mut event = core::ptr::null_mut();
        // SAFETY: As required of the caller; `event` may be written.
        let reserved = unsafe { stackmap_id_reserve(self, &mut event) };
        if reserved == stackmap_reserved_STACKMAP_RESERVED {
            // INVARIANT: Just reserved.
            Ok(IdEvent { site: self, event })
        } else if reserved == stackmap_reserved_STACKMAP_FOREIGN {
            Err(Unreserved::Foreign)
        } else {
            Err(Unreserved::NoRoom)
        }
    }

    /// Writes a full stack as the kernel does. Returns whether the ring buffer took it.
    ///
    /// # Safety
    ///
    /// As for [`stackmap_site::reserve_id`]; `layout` is that of the running kernel.
    #[cold]
    pub(crate) unsafe fn write_full(&self, layout: &stackmap_layout, frames: &[u64]) -> bool {
        // SAFETY: As required of the caller; `unsigned long` is `u64` on 64-bit kernels, the only
        // ones that we build for.
        unsafe { stackmap_full_write(self, layout, frames.as_ptr().cast(), frames.len() as u32) }
    }
}

impl IdEvent<'_> {
    /// Completes the event.
    #[inline(always)]
    pub(crate) fn commit(self, id: u32) {
        // SAFETY: By the type invariants; `self` is consumed.
        unsafe { stackmap_id_commit(self.site, self.event, id) };
    }

    /// Takes the event back.
    pub(crate) fn discard(self) {
        // SAFETY: By the type invariants; `self` is consumed.
        unsafe { stackmap_id_discard(self.site, self.event) };
    }
}
