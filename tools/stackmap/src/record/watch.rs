// SPDX-License-Identifier: MIT OR Apache-2.0

//! Watches the instance while it records: another process may switch tracing off, or clear the buffer.

use super::{instance::copy_markers, save::cpu_stats, trigger::is_off};
use crate::tracefs::Tracefs;
use std::{
    collections::{BTreeMap, BTreeSet},
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
    /// Starts the thread. With `markers`, it has none copied while a CPU does not record: the kernel would not write
    /// them to the top level either.
    pub(super) fn start(tracefs: &Tracefs, markers: bool) -> Self {
        let (stop, stopped) = mpsc::channel();
        let tracefs = tracefs.clone();
        let mask = |tracefs: &Tracefs| tracefs.read("tracing_cpumask").unwrap_or_default();
        let all = mask(&tracefs);
        let (mut written, mut copies) = (BTreeSet::new(), markers);
        let mut known = BTreeMap::new();
        let mut intervals = (0..SAMPLE).cycle();
        let thread = thread::spawn(move || loop {
            let end = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
            let is_on = !is_off(&tracefs);
            written.extend((!is_on).then_some("tracing_on"));
            let may_copy = markers && is_on && mask(&tracefs) == all;
            if copies != may_copy && copy_markers(&tracefs, may_copy).is_ok() {
                copies = may_copy;
            }
            if intervals.next() == Some(0) || end {
                for cpu in cpu_stats(&tracefs).unwrap_or_default() {
                    let (least, gone) = known.entry(cpu.cpu).or_insert((0, 0));
                    let now_gone = cpu.read + cpu.overrun;
                    written.extend((cpu.entries + now_gone < *least).then_some("trace"));
                    // The kernel counts what is left before what is gone: with what was gone a sample before, no more
                    // than were written then.
                    (*least, *gone) = (cpu.entries + *gone, now_gone);
                }
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
