// SPDX-License-Identifier: GPL-2.0

//! How much of a shared resource each user has used, so that no user but root can exhaust it.

use core::sync::atomic::{AtomicBool, Ordering};
use kernel::{new_mutex, prelude::*, sync::Mutex};

const ROOT: u32 = 0;

/// What users have used since the last reset, in units.
pub(super) struct Shares {
    /// Sorted by user.
    by_user: KVec<(u32, u64)>,
    /// Of all users but root.
    used: u64,
    total: u64,
}

impl Shares {
    /// Returns shares of `total` units, of which none is used.
    pub(super) fn new(total: u64) -> Self {
        Self {
            by_user: KVec::new(),
            used: 0,
            total,
        }
    }

    /// Forgets what was used.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.total);
    }

    /// Returns whether a user may use no more: one user has three quarters, and all users together seven
    /// eighths.
    pub(super) fn is_exhausted(&self, user: u32) -> bool {
        let used = || match self.search(user) {
            Ok(index) => self.by_user[index].1,
            Err(_) => 0,
        };
        user != ROOT && (self.used >= self.total / 8 * 7 || used() >= self.total / 4 * 3)
    }

    /// Returns the index of a user in `by_user`: `Err` with the index to insert it at if it is not there.
    fn search(&self, user: u32) -> core::result::Result<usize, usize> {
        self.by_user.binary_search_by_key(&user, |(user, _)| *user)
    }

    /// Counts what a user has used. ENOMEM: it is counted only for all users together.
    pub(super) fn add(&mut self, user: u32, units: u64) -> Result {
        if user == ROOT {
            return Ok(());
        }
        self.used += units;
        match self.search(user) {
            Ok(index) => self.by_user[index].1 += units,
            Err(index) => {
                self.by_user.reserve(1, GFP_NOWAIT)?;
                self.by_user
                    .insert_within_capacity(index, (user, units))
                    .map_err(|_| ENOMEM)?;
            }
        }
        Ok(())
    }
}

/// The users' shares of the pool: they are checked for every stack, and mostly not exhausted.
pub(super) struct PoolShares {
    shares: Pin<KBox<Mutex<Shares>>>,
    /// Whether a user may use no more.
    exhausted: AtomicBool,
}

impl PoolShares {
    /// Wraps [`Shares::new`].
    pub(super) fn new(total: u64) -> Result<Self> {
        Ok(Self {
            shares: KBox::pin_init(new_mutex!(Shares::new(total)), GFP_KERNEL)?,
            exhausted: AtomicBool::new(false),
        })
    }

    /// Calls [`Shares::forget`]. Context: process.
    pub(super) fn forget(&self) {
        let mut shares = self.shares.lock();
        shares.forget();
        self.exhausted.store(false, Ordering::Relaxed);
    }

    /// Calls [`Shares::is_exhausted`], unless no user has exhausted a share. Context: process.
    pub(super) fn is_exhausted(&self, user: u32) -> bool {
        self.exhausted.load(Ordering::Relaxed) && self.shares.lock().is_exhausted(user)
    }

    /// Calls [`Shares::add`]. Context: process.
    pub(super) fn add(&self, user: u32, units: u64) {
        let mut shares = self.shares.lock();
        // What cannot be counted is kept all the same.
        let _ = shares.add(user, units);
        if shares.is_exhausted(user) {
            self.exhausted.store(true, Ordering::Relaxed);
        }
    }
}
