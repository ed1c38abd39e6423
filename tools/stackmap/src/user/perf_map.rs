// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of code that a process has generated: its `/tmp/perf-PID.map`.
//!
//! A line is `START SIZE NAME`, the numbers in hexadecimal digits. A process that uses memory again
//! appends a line, so a later line covers earlier ones.

use super::functions::cut_bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// Generated code.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Generated {
    /// Its name, as the process wrote it.
    pub(super) name: Rc<str>,
    /// Its first address.
    pub(super) start: u64,
    /// How long it is.
    pub(super) size: u64,
}

/// What a text has at addresses; lines that are none are skipped.
pub(super) fn look_up(text: &[u8], mut wanted: BTreeSet<u64>) -> BTreeMap<u64, Generated> {
    let mut found = BTreeMap::new();
    for line in text.rsplit(|byte| *byte == b'\n') {
        if wanted.is_empty() {
            break;
        }
        let Some((start, size, name)) = parse(line) else {
            continue;
        };
        let here: Vec<_> = wanted.range(start..start + size).copied().collect();
        if here.is_empty() {
            continue;
        }
        let name: Rc<str> = cut_bytes(name).into();
        for address in here {
            wanted.remove(&address);
            let name = Rc::clone(&name);
            found.insert(address, Generated { name, start, size });
        }
    }
    found
}

fn parse(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let mut number = || number(std::str::from_utf8(words.next()?).ok()?);
    let (start, size) = (number()?, number()?);
    let name = words.next().filter(|name| !name.is_empty())?;
    start.checked_add(size)?;
    (size > 0).then_some((start, size, name))
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

    fn at(text: &[u8], address: u64) -> Option<Generated> {
        look_up(text, BTreeSet::from([address])).remove(&address)
    }

    #[test]
    fn a_name_covers_its_code() {
        let text = b"1000 20 LazyCompile:~a b.js:1\r\n0x2000 0x10 \xffx\n";
        let want = Generated {
            name: "LazyCompile:~a b.js:1".into(),
            start: 0x1000,
            size: 0x20,
        };
        assert_eq!(at(text, 0x101f), Some(want));
        assert_eq!(&*at(text, 0x2000).unwrap().name, "\u{fffd}x");
        for outside in [0, 0xfff, 0x1020, 0x2010, u64::MAX] {
            assert_eq!(at(text, outside), None, "{outside:#x}");
        }
    }

    #[test]
    fn a_later_line_covers_earlier_ones() {
        let covered = |text: &str| {
            let found = look_up(text.as_bytes(), (0x10..0x20).collect());
            let name = |address| found.get(&address).map_or("-", |found| &*found.name);
            (0x10..0x20).map(name).collect::<String>()
        };
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
        let found = at(b"10 10 a\n12 2 b\n", 0x1f).unwrap();
        assert_eq!((found.start, found.size), (0x10, 0x10));
    }

    #[test]
    fn one_long_name_is_kept_once_and_cut() {
        let text = format!("1000 1000 {}\n", "\u{20ac}".repeat(1 << 20));
        let found = look_up(text.as_bytes(), (0x1000..0x2000).collect());
        let names: Vec<_> = found.values().map(|code| &code.name).collect();
        assert!(names.len() == 0x1000 && names[0].len() < 5000 && names[0].ends_with("..."));
        assert!(names.iter().all(|name| Rc::ptr_eq(name, names[0])));
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
        for line in lines {
            for address in [0, 0x10, u64::MAX] {
                assert_eq!(at(line.as_bytes(), address), None, "{line:?}");
            }
        }
    }
}
