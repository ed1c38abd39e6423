// SPDX-License-Identifier: GPL-2.0

//! How much of a shared room each user has used, so that those who are not root cannot exhaust it.

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
    /// Nothing is used yet, of so many units.
    pub(super) fn new(total: u64) -> Self {
        Self {
            by_user: KVec::new(),
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

    /// Counts what a user has used. ENOMEM: only that of all together is counted.
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

/// Shares that are looked at for every stack, and mostly not exhausted.
pub(super) struct SharedRoom {
    shares: Pin<KBox<Mutex<Shares>>>,
    /// Whether a user may use no more.
    exhausted: AtomicBool,
}

impl SharedRoom {
    /// See [`Shares::new`].
    pub(super) fn new(total: u64) -> Result<Self> {
        Ok(Self {
            shares: KBox::pin_init(new_mutex!(Shares::new(total)), GFP_KERNEL)?,
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
