// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events, and how they get their stacks.

mod binds;
mod join;
mod time;

pub use binds::{Binds, Cookie};
pub use join::{Event, Flags, Losses, Pairs, Sides, StackRef, UserRef};
pub use time::Time;
