// SPDX-License-Identifier: GPL-2.0

//! Synchronisation. Upstream: `rust/kernel/sync.rs`.

mod arc;
pub mod aref;
mod lock;
pub mod rcu;
mod set_once;

pub use crate::new_mutex;
pub use arc::{Arc, ArcBorrow};
#[doc(hidden)]
pub use lock::{LockClass, MutexInit};
pub use lock::{Mutex, MutexGuard};
pub use set_once::SetOnce;
