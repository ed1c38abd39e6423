// SPDX-License-Identifier: GPL-2.0

//! Memory. Upstream: `rust/kernel/alloc.rs`, `alloc/allocator.rs`, `alloc/kbox.rs` and `alloc/kvec.rs`.

mod kbox;
mod kvec;

pub use kbox::KBox;
pub use kvec::{PushError, RemoveError, Vec};

use crate::bindings;
use core::{marker::PhantomData, ptr::NonNull};

/// Memory could not be allocated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AllocError;

/// How memory is allocated: `gfp_t`.
#[derive(Clone, Copy)]
pub struct Flags(u32);

/// The flags that `src/` uses.
pub mod flags {
    use super::Flags;
    use crate::bindings;

    /// Can sleep, reclaim memory and do I/O.
    pub const GFP_KERNEL: Flags = Flags(bindings::STACKMAP_RUST_GFP_KERNEL);
    /// Does not sleep.
    pub const GFP_NOWAIT: Flags = Flags(bindings::STACKMAP_RUST_GFP_NOWAIT);
}

/// The kernel's allocators, with less than upstream's trait: all memory is freed by `kvfree()`.
pub trait Allocator {
    /// Returns memory, or null. If the size is a power of two, the memory is aligned to it, up to a page.
    fn alloc(size: usize, flags: Flags) -> *mut u8;
}

macro_rules! allocators {
    ($($(#[$doc:meta])* $name:ident = $alloc:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl Allocator for $name {
            fn alloc(size: usize, flags: Flags) -> *mut u8 {
                // SAFETY: It has no precondition but a context in which `flags` are allowed.
                unsafe { bindings::$alloc(size, flags.0) }.cast()
            }
        }
    )*};
}

allocators! {
    /// Physically contiguous memory, `kmalloc()`.
    Kmalloc = stackmap_rust_kmalloc;
    /// Virtually contiguous memory, `vmalloc()`.
    Vmalloc = stackmap_rust_vmalloc;
    /// Either of them, `kvmalloc()`.
    KVmalloc = stackmap_rust_kvmalloc;
}

/// A vector in memory from `kmalloc()`.
pub type KVec<T> = Vec<T, Kmalloc>;
/// A vector in memory from `vmalloc()`.
pub type VVec<T> = Vec<T, Vmalloc>;
/// A vector in memory from `kvmalloc()`.
pub type KVVec<T> = Vec<T, KVmalloc>;

/// Memory for `capacity` values of `T`, which are neither initialised nor dropped here.
///
/// # Invariants
///
/// `ptr` is from `A` with a size for `capacity` values and an alignment of `T`, or dangling if that size is 0.
struct RawMemory<T, A: Allocator> {
    ptr: NonNull<T>,
    capacity: usize,
    _allocator: PhantomData<A>,
}

impl<T, A: Allocator> RawMemory<T, A> {
    /// No memory.
    const EMPTY: Self = Self {
        // INVARIANT: Dangling, for a size of 0.
        ptr: NonNull::dangling(),
        capacity: if size_of::<T>() == 0 { usize::MAX } else { 0 },
        _allocator: PhantomData,
    };

    /// Returns new memory for `capacity` values.
    fn new(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
        let size = capacity.checked_mul(size_of::<T>()).ok_or(AllocError)?;
        if size == 0 {
            return Ok(Self::EMPTY);
        }
        // kmalloc() aligns to 8 bytes, and to the size if that is a power of two.
        let size = match align_of::<T>() {
            0..=8 => size,
            _ => size.checked_next_power_of_two().ok_or(AllocError)?,
        };
        if size > isize::MAX as usize {
            return Err(AllocError);
        }
        Ok(Self {
            // INVARIANT: Just allocated; its size is a power of two where 8 bytes of alignment are not enough.
            ptr: NonNull::new(A::alloc(size, flags).cast()).ok_or(AllocError)?,
            capacity,
            _allocator: PhantomData,
        })
    }
}

impl<T, A: Allocator> Drop for RawMemory<T, A> {
    fn drop(&mut self) {
        if size_of::<T>() != 0 && self.capacity != 0 {
            // SAFETY: By the type invariant, it is from the kernel's allocators, and nobody uses it any more.
            unsafe { bindings::stackmap_rust_kvfree(self.ptr.as_ptr().cast()) };
        }
    }
}
