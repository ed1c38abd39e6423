// SPDX-License-Identifier: GPL-2.0

//! Rules are learnt as they are, and the table keeps them.

use proptest::prelude::*;
use stackmap_unwind::{
    hints::{Hinted, Hints},
    rules::{Kind, Outcome, Rule, Rules, Run, Set, OFFSET_BITS, REALIGNED_MAX},
};

/// The first address of a kernel's text.
const TEXT: u64 = 0xffff_ffff_8100_0000;

/// A frame as ORC describes it, in words.
#[derive(Clone, Copy, Debug)]
struct Frame {
    by_bp: bool,
    offset: i32,
    /// Where the frame pointer is: from the new stack pointer, or from the old frame pointer.
    saved: Option<(bool, i32)>,
}

impl Frame {
    /// What an unwinder does that reads this frame.
    fn unwind(&self, sp: u32, bp: u32) -> Run {
        let at = |base: u32, offset: i32| base.wrapping_add_signed(offset);
        let new = at(if self.by_bp { bp } else { sp }, self.offset);
        let saved = self
            .saved
            .map(|(from_sp, offset)| at(if from_sp { new } else { bp }, offset));
        Run {
            sp,
            bp,
            outcome: Outcome::Caller {
                ip: new.wrapping_sub(1),
                sp: new,
                bp: saved,
            },
        }
    }

    fn learn(&self) -> Rule {
        Rule::learn(&[self.unwind(16, 400), self.unwind(16, 440)])
    }
}

proptest! {
    #[test]
    fn a_rule_that_is_learnt_once_holds_for_each_stack(
        by_bp: bool,
        // The return address is on the stack for learning.
        distance in -15..500_i32,
        saved in proptest::option::of((any::<bool>(), prop_oneof![Just(-2), -500..500_i32])),
        sp in 10_000..20_000_u32,
        bp in 30_000..40_000_u32,
    ) {
        let frame = Frame { by_bp, offset: distance, saved };
        let Outcome::Caller { sp: new, bp: read, .. } = frame.unwind(sp, bp).outcome else {
            unreachable!()
        };
        let words = |words: u32| u64::from(words) * 8;
        let rule = frame.learn();
        // What is read without looking whether it is on the stack.
        let between = |read: u32| (sp..new - 1).contains(&read);
        let from_sp = frame.saved.is_none_or(|(from_sp, _)| from_sp);
        // The same place, from the frame pointer.
        let is_below = |frame: &Frame| by_bp && frame.saved == Some((false, distance - 2));
        let is_plain = !by_bp && new > sp && from_sp && read.is_none_or(between);
        prop_assert_eq!(rule.plain().is_some(), is_plain);
        if !is_plain && !matches!(frame.saved, None | Some((true, -2))) && !is_below(&frame) {
            prop_assert_eq!(rule, Rule::SLOW);
            return Ok(());
        }
        prop_assert_eq!(rule.kind(), Kind::Call);
        prop_assert_eq!(rule.sp(words(sp), words(bp)), words(new));
        prop_assert_eq!(rule.bp_at(words(sp), words(new)), read.map(words));
        let hinted = Hinted::new(TEXT, rule);
        prop_assert_eq!((hinted.ip(), hinted.rule()), (TEXT, rule));
        prop_assert_eq!(hinted.words(), rule.plain().map_or(0, |plain| plain.size() / 8));
        if let Some(plain) = rule.plain() {
            prop_assert_eq!(words(sp) + plain.size(), words(new));
            prop_assert_eq!(plain.bp().map(|up| words(sp) + up), read.map(words));
        }
    }
}

#[test]
fn frames_too_large_for_a_rule_are_left_to_the_kernel() {
    let frame = |offset, saved| Frame {
        by_bp: false,
        offset,
        saved,
    };
    let limit = 1 << (OFFSET_BITS - 1);
    assert_eq!(frame(limit, None).learn(), Rule::SLOW);
    assert_eq!(frame(-limit - 1, None).learn(), Rule::SLOW);
    assert_ne!(frame(limit - 1, Some((true, -2))).learn(), Rule::SLOW);
    // Not where `push %rbp` puts it, nor below the return address.
    assert_eq!(frame(8, Some((true, 1))).learn(), Rule::SLOW);
}

