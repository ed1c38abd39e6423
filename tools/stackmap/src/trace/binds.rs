// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which user stack each entry into the kernel had.
//!
//! An event of its own binds a cookie to an id, before or after the events that carry the cookie, and
//! perhaps in the buffer of another CPU. So a trace is read twice: for its binds, and for its events.

use super::UserRef;
use crate::symbols::texts::ByNumber;

/// The number of an entry into the kernel: that of the CPU in the low 32 bits, a count in the high ones, which grows by 2.
pub type Cookie = u64;

/// Times are shifted by this: in nanoseconds, about a second is left.
const TIME_SHIFT: u32 = 30;
/// Set in the cookie of a task that exits.
const EXITING: Cookie = 1 << 31;
/// The bits of a cookie that are its index in a block.
const INDEX: Cookie = (BLOCK as Cookie - 1) << INDEX_SHIFT;
const INDEX_SHIFT: u32 = 33;
/// How many cookies are in a block.
const BLOCK: usize = 256;
/// No id.
const UNBOUND: u32 = u32::MAX;
/// Cookies repeat after days. Binds that are this far apart, in the unit of [`TIME_SHIFT`], are of different entries.
const REPEATED: u32 = 1 << 11;

/// The ids of cookies that differ in [`INDEX`] alone. Most programs enter the kernel from few places again and again.
#[derive(Debug)]
enum Block {
    Few(Box<Few>),
    Many(Box<[u32; BLOCK]>),
}

/// Up to 15 different ids, and for each cookie four bits: the position of its id.
#[derive(Debug)]
struct Few {
    positions: [u8; BLOCK / 2],
    /// The last one is always [`UNBOUND`].
    ids: [u32; 16],
}

impl Block {
    fn new() -> Self {
        Self::Few(Box::new(Few {
            positions: [u8::MAX; BLOCK / 2],
            ids: [UNBOUND; 16],
        }))
    }

    fn id(&self, index: usize) -> u32 {
        match self {
            Self::Few(few) => few.id(index),
            Self::Many(ids) => ids[index],
        }
    }

    fn set(&mut self, index: usize, id: u32) {
        match self {
            Self::Few(few) => {
                if !few.set(index, id) {
                    let mut ids = std::array::from_fn(|index| few.id(index));
                    ids[index] = id;
                    *self = Self::Many(Box::new(ids));
                }
            }
            Self::Many(ids) => ids[index] = id,
        }
    }
}

impl Few {
    fn id(&self, index: usize) -> u32 {
        let position = self.positions[index / 2] >> (index % 2 * 4) & 15;
        self.ids[usize::from(position)]
    }

    /// Binds a cookie, and returns whether its id is one of the few.
    fn set(&mut self, index: usize, id: u32) -> bool {
        let fits = |known: &u32| *known == id || *known == UNBOUND;
        let Some(position) = self.ids[..15].iter().position(fits) else {
            return false;
        };
        self.ids[position] = id;
        let (byte, shift) = (&mut self.positions[index / 2], index % 2 * 4);
        *byte = *byte & !(15 << shift) | (position as u8) << shift;
        true
    }
}

/// A bind that is in no block.
#[derive(Clone, Copy, Debug)]
struct Bind {
    cookie: Cookie,
    time: u32,
    id: u32,
}

/// The binds of a trace.
#[derive(Debug, Default)]
pub struct Binds {
    /// With the time at which the first cookie of the block was bound.
    blocks: ByNumber<Cookie, (u32, Block)>,
    /// Binds more than [`REPEATED`] before or after the first of their block, and binds of a cookie to a second stack.
    others: Vec<Bind>,
    /// The last entry of each task that has an event, and when.
    entries: ByNumber<u32, (u64, Cookie)>,
    /// Records from before this time are lost.
    lost_until: u64,
}

