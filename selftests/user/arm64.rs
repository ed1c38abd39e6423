// SPDX-License-Identifier: GPL-2.0

//! Stacks of arm64, whose return addresses are in the link register first, and may be signed.

use crate::made::{call, memory, Codes, SP};
use stackmap_user::{
    cfi::{Computed, Tracked, Value, ARM64},
    encoded::End,
    rule::{Base, Rule, Saved},
    rules::Site,
};
use std::collections::HashMap;

const SIGNED: u64 = 0x5a << 48;
const FIRST: u64 = 0x1000;
/// Instructions.
const NOP: u32 = 0xd503_201f;
const PACIASP: u32 = 0xd503_233f;
const AUTIASP: u32 = 0xd503_23bf;
const RET: u32 = 0xd65f_03c0;
const BLR: u32 = 0xd63f_0100;

fn bl(from: u64, to: u64) -> u32 {
    0x9400_0000 | (to.wrapping_sub(from) >> 2) as u32 & 0x03ff_ffff
}

/// A stack whose innermost frame is at [`FIRST`].
fn codes(rules: &[(u64, Rule)], link: u64, instructions: &[(u64, u32)]) -> Codes {
    Codes {
        machine: &ARM64,
        link,
        instructions: instructions.iter().copied().collect(),
        ..Codes::new(rules)
    }
}

/// Walks a stack by rules, to frames and its end.
fn ruled(fp: u64, link: u64, rules: &[(u64, Rule)], words: &[(u64, u64)]) -> (Vec<usize>, End) {
    codes(rules, link, &[]).walk_twice(fp, &memory(words))
}

/// A leaf function; one that saves both registers; one that saves x30; the last one by its frame pointer.
#[test]
fn a_return_address_is_in_its_register_or_on_the_stack_signed_or_not() {
    let rules = [
        (FIRST, call(Base::Sp, 0, Saved::No)),
        (0x1fff, call(Base::Sp, 32, Saved::At(-32))),
        (0x2fff, call(Base::Sp, 16, Saved::At(16))),
        (0x3fff, call(Base::Fp, 48, Saved::At(-48))),
        (0x4fff, Rule::OUTERMOST),
    ];
    for signature in [0, SIGNED] {
        let words = [
            (SP, SP + 64),
            (SP + 8, 0x3000 | signature),
            (SP + 32, 0x4000 | signature),
            (SP + 64, 0),
            (SP + 72, 0x5000 | signature),
        ];
        let found = ruled(0x1234, 0x2000 | signature, &rules, &words);
        let want = vec![0x1000, 0x2000, 0x3000, 0x4000, 0x5000];
        assert_eq!(found, (want, End::Complete), "{signature:#x}");
    }
    // A frame that the function made before it saves anything.
    let rules = [
        (FIRST, call(Base::Sp, 64, Saved::No)),
        (0x1fff, call(Base::Sp, 16, Saved::At(16))),
        (0x2fff, Rule::OUTERMOST),
    ];
    let found = ruled(0, 0x2000, &rules, &[(SP + 64, 0x3000)]);
    assert_eq!(found, (vec![0x1000, 0x2000, 0x3000], End::Complete));
}

#[test]
fn a_link_register_is_known_of_what_was_interrupted_alone() {
    let leaf = call(Base::Sp, 0, Saved::No);
    let rules = [(FIRST, leaf), (0x1fff, leaf)];
    let found = ruled(0, 0x2000, &rules, &[]);
    assert_eq!(found, (vec![0x1000, 0x2000], End::Inexpressible));
    // One that has saved it does not leave the stack where it is.
    let rules = [(FIRST, call(Base::Sp, 0, Saved::At(16)))];
    let found = ruled(0, 0x2000, &rules, &[(SP - 16, 0x3000)]);
    assert_eq!(found, (vec![0x1000], End::BadAddress));
}

