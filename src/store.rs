// SPDX-License-Identifier: GPL-2.0

//! The maps: that of kernel stacks and that of user stacks. Each is made when it is first needed, grows
//! by itself, and is freed when the module goes.

use crate::{
    map::{Map, MapError, Seed},
    published::{Published, Section},
    shim,
};
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::{
    bindings::{self, ESTALE},
    pr_warn_once,
    prelude::*,
    sync::Arc,
};

impl From<MapError> for Error {
    fn from(error: MapError) -> Self {
        match error {
            MapError::Busy => EBUSY,
            MapError::NoMemory => ENOMEM,
            MapError::Stale => shim::errno(ESTALE),
        }
    }
}

/// A map, or none yet.
pub(crate) struct Store {
    map: Published<Map>,
    /// Makes one.
    new: fn(u32, usize, Seed) -> Option<Map>,
    /// Whether growth is pending.
    growth: AtomicBool,
}

/// The kernel stacks.
pub(crate) static KERNEL: Store = Store::new(Map::with_cached_rules);

/// The user stacks.
pub(crate) static USER: Store = Store::new(Map::new);

impl Store {
    const fn new(new: fn(u32, usize, Seed) -> Option<Map>) -> Self {
        Self {
            map: Published::nothing(),
            new,
            growth: AtomicBool::new(false),
        }
    }

    /// Returns the map, if there is one. Context: process.
    pub(crate) fn map(&self) -> Option<Arc<Map>> {
        self.map.get()
    }

    /// Returns the same, for as long as a section.
    #[inline(always)]
    pub(crate) fn map_in<'s>(&self, section: &'s impl Section) -> Option<&'s Map> {
        self.map.read(section)
    }

    /// Makes a map for `2^bits` stacks that `contexts` contexts can use. Context: process; callers
    /// serialise.
    pub(crate) fn make(&self, bits: u32, contexts: usize) -> Result {
        let map = (self.new)(bits, contexts, Seed::new(random())).ok_or(ENOMEM)?;
        self.map.replace(Some(Arc::new(map, GFP_KERNEL)?));
        Ok(())
    }

    /// Takes the map from all readers. No stack is recorded any more. Context: process; callers serialise.
    pub(crate) fn free(&self) {
        self.map.replace(None);
    }

    /// Has the worker add memory to the map. Context: any.
    #[cold]
    pub(crate) fn request_growth(&self) {
        // ORDERING: Release; O7, pairs with the swap in `grow`: if the request before this one has not been
        // taken yet, the worker sees how full the pool is here.
        if !self.growth.swap(true, Ordering::Release) {
            // SAFETY: The worker is stopped only when no stack is recorded any more.
            unsafe { shim::stackmap_growth_kick() };
        }
    }

    /// Adds memory to the map, if that was requested. Context: process.
    fn grow(&self) -> Result {
        // ORDERING: Acquire; O7, pairs with the swap in `request_growth`.
        if !self.growth.swap(false, Ordering::Acquire) {
            return Ok(());
        }
        let Some(map) = self.map() else {
            return Ok(());
        };
        // Busy: a reset empties the pool.
        if map.grow() != Err(MapError::NoMemory) {
            return Ok(());
        }
        pr_warn_once!("out of memory for pool growth; new stacks are recorded as full stacks\n");
        // The worker comes back by itself: no need to kick it at every event.
        self.growth.store(true, Ordering::Relaxed);
        Err(ENOMEM)
    }
}

/// Adds memory to the maps. Called by the worker, which comes back later if this fails.
///
/// Context: process.
#[no_mangle]
extern "C" fn stackmap_grow() -> c_int {
    let (kernel, user) = (KERNEL.grow(), USER.grow());
    kernel.and(user).map_or_else(Error::to_errno, |()| 0)
}

/// Returns random words.
pub(crate) fn random<const N: usize>() -> [u64; N] {
    let mut words = [0_u64; N];
    // SAFETY: The buffer may be written for its whole length.
    unsafe { bindings::get_random_bytes(words.as_mut_ptr().cast(), size_of_val(&words)) };
    words
}