impl Binds {
    /// A cookie is bound to an id; 0: the stack is not kept.
    pub fn bind(&mut self, time: u64, cookie: Cookie, id: u32) {
        let (key, index) = parts(cookie);
        let time = coarse(time);
        let block = self.blocks.entry(key);
        let (first, block) = block.or_insert_with(|| (time, Block::new()));
        let is_far = first.abs_diff(time) > REPEATED;
        match (block.id(index), id) {
            (_, UNBOUND) => {}
            // A stack that was kept is rather it than one that was not.
            (UNBOUND | 0, _) if !is_far => block.set(index, id),
            (_, 0) if !is_far => {}
            (known, id) if known == id && !is_far => {}
            _ => self.others.push(Bind { cookie, time, id }),
        }
    }

    /// A task has an event in this entry.
    pub fn event(&mut self, pid: u32, time: u64, cookie: Cookie) {
        let last = self.entries.entry(pid).or_insert((time, cookie));
        *last = (*last).max((time, cookie));
    }

    /// A CPU has lost records from before this time.
    pub fn lost(&mut self, time: u64) {
        self.lost_until = self.lost_until.max(time);
    }

    /// All of the trace was read.
    pub fn finish(&mut self) {
        self.others
            .sort_unstable_by_key(|bind| (bind.cookie, bind.time, bind.id == 0));
    }

    /// The user stack of an event with such a cookie, if it has one.
    pub fn user(&self, pid: u32, time: u64, cookie: Option<Cookie>) -> UserRef {
        let Some(cookie) = cookie else {
            return UserRef::None;
        };
        match self.nearest(cookie, time) {
            Some(id) => UserRef::of_id(id),
            None => self.unbound(pid, time, cookie),
        }
    }

    /// What the cookie was bound to. Cookies repeat after days: the bind that is nearest in time.
    fn nearest(&self, cookie: Cookie, time: u64) -> Option<u32> {
        let (key, index) = parts(cookie);
        let time = coarse(time);
        let block = self.blocks.get(&key);
        let near = block.map(|(time, block)| Bind {
            cookie,
            time: *time,
            id: block.id(index),
        });
        let near = near.filter(|bind| bind.id != UNBOUND);
        if self.others.is_empty() {
            return near.map(|bind| bind.id);
        }
        let key = |bind: &Bind| (bind.cookie, bind.time);
        let others = &self.others;
        let later = others.partition_point(|bind| key(bind) < (cookie, time));
        // Of those of one time, the first is one that was kept, if any was.
        let first = |bind: &Bind| others.partition_point(|other| key(other) < key(bind));
        let earlier = others[..later].last();
        let earlier = earlier.and_then(|bind| others.get(first(bind)));
        let around = earlier.into_iter().chain(others.get(later)).copied();
        let same = near.into_iter().chain(around);
        let same = same.filter(|bind| bind.cookie == cookie);
        let nearest = same.min_by_key(|bind| bind.time.abs_diff(time));
        nearest.map(|bind| bind.id)
    }

    /// A task that was in user space again, or is gone, has bound its cookies, but that may be lost.
    fn unbound(&self, pid: u32, time: u64, cookie: Cookie) -> UserRef {
        let last = self.entries.get(&pid).map(|(_, cookie)| *cookie);
        let is_kept = last == Some(cookie) && time >= self.lost_until;
        match is_kept && cookie & EXITING == 0 {
            true => UserRef::Pending,
            false => UserRef::Lost,
        }
    }
}

/// Returns the key of a cookie's block, with its count in the low bits as hashes collide less so, and the index in the block.
fn parts(cookie: Cookie) -> (Cookie, usize) {
    let key = (cookie & !INDEX).rotate_right(INDEX_SHIFT + BLOCK.ilog2());
    (key, ((cookie & INDEX) >> INDEX_SHIFT) as usize)
}

