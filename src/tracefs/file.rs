// SPDX-License-Identifier: GPL-2.0

//! Files of ours in tracefs: what a file is, as a trait, and the operations that the VFS calls.
//!
//! C header: [`include/linux/seq_file.h`](srctree/include/linux/seq_file.h)

use crate::shim;
use core::{
    ffi::c_void,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::{from_ref, null_mut},
};
use kernel::{
    bindings,
    error::to_result,
    fs::file::flags,
    prelude::*,
    seq_file::SeqFile,
    uaccess::{UserPtr, UserSlice},
};

/// The longest write that any file of ours can make sense of, in bytes: an instance's name, `/user` and
/// a newline.
const WRITE_MAX: usize = bindings::NAME_MAX as usize + 6;

/// Delays unload until no task is inside the operations of a removed file.
pub(crate) struct Gate(());

impl Gate {
    /// Returns the gate, to be dropped after all files.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        shim::stackmap_tracefs_drain();
    }
}

/// A file in tracefs, removed when dropped.
///
/// # Invariants
///
/// The pointer is a dentry that `stackmap_tracefs_create()` returned.
pub(crate) struct Entry(*mut bindings::dentry);

// SAFETY: A dentry can be removed by any thread.
unsafe impl Send for Entry {}
// SAFETY: There is nothing to do with a shared `Entry`.
unsafe impl Sync for Entry {}

impl Entry {
    /// # Safety
    ///
    /// The dentry is from `stackmap_tracefs_create()`, and is nobody else's.
    pub(super) unsafe fn new(dentry: *mut bindings::dentry) -> Self {
        // INVARIANT: By the requirement.
        Self(dentry)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; process context.
        unsafe { shim::stackmap_tracefs_remove(self.0) };
    }
}

/// A file of ours. While it is open it holds the module.
pub(crate) trait File: 'static {
    /// The directory below tracefs' root; empty for the root.
    const DIR: &'static CStr = c"";
    /// The name.
    const NAME: &'static CStr;
    /// The permissions. Without a `w` bit the file cannot be opened for writing, not by root
    /// either.
    const MODE: bindings::umode_t;
    /// What one open file reads.
    type Reader: Reader;

    /// Takes one write, [`WRITE_MAX`] bytes at most.
    fn write(_data: &[u8]) -> Result {
        Err(EINVAL)
    }
}

/// One reading of a file: items at ascending positions, which are shown one by one.
pub(crate) trait Reader: Sized {
    /// Begins. Context: process.
    fn open() -> Result<Self>;

    /// Goes to the first item at or after `position` and returns its position, [`None`] at the
    /// end.
    fn seek(&mut self, position: u64) -> Result<Option<u64>>;

    /// Shows the item that was sought last.
    fn show(&self, out: &Output<'_>);
}

/// A reader of one item.
pub(crate) trait Text: 'static {
    /// Shows it.
    fn show(out: &Output<'_>);
}

/// Makes a [`Reader`] of a [`Text`].
pub(crate) struct Single<T: Text>(PhantomData<T>);

impl<T: Text> Reader for Single<T> {
    fn open() -> Result<Self> {
        Ok(Self(PhantomData))
    }

    fn seek(&mut self, position: u64) -> Result<Option<u64>> {
        Ok((position == 0).then_some(0))
    }

    fn show(&self, out: &Output<'_>) {
        T::show(out);
    }
}

/// Where a reader shows its items. What does not fit is shown again into a larger buffer.
pub(crate) struct Output<'a>(&'a SeqFile);