/// The kernel lets the handler return to two instructions, which no CFI describes.
#[test]
fn what_a_signal_interrupted_has_a_link_register_again() {
    let rules = [
        (FIRST, call(Base::Sp, 0, Saved::No)),
        (0x5000, call(Base::Sp, 0, Saved::No)),
        (0x5fff, call(Base::Fp, 16, Saved::At(-16))),
        (0x6fff, Rule::OUTERMOST),
    ];
    let instructions = [(0x2000, 0xd280_1168), (0x2004, 0xd400_0001)];
    // x29, x30, sp and pc of struct rt_sigframe.
    let [fp, sp] = [SP + 4000, SP + 4096];
    let words = [
        (SP + 128 + 176 + 8 + 8 * 29, fp),
        (SP + 128 + 176 + 8 + 8 * 30, 0x6000 | SIGNED),
        (SP + 128 + 176 + 8 + 8 * 31, sp),
        (SP + 128 + 176 + 8 + 8 * 32, 0x5000),
        (fp, 0),
        (fp + 8, 0x7000),
    ];
    let mut codes = codes(&rules, 0x2000, &instructions);
    let want = vec![0x1000, 0x2000, 0x5000, 0x6000, 0x7000];
    // The last frame ends below its callee's stack pointer.
    let found = codes.walk_twice(0, &memory(&words));
    assert_eq!(found, (want[..4].to_vec(), End::BadAddress));
    let words = words.map(|(at, word)| match at {
        at if at == fp => (sp, word),
        at if at == fp + 8 => (sp + 8, word),
        at if word == fp => (at, sp),
        _ => (at, word),
    });
    let found = codes.walk_twice(0, &memory(&words));
    assert_eq!(found, (want.clone(), End::Complete));
    // Where no rule says the same.
    codes
        .rules
        .put(Site::new(1, 0x5000).unwrap(), Rule::COMPUTED);
    codes.tracked = HashMap::from([(
        0x5000,
        computed(value(Some(31), None), value(Some(30), None)),
    )]);
    let found = codes.walk_twice(0, &memory(&words));
    assert_eq!(found, (want, End::Complete));
}

fn value(register: Option<u8>, by: Option<i32>) -> Value {
    Value {
        register,
        index: None,
        offset: 0,
        by,
    }
}

/// The stack pointer is the frame's end, and the frame pointer is unchanged.
fn computed(end: Value, ip: Value) -> Tracked {
    let computed = Computed {
        end,
        ip,
        sp: value(None, None),
        fp: value(Some(29), None),
    };
    Tracked {
        rule: None,
        saved: None,
        computed: Some(computed),
    }
}

#[test]
fn registers_are_computed_from_the_link_register_and_others() {
    // The frame's end is in x19, which is known in the first frame only.
    let first = computed(value(Some(19), None), value(Some(30), None));
    let end = Value {
        offset: 32,
        ..value(Some(31), None)
    };
    let second = computed(end, value(Some(31), Some(0)));
    let rules = [0, 0xfff, 0x1fff].map(|at| (FIRST + at, Rule::COMPUTED));
    let mut codes = codes(&rules, 0x2000 | SIGNED, &[]);
    codes.tracked = HashMap::from([(FIRST, first), (0x1fff, second), (0x2fff, first)]);
    let found = codes.walk_twice(0, &memory(&[(SP + 64, 0x3000 | SIGNED)]));
    assert_eq!(found, (vec![0x1000, 0x2000, 0x3000], End::Inexpressible));
    // The end of the second frame is at an offset from x19, which the first one, a leaf, has not changed.
    let rules = [
        (FIRST, call(Base::Sp, 0, Saved::No)),
        (0x1fff, Rule::tracked(19)),
        (0x2fff, Rule::OUTERMOST),
    ];
    let mut codes = super::arm64::codes(&rules, 0x2000 | SIGNED, &[]);
    let same = Tracked {
        rule: None,
        saved: Some(Saved::No),
        computed: None,
    };
    let by = Tracked {
        rule: Rule::tracked_call(16, Saved::At(-16)),
        ..same
    };
    codes.tracked = HashMap::from([(FIRST, same), (0x1fff, by)]);
    let words = [(SP + 64, 0), (SP + 72, 0x3000)];
    let found = codes.walk_twice(0, &memory(&words));
    assert_eq!(found, (vec![0x1000, 0x2000, 0x3000], End::Complete));
}

/// The function without CFI, and where it returns to.
const CALLER: u64 = 0x2000;
const FUNCTION: [u32; 10] = [
    PACIASP,
    // sub sp, sp, #48; stp x29, x30, [sp, #16]; add x29, sp, #16
    0xd100_c3ff,
    0xa901_7bfd,
    0x9100_43fd,
    // bl to itself; cbz to autiasp
    0x9400_0000,
    0xb400_0060,
    // ldp x29, x30, [sp, #16]; add sp, sp, #48
    0xa941_7bfd,
    0x9100_c3ff,
    AUTIASP,
    RET,
];

