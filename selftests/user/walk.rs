// SPDX-License-Identifier: GPL-2.0

//! Stacks by their frame pointers, and by rules.

mod arm64;
mod computed;
mod decode;
mod hostile;
mod made;

use made::{call, mapping, memory, registers, ruled, Codes, Words, NOT_NOW, SP, USER_END};
use proptest::prelude::*;
use stackmap_user::{
    calls::Mapping,
    cfi::X86_64,
    encoded::{EncodedStack, End, FRAMES_MAX},
    frame::{Registers, Unreadable},
    rule::{Base, Rule, Saved},
    rules::Site,
    walk::{by_frame_pointers, by_rules, unverified},
};
use std::collections::HashMap;

#[test]
fn frame_pointers_alone_verify_no_caller() {
    const USER_END: u64 = 0x7fff_ffff_f000;
    const NO_CODE: u64 = 0x7000;
    let all = [0x5000; FRAMES_MAX];
    for (ips, kept, want) in [
        (&[][..], 0, End::NoMemory),
        (&[0], 0, End::BadAddress),
        (&[0x5000, 0x6000, 0], 2, End::FramePointer),
        (&[0x5000, 0x6000], 2, End::FramePointer),
        (
            &[0x5000, 0x6000, USER_END as usize, 0x6000],
            2,
            End::BadAddress,
        ),
        (&[0x5000, NO_CODE as usize, 0x6000], 1, End::BadAddress),
        (&all, FRAMES_MAX, End::Depth),
    ] {
        let mut words = EncodedStack::default();
        let end = unverified(ips, USER_END, &mut words, |words, ip| {
            let is_code = ip != NO_CODE;
            if is_code {
                words.keep(ip);
            }
            is_code.then_some(()).ok_or(End::BadAddress)
        });
        assert_eq!((words.frames(), end), (kept, want), "{ips:?}");
        assert_eq!(words.guessed(), usize::from(kept > 1));
    }
}

/// What the fuzzer begins with: code whose caller is verified, code whose caller is guessed, and code of many paths.
#[test]
fn the_corpus_of_the_fuzzer() {
    for (name, want) in [
        ("verified", (2, 0, End::NoCfi)),
        ("guessed", (2, 1, End::NoCfi)),
        ("many", (1, 0, End::NoCfi)),
    ] {
        let path = format!(
            "{}/../fuzz/corpus/decode/{name}",
            env!("CARGO_MANIFEST_DIR")
        );
        let input = std::fs::read(path).expect("an input");
        assert_eq!(hostile::walk(&input), Some(want), "{name}");
    }
}

fn walk(fp: u64, word: u32, words: &[(u64, u64)]) -> Vec<usize> {
    let mut ips = [0; 510];
    let nr = by_frame_pointers(registers(fp, word), &memory(words), &mut ips);
    ips[..nr].to_vec()
}

/// A frame at `fp`: the next one, and where its function returns to.
fn frame(fp: u64, word: u64, next: u64, ip: u64) -> [(u64, u64); 2] {
    [(fp, next), (fp + word, ip)]
}

#[test]
fn frames_follow_each_other() {
    for word in [4, 8] {
        let first = frame(SP + 16, word.into(), SP + 64, 0x2000);
        let second = frame(SP + 64, word.into(), 0, 0x3000);
        let ips = walk(SP + 16, word, &[first, second].concat());
        assert_eq!(ips, [0x1000, 0x2000, 0x3000]);
    }
}

#[test]
fn a_frame_pointer_below_the_stack_ends_the_walk() {
    assert_eq!(walk(0, 8, &[]), [0x1000]);
    assert_eq!(walk(SP - 8, 8, &[]), [0x1000]);
}

#[test]
fn a_frame_that_is_not_aligned_ends_the_walk() {
    let words = frame(SP + 4, 8, 0, 0x2000);
    assert_eq!(walk(SP + 4, 8, &words), [0x1000]);
}

#[test]
fn a_frame_at_the_end_of_the_address_space_ends_the_walk() {
    assert_eq!(walk(u64::MAX - 7, 8, &[]), [0x1000]);
}

#[test]
fn a_frame_that_cannot_be_read_ends_the_walk() {
    assert_eq!(walk(SP + 16, 8, &[]), [0x1000]);
    let words = [(SP + 16, SP + 32), (SP + 24, 0x2000)];
    assert_eq!(walk(SP + 16, 8, &words), [0x1000, 0x2000]);
}

