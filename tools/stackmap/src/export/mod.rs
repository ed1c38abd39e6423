// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings in the formats of other programs.
//!
//! They are made to be shown to others, so where the kernel lies is left out unless it is asked
//! for: no addresses of frames, none in the fields of events.

pub mod firefox;
pub mod json;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod pprof;
pub mod proto;
pub(crate) mod stacks;
mod tables;
pub mod trace_dat;

use crate::{address::without_addresses, flame::UNKNOWN};
use std::borrow::Cow;

/// The name of a frame that has none.
pub(crate) fn unnamed(ip: u64, addresses: bool) -> String {
    match addresses {
        true => format!("0x{ip:x}"),
        false => UNKNOWN.to_owned(),
    }
}

/// The text of a frame of a full stack.
fn whole_frame(frame: &str, addresses: bool) -> Cow<'_, str> {
    match crate::folded::kind_of_text(frame) {
        _ if addresses => Cow::Borrowed(frame),
        crate::folded::Kind::Address => Cow::Borrowed(UNKNOWN),
        // With the option sym-addr the kernel prints them behind names.
        _ => without_addresses(frame),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hidden_in_frames() {
        for (frame, want) in [
            ("kfree+0x1/0x2 [x]", "kfree+0x1/0x2 [x]"),
            ("0xffffffffc0123456", "[unknown]"),
            ("kfree <ffffffff81000000>", "kfree <(address)>"),
        ] {
            assert_eq!(whole_frame(frame, false), want);
            assert_eq!(whole_frame(frame, true), frame);
        }
    }
}
