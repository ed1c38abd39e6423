// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where tasks wait: the time from each switch away from a task to the switch back to it.
//!
//! `sched:sched_switch` says when a task leaves its CPU, with the stack that it leaves from, and when it
//! comes back. `sched:sched_waking` says who woke it up. A wait of a task that sleeps is *blocked* until it is
//! woken up, then *runnable* until it gets a CPU. One that leaves its CPU although it could run on is
//! *preempted*.

mod show;

pub use show::{fold, subtitle, users, write, Limits};

use crate::{
    folded::{Kind, Names},
    gaps::Gaps,
    notes::Note,
    tally::{Key, Keys},
    trace::{Event, Sides},
};
use std::{borrow::Cow, cmp::Reverse, collections::HashMap};

/// The events that waits are made of.
const SWITCH: &str = "sched_switch";
/// The one that says who woke a task up.
const WAKING: &str = "sched_waking";
/// The system of both.
const SYSTEM: &str = "sched";

/// The bits of `prev_state` that are of a task that does not run on: `TASK_REPORT` and `TASK_IDLE`. Above them
/// is one that says that it was preempted.
const BLOCKED: u64 = 0xff;
/// Those of a task that ends: `EXIT_DEAD` and `EXIT_ZOMBIE`.
const ENDS: u64 = 0x30;

/// What stands where the name of a waker would, if none woke the task up.
const PREEMPTED: &str = "(preempted)";
/// The same, if the trace does not say who.
const UNKNOWN: &str = "(unknown)";
/// The same, if it was an interrupt.
const INTERRUPT: &str = "(interrupt)";
const NO_TASKS: [&str; 3] = [PREEMPTED, UNKNOWN, INTERRUPT];

/// What waits of a group have in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum By {
    /// The name of the task that waits.
    Comm,
    /// The task that waits.
    Pid,
    /// Who woke it up.
    Waker,
    /// Nothing.
    Stack,
}

/// Who woke a task up.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Waker {
    /// The number of the task's name; [`None`]: an interrupt.
    comm: Option<u32>,
    /// Its stacks.
    key: Key,
}

/// How a wait began.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Cause {
    /// The task slept, until this one woke it up; [`None`]: the trace does not say who.
    Blocked(Option<Waker>),
    /// It could have run on.
    Preempted,
}

/// What is counted together.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Row {
    /// The number of the name of the group.
    group: u32,
    /// The stacks that the task waited in.
    key: Key,
    cause: Cause,
}

/// Whether waits begin and end with an event.
pub fn is_switch(event: &Event) -> bool {
    event.name == SWITCH && event.system() == Some(SYSTEM)
}

/// A switch, of the task by the name that it had then. That of other events is the last that it had.
pub fn renamed(event: &Event) -> Cow<'_, Event> {
    match event.fields.string("prev_comm") {
        Some(comm) if comm != event.comm => Cow::Owned(Event {
            comm: comm.into_owned(),
            ..event.clone()
        }),
        _ => Cow::Borrowed(event),
    }
}

/// How often, and how long, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sum {
    /// How many waits.
    pub waits: u64,
    /// Until the tasks were woken up; up to the end of a wait of which that is not known.
    pub blocked: u64,
    /// From then on.
    pub runnable: u64,
    /// In waits of tasks that could have run on.
    pub preempted: u64,
    /// The longest wait.
    pub longest: u64,
}

impl Sum {
    /// All of it.
    pub fn total(&self) -> u64 {
        let sum = self.blocked.saturating_add(self.runnable);
        sum.saturating_add(self.preempted)
    }

    fn merge(&mut self, other: &Self) {
        let add = |to: &mut u64, n: u64| *to = to.saturating_add(n);
        add(&mut self.waits, other.waits);
        add(&mut self.blocked, other.blocked);
        add(&mut self.runnable, other.runnable);
        add(&mut self.preempted, other.preempted);
        self.longest = self.longest.max(other.longest);
    }
}

/// What a record says of a task.
#[derive(Clone, Copy, Debug)]
enum What {
    /// It leaves its CPU; the name is that of the task.
    Leaves {
        comm: u32,
        state: u64,
        key: Key,
        is_wanted: bool,
    },
    /// It comes back.
    Comes { comm: u32 },
    /// It is woken up by this task; the name is one that the task had at any time.
    Woken { by: u32, waker: Waker },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    time: u64,
    pid: u32,
    what: What,
}

/// The records of the scheduler.
#[derive(Default)]
pub struct Trail {
    steps: Vec<Step>,
    keys: Keys,
    names: Names,
    /// When the last event was.
    end: u64,
    has_switches: bool,
    has_wakings: bool,
}

impl Trail {
    /// Takes an event with its stacks. Those that are of no task's wait are ignored. `is_wanted`: the wait that begins
    /// with it is.
    pub fn add(&mut self, event: &Event, sides: Sides<'_>, is_wanted: bool) {
        self.end = self.end.max(event.time.value());
        if is_switch(event) {
            self.switch(event, sides, is_wanted);
        } else if event.name == WAKING && event.system() == Some(SYSTEM) {
            self.waking(event, sides);
        }
    }

