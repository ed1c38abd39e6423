// SPDX-License-Identifier: GPL-2.0

//! Frames that no rule alone can leave: a base that is tracked, registers that are computed, aligned stacks, handlers.

use crate::made::{call, memory, registers, Codes, Words, SP, USER_END};
use stackmap_user::{
    cfi::{Computed, Tracked, Value, X86_64},
    encoded::End,
    frame::{Memory, Unreadable},
    rule::{Base, Rule, Saved},
    walk::by_rules,
};
use std::{cell::Cell, collections::HashMap};

/// The register is saved by the callee of the callee.
#[test]
fn a_base_that_callees_have_saved_is_tracked_through_them() {
    let rules = [
        (0x1000, call(Base::Sp, 16, Saved::No)),
        (0x1fff, call(Base::Sp, 24, Saved::At(-16))),
        (0x2fff, Rule::tracked(14)),
        (0x3fff, Rule::OUTERMOST),
    ];
    let words = [
        (SP + 8, 0x2000),
        (SP + 24, SP + 320),
        (SP + 32, 0x3000),
        (SP + 16, SP + 128),
        // The frame that has the register as base ends here, and at SP + 64 + 32 without what was saved.
        (SP + 152, 0x4000),
        (SP + 88, 0x5000),
    ];
    let saved = |saved, rule| Tracked {
        rule,
        saved,
        computed: None,
    };
    let base = Some(call(Base::Fp, 32, Saved::No));
    let walk = |tracked: [(u64, Tracked); 3]| {
        let mut codes = Codes::new(&rules);
        codes.tracked = HashMap::from(tracked);
        codes.walk_twice(0, &memory(&words))
    };
    let cut = (vec![0x1000, 0x2000, 0x3000], End::Inexpressible);
    let complete = (vec![0x1000, 0x2000, 0x3000, 0x4000], End::Complete);
    let last = (0x2fff, saved(None, base));
    let [not, at] = [Saved::No, Saved::At(-24)].map(|place| saved(Some(place), None));
    assert_eq!(walk([(0x1000, not), (0x1fff, at), last]), complete);
    let other = walk([(0x1000, not), (0x1fff, not), last]);
    assert_eq!(other, (vec![0x1000, 0x2000, 0x3000, 0x5000], End::NoCfi));
    let lost = saved(None, None);
    assert_eq!(walk([(0x1000, lost), (0x1fff, at), last]), cut);
    assert_eq!(walk([(0x1000, not), (0x1fff, at), (0x2fff, not)]), cut);
    assert_eq!(walk([(0x1000, not), (0x1ffe, at), last]), cut);
    let unreadable = saved(Some(Saved::At(-4096)), None);
    assert_eq!(walk([(0x1000, not), (0x1fff, unreadable), last]), cut);
}

/// Memory of which one word is another when it is read again.
struct Changing {
    words: Words,
    reads: Cell<u32>,
}

impl Memory for Changing {
    fn word(&self, address: u64) -> Result<u64, Unreadable> {
        if address != SP + 8 {
            return self.words.word(address);
        }
        self.reads.set(self.reads.get() + 1);
        Ok(if self.reads.get() == 1 {
            0x2000
        } else {
            0x3000
        })
    }
}

/// Another thread changes a return address before the register is tracked.
#[test]
fn a_base_is_not_tracked_to_another_frame() {
    let tracked = |rule| Tracked {
        rule,
        saved: Some(Saved::No),
        computed: None,
    };
    let base = tracked(Some(call(Base::Fp, 32, Saved::No)));
    let mut codes = Codes::new(&[
        (0x1000, call(Base::Sp, 16, Saved::No)),
        (0x1fff, Rule::tracked(14)),
        (0x3fff, Rule::OUTERMOST),
    ]);
    codes.tracked = HashMap::from([(0x1000, tracked(None)), (0x1fff, base), (0x2fff, base)]);
    let memory = Changing {
        words: memory(&[(SP + 88, 0x4000)]),
        reads: Cell::new(0),
    };
    let end = by_rules(&X86_64, registers(0, 8), &memory, &mut codes, USER_END);
    assert_eq!((codes.words.frames(), end), (2, End::Inexpressible));
}