#[test]
fn a_plain_rule_has_the_frame_pointer_below_the_return_address() {
    let plain = |offset, saved| {
        let frame = Frame {
            by_bp: false,
            offset,
            saved: Some((true, saved)),
        };
        frame
            .learn()
            .plain()
            .map(|plain| (plain.size(), plain.bp()))
    };
    assert_eq!(plain(4, -2), Some((32, Some(16))));
    assert_eq!(plain(4, -4), Some((32, Some(0))));
    for saved in [-6, -5, -1, 0, 1] {
        assert_eq!(plain(4, saved), None, "{saved}");
    }
    assert_eq!(plain(0, -1), None);
    for (offset, is_plain) in [(1, true), (0, false), (-1, false)] {
        let frame = Frame {
            by_bp: false,
            offset,
            saved: None,
        };
        assert_eq!(frame.learn().plain().is_some(), is_plain, "{offset}");
    }
}

#[test]
fn contradicting_walks_give_no_rule() {
    let run = |outcome| Run {
        sp: 16,
        bp: 400,
        outcome,
    };
    let call = |ip, sp, bp| Outcome::Caller { ip, sp, bp };
    let learn = |one, two| {
        Rule::learn(&[
            run(one),
            Run {
                bp: 440,
                ..run(two)
            },
        ])
    };
    assert_eq!(learn(Outcome::End, Outcome::End), Rule::END);
    assert_eq!(learn(Outcome::End, Outcome::Other), Rule::SLOW);
    assert_eq!(learn(Outcome::Other, Outcome::Other), Rule::SLOW);
    assert_eq!(learn(Outcome::Registers(20), Outcome::End), Rule::SLOW);
    // From neither pointer.
    assert_eq!(learn(call(19, 20, None), call(24, 25, None)), Rule::SLOW);
    assert_eq!(
        learn(Outcome::Registers(20), Outcome::Registers(21)),
        Rule::SLOW
    );
    assert_eq!(
        learn(call(19, 20, Some(30)), call(19, 20, Some(31))),
        Rule::SLOW
    );
    // The frame pointer is read once.
    assert_eq!(
        learn(call(19, 20, Some(18)), call(19, 20, None)),
        Rule::SLOW
    );
    // The return address is not the last word.
    assert_eq!(learn(call(18, 20, None), call(18, 20, None)), Rule::SLOW);
    let nowhere = call(u32::MAX, 0, None);
    assert_eq!(learn(nowhere, nowhere), Rule::SLOW);
}

#[test]
fn saved_registers_are_found_from_sp_and_from_bp() {
    let learn = |one, two| {
        Rule::learn(&[
            Run {
                sp: 16,
                bp: 400,
                outcome: Outcome::Registers(one),
            },
            Run {
                sp: 16,
                bp: 440,
                outcome: Outcome::Registers(two),
            },
        ])
    };
    let from_sp = learn(20, 20);
    assert_eq!(from_sp.kind(), Kind::Registers);
    assert_eq!(from_sp.sp(1000, 5000), 1032);
    let from_bp = learn(402, 442);
    assert_eq!(from_bp.kind(), Kind::Registers);
    assert_eq!(from_bp.sp(1000, 5000), 5016);
}

/// The walk over a switch of stacks: from a word with an address, which leads to `sp`.
fn switch(sp: u32, offset: i32, saved: Option<i32>) -> Run {
    let new = sp.wrapping_add_signed(offset);
    Run {
        sp,
        bp: 400,
        outcome: Outcome::Caller {
            ip: new.wrapping_sub(1),
            sp: new,
            bp: saved.map(|at| new.wrapping_add_signed(at)),
        },
    }
}

#[test]
fn a_switch_is_learnt_from_where_two_words_lead() {
    let learn = |offset, saved| {
        Rule::learn_switch(&[switch(200, offset, saved), switch(250, offset, saved)])
    };
    for offset in [-20, 0, 1, 7, 100] {
        for saved in [None, Some(-2), Some(-7), Some(-32)] {
            let rule = learn(offset, saved);
            assert_eq!(rule.kind(), Kind::Switch, "{offset} {saved:?}");
            assert_eq!(rule.plain().map(|_| ()), None);
            let sp = rule.switched_sp(0x4000);
            assert_eq!(sp, 0x4000_u64.wrapping_add_signed(i64::from(offset) * 8));
            let at = saved.map(|at| sp.wrapping_add_signed(i64::from(at) * 8));
            assert_eq!(rule.switched_bp(sp), at, "{offset} {saved:?}");
        }
    }
    // Where the return address is, above it, and too far below.
    for saved in [-1, 0, 1, -33, -500] {
        assert_eq!(learn(3, Some(saved)), Rule::SLOW, "{saved}");
    }
    assert_eq!(learn(1 << (OFFSET_BITS - 1), None), Rule::SLOW);
}