    /// Whether there was a switch.
    pub fn has_switches(&self) -> bool {
        self.has_switches
    }

    fn switch(&mut self, event: &Event, sides: Sides<'_>, is_wanted: bool) -> Option<()> {
        let number = |name| event.fields.number(name);
        let (prev, next) = (number("prev_pid")? as u32, number("next_pid")? as u32);
        let state = number("prev_state")?;
        self.has_switches = true;
        let time = event.time.value();
        // The idle task of a CPU has nothing to do.
        if prev != 0 {
            let comm = self.comm(&event.fields.string("prev_comm")?);
            let key = match is_wanted {
                true => self.keys.key(sides),
                false => Key::NONE,
            };
            let leaves = What::Leaves {
                comm,
                state,
                key,
                is_wanted,
            };
            self.push(time, prev, leaves);
        }
        if next != 0 {
            let comm = self.comm(&event.fields.string("next_comm")?);
            self.push(time, next, What::Comes { comm });
        }
        Some(())
    }

    fn waking(&mut self, event: &Event, sides: Sides<'_>) -> Option<()> {
        let pid = event.fields.number("pid")? as u32;
        self.has_wakings = true;
        let comm = match event.flags.interrupts {
            true => None,
            false => Some(self.comm(&event.comm)),
        };
        let waker = Waker {
            comm,
            key: self.keys.key(sides),
        };
        let by = event.pid;
        self.push(event.time.value(), pid, What::Woken { by, waker });
        Some(())
    }

    /// The number of a task's name. One that looks like something else is in quotes.
    fn comm(&mut self, comm: &str) -> u32 {
        match NO_TASKS.contains(&comm) {
            true => self.names.number(&format!("\"{comm}\""), Kind::Group),
            false => self.names.number(comm, Kind::Group),
        }
    }

    fn push(&mut self, time: u64, pid: u32, what: What) {
        self.steps.push(Step { time, pid, what });
    }

    /// Adds the waits up. Those during which records are missing are not known. `unfinished`: those that last to the
    /// end of the trace are counted up to there.
    pub fn waits(mut self, by: By, gaps: &Gaps, unfinished: bool) -> Waits {
        // An event is given out when its stack is, so those of two CPUs are not in order.
        self.steps.sort_by_key(|step| step.time);
        let mut waits = Waits {
            rows: HashMap::new(),
            keys: self.keys,
            names: self.names,
            by,
            has_wakings: self.has_wakings,
            unfinished: Left::default(),
            unknown: Left::default(),
        };
        let mut tasks: HashMap<u32, Task> = HashMap::new();
        let mut comms = HashMap::new();
        for step in &self.steps {
            let task = tasks.entry(step.pid).or_default();
            match step.what {
                What::Leaves {
                    comm,
                    state,
                    key,
                    is_wanted,
                } => {
                    comms.insert(step.pid, comm);
                    // It came back before, and the record of that is missing.
                    if let Some(wait) = task.wait.take() {
                        waits.unknown.count(step.time.saturating_sub(wait.since));
                    }
                    if state & ENDS != 0 || !is_wanted {
                        *task = Task::default();
                        continue;
                    }
                    task.wait = Some(Wait {
                        since: step.time,
                        comm,
                        key,
                        blocked: state & BLOCKED != 0,
                        woken: None,
                    });
                }
                What::Woken { by, mut waker } => {
                    waker.comm = waker.comm.map(|comm| *comms.get(&by).unwrap_or(&comm));
                    match &mut task.wait {
                        Some(wait) if wait.blocked => {
                            wait.woken.get_or_insert((step.time, waker));
                        }
                        Some(_) => {}
                        // It is about to leave its CPU, and may have gone so far that it does.
                        None => task.early = Some((step.time, waker)),
                    }
                }
                What::Comes { comm } => {
                    comms.insert(step.pid, comm);
                    let early = task.early.take();
                    if let Some(wait) = task.wait.take() {
                        waits.finish(step.pid, &wait, early, step.time, gaps);
                    }
                }
            }
        }
        let last = self.steps.last().map_or(0, |step| step.time);
        let end = self.end.max(last);
        for (pid, task) in &tasks {
            let Some(wait) = &task.wait else { continue };
            match unfinished || gaps.overlap(wait.since, end) {
                // Who woke it up before it left its CPU has not ended this wait: it lasts.
                true => waits.finish(*pid, wait, None, end, gaps),
                false => waits.unfinished.count(end - wait.since),
            }
        }
        waits
    }
}

/// What is known of a task while the trace is read.
#[derive(Debug, Default)]
struct Task {
    wait: Option<Wait>,
    /// Who woke it up before it left its CPU.
    early: Option<(u64, Waker)>,
}

