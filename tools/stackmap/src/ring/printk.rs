// SPDX-License-Identifier: MIT OR Apache-2.0

//! The format strings of `trace_printk()` and similar functions, which records name by address;
//! `printk_formats` lists them.

use std::collections::HashMap;

/// Texts by address.
#[derive(Debug, Default)]
pub struct Texts(HashMap<u64, String>);

impl Texts {
    /// Reads lines `0xffffffff82a4c1f8 : "text"`.
    pub fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (address, rest) = line.split_once(" : \"")?;
            let address = u64::from_str_radix(address.trim().strip_prefix("0x")?, 16).ok()?;
            Some((address, unescape(rest.strip_suffix('"')?)))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// The text at an address.
    pub fn get(&self, address: u64) -> Option<&str> {
        self.0.get(&address).map(|text| &text[..])
    }
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(c) => c,
                None => '\\',
            },
            c => c,
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_lists() {
        let text = "0xffffffff82a4c1f8 : \"a \\\"b\\\"\\n\"\nodd\n0x10 : \"%d\"\n";
        let texts = Texts::parse(text);
        assert_eq!(texts.get(0xffff_ffff_82a4_c1f8), Some("a \"b\"\n"));
        assert_eq!(texts.get(0x10), Some("%d"));
        assert_eq!(texts.get(1), None);
    }
}
