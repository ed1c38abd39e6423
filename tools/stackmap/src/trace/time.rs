// SPDX-License-Identifier: MIT OR Apache-2.0

//! When an event happened.

use std::fmt;

/// When something happened.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Time {
    /// In nanoseconds of the trace's clock.
    Nanos(u64),
    /// What a clock that does not count time says: an event counter, a cycle counter.
    Ticks(u64),
}

impl Time {
    /// As it is printed, in microseconds, or in millionths of a tick.
    pub fn micros(self) -> u128 {
        match self {
            Time::Nanos(nanos) => rounded(nanos).into(),
            Time::Ticks(ticks) => u128::from(ticks) * 1_000_000,
        }
    }

    /// Another time by the same clock.
    pub fn with(self, value: u64) -> Self {
        match self {
            Time::Nanos(_) => Time::Nanos(value),
            Time::Ticks(_) => Time::Ticks(value),
        }
    }

    /// The number, in whatever unit it is.
    pub fn value(self) -> u64 {
        match self {
            Time::Nanos(value) | Time::Ticks(value) => value,
        }
    }
}

/// Nanoseconds in microseconds, as traces print them.
fn rounded(nanos: u64) -> u64 {
    nanos.saturating_add(500) / 1000
}

/// As traces print it.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Time::Nanos(nanos) => {
                let micros = rounded(*nanos);
                let (secs, micros) = (micros / 1_000_000, micros % 1_000_000);
                write!(f, "{secs}.{micros:06}")
            }
            Time::Ticks(ticks) => write!(f, "{ticks}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn times_are_rounded_to_microseconds() {
        for (time, text) in [
            (Time::Nanos(3_319_031_499), "3.319031"),
            (Time::Nanos(500), "0.000001"),
            (Time::Nanos(86_400_000_000_000), "86400.000000"),
            (Time::Ticks(123_456), "123456"),
        ] {
            assert_eq!(time.to_string(), text);
        }
    }
}
