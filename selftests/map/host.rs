// SPDX-License-Identifier: GPL-2.0

//! A host program: grace periods by a reader-writer lock. Readers share the lock; a grace period
//! takes it once for writing.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

pub(in super::super) use super::heap::Array;
pub(in super::super) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

static READERS: RwLock<()> = RwLock::new(());

/// A read-side critical section.
pub struct ReadSide {
    _guard: RwLockReadGuard<'static, ()>,
}

impl ReadSide {
    /// Enters the section, which must not be entered again by the same thread meanwhile.
    pub fn enter() -> Self {
        Self {
            _guard: READERS.read().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Waits for every read-side section that began before.
pub(in super::super) fn synchronize() {
    drop(READERS.write().unwrap_or_else(PoisonError::into_inner));
}
