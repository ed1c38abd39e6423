// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recordings in the formats of other programs.
//!
//! They are made to be shown to others, so where the kernel lies is left out unless it is asked
//! for: no addresses of frames, none in the fields of events.

pub mod firefox;
pub mod json;
pub mod pprof;
pub mod proto;

use crate::flame::UNKNOWN;
use std::borrow::Cow;

/// What stands for a number of a field that may be an address.
pub(crate) const HIDDEN: &str = "(address)";
/// The half of all addresses that is the kernel's begins here, on all machines that have one.
const KERNEL: u64 = 0xff00_0000_0000_0000;
/// As many numbers from the end as may be errors.
const ERRORS: u64 = 4096;

/// A text of an event without numbers that may be addresses of the kernel.
pub fn without_addresses(text: &str) -> Cow<'_, str> {
    let mut kept = String::new();
    let mut rest = text;
    // No shorter number is an address.
    while let Some((before, word, behind)) = next_number(rest) {
        if is_address(word) {
            kept.push_str(before.strip_suffix("0x").unwrap_or(before));
            kept.push_str(HIDDEN);
        } else {
            kept.push_str(before);
            kept.push_str(word);
        }
        rest = behind;
    }
    match kept.is_empty() {
        true => Cow::Borrowed(rest),
        false => {
            kept.push_str(rest);
            Cow::Owned(kept)
        }
    }
}

/// What stands before the next number of 16 digits or more, the number, and what follows.
fn next_number(text: &str) -> Option<(&str, &str, &str)> {
    let bytes = text.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        if !bytes[start].is_ascii_hexdigit() {
            start += 1;
            continue;
        }
        let digits = bytes[start..]
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit());
        let end = start + digits.count();
        if end - start >= 16 {
            return Some((&text[..start], &text[start..end], &text[end..]));
        }
        start = end;
    }
    None
}

fn is_address(digits: &str) -> bool {
    let decimal = digits.parse::<u64>().ok().filter(|_| digits.len() > 16);
    let hex = u64::from_str_radix(digits, 16).ok();
    let number = decimal.or(hex);
    number.is_some_and(may_be_address)
}

/// Whether a number may be an address of the kernel.
pub(crate) fn may_be_address(number: u64) -> bool {
    (KERNEL..=u64::MAX - ERRORS).contains(&number)
}

/// The name of a frame that has none.
fn unnamed(ip: u64, addresses: bool) -> String {
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

    #[test]
    fn addresses_are_hidden_in_fields() {
        for (text, want) in [
            (
                "call_site=foo+0x1/0x80 bytes=64",
                "call_site=foo+0x1/0x80 bytes=64",
            ),
            ("ptr=ffff8881003bd000 x=1", "ptr=(address) x=1"),
            ("ip=0xffffffff81000000", "ip=(address)"),
            (
                "a=18446744071578845184 b=18446744073709551615",
                "a=(address) b=18446744073709551615",
            ),
            (
                "ret=0xffffffffffffffea ptr=00000000dead0000",
                "ret=0xffffffffffffffea ptr=00000000dead0000",
            ),
            ("time=1795253621891760512", "time=1795253621891760512"),
            ("", ""),
        ] {
            assert_eq!(without_addresses(text), want);
        }
    }
}
