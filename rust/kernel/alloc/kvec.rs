// SPDX-License-Identifier: GPL-2.0

//! A growable array. Upstream: `rust/kernel/alloc/kvec.rs` and `kvec/errors.rs`.

use super::{AllocError, Allocator, Flags, RawMemory};
use crate::error::{code::EINVAL, Error};
use core::{
    fmt,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr::{copy_nonoverlapping, NonNull},
    slice,
};

/// The vector is full. Has the value that was not added.
pub struct PushError<T>(pub T);

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushError")
    }
}

impl<T> From<PushError<T>> for Error {
    fn from(_: PushError<T>) -> Self {
        EINVAL
    }
}

/// The index is beyond the end.
#[derive(Debug)]
pub struct RemoveError;

/// A growable array in memory of an allocator.
///
/// # Invariants
///
/// The first `len` values of `memory` are initialised, and `len` is not above its capacity.
pub struct Vec<T, A: Allocator> {
    memory: RawMemory<T, A>,
    len: usize,
}

// SAFETY: It owns its values.
unsafe impl<T: Send, A: Allocator> Send for Vec<T, A> {}
// SAFETY: A shared vector gives shared references only.
unsafe impl<T: Sync, A: Allocator> Sync for Vec<T, A> {}

impl<T, A: Allocator> Vec<T, A> {
    /// Returns an empty vector without memory.
    pub const fn new() -> Self {
        // INVARIANT: There are no values.
        Self {
            memory: RawMemory::EMPTY,
            len: 0,
        }
    }

    /// Returns an empty vector with memory for `capacity` values.
    pub fn with_capacity(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
        // INVARIANT: There are no values.
        Ok(Self {
            memory: RawMemory::new(capacity, flags)?,
            len: 0,
        })
    }

    /// Reserves memory for `additional` more values; at least doubles the capacity if it grows.
    pub fn reserve(&mut self, additional: usize, flags: Flags) -> Result<(), AllocError> {
        let needed = self.len.checked_add(additional).ok_or(AllocError)?;
        if needed <= self.memory.capacity {
            return Ok(());
        }
        let doubled = self.memory.capacity.saturating_mul(2);
        let memory = RawMemory::new(needed.max(doubled), flags)?;
        // SAFETY: Both have memory for `len` values. Those in the old memory are not used again.
        unsafe { copy_nonoverlapping(self.memory.ptr.as_ptr(), memory.ptr.as_ptr(), self.len) };
        // INVARIANT: The values have moved.
        self.memory = memory;
        Ok(())
    }

    /// Adds a value at the end.
    pub fn push(&mut self, value: T, flags: Flags) -> Result<(), AllocError> {
        self.reserve(1, flags)?;
        self.push_within_capacity(value).map_err(|_| AllocError)
    }

    /// Adds a value at the end, without allocating memory.
    pub fn push_within_capacity(&mut self, value: T) -> Result<(), PushError<T>> {
        self.insert_within_capacity(self.len, value)
    }

    /// Adds `additional` to the length, for values that were written after the last one.
    ///
    /// # Safety
    ///
    /// `additional` values after the last one are initialised, and within the capacity.
    pub unsafe fn inc_len(&mut self, additional: usize) {
        // INVARIANT: By the requirement.
        self.len += additional;
    }

    /// Inserts a value at an index, without allocating memory.
    pub fn insert_within_capacity(&mut self, index: usize, value: T) -> Result<(), PushError<T>> {
        if index > self.len || self.len >= self.memory.capacity {
            return Err(PushError(value));
        }
        // SAFETY: The capacity is above `len`, so there is memory for one more value; those after `index` move up.
        unsafe {
            let at = self.memory.ptr.as_ptr().add(index);
            core::ptr::copy(at, at.add(1), self.len - index);
            at.write(value);
        }
        // INVARIANT: One more value is initialised.
        self.len += 1;
        Ok(())
    }

    /// Removes the value at an index.
    pub fn remove(&mut self, index: usize) -> Result<T, RemoveError> {
        if index >= self.len {
            return Err(RemoveError);
        }
        // INVARIANT: One value less, also if a caller never gets to drop it.
        self.len -= 1;
        // SAFETY: `index` is of a value that was initialised; those after it move down.
        unsafe {
            let at = self.memory.ptr.as_ptr().add(index);
            let value = at.read();
            core::ptr::copy(at.add(1), at, self.len - index);
            Ok(value)
        }
    }

    /// Keeps the values for which a closure returns true, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        let mut kept = 0;
        for index in 0..self.len {
            if keep(&mut self[index]) {
                self.swap(kept, index);
                kept += 1;
            }
        }
        while self.len > kept {
            drop(self.remove(self.len - 1));
        }
    }

    /// Drops all values; the memory stays.
    pub fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// Adds copies of values at the end.
    pub fn extend_from_slice(&mut self, values: &[T], flags: Flags) -> Result<(), AllocError>
    where
        T: Clone,
    {
        self.reserve(values.len(), flags)?;
        for value in values {
            self.push_within_capacity(value.clone())
                .map_err(|_| AllocError)?;
        }
        Ok(())
    }

    /// Gives the memory away: pointer, length and capacity. [`Vec::from_raw_parts`] takes it back.
    pub fn into_raw_parts(self) -> (*mut T, usize, usize) {
        let this = ManuallyDrop::new(self);
        (this.memory.ptr.as_ptr(), this.len, this.memory.capacity)
    }

    /// Takes memory back.
    ///
    /// # Safety
    ///
    /// `ptr` and `capacity` are from [`Vec::into_raw_parts`], the first `len` values are initialised, and nothing else
    /// uses them.
    pub unsafe fn from_raw_parts(ptr: *mut T, len: usize, capacity: usize) -> Self {
        // INVARIANT: By the requirement.
        let memory = RawMemory {
            // SAFETY: A vector's pointer is never null.
            ptr: unsafe { NonNull::new_unchecked(ptr) },
            capacity,
            _allocator: PhantomData,
        };
        Self { memory, len }
    }
}

impl<T, A: Allocator> Default for Vec<T, A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, A: Allocator> Deref for Vec<T, A> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: By the type invariant.
        unsafe { slice::from_raw_parts(self.memory.ptr.as_ptr(), self.len) }
    }
}

impl<T, A: Allocator> DerefMut for Vec<T, A> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: By the type invariant.
        unsafe { slice::from_raw_parts_mut(self.memory.ptr.as_ptr(), self.len) }
    }
}

impl<'a, T, A: Allocator> IntoIterator for &'a Vec<T, A> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T, A: Allocator> IntoIterator for &'a mut Vec<T, A> {
    type Item = &'a mut T;
    type IntoIter = slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T, A: Allocator> Drop for Vec<T, A> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; each value is dropped once.
        unsafe { core::ptr::drop_in_place(&raw mut **self) };
    }
}
