// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which user stack each event had, in one pass: what an event adds to a result waits for its bind.
//!
//! [`Binds`](super::Binds) needs a pass of its own and memory for all binds of a trace. Here only what
//! is not over is kept: a task is in one entry into the kernel at a time, so what it has bound is of use
//! until it binds the next cookie, and what waits goes when it is bound. In a trace that is not so
//! simple, such as one whose cookies repeat, this is noticed, and then the other way has to be taken. Not noticed is
//! a cookie that is bound twice, to two ids, if another entry of the task came between: the module does not do that.

use super::{
    binds::{Users, EXITING},
    join::UserRef,
    line::{Cookie, UserSide},
};
use crate::symbols::texts::ByNumber;
use std::collections::HashSet;

/// Cookies of a CPU repeat after 2^31 entries. That takes longer than this, in nanoseconds.
const REPEATS: u64 = 1 << 39;
/// More cookies wait only if their binds are lost.
const MAX_WAITING: usize = 1 << 16;

/// A trace of more tasks, or of cookies of more CPUs, is read in two passes. With [`EXITING`], each
/// CPU counts twice.
const MAX_TASKS: usize = 1 << 20;
const MAX_CPUS: usize = 1 << 17;

/// What is said of the user stack of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LateRef {
    /// Which it is.
    Known(UserRef),
    /// It will be said for all that have this number.
    Waits(u32),
}

impl Default for LateRef {
    fn default() -> Self {
        LateRef::Known(UserRef::None)
    }
}

/// A task.
#[derive(Default)]
struct Task {
    /// The last entry that it has an event in, and when.
    last: (u64, Cookie),
    /// What it has bound last, and when.
    bound: Option<(Cookie, u32, u64)>,
}

/// A cookie that is not bound.
struct Waiting {
    number: u32,
    pid: u32,
    /// The earliest time of its events, and the latest.
    span: (u64, u64),
    /// Whether it may have been bound already.
    doubtful: bool,
}

/// Says late which user stack events had.
#[derive(Default)]
pub struct Late {
    tasks: ByNumber<u32, Task>,
    /// The tasks that have bound these cookies last.
    owners: ByNumber<Cookie, u32>,
    waiting: ByNumber<Cookie, Waiting>,
    /// Numbers that are not in use.
    free: Vec<u32>,
    /// By CPU, the highest cookie whose bind is not known any more.
    forgotten: ByNumber<u32, Cookie>,
    /// Binds before any event: to what, and when. Another task may have bound the cookie.
    early: ByNumber<Cookie, (u32, u64)>,
    /// Whether there were too many of these.
    early_lost: bool,
    bound: Option<(u32, UserRef)>,
    unsure: bool,
}

impl Users for Late {
    type User = LateRef;

    fn user(&mut self, pid: u32, time: u64, side: UserSide) -> LateRef {
        let cookie = match side {
            UserSide::None => return LateRef::default(),
            UserSide::Id(id) => return LateRef::Known(UserRef::of_id(id)),
            UserSide::Cookie(cookie) => cookie,
        };
        self.unsure |= self.tasks.len() > MAX_TASKS;
        let task = self.tasks.entry(pid).or_default();
        task.last = task.last.max((time, cookie));
        // In an exec, a thread takes over the number of its process.
        let owner = match task.bound {
            Some((bound, ..)) if bound == cookie => Some(&*task),
            _ => self.owners.get(&cookie).and_then(|of| self.tasks.get(of)),
        };
        if let Some((_, id, when)) = owner.and_then(|owner| owner.bound) {
            self.unsure |= time.abs_diff(when) > REPEATS || self.is_other(cookie, id);
            return LateRef::Known(UserRef::of_id(id));
        }
        if let Some((id, when)) = self.early.get(&cookie) {
            self.unsure |= time.abs_diff(*when) > REPEATS;
            return LateRef::Known(UserRef::of_id(*id));
        }
        let doubtful = self.was_forgotten(cookie);
        let next = self.waiting.len() as u32;
        let waiting = self.waiting.entry(cookie).or_insert_with(|| Waiting {
            number: self.free.pop().unwrap_or(next),
            pid,
            span: (time, time),
            doubtful,
        });
        let (first, last) = waiting.span;
        waiting.span = (first.min(time), last.max(time));
        self.unsure |= waiting.pid != pid;
        let number = waiting.number;
        self.unsure |= self.waiting.len() > MAX_WAITING;
        LateRef::Waits(number)
    }

