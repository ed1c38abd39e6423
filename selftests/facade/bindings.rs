// SPDX-License-Identifier: GPL-2.0

// The kernel's C side in Rust. Memory has red zones and a pattern, a task can be made to run out of it, and what is
// printed or written is kept.

extern crate std;

use self::std::{
    alloc::{alloc as host_alloc, dealloc, Layout},
    cell::{Cell, RefCell},
    collections::BTreeMap,
    string::String,
    sync::{Condvar, Mutex as HostMutex},
    vec::Vec as HostVec,
};
use core::slice;

pub const EACCES: u32 = 13;
pub const EBUSY: u32 = 16;
pub const EEXIST: u32 = 17;
pub const EFAULT: u32 = 14;
pub const EINTR: u32 = 4;
pub const EINVAL: u32 = 22;
pub const ENODEV: u32 = 19;
pub const ENOENT: u32 = 2;
pub const ENOEXEC: u32 = 8;
pub const ENOMEM: u32 = 12;
pub const ENOSPC: u32 = 28;
pub const ENXIO: u32 = 6;
pub const EPERM: u32 = 1;
pub const ERANGE: u32 = 34;
pub const ESRCH: u32 = 3;
pub const O_ACCMODE: u32 = 3;
pub const O_RDONLY: u32 = 0;
pub const O_WRONLY: u32 = 1;
pub const STACKMAP_RUST_GFP_KERNEL: u32 = 0xcc0;
pub const STACKMAP_RUST_GFP_NOWAIT: u32 = 0x2800;

/// An open file, with its references.
pub struct file {
    pub references: Cell<u32>,
}
/// What was written.
pub struct seq_file {
    pub text: RefCell<HostVec<u8>>,
}
/// A task, with its references.
pub struct task_struct {
    pub references: Cell<u32>,
}
pub struct lock_class_key(usize);
pub struct module(u8);
pub struct kernel_param_ops(u8);
pub union kernel_param__bindgen_ty_1 {
    pub arg: *mut ffi::c_void,
}
pub struct kernel_param {
    pub name: *const ffi::c_char,
    pub mod_: *mut module,
    pub ops: *const kernel_param_ops,
    pub perm: u16,
    pub level: i8,
    pub flags: u8,
    pub __bindgen_anon_1: kernel_param__bindgen_ty_1,
}
pub static __this_module: module = module(0);
pub static param_ops_byte: kernel_param_ops = kernel_param_ops(0);
pub static param_ops_uint: kernel_param_ops = kernel_param_ops(0);

const RED_ZONE: usize = 64;
const GUARD: u8 = 0xbb;
const FRESH: u8 = 0x5a;

struct Allocation {
    size: usize,
    flags: u32,
}

/// All memory that is not freed, by its address.
static MEMORY: HostMutex<BTreeMap<usize, Allocation>> = HostMutex::new(BTreeMap::new());

self::std::thread_local! {
    static FAILS_AFTER: Cell<Option<u32>> = const { Cell::new(None) };
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
    static READERS: Cell<i32> = const { Cell::new(0) };
    static LOG: RefCell<HostVec<(i32, String)>> = const { RefCell::new(HostVec::new()) };
}

/// Has this thread's allocations fail after `count` more.
pub fn fail_after(count: Option<u32>) {
    FAILS_AFTER.set(count);
}

/// Returns the number of allocations of this thread less those that it has freed.
pub fn allocated() -> isize {
    ALLOCATED.get()
}

/// Returns how deep this thread is in read-side critical sections.
pub fn readers() -> i32 {
    READERS.get()
}

/// Returns what this thread has printed: levels and lines.
pub fn log() -> HostVec<(i32, String)> {
    LOG.take()
}

/// Returns the flags that memory was allocated with.
pub fn flags_of(address: usize) -> u32 {
    MEMORY.lock().unwrap()[&address].flags
}

/// The most that `kmalloc()` allocates, in bytes.
pub const KMALLOC_MAX_SIZE: usize = 4 << 20;

/// As `kmalloc()` aligns: to the size if that is a power of two, otherwise to 8 bytes and no more.
fn alignment(size: usize) -> usize {
    match size.is_power_of_two() {
        true => size.clamp(8, 4096),
        false => 8,
    }
}

/// The host's memory around it: its start, and its layout.
fn outer(address: usize, size: usize) -> (*mut u8, Layout) {
    let zone = RED_ZONE.max(alignment(size));
    let layout = Layout::from_size_align(size + 2 * zone + 8, 4096).unwrap();
    // So that it has no more alignment than it must have.
    let shift = if size.is_power_of_two() { 0 } else { 8 };
    ((address - zone - shift) as *mut u8, layout)
}

