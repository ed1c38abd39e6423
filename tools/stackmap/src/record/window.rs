// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of a recording, which alone is kept.

use super::{clocks, save::cpus};
use crate::{
    error::{Error, Result},
    ring::decode::Trace,
    tracefs::Tracefs,
};
use std::{collections::BTreeMap, time::Duration};

/// When it ended on each CPU, by the clock of the trace, and how much is kept; in nanoseconds.
pub(super) struct Window {
    now: BTreeMap<u32, u64>,
    last: u64,
}

impl Window {
    /// Of a recording that ends now.
    pub(super) fn read(tracefs: &Tracefs, last: Duration) -> Result<Self> {
        let now = cpus(tracefs)?.into_iter().map(|cpu| {
            let stats = tracefs.read(&format!("per_cpu/cpu{cpu}/stats"))?;
            Ok((
                cpu,
                clocks::shown(&stats).map_or(0, |(now, error)| now - error),
            ))
        });
        Ok(Self {
            now: now.collect::<Result<_>>()?,
            last: u64::try_from(last.as_nanos()).unwrap_or(u64::MAX),
        })
    }

    /// When what is kept of a CPU begins.
    pub(super) fn begin(&self, cpu: u32) -> u64 {
        self.before_end(cpu, self.last)
    }

    /// How long it is from a time to the end of a CPU; or when it was so long before its end.
    pub(super) fn before_end(&self, cpu: u32, time: u64) -> u64 {
        let now = self.now.get(&cpu).copied().unwrap_or_default();
        now.saturating_sub(time)
    }
}

/// Refuses a clock that does not count time.
pub(super) fn check(clock: &str) -> Result {
    match Trace::counts_nanos(clock) {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "--last needs a clock that counts seconds, and {clock} does not\n  hint: --clock mono"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_counted_from_the_end() {
        let window = Window {
            now: [(0, 9_000), (1, 100)].into(),
            last: 1_000,
        };
        assert_eq!([0, 1, 2].map(|cpu| window.begin(cpu)), [8_000, 0, 0]);
        assert_eq!(window.before_end(0, 8_400), 600);
    }
}
