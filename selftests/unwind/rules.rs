// SPDX-License-Identifier: GPL-2.0

//! UnwindRules are learnt as they are, and the table keeps them.

use proptest::prelude::*;
use stackmap_unwind::{
    frame_word::{FrameWord, RuleEncoder},
    rule::{LearnRun, LearnedStep, RuleKind, UnwindRule, OFFSET_BITS, REALIGNED_MAX},
    rules::{RuleLine, UnwindRules},
    unwinder::FrameSize,
};

/// The first address of a kernel's text.
const TEXT: u64 = 0xffff_ffff_8100_0000;

/// A frame as ORC describes it, in words.
#[derive(Clone, Copy, Debug)]
struct KernelFrame {
    by_bp: bool,
    offset: i32,
    /// Where the frame pointer is: from the new stack pointer, or from the old frame pointer.
    saved: Option<(bool, i32)>,
}

impl KernelFrame {
    /// What an unwinder does that reads this frame.
    fn unwind(&self, sp: u32, bp: u32) -> LearnRun {
        let at = |base: u32, offset: i32| base.wrapping_add_signed(offset);
        let new = at(if self.by_bp { bp } else { sp }, self.offset);
        let saved = self
            .saved
            .map(|(from_sp, offset)| at(if from_sp { new } else { bp }, offset));
        LearnRun {
            sp,
            bp,
            step: LearnedStep::Caller {
                ip: new.wrapping_sub(1),
                sp: new,
                bp: saved,
            },
        }
    }

    fn learn(&self) -> UnwindRule {
        UnwindRule::learn(&[self.unwind(16, 400), self.unwind(16, 440)])
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
        let frame = KernelFrame { by_bp, offset: distance, saved };
        let LearnedStep::Caller { sp: new, bp: read, .. } = frame.unwind(sp, bp).step else {
            unreachable!()
        };
        let words = |words: u32| u64::from(words) * 8;
        let rule = frame.learn();
        // What is read without looking whether it is on the stack.
        let between = |read: u32| (sp..new - 1).contains(&read);
        let from_sp = frame.saved.is_none_or(|(from_sp, _)| from_sp);
        // The same address, from the frame pointer.
        let is_below = |frame: &KernelFrame| by_bp && frame.saved == Some((false, distance - 2));
        let is_plain = !by_bp && new > sp && from_sp && read.is_none_or(between);
        prop_assert_eq!(rule.plain().is_some(), is_plain);
        if !is_plain && !matches!(frame.saved, None | Some((true, -2))) && !is_below(&frame) {
            prop_assert_eq!(rule, UnwindRule::SLOW);
            return Ok(());
        }
        prop_assert_eq!(rule.kind(), RuleKind::Call);
        prop_assert_eq!(rule.sp(words(sp), words(bp)), words(new));
        prop_assert_eq!(rule.bp_at(words(sp), words(new)), read.map(words));
        let word = FrameWord::new(TEXT, rule);
        prop_assert_eq!((word.ip(), word.rule()), (TEXT, rule));
        prop_assert_eq!(word.words(), rule.plain().map_or(0, |plain| plain.size() / 8));
        if let Some(plain) = rule.plain() {
            prop_assert_eq!(words(sp) + plain.size(), words(new));
            prop_assert_eq!(plain.bp().map(|up| words(sp) + up), read.map(words));
        }
    }
}

#[test]
fn frames_too_large_for_a_rule_are_left_to_the_kernel() {
    let frame = |offset, saved| KernelFrame {
        by_bp: false,
        offset,
        saved,
    };
    let limit = 1 << (OFFSET_BITS - 1);
    assert_eq!(frame(limit, None).learn(), UnwindRule::SLOW);
    assert_eq!(frame(-limit - 1, None).learn(), UnwindRule::SLOW);
    assert_ne!(frame(limit - 1, Some((true, -2))).learn(), UnwindRule::SLOW);
    // Not where `push %rbp` puts it, nor below the return address.
    assert_eq!(frame(8, Some((true, 1))).learn(), UnwindRule::SLOW);
}