#[test]
fn a_deep_stack_fills_the_room() {
    let words: Vec<_> = (0..600)
        .flat_map(|nr| frame(SP + 16 * nr, 8, SP + 16 * (nr + 1), 0x2000 + nr))
        .collect();
    let ips = walk(SP, 8, &words);
    assert_eq!(ips.len(), 510);
    assert_eq!(ips[509], 0x2000 + 508);
}

proptest! {
    /// A frame that leads to itself, or down the stack, does not hold the walk: it only goes up.
    #[test]
    fn any_memory_ends(words in proptest::collection::vec(any::<u64>(), 0..64), fp in any::<u64>()) {
        let at = |nr: usize| SP + 8 * nr as u64;
        let near = words.iter().enumerate().map(|(nr, word)| (at(nr), SP + word % 512));
        let near: Vec<_> = near.collect();
        let ips = walk(SP + fp % 512, 8, &near);
        prop_assert!(ips.len() <= 1 + near.len());
    }
}

#[test]
fn a_return_address_has_the_rule_of_the_call_before_it() {
    let rules = [
        (0x1000, call(Base::Sp, 16, Saved::No)),
        (0x1fff, call(Base::Sp, 24, Saved::At(-16))),
        (0x2fff, call(Base::Fp, 16, Saved::No)),
        (0x3fff, Rule::OUTERMOST),
    ];
    let words = [
        (SP + 8, 0x2000),
        (SP + 24, SP + 64),
        (SP + 32, 0x3000),
        (SP + 72, 0x4000),
    ];
    let want = vec![0x1000, 0x2000, 0x3000, 0x4000];
    assert_eq!(ruled(0, &rules, &words), (want, End::Complete));
}

#[test]
fn a_signal_goes_on_at_the_instruction_itself() {
    let rules = [
        (0x1000, Rule::SIGNAL),
        (0x5000, call(Base::Fp, 16, Saved::No)),
        (0x5fff, Rule::OUTERMOST),
    ];
    // On another stack, which is below.
    let words = [
        (SP + 160, SP - 4096),
        (SP + 168, 0x5000),
        (SP + 120, SP - 4000),
        (SP - 3992, 0x6000),
    ];
    let want = vec![0x1000, 0x5000, 0x6000];
    assert_eq!(ruled(0, &rules, &words), (want, End::Complete));
}

/// In the mapping of the code that the signal's handler returned to.
#[test]
fn what_a_signal_interrupts_does_not_have_the_rule_of_the_instruction_before() {
    let rules = [
        (0x1000, call(Base::Sp, 8, Saved::No)),
        (0x1fff, Rule::SIGNAL),
        (0x4fff, call(Base::Sp, 8, Saved::No)),
        (0x5000, call(Base::Sp, 16, Saved::No)),
        (0x5fff, Rule::OUTERMOST),
        (0x6fff, Rule::OUTERMOST),
    ];
    let words = [
        (SP, 0x2000),
        (SP + 168, SP + 4096),
        (SP + 176, 0x5000),
        (SP + 128, 0),
        (SP + 4096, 0x7000),
        (SP + 4104, 0x6000),
    ];
    let want = vec![0x1000, 0x2000, 0x5000, 0x6000];
    assert_eq!(ruled(0, &rules, &words), (want, End::Complete));
}

#[test]
fn a_stack_that_begins_nowhere_has_no_frames() {
    let mut codes = Codes::new(&[]);
    let nowhere = Registers {
        ip: 0,
        ..registers(0, 8)
    };
    let end = by_rules(&X86_64, nowhere, &memory(&[]), &mut codes, USER_END);
    assert_eq!((codes.words.frames(), end), (0, End::BadAddress));
}

#[test]
fn a_frame_may_keep_where_it_ends() {
    for by in [8, 64, 0] {
        let kept = Rule::aligned(Base::Sp, 40, by, Saved::No).unwrap();
        let rules = [(0x1000, kept), (0x1fff, Rule::OUTERMOST)];
        // The return address is below the frame's end.
        let end = SP + 4096 + by as u64;
        let words = [(SP + 40, SP + 4096), (end - 8, 0x2000)];
        let want = vec![0x1000, 0x2000];
        assert_eq!(ruled(0, &rules, &words), (want, End::Complete));
        assert_eq!(ruled(0, &rules, &words[1..]), (vec![0x1000], End::Fault));
        let down = [(SP + 40, SP - 64), (SP - 64, 0x2000)];
        assert_eq!(ruled(0, &rules, &down), (vec![0x1000], End::BadAddress));
    }
}