/// The function, moved so that its instruction `nr` is the first frame's, and a caller with CFI.
fn at_instruction(nr: usize) -> (u64, Vec<(u64, u32)>) {
    let entry = FIRST - 4 * nr as u64;
    let function = (0..).zip(FUNCTION).map(|(nr, code)| (entry + 4 * nr, code));
    let mut code: Vec<_> = function.collect();
    code.push((CALLER - 4, bl(CALLER - 4, entry)));
    (entry, code)
}

/// Its return address and the caller's x29 are where they are at this instruction; the caller needs both.
#[test]
fn a_function_without_cfi_is_left_at_each_of_its_instructions() {
    let rules = [
        (CALLER - 1, call(Base::Sp, 32, Saved::At(-32))),
        (0x2fff, call(Base::Fp, 16, Saved::At(-16))),
        (0x3fff, Rule::OUTERMOST),
    ];
    let callers = SP + 512;
    let returns = CALLER | SIGNED;
    // The stack pointer at the entry above that of the instruction; x29 is set; x30 was loaded, or has another value.
    for (nr, depth, has_record, has_link) in [
        (0, 0, false, true),
        (1, 0, false, true),
        (2, 48, false, true),
        (3, 48, false, true),
        (4, 48, true, true),
        (5, 48, true, false),
        (6, 48, true, false),
        (7, 48, false, true),
        (8, 0, false, true),
        (9, 0, false, true),
    ] {
        let (_, code) = at_instruction(nr);
        let end = SP + depth;
        let record = end.wrapping_sub(32);
        let fp = if has_record { record } else { callers };
        let link = if has_link { returns } else { FIRST };
        let mut words = vec![
            (end, callers),
            (end + 8, 0x3000),
            (callers, 0),
            (callers + 8, 0x4000),
        ];
        // Below the stack pointer, a signal may have overwritten it.
        if (3..8).contains(&nr) {
            words.extend([(record, callers), (record + 8, returns)]);
        }
        let mut codes = codes(&rules, link, &code);
        let found = codes.walk_twice(fp, &memory(&words));
        let want = vec![0x1000, 0x2000, 0x3000, 0x4000];
        assert_eq!(found, (want, End::Complete), "{nr}");
        assert_eq!(codes.words.guessed(), 0, "{nr}");
    }
    // The record that x29 points to is the caller's, and the register has no return address.
    let words = [(callers, 0), (callers + 8, returns)];
    let mut codes = codes(&rules, 0x7777, &at_instruction(2).1);
    let found = codes.walk_twice(callers, &memory(&words));
    assert_eq!(found, (vec![0x1000], End::NoCfi));
}

