// SPDX-License-Identifier: GPL-2.0

//! What is remembered of cookies.

use proptest::prelude::*;
use stackmap_user::cookie::{exec_id, Cookie, Known, Remembered, REMEMBERED};
use std::sync::atomic::AtomicU64;

const CPUS: usize = 2;

fn remembered() -> Remembered<Box<[AtomicU64]>> {
    Remembered::new((0..CPUS * REMEMBERED).map(|_| AtomicU64::new(0)).collect())
}

/// The cookie of a CPU's request of this number, as the kernel makes it.
fn cookie(cpu: u32, number: u32) -> Cookie {
    Cookie(u64::from(2 * number + 3) << 32 | u64::from(cpu + 1))
}

#[test]
fn a_cookie_is_pending_then_bound_then_forgotten() {
    let all = remembered();
    let one = cookie(1, 7);
    assert_eq!(all.get(one), None);
    let execs = exec_id(u64::from(i32::MAX as u32) - 1);
    all.request(one, execs);
    assert_eq!(all.get(one), Some(Known::Pending(i32::MAX as u32 - 1)));
    all.bind(one, 42);
    assert_eq!(all.get(one), Some(Known::Bound(42)));
    all.forget();
    assert_eq!(all.get(one), None);
}

/// Whoever comes first: the task, or who settles it.
#[test]
fn a_cookie_is_bound_to_one_id() {
    let all = remembered();
    let one = cookie(1, 7);
    all.request(one, exec_id(3));
    assert_eq!(all.bind(one, 42), 42);
    assert_eq!(all.bind(one, 43), 42);
    assert_eq!(all.bind(one, 0), 42);
    assert_eq!(all.get(one), Some(Known::Bound(42)));
    // One that is not remembered any more is bound all the same.
    let newer = cookie(1, 7 + REMEMBERED as u32);
    assert_eq!(all.bind(newer, 0), 0);
    assert_eq!(all.bind(newer, 44), 0);
    assert_eq!(all.bind(one, 45), 45);
    assert_eq!(all.get(newer), Some(Known::Bound(0)));
    assert_eq!(all.bind(Cookie(0), 46), 46);
}

#[test]
fn a_stack_that_is_not_kept_is_not_requested_again() {
    let all = remembered();
    all.bind(cookie(0, 1), 0);
    assert_eq!(all.get(cookie(0, 1)), Some(Known::Bound(0)));
    all.request(cookie(0, 1), exec_id(3));
    assert_eq!(all.get(cookie(0, 1)), Some(Known::Bound(0)));
}

#[test]
fn no_count_of_exec_calls_looks_like_a_stack_that_is_not_kept() {
    let all = remembered();
    for count in [0, 1, i32::MAX as u64, u64::from(u32::MAX), u64::MAX] {
        all.request(cookie(0, 1), exec_id(count));
        assert_eq!(all.get(cookie(0, 1)), Some(Known::Pending(exec_id(count))));
        all.forget();
    }
}

#[test]
fn cookies_of_exits_and_of_unknown_cpus_are_not_remembered() {
    let all = remembered();
    for cookie in [
        Cookie(0),
        Cookie(5 << 32 | 1 << 31),
        cookie(CPUS as u32, 1),
        Cookie(u64::MAX),
    ] {
        all.bind(cookie, 42);
        assert_eq!(all.get(cookie), None);
    }
}

proptest! {
    /// The last cookies of each CPU are known, and none is taken for another.
    #[test]
    fn the_last_ones_are_known(from in 0..u32::MAX / 4, cpu in 0..CPUS as u32) {
        let all = remembered();
        for number in from..from + REMEMBERED as u32 + 100 {
            all.bind(cookie(cpu, number), number % 1000 + 1);
        }
        for number in from..from + REMEMBERED as u32 + 100 {
            let want = (number >= from + 100).then_some(Known::Bound(number % 1000 + 1));
            prop_assert_eq!(all.get(cookie(cpu, number)), want);
            prop_assert_eq!(all.get(cookie(1 - cpu, number)), None);
        }
    }
}
