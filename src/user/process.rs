// SPDX-License-Identifier: GPL-2.0

//! The processes whose user stacks are read: of the current task, and of tasks that stay in
//! the kernel.

use super::{
    cfi::{File, Unknown},
    cookie::exec_id,
    encoded::{self, EncodedFrame},
    frame::{Memory, Registers, Unreadable},
};
use crate::shim::{
    self, stackmap_binary, stackmap_file, stackmap_file_key, stackmap_mapping, stackmap_process,
    stackmap_registers, stackmap_sleeper,
};
use core::{cell::Cell, marker::PhantomData, slice::from_ref};
use kernel::{
    error::to_result,
    prelude::*,
    task::Task,
    types::{NotThreadSafe, Opaque},
};

/// Wraps C functions of a type whose field has what they need, by its invariant. References are valid.
macro_rules! of {
    ($of:ty, $field:tt: $($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $function:ident;)*) => {
        impl $of {$(
            $(#[$doc])*
            pub(super) fn $name(&self, $($arg: $type),*) -> $ret {
                // SAFETY: By the invariant of the type.
                unsafe { shim::$function(&self.$field, $($arg),*) }
            }
        )*}
    };
}

of! { Process<'_>, 0:
    /// Sets `mapping` to what an address lies in. Returns whether something is there that is not just being changed.
    mapping(address: usize, mapping: &mut stackmap_mapping) -> bool = stackmap_user_mapping;
    /// Returns a register of the task, by its DWARF number, where it left user space.
    register(number: u32) -> u64 = stackmap_user_register;
    /// Returns the same as [`Process::original`], by a slot or 0; or 0.
    replaced(ip: u64, slot: u64) -> u64 = stackmap_user_original;
    /// Reads the path and the build-id of a file. Returns whether it is still mapped at that address, and its key will
    /// change when the file does.
    binary(ip: usize, key: &stackmap_file_key, binary: &mut stackmap_binary) -> bool = stackmap_user_binary;
    /// Returns the size of its 64-bit vDSO.
    vdso_size() -> u64 = stackmap_vdso_size;
}

of! { Sleeper, inner:
    /// Returns whether all that was read since `begin` is of the stack that was requested.
    stays() -> bool = stackmap_sleeper_stays;
    /// Binds its stack. Returns whether a ring buffer took that. Context: process; the caller holds the lock of the
    /// control path, so that trace arrays stay.
    bind(id: u32) -> bool = stackmap_sleeper_bind;
    /// Reads a word of its memory. Returns an errno.
    read(address: usize, word: &mut u64) -> c_int = stackmap_sleeper_word;
}

/// A process, identified through one of its tasks.
///
/// # Invariants
///
/// The task and its address space are there for as long as `'t`.
pub(super) struct Process<'t>(stackmap_process, PhantomData<&'t ()>, NotThreadSafe);

impl Process<'_> {
    /// Returns the process of the current task. Context: task.
    pub(super) fn current() -> Self {
        let mut process = stackmap_process::default();
        shim::stackmap_process_current(&mut process);
        // INVARIANT: They stay while the task runs here: the value is not sent to another one.
        Self(process, PhantomData, NotThreadSafe)
    }

    /// Returns whether a request that was remembered with this count of `exec` calls is of another program.
    pub(super) fn is_another(&self, before: u32) -> bool {
        let now = self.0.exec_id;
        let inside = self.0.in_exec && before == exec_id(now.wrapping_sub(1));
        before != exec_id(now) && !inside
    }

    /// Returns the user who is charged for its stacks and files.
    pub(super) fn user(&self) -> u32 {
        self.0.user
    }

    /// Returns the stack pointer that its program began with.
    pub(super) fn stack(&self) -> u64 {
        self.0.stack
    }

    /// Returns the word for it in a stack.
    pub(super) fn word(&self) -> EncodedFrame {
        EncodedFrame::Process {
            tgid: self.0.tgid,
            start: encoded::process(self.0.start_time, self.0.exec_id),
        }
    }

    /// Returns the address that uprobes have replaced by one of theirs. [`None`]: it is not the current task, or they have
    /// not.
    pub(super) fn original(&self, ip: u64, slot: Option<u64>) -> Option<u64> {
        Some(self.replaced(ip, slot.unwrap_or(0))).filter(|original| *original != 0)
    }

    /// Returns the file that is mapped at an address, if it is still this one. `reads` is how often it may be
    /// read.
    pub(super) fn file<'r>(
        &self,
        address: u64,
        key: &stackmap_file_key,
        reads: &'r Cell<u32>,
    ) -> Option<CachedFile<'r>> {
        let file = Opaque::uninit();
        // SAFETY: By the invariant; the references are valid, and `file` may be written.
        let begun =
            unsafe { shim::stackmap_file_begin(&self.0, address as usize, key, file.get()) };
        // INVARIANT: It was set just now. A value that is made is dropped, so none is made otherwise.
        begun.then(|| CachedFile {
            file,
            size: key.size,
            absent: Cell::new(0),
            reads,
        })
    }

    /// Returns its 64-bit vDSO.
    pub(super) fn vdso(&self) -> Vdso<'_> {
        Vdso(self)
    }
}

