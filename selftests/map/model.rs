// SPDX-License-Identifier: GPL-2.0

//! A loom model: every order of the threads' steps is tried, and every value that a load may see.
//!
//! Each atomic operation is a *step* of its thread. A model counts the steps. It can inject an
//! interrupt before any step: a function that runs to its end on the interrupted thread.
//!
//! Freed memory must not be in use, in any order: each word tracks its accesses, and the model
//! fails if one of them does not happen before the word is dropped.

use core::cell::{Cell, OnceCell, RefCell};
use loom::{
    cell::UnsafeCell,
    sync::{atomic, Condvar, Mutex, MutexGuard},
};
use std::sync::PoisonError;

pub(in super::super) use super::heap::Array;
use core::sync::atomic::Ordering;

type Handler = Box<dyn FnOnce()>;

/// What the model knows of a thread.
struct Thread {
    number: usize,
    steps: Cell<usize>,
    /// Steps that read, modify and write at once.
    swaps: Cell<usize>,
    /// The interrupt handler to run, and the number of steps before it.
    interrupt: RefCell<Option<(usize, Handler)>>,
}

loom::thread_local! {
    static THREAD: Thread = Thread {
        number: THREADS_SEEN.fetch_add(1, Ordering::Relaxed),
        steps: Cell::new(0),
        swaps: Cell::new(0),
        interrupt: RefCell::new(None),
    };
}

/// Runs `handler` on this thread after `steps` more steps, before the next one.
pub fn interrupt_after(steps: usize, handler: impl FnOnce() + 'static) {
    THREAD.with(|thread| *thread.interrupt.borrow_mut() = Some((steps, Box::new(handler))));
}

/// Cancels a pending interrupt. Returns whether one was pending.
pub fn cancel_interrupt() -> bool {
    THREAD.with(|thread| thread.interrupt.borrow_mut().take().is_some())
}

/// The steps that this thread has made.
pub fn steps() -> usize {
    THREAD.with(|thread| thread.steps.get())
}

/// The read-modify-write steps of this thread, as words with several writers need them.
pub fn swaps() -> usize {
    THREAD.with(|thread| thread.swaps.get())
}

/// Counts a step, runs a due interrupt before it, and returns the number of the thread.
fn step() -> usize {
    let (number, handler) = THREAD.with(|thread| {
        thread.steps.set(thread.steps.get() + 1);
        let mut interrupt = thread.interrupt.borrow_mut();
        let handler = match interrupt.as_mut() {
            Some((0, _)) => interrupt.take().map(|(_, handler)| handler),
            Some((steps, _)) => {
                *steps -= 1;
                None
            }
            None => None,
        };
        (thread.number, handler)
    });
    if let Some(handler) = handler {
        handler();
    }
    number
}

/// The reads of a word since it was last written.
///
/// When loom looks for an order to try, it considers only the last access to an object. So a thread
/// that reads and then writes a word hides an earlier read by another thread. Therefore each read
/// also accesses an object that belongs to the reader, and a write after a hidden read accesses the
/// reader's object too. The object is a condition variable without waiters: it has no value and
/// orders nothing.
struct Reads {
    of: [OnceCell<Condvar>; THREADS],
    unseen: [Cell<bool>; THREADS],
    /// The thread of the last access.
    last: Cell<usize>,
}

impl Reads {
    fn new() -> Self {
        Self {
            of: core::array::from_fn(|_| OnceCell::new()),
            unseen: core::array::from_fn(|_| Cell::new(false)),
            last: Cell::new(0),
        }
    }

    /// Reads the word with `load`.
    fn read<T>(&self, thread: usize, load: impl FnOnce() -> T) -> T {
        self.of[thread].get_or_init(Condvar::new).notify_one();
        let value = load();
        self.unseen[thread].set(true);
        self.last.set(thread);
        value
    }

    /// Writes the word with `store`.
    fn write<T>(&self, thread: usize, store: impl FnOnce() -> T) -> T {
        for (reader, of) in self.of.iter().enumerate() {
            let hidden = reader != thread && reader != self.last.get();
            if hidden && self.unseen[reader].get() {
                of.get().expect("it was read").notify_one();
            }
        }
        let result = store();
        self.unseen.iter().for_each(|unseen| unseen.set(false));
        self.last.set(thread);
        result
    }
}

macro_rules! atomic {
    ($name:ident $(<$param:ident>)?, $value:ty) => {
        pub(in super::super) struct $name $(<$param>)? {
            value: atomic::$name $(<$param>)?,
            life: UnsafeCell<()>,
            reads: Reads,
        }

        impl $(<$param>)? $name $(<$param>)? {
            pub(in super::super) fn new(value: $value) -> Self {
                Self {
                    value: atomic::$name::new(value),
                    life: UnsafeCell::new(()),
                    reads: Reads::new(),
                }
            }

            pub(in super::super) fn load(&self, order: Ordering) -> $value {
                let thread = step();
                self.life.with(|_| ());
                self.reads.read(thread, || self.value.load(order))
            }

            pub(in super::super) fn store(&self, value: $value, order: Ordering) {
                self.write(|word| word.store(value, order));
            }

            fn write<R>(&self, write: impl FnOnce(&atomic::$name $(<$param>)?) -> R) -> R {
                let thread = step();
                self.life.with(|_| ());
                self.reads.write(thread, || write(&self.value))
            }
        }

        impl $(<$param>)? Drop for $name $(<$param>)? {
            fn drop(&mut self) {
                self.life.with_mut(|_| ());
            }
        }
    };
}

macro_rules! integer {
    ($name:ident, $int:ty) => {
        atomic!($name, $int);

        #[allow(dead_code)]
        impl $name {
            fn swap<R>(&self, swap: impl FnOnce(&atomic::$name) -> R) -> R {
                THREAD.with(|thread| thread.swaps.set(thread.swaps.get() + 1));
                self.write(swap)
            }

            pub(in super::super) fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.swap(|word| word.fetch_add(value, order))
            }

            pub(in super::super) fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                self.swap(|word| word.fetch_sub(value, order))
            }

            pub(in super::super) fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.swap(|word| word.compare_exchange(current, new, success, failure))
            }
        }
    };
}

integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
atomic!(AtomicPtr<T>, *mut T);

/// Threads of a model, the main one included.
const THREADS: usize = 3;

loom::lazy_static! {
    /// Held by each thread in its read-side sections.
    static ref READING: [Mutex<()>; THREADS] = core::array::from_fn(|_| Mutex::new(()));

    /// Not a part of the model, only a way to number its threads.
    static ref THREADS_SEEN: core::sync::atomic::AtomicUsize =
        core::sync::atomic::AtomicUsize::new(0);
}

fn this_thread() -> usize {
    THREAD.with(|thread| thread.number)
}

/// A read-side critical section. One thread has one at a time.
///
/// As in RCU, a section that a grace period does not wait for sees all writes before the grace
/// period. Nothing else is ordered: not two sections, and not later accesses.
pub struct ReadSide {
    _held: MutexGuard<'static, ()>,
}

impl ReadSide {
    /// Enters the section.
    pub fn enter() -> Self {
        Self {
            _held: lock(&READING[this_thread()]),
        }
    }
}

/// Waits until each thread has been seen outside a read-side section.
pub(in super::super) fn synchronize() {
    for reading in READING.iter() {
        drop(lock(reading));
    }
}

fn lock(reading: &Mutex<()>) -> MutexGuard<'_, ()> {
    reading.lock().unwrap_or_else(PoisonError::into_inner)
}
