// SPDX-License-Identifier: GPL-2.0
//! Calls pause() from functions of Rust: of a trait, generic ones, a closure that sort_by() calls, one that is inlined.

use std::fmt::Debug;

extern "C" {
    fn pause() -> i32;
}

mod shop {
    use super::*;

    #[inline(always)]
    fn rest(value: usize) -> usize {
        // SAFETY: It waits for a signal.
        value + unsafe { pause() } as usize
    }

    pub trait Keeper {
        fn wait(&self, value: usize) -> usize;
    }

    pub struct Night<T>(pub T);

    impl<T: Debug> Keeper for Night<T> {
        #[inline(never)]
        fn wait(&self, value: usize) -> usize {
            rest(value) + format!("{:?}", self.0).len()
        }
    }

    #[inline(never)]
    pub fn sorted<T: Ord + Copy>(values: &mut [T], keeper: &dyn Keeper) -> usize {
        let mut count = 0;
        values.sort_by(|left, right| {
            count += keeper.wait(count);
            left.cmp(right)
        });
        count
    }
}

fn main() {
    let mut values: Vec<String> = std::env::args().chain(["b".into(), "a".into()]).collect();
    let mut references: Vec<&String> = values.iter().collect();
    let count = shop::sorted(&mut references, &shop::Night(7u8));
    values.truncate(count);
    println!("{values:?}");
}