#[test]
fn a_rule_that_leads_down_the_stack_ends_the_walk() {
    for offset in [0, -8] {
        let rules = [(0x1000, call(Base::Sp, offset, Saved::No))];
        assert_eq!(ruled(0, &rules, &[]), (vec![0x1000], End::BadAddress));
    }
}

#[test]
fn a_return_address_that_is_none_ends_the_walk() {
    let rules = [(0x1000, call(Base::Sp, 8, Saved::No))];
    for (word, end) in [
        (0, End::BadAddress),
        (8, End::BadAddress),
        (USER_END, End::BadAddress),
        (u64::MAX, End::BadAddress),
    ] {
        assert_eq!(ruled(0, &rules, &[(SP, word)]), (vec![0x1000], end));
    }
}

#[test]
fn memory_that_cannot_be_read_ends_the_walk() {
    let rules = [(0x1000, call(Base::Sp, 8, Saved::No))];
    assert_eq!(ruled(0, &rules, &[]), (vec![0x1000], End::Fault));
    let rules = [(0x1000, call(Base::Sp, 8, Saved::At(-16)))];
    assert_eq!(
        ruled(0, &rules, &[(SP, 0x2000)]),
        (vec![0x1000], End::Fault)
    );
}

/// The walk of code that keeps frame pointers, called from 0x2000.
#[test]
fn callers_of_generated_code_are_guessed_where_a_call_leads() {
    for bytes in [
        vec![0xe8, 0xf0, 0xef, 0xff, 0xff],
        vec![0xff, 0xd0],
        vec![0x41, 0xff, 0xd0],
        vec![0xff, 0x10],
        vec![0xff, 0x14, 0x24],
        vec![0xff, 0x50, 8],
        vec![0xff, 0x54, 0x24, 8],
        vec![0xff, 0x15, 1, 2, 3, 4],
        vec![0xff, 0x90, 1, 2, 3, 4],
        vec![0xff, 0x94, 0x24, 1, 2, 3, 4],
        vec![0xff, 0x14, 0x25, 1, 2, 3, 4],
        // HotSpot's interpreter returns to after jmp [r10+rbx*8].
        vec![0x41, 0xff, 0x24, 0xda],
    ] {
        let found = walk_before(Rule::GENERATED, &bytes, &[]);
        assert_eq!(found, (2, 1), "{bytes:02x?}");
    }
    for bytes in [
        // jmp [rdx+rbx*8]; jmp rax; push [rax]; far call [rax]; call [rax+N], a part of it
        vec![0xff, 0x24, 0xda],
        vec![0xff, 0xe0],
        vec![0xff, 0x30],
        vec![0xff, 0x18],
        vec![0xff, 0x90, 1, 2],
        vec![0xff, 0x10, 0],
        vec![0xe8, 1, 2, 3],
        vec![],
    ] {
        let found = walk_before(Rule::GENERATED, &bytes, &[]);
        assert_eq!(found, (1, 0), "{bytes:02x?}");
    }
}

/// Code that is described would have been left by its rule; a return address there is an old one.
#[test]
fn no_frame_pointer_leads_behind_a_call_of_described_code() {
    let call = [0x90, 0x90, 0x90, 0xe8, 0, 0x10, 0, 0];
    for (target, frames) in [
        (Rule::call(Base::Sp, 8, Saved::No).unwrap(), 1),
        (Rule::INEXPRESSIBLE, 1),
        (Rule::OUTERMOST, 1),
        (Rule::UNKNOWN, 2),
        (Rule::GENERATED, 2),
    ] {
        let rules = [(0x1000, Rule::GENERATED), (0x3000, target)];
        let words = frame(SP + 16, 8, 0, 0x2000);
        let mut codes = Codes::new(&rules);
        codes.calls = HashMap::from([(0x2000, call), (0x3008, [0x90; 8])]);
        let (ips, end) = codes.walk_twice(SP + 16, &memory(&words));
        assert_eq!((ips.len(), end), (frames, End::NoCfi), "{target:?}");
    }
}

