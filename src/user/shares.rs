// SPDX-License-Identifier: GPL-2.0

//! How much of a shared room each user has used, so that those who are not root cannot exhaust it.

use core::sync::atomic::{AtomicBool, Ordering};
use kernel::{new_mutex, prelude::*, rbtree::RBTree, sync::Mutex};

const ROOT: u32 = 0;

/// What users have used since the last reset, in units.
pub(super) struct Shares {
    by_user: RBTree<u32, u64>,
    /// Of all users but root.
    used: u64,
    total: u64,
}

impl Shares {
    /// Nothing is used yet, of so many units.
    pub(super) fn new(total: u64) -> Self {
        Self {
            by_user: RBTree::new(),
            used: 0,
            total,
        }
    }

    /// Nothing is used any more.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.total);
    }

    /// Whether a user may use no more: one has three quarters, and all together seven eighths.
    pub(super) fn is_exhausted(&self, user: u32) -> bool {
        let used = || self.by_user.get(&user).copied().unwrap_or(0);
        user != ROOT && (self.used >= self.total / 8 * 7 || used() >= self.total / 4 * 3)
    }

    /// Counts what a user has used. ENOMEM: only that of all together is counted.
    pub(super) fn add(&mut self, user: u32, units: u64) -> Result {
        if user == ROOT {
            return Ok(());
        }
        self.used += units;
        match self.by_user.get_mut(&user) {
            Some(used) => *used += units,
            None => drop(
                self.by_user
                    .try_create_and_insert(user, units, GFP_NOWAIT)?,
            ),
        }
        Ok(())
    }
}

/// Shares that are looked at for every stack, and mostly not exhausted.
#[pin_data]
pub(super) struct SharedRoom {
    #[pin]
    shares: Mutex<Shares>,
    /// Whether a user may use no more.
    exhausted: AtomicBool,
}

impl SharedRoom {
    /// See [`Shares::new`].
    pub(super) fn new(total: u64) -> impl PinInit<Self> {
        pin_init!(Self {
            shares <- new_mutex!(Shares::new(total)),
            exhausted: AtomicBool::new(false),
        })
    }

    /// See [`Shares::forget`]. Context: process.
    pub(super) fn forget(&self) {
        let mut shares = self.shares.lock();
        shares.forget();
        self.exhausted.store(false, Ordering::Relaxed);
    }

    /// See [`Shares::is_exhausted`]. Context: process.
    pub(super) fn is_exhausted(&self, user: u32) -> bool {
        self.exhausted.load(Ordering::Relaxed) && self.shares.lock().is_exhausted(user)
    }

    /// See [`Shares::add`]. Context: process.
    pub(super) fn add(&self, user: u32, units: u64) {
        let mut shares = self.shares.lock();
        // What cannot be counted is kept all the same.
        let _ = shares.add(user, units);
        if shares.is_exhausted(user) {
            self.exhausted.store(true, Ordering::Relaxed);
        }
    }
}