fn coarse(time: u64) -> u32 {
    (time >> TIME_SHIFT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60 * 1_000_000_000;

    /// The cookie of an entry on the second CPU.
    fn entry(number: u64) -> Cookie {
        (2 * number + 1) << 32 | 2
    }

    #[test]
    fn a_cookie_is_bound_before_and_after() {
        let mut binds = Binds::default();
        binds.event(7, 10, entry(1));
        binds.event(7, 30, entry(5));
        binds.bind(20, entry(1), 40);
        binds.bind(25, entry(9), 0);
        binds.bind(25, entry(3), UNBOUND);
        binds.bind(25, entry(7), 42);
        // The same cookie, days later.
        binds.bind(DAY, entry(1), 41);
        binds.finish();
        let user = |time, cookie| binds.user(7, time, Some(entry(cookie)));
        assert_eq!(user(10, 1), UserRef::Id(40));
        assert_eq!(user(21, 1), UserRef::Id(40));
        assert_eq!(user(DAY - 100, 1), UserRef::Id(41));
        assert_eq!(user(10, 9), UserRef::NotKept);
        assert_eq!(user(30, 5), UserRef::Pending);
        assert_eq!(user(10, 3), UserRef::Lost);
        binds.lost(30);
        binds.lost(20);
        let user = |time, cookie| binds.user(7, time, Some(entry(cookie)));
        assert_eq!(user(30, 5), UserRef::Pending);
        assert_eq!(user(29, 5), UserRef::Lost);
        assert_eq!(binds.user(7, 0, None), UserRef::None);
    }

    #[test]
    fn a_kept_stack_wins_over_none() {
        // Also long after the first bind of their block.
        for (ids, late) in [([0, 5, 0], 0), ([5, 0, 0], 0), ([0, 5, 0], DAY)] {
            let mut binds = Binds::default();
            binds.bind(0, entry(3), 1);
            for (time, id) in [10, 20, 30].into_iter().zip(ids) {
                binds.bind(late + time, entry(1), id);
            }
            binds.finish();
            for time in [0, 25, 3 << TIME_SHIFT] {
                let user = [1, 2].map(|number| binds.user(7, late + time, Some(entry(number))));
                assert_eq!(user, [UserRef::Id(5), UserRef::Lost], "{time}");
            }
        }
    }

    #[test]
    fn the_nearest_bind_of_a_cookie_is_its_own() {
        let mut binds = Binds::default();
        for day in 0..100 {
            binds.bind(day * DAY, entry(1), day as u32 + 1);
            binds.bind(day * DAY, entry(3), 1000);
        }
        binds.finish();
        let user = |time| binds.user(7, time, Some(entry(1)));
        for (day, time) in (0..100).map(|day| (day, day * DAY)) {
            for time in [time, time + DAY / 3, time.saturating_sub(DAY / 3)] {
                assert_eq!(user(time), UserRef::Id(day as u32 + 1));
            }
        }
    }

    #[test]
    fn a_cookie_that_another_stack_is_bound_to_has_the_nearest() {
        let mut binds = Binds::default();
        let bound = [(20, 1, 5), (30, 1, 9), (1, 2, 6), (50, 3, 7), (25, 3, 8)];
        for (time, number, id) in bound {
            binds.bind((time * 100) << TIME_SHIFT, entry(number), id);
        }
        binds.finish();
        let events = [(24, 1), (26, 1), (0, 2), (20, 3), (50, 3)];
        let ids = events
            .map(|(time, number)| binds.user(7, (time * 100) << TIME_SHIFT, Some(entry(number))));
        assert_eq!(ids, [5, 9, 6, 8, 7].map(UserRef::Id));
        assert_eq!(binds.user(7, 0, Some(entry(4))), UserRef::Lost);
    }

    #[test]
    fn a_block_has_few_ids_or_many() {
        for nr_ids in [1, 15, 16, 1000] {
            let mut binds = Binds::default();
            let id = |number| 7 + number as u32 * 5 % nr_ids;
            for number in (0..1000).filter(|number| number % 3 != 0) {
                binds.bind(number, entry(number), id(number));
            }
            binds.finish();
            for number in 0..1000 {
                let want = match number % 3 {
                    0 => UserRef::Lost,
                    _ => UserRef::Id(id(number)),
                };
                assert_eq!(binds.user(7, number, Some(entry(number))), want, "{number}");
            }
        }
    }

    #[test]
    fn an_exit_that_is_not_bound_is_lost() {
        let mut binds = Binds::default();
        binds.event(7, 10, EXITING | 5);
        assert_eq!(binds.user(7, 10, Some(EXITING | 5)), UserRef::Lost);
    }
}
