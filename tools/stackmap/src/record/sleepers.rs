// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tasks that wait when a recording begins, and where they wait. A task that does not run during the recording has no
//! event.

use super::{limits::Limits, tasks};
use crate::{
    capture::Sleeper, error::Result, kernel, symbols::kallsyms::Kallsyms, tracefs::Tracefs,
};
use std::{collections::BTreeSet, fs};

/// Set in the flags of tasks that have no user stack: kernel threads, and workers of io_uring and vhost (`PF_KTHREAD`,
/// `PF_USER_WORKER`).
const NO_USER: u32 = 0x20_4000;

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
        && limits.cpus().is_none()
        && kernel::has_initial_pids();
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
    // Before the stack: if it is the same later, the stack is that of this wait.
    let switches = switches(thread);
    let read = |file: &str| fs::read(kernel::proc(&format!("{process}/task/{thread}/{file}"))).ok();
    let stack = String::from_utf8_lossy(&read("stack")?).into_owned();
    let stat = String::from_utf8_lossy(&read("stat")?).into_owned();
    // The name before may be anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let flags: u32 = fields.nth(5)?.parse().ok()?;
    let cpu = fields.nth(29)?.trim().parse().ok()?;
    let frame = |line: &str| Some(line.strip_prefix("[<0>] ")?.to_owned());
    let waits = !['R', 'X', 'Z'].contains(&state);
    waits.then(|| Sleeper {
        pid: thread,
        state,
        cpu,
        stack: stack.lines().filter_map(frame).collect(),
        has_user: flags & NO_USER == 0,
        slept_on: false,
        switches,
    })
}

/// Returns how often a thread has left a CPU, as a text; nothing if it has ended.
fn switches(thread: i32) -> String {
    let status = fs::read_to_string(kernel::proc(&format!("{thread}/status"))).unwrap_or_default();
    let lines = status
        .lines()
        .filter(|line| line.contains("ctxt_switches:"));
    lines.collect()
}

/// Returns whether a task has not run since it was found.
fn sleeps_on(sleeper: &Sleeper<String>) -> bool {
    !sleeper.switches.is_empty() && switches(sleeper.pid) == sleeper.switches
}

/// Has the module bind the user stack of a task.
fn bind(sleeper: &Sleeper<String>, top: &Tracefs) -> Result {
    top.write("stack_map_user", &format!("settle {}", sleeper.pid))
}

/// Keeps the tasks that have not run since they were found, once tracing is on: others may have ended or wait elsewhere, and
/// those that run later have events. If `top` is given, the module binds their user stacks.
pub(super) fn begin(sleepers: &mut Vec<Sleeper<String>>, top: Option<&Tracefs>) {
    sleepers.retain(sleeps_on);
    for sleeper in sleepers {
        let bound = sleeper.has_user && top.is_some_and(|top| bind(sleeper, top).is_ok());
        sleeper.has_user = bound && sleeps_on(sleeper);
    }
}

/// Finds the tasks that have not run since they were found. If `top` is given, their user stacks are bound again: the first
/// binds may have been overwritten. Tracing must be on for that.
pub(super) fn end(sleepers: &mut [Sleeper<String>], top: Option<&Tracefs>) {
    for sleeper in sleepers {
        sleeper.slept_on = sleeps_on(sleeper);
        if let (true, true, Some(top)) = (sleeper.slept_on, sleeper.has_user, top) {
            // A task that has just run may be bound to the stack of another wait.
            sleeper.has_user = bind(sleeper, top).is_err() || sleeps_on(sleeper);
        }
    }
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
            has_user: sleeper.has_user,
            slept_on: sleeper.slept_on,
            switches: String::new(),
            stack: frames
                .map(|frame| addresses.get(&frame[..]).copied().unwrap_or_default())
                .collect(),
        }
    });
    located.collect()
}
