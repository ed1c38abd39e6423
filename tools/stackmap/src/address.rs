// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers that may be addresses of the kernel, and texts without them.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hidden() {
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
