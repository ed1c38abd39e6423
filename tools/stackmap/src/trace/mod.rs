// SPDX-License-Identifier: MIT OR Apache-2.0

//! The text of `trace`, `trace_pipe` and `trace-cmd report`.

mod binds;
mod join;
mod late;
mod line;
mod lines;

pub use binds::{Binds, Users};
pub use join::{Event, Flags, Joiner, Losses, Pairs, Recording, Sides, StackRef, UserRef};
pub use late::{Late, LateRef};
pub use line::{find_stack_id, Body, Cookie, Line, Time, UserSide};
pub use lines::{Chunk, Lines, MAX_LINE};
