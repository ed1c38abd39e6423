// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tasks that wait when a recording begins, and where they wait. A task that does not run during the recording has no
//! event.

use super::{limits::Limits, tasks};
use crate::{capture::Sleeper, kernel, symbols::kallsyms::Kallsyms, tracefs::Tracefs};
use std::{collections::BTreeSet, fs};

/// Returns the waiting tasks of the recorded processes, without the `recorder`. There are none if the recording lacks
/// some of their switches, since then the end of their wait is not known.
pub(super) fn find(
    tracefs: &Tracefs,
    limits: &Limits<'_>,
    recorder: &[u32],
) -> Vec<Sleeper<String>> {
    let of_switches = |file: &str| tracefs.read(&format!("events/sched/sched_switch/{file}"));
    let has_all = of_switches("enable").is_ok_and(|text| text.starts_with('1'))
        && of_switches("filter").is_ok_and(|text| text.trim() == "none")
        && limits.cpus().is_none();
    if !has_all {
        return Vec::new();
    }
    let pids = limits.pids();
    let is_recorded =
        |process: &u32| (pids.is_empty() || pids.contains(process)) && !recorder.contains(process);
    tasks::all(&kernel::proc(""))
        .filter(|(_, process)| is_recorded(process))
        .filter_map(|(thread, process)| sleeper(thread, process))
        .collect()
}

/// Returns a thread and where it waits, unless it runs or ends.
fn sleeper(thread: i32, process: u32) -> Option<Sleeper<String>> {
    let read = |file: &str| fs::read(kernel::proc(&format!("{process}/task/{thread}/{file}"))).ok();
    let stack = String::from_utf8_lossy(&read("stack")?).into_owned();
    let stat = String::from_utf8_lossy(&read("stat")?).into_owned();
    // The name before may be anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let cpu = fields.nth(35)?.trim().parse().ok()?;
    let frame = |line: &str| Some(line.strip_prefix("[<0>] ")?.to_owned());
    let waits = !['R', 'X', 'Z'].contains(&state);
    waits.then(|| Sleeper {
        pid: thread,
        state,
        cpu,
        stack: stack.lines().filter_map(frame).collect(),
    })
}

/// Returns the tasks with the addresses of their frames; 0 for a frame of no known function.
pub(super) fn located(sleepers: &[Sleeper<String>], kallsyms: &Kallsyms) -> Vec<Sleeper<u64>> {
    let frames: BTreeSet<_> = sleepers.iter().flat_map(|sleeper| &sleeper.stack).collect();
    let addresses = kallsyms.addresses(frames.into_iter().map(String::as_str));
    let located = sleepers.iter().map(|sleeper| {
        let frames = sleeper.stack.iter();
        Sleeper {
            pid: sleeper.pid,
            state: sleeper.state,
            cpu: sleeper.cpu,
            stack: frames
                .map(|frame| addresses.get(&frame[..]).copied().unwrap_or_default())
                .collect(),
        }
    });
    located.collect()
}