/// A call to 0xff0, and the code there.
#[test]
fn other_code_is_left_by_its_frame_pointer_where_the_function_sets_it() {
    let call = [0xe8, 0xf0, 0xef, 0xff, 0xff];
    let found = |entry| walk_before(Rule::UNKNOWN, &call, &[(0xff8, entry)]);
    assert_eq!(found([0x55, 0x48, 0x89, 0xe5, 1, 2, 3, 4]), (2, 1));
    assert_eq!(found([0x55, 0x48, 0x8b, 0xec, 1, 2, 3, 4]), (2, 1));
    assert_eq!(
        found([0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5]),
        (2, 1)
    );
    // It saves it only.
    assert_eq!(found([0x55, 0x48, 0x83, 0xec, 8, 2, 3, 4]), (1, 0));
    // After the instruction, the first of its frame, far before it, and farther.
    for (target, want) in [
        (0x1001_u32, (1, 0)),
        (0xffd, (1, 0)),
        (0xf80, (2, 1)),
        (0xffff_1001, (2, 1)),
        (0xffff_1000, (1, 0)),
    ] {
        let [a, b, c, d] = target.wrapping_sub(0x2000).to_le_bytes();
        let entry = [0x55, 0x48, 0x89, 0xe5, 1, 2, 3, 4];
        let entry = [((target as i32 as u64).wrapping_add(8), entry)];
        let found = walk_before(Rule::UNKNOWN, &[0xe8, a, b, c, d], &entry);
        assert_eq!(found, want, "{target:#x}");
    }
    for bytes in [&[0xff, 0xd0][..], &[0x41, 0xff, 0x24, 0xda]] {
        assert_eq!(walk_before(Rule::UNKNOWN, bytes, &[]), (1, 0));
    }
}

/// It has not saved the frame pointer, or has restored it: its caller would be missing.
#[test]
fn a_function_that_is_interrupted_outside_of_its_frame_is_not_left() {
    let call = [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0];
    let words = [&frame(SP + 16, 8, 0, 0x2000)[..], &[(SP, 0x4000)]].concat();
    let mut codes = Codes::new(&[(0x1000, Rule::GENERATED)]);
    codes.calls = HashMap::from([(0x2000, call)]);
    assert_eq!(codes.walk(SP + 16, &memory(&words)).0.len(), 2);
    assert_eq!(codes.words.guessed(), 1);
    for before in [call, [0x90, 0x90, 0x90, 0x90, 0x41, 0xff, 0x24, 0xda]] {
        codes.calls.insert(0x4000, before);
        assert_eq!(codes.walk(SP + 16, &memory(&words)).0.len(), 1);
    }
    codes.calls.remove(&0x4000);
    codes
        .calls
        .insert(0x1008, [0x48, 0x89, 0xe5, 0, 0, 0, 0, 0]);
    assert_eq!(codes.walk(SP + 16, &memory(&words)).0.len(), 1);
}

#[test]
fn code_that_no_rule_can_express_is_not_left_by_its_frame_pointer() {
    let words = frame(SP + 16, 8, 0, 0x2000);
    let mut codes = Codes::new(&[(0x1000, Rule::INEXPRESSIBLE)]);
    codes.calls = HashMap::from([(0x2000, [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0])]);
    let found = codes.walk_twice(SP + 16, &memory(&words));
    assert_eq!(found, (vec![0x1000], End::Inexpressible));
}

/// An instruction runs in a copy, and two functions return to a trampoline.
#[test]
fn what_uprobes_have_replaced_is_not_in_the_stack() {
    let rules = [
        (0x1100, call(Base::Sp, 8, Saved::No)),
        (0x1fff, call(Base::Sp, 16, Saved::No)),
        (0x2fff, Rule::OUTERMOST),
    ];
    let mut codes = Codes::new(&rules);
    codes.originals = HashMap::from([
        ((0x1000, None), 0x1100),
        ((0x9000, Some(SP)), 0x2000),
        ((0x9000, Some(SP + 16)), 0x3000),
    ]);
    let words = memory(&[(SP, 0x9000), (SP + 16, 0x9000)]);
    let want = vec![0x1100, 0x2000, 0x3000];
    assert_eq!(codes.walk_twice(0, &words), (want, End::Complete));
}

/// What is near to it may be another function, which was called.
#[test]
fn the_first_function_of_a_program_is_outermost_where_nothing_was_pushed() {
    let rules = [
        (0x1000, call(Base::Sp, 4096, Saved::No)),
        (0x1fff, Rule::START),
    ];
    let words = [(SP + 4088, 0x2000)];
    let want = vec![0x1000, 0x2000];
    assert_eq!(ruled(0, &rules, &words), (want, End::Complete));
    // Or on another stack, which is above.
    for size in [4088, 8192] {
        let rules = [
            (0x1000, call(Base::Sp, size, Saved::No)),
            (0x1fff, Rule::START),
        ];
        let words = [(SP + size as u64 - 8, 0x2000)];
        let want = vec![0x1000, 0x2000];
        assert_eq!(ruled(0, &rules, &words), (want, End::NoCfi));
    }
}

