// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names of tasks. A record has only the PID; the kernel keeps the names in `saved_cmdlines`.
//!
//! `saved_cmdlines` is a text, and a name may contain newlines. So a line that may be part of the
//! name before it is used only if there is no better source and no second such line for the PID.

use super::comms::RecordedComms;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// The name of tasks whose name is not known, as the kernel prints it.
pub(super) const UNKNOWN: &str = "<...>";
/// The name of the idle tasks, as the kernel prints it.
const IDLE: &str = "<idle>";
/// The most bytes of a name.
const MAX_COMM: usize = 15;
/// The most tasks of which a capture has the names.
pub const MAX_NAMES: usize = 1 << 19;
/// As many tasks as a kernel can have.
const MAX_TASKS: usize = 1 << 22;
/// How long a name of a task is at most as JSON, and its process, in bytes. A byte of a name may
/// be `\u0001`.
const NAME_LEN: usize = "\"4194303\":[[18446744073709551615,\"\"]],".len() + MAX_COMM * 6;
const TGID_LEN: usize = "\"4194303\":4194303,".len();
/// How long [`Tasks`] is at most as JSON, in bytes.
pub const MAX_JSON: u64 = (MAX_NAMES * NAME_LEN + MAX_TASKS * TGID_LEN + 64) as u64;

/// The names of the tasks of a trace.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Tasks {
    /// Their last names.
    #[serde(default)]
    comms: BTreeMap<i32, String>,
    /// The names that they had before, each with the time when it ended, in this order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    earlier: BTreeMap<i32, Vec<(u64, String)>>,
    /// Their last processes, if the trace has them.
    #[serde(default)]
    tgids: BTreeMap<i32, u32>,
    /// The processes that a task had before, each with the time when it ended, in this order; 0: not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    earlier_tgids: BTreeMap<i32, Vec<(u64, u32)>>,
}

/// Returns the last of some values with the times when they began, and the others with the times when they ended.
fn ends<T>(mut values: Vec<(u64, T)>) -> Option<(T, Vec<(u64, T)>)> {
    let ends: Vec<_> = values.iter().skip(1).map(|(begin, _)| *begin).collect();
    let (_, last) = values.pop()?;
    let values = values.into_iter().map(|(_, value)| value);
    Some((last, ends.into_iter().zip(values).collect()))
}

/// Returns the value at a time, and the span of time of the value.
fn at<'a, T>(
    earlier: Option<&'a Vec<(u64, T)>>,
    last: Option<&'a T>,
    time: u64,
) -> (Option<&'a T>, Range<u64>) {
    let earlier = earlier.map_or(&[][..], Vec::as_slice);
    let at = earlier.partition_point(|(end, _)| *end <= time);
    let begin = at.checked_sub(1).map_or(0, |before| earlier[before].0);
    match earlier.get(at) {
        Some((end, value)) => (Some(value), begin..*end),
        None => (last, begin..u64::MAX),
    }
}

impl Tasks {
    /// The tasks `pids`. `ask` knows names of tasks, `process` their processes; of others, the texts of
    /// `saved_cmdlines` and `saved_tgids` are used.
    pub fn new(
        pids: &BTreeSet<i32>,
        cmdlines: &[u8],
        tgids: &str,
        ask: impl Fn(i32) -> Option<Vec<u8>>,
        process: impl Fn(i32) -> Option<u32>,
    ) -> Self {
        let saved = Saved::parse(cmdlines);
        let name = |pid: &i32| {
            let saved = || match (
                saved.certain.get(pid),
                saved.uncertain.get(pid).map(Vec::as_slice),
            ) {
                (Some(name), _) | (None, Some([name])) => Some(name.to_vec()),
                (None, _) => None,
            };
            let name = ask(*pid).or_else(saved)?;
            Some((*pid, String::from_utf8_lossy(&name).into_owned()))
        };
        let tgid = |line: &str| {
            let (pid, tgid) = line.split_once(' ')?;
            let pid = pid.parse().ok().filter(|pid| pids.contains(pid))?;
            Some((pid, tgid.trim().parse().ok().filter(|tgid| *tgid != 0)?))
        };
        let mut tgids: BTreeMap<_, _> = tgids.lines().filter_map(tgid).collect();
        tgids.extend(pids.iter().filter_map(|pid| Some((*pid, process(*pid)?))));
        Self {
            comms: pids.iter().filter_map(name).collect(),
            tgids,
            ..Self::default()
        }
    }