/// A task that stays in the kernel, with a user stack that has been requested.
///
/// # Invariants
///
/// It was set by `stackmap_sleeper_begin()`, so the task's kernel stack and address space are held.
pub(super) struct Sleeper {
    inner: stackmap_sleeper,
    /// Why memory could not be read, other than that nothing is mapped there, or code is absent.
    unreadable: Cell<Option<Unreadable>>,
    _here: NotThreadSafe,
}

impl Sleeper {
    /// Looks at a task, if it sleeps, and has a request pending unless `unasked`. Context: process, may sleep.
    pub(super) fn begin(task: &Task, unasked: bool) -> Option<Self> {
        let mut sleeper = stackmap_sleeper {
            unasked,
            ..Default::default()
        };
        // SAFETY: The task is there as long as the reference.
        let begun = unsafe { shim::stackmap_sleeper_begin(task.as_ptr(), &mut sleeper) };
        // INVARIANT: Set just now. A value that is made is dropped, so none is made otherwise.
        begun.then(|| Self {
            inner: sleeper,
            unreadable: Cell::new(None),
            _here: NotThreadSafe,
        })
    }

    /// Returns why some of its memory could not be read.
    pub(super) fn unreadable(&self) -> Option<Unreadable> {
        self.unreadable.get()
    }

    /// Returns the cookie of its kernel entry.
    pub(super) fn cookie(&self) -> u64 {
        self.inner.cookie
    }

    /// Returns whether its stack is read without a request of the task.
    pub(super) fn is_unasked(&self) -> bool {
        self.inner.unasked
    }

    /// Returns its process.
    pub(super) fn process(&self) -> Process<'_> {
        // INVARIANT: They are held as long as `self`.
        Process(self.inner.process, PhantomData, NotThreadSafe)
    }

    /// Returns where it left user space.
    pub(super) fn registers(&self) -> Registers {
        self.inner.registers.into()
    }
}

impl Memory for Sleeper {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        let word = self.code(address);
        if word == Err(Unreadable::Absent) {
            self.unreadable.set(Some(Unreadable::Absent));
        }
        word
    }

    fn code(&self, address: u64) -> Result<u64, Unreadable> {
        let mut word = 0;
        match to_result(self.read(address as usize, &mut word)) {
            Ok(()) => Ok(word),
            Err(ENXIO) => Err(Unreadable::Unmapped),
            Err(EBUSY) => {
                self.unreadable.set(Some(Unreadable::Busy));
                Err(Unreadable::Busy)
            }
            Err(_) => Err(Unreadable::Absent),
        }
    }

    fn miss(&self) {
        self.unreadable.set(Some(Unreadable::Absent));
    }

    fn without_signature(&self, address: u64) -> u64 {
        without_signature(address)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: By the invariant.
        unsafe { shim::stackmap_sleeper_end(&mut self.inner) };
    }
}

/// A file, as far as it is in the page cache.
///
/// # Invariants
///
/// `file` was set by `stackmap_file_begin()`, so the file is held.
pub(super) struct CachedFile<'r> {
    file: Opaque<stackmap_file>,
    size: u64,
    /// Where it is not in memory.
    absent: Cell<u64>,
    /// How often it may still be read.
    reads: &'r Cell<u32>,
}

impl CachedFile<'_> {
    /// Has the part read ahead that was not in memory. Context: task.
    pub(super) fn want(&self) {
        // SAFETY: By the invariant.
        unsafe { shim::stackmap_file_want((*self.file.get()).file, self.absent.get()) };
    }
}