#[test]
fn a_plain_rule_has_the_frame_pointer_below_the_return_address() {
    let plain = |offset, saved| {
        let frame = KernelFrame {
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
        let frame = KernelFrame {
            by_bp: false,
            offset,
            saved: None,
        };
        assert_eq!(frame.learn().plain().is_some(), is_plain, "{offset}");
    }
}

#[test]
fn contradicting_walks_give_no_rule() {
    let run = |step| LearnRun {
        sp: 16,
        bp: 400,
        step,
    };
    let call = |ip, sp, bp| LearnedStep::Caller { ip, sp, bp };
    let learn = |one, two| {
        UnwindRule::learn(&[
            run(one),
            LearnRun {
                bp: 440,
                ..run(two)
            },
        ])
    };
    assert_eq!(learn(LearnedStep::End, LearnedStep::End), UnwindRule::END);
    assert_eq!(
        learn(LearnedStep::End, LearnedStep::Other),
        UnwindRule::SLOW
    );
    assert_eq!(
        learn(LearnedStep::Other, LearnedStep::Other),
        UnwindRule::SLOW
    );
    assert_eq!(
        learn(LearnedStep::Registers(20), LearnedStep::End),
        UnwindRule::SLOW
    );
    // From neither pointer.
    assert_eq!(
        learn(call(19, 20, None), call(24, 25, None)),
        UnwindRule::SLOW
    );
    assert_eq!(
        learn(LearnedStep::Registers(20), LearnedStep::Registers(21)),
        UnwindRule::SLOW
    );
    assert_eq!(
        learn(call(19, 20, Some(30)), call(19, 20, Some(31))),
        UnwindRule::SLOW
    );
    // The frame pointer is read once.
    assert_eq!(
        learn(call(19, 20, Some(18)), call(19, 20, None)),
        UnwindRule::SLOW
    );
    // The return address is not the last word.
    assert_eq!(
        learn(call(18, 20, None), call(18, 20, None)),
        UnwindRule::SLOW
    );
    let nowhere = call(u32::MAX, 0, None);
    assert_eq!(learn(nowhere, nowhere), UnwindRule::SLOW);
}

#[test]
fn saved_registers_are_found_from_sp_and_from_bp() {
    let learn = |one, two| {
        UnwindRule::learn(&[
            LearnRun {
                sp: 16,
                bp: 400,
                step: LearnedStep::Registers(one),
            },
            LearnRun {
                sp: 16,
                bp: 440,
                step: LearnedStep::Registers(two),
            },
        ])
    };
    let from_sp = learn(20, 20);
    assert_eq!(from_sp.kind(), RuleKind::Registers);
    assert_eq!(from_sp.sp(1000, 5000), 1032);
    let from_bp = learn(402, 442);
    assert_eq!(from_bp.kind(), RuleKind::Registers);
    assert_eq!(from_bp.sp(1000, 5000), 5016);
}

/// The walk over a switch of stacks: from a word with an address, which leads to `sp`.
fn switch(sp: u32, offset: i32, saved: Option<i32>) -> LearnRun {
    let new = sp.wrapping_add_signed(offset);
    LearnRun {
        sp,
        bp: 400,
        step: LearnedStep::Caller {
            ip: new.wrapping_sub(1),
            sp: new,
            bp: saved.map(|at| new.wrapping_add_signed(at)),
        },
    }
}

#[test]
fn a_switch_is_learnt_from_where_two_words_lead() {
    let learn = |offset, saved| {
        UnwindRule::learn_switch(&[switch(200, offset, saved), switch(250, offset, saved)])
    };
    for offset in [-20, 0, 1, 7, 100] {
        for saved in [None, Some(-2), Some(-7), Some(-32)] {
            let rule = learn(offset, saved);
            assert_eq!(rule.kind(), RuleKind::Switch, "{offset} {saved:?}");
            assert_eq!(rule.plain().map(|_| ()), None);
            let sp = rule.switched_sp(0x4000);
            assert_eq!(sp, 0x4000_u64.wrapping_add_signed(i64::from(offset) * 8));
            let at = saved.map(|at| sp.wrapping_add_signed(i64::from(at) * 8));
            assert_eq!(rule.switched_bp(sp), at, "{offset} {saved:?}");
        }
    }
    // Where the return address is, above it, and too far below.
    for saved in [-1, 0, 1, -33, -500] {
        assert_eq!(learn(3, Some(saved)), UnwindRule::SLOW, "{saved}");
    }
    assert_eq!(learn(1 << (OFFSET_BITS - 1), None), UnwindRule::SLOW);
}

#[test]
fn what_is_no_switch_is_not_learnt_as_one() {
    let none = |one: LearnRun, two: LearnRun| {
        assert_eq!(UnwindRule::learn_switch(&[one, two]), UnwindRule::SLOW)
    };
    // From the stack pointer itself, which was 8 and 9, or from the frame pointer.
    let direct = |sp: u32, from: u32| LearnRun {
        step: switch(from, 5, None).step,
        ..switch(sp, 0, None)
    };
    none(direct(200, 8), direct(250, 9));
    none(direct(200, 400), direct(250, 400));
    none(switch(200, 5, None), switch(250, 6, None));
    none(switch(200, 5, None), switch(250, 5, Some(-2)));
    none(switch(200, 5, Some(-3)), switch(250, 5, Some(-2)));
    for step in [
        LearnedStep::End,
        LearnedStep::Other,
        LearnedStep::Registers(210),
    ] {
        none(
            LearnRun {
                step,
                ..switch(200, 5, None)
            },
            switch(250, 5, None),
        );
    }
}

#[test]
fn what_has_realigned_its_stack_is_learnt_from_where_a_word_below_its_frame_pointer_leads() {
    let caller = |sp: u32, bp: u32| LearnRun {
        sp,
        bp,
        step: LearnedStep::Caller {
            ip: sp - 1,
            sp,
            bp: Some(bp),
        },
    };
    for words in 0..=REALIGNED_MAX + 1 {
        let rule = UnwindRule::learn_realigned(words, &[caller(200, 9), caller(250, 17)]);
        if words == 0 || words > REALIGNED_MAX {
            assert_eq!(rule, UnwindRule::SLOW);
            continue;
        }
        assert_eq!(rule.kind(), RuleKind::Realigned, "{words}");
        assert_eq!(rule.realigned_words(), words.into());
        let encode = |encoder: &mut RuleEncoder| FrameWord(u64::from(encoder.encode(rule)) << 32);
        for word in [
            encode(&mut RuleEncoder::default()),
            FrameWord::new(TEXT, rule),
        ] {
            assert_eq!((word.rule(), word.words()), (rule, 0));
        }
    }
    // From elsewhere, with another frame pointer or none, or not both times.
    for step in [
        caller(201, 9).step,
        caller(200, 10).step,
        LearnedStep::Caller {
            ip: 199,
            sp: 200,
            bp: None,
        },
        LearnedStep::Registers(200),
        LearnedStep::End,
        LearnedStep::Other,
    ] {
        let other = LearnRun {
            step,
            ..caller(200, 9)
        };
        for runs in [[other, caller(250, 17)], [caller(250, 17), other]] {
            assert_eq!(UnwindRule::learn_realigned(1, &runs), UnwindRule::SLOW);
        }
    }
}

fn table(sets: usize) -> UnwindRules {
    UnwindRules::new((0..sets).map(|_| RuleLine::default()).collect(), 0).expect("a power of two")
}

/// A rule that is that of one address only.
fn rule_of(ip: u64) -> UnwindRule {
    KernelFrame {
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
    assert!(UnwindRules::new(
        vec![
            RuleLine::default(),
            RuleLine::default(),
            RuleLine::default()
        ],
        0
    )
    .is_none());
    assert!(UnwindRules::new(Vec::new(), 0).is_none());
}

#[test]
fn a_rule_is_found_again() {
    let rules = table(64);
    assert_eq!(rules.get(TEXT), UnwindRule::UNKNOWN);
    for ip in addresses(100) {
        rules.put(ip, rule_of(ip));
        rules.put(ip, rule_of(ip));
    }
    assert_eq!(rules.nr(), 100);
    assert_eq!(rules.replaced(), 0);
    for ip in addresses(100) {
        assert_eq!(rules.get(ip), rule_of(ip));
        assert_eq!(rules.get(ip + 1), UnwindRule::UNKNOWN);
    }
}

#[test]
fn only_text_has_rules() {
    let rules = table(1);
    // An address outside, whose low half is that of an address inside.
    let outside = TEXT & 0xffff_ffff;
    rules.put(outside, UnwindRule::SLOW);
    rules.put(TEXT, UnwindRule::UNKNOWN);
    assert_eq!(rules.nr(), 0);
    rules.put(TEXT, UnwindRule::SLOW);
    assert_eq!(rules.get(TEXT), UnwindRule::SLOW);
    assert_eq!(rules.get(outside), UnwindRule::UNKNOWN);
    assert_eq!(rules.get(0), UnwindRule::UNKNOWN);
    // The address of an empty entry.
    assert_eq!(rules.get(!0 << 32), UnwindRule::UNKNOWN);
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
        assert_eq!(rules.get(ip) == UnwindRule::UNKNOWN, gone, "{index}");
    }
    // There is space again, and entries after a gap are found.
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
                UnwindRule::UNKNOWN => rules.put(ip, rule_of(ip)),
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
                        UnwindRule::UNKNOWN => rules.put(ip, rule_of(ip)),
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
        .filter(|ip| rules.get(**ip) != UnwindRule::UNKNOWN)
        .count();
    assert!(found <= 128 && found > 0);
    rules.forget(&(TEXT - 1..TEXT + (1 << 24)));
    assert_eq!(rules.nr(), 0);
}

#[test]
fn a_cached_rule_has_where_the_frame_pointer_was_saved() {
    let plain = |size: u32, saved: Option<u32>| {
        let step = LearnedStep::Caller {
            ip: 99 + size,
            sp: 100 + size,
            bp: saved.map(|at| 100 + at),
        };
        UnwindRule::learn(&[400, 440].map(|bp| LearnRun { sp: 100, bp, step }))
    };
    let mut encoder = RuleEncoder::default();
    let mut encode = |rule| FrameWord(u64::from(encoder.encode(rule)) << 32);
    for (rule, saved) in [
        // None has saved it: it leads to below the first frame.
        (plain(9, None), None),
        (UnwindRule::FRAME, Some(10)),
        (UnwindRule::FRAME, Some(2)),
        (plain(5, None), None),
        (UnwindRule::FRAME, Some(7)),
        (plain(6, Some(1)), None),
        (plain(3, None), None),
        (UnwindRule::FRAME, Some(8)),
        // A walk begins anew after it, below which this leads.
        (UnwindRule::SLOW, None),
        (plain(4, None), None),
        (UnwindRule::FRAME, Some(7)),
        // Nobody knows what it has saved, or will have when it has a rule.
        (UnwindRule::UNKNOWN, None),
        (plain(4, None), None),
        (UnwindRule::FRAME, None),
        (plain(4, Some(0)), None),
        (plain(2047, None), None),
        (plain(2045, None), None),
        // It is too far.
        (UnwindRule::FRAME, None),
        (plain(2047, None), None),
        (plain(2047, None), None),
        (UnwindRule::FRAME, None),
    ] {
        let word = encode(rule);
        let found = word.saved_words().map(FrameSize::get);
        assert_eq!((word.rule(), found), (rule, saved));
    }
}
