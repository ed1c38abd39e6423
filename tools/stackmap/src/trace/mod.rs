// SPDX-License-Identifier: MIT OR Apache-2.0

//! The text of `trace`, `trace_pipe` and `trace-cmd report`.

mod join;
mod line;
mod lines;

pub use join::{Event, Flags, Joiner, Losses, Pairs, StackRef};
pub use line::{find_stack_id, Body, Line, Time};
pub use lines::{Chunk, Lines, MAX_LINE};
