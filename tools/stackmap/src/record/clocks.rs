// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the clock of a trace shows, and those of the system at the same time.
//!
//! No record is written for it: the counters of a CPU's buffer (`per_cpu/cpuN/stats`) say what the clock of
//! the buffer shows while they are read, in microseconds or, if it counts something else, as a number.

use super::save::cpus;
use crate::{capture::ClockReading, tracefs::Tracefs};
use rustix::time::{clock_gettime, ClockId};
use std::{fs::File, os::unix::fs::FileExt};

/// How often the clocks are read; the reading that took the shortest time is kept.
const ATTEMPTS: usize = 32;
/// More than the counters of a CPU are, in bytes.
const MAX_STATS: usize = 4096;
/// What a time in microseconds may be behind, or ahead if half of one is added.
const HALF_MICROSECOND: u64 = 500;

/// Reads them; [`None`]: this kernel does not say.
pub(super) fn read(tracefs: &Tracefs) -> Option<ClockReading> {
    let cpu = *cpus(tracefs).ok()?.first()?;
    let stats = tracefs.open(&format!("per_cpu/cpu{cpu}/stats")).ok()?;
    let readings = (0..ATTEMPTS).filter_map(|_| once(&stats));
    readings.min_by_key(|reading| reading.error_ns)
}

/// Reads them once: those of the system before and after that of the trace.
fn once(stats: &File) -> Option<ClockReading> {
    let mut text = [0; MAX_STATS];
    let before = [ClockId::Realtime, ClockId::Monotonic].map(now);
    let len = stats.read_at(&mut text, 0).ok()?;
    let [monotonic, realtime] = [ClockId::Monotonic, ClockId::Realtime].map(now);
    let (trace, rounded) = shown(str::from_utf8(&text[..len]).ok()?)?;
    let (realtime_ns, error) = middle(before[0], realtime)?;
    let (monotonic_ns, _) = middle(before[1], monotonic)?;
    Some(ClockReading {
        trace,
        realtime_ns,
        monotonic_ns,
        error_ns: error + rounded,
    })
}

/// The middle of two times, and how far it is from both; [`None`]: the clock was set between them, and the
/// next attempt is better.
fn middle(before: u64, after: u64) -> Option<(u64, u64)> {
    let took = after.checked_sub(before)?;
    Some((before + took / 2, took.div_ceil(2)))
}

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = time.tv_sec.unsigned_abs().saturating_mul(1_000_000_000);
    seconds.saturating_add(time.tv_nsec.unsigned_abs())
}

/// What the counters say that the clock shows, and how far that may be off.
pub(super) fn shown(stats: &str) -> Option<(u64, u64)> {
    let mut lines = stats.lines();
    let time = lines.find_map(|line| line.strip_prefix("now ts:"))?.trim();
    let Some((seconds, micros)) = time.split_once('.') else {
        return Some((time.parse().ok()?, 0));
    };
    let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
    let nanos = seconds.checked_mul(1_000_000_000)?;
    let nanos = nanos.checked_add(micros.checked_mul(1000)?)?;
    Some((nanos.checked_add(HALF_MICROSECOND)?, HALF_MICROSECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_prints() {
        let stats =
            |now: &str| format!("entries: 3\noldest event ts:     1.0\n{now}\ndropped: 0\n");
        for (now, want) in [
            ("now ts:  5155.849003", Some((5_155_849_003_500, 500))),
            ("now ts:     0.000000", Some((500, 500))),
            ("now ts: 81604378212", Some((81_604_378_212, 0))),
            ("now ts: -1", None),
            ("now ts: 18446744073709551615.000000", None),
            ("now ts: 1.18446744073709551615", None),
            ("", None),
        ] {
            assert_eq!(shown(&stats(now)), want, "{now}");
        }
    }

    #[test]
    fn the_middle_is_as_far_from_both() {
        for (before, after, want) in [
            (10, 20, Some((15, 5))),
            (10, 21, Some((15, 6))),
            (10, 10, Some((10, 0))),
            (10, 9, None),
            (0, u64::MAX, Some((u64::MAX / 2, u64::MAX / 2 + 1))),
        ] {
            assert_eq!(middle(before, after), want);
        }
    }
}