    /// Adds the names and processes that the tasks `pids` had by time. `threads`: see [`RecordedComms::processes`]. `running`
    /// knows the names of tasks that run at the end.
    pub fn add(
        &mut self,
        pids: &BTreeSet<i32>,
        recorded: &RecordedComms,
        threads: &BTreeMap<i32, u32>,
        running: impl Fn(i32) -> Option<Vec<u8>>,
    ) {
        let mut known = BTreeMap::new();
        for pid in pids {
            if let Some((last, earlier)) = ends(recorded.names(*pid, running(*pid).as_deref())) {
                self.comms.insert(*pid, last);
                if !earlier.is_empty() {
                    self.earlier.insert(*pid, earlier);
                }
            }
            let lives = recorded.processes(*pid, threads, &mut known);
            let begun = || Some((*threads.get(pid)?, Vec::new()));
            if let Some((last, earlier)) = ends(lives).or_else(begun) {
                if last != 0 {
                    self.tgids.insert(*pid, last);
                }
                if !earlier.is_empty() {
                    self.earlier_tgids.insert(*pid, earlier);
                }
            }
        }
    }

    /// Forgets the tasks whose names are too many, and returns how many these are.
    pub fn bound(&mut self) -> usize {
        let mut nr_names = 0;
        let first = self.comms.keys().copied().find(|pid| {
            nr_names += 1 + self.earlier.get(pid).map_or(0, Vec::len);
            nr_names += self.earlier_tgids.get(pid).map_or(0, Vec::len);
            nr_names > MAX_NAMES
        });
        first.map_or(0, |first| {
            self.earlier.split_off(&first);
            self.earlier_tgids.split_off(&first);
            self.comms.split_off(&first).len()
        })
    }

    /// Puts `task-1`, `task-2` and so on in the place of names: the same in place of the same.
    pub fn number(&mut self) {
        let mut numbers = BTreeMap::new();
        let earlier = self.earlier.values_mut().flatten();
        let comms = self.comms.values_mut().chain(earlier.map(|(_, comm)| comm));
        for comm in comms.filter(|comm| **comm != UNKNOWN) {
            let next = numbers.len() + 1;
            let number = *numbers.entry(std::mem::take(comm)).or_insert(next);
            *comm = format!("task-{number}");
        }
    }

    /// Returns the name that a task has at a time, and from when until when.
    pub fn comm(&self, pid: i32, time: u64) -> (&str, Range<u64>) {
        let (name, span) = at(self.earlier.get(&pid), self.comms.get(&pid), time);
        let name = match pid {
            0 => IDLE,
            _ => name.map_or(UNKNOWN, String::as_str),
        };
        (name, span)
    }

    /// All tasks whose name is known, by their ids, with their last names.
    pub fn comms(&self) -> impl Iterator<Item = (i32, &str)> {
        self.comms.iter().map(|(pid, comm)| (*pid, &comm[..]))
    }

    /// Returns the process of a task at a time, and the span of time for which it is that.
    pub fn tgid(&self, pid: i32, time: u64) -> (Option<u32>, Range<u64>) {
        let (tgid, span) = at(self.earlier_tgids.get(&pid), self.tgids.get(&pid), time);
        (tgid.copied().filter(|tgid| *tgid != 0), span)
    }

    /// Whether processes are known at all.
    pub fn has_tgids(&self) -> bool {
        !self.tgids.is_empty()
    }
}

/// What `saved_cmdlines` says.
#[derive(Default)]
struct Saved<'a> {
    certain: BTreeMap<i32, &'a [u8]>,
    /// Lines that may be part of the name before them.
    uncertain: BTreeMap<i32, Vec<&'a [u8]>>,
}

impl<'a> Saved<'a> {
    fn parse(text: &'a [u8]) -> Self {
        let mut saved = Self::default();
        // The least length of the name before, in bytes.
        let mut before = None;
        for line in text
            .strip_suffix(b"\n")
            .unwrap_or(text)
            .split(|byte| *byte == b'\n')
        {
            let may_continue = before.is_some_and(|len: usize| len + 1 + line.len() <= MAX_COMM);
            let Some((pid, name)) = entry(line) else {
                before = Some(line.len());
                continue;
            };
            match may_continue {
                true => saved.uncertain.entry(pid).or_default().push(name),
                false => drop(saved.certain.insert(pid, name)),
            }
            before = Some(name.len());
        }
        saved
    }
}

