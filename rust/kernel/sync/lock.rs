// SPDX-License-Identifier: GPL-2.0

//! Mutexes. Upstream: `rust/kernel/sync/lock.rs`, `lock/mutex.rs` and `lock/global.rs`.

use crate::{
    bindings,
    init::PinInit,
    types::{NotThreadSafe, Opaque},
};
use core::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
};

/// The class of a mutex for lockdep, one for each place that makes mutexes. Upstream: `LockClassKey` in
/// `rust/kernel/sync.rs`.
#[doc(hidden)]
pub struct LockClass(Opaque<bindings::lock_class_key>);

// SAFETY: Only lockdep uses it.
unsafe impl Sync for LockClass {}

impl LockClass {
    /// Returns the class of a static.
    ///
    /// # Safety
    ///
    /// The result is the value of a static.
    #[doc(hidden)]
    pub const unsafe fn new() -> Self {
        Self(Opaque::zeroed())
    }
}

/// A value that one task at a time uses: `struct mutex`.
///
/// # Invariants
///
/// The mutex is initialised before it is locked, and does not move.
pub struct Mutex<T> {
    mutex: Opaque<bindings::mutex>,
    class: &'static LockClass,
    value: UnsafeCell<T>,
}

// SAFETY: It owns the value.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: One task at a time uses the value.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// Returns a static mutex, see [`global_lock!`](crate::global_lock).
    ///
    /// # Safety
    ///
    /// [`Mutex::init`] is called before it is locked.
    #[doc(hidden)]
    pub const unsafe fn uninit(value: T, class: &'static LockClass) -> Self {
        Self {
            mutex: Opaque::uninit(),
            class,
            value: UnsafeCell::new(value),
        }
    }

    /// Initialises a static mutex.
    ///
    /// # Safety
    ///
    /// It is called once, and nobody uses the mutex yet.
    pub unsafe fn init(&'static self) {
        // SAFETY: By the requirement. INVARIANT: Initialised, and static.
        unsafe { bindings::stackmap_rust_mutex_init(self.mutex.get(), self.class.0.get()) }
    }

    /// Locks the mutex. Context: process, may sleep.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // SAFETY: By the type invariant.
        unsafe { bindings::stackmap_rust_mutex_lock(self.mutex.get()) };
        // INVARIANT: Just locked.
        MutexGuard {
            lock: self,
            _task: NotThreadSafe,
        }
    }
}

/// The value of a locked mutex, which is unlocked when this is dropped.
///
/// # Invariants
///
/// This task has locked the mutex.
pub struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    _task: NotThreadSafe,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant, nobody else uses the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: As above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::mutex_unlock(self.lock.mutex.get()) }
    }
}

/// Initialises a [`Mutex`] where it stays; see [`new_mutex!`](crate::new_mutex).
#[doc(hidden)]
pub struct MutexInit<T> {
    pub value: T,
    pub class: &'static LockClass,
}

// SAFETY: All fields are initialised.
unsafe impl<T> PinInit<Mutex<T>> for MutexInit<T> {
    unsafe fn init(self, slot: *mut Mutex<T>) {
        // SAFETY: As required of the caller. INVARIANT: The mutex does not move.
        unsafe {
            slot.write(Mutex::uninit(self.value, self.class));
            bindings::stackmap_rust_mutex_init((*slot).mutex.get(), self.class.0.get());
        }
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! lock_class {
    () => {{
        // SAFETY: It is a static.
        static CLASS: $crate::sync::LockClass = unsafe { $crate::sync::LockClass::new() };
        &CLASS
    }};
}

/// Initialises a [`Mutex`] with a value.
#[macro_export]
macro_rules! new_mutex {
    ($value:expr) => {
        $crate::sync::MutexInit {
            value: $value,
            class: $crate::lock_class!(),
        }
    };
}

/// Declares a static [`Mutex`], which is initialised by [`Mutex::init`].
#[macro_export]
macro_rules! global_lock {
    ($(#[$meta:meta])* $vis:vis unsafe(uninit) static $name:ident: Mutex<$type:ty> = $value:expr;) => {
        $(#[$meta])*
        $vis static $name: $crate::sync::Mutex<$type> =
            // SAFETY: `unsafe(uninit)` says that it is initialised before it is locked.
            unsafe { $crate::sync::Mutex::uninit($value, $crate::lock_class!()) };
    };
}