    fn bind(&mut self, pid: u32, time: u64, cookie: Cookie, id: u32) {
        // Another task may have bound it.
        let mut of = pid;
        if let Some(waiting) = self.waiting.remove(&cookie) {
            let is_far = time.abs_diff(waiting.span.0) > REPEATS;
            self.unsure |= waiting.doubtful && (is_far || self.early_lost);
            self.bound = Some((waiting.number, UserRef::of_id(id)));
            self.free.push(waiting.number);
            of = waiting.pid;
        } else if !self.owners.contains_key(&cookie) && self.was_forgotten(cookie) {
            // To what it was bound before is not known any more.
            self.unsure = true;
        } else if self.early.len() == MAX_WAITING {
            self.early_lost = true;
        } else if self
            .tasks
            .get(&pid)
            .is_none_or(|task| task.last.1 != cookie)
        {
            let (before, _) = self.early.insert(cookie, (id, time)).unwrap_or((id, 0));
            self.unsure |= before != id;
        }
        let owner = self.owners.insert(cookie, of).unwrap_or(of);
        let bound = match owner == of {
            true => None,
            false => self
                .tasks
                .get_mut(&owner)
                .and_then(|task| task.bound.take()),
        };
        self.unsure |= bound.is_some_and(|(_, other, _)| other != id);
        let task = self.tasks.entry(of).or_default();
        match task.bound.replace((cookie, id, time)) {
            Some((before, other, _)) if before == cookie => self.unsure |= other != id,
            Some((before, ..)) => {
                self.owners.remove(&before);
                let forgotten = self.forgotten.entry(before as u32).or_default();
                *forgotten = before.max(*forgotten);
            }
            None => {}
        }
        self.unsure |= self.tasks.len() > MAX_TASKS || self.forgotten.len() > MAX_CPUS;
    }
}

impl Late {
    /// The number that waits no more, and what it waited for.
    pub fn take_bound(&mut self) -> Option<(u32, UserRef)> {
        self.bound.take()
    }

    /// Whether what was said may be wrong.
    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Whether another task has bound this cookie to another id.
    fn is_other(&self, cookie: Cookie, id: u32) -> bool {
        let early = self.early.get(&cookie);
        early.is_some_and(|(other, _)| *other != id)
    }

    /// Whether a bind of this cookie may have been forgotten.
    fn was_forgotten(&self, cookie: Cookie) -> bool {
        let forgotten = self.forgotten.get(&(cookie as u32));
        forgotten.is_some_and(|forgotten| cookie <= *forgotten)
    }