#[test]
fn what_is_no_switch_is_not_learnt_as_one() {
    let none = |one: Run, two: Run| assert_eq!(Rule::learn_switch(&[one, two]), Rule::SLOW);
    // From the stack pointer itself, which was 8 and 9, or from the frame pointer.
    let direct = |sp: u32, from: u32| Run {
        outcome: switch(from, 5, None).outcome,
        ..switch(sp, 0, None)
    };
    none(direct(200, 8), direct(250, 9));
    none(direct(200, 400), direct(250, 400));
    none(switch(200, 5, None), switch(250, 6, None));
    none(switch(200, 5, None), switch(250, 5, Some(-2)));
    none(switch(200, 5, Some(-3)), switch(250, 5, Some(-2)));
    for outcome in [Outcome::End, Outcome::Other, Outcome::Registers(210)] {
        none(
            Run {
                outcome,
                ..switch(200, 5, None)
            },
            switch(250, 5, None),
        );
    }
}

#[test]
fn what_has_realigned_its_stack_is_learnt_from_where_a_word_below_its_frame_pointer_leads() {
    let caller = |sp: u32, bp: u32| Run {
        sp,
        bp,
        outcome: Outcome::Caller {
            ip: sp - 1,
            sp,
            bp: Some(bp),
        },
    };
    for words in 0..=REALIGNED_MAX + 1 {
        let rule = Rule::learn_realigned(words, &[caller(200, 9), caller(250, 17)]);
        if words == 0 || words > REALIGNED_MAX {
            assert_eq!(rule, Rule::SLOW);
            continue;
        }
        assert_eq!(rule.kind(), Kind::Realigned, "{words}");
        assert_eq!(rule.realigned_words(), words.into());
        let hint = |hints: &mut Hints| Hinted(u64::from(hints.hint(rule)) << 32);
        for hinted in [hint(&mut Hints::default()), Hinted::new(TEXT, rule)] {
            assert_eq!((hinted.rule(), hinted.words()), (rule, 0));
        }
    }
    // From elsewhere, with another frame pointer or none, or not both times.
    for outcome in [
        caller(201, 9).outcome,
        caller(200, 10).outcome,
        Outcome::Caller {
            ip: 199,
            sp: 200,
            bp: None,
        },
        Outcome::Registers(200),
        Outcome::End,
        Outcome::Other,
    ] {
        let other = Run {
            outcome,
            ..caller(200, 9)
        };
        for runs in [[other, caller(250, 17)], [caller(250, 17), other]] {
            assert_eq!(Rule::learn_realigned(1, &runs), Rule::SLOW);
        }
    }
}

fn table(sets: usize) -> Rules {
    Rules::new((0..sets).map(|_| Set::default()).collect(), 0).expect("a power of two")
}

/// A rule that is that of one address only.
fn rule_of(ip: u64) -> Rule {
    Frame {
        by_bp: false,
        offset: (ip % 2000) as i32,
        saved: None,
    }
    .learn()
}

/// The addresses after calls in text of some size, as far from each other as in a kernel.
fn addresses(nr: u64) -> impl Iterator<Item = u64> {
    (0..nr).map(|i| TEXT + i * 337 + i * i % 61)
}

#[test]
fn a_table_of_another_size_is_refused() {
    assert!(Rules::new(vec![Set::default(), Set::default(), Set::default()], 0).is_none());
    assert!(Rules::new(Vec::new(), 0).is_none());
}

#[test]
fn a_rule_is_found_again() {
    let rules = table(64);
    assert_eq!(rules.get(TEXT), Rule::UNKNOWN);
    for ip in addresses(100) {
        rules.put(ip, rule_of(ip));
        rules.put(ip, rule_of(ip));
    }
    assert_eq!(rules.nr(), 100);
    assert_eq!(rules.replaced(), 0);
    for ip in addresses(100) {
        assert_eq!(rules.get(ip), rule_of(ip));
        assert_eq!(rules.get(ip + 1), Rule::UNKNOWN);
    }
}

#[test]
fn only_text_has_rules() {
    let rules = table(1);
    // An address outside, whose low half is that of an address inside.
    let outside = TEXT & 0xffff_ffff;
    rules.put(outside, Rule::SLOW);
    rules.put(TEXT, Rule::UNKNOWN);
    assert_eq!(rules.nr(), 0);
    rules.put(TEXT, Rule::SLOW);
    assert_eq!(rules.get(TEXT), Rule::SLOW);
    assert_eq!(rules.get(outside), Rule::UNKNOWN);
    assert_eq!(rules.get(0), Rule::UNKNOWN);
    // The address of an empty entry.
    assert_eq!(rules.get(!0 << 32), Rule::UNKNOWN);
}

