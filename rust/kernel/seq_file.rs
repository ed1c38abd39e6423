// SPDX-License-Identifier: GPL-2.0

//! The output of a file in tracefs. Upstream: `rust/kernel/seq_file.rs`.

use crate::{bindings, types::Opaque};
use core::fmt::{self, Write};

/// A `struct seq_file`.
#[repr(transparent)]
pub struct SeqFile(Opaque<bindings::seq_file>);

impl SeqFile {
    /// # Safety
    ///
    /// The pointer is valid for `'a`, in which nobody else uses the `seq_file`.
    pub unsafe fn from_raw<'a>(ptr: *mut bindings::seq_file) -> &'a Self {
        // SAFETY: By the requirement; the wrapper is transparent.
        unsafe { &*ptr.cast() }
    }

    /// Writes formatted text. If it does not fit, seq_file calls `show` again with a larger buffer.
    pub fn call_printf(&self, args: fmt::Arguments<'_>) {
        // An overflow is kept in the seq_file.
        let _ = (Writer { file: self }).write_fmt(args);
    }
}

struct Writer<'a> {
    file: &'a SeqFile,
}

impl Write for Writer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: The seq_file is ours, see `from_raw`; `text` can be read for its length.
        unsafe { bindings::seq_write(self.file.0.get(), text.as_ptr().cast(), text.len()) };
        Ok(())
    }
}
