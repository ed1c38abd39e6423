// SPDX-License-Identifier: GPL-2.0

//! Errors of the kernel. Upstream: `rust/kernel/error.rs`.

use crate::{
    alloc::AllocError,
    ffi::{c_int, c_uint},
};
use core::num::NonZeroI32;

/// The largest errno of a pointer that is an error.
const MAX_ERRNO: c_int = 4095;

/// The errnos that `src/` names.
pub mod code {
    use super::Error;

    macro_rules! codes {
        ($($name:ident)*) => {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Error = Error::of(crate::bindings::$name);
            )*
        };
    }

    codes! { EACCES EBUSY EEXIST EFAULT EINTR EINVAL ENODEV ENOENT ENOEXEC ENOMEM ENOSPC ENXIO EPERM ERANGE ESRCH }
}

/// An error of the kernel.
///
/// # Invariants
///
/// The value is a negative errno, at least `-MAX_ERRNO`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Error(NonZeroI32);

/// A result with an [`Error`].
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

impl Error {
    const fn of(code: c_uint) -> Self {
        assert!(code != 0 && code <= MAX_ERRNO as c_uint);
        match NonZeroI32::new(-(code as c_int)) {
            // INVARIANT: By the assertion.
            Some(errno) => Self(errno),
            None => panic!(),
        }
    }

    /// Returns the error of a negative errno; `EINVAL` if it is none.
    pub fn from_errno(errno: c_int) -> Self {
        match NonZeroI32::new(errno) {
            // INVARIANT: In the range.
            Some(value) if (-MAX_ERRNO..0).contains(&errno) => Self(value),
            _ => code::EINVAL,
        }
    }

    /// Returns the negative errno.
    pub fn to_errno(self) -> c_int {
        self.0.get()
    }

    /// Returns the error as a pointer, as `ERR_PTR()` does.
    pub fn to_ptr<T>(self) -> *mut T {
        self.0.get() as isize as *mut T
    }
}

impl From<AllocError> for Error {
    fn from(_: AllocError) -> Self {
        code::ENOMEM
    }
}

/// Returns `Err` for a negative errno.
pub fn to_result(errno: c_int) -> Result {
    if errno < 0 {
        Err(Error::from_errno(errno))
    } else {
        Ok(())
    }
}

/// Returns the pointer, or `Err` if it is an `ERR_PTR()`.
pub fn from_err_ptr<T>(ptr: *mut T) -> Result<*mut T> {
    match ptr as isize {
        errno if (-(MAX_ERRNO as isize)..0).contains(&errno) => {
            Err(Error::from_errno(errno as c_int))
        }
        _ => Ok(ptr),
    }
}