/// Walks a stack whose frame at `ips[0]` is computed, or the one that has called it at `ips[1]`, at a stack pointer.
fn walk(computed: Computed, ips: [u64; 2], sp: u64, words: &[(u64, u64)]) -> (Vec<usize>, End) {
    let (rules, address) = match ips {
        [_, 0] => (vec![], ips[0]),
        [ip, called] => (vec![(ip, call(Base::Sp, 8, Saved::No))], called - 1),
    };
    let outer = [
        (address, Rule::COMPUTED),
        (0x2fff, call(Base::Fp, 16, Saved::No)),
        (0x3fff, Rule::OUTERMOST),
    ];
    let mut codes = Codes::new(&[&rules[..], &outer].concat());
    let tracked = Tracked {
        rule: None,
        saved: None,
        computed: Some(computed),
    };
    codes.tracked = HashMap::from([(address, tracked)]);
    codes.originals = HashMap::from([((0x1000, None), ips[0])]);
    let kept = [(SP, 0x2000), (sp + 48, SP + 512), (SP + 520, 0x4000)];
    codes.walk_twice(SP + 240, &memory(&[&kept[..], words].concat()))
}

/// Stack and frame pointer are known in each frame, other registers in the innermost one, if that is no probe's.
#[test]
fn a_caller_is_computed_from_registers_that_are_known() {
    let value = |register, offset, by| Value {
        register,
        index: None,
        offset,
        by,
    };
    let same = Value {
        register: Some(7),
        ..value(None, 0, None)
    };
    let by_sp = Computed {
        end: value(Some(7), 40, Some(8)),
        ip: value(None, -8, Some(0)),
        sp: value(None, 0, None),
        fp: value(Some(7), 48, Some(0)),
    };
    let by_fp = Computed {
        end: value(Some(6), 16, None),
        ..by_sp
    };
    let indexed = Computed {
        end: Value {
            index: Some(11),
            ..value(Some(7), 0, Some(8))
        },
        ..by_sp
    };
    let fp_moved = Computed {
        fp: value(Some(10), 448, None),
        ..by_sp
    };
    let popped = Computed {
        ip: value(Some(9), 0x3000, None),
        sp: same,
        ..by_sp
    };
    let up = |sp| [(sp + 40, SP + 248), (SP + 248, 0x3000)];
    for (computed, is_known) in [
        (by_sp, true),
        (by_fp, true),
        (indexed, false),
        (fp_moved, false),
        (popped, false),
    ] {
        let outer = |ips: &[usize], is_known| match is_known {
            true => ([ips, &[0x3000, 0x4000]].concat(), End::Complete),
            false => (ips.to_vec(), End::Inexpressible),
        };
        let found = walk(computed, [0x1000, 0], SP, &up(SP));
        assert_eq!(found, outer(&[0x1000], true), "{computed:?}");
        let found = walk(computed, [0x1100, 0], SP, &up(SP));
        assert_eq!(found, outer(&[0x1100], is_known), "{computed:?}");
        let found = walk(computed, [0x1000, 0x2000], SP + 8, &up(SP + 8));
        assert_eq!(found, outer(&[0x1000, 0x2000], is_known), "{computed:?}");
    }
    let here = Computed { sp: same, ..by_sp };
    let found = walk(here, [0x1000, 0x2000], SP + 8, &up(SP + 8));
    assert_eq!(found, (vec![0x1000, 0x2000], End::BadAddress));
    let down = [(SP + 40, SP - 64), (SP - 64, 0x3000)];
    for (words, end) in [(&down[..], End::BadAddress), (&down[..1], End::Fault)] {
        assert_eq!(walk(by_sp, [0x1000, 0], SP, words), (vec![0x1000], end));
    }
}

