// SPDX-License-Identifier: GPL-2.0

//! tracefs for a module in Rust: its root, its trace arrays, and files that are described by a
//! trait.
//!
//! C header: [`include/linux/tracefs.h`](srctree/include/linux/tracefs.h)

mod file;
pub(crate) mod instances;
mod trace_array;

pub(crate) use self::{
    file::{Entry, File, Gate, Output, Reader, Single, Text},
    trace_array::{Slot, TraceArray},
};

use crate::shim;
use core::ptr::null_mut;
use kernel::{
    bindings,
    error::{from_err_ptr, to_result},
    fs,
    prelude::*,
    sync::aref::ARef,
};

/// A reference to tracefs.
///
/// # Invariants
///
/// The pointer is from `stackmap_tracefs_mount()`, for one `stackmap_tracefs_unmount()`.
pub(crate) struct Mount(*mut shim::vfsmount);

// SAFETY: Any thread can use a mount, and drop it.
unsafe impl Send for Mount {}
// SAFETY: As above: looking things up does not change it.
unsafe impl Sync for Mount {}

impl Mount {
    /// Takes hold of tracefs. Says in the log why it cannot. Context: process.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Symbols are resolved before anything else of the module is used.
        let mount = unsafe { shim::stackmap_tracefs_mount() };
        let mount = from_err_ptr(mount).inspect_err(|error| match *error {
            EPERM => pr_err!("tracefs is locked down\n"),
            ENODEV => pr_err!("this kernel has no tracefs\n"),
            error => pr_err!("tracefs cannot be mounted ({})\n", error.to_errno()),
        })?;
        // INVARIANT: Just got.
        Ok(Self(mount))
    }

    /// Finds the top-level trace array, and what recording in it needs.
    pub(crate) fn top_level(&self) -> Result<TraceArray> {
        let mut found = shim::stackmap_served::default();
        // SAFETY: By the type invariant; the path is a string, and `found` may be written.
        to_result(unsafe { shim::stackmap_tracefs_find(self.0, c".".as_char_ptr(), &mut found) })
            .inspect_err(|error| not_as_expected("the top level", *error))?;
        // SAFETY: Just found; the top level never goes.
        Ok(unsafe { TraceArray::new(found, Slot::TOP, None) })
    }

    /// Finds the trace array of an instance by its directory. It stays as long as what is returned.
    fn instance(&self, dir: &CStr, slot: Slot) -> Result<TraceArray> {
        let mut found = shim::stackmap_served::default();
        // SAFETY: As for `top_level`; the file is ours to put, and holds what was found.
        unsafe {
            let file = shim::stackmap_instance_get(self.0, dir.as_char_ptr(), &mut found);
            let file = from_err_ptr(file.cast::<fs::File>())?;
            let file = ARef::from_raw(core::ptr::NonNull::new(file).ok_or(ENOENT)?);
            Ok(TraceArray::new(found, slot, Some(file)))
        }
    }

    /// Returns whether tracefs has a file of this path.
    pub(crate) fn has(&self, path: &CStr) -> Result<bool> {
        // SAFETY: By the type invariant, and `path` is a string.
        match unsafe { shim::stackmap_tracefs_exists(self.0, path.as_char_ptr()) } {
            0 => Ok(false),
            1 => Ok(true),
            errno => Err(Error::from_errno(errno)),
        }
    }

    /// Reads the layout of `ftrace:kernel_stack`, and sees whether it is one that we can write.
    pub(crate) fn read_stack_layout(&self) -> Result {
        // SAFETY: By the type invariant; nothing is recorded yet, and what is returned stays as it
        // is.
        let layout = unsafe {
            from_err_ptr(shim::stackmap_tracefs_layout(self.0).cast_mut()).map(|layout| &*layout)
        }
        .inspect_err(|error| not_as_expected("ftrace:kernel_stack", *error))?;
        let expected = layout.type_ > 0
            && layout.nr_fields == 2
            && layout.size_offset != 0
            && layout.size_len as usize == size_of::<c_int>()
            && layout.caller_offset != 0
            && layout.caller_offset % 8 == 0
            && layout.caller_offset >= layout.size_offset + layout.size_len
            && layout.caller_len % 8 == 0;
        if !expected {
            pr_err!(
                "unknown format of ftrace:kernel_stack: type {}, {} fields, \
                 size at {} ({} bytes), caller at {} ({} bytes)\n",
                layout.type_,
                layout.nr_fields,
                layout.size_offset,
                layout.size_len,
                layout.caller_offset,
                layout.caller_len
            );
            return Err(shim::errno(bindings::EOPNOTSUPP));
        }
        Ok(())
    }

    /// Creates the file that `F` describes.
    pub(crate) fn create<F: File>(&self) -> Result<Entry> {
        let mut dentry = null_mut();
        // SAFETY: By the type invariant; the strings and operations are static.
        to_result(unsafe {
            shim::stackmap_tracefs_create(
                self.0,
                F::DIR.as_char_ptr(),
                F::NAME.as_char_ptr(),
                F::MODE,
                file::operations::<F>(),
                &mut dentry,
            )
        })
        .inspect_err(|error| {
            pr_err!(
                "tracefs: the file {:?} cannot be created ({})\n",
                F::NAME,
                error.to_errno()
            );
        })?;
        // SAFETY: Just created.
        Ok(unsafe { Entry::new(dentry) })
    }
}

fn not_as_expected(what: &str, error: Error) {
    pr_err!(
        "tracefs: {} is not as expected ({})\n",
        what,
        error.to_errno()
    );
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { shim::stackmap_tracefs_unmount(self.0) };
    }
}
