// SPDX-License-Identifier: MIT OR Apache-2.0

//! The losses of a recording, which `record` reports at its end.

use crate::{
    capture::{CpuStat, Manifest},
    notes::count_of,
};

/// The suggested size of a buffer is a multiple of this, in KiB.
const GRANULE: u64 = 64;

/// Returns a sentence for each loss in the recording that `manifest` describes, which has `nr_events` events.
pub(super) fn lines(manifest: &Manifest, nr_events: u64) -> Vec<String> {
    let mut lines = Vec::new();
    let sum = |of: fn(&CpuStat) -> u64| manifest.cpus.iter().map(of).fold(0, u64::saturating_add);
    let (overrun, dropped) = (sum(|cpu| cpu.overrun), sum(|cpu| cpu.dropped));
    let short = manifest.cpus.iter().filter_map(|cpu| cpu.reach_ns).min();
    if let (Some(last), Some(reach)) = (manifest.recorded.last_ns, short) {
        let kb = manifest.cpus.iter().filter_map(|cpu| kb_for(cpu, last));
        let hint = kb.max().map(|kb| format!("; -b {kb} would hold them"));
        lines.push(format!(
            "the ring buffer holds only {} of the last {} s{}",
            in_seconds(reach),
            in_seconds(last),
            hint.unwrap_or_default()
        ));
    } else if overrun > 0 {
        let streamed = sum(|cpu| cpu.streamed) > 0;
        let hint = match manifest.cpus.iter().filter_map(needed_kb).max() {
            // They came faster than they were streamed, or the disk was full.
            Some(_) if streamed => "; a larger -b would hold more of them".to_owned(),
            Some(kb) => format!("; -b {kb} would have held them"),
            None => String::new(),
        };
        lines.push(format!(
            "{} overwritten in the ring buffer during the recording{hint}",
            count_of(overrun, "record")
        ));
    }
    if dropped > 0 {
        lines.push(format!(
            "{} did not fit into the ring buffer",
            count_of(dropped, "record")
        ));
    }
    let read = sum(|cpu| cpu.read);
    if read > 0 {
        lines.push(format!(
            "{} missing: another process read them from the ring buffer (trace_pipe) during the \
             recording",
            count_of(read, "record")
        ));
    }
    if manifest.switched_off {
        lines.push(
            "tracing was switched off during the recording: later events are missing".to_owned(),
        );
    }
    if !manifest.settings_changed.is_empty() {
        lines.push(format!(
            "another process wrote to {} of the instance during the recording: events can be missing",
            manifest.settings_changed.join(", ")
        ));
    }
    if manifest.reset {
        lines.push(
            "the map was reset during the recording: ids from before the reset are stale and have \
             no stacks"
                .to_owned(),
        );
    }
    if nr_events == 0 && overrun == 0 && dropped == 0 && read == 0 {
        let what = match (
            &manifest.recorded.events[..],
            &manifest.recorded.functions[..],
        ) {
            _ if sum(|cpu| cpu.older) > 0 => "all events are older than what is kept",
            (_, []) => "none of the events happened",
            ([], _) => "none of the functions was called",
            _ => "none of the events happened, and none of the functions was called",
        };
        lines.push(format!("nothing was recorded: {what}"));
    }
    lines
}

/// Nanoseconds as seconds.
fn in_seconds(ns: u64) -> String {
    let text = format!("{:.3}", ns as f64 / 1e9);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The size in KiB of a buffer that would have held all of a CPU's events, by the mean size of
/// those that it holds.
fn needed_kb(cpu: &CpuStat) -> Option<u64> {
    if cpu.overrun == 0 || cpu.entries == 0 || cpu.bytes == 0 {
        return None;
    }
    let all = u128::from(cpu.entries) + u128::from(cpu.overrun);
    kb_of(u128::from(cpu.bytes).saturating_mul(all) / u128::from(cpu.entries))
}

/// The same for this many nanoseconds, by the time that it holds.
fn kb_for(cpu: &CpuStat, last: u64) -> Option<u64> {
    let reach = u128::from(cpu.reach_ns?.max(1));
    kb_of(u128::from(cpu.bytes).saturating_mul(last.into()) / reach)
}

fn kb_of(bytes: u128) -> Option<u64> {
    // Heads and ends of pages, the page that is being read; and events differ in size.
    let kb = u64::try_from(bytes / 1024).ok()?.checked_mul(5)? / 4;
    kb.checked_add(8)?.checked_next_multiple_of(GRANULE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Recorded;

    /// What is said of a recording in which every record is an event.
    fn lines(manifest: &Manifest) -> Vec<String> {
        let entries = manifest.cpus.iter().map(|cpu| cpu.entries);
        super::lines(manifest, entries.fold(0, u64::saturating_add))
    }

    fn manifest(cpus: &[(u64, u64, u64, u64)]) -> Manifest {
        let cpus = cpus
            .iter()
            .map(|(entries, overrun, dropped, bytes)| CpuStat {
                cpu: 0,
                entries: *entries,
                overrun: *overrun,
                dropped: *dropped,
                bytes: *bytes,
                ..CpuStat::default()
            });
        Manifest {
            cpus: cpus.collect(),
            recorded: Recorded {
                events: vec!["a:b".to_owned()],
                ..Recorded::default()
            },
            ..Manifest::default()
        }
    }

    #[test]
    fn a_size_is_suggested_for_the_cpu_that_needs_most() {
        // 1 MiB for 1000, and 3000 more: 4 MiB and a quarter.
        let cpus = [(1000, 3000, 0, 1 << 20), (1000, 10, 0, 1 << 20)];
        let text = "3010 records overwritten in the ring buffer during the recording";
        let want = format!("{text}; -b 5184 would have held them");
        assert_eq!(lines(&manifest(&cpus)), [want]);
        let want = "1 record overwritten in the ring buffer during the recording";
        assert_eq!(lines(&manifest(&[(1, 1, 0, 0)])), [want]);
        let mut older = manifest(&[(0, 0, 0, 0)]);
        older.cpus[0].older = 3;
        let want = "nothing was recorded: all events are older than what is kept";
        assert_eq!(lines(&older), [want]);
    }

    #[test]
    fn a_buffer_that_does_not_reach_back_far_enough_is_reported() {
        let mut manifest = manifest(&[(1000, 3000, 0, 1 << 20), (1000, 0, 0, 1 << 20)]);
        manifest.recorded.last_ns = Some(5_000_000_000);
        manifest.cpus[0].reach_ns = Some(1_250_000_000);
        manifest.cpus[1].reach_ns = Some(4_000_000_000);
        // The first one has 1 MiB for a quarter of it: 4 MiB and a quarter.
        assert_eq!(
            lines(&manifest),
            ["the ring buffer holds only 1.25 of the last 5 s; -b 5184 would hold them"]
        );
        manifest.cpus[0].reach_ns = Some(0);
        manifest.recorded.last_ns = Some(u64::MAX);
        assert_eq!(lines(&manifest).len(), 1);
    }

    #[test]
    fn large_counts_do_not_overflow() {
        let max = u64::MAX;
        assert_eq!(
            lines(&manifest(&[(max, max, max, max), (1, max, max, max)])).len(),
            2
        );
    }
}