impl Output<'_> {
    /// Shows formatted text.
    pub(crate) fn text(&self, args: kernel::fmt::Arguments<'_>) {
        self.0.call_printf(args);
    }

    /// Shows an address as the symbol it lies in: `name+0x48/0xc0 [module]`.
    pub(crate) fn symbol(&self, address: u64) {
        // SAFETY: A seq_file that only we use now; `%pS` takes any address.
        unsafe { bindings::seq_printf(self.raw(), c"%pS".as_char_ptr(), address as *const c_void) };
    }

    /// Shows bytes as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) {
        // SAFETY: As above; `bytes` can be read for its length.
        unsafe { bindings::seq_write(self.raw(), bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Shows a path as `seq_path()` does: what would break a line is escaped.
    pub(crate) fn path(&self, path: &[u8]) {
        for byte in path {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' | 0..=31 | 127 => {
                    self.text(kernel::prelude::fmt!("\\{:03o}", byte));
                }
                byte => self.bytes(&[*byte]),
            }
        }
    }

    /// Returns the C structure. CAST: `SeqFile` is a transparent wrapper.
    fn raw(&self) -> *mut bindings::seq_file {
        from_ref(self.0).cast_mut().cast()
    }
}

/// Returns the operations of a [`File`].
pub(super) const fn operations<F: File>() -> *const bindings::file_operations {
    from_ref(FileOps::<F>::OPERATIONS)
}

/// The C callbacks of a [`File`].
struct FileOps<F>(PhantomData<F>);

impl<F: File> FileOps<F> {
    const WRITABLE: bool = F::MODE & 0o222 != 0;