    /// What still waits at the end of the trace; [`None`]: it is not sure. Records from before
    /// `lost_until` are lost.
    pub fn finish(mut self, lost_until: u64) -> Option<Vec<(u32, UserRef)>> {
        let waiting = std::mem::take(&mut self.waiting);
        let bound: Vec<_> = self.tasks.values().filter_map(|task| task.bound).collect();
        self.unsure |= bound
            .iter()
            .any(|(cookie, id, _)| self.is_other(*cookie, *id));
        let bound: HashSet<Cookie> = bound.into_iter().map(|(cookie, ..)| cookie).collect();
        let user = |(cookie, waiting): (Cookie, Waiting)| {
            let (first, last) = waiting.span;
            let is_last = self.tasks.get(&waiting.pid)?.last.1 == cookie;
            let user = match is_last && cookie & EXITING == 0 {
                true if first >= lost_until => UserRef::Pending,
                true if last >= lost_until => return None,
                _ => UserRef::Lost,
            };
            let doubtful = waiting.doubtful
                || bound.contains(&cookie)
                || (self.early_lost && self.was_forgotten(cookie));
            (!doubtful).then_some((waiting.number, user))
        };
        match self.unsure {
            true => None,
            false => waiting.into_iter().map(user).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Binds, *};
    use std::collections::HashMap;

    /// What is recorded of user stacks: when, by which task, and what.
    #[derive(Clone, Copy, Debug)]
    enum Record {
        Event(u64, u32, Cookie),
        Bind(u64, u32, Cookie, u32),
    }
    use Record::{Bind, Event};

    /// The user stack of each event, in their order; [`None`]: not sure.
    fn late(records: &[Record], lost_until: u64) -> Option<Vec<UserRef>> {
        let mut late = Late::default();
        let mut users = Vec::new();
        let mut waiting = HashMap::<u32, Vec<usize>>::new();
        for record in records {
            match *record {
                Event(time, pid, cookie) => match late.user(pid, time, UserSide::Cookie(cookie)) {
                    LateRef::Known(user) => users.push(user),
                    LateRef::Waits(number) => {
                        waiting.entry(number).or_default().push(users.len());
                        users.push(UserRef::None);
                    }
                },
                Bind(time, pid, cookie, id) => late.bind(pid, time, cookie, id),
            }
            if let Some((number, user)) = late.take_bound() {
                for index in waiting.remove(&number).unwrap() {
                    users[index] = user;
                }
            }
        }
        for (number, user) in late.finish(lost_until)? {
            for index in waiting.remove(&number).unwrap() {
                users[index] = user;
            }
        }
        assert!(waiting.is_empty());
        Some(users)
    }

    /// The same in two passes.
    fn exact(records: &[Record], lost_until: u64) -> Vec<UserRef> {
        let mut binds = Binds::default();
        binds.lost(lost_until);
        for record in records {
            match *record {
                Event(time, pid, cookie) => binds.event(pid, time, cookie),
                Bind(time, _, cookie, id) => binds.bind(time, cookie, id),
            }
        }
        binds.finish();
        let user = |record: &Record| match *record {
            Event(time, pid, cookie) => Some(binds.user(pid, time, UserSide::Cookie(cookie))),
            Bind(..) => None,
        };
        records.iter().filter_map(user).collect()
    }

    #[test]
    fn another_task_may_bind_a_cookie_before_any_event() {
        let records = [
            Bind(1, 9, 5 << 32 | 1, 7),
            Event(2, 7, 5 << 32 | 1),
            Bind(3, 9, 6 << 32 | 2, 8),
            Event(4, 7, 5 << 32 | 1),
        ];
        let want = [UserRef::Id(7), UserRef::Id(7)];
        assert_eq!(exact(&records, 0), want);
        assert_eq!(late(&records, 0).unwrap(), want);
    }

    #[test]
    fn a_cookie_with_two_ids_is_not_sure() {
        const SECOND: u64 = 1 << 30;
        let records = [
            Event(1, 7, 1 << 32 | 1),
            Bind(2, 7, 1 << 32 | 1, 0),
            Event(20 * SECOND, 7, 1 << 32 | 1),
            Bind(20 * SECOND + 1, 7, 1 << 32 | 1, 5),
        ];
        let want = [UserRef::NotKept, UserRef::Id(5)];
        assert_eq!(exact(&records, 0), want);
        assert_eq!(late(&records, 0), None);
        // By another task.
        let records = [
            Event(1, 7, 1 << 32 | 1),
            Bind(2, 7, 1 << 32 | 1, 0),
            Bind(3, 9, 1 << 32 | 1, 5),
            Event(4, 7, 1 << 32 | 1),
        ];
        assert_eq!(exact(&records, 0), [UserRef::Id(5); 2]);
        assert_eq!(late(&records, 0), None);
        assert_eq!(late(&records[..3], 0), None);
    }

    #[test]
    fn one_pass_says_what_two_say() {
        let mut state = 1u64;
        let mut below = |end: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % end
        };
        let mut nr_sure = 0;
        for round in 0..300 {
            // Of each task the cookie, and whether it is bound.
            let mut tasks: Vec<(Cookie, bool)> = vec![(0, true); 5];
            let (mut records, mut time, mut count) = (Vec::new(), 0, 0);
            for _ in 0..200 {
                time += 1 + below(1000);
                let pid = below(5);
                let (cookie, is_bound) = &mut tasks[pid as usize];
                match below(8) {
                    0 => {
                        count += 2;
                        let exiting = if below(9) == 0 { EXITING } else { 0 };
                        *cookie = count << 32 | (1 + below(2)) | exiting;
                        *is_bound = false;
                    }
                    // A bind that is lost, or one of another task.
                    1 if !*is_bound => {
                        let by = if below(20) == 0 { 99 } else { pid };
                        if below(20) > 0 {
                            records.push(Bind(time, by as u32, *cookie, below(4) as u32));
                        }
                        *is_bound = true;
                    }
                    _ if *cookie != 0 => records.push(Event(time, pid as u32, *cookie)),
                    _ => {}
                }
            }
            let lost_until = [0, time / 2, time + 1][round % 3];
            let want = exact(&records, lost_until);
            if let Some(found) = late(&records, lost_until) {
                assert_eq!(found, want, "{round}");
                nr_sure += 1;
            }
        }
        assert!(nr_sure > 200, "{nr_sure}");
    }

