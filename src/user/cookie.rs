// SPDX-License-Identifier: GPL-2.0

//! Cookies, which name an entry into the kernel, and the ids that they were bound to last.

use core::{
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering},
};

/// Entries that are remembered for each CPU.
pub const REMEMBERED: usize = 4096;

/// The number of an entry into the kernel, as the kernel's deferred unwinder gives it: the CPU of the
/// first request and one, in the low half, and a count of that CPU that grows by two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Returns the CPU, if the cookie has one.
    pub fn cpu(self) -> Option<usize> {
        (self.0 as u32).checked_sub(1).map(|cpu| cpu as usize)
    }

    /// Returns the count.
    pub fn count(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Set in the low half of a word while the cookie is not bound: then the other bits are the task's
/// count of `exec` calls. Ids are positive numbers of 32 bits with a sign.
const PENDING: u32 = 1 << 31;

/// The low half of a word whose cookie is bound, but to no id; no count of `exec` calls is so large.
const NOT_KEPT: u32 = u32::MAX;

/// What is known of a cookie.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Known {
    /// It is bound to this id; 0 if its stack is not kept.
    Bound(u32),
    /// It was requested by a task with this count of `exec` calls; see [`exec_id`].
    Pending(u32),
}

/// What is known of the last [`REMEMBERED`] cookies of each CPU: words of `count << 32 | low`, or 0.
pub struct Remembered<W>(W);

impl<W: Deref<Target = [AtomicU64]>> Remembered<W> {
    /// Returns a memory of no cookies: `words` has [`REMEMBERED`] words for each CPU, all of them 0.
    pub fn new(words: W) -> Self {
        Self(words)
    }

    #[inline(always)]
    fn word(&self, cookie: Cookie) -> Option<&AtomicU64> {
        let index = (cookie.count() / 2) as usize % REMEMBERED;
        self.0.get(cookie.cpu()?.checked_mul(REMEMBERED)? + index)
    }

    /// Returns what is known of a cookie, if it is one of the last. Context: any.
    pub fn get(&self, cookie: Cookie) -> Option<Known> {
        known(self.word(cookie)?.load(Ordering::Relaxed), cookie)
    }

    /// Remembers that a task with this count of `exec` calls has requested a cookie; only the first
    /// request of an entry counts, as another program may run when the next one is made.
    /// Context: any.
    #[inline(always)]
    pub fn request(&self, cookie: Cookie, exec_id: u32) {
        if self.get(cookie).is_none() {
            self.set(cookie, exec_id | PENDING);
        }
    }

    /// Remembers the id that a cookie is bound to, 0 if its stack is not kept, unless it is bound already.
    /// Returns the id that it is bound to. Context: any.
    pub fn bind(&self, cookie: Cookie, id: u32) -> u32 {
        let Some(word) = self.word(cookie) else {
            return id;
        };
        let low = if id == 0 { NOT_KEPT } else { id & !PENDING };
        let new = u64::from(cookie.count()) << 32 | u64::from(low);
        let mut old = word.load(Ordering::Relaxed);
        loop {
            if let Some(Known::Bound(known)) = known(old, cookie) {
                return known;
            }
            // A task can sleep for longer than its cookie is remembered: newer ones stay.
            let count = (old >> 32) as u32;
            if count.wrapping_sub(cookie.count()) as i32 > 0 && count != 0 {
                return id;
            }
            let bound = word.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
            match bound {
                Ok(_) => return id,
                Err(now) => old = now,
            }
        }
    }

    #[inline(always)]
    fn set(&self, cookie: Cookie, low: u32) {
        if let Some(word) = self.word(cookie) {
            let high = u64::from(cookie.count()) << 32;
            word.store(high | u64::from(low), Ordering::Relaxed);
        }
    }

    /// Forgets all cookies.
    pub fn forget(&self) {
        for word in &*self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns what a word says of a cookie.
#[inline(always)]
fn known(word: u64, cookie: Cookie) -> Option<Known> {
    let low = word as u32;
    if word >> 32 != u64::from(cookie.count()) || low == 0 {
        return None;
    }
    Some(match low {
        NOT_KEPT => Known::Bound(0),
        _ if low & PENDING != 0 => Known::Pending(low & !PENDING),
        _ => Known::Bound(low),
    })
}

/// Returns the count of `exec` calls as it is remembered, in 31 bits without the highest number.
pub fn exec_id(count: u64) -> u32 {
    (count % u64::from(NOT_KEPT & !PENDING)) as u32
}
