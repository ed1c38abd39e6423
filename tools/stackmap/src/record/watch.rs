// SPDX-License-Identifier: MIT OR Apache-2.0

//! Watches the instance while it records: another process may switch tracing off, or clear the buffer.

use super::{instance::copy_markers, save::cpu_stats, trigger::is_off};
use crate::tracefs::Tracefs;
use std::{
    collections::BTreeSet,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

/// How often `tracing_on` is read.
const INTERVAL: Duration = Duration::from_millis(100);
/// How many intervals are between two samples of the CPUs' counts.
const SAMPLE: usize = 10;

/// The thread that watches.
pub(super) struct Watcher {
    stop: Sender<()>,
    thread: JoinHandle<BTreeSet<&'static str>>,
}

impl Watcher {
    /// Starts the thread. With `markers`, it has none copied while tracing is off: the kernel would not write them to
    /// the top level either.
    pub(super) fn start(tracefs: &Tracefs, markers: bool) -> Self {
        let (stop, stopped) = mpsc::channel();
        let tracefs = tracefs.clone();
        let (mut written, mut totals, mut copies) = (BTreeSet::new(), Vec::new(), markers);
        let mut intervals = (0..SAMPLE).cycle();
        let thread = thread::spawn(move || loop {
            let end = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
            let is_on = !is_off(&tracefs);
            written.extend((!is_on).then_some("tracing_on"));
            if markers && copies != is_on && copy_markers(&tracefs, is_on).is_ok() {
                copies = is_on;
            }
            if intervals.next() == Some(0) || end {
                let stats = cpu_stats(&tracefs).unwrap_or_default().into_iter();
                let now: Vec<_> = stats
                    .map(|cpu| cpu.entries + cpu.read + cpu.overrun)
                    .collect();
                let is_cleared = totals.iter().zip(&now).any(|(before, now)| now < before);
                written.extend(is_cleared.then_some("trace"));
                totals = now;
            }
            if end {
                return written;
            }
        });
        Self { stop, thread }
    }

    /// Ends the thread; returns the files that another process wrote to.
    pub(super) fn end(self) -> BTreeSet<&'static str> {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}