unsafe fn allocate(size: usize, flags: u32) -> *mut ffi::c_void {
    assert!((1..=isize::MAX as usize).contains(&size));
    if size > 1 << 30 {
        return core::ptr::null_mut();
    }
    match FAILS_AFTER.get() {
        Some(0) => return core::ptr::null_mut(),
        left => FAILS_AFTER.set(left.map(|left| left - 1)),
    }
    let (before, layout) = outer(1 << 40, size);
    let start = host_alloc(layout);
    let inner = start.add((1 << 40) - before as usize);
    start.write_bytes(GUARD, layout.size());
    inner.write_bytes(FRESH, size);
    ALLOCATED.set(ALLOCATED.get() + 1);
    MEMORY
        .lock()
        .unwrap()
        .insert(inner as usize, Allocation { size, flags });
    inner.cast()
}

pub unsafe fn stackmap_rust_kmalloc(size: usize, flags: u32) -> *mut ffi::c_void {
    match size {
        ..=KMALLOC_MAX_SIZE => allocate(size, flags),
        _ => core::ptr::null_mut(),
    }
}

pub unsafe fn stackmap_rust_vmalloc(size: usize, flags: u32) -> *mut ffi::c_void {
    allocate(size, flags)
}

pub unsafe fn stackmap_rust_kvmalloc(size: usize, flags: u32) -> *mut ffi::c_void {
    allocate(size, flags)
}

pub unsafe fn stackmap_rust_kvfree(memory: *const ffi::c_void) {
    let allocation = MEMORY.lock().unwrap().remove(&(memory as usize));
    let size = allocation.expect("memory that was allocated").size;
    let (start, layout) = outer(memory as usize, size);
    let bytes = slice::from_raw_parts(start, layout.size());
    let begin = memory as usize - start as usize;
    let zones = bytes[..begin].iter().chain(&bytes[begin + size..]);
    assert!(zones.copied().all(|byte| byte == GUARD), "a write past the memory");
    dealloc(start, layout);
    ALLOCATED.set(ALLOCATED.get() - 1);
}

/// A lock; `locked` is 0 or 1 once it is initialised.
pub struct mutex {
    class: usize,
    locked: u32,
}

static LOCKS: HostMutex<()> = HostMutex::new(());
static UNLOCKED: Condvar = Condvar::new();

pub unsafe fn stackmap_rust_mutex_init(lock: *mut mutex, class: *mut lock_class_key) {
    lock.write(mutex {
        class: class as usize,
        locked: 0,
    });
}

/// Returns the lock class of a mutex.
pub unsafe fn class_of(lock: *const mutex) -> usize {
    (*lock).class
}

pub unsafe fn stackmap_rust_mutex_lock(lock: *mut mutex) {
    let mut locks = LOCKS.lock().unwrap();
    assert!((*lock).locked <= 1, "a mutex that is not initialised");
    while (*lock).locked == 1 {
        locks = UNLOCKED.wait(locks).unwrap();
    }
    (*lock).locked = 1;
}

pub unsafe fn mutex_unlock(lock: *mut mutex) {
    let _locks = LOCKS.lock().unwrap();
    assert_eq!((*lock).locked, 1);
    (*lock).locked = 0;
    UNLOCKED.notify_all();
}

pub unsafe fn stackmap_rust_rcu_read_lock() {
    READERS.set(READERS.get() + 1);
}

pub unsafe fn stackmap_rust_rcu_read_unlock() {
    READERS.set(READERS.get() - 1);
}

pub unsafe fn synchronize_rcu() {
    assert_eq!(READERS.get(), 0);
}

pub unsafe fn stackmap_rust_printk(level: i32, text: *const u8, len: i32) {
    let text = String::from_utf8_lossy(slice::from_raw_parts(text, len as usize)).into_owned();
    LOG.with_borrow_mut(|log| log.push((level, text)));
}

pub unsafe fn seq_write(file: *mut seq_file, text: *const ffi::c_void, len: usize) -> i32 {
    let bytes = slice::from_raw_parts(text.cast::<u8>(), len);
    (*file).text.borrow_mut().extend_from_slice(bytes);
    0
}

/// User space: addresses from 4096 on, as many as there are bytes.
pub static USER: HostMutex<HostVec<u8>> = HostMutex::new(HostVec::new());

pub unsafe fn stackmap_rust_copy_from_user(
    to: *mut ffi::c_void,
    from: *const ffi::c_void,
    len: usize,
) -> usize {
    let memory = USER.lock().unwrap();
    let readable = (from as usize)
        .checked_sub(4096)
        .and_then(|start| memory.get(start..))
        .unwrap_or(&[]);
    let copied = readable.len().min(len);
    to.cast::<u8>()
        .copy_from_nonoverlapping(readable.as_ptr(), copied);
    len - copied
}

pub unsafe fn fput(file: *mut file) {
    (*file).references.set((*file).references.get() - 1);
}

pub unsafe fn stackmap_rust_put_task(task: *mut task_struct) {
    (*task).references.set((*task).references.get() - 1);
}

pub unsafe fn stackmap_rust_signal_pending() -> bool {
    false
}

pub unsafe fn msleep(_: u32) {}