/// A task that is off its CPU.
#[derive(Debug)]
struct Wait {
    since: u64,
    comm: u32,
    key: Key,
    blocked: bool,
    woken: Option<(u64, Waker)>,
}

/// Waits that are not added up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Left {
    /// How many.
    pub waits: u64,
    /// How long, in nanoseconds.
    pub time: u64,
}

impl Left {
    fn count(&mut self, time: u64) {
        self.waits += 1;
        self.time = self.time.saturating_add(time);
    }
}

/// The waits of all tasks, added up.
pub struct Waits {
    rows: HashMap<Row, Sum>,
    keys: Keys,
    names: Names,
    by: By,
    /// Whether the trace says who woke tasks up.
    pub has_wakings: bool,
    /// Those that last to the end of the trace.
    pub unfinished: Left,
    /// Those during which records are missing.
    pub unknown: Left,
}

impl Waits {
    /// All together.
    pub fn total(&self) -> Sum {
        let mut total = Sum::default();
        self.rows.values().for_each(|sum| total.merge(sum));
        total
    }

    fn finish(
        &mut self,
        pid: u32,
        wait: &Wait,
        early: Option<(u64, Waker)>,
        end: u64,
        gaps: &Gaps,
    ) {
        let time = end.saturating_sub(wait.since);
        if gaps.overlap(wait.since, end) {
            return self.unknown.count(time);
        }
        let woken = match wait.woken {
            None => early
                .filter(|(at, _)| !gaps.overlap(*at, wait.since))
                .map(|(_, waker)| (wait.since, waker)),
            woken => woken,
        };
        let mut sum = Sum {
            waits: 1,
            longest: time,
            ..Sum::default()
        };
        let cause = match (wait.blocked, woken) {
            (false, _) => {
                sum.preempted = time;
                Cause::Preempted
            }
            (true, None) => {
                sum.blocked = time;
                Cause::Blocked(None)
            }
            (true, Some((at, waker))) => {
                sum.runnable = end.saturating_sub(at);
                sum.blocked = time.saturating_sub(sum.runnable);
                Cause::Blocked(Some(waker))
            }
        };
        let group = match self.by {
            By::Comm => wait.comm,
            By::Pid => {
                let name = format!("{}-{pid}", self.name(wait.comm));
                self.names.number(&name, Kind::Group)
            }
            By::Waker => {
                let name = self.waker(cause).to_owned();
                self.names.number(&name, Kind::Group)
            }
            By::Stack => self.names.number("", Kind::Group),
        };
        let key = wait.key;
        let row = Row { group, key, cause };
        self.rows.entry(row).or_default().merge(&sum);
    }

    /// What is not in the sums, and why.
    pub fn notes(&self) -> Vec<Note> {
        show::notes(self)
    }

    /// The name of a task or of a group.
    fn name(&self, number: u32) -> &str {
        self.names.get(number).0
    }

    /// Who ended a wait.
    fn waker(&self, cause: Cause) -> &str {
        match cause {
            Cause::Preempted => PREEMPTED,
            Cause::Blocked(None) => UNKNOWN,
            Cause::Blocked(Some(Waker { comm: None, .. })) => INTERRUPT,
            Cause::Blocked(Some(Waker {
                comm: Some(comm), ..
            })) => self.name(comm),
        }
    }

    /// The groups, and in each the stacks, those first in which most time went by.
    fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: HashMap<u32, HashMap<Key, Stack>> = HashMap::new();
        for (row, sum) in &self.rows {
            let stacks = groups.entry(row.group).or_default();
            let stack = stacks.entry(row.key).or_insert_with(|| Stack::new(row.key));
            stack.sum.merge(sum);
            stack.causes.push((row.cause, *sum));
        }
        let mut groups: Vec<_> = groups
            .into_iter()
            .map(|(group, stacks)| {
                let mut stacks: Vec<_> = stacks.into_values().collect();
                stacks.sort_unstable_by_key(|stack| (Reverse(stack.sum.total()), stack.key));
                let mut sum = Sum::default();
                for stack in &mut stacks {
                    sum.merge(&stack.sum);
                    let order = |(cause, sum): &(Cause, Sum)| (Reverse(sum.total()), *cause);
                    stack.causes.sort_unstable_by_key(order);
                }
                let name = self.name(group);
                Group { name, sum, stacks }
            })
            .collect();
        groups.sort_unstable_by_key(|group| (Reverse(group.sum.total()), group.name));
        groups
    }
}

/// Waits that have something in common.
struct Group<'a> {
    name: &'a str,
    sum: Sum,
    stacks: Vec<Stack>,
}

/// Those of them in one stack, and how each of them came and went.
struct Stack {
    key: Key,
    sum: Sum,
    causes: Vec<(Cause, Sum)>,
}

impl Stack {
    fn new(key: Key) -> Self {
        Self {
            key,
            sum: Sum::default(),
            causes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
