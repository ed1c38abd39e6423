// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of code that a process has generated: its `/tmp/perf-PID.map`.
//!
//! A line is `START SIZE NAME`, the numbers in hexadecimal digits. A process that uses memory again
//! appends a line, so a later line covers earlier ones.

use std::{collections::BTreeMap, ops::Range};

/// The names of a process.
#[derive(Clone, Debug, Default)]
pub struct PerfMap {
    names: String,
    /// What is not covered by later lines, by its first address.
    parts: BTreeMap<u64, Part>,
}

/// A part of a function, mostly all of it.
#[derive(Clone, Debug)]
struct Part {
    /// Behind its last address.
    end: u64,
    function: Range<u64>,
    /// Where in the names.
    name: Range<usize>,
}

/// Generated code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Generated<'a> {
    /// Its name, as the process wrote it.
    pub name: &'a str,
    /// Its first address.
    pub start: u64,
    /// How long it is.
    pub size: u64,
}

impl PerfMap {
    /// Those of a text; lines that are none are skipped.
    pub fn parse(text: &[u8]) -> Self {
        let mut map = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            map.add(&String::from_utf8_lossy(line));
        }
        map
    }

    /// What is at an address.
    pub fn get(&self, address: u64) -> Option<Generated<'_>> {
        let (_, part) = self.parts.range(..=address).next_back()?;
        if address >= part.end {
            return None;
        }
        Some(Generated {
            name: self.names.get(part.name.clone())?,
            start: part.function.start,
            size: part.function.end - part.function.start,
        })
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.trim_end_matches('\r').splitn(3, ' ');
        let start = number(words.next()?)?;
        let end = start.checked_add(number(words.next()?)?)?;
        let name = words.next().filter(|name| !name.is_empty())?;
        if start == end {
            return None;
        }
        self.clear(start..end);
        let at = self.names.len();
        self.names.push_str(name);
        let part = Part {
            end,
            function: start..end,
            name: at..self.names.len(),
        };
        self.parts.insert(start, part);
        Some(())
    }

    /// Removes what there is in a range.
    fn clear(&mut self, range: Range<u64>) {
        let before = self.parts.range_mut(..range.start).next_back();
        if let Some((_, part)) = before.filter(|(_, part)| part.end > range.start) {
            let rest = part.clone();
            part.end = range.start;
            if rest.end > range.end {
                self.parts.insert(range.end, rest);
            }
        }
        while let Some((start, part)) = self.parts.range(range.clone()).next() {
            let (start, end) = (*start, part.end);
            if let (Some(rest), true) = (self.parts.remove(&start), end > range.end) {
                self.parts.insert(range.end, rest);
            }
        }
    }
}

fn number(digits: &str) -> Option<u64> {
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    // The parser of numbers takes a sign.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(map: &PerfMap, addresses: Range<u64>) -> String {
        let name = |address| map.get(address).map_or("-", |found| found.name);
        addresses.map(name).collect()
    }

    #[test]
    fn a_name_covers_its_code() {
        let map = PerfMap::parse(b"1000 20 LazyCompile:~a b.js:1\r\n0x2000 0x10 \xffx\n");
        let found = map.get(0x101f).unwrap();
        let want = Generated {
            name: "LazyCompile:~a b.js:1",
            start: 0x1000,
            size: 0x20,
        };
        assert_eq!(found, want);
        assert_eq!(map.get(0x2000).unwrap().name, "\u{fffd}x");
        for outside in [0, 0xfff, 0x1020, 0x2010, u64::MAX] {
            assert_eq!(map.get(outside), None, "{outside:#x}");
        }
    }

    #[test]
    fn a_later_line_covers_earlier_ones() {
        let covered = |text: &str| names(&PerfMap::parse(text.as_bytes()), 0x10..0x20);
        assert_eq!(covered("10 10 a\n14 4 b\n"), "aaaabbbbaaaaaaaa");
        assert_eq!(covered("14 4 b\n10 10 a\n"), "aaaaaaaaaaaaaaaa");
        assert_eq!(covered("10 4 a\n14 4 b\n12 4 c\n"), "aaccccbb--------");
        assert_eq!(
            covered("10 4 a\n14 4 b\n18 4 c\n12 8 d\n"),
            "aaddddddddcc----"
        );
        assert_eq!(covered("10 4 a\n10 4 b\n"), "bbbb------------");
        assert_eq!(covered("10 4 a\n10 2 b\n"), "bbaa------------");
        assert_eq!(covered("10 10 a\n12 2 b\n18 2 c\n"), "aabbaaaaccaaaaaa");
    }

    #[test]
    fn the_rest_of_a_function_knows_its_beginning() {
        let map = PerfMap::parse(b"10 10 a\n12 2 b\n");
        let found = map.get(0x1f).unwrap();
        assert_eq!((found.start, found.size), (0x10, 0x10));
    }

    #[test]
    fn a_line_that_is_none_is_skipped() {
        let lines = [
            "",
            " ",
            "10",
            "10 10",
            "10 10 ",
            "10 0 a",
            "x 10 a",
            "10 +5 a",
            "-1 1 a",
            "ffffffffffffffff 2 a",
            "10000000000000000 1 a",
            "0x 1 a",
            "\0\0\0",
        ];
        let map = PerfMap::parse(lines.join("\n").as_bytes());
        assert!(map.parts.is_empty() && map.names.is_empty(), "{map:?}");
    }
}