    #[test]
    fn what_may_be_wrong_is_noticed() {
        const DAY: u64 = 24 * 60 * 60 * 1_000_000_000;
        let known = [Event(5, 7, 1), Bind(6, 7, 1, 40), Event(8, 7, 1)];
        assert_eq!(late(&known, 0).unwrap(), [UserRef::Id(40); 2]);
        // The cookie repeats.
        let again = [&known[..], &[Event(DAY, 7, 1), Bind(DAY, 7, 1, 41)]].concat();
        assert_eq!(late(&again, 0), None);
        assert_eq!(exact(&again, 0)[2], UserRef::Id(41));
        // The bind of the other entry is not known any more, and it is not nearer.
        let other = [&known[..], &[Bind(9, 7, 3, 50), Event(10, 7, 1)]].concat();
        assert_eq!(late(&other, 0), None);
        assert_eq!(exact(&other, 0)[2], UserRef::Id(40));
        // Too many are bound before there is an event.
        let many = (1..MAX_WAITING as u64 + 2).map(|nr| Bind(nr, 9, nr << 32 | 1, 40));
        let mut settled: Vec<_> = many.collect();
        settled.push(Event(1 << 30, 7, (MAX_WAITING as u64) << 32 | 1));
        assert_eq!(late(&settled, 0).unwrap(), [UserRef::Id(40)]);
        settled.push(Bind(1 << 30, 9, (MAX_WAITING as u64 + 2) << 32 | 1, 40));
        settled.push(Event(1 << 30, 8, (MAX_WAITING as u64 + 1) << 32 | 1));
        assert_eq!(late(&settled, 0), None);
        settled.push(Bind(1 << 30, 8, (MAX_WAITING as u64 + 1) << 32 | 1, 40));
        assert_eq!(late(&settled, 0), None);
        // Records are lost between the events of an entry.
        let lost = [Event(5, 7, 1), Event(8, 7, 1)];
        assert_eq!(late(&lost, 7), None);
        assert_eq!(exact(&lost, 7), [UserRef::Lost, UserRef::Pending]);
        assert_eq!(late(&lost, 5).unwrap(), [UserRef::Pending; 2]);
        assert_eq!(late(&lost, 9).unwrap(), [UserRef::Lost; 2]);
        let many: Vec<_> = (0..=MAX_WAITING as u64)
            .map(|nr| Event(nr, nr as u32, nr << 32 | 1))
            .collect();
        assert_eq!(late(&many, 0), None);
    }

    #[test]
    fn records_may_be_out_of_order() {
        let cookie = |nr: u64| nr << 32 | 1;
        let of_one = [Event(50, 7, cookie(1)), Event(10, 7, cookie(1))];
        let of_two = [Event(50, 7, cookie(2)), Event(10, 7, cookie(1))];
        let forgotten = [
            Event(1, 7, cookie(5)),
            Bind(2, 7, cookie(5), 40),
            Bind(3, 7, cookie(7), 41),
            Event(4, 8, cookie(3)),
            Bind(5, 8, cookie(3), 42),
            Bind(6, 8, cookie(9), 43),
            Event(7, 7, cookie(5)),
        ];
        use UserRef::{Id, Lost, Pending};
        for (records, lost_until, want, is_sure) in [
            (&of_one[..], 5, &[Pending, Pending][..], true),
            (&of_one, 30, &[Pending, Lost], false),
            (&of_one, 60, &[Lost, Lost], true),
            (&of_two, 0, &[Pending, Lost], true),
            (&forgotten, 0, &[Id(40), Id(42), Id(40)], false),
        ] {
            assert_eq!(exact(records, lost_until), want, "{records:?}");
            let want = is_sure.then(|| want.to_vec());
            assert_eq!(late(records, lost_until), want, "{records:?}");
        }
    }