/// A call by a pointer leads anywhere: the record is a guess, and so is the stack pointer that its caller's rule needs.
#[test]
fn a_record_without_a_direct_call_is_guessed_once_the_function_has_called() {
    const WAITING: u64 = 0x2_5000;
    const DESCRIBED: u64 = WAITING - 0x800;
    let rules = |outer| {
        [
            (FIRST, call(Base::Sp, 16, Saved::At(-16))),
            (CALLER - 1, outer),
            (0x2fff, Rule::OUTERMOST),
            (DESCRIBED, Rule::OUTERMOST),
        ]
    };
    let words = [
        (SP, SP + 64),
        (SP + 8, WAITING),
        (SP + 64, SP + 160),
        (SP + 72, CALLER | SIGNED),
        (SP + 160, 0),
        (SP + 168, 0x3000),
    ];
    let walk = |outer, before, first| {
        let waits = (WAITING - 4, bl(WAITING - 4, FIRST));
        let mut codes = codes(&rules(outer), 0x7777, &[waits, (CALLER - 4, before)]);
        if let Some(rule) = first {
            codes.rules.put(Site::new(1, FIRST).unwrap(), rule);
        }
        let found = codes.walk_twice(SP + 64, &memory(&words));
        (found.0, found.1, codes.words.guessed())
    };
    let want = vec![0x1000, WAITING as usize, 0x2000, 0x3000];
    // Its record is in the middle of the caller's frame, or its frame ends at an offset from it.
    let by_sp = call(Base::Sp, 96, Saved::At(-48));
    let by_fp = call(Base::Fp, 16, Saved::At(-16));
    for outer in [by_sp, by_fp] {
        let found = walk(outer, BLR, None);
        assert_eq!(found, (want.clone(), End::Complete, 2), "{outer:?}");
    }
    // The caller's rule does not say where the record is.
    let found = walk(call(Base::Sp, 96, Saved::At(48)), BLR, None);
    assert_eq!(found, (want[..3].to_vec(), End::NoCfi, 2));
    // No call; a call of a function that has CFI, is far away, or does not lead to the frame, but may.
    let to = |entry| bl(CALLER - 4, entry);
    for (before, guessed) in [
        (NOP, None),
        (to(DESCRIBED), None),
        (to(WAITING + 0x10), None),
        (to(WAITING - 0x20_000), None),
        (to(WAITING - 0x1_000), Some(2)),
    ] {
        let found = walk(by_sp, before, None);
        let want = match guessed {
            Some(nr) => (want.clone(), End::Complete, nr),
            None => (want[..2].to_vec(), End::NoCfi, 0),
        };
        assert_eq!(found, want, "{before:#x}");
    }
    // The frame that was interrupted may have no record yet.
    let found = walk(by_sp, BLR, Some(Rule::UNKNOWN));
    assert_eq!(found, (vec![0x1000], End::NoCfi, 0));
    // Generated code is called by pointers, and has records.
    let found = walk(by_sp, BLR, Some(Rule::GENERATED));
    assert_eq!(found, (vec![0x1000, 0x2000, 0x3000], End::Complete, 1));
}

/// The function calls one that calls it again: x30 is after the call of that one, and no return address.
#[test]
fn a_link_register_of_an_earlier_call_is_no_return_address() {
    const OTHER: u64 = 0x800;
    // In a loop: the call comes later.
    let (entry, mut code) = at_instruction(4);
    code.retain(|(at, _)| *at < FIRST);
    code.extend([
        (FIRST, NOP),
        (FIRST + 4, bl(FIRST + 4, OTHER)),
        // b to the nop
        (FIRST + 8, 0x17ff_fffe),
        // b to the function
        (
            OTHER,
            0x1400_0000 | (entry.wrapping_sub(OTHER) >> 2) as u32 & 0x03ff_ffff,
        ),
        (CALLER - 4, bl(CALLER - 4, entry)),
    ]);
    let rules = [(CALLER - 1, Rule::OUTERMOST)];
    let words = [(SP + 16, 0), (SP + 24, CALLER)];
    let mut codes = codes(&rules, FIRST + 8, &code);
    let found = codes.walk_twice(SP + 16, &memory(&words));
    assert_eq!(found, (vec![0x1000, 0x2000], End::Complete));
    assert_eq!(codes.words.guessed(), 0);
}

/// gcc says of the end of a function with a frame of any size that it is still by x29, which is the caller's.
#[test]
fn a_frame_by_a_frame_pointer_that_was_restored_is_not_followed() {
    let rules = [
        (FIRST, call(Base::Fp, 64, Saved::At(-64))),
        (CALLER - 1, Rule::OUTERMOST),
    ];
    let words = [(SP + 64, 0), (SP + 72, CALLER)];
    // ldp x29, x30, [sp, #192]; ldp x19, x20, [sp, #208]; ldp x29, x30, [sp], #32; ldp x28, x30; ldp x29, x28
    let (pop, more, post) = (0xa94c_7bfd, 0xa94d_53f3, 0xa8c2_7bfd);
    let others = [0xa94c_7bfc, 0xa94c_73fd];
    for (before, is_followed) in [
        ([pop, more], false),
        ([NOP, pop], false),
        ([NOP, post], false),
        (others, true),
        ([pop, RET], true),
        ([NOP, NOP], true),
    ] {
        let code = [(FIRST - 8, before[0]), (FIRST - 4, before[1])];
        let found = codes(&rules, CALLER, &code).walk_twice(SP + 64, &memory(&words));
        let want = match is_followed {
            true => (vec![0x1000, 0x2000], End::Complete),
            false => (vec![0x1000], End::Inexpressible),
        };
        assert_eq!(found, want, "{before:x?}");
    }
}
