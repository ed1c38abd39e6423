// SPDX-License-Identifier: GPL-2.0

//! Strings. Upstream: `rust/kernel/str.rs`.

use crate::{
    alloc::{flags::GFP_KERNEL, AllocError, KVec},
    ffi::c_char,
};
use core::{
    ffi::CStr,
    fmt::{self, Write},
    ops::Deref,
};

/// A string of bytes; shown with those escaped that are not printable ASCII.
#[repr(transparent)]
pub struct BStr([u8]);

impl BStr {
    /// Returns the bytes as a string.
    pub const fn from_bytes(bytes: &[u8]) -> &Self {
        // SAFETY: The type is transparent.
        unsafe { &*(core::ptr::from_ref(bytes) as *const Self) }
    }
}

impl fmt::Display for BStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0 {
            match byte {
                b'\t' => f.write_str("\\t")?,
                b'\n' => f.write_str("\\n")?,
                b'\r' => f.write_str("\\r")?,
                b' '..=b'~' => f.write_char(char::from(*byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        Ok(())
    }
}

/// The kernel's `char` in strings of C.
pub trait CStrExt {
    /// Wraps a string that ends with NUL.
    ///
    /// # Safety
    ///
    /// The pointer is to a string that ends with NUL and stays for `'a`.
    unsafe fn from_char_ptr<'a>(ptr: *const c_char) -> &'a Self;

    /// Returns the pointer for C.
    fn as_char_ptr(&self) -> *const c_char;
}

impl CStrExt for CStr {
    unsafe fn from_char_ptr<'a>(ptr: *const c_char) -> &'a Self {
        // SAFETY: As required of the caller.
        unsafe { CStr::from_ptr(ptr.cast()) }
    }

    fn as_char_ptr(&self) -> *const c_char {
        self.as_ptr().cast()
    }
}

/// An owned string that ends with NUL.
///
/// # Invariants
///
/// The bytes are those of a [`CStr`].
pub struct CString(KVec<u8>);

impl TryFrom<&CStr> for CString {
    type Error = AllocError;

    fn try_from(text: &CStr) -> Result<Self, AllocError> {
        let mut bytes = KVec::new();
        bytes.extend_from_slice(text.to_bytes_with_nul(), GFP_KERNEL)?;
        // INVARIANT: Those of `text`.
        Ok(Self(bytes))
    }
}

impl Deref for CString {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        // SAFETY: By the type invariant.
        unsafe { CStr::from_bytes_with_nul_unchecked(&self.0) }
    }
}