    #[test]
    fn what_is_kept_of_tasks_and_cpus_is_bounded() {
        let bind = |late: &mut Late, nr: u64, pid: u32, cookie| late.bind(pid, nr, cookie, 7);
        let mut of_tasks = Late::default();
        for nr in 1..=MAX_TASKS as u64 {
            bind(&mut of_tasks, nr, nr as u32, nr << 32 | 1);
        }
        assert!(!of_tasks.is_unsure());
        bind(&mut of_tasks, 0, 0, 1);
        assert!(of_tasks.is_unsure());
        let mut of_events = Late::default();
        bind(&mut of_events, 1, 1, 1);
        for pid in 0..=MAX_TASKS as u32 + 1 {
            of_events.user(pid, 1, UserSide::Cookie(1));
        }
        assert!(of_events.is_unsure());
        let mut of_cpus = Late::default();
        for cpu in 0..=MAX_CPUS as u64 {
            bind(&mut of_cpus, cpu, 7, cpu);
        }
        assert!(!of_cpus.is_unsure());
        bind(&mut of_cpus, 0, 7, 0);
        assert!(of_cpus.is_unsure());
    }

    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Enter {
            cpu: u64,
            exits: bool,
        },
        Event,
        /// It returns to user space, or a record of that is lost.
        Return {
            is_lost: bool,
        },
        /// Another task binds the cookie.
        Settle,
        /// A thread becomes the process.
        Exec,
        /// Cookies repeat.
        Later,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..3_u64, proptest::bool::weighted(0.1))
                .prop_map(|(cpu, exits)| Step::Enter { cpu, exits }),
            6 => Just(Step::Event),
            3 => proptest::bool::weighted(0.1).prop_map(|is_lost| Step::Return { is_lost }),
            1 => Just(Step::Settle),
            1 => Just(Step::Exec),
            1 => Just(Step::Later),
        ]
    }

    /// What tasks record that take these steps. Steps that cannot follow are left out.
    fn recorded(steps: &[(usize, Step)]) -> Vec<Record> {
        // The PID, the cookie and whether the task is in the kernel.
        let mut tasks = [(1, 0, false), (2, 0, false), (3, 0, false)];
        let (mut time, mut era, mut count) = (0, 0, 0);
        let mut records = Vec::new();
        for (task, step) in steps {
            time += 1 << 20;
            let (pid, cookie, is_in) = &mut tasks[*task];
            let id = (*cookie >> 32) as u32 * 2 % 5 + era;
            match *step {
                Step::Enter { cpu, exits } if !*is_in => {
                    count += 1;
                    *cookie = count << 32 | cpu | if exits { EXITING } else { 0 };
                    *is_in = true;
                }
                Step::Event if *cookie != 0 => records.push(Event(time, *pid, *cookie)),
                Step::Return { is_lost } if *is_in => {
                    *is_in = false;
                    if !is_lost {
                        records.push(Bind(time, *pid, *cookie, id));
                    }
                }
                Step::Settle if *is_in => records.push(Bind(time, 99, *cookie, id)),
                Step::Exec if *pid < 10 => *pid += 10,
                Step::Later => {
                    time += 2 * REPEATS;
                    (era, count) = (era + 1, 0);
                    // They have returned since.
                    tasks
                        .iter_mut()
                        .for_each(|task| (task.1, task.2) = (0, false));
                }
                _ => {}
            }
        }
        records
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 5000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn one_pass_is_unsure_or_right(
            steps in proptest::collection::vec((0..3_usize, step()), 1..40),
            lost in 0_u64..40,
        ) {
            let (records, lost) = (recorded(&steps), lost << 20);
            if let Some(found) = late(&records, lost) {
                prop_assert_eq!(found, exact(&records, lost), "{:?}", records);
            }
        }
    }
}
