// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings in the formats of other programs.
//!
//! They are made to be shown to others, so where the kernel lies is left out unless it is asked
//! for: no addresses of frames, none in the fields of events.

pub mod firefox;
pub mod json;
pub mod parquet;
pub mod perfetto;
pub mod pprof;
pub mod proto;
mod tables;
pub mod trace_dat;

use crate::flame::UNKNOWN;

/// The name of a frame that has none.
pub(crate) fn unnamed(ip: u64, addresses: bool) -> String {
    match addresses {
        true => format!("0x{ip:x}"),
        false => UNKNOWN.to_owned(),
    }
}