/// Between two instructions that the kernel has put into the program, its file does not say where the stack pointer is.
#[test]
fn a_stack_is_cut_where_an_optimised_uprobe_is_about_to_be_called() {
    let rules = [
        (0x1000, call(Base::Sp, 8, Saved::No)),
        (0x1fff, Rule::OUTERMOST),
    ];
    let lea = [0x90, 0x90, 0x90, 0x48, 0x8d, 0x64, 0x24, 0x80];
    let call = [0xe8, 1, 2, 3, 4, 0x90, 0x90, 0x90];
    for (changes, before, here, end) in [
        (true, lea, call, End::Inexpressible),
        (false, lea, call, End::Complete),
        (true, call, call, End::Complete),
        (true, lea, lea, End::Complete),
    ] {
        let mut codes = Codes::new(&rules);
        codes.changes = changes;
        codes.calls = HashMap::from([(0x1000, before), (0x1008, here)]);
        assert_eq!(codes.walk(0, &memory(&[(SP, 0x2000)])).1, end);
    }
}

/// Its frame pointer may be that of an outer frame: the frames in between would be missing.
#[test]
fn a_stack_ends_where_it_is_not_known_now_whether_there_is_a_rule() {
    let words = frame(SP + 16, 8, 0, 0x2000);
    let mut codes = Codes::new(&[(0x1000, call(Base::Sp, 8, Saved::No))]);
    codes.calls = HashMap::from([(0x2000, [0x90, 0x90, 0x90, 0xe8, 1, 2, 3, 4])]);
    let mut words = words.to_vec();
    words.push((SP, NOT_NOW + 1));
    let want = vec![0x1000, NOT_NOW as usize + 1];
    let found = codes.walk_twice(SP + 16, &memory(&words));
    assert_eq!(found, (want, End::NoRule));
}

/// A frame pointer that is none often leads to zeros.
#[test]
fn a_frame_pointer_that_leads_to_zeros_ends_the_walk() {
    let words = frame(SP + 16, 8, 0, 0);
    assert_eq!(ruled(SP + 16, &[], &words), (vec![0x1000], End::NoCfi));
}

/// Walks by a frame pointer from code with this rule to a return address after these bytes; others are before
/// other addresses. Returns the number of frames, and the first one that was guessed.
fn walk_before(rule: Rule, bytes: &[u8], others: &[(u64, [u8; 8])]) -> (usize, usize) {
    let mut before = [0x90; 8];
    before[8 - bytes.len()..].copy_from_slice(bytes);
    let mut codes = Codes::new(&[(0x1000, rule)]);
    codes.calls = others.iter().copied().chain([(0x2000, before)]).collect();
    let words = [&frame(SP + 16, 8, 0, 0x2000)[..], &[(SP, 0)]].concat();
    let (ips, end) = codes.walk_twice(SP + 16, &memory(&words));
    assert_eq!(end, End::NoCfi);
    (ips.len(), codes.words.guessed())
}

/// The function may not have set its frame pointer yet.
#[test]
fn the_caller_is_guessed_where_the_code_or_the_top_of_the_stack_cannot_be_read() {
    let call = [0x90, 0x90, 0x90, 0xe8, 0xf0, 0xef, 0xff, 0xff];
    let entry = [0x55, 0x48, 0x89, 0xe5, 1, 2, 3, 4];
    let walk = |top: &[(u64, u64)], calls: &[(u64, [u8; 8])]| {
        let mut codes = Codes::new(&[]);
        codes.calls = calls.iter().copied().collect();
        let words = [&frame(SP + 16, 8, 0, 0x2000)[..], top].concat();
        let (ips, _) = codes.walk(SP + 16, &memory(&words));
        (ips.len(), codes.words.guessed())
    };
    let calls = [(0x2000, call), (0xff8, entry), (0x4000, [0x90; 8])];
    for top in [&[][..], &[(SP, 0x4000)], &[(SP, u64::MAX)], &[(SP, 0x4008)]] {
        assert_eq!(walk(top, &calls), (2, 1));
    }
    assert_eq!(walk(&[(SP, 0x4000)], &calls[..1]), (1, 0));
}

