// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings in the formats of other programs.

pub mod firefox;
pub mod json;
pub mod pprof;
pub mod proto;