#[test]
fn rules_of_freed_text_are_removed() {
    let rules = table(64);
    let all: Vec<u64> = addresses(200).collect();
    for &ip in &all {
        rules.put(ip, rule_of(ip));
    }
    // The last call of a function that does not return is the end of the text.
    let text = all[50]..all[99];
    rules.forget(&text);
    assert_eq!(rules.nr(), 151);
    for (index, &ip) in all.iter().enumerate() {
        let gone = (51..=99).contains(&index);
        assert_eq!(rules.get(ip) == Rule::UNKNOWN, gone, "{index}");
    }
    // There is room again, and entries after a gap are found.
    for &ip in &all {
        rules.put(ip, rule_of(ip));
    }
    assert_eq!(rules.nr(), 200);
}

#[test]
fn a_full_table_replaces_old_rules() {
    let rules = table(4);
    for ip in addresses(1000) {
        rules.put(ip, rule_of(ip));
        assert_eq!(rules.get(ip), rule_of(ip));
    }
    assert_eq!(rules.nr(), 32);
    assert_eq!(rules.replaced(), 968);
}

#[test]
fn of_20_000_addresses_95_percent_are_known() {
    // As large as in the module.
    let rules = table(4096);
    let mut known = 0;
    for round in 0..10 {
        for ip in addresses(20_000) {
            match rules.get(ip) {
                Rule::UNKNOWN => rules.put(ip, rule_of(ip)),
                rule => {
                    assert_eq!(rule, rule_of(ip));
                    known += u32::from(round > 0);
                }
            }
        }
    }
    assert!(known >= 171_000, "{known} of 180000");
}

#[test]
fn cpus_that_learn_and_forget_at_the_same_time_find_no_wrong_rule() {
    let rules = &table(16);
    let all: &Vec<u64> = &addresses(400).collect();
    std::thread::scope(|scope| {
        for start in 0..2 {
            scope.spawn(move || {
                for i in 0..200_000 {
                    let ip = all[(start * 200 + i * 7) % all.len()];
                    match rules.get(ip) {
                        Rule::UNKNOWN => rules.put(ip, rule_of(ip)),
                        rule => assert_eq!(rule, rule_of(ip)),
                    }
                    if i % 1000 == 0 {
                        rules.forget(&(all[100]..all[150]));
                    }
                }
            });
        }
    });
    let found = all
        .iter()
        .filter(|ip| rules.get(**ip) != Rule::UNKNOWN)
        .count();
    assert!(found <= 128 && found > 0);
    rules.forget(&(TEXT - 1..TEXT + (1 << 24)));
    assert_eq!(rules.nr(), 0);
}

#[test]
fn a_hint_tells_where_the_frame_pointer_was_saved() {
    let plain = |size: u32, saved: Option<u32>| {
        let outcome = Outcome::Caller {
            ip: 99 + size,
            sp: 100 + size,
            bp: saved.map(|at| 100 + at),
        };
        Rule::learn(&[400, 440].map(|bp| Run {
            sp: 100,
            bp,
            outcome,
        }))
    };
    let mut hints = Hints::default();
    let mut told = |rule| Hinted(u64::from(hints.hint(rule)) << 32);
    for (rule, saved) in [
        // None has saved it: it leads to below the first frame.
        (plain(9, None), None),
        (Rule::FRAME, Some(10)),
        (Rule::FRAME, Some(2)),
        (plain(5, None), None),
        (Rule::FRAME, Some(7)),
        (plain(6, Some(1)), None),
        (plain(3, None), None),
        (Rule::FRAME, Some(8)),
        // A walk begins anew after it, below which this leads.
        (Rule::SLOW, None),
        (plain(4, None), None),
        (Rule::FRAME, Some(7)),
        // Nobody knows what it has saved, or will have when it has a rule.
        (Rule::UNKNOWN, None),
        (plain(4, None), None),
        (Rule::FRAME, None),
        (plain(4, Some(0)), None),
        (plain(2047, None), None),
        (plain(2045, None), None),
        // It is too far.
        (Rule::FRAME, None),
        (plain(2047, None), None),
        (plain(2047, None), None),
        (Rule::FRAME, None),
    ] {
        let hinted = told(rule);
        assert_eq!((hinted.rule(), hinted.saved_words()), (rule, saved));
    }
}