impl File for CachedFile<'_> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        let left = self.reads.get().checked_sub(1).ok_or(Unknown::Later)?;
        self.reads.set(left);
        let (to, nr) = (bytes.as_mut_ptr().cast(), bytes.len() as u32);
        // SAFETY: By the invariant; `nr` bytes can be written.
        match unsafe { shim::stackmap_file_read(self.file.get(), offset, to, nr) } {
            true => Ok(()),
            false => {
                self.absent.set(offset);
                Err(Unknown::Absent)
            }
        }
    }

    fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for CachedFile<'_> {
    fn drop(&mut self) {
        // SAFETY: By the invariant, and it is not used any more.
        unsafe { shim::stackmap_file_end(self.file.get()) };
    }
}

/// The 64-bit vDSO of a process as the kernel has it: a process can change its own.
pub(super) struct Vdso<'p>(&'p Process<'p>);

impl File for Vdso<'_> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        let (to, nr) = (bytes.as_mut_ptr().cast(), bytes.len() as u32);
        // SAFETY: By the invariant of the process; `nr` bytes can be written.
        match unsafe { shim::stackmap_vdso_read(&self.0 .0, offset, to, nr) } {
            true => Ok(()),
            // Just now it has a vDSO of 32 bits.
            false => Err(Unknown::Absent),
        }
    }

    fn size(&self) -> u64 {
        self.0.vdso_size()
    }
}

/// The memory of the current task, as far as it is present. Words are read through a window.
pub(super) struct OwnMemory {
    words: [Cell<u64>; WINDOW],
    /// Where they are: a multiple of their size, so that all of them are in one page; or [`NOWHERE`] if the
    /// window is empty.
    start: Cell<u64>,
}

/// Words that are read of a stack at once.
const WINDOW: usize = 32;

/// Where an empty window is: no address that a process can have, and odd, so that no aligned one is in it.
const NOWHERE: u64 = 1 << 63 | 1;

/// What an empty window has: no address of user space, so that a walk ends there.
const NO_WORD: u64 = 1;

impl OwnMemory {
    pub(super) fn new() -> Self {
        Self {
            words: [const { Cell::new(NO_WORD) }; WINDOW],
            start: Cell::new(NOWHERE),
        }
    }

    /// Reads a word that is not in the window. Moves the window there if the address is aligned, and empties it
    /// if that cannot be read.
    #[inline(never)]
    fn move_to(&self, address: u64) -> Option<u64> {
        if address % 8 != 0 {
            let word = Cell::new(NO_WORD);
            return read(address, from_ref(&word)).then(|| word.get());
        }
        let first = address / 8 % WINDOW as u64;
        let start = address - 8 * first;
        if !read(start, &self.words) {
            self.start.set(NOWHERE);
            self.words.iter().for_each(|word| word.set(NO_WORD));
            return None;
        }
        self.start.set(start);
        Some(self.words[first as usize].get())
    }
}

/// Reads words of the current task's memory. Returns whether they are present.
fn read(address: u64, words: &[Cell<u64>]) -> bool {
    let (to, nr) = (words.as_ptr().cast_mut().cast(), words.len() as u32);
    // SAFETY: `nr` words can be written, as `Cell` allows; any address can be tried.
    unsafe { shim::stackmap_user_read(address as usize, to, nr) }
}

impl Memory for OwnMemory {
    #[inline(always)]
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        // An address between two words becomes a large number.
        let index = address.wrapping_sub(self.start.get()).rotate_right(3);
        let word = match self.words.get(index as usize) {
            Some(word) => Some(word.get()),
            None => self.move_to(address),
        };
        word.ok_or(Unreadable::Absent)
    }

    #[inline(always)]
    fn without_signature(&self, address: u64) -> u64 {
        without_signature(address)
    }
}

/// Returns a return address without its signature, which on arm64 is below bit 55.
#[inline(always)]
fn without_signature(address: u64) -> u64 {
    #[cfg(target_arch = "aarch64")]
    let address = address & !(shim::facts().signature & ((1 << 55) - 1));
    address
}

/// The memory of the current task, with words of 32 bits, which are aligned.
pub(super) struct OwnMemory32(pub(super) OwnMemory);

impl Memory for OwnMemory32 {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        // The half of one of 64 bits: eight bytes from here may end in another page.
        let word = self.0.word(address & !7)?;
        Ok(u64::from((word >> (8 * (address & 4))) as u32))
    }
}

impl From<stackmap_registers> for Registers {
    fn from(registers: stackmap_registers) -> Self {
        Self {
            ip: registers.ip,
            sp: registers.sp,
            fp: registers.fp,
            word: registers.word,
        }
    }
}

/// Returns where the current task left user space.
pub(super) fn registers() -> Registers {
    let mut registers = stackmap_registers::default();
    shim::stackmap_user_registers(&mut registers);
    registers.into()
}
