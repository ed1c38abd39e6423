// SPDX-License-Identifier: GPL-2.0

//! Rules, and the table that they are kept in.

use proptest::prelude::*;
use stackmap_user::{
    rule::{Base, Kind, Rule, Saved},
    rules::{Rules, Set},
};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const SP: u64 = 0x7fff_0000;
const FP: u64 = 0x7fff_1000;

fn table(sets: usize) -> Rules {
    Rules::new((0..sets).map(|_| Set::default()).collect()).unwrap()
}

/// A rule that tells the key that it is of.
fn rule_of(key: u64) -> Rule {
    Rule::call(Base::Sp, (key as i64 % 30000) * 8, Saved::No).unwrap()
}

#[test]
fn a_table_has_a_power_of_two_of_sets() {
    assert!(Rules::new(Vec::new()).is_none());
    assert!(Rules::new((0..3).map(|_| Set::default()).collect()).is_none());
}

#[test]
fn what_is_put_is_known_until_it_is_forgotten() {
    let rules = table(4);
    assert_eq!(rules.get(7), None);
    rules.put(7, Some(Rule::SIGNAL));
    rules.put(8, None);
    assert_eq!(rules.get(7), Some(Some(Rule::SIGNAL)));
    assert_eq!(rules.get(8), Some(None));
    rules.put(7, Some(Rule::OUTERMOST));
    assert_eq!(rules.get(7), Some(Some(Rule::OUTERMOST)));
    rules.put(0, Some(Rule::SIGNAL));
    assert_eq!(rules.get(0), None);
    rules.forget();
    assert_eq!((rules.get(7), rules.get(8)), (None, None));
}

#[test]
fn a_full_set_makes_room() {
    let rules = table(1);
    for key in 1..100 {
        rules.put(key, Some(rule_of(key)));
        assert_eq!(rules.get(key), Some(Some(rule_of(key))));
        assert_eq!(
            (1..=key).filter(|key| rules.get(*key).is_some()).count(),
            key.min(4) as usize
        );
    }
}

/// One set, so that readers and writers meet.
#[test]
fn no_key_has_the_rule_of_another_while_both_are_put() {
    let (rules, done) = (table(1), AtomicBool::new(false));
    thread::scope(|scope| {
        for first in 0..2 {
            let (rules, done) = (&rules, &done);
            scope.spawn(move || {
                for round in 0..200_000 {
                    let key = 1 + first + 2 * (round % 8);
                    rules.put(key, Some(rule_of(key)));
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        while !done.load(Ordering::Relaxed) {
            for key in 1..=16 {
                if let Some(found) = rules.get(key) {
                    assert_eq!(found, Some(rule_of(key)), "key {key}");
                }
            }
        }
    });
}

#[test]
fn offsets_that_are_too_large_have_no_rule() {
    for offset in [4, 8 << 15, -(8 << 15) - 8] {
        assert_eq!(Rule::call(Base::Sp, offset, Saved::No), None, "{offset}");
    }
    for saved in [8 << 9, -(8 << 9) - 8, -12] {
        assert_eq!(Rule::call(Base::Fp, 16, Saved::At(saved)), None, "{saved}");
    }
}

/// Each seed of the fuzzer leads to a rule.
#[test]
fn seeds_of_the_fuzzer_are_understood() {
    let seed = |name: &str| {
        let path = format!("{}/../fuzz/corpus/cfi/{name}", env!("CARGO_MANIFEST_DIR"));
        stackmap_user::learn_hostile(&std::fs::read(path).unwrap())
    };
    let call = |base, offset, saved| Ok(Rule::call(base, offset, saved).unwrap());
    assert_eq!(seed("call"), call(Base::Fp, 16, Saved::At(-16)));
    assert_eq!(seed("remember"), call(Base::Sp, 32, Saved::No));
    assert_eq!(seed("plt"), call(Base::Sp, 8, Saved::No));
    assert_eq!(seed("outermost"), Ok(Rule::OUTERMOST));
    assert_eq!(seed("signal"), Ok(Rule::SIGNAL));
}

proptest! {
    #[test]
    fn any_file_is_read_in_bounded_time(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = stackmap_user::learn_hostile(&bytes);
    }

    #[test]
    fn a_rule_says_what_it_was_made_of(
        offset in -(1_i64 << 15)..1 << 15,
        saved in proptest::option::of(-(1_i64 << 9)..1 << 9),
        by_fp in any::<bool>(),
    ) {
        let base = if by_fp { Base::Fp } else { Base::Sp };
        let rule = Rule::call(base, offset * 8, saved.map_or(Saved::No, |at| Saved::At(at * 8)));
        let rule = Rule::from_bits(rule.unwrap().bits()).unwrap();
        prop_assert_eq!(rule.kind(), Kind::Call);
        let end = (if by_fp { FP } else { SP }).wrapping_add_signed(offset * 8);
        prop_assert_eq!(rule.end(SP, FP), end);
        prop_assert_eq!(rule.fp_at(end), saved.map(|at| end.wrapping_add_signed(at * 8)));
    }

    /// The table knows the last of each key, or nothing of it.
    #[test]
    fn a_table_is_never_wrong(puts in proptest::collection::vec((1_u64..64, 0_i64..100), 0..300)) {
        let rules = table(4);
        let mut last = HashMap::new();
        for (key, words) in puts {
            let rule = Rule::call(Base::Sp, words * 8, Saved::No);
            rules.put(key, rule);
            last.insert(key, rule);
        }
        for key in 0..64 {
            if let Some(found) = rules.get(key) {
                prop_assert_eq!(Some(&found), last.get(&key));
            }
        }
    }
}