/// `123 name`
fn entry(line: &[u8]) -> Option<(i32, &[u8])> {
    let blank = memchr::memchr(b' ', line)?;
    let digits = std::str::from_utf8(&line[..blank]).ok()?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((digits.parse().ok()?, &line[blank + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_for_the_same_names() {
        let pids = BTreeSet::from([0, 5, 6, 7, 8]);
        let name = |pid: i32| {
            let name = match pid {
                6 => "bash",
                7 => UNKNOWN,
                _ => "ann",
            };
            Some(name.as_bytes().to_vec())
        };
        let mut tasks = Tasks::new(&pids, b"", "5 4\n", name, |_| None);
        tasks.number();
        let comms: Vec<_> = pids.iter().map(|pid| tasks.comm(*pid, 0).0).collect();
        assert_eq!(comms, ["<idle>", "task-1", "task-2", "<...>", "task-1"]);
        assert_eq!((tasks.comm(9, 0).0, tasks.tgid(5, 0).0), ("<...>", Some(4)));
    }

    fn tasks(pids: &[i32], cmdlines: &str, alive: &[(i32, &str)]) -> Tasks {
        let alive: BTreeMap<_, _> = alive.iter().copied().collect();
        let ask = |pid| alive.get(&pid).map(|name| name.as_bytes().to_vec());
        Tasks::new(
            &pids.iter().copied().collect(),
            cmdlines.as_bytes(),
            "7 5\nx\n1 0\n8 4\n",
            ask,
            |pid| (pid == 12 || pid == 7).then_some(11),
        )
    }

    #[test]
    fn what_is_kept_can_be_read() {
        let of = |nr: usize| {
            let pids = (MAX_TASKS - nr..MAX_TASKS).map(|pid| pid as i32);
            let name = || "\u{1}".repeat(MAX_COMM);
            let mut tasks = Tasks {
                comms: pids.clone().map(|pid| (pid, name())).collect(),
                earlier: pids
                    .clone()
                    .map(|pid| (pid, vec![(u64::MAX, name())]))
                    .collect(),
                tgids: pids.map(|pid| (pid, pid as u32)).collect(),
                ..Tasks::default()
            };
            let forgotten = tasks.bound();
            (forgotten, serde_json::to_vec(&tasks).unwrap().len())
        };
        assert!(of(2).1 - of(1).1 <= 2 * NAME_LEN + TGID_LEN);
        let (forgotten, len) = of(MAX_NAMES / 2 + 3);
        assert_eq!(forgotten, 3);
        let of_others = (MAX_TASKS - MAX_NAMES / 2 - 3) * TGID_LEN;
        assert!((len + of_others) as u64 <= MAX_JSON, "{len}");
    }

    #[test]
    fn a_short_line_may_be_part_of_a_name() {
        // With its newline the line makes a name of 15 bytes; of 16, which there is none.
        let text = "1 12345678\n7 bcde\n";
        let twice = format!("{text}8 12345678\n7 oth\n");
        assert_eq!(tasks(&[7], &twice, &[]).comm(7, 0).0, "<...>");
        let text = "1 123456789\n7 bcde\n8 12345678\n7 oth\n";
        assert_eq!(tasks(&[7], text, &[]).comm(7, 0).0, "bcde");
    }

    #[test]
    fn names_are_asked_for_first() {
        let text = "1 systemd\n7 a b\n12 kworker/0:1-eve\n";
        let tasks = tasks(&[0, 1, 7, 12, 99], text, &[(1, "init")]);
        let names = [0, 1, 7, 12, 99].map(|pid| tasks.comm(pid, 0).0.to_owned());
        assert_eq!(names, ["<idle>", "init", "a b", "kworker/0:1-eve", "<...>"]);
        assert_eq!(
            [7, 1, 12].map(|pid| tasks.tgid(pid, 0).0),
            [Some(11), None, Some(11)]
        );
        assert_eq!(super::tests::tasks(&[8], text, &[]).tgid(8, 0).0, Some(4));
    }

    #[test]
    fn a_name_with_newlines_names_no_other_task() {
        // The task 500 is called "x\n1 evil", and the name of 1 is known, or the task is alive.
        let text = "500 x\n1 evil\n1000 a-long-name\n1 systemd\n";
        assert_eq!(tasks(&[1], text, &[]).comm(1, 0).0, "systemd");
        let text = "500 x\n1 evil\n";
        assert_eq!(tasks(&[1], text, &[(1, "systemd")]).comm(1, 0).0, "systemd");
        // Neither: then two names are as good as none.
        let text = "500 x\n1 evil\n501 x\n1 init\n";
        assert_eq!(tasks(&[1], text, &[]).comm(1, 0).0, "<...>");
    }

    #[test]
    fn a_short_line_behind_a_short_name_is_a_line() {
        assert_eq!(tasks(&[9, 10], "9 sh\n10 ls\n", &[]).comm(10, 0).0, "ls");
    }
}