/// As gcc aligns a stack: in its prologue and epilogue the frame's end is in r10, in between it is kept below the frame
/// pointer, and the caller's frame pointer is where the frame pointer points.
#[test]
fn a_function_that_aligns_its_stack_is_left_at_each_of_its_instructions() {
    let aligned = Rule::aligned(Base::Fp, -8, 0, Saved::AtFp).unwrap();
    let prologue = Tracked {
        rule: Rule::tracked_call(0, Saved::AtFp),
        saved: Some(Saved::No),
        computed: None,
    };
    let outer = [
        (0x1fff, call(Base::Fp, 16, Saved::No)),
        (0x2fff, Rule::OUTERMOST),
    ];
    // The frame's end is at SP + 64, where r10 points. The prologue has copied the return address.
    let words = memory(&[
        (SP + 24, SP + 64),
        (SP + 32, SP + 128),
        (SP + 40, 0x2000),
        (SP + 128, SP + 256),
        (SP + 56, 0x2000),
        (SP + 136, 0x3000),
    ]);
    let complete = (vec![0x1000, 0x2000, 0x3000], End::Complete);
    // Once it is popped, the frame pointer is the caller's.
    for (rule, fp) in [
        (aligned, SP + 32),
        (Rule::tracked(10), SP + 32),
        (Rule::tracked(10), SP + 128),
    ] {
        let mut codes = Codes::new(&[&[(0x1000, rule)][..], &outer].concat());
        codes.tracked = HashMap::from([(0x1000, prologue)]);
        assert_eq!(codes.walk_twice(fp, &words), complete, "{rule:?}");
    }

    // A function that it has called may have changed the register.
    let mut codes = Codes::new(&[
        (0x1000, call(Base::Sp, 64, Saved::No)),
        (0x1fff, Rule::tracked(10)),
    ]);
    let called = Tracked {
        rule: None,
        ..prologue
    };
    codes.tracked = HashMap::from([(0x1000, called), (0x1fff, prologue)]);
    let cut = (vec![0x1000, 0x2000], End::Inexpressible);
    assert_eq!(codes.walk_twice(SP + 32, &words), cut);
}

/// The function, or what it has called, may have put the handler's frame pointer where its caller's was.
#[test]
fn callers_by_the_frame_pointer_of_an_exceptions_handler_are_guessed() {
    let words = memory(&[
        (SP + 8, 0x2000),
        (SP + 24, SP + 128),
        (SP + 32, 0x3000),
        (SP + 136, 0x4000),
        (SP + 144, 0x5000),
        (SP + 40, 0x4000),
    ]);
    let handler = Tracked {
        rule: Some(call(Base::Sp, 24, Saved::At(-16))),
        saved: None,
        computed: None,
    };
    let last = [
        (0x3fff, call(Base::Sp, 8, Saved::No)),
        (0x4fff, Rule::OUTERMOST),
    ];
    // Its caller has a frame pointer, or not.
    for (caller, guessed) in [
        (call(Base::Fp, 16, Saved::No), 3),
        (call(Base::Sp, 8, Saved::No), 0),
    ] {
        let rules = [
            &[
                (0x1000, call(Base::Sp, 16, Saved::No)),
                (0x1fff, Rule::HANDLER),
                (0x2fff, caller),
            ][..],
            &last,
        ];
        let mut codes = Codes::new(&rules.concat());
        codes.tracked = HashMap::from([(0x1fff, handler)]);
        let end = by_rules(&X86_64, registers(0, 8), &words, &mut codes, USER_END);
        let found = (codes.words.guessed(), codes.words.frames());
        assert_eq!(
            found,
            (guessed, if guessed == 0 { 4 } else { 5 }),
            "{end:?}"
        );
    }
    // It has called other functions, which have returned to it.
    let rules = [
        &[
            (0x1000, call(Base::Sp, 8, Saved::No)),
            (0x0fff, call(Base::Sp, 8, Saved::No)),
            (0x1fff, Rule::HANDLER),
            (0x2fff, call(Base::Fp, 16, Saved::No)),
        ][..],
        &last,
    ];
    let mut codes = Codes::new(&rules.concat());
    codes.tracked = HashMap::from([(0x1fff, handler)]);
    let words = memory(&[
        (SP, 0x1000),
        (SP + 8, 0x2000),
        (SP + 24, SP + 128),
        (SP + 32, 0x3000),
        (SP + 136, 0x4000),
        (SP + 144, 0x5000),
    ]);
    let end = by_rules(&X86_64, registers(0, 8), &words, &mut codes, USER_END);
    assert_eq!((codes.words.guessed(), end), (0, End::Complete));
}