#[test]
fn a_stack_of_rules_that_is_too_deep_is_cut() {
    let rules: Vec<_> = [0x1000, 0x1fff]
        .map(|address| (address, call(Base::Sp, 8, Saved::No)))
        .into();
    let words: Vec<_> = (0..600).map(|nr| (SP + 8 * nr, 0x2000)).collect();
    let (ips, end) = ruled(0, &rules, &words);
    assert_eq!((ips.len(), end), (510, End::Depth));
}

#[test]
fn calls_are_followed_as_far_as_their_mapping() {
    let rules = [0x1000, 0x1fff].map(|address| (address, call(Base::Sp, 8, Saved::No)));
    let words = memory(&[(SP, 0x2000), (SP + 8, 0x3000)]);
    let mut codes = Codes::new(&[rules[0], rules[1], (0x2fff, Rule::OUTERMOST)]);
    let want = (vec![0x1000, 0x2000, 0x3000], End::Complete);
    // The mapping ends at each of the addresses, before and after it.
    for end in [0x1000, 0x1fff, 0x2000, 0x2001, 0x2fff, 0x3000, 0x3001] {
        codes.mapping.size = end;
        assert_eq!(codes.walk(0, &words), want, "{end:#x}");
    }
    for start in [0x1fff, 0x2000, 0x2001, 0x2fff, 0x3000] {
        let Mapping { word, site, .. } = mapping();
        codes.mapping = Mapping {
            start,
            size: 0x10000,
            word: word + start,
            site: site.after(start),
            ..Mapping::default()
        };
        assert_eq!(codes.walk(0, &words), want, "{start:#x}");
    }
}

/// Rules of other code may have its site.
#[test]
fn no_call_is_followed_in_a_mapping_without_a_file() {
    let mut codes = Codes::new(&[(0x1000, call(Base::Sp, 8, Saved::No))]);
    codes
        .rules
        .put(Site::default(), call(Base::Sp, 8, Saved::No));
    codes.mapping = Mapping {
        start: 0x1fff,
        size: 0x1000,
        ..Mapping::default()
    };
    let words = memory(&[(SP, 0x2000), (SP + 8, 0x2000)]);
    assert_eq!(codes.walk(0, &words), (vec![0x1000, 0x2000], End::NoCfi));
}

/// A frame of some kind, its size in words.
fn any_rule() -> impl Strategy<Value = Rule> {
    let base = prop_oneof![4 => Just(Base::Sp), 1 => Just(Base::Fp)];
    let saved = prop_oneof![
        Just(Saved::No),
        (1..6_i64).prop_map(|words| Saved::At(-8 * words))
    ];
    let called =
        (base, 0..6_i64, saved).prop_map(|(base, words, saved)| call(base, 8 * words, saved));
    prop_oneof![
        30 => called,
        1 => (0..6_i64).prop_map(|words| Rule::aligned(Base::Sp, 8 * words, 8, Saved::No).unwrap()),
        1 => (0..6_i64).prop_map(|words| Rule::aligned(Base::Fp, 8 * words, 8, Saved::AtFp).unwrap()),
        1 => Just(Rule::OUTERMOST),
        1 => Just(Rule::SIGNAL),
        1 => Just(Rule::UNKNOWN),
        1 => Just(Rule::GENERATED),
        1 => Just(Rule::START),
        1 => Just(Rule::INEXPRESSIBLE),
        1 => Just(Rule::tracked(14)),
        1 => Just(Rule::COMPUTED),
    ]
}

proptest! {
    #[test]
    fn following_calls_comes_to_the_same_as_single_frames(
        rules in proptest::collection::vec(any_rule(), 1..40),
        words in proptest::collection::vec((0..8_u8, any::<u16>()), 0..600),
        fp in 0..64_u64,
    ) {
        let known: Vec<_> = (0x1000..).zip(rules.iter().copied()).collect();
        let nr = rules.len() as u64;
        let word = |(kind, bits): &(u8, u16)| match kind {
            // Another mapping of the stack, or no memory.
            0 => Ok(SP + 8 * u64::from(bits % 700)),
            1 if bits % 8 == 0 => Err(Unreadable::Absent),
            _ => Ok(0x1001 + u64::from(*bits) % nr),
        };
        let words = (0..).zip(&words).map(|(nr, from)| (SP + 8 * nr, word(from)));
        Codes::new(&known).walk_twice(SP + 8 * fp, &Words(words.collect()));
    }
}