    const OPERATIONS: &'static bindings::file_operations = &bindings::file_operations {
        owner: &raw mut shim::stackmap_gate,
        open: Some(Self::open),
        read: Some(bindings::seq_read),
        write: if Self::WRITABLE {
            Some(Self::write)
        } else {
            None
        },
        llseek: Some(Self::llseek),
        release: Some(Self::release),
        // SAFETY: A C structure of pointers and integers, for which zeros are valid.
        ..unsafe { MaybeUninit::zeroed().assume_init() }
    };

    const SEQ: &'static bindings::seq_operations = &bindings::seq_operations {
        start: Some(Self::start),
        stop: Some(Self::stop),
        next: Some(Self::next),
        show: Some(Self::show),
    };

    /// # Safety
    ///
    /// As `struct file_operations.open` is called.
    unsafe extern "C" fn open(_: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // The module is being unloaded.
        if !shim::stackmap_tracefs_enter() {
            return ENXIO.to_errno();
        }
        let begin = || {
            to_result(shim::stackmap_tracefs_allowed())?;
            // SAFETY: The file is being opened, by us.
            let flags = unsafe { (*file).f_flags };
            let access = flags & flags::O_ACCMODE;
            if access != flags::O_RDONLY && !Self::WRITABLE {
                return Err(EACCES);
            }
            if access != flags::O_WRONLY {
                let reader = KBox::new(F::Reader::open()?, GFP_KERNEL)?;
                // SAFETY: As before; the operations are static. `seq_open` sets `private_data` to a
                // seq_file that is ours.
                unsafe {
                    to_result(bindings::seq_open(file, Self::SEQ))?;
                    let seq = (*file).private_data.cast::<bindings::seq_file>();
                    (*seq).private = KBox::into_raw(reader).cast();
                }
            }
            Ok(0)
        };
        begin().unwrap_or_else(|error: Error| {
            // SAFETY: Entered above; the file is not opened.
            unsafe { shim::stackmap_tracefs_leave() };
            error.to_errno()
        })
    }

    /// Returns the seq_file of an open file; null if it is open for writing only.
    ///
    /// # Safety
    ///
    /// `open` has opened the file.
    unsafe fn seq(file: *mut bindings::file) -> *mut bindings::seq_file {
        // SAFETY: As required of the caller.
        unsafe { (*file).private_data.cast() }
    }

    /// # Safety
    ///
    /// As `struct file_operations.release` is called, for a file that `open` has opened.
    unsafe extern "C" fn release(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: `open` has entered for this file, which is closed once. If there is a seq_file, `open` put a
        // reader there, which is used for the last time, and has called `seq_open`.
        unsafe {
            let seq = Self::seq(file);
            if !seq.is_null() {
                drop(KBox::<F::Reader>::from_raw((*seq).private.cast()));
                bindings::seq_release(inode, file);
            }
            shim::stackmap_tracefs_leave();
        }
        0
    }

    /// # Safety
    ///
    /// As `struct file_operations.llseek` is called, for a file that `open` has opened.
    unsafe extern "C" fn llseek(
        file: *mut bindings::file,
        offset: bindings::loff_t,
        whence: c_int,
    ) -> bindings::loff_t {
        // SAFETY: The file is open; where there is a seq_file, `seq_open` has opened it.
        unsafe {
            if Self::seq(file).is_null() {
                return 0;
            }
            bindings::seq_lseek(file, offset, whence)
        }
    }

    /// # Safety
    ///
    /// As `struct file_operations.write` is called, for a file that `open` has opened.
    unsafe extern "C" fn write(
        _: *mut bindings::file,
        buffer: *const c_char,
        len: usize,
        position: *mut bindings::loff_t,
    ) -> isize {
        // SAFETY: The position is ours for the time of the call.
        let position = unsafe { &mut *position };
        let mut copy = [0; WRITE_MAX];
        let mut write = || {
            let data = copy.get_mut(..len).ok_or(EINVAL)?;
            UserSlice::new(UserPtr::from_ptr(buffer.cast_mut().cast()), len)
                .reader()
                .read_slice(data)?;
            F::write(data)?;
            *position += len as bindings::loff_t;
            Ok(len as isize)
        };
        write().unwrap_or_else(|error: Error| error.to_errno() as isize)
    }

    /// Returns the reader of a seq_file.
    ///
    /// # Safety
    ///
    /// `open` has made the seq_file, one of whose operations is called and ends before `'a`.
    unsafe fn reader<'a>(seq: *mut bindings::seq_file) -> &'a mut F::Reader {
        // SAFETY: `open` put a reader there; seq_file runs one operation at a time.
        unsafe { &mut *(*seq).private.cast() }
    }

    /// Seeks to `position` and says so to seq_file. `item` is anything that is neither null nor an
    /// error: the reader knows the item.
    fn seek(
        reader: &mut F::Reader,
        position: &mut bindings::loff_t,
        item: *mut c_void,
    ) -> *mut c_void {
        match reader.seek(*position as u64) {
            Ok(Some(found)) => {
                *position = found as bindings::loff_t;
                item
            }
            Ok(None) => null_mut(),
            Err(error) => error.to_ptr(),
        }
    }

    /// # Safety
    ///
    /// As `struct seq_operations.start` is called.
    unsafe extern "C" fn start(
        seq: *mut bindings::seq_file,
        position: *mut bindings::loff_t,
    ) -> *mut c_void {
        // SAFETY: As required of the caller; the position is ours for the time of the call.
        let (reader, position) = unsafe { (Self::reader(seq), &mut *position) };
        Self::seek(reader, position, seq.cast())
    }

    /// # Safety
    ///
    /// As `struct seq_operations.next` is called.
    unsafe extern "C" fn next(
        seq: *mut bindings::seq_file,
        _: *mut c_void,
        position: *mut bindings::loff_t,
    ) -> *mut c_void {
        // SAFETY: As required of the caller; the position is ours for the time of the call.
        let (reader, position) = unsafe { (Self::reader(seq), &mut *position) };
        *position += 1;
        Self::seek(reader, position, seq.cast())
    }

    /// # Safety
    ///
    /// As `struct seq_operations.stop` is called.
    unsafe extern "C" fn stop(_: *mut bindings::seq_file, _: *mut c_void) {}

    /// # Safety
    ///
    /// As `struct seq_operations.show` is called.
    unsafe extern "C" fn show(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
        // SAFETY: As required of the caller; nobody else uses a seq_file while its `show` runs.
        let (reader, out) = unsafe { (Self::reader(seq), SeqFile::from_raw(seq)) };
        reader.show(&Output(out));
        0
    }
}
