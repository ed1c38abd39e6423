// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers, and ranges of CPUs and of times.

use crate::trace::Time;
use std::{
    fmt,
    num::{IntErrorKind, ParseIntError},
    ops::RangeInclusive,
    str::FromStr,
};

/// A CPU, or the first and the last of some.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CpuRange(RangeInclusive<u32>);

impl CpuRange {
    /// Reads `3` or `0-3`.
    pub fn new(text: &str) -> Result<Self, String> {
        let number = |digits: &str| match digits.parse::<u32>() {
            Ok(number) if is_digits(digits) => Ok(number),
            _ => Err(format!("\"{digits}\" is not the number of a CPU")),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = number(first)?..=number(last)?;
        match range.is_empty() {
            true => Err("the range ends before it begins".to_owned()),
            false => Ok(Self(range)),
        }
    }

    /// The CPUs.
    pub fn cpus(&self) -> RangeInclusive<u32> {
        self.0.clone()
    }

    /// Whether a CPU is one of them.
    pub fn has(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }
}

impl fmt::Display for CpuRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start(), self.0.end()) {
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

/// Reads a number of the command line; the error is one of its own, not the library's.
pub fn number<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|error: ParseIntError| match error.kind() {
            IntErrorKind::PosOverflow => format!("\"{text}\" is too large"),
            _ => format!("\"{text}\" is not a number"),
        })
}

/// The first and the last of some times, as they are shown: in microseconds, or in millionths of a
/// tick.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TimeRange(RangeInclusive<u128>);

/// Digits after the point of a time.
const DIGITS: usize = 6;

impl TimeRange {
    /// Reads `A..B`, `A..` or `..B`.
    pub fn new(text: &str) -> Result<Self, String> {
        let (from, to) = text
            .split_once("..")
            .ok_or("a range of times is A..B, A.. or ..B")?;
        if from.is_empty() && to.is_empty() {
            return Err("the range has neither a beginning nor an end".to_owned());
        }
        let end = |text: &str, missing| match text {
            "" => Ok(missing),
            text => micros(text).ok_or_else(|| {
                format!("\"{text}\" is not a time in seconds, such as 8.871939, as report shows it")
            }),
        };
        let range = end(from, 0)?..=end(to, u128::MAX)?;
        match range.is_empty() {
            true => Err("the range ends before it begins".to_owned()),
            false => Ok(Self(range)),
        }
    }

    /// Whether a time is one of them.
    pub fn has(&self, time: Time) -> bool {
        self.0.contains(&time.micros())
    }
}

/// Reads `8`, `8.5` or `8.871939`.
fn micros(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > DIGITS {
        return None;
    }
    let digits = format!("{whole}{fraction:0<DIGITS$}");
    digits.parse::<u64>().ok().map(u128::from)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
