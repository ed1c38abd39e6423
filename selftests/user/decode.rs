// SPDX-License-Identifier: GPL-2.0

//! Frames of code without CFI, by its instructions.

use crate::made::{call, memory, registers, Codes, ABSENT, NOT_NOW, SP, USER_END};
use proptest::prelude::*;
use stackmap_user::{
    cfi::X86_64,
    encoded::End,
    frame::Frame,
    rule::{Base, Rule, Saved},
    walk::by_rules,
};

/// The address that the function returns to.
const CALLER: u64 = 0x2000;
/// Where the function is interrupted.
const IP: u64 = 0x1000;

const INDIRECT: [u8; 8] = [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0];

const PUSH_RBX: &[u8] = &[0x53];
const POP_RBX: &[u8] = &[0x5b];
const PUSH_RBP: &[u8] = &[0x55];
const POP_RBP: &[u8] = &[0x5d];
const SUB_16: &[u8] = &[0x48, 0x83, 0xec, 16];
const ADD_16: &[u8] = &[0x48, 0x83, 0xc4, 16];
const SUB_256: &[u8] = &[0x48, 0x81, 0xec, 0, 1, 0, 0];
const LEA_256: &[u8] = &[0x48, 0x8d, 0xa4, 0x24, 0, 1, 0, 0];
const SET_RBP: &[u8] = &[0x48, 0x89, 0xe5];
const ALIGN: &[u8] = &[0x48, 0x83, 0xe4, 0xf0];
const LEAVE: &[u8] = &[0xc9];
const RET: &[u8] = &[0xc3];
const UD2: &[u8] = &[0x0f, 0x0b];
const CALL: &[u8] = &[0xe8, 0, 1, 0, 0];
const NOP: &[u8] = &[0x0f, 0x1f, 0];
const JMP_RAX: &[u8] = &[0xff, 0xe0];
/// Over a byte, over two.
const JE_1: &[u8] = &[0x74, 1];
const JE_2: &[u8] = &[0x74, 2];
const JE_3: &[u8] = &[0x74, 3];
const JE_7: &[u8] = &[0x74, 7];
const JMP_0: &[u8] = &[0xeb, 0];
const JMP_2: &[u8] = &[0xeb, 2];
const MOV_TO_RSP: &[u8] = &[0x48, 0x89, 0xc4];

/// A function that is called.
struct Function {
    /// Its instructions up to where it is interrupted.
    before: Vec<u8>,
    after: Vec<u8>,
    /// The rule of the caller.
    caller: Rule,
}

fn function(before: &[&[u8]], after: &[&[u8]]) -> Function {
    Function {
        before: before.concat(),
        after: after.concat(),
        caller: Rule::OUTERMOST,
    }
}

/// Walks a stack that has these words from the stack pointer on, and `fp` as the frame pointer. Returns the number of
/// frames, the first that is guessed, and how the stack ends.
fn walk(codes: &mut Codes, words: &[u64], fp: u64) -> (usize, usize, End) {
    let at = |index| SP + 8 * index as u64;
    let words: Vec<_> = words
        .iter()
        .enumerate()
        .map(|(index, word)| (at(index), *word))
        .collect();
    codes.words.clear();
    let end = by_rules(&X86_64, registers(fp, 8), &memory(&words), codes, USER_END);
    (codes.words.frames(), codes.words.guessed(), end)
}

impl Function {
    /// Walks its stack, which has these words from the stack pointer on, and `fp` as the frame pointer. Returns the
    /// number of frames, the first that is guessed, and how the stack ends.
    fn walk(&self, call: [u8; 8], words: &[u64], fp: u64) -> (usize, usize, End) {
        let mut codes = self.codes(call);
        let found = walk(&mut codes, words, fp);
        // What is remembered of its frames leads to the same.
        codes.text = None;
        if !codes.decoded.is_empty() {
            assert_eq!(walk(&mut codes, words, fp), found);
        }
        found
    }

    /// Returns the code of the function, which this call has called.
    fn codes(&self, call: [u8; 8]) -> Codes {
        let mut codes = Codes::new(&[(CALLER - 1, self.caller), (0x2fff, Rule::OUTERMOST)]);
        let text = [&self.before[..], &self.after].concat();
        codes.text = Some((IP - self.before.len() as u64, text));
        codes.calls.insert(CALLER, call);
        codes
    }

    /// Walks its stack with the return address after `index` words: first if a direct call precedes it, then if an
    /// indirect one does.
    fn walk_both(&self, index: usize) -> [(usize, usize, End); 2] {
        self.walk_both_by(index, 0)
    }

    /// The same with `fp` as the frame pointer.
    fn walk_both_by(&self, index: usize, fp: u64) -> [(usize, usize, End); 2] {
        let mut words = vec![0; index];
        words.push(CALLER);
        [self.direct_call(), INDIRECT].map(|call| self.walk(call, &words, fp))
    }

    /// Returns the direct call of the function before [`CALLER`].
    fn direct_call(&self) -> [u8; 8] {
        self.direct_call_before(CALLER)
    }

    /// Returns the same before another address.
    fn direct_call_before(&self, address: u64) -> [u8; 8] {
        let entry = IP - self.before.len() as u64;
        let [a, b, c, d] = (entry as u32).wrapping_sub(address as u32).to_le_bytes();
        [0x90, 0x90, 0x90, 0xe8, a, b, c, d]
    }
}

const FOUND: (usize, usize, End) = (2, 0, End::Complete);
const GUESSED: (usize, usize, End) = (2, 1, End::Complete);
const CUT: (usize, usize, End) = (1, 0, End::NoCfi);

#[test]
fn the_return_address_is_where_the_function_has_pushed_it() {
    for (before, after, index) in [
        (&[][..], &[RET][..], 0),
        (&[PUSH_RBX], &[POP_RBX, RET], 1),
        (&[PUSH_RBX, SUB_16], &[ADD_16, POP_RBX, RET], 3),
        (&[SUB_256], &[LEA_256, RET], 32),
        (&[PUSH_RBX, JE_1, PUSH_RBX], &[POP_RBX, RET], 1),
        (&[PUSH_RBX, JMP_2, UD2], &[POP_RBX, RET], 1),
        (&[PUSH_RBP, SET_RBP, SUB_16], &[ADD_16, POP_RBP, RET], 3),
    ] {
        let function = function(before, after);
        let is_ambiguous = before.contains(&JE_1);
        if is_ambiguous {
            // One way from the entry has pushed two words, but the end pops one.
            assert_eq!(function.walk_both(2), [GUESSED, CUT]);
        } else {
            // Where rbp points if it is pushed first.
            let fp = SP + 8 * index as u64 - 8;
            let found = function.walk_both_by(index, fp);
            assert_eq!(found, [FOUND; 2], "{before:x?}");
        }
        assert_eq!(function.walk_both(index + 3), [CUT; 2], "{before:x?}");
    }
}

/// The call of a function that is called by a pointer says nothing of its entry.
#[test]
fn one_end_of_the_function_suffices_where_the_other_is_not_known() {
    // It does not return.
    assert_eq!(function(&[PUSH_RBX], &[UD2]).walk_both(1), [FOUND, CUT]);
    // A call may not return.
    let calls = function(&[PUSH_RBX], &[CALL, POP_RBX, RET]);
    assert_eq!(calls.walk_both(1), [FOUND, GUESSED]);
    // So what follows may be another function.
    let padded = function(&[PUSH_RBX, CALL, NOP], &[POP_RBX, RET]);
    assert_eq!(padded.walk_both(1), [FOUND, FOUND]);
    let padded = function(&[PUSH_RBX, CALL, NOP], &[UD2]);
    assert_eq!(padded.walk_both(1), [GUESSED, CUT]);
    // One case of a switch.
    let switch = function(&[PUSH_RBX, JMP_RAX], &[POP_RBX, RET]);
    assert_eq!(switch.walk_both(1), [FOUND, FOUND]);
    let switch = function(&[PUSH_RBX, JMP_RAX], &[UD2]);
    assert_eq!(switch.walk_both(1), [GUESSED, CUT]);
    // What it jumps to may end otherwise; so may what is done with a stack pointer that is not known.
    for left in [JMP_RAX, &[0x87, 0x27]] {
        let left = function(&[PUSH_RBX], &[JE_2, left, POP_RBX, RET]);
        assert_eq!(left.walk_both(1), [FOUND, GUESSED]);
    }
    // Its entry says something else than such an end.
    let left = function(&[PUSH_RBX, PUSH_RBX], &[JE_2, JMP_RAX, POP_RBX, RET]);
    assert_eq!(left.walk_both(2), [GUESSED, CUT]);
    // Two ways meet at another depth.
    let meet = function(&[PUSH_RBX], &[JE_1, POP_RBX, POP_RBX, RET]);
    assert_eq!(meet.walk_both(2), [CUT, GUESSED]);
    let meet = function(&[JE_7, JE_3, PUSH_RBX, JMP_0, UD2], &[UD2]);
    assert_eq!(meet.walk_both(0), [GUESSED, CUT]);
    // It pops less than it has pushed.
    let differ = function(&[PUSH_RBX, PUSH_RBX], &[POP_RBX, RET]);
    assert_eq!(differ.walk_both(1), [CUT, FOUND]);
    // It returns in two ways.
    let differ = function(&[PUSH_RBX, UD2], &[JE_2, POP_RBX, RET, RET]);
    assert_eq!(differ.walk_both(1), [CUT, CUT]);
    let unknown = function(&[PUSH_RBX, MOV_TO_RSP], &[MOV_TO_RSP, RET]);
    assert_eq!(unknown.walk_both(1), [CUT, CUT]);
}

/// What follows a call that does not return, with two arguments on the stack, has another depth.
#[test]
fn paths_that_differ_where_they_meet_verify_no_caller() {
    let over: &[u8] = &[0x74, 7];
    let fails: &[u8] = &[over, PUSH_RBX, PUSH_RBX, CALL].concat();
    // Two words are pushed in one order or the other.
    let saves: &[u8] = &[&[0x74, 4], PUSH_RBP, PUSH_RBX, JMP_2, PUSH_RBX, PUSH_RBP].concat();
    for (before, index, found) in [
        (&[CALL, fails][..], 2, GUESSED),
        (&[CALL, fails, POP_RBX], 1, GUESSED),
        // Nothing precedes the branch that may not return.
        (&[fails], 0, FOUND),
        (&[fails], 2, CUT),
        (&[saves], 2, GUESSED),
        (&[saves, NOP], 2, GUESSED),
        // Paths that are not followed may differ.
        (&[CALL, JE_3, MOV_TO_RSP, PUSH_RBX], 1, GUESSED),
        (&[CALL, &[0x74, 0].repeat(30), PUSH_RBX], 1, GUESSED),
        (&[&[0x74, 0].repeat(30), PUSH_RBX], 1, FOUND),
        (&[CALL, JE_1, RET, PUSH_RBX], 1, FOUND),
    ] {
        let function = function(before, &[UD2]);
        assert_eq!(function.walk_both(index)[0], found, "{before:x?}");
    }
    // A path that takes more reads than a frame has: je over what ends the other one.
    let je: &[u8] = &[0x0f, 0x84, 2, 0, 0, 0];
    for (nr, found) in [(100, FOUND), (5000, GUESSED)] {
        let function = function(&[CALL, PUSH_RBX, je], &[UD2, &vec![0x90; nr], UD2]);
        assert_eq!(function.walk_both(1)[0], found, "{nr}");
    }
}

/// As alloca() does: each time that it is called, the stack pointer is 16 bytes lower.
#[test]
fn a_stack_pointer_that_a_loop_moves_says_nothing() {
    let again: &[u8] = &[0x75, 0xf5];
    let function = function(&[PUSH_RBP, SET_RBP, SUB_16, CALL, again], &[LEAVE, RET]);
    // It was called twice.
    let fp = SP + 32;
    assert_eq!(function.walk_both_by(5, fp), [FOUND; 2]);
    assert_eq!(function.walk_both_by(3, fp), [CUT; 2]);
    let function = Function {
        after: UD2.to_vec(),
        ..function
    };
    assert_eq!(function.walk_both_by(5, fp), [CUT; 2]);
    assert_eq!(function.walk_both_by(3, fp), [CUT; 2]);
}

/// It may be the one that the function was called from.
#[test]
fn a_caller_is_guessed_if_a_return_address_before_it_was_left_out() {
    let function = function(&[PUSH_RBX], &[UD2]);
    for (word, found) in [(0, FOUND), (ABSENT, GUESSED), (0x4000, FOUND)] {
        let direct = function.direct_call();
        assert_eq!(function.walk(direct, &[word, CALLER], 0), found);
    }
}

/// Paths that are not followed may end otherwise.
#[test]
fn where_paths_are_left_the_end_is_guessed() {
    // A jump by memory that cannot be read; more branches than paths; more depths than are remembered.
    let jump: &[u8] = &[0x74, 6, 0xff, 0x25, 0, 0, 0, 0];
    for left in [jump, &[0x74, 0].repeat(30), &[0x50, 0x58].repeat(100)] {
        let left = function(&[PUSH_RBX], &[left, POP_RBX, RET]);
        assert_eq!(left.walk_both(1), [FOUND, GUESSED]);
    }
    // A call that may not return is followed later than the branch before it.
    let padded = function(&[PUSH_RBX, &[0x74, 10], CALL, NOP], &[UD2, UD2]);
    assert_eq!(padded.walk_both(1), [GUESSED, CUT]);
    // No function pops its return address, and goes on.
    let pops = function(&[POP_RBX, PUSH_RBX], &[UD2]);
    assert_eq!(pops.walk_both(0), [CUT, CUT]);
}

/// What jumps there has called something, and the address is in a register, as where musl calls main().
#[test]
fn a_function_is_entered_by_a_jump_to_an_address_that_is_known() {
    const ENDBR: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let walk = |address: &[&[u8]]| {
        let entry = [&[CALL][..], address, &[JMP_RAX, ENDBR, PUSH_RBX]].concat();
        function(&entry, &[UD2]).walk_both(1)
    };
    // lea 2(%rip), %rax; mov $0xffb, %eax
    let lea: &[u8] = &[0x48, 0x8d, 0x05, 2, 0, 0, 0];
    let mov: &[u8] = &[0xb8, 0xfb, 0x0f, 0, 0];
    assert_eq!(
        [lea, mov].map(|address| walk(&[address])),
        [[FOUND, CUT]; 2]
    );
    // Another register; mov $0xffb, %ax; and one that is changed afterwards.
    let other: &[u8] = &[0xb9, 0xfb, 0x0f, 0, 0];
    let half: &[u8] = &[0x66, 0xb8, 0xfb, 0x0f];
    // lock cmpxchg %rdi, (%rsi), which may change %rax
    let exchange: &[u8] = &[0xf0, 0x48, 0x0f, 0xb1, 0x3e];
    for address in [
        &[other][..],
        &[half],
        &[mov, half],
        &[mov, &[0xb0, 0]],
        &[mov, exchange],
    ] {
        assert_eq!(walk(address), [GUESSED, CUT]);
    }
}

/// A frame whose return address was sought in vain among many words is cut without another search.
#[test]
fn what_was_not_decoded_is_remembered() {
    for (words, frames) in [(2000, 1), (100, 2)] {
        let function = function(&[PUSH_RBX], &[UD2]);
        let mut codes = function.codes(function.direct_call());
        let mut stack = vec![0; words];
        assert_eq!(walk(&mut codes, &stack, 0), CUT);
        stack[1] = CALLER;
        assert_eq!(walk(&mut codes, &stack, 0).0, frames, "{words}");
    }
}

/// A stack of many frames that take many reads has none left for some, which the next walk of it decodes.
#[test]
fn what_fails_or_is_guessed_for_lack_of_reads_is_not_remembered() {
    let call = [&[0xe8][..], &(-3006_i32).to_le_bytes()].concat();
    for after in [&[UD2][..], &[POP_RBX, RET]] {
        // It calls itself. Each frame takes 3,000 reads, and a stack has 16,384.
        let function = function(&[&[0x90; 3000], PUSH_RBX, &call], after);
        let mut codes = function.codes(function.direct_call());
        codes.calls.insert(IP, function.direct_call_before(IP));
        let mut words = [0, IP].repeat(10);
        words.extend([0, CALLER]);
        let all = (12, 0, End::Complete);
        assert_ne!(walk(&mut codes, &words, 0), all);
        assert_ne!(walk(&mut codes, &words, 0), all);
        assert_eq!(walk(&mut codes, &words, 0), all);
    }
}

#[test]
fn what_is_decoded_without_some_of_the_code_or_a_rule_is_not_remembered() {
    let mut codes = function(&[PUSH_RBX], &[JE_2, POP_RBX, RET]).codes(INDIRECT);
    assert_eq!(walk(&mut codes, &[0, CALLER], 0), GUESSED);
    // Where the branch leads, the function returns, too, but pops nothing.
    codes.text.as_mut().unwrap().1.extend(RET);
    assert_eq!(walk(&mut codes, &[0, CALLER], 0), CUT);
    // A failure that takes many reads.
    let function = function(&[PUSH_RBX], &[UD2]);
    let mut codes = function.codes(function.direct_call());
    codes
        .calls
        .insert(NOT_NOW, function.direct_call_before(NOT_NOW));
    let mut words = vec![0; 1000];
    assert_eq!(walk(&mut codes, &words, 0), CUT);
    assert!(!codes.decoded.is_empty());
    codes.decoded.clear();
    words[1] = NOT_NOW;
    assert_eq!(walk(&mut codes, &words, 0), CUT);
    assert!(codes.decoded.is_empty());
}

/// The number of words up to the return address after one was pushed, and these instructions; [`None`]: the stack pointer is
/// not known.
#[test]
fn instructions_move_the_stack_pointer_by_what_they_push() {
    for (instructions, index) in [
        (&[0x41, 0x55][..], Some(2)),                              // push %r13
        (&[0xff, 0x30], Some(2)),                                  // push (%rax)
        (&[0x6a, 1, 0x68, 1, 0, 0, 0], Some(3)),                   // push $1, twice
        (&[0x9c, 0x9d, 0x9c], Some(2)),                            // pushf; popf; pushf
        (&[0x0f, 0xa0, 0x0f, 0xa8, 0x0f, 0xa9], Some(2)),          // push %fs; push %gs; pop %gs
        (&[0x50, 0x8f, 0x00], Some(1)),                            // push %rax; pop (%rax)
        (&[0x48, 0x83, 0xfc, 16], Some(1)),                        // cmp $16, %rsp
        (&[0x49, 0x83, 0xec, 16], Some(1)),                        // sub $16, %r12
        (&[0x49, 0x89, 0xe4, 0x4c, 0x8b, 0xe4], Some(1)),          // mov %rsp, %r12, twice
        (&[0x48, 0x8d, 0x64, 0x24, 0xf0], Some(3)),                // lea -16(%rsp), %rsp
        (&[0x48, 0x89, 0xe5, 0x48, 0x8d, 0x65, 0xf8], Some(2)), // mov %rsp, %rbp; lea -8(%rbp), %rsp
        (&[0x48, 0x8d, 0x6c, 0x24, 8, 0x48, 0x89, 0xec], Some(0)), // lea 8(%rsp), %rbp; mov %rbp, %rsp: to the entry
        (&[0x66, 0x50], None),                                     // push %ax
        (&[0x89, 0xc4], None),                                     // mov %eax, %esp
        (&[0x83, 0xec, 16], None),                                 // sub $16, %esp
        (&[0x8d, 0x64, 0x24, 0xf0], None),                         // lea -16(%rsp), %esp
        (&[0x48, 0x94], None),                                     // xchg %rax, %rsp
        (&[0x48, 0x87, 0x27], None),                               // xchg %rsp, (%rdi)
        (&[0x48, 0x0f, 0x44, 0xe0], None),                         // cmove %rax, %rsp
        (&[0x48, 0x6b, 0xe0, 2], None),                            // imul $2, %rax, %rsp
        (&[0x48, 0x63, 0xe0], None),                               // movslq %eax, %rsp
        (&[0x48, 0xc7, 0xc4, 0, 0, 0, 0], None),                   // mov $0, %rsp
        (&[0xbc, 0, 0, 0, 0], None),                               // mov $0, %esp
        (&[0x48, 0x01, 0xc4], None),                               // add %rax, %rsp
        (&[0x48, 0x2b, 0xe0], None),                               // sub %rax, %rsp
        (&[0xe8, 0, 0, 0, 0], None),                               // call to the next instruction
        (&[0x5c], None),                                           // pop %rsp
        (&[0x80, 0xf4, 0x20], Some(1)),                            // xor $32, %ah
        (&[0x40, 0xb4, 1], None),                                  // mov $1, %spl
        (&[0x40, 0x88, 0xc4], None),                               // mov %al, %spl
        (&[0x40, 0x80, 0xc4, 8], None),                            // add $8, %spl
        (&[0x48, 0x80, 0xc4, 8], None),                            // the same
        (&[0x40, 0x0f, 0x94, 0xc4], None),                         // sete %spl
        (&[0x48, 0x0f, 0xcc], None),                               // bswap %rsp
        (&[0xf3, 0x48, 0x0f, 0xb8, 0xe0], None),                   // popcnt %rax, %rsp
        (&[0x48, 0x0f, 0xc1, 0xc4], None),                         // xadd %rax, %rsp
        (&[0x67, 0x48, 0x8d, 0x64, 0x24, 8], None),                // lea 8(%esp), %rsp
        (&[0xc4, 0xe2, 0xf8, 0xf2, 0xe0], None),                   // andn %rax, %rax, %rsp
        (&[0xc4, 0xe2, 0xd8, 0xf3, 0xc8], None),                   // blsr %rax, %rsp
        (&[0xe4, 1], None),                                        // in $1, %al
    ] {
        // mov $0, %ebp: the frame pointer does not say where the return address is.
        let function = function(&[PUSH_RBX, instructions, &[0xbd, 0, 0, 0, 0]], &[UD2]);
        let found = (0..8).find(|index| function.walk_both(*index)[0] == FOUND);
        assert_eq!(found, index, "{instructions:x?}");
    }
    // It removes arguments: its entry does not say where the caller's stack pointer is.
    let arguments = function(&[PUSH_RBX], &[POP_RBX, &[0xc2, 8, 0]]);
    assert_eq!(arguments.walk_both(1), [CUT, CUT]);
}

/// The caller's frame is left by its frame pointer, which the function has not saved.
#[test]
fn instructions_that_change_the_frame_pointer_are_noticed() {
    let walk = |instruction: &[u8]| {
        let function = Function {
            caller: call(Base::Fp, 16, Saved::No),
            ..function(&[instruction], &[UD2])
        };
        let words = [CALLER, 0, 0, 0, 0x3000];
        function.walk(function.direct_call(), &words, SP + 24)
    };
    for instruction in [
        &[0x48, 0x0f, 0xcd][..],            // bswap %rbp
        &[0xf3, 0x0f, 0xb8, 0xe8],          // popcnt %eax, %ebp
        &[0x66, 0x48, 0x0f, 0x7e, 0xc5],    // movq %xmm0, %rbp
        &[0x0f, 0x7e, 0xc5],                // movd %mm0, %ebp
        &[0x40, 0x0f, 0x94, 0xc5],          // sete %bpl
        &[0x0f, 0xa4, 0xc5, 1],             // shld $1, %eax, %ebp
        &[0x0f, 0xab, 0xc5],                // bts %eax, %ebp
        &[0x0f, 0xba, 0xed, 1],             // bts $1, %ebp
        &[0x0f, 0xb1, 0xc5],                // cmpxchg %eax, %ebp
        &[0x0f, 0xc7, 0xf5],                // rdrand %ebp
        &[0xf3, 0x0f, 0xae, 0xc5],          // rdfsbase %ebp
        &[0xf3, 0x0f, 0x1e, 0xcd],          // rdsspd %ebp
        &[0x0f, 0x50, 0xe8],                // movmskps %xmm0, %ebp
        &[0xf2, 0x0f, 0x2d, 0xe8],          // cvtsd2si %xmm0, %ebp
        &[0x66, 0x0f, 0xd7, 0xe8],          // pmovmskb %xmm0, %ebp
        &[0xf2, 0x0f, 0x38, 0xf1, 0xe8],    // crc32 %eax, %ebp
        &[0x66, 0x0f, 0x3a, 0x16, 0xc5, 0], // pextrd $0, %xmm0, %ebp
        &[0x40, 0xb5, 1],                   // mov $1, %bpl
        &[0x40, 0x8a, 0x28],                // mov (%rax), %bpl
        &[0x40, 0xc6, 0xc5, 1],             // mov $1, %bpl
        &[0x40, 0xc0, 0xe5, 1],             // shl $1, %bpl
        &[0x40, 0xf6, 0xd5],                // not %bpl
        &[0x40, 0xfe, 0xc5],                // inc %bpl
        &[0x40, 0x86, 0xc5],                // xchg %al, %bpl
        &[0x8c, 0xdd],                      // mov %ds, %ebp
        &[0xc5, 0xf9, 0x7e, 0xc5],          // vmovd %xmm0, %ebp
        &[0xc5, 0xf9, 0xd7, 0xe8],          // vpmovmskb %xmm0, %ebp
        &[0xc4, 0xe3, 0xfb, 0xf0, 0xe8, 1], // rorx $1, %rax, %rbp
        &[0xc4, 0xe2, 0xd0, 0xf3, 0xc8],    // blsr %rax, %rbp
        &[0x62, 0xf1, 0x7e, 8, 0x79, 0xe8], // vcvtss2usi %xmm0, %ebp
    ] {
        assert_eq!(
            walk(instruction),
            (2, 0, End::BadAddress),
            "{instruction:x?}"
        );
    }
    for instruction in [
        &[0x0f, 0xc8][..],                           // bswap %eax
        &[0x0f, 0x94, 0xc0],                         // sete %al
        &[0x0f, 0x28, 0xe5],                         // movaps %xmm5, %xmm4
        &[0xf3, 0x0f, 0x7e, 0xec],                   // movq %xmm4, %xmm5
        &[0x66, 0x0f, 0x38, 0, 0xec],                // pshufb %xmm4, %xmm5
        &[0x66, 0x0f, 0x3a, 0x0f, 0xec, 8],          // palignr $8, %xmm4, %xmm5
        &[0xc5, 0xfe, 0x6f, 0xec],                   // vmovdqu %ymm4, %ymm5
        &[0xc4, 0xe2, 0x7d, 0x18, 0xec],             // vbroadcastss %xmm4, %ymm5
        &[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xec],       // vmovaps %zmm4, %zmm5
        &[0x0f, 0xae, 0xe8],                         // lfence
        &[0x0f, 0x1f, 0x6c, 0x25, 0],                // nopl 0(%rbp)
        &[0xf3, 0x0f, 0x1e, 0xfa],                   // endbr64
        &[0x0f, 5, 0x0f, 0xa2],                      // syscall; cpuid
        &[0x40, 0x3a, 0xe8, 0x40, 0x84, 0xed],       // cmp %al, %bpl; test %bpl, %bpl
        &[0xc0, 0xe5, 1, 0xb5, 1, 0x0f, 0x94, 0xc5], // shl $1, %ch; mov $1, %ch; sete %ch
        &[0xf3, 0x48, 0xa5, 0x99, 0xd9, 0xe8],       // rep movsq; cltd; fld1
    ] {
        assert_eq!(walk(instruction), (3, 0, End::Complete), "{instruction:x?}");
    }
}

/// Where both find the return address, but not the caller's frame pointer.
#[test]
fn both_directions_must_find_the_same_frame_pointer() {
    const MOV_RBX_TO_RBP: &[u8] = &[0x48, 0x89, 0xdd];
    for (before, found) in [
        (&[PUSH_RBP, PUSH_RBX, POP_RBX][..], (3, 0, End::Complete)),
        (&[MOV_RBX_TO_RBP, PUSH_RBP], (2, 0, End::BadAddress)),
    ] {
        let function = Function {
            caller: call(Base::Fp, 16, Saved::No),
            ..function(before, &[POP_RBP, RET])
        };
        let words = [SP + 24, CALLER, 0, 0, 0x3000];
        assert_eq!(function.walk(function.direct_call(), &words, 0), found);
    }
}

#[test]
fn a_stack_that_is_aligned_is_left_by_its_frame_pointer() {
    let function = function(&[PUSH_RBP, SET_RBP, ALIGN, SUB_16], &[LEAVE, RET]);
    let words = [0, 0, 0, 0, SP + 96, CALLER];
    assert_eq!(function.walk(INDIRECT, &words, SP + 32), FOUND);
    assert_eq!(function.walk(INDIRECT, &words, SP + 24), CUT);
    let function = Function {
        after: UD2.to_vec(),
        ..function
    };
    assert_eq!(
        function.walk(function.direct_call(), &words, SP + 32),
        FOUND
    );
}

/// The caller's frame is left by the frame pointer that the function has saved.
#[test]
fn the_frame_pointer_of_the_caller_is_restored() {
    let caller = call(Base::Fp, 16, Saved::No);
    for (before, after, words) in [
        (&[][..], &[RET][..], &[CALLER, 0, 0, 0, 0][..]),
        (&[PUSH_RBX], &[POP_RBX, RET], &[0, CALLER, 0, 0, 0]),
        (&[PUSH_RBP], &[POP_RBP, RET], &[SP + 24, CALLER, 0, 0, 0]),
        (&[PUSH_RBP, SET_RBP], &[UD2], &[SP + 24, CALLER, 0, 0, 0]),
    ] {
        let function = Function {
            caller,
            ..function(before, after)
        };
        let direct = function.direct_call();
        let mut words = words.to_vec();
        words[4] = 0x3000;
        let fp = match before {
            [.., SET_RBP] => SP,
            [PUSH_RBP] => 0,
            _ => SP + 24,
        };
        assert_eq!(
            function.walk(direct, &words, fp),
            (3, 0, End::Complete),
            "{before:x?}"
        );
    }
}

/// The kernel's trampoline has pushed three registers and called below the red zone, or at once.
#[test]
fn an_optimised_uprobe_goes_on_in_the_program() {
    let frame = Frame {
        ip: IP,
        sp: SP,
        fp: 5,
    };
    let words = memory(&[(SP + 24, CALLER)]);
    for (last, sp) in [(&[0xc2, 128, 0][..], SP + 160), (&[0xc3], SP + 32)] {
        let mut codes = Codes::new(&[]);
        codes.text = Some((IP, [&[0x58, 0x41, 0x5b, 0x59], last].concat()));
        let probed = frame.probed(&words, &mut codes).unwrap();
        assert_eq!((probed.ip, probed.sp, probed.fp), (CALLER, sp, 5));
        assert!(frame.probed(&memory(&[]), &mut codes).is_none());
    }
    let mut codes = Codes::new(&[]);
    codes.text = Some((IP, vec![0x41, 0x5b, 0x59, 0xc3]));
    assert!(frame.probed(&words, &mut codes).is_none());
}

/// The function that musl's clone() calls does not return, but exits.
#[test]
fn a_thread_of_musl_begins_in_clone() {
    // jne; xor %ebp, %ebp; pop %rdi; call *%r9; mov %eax, %edi; xor %eax, %eax; mov $60, %al; syscall
    const CHILD: [u8; 8] = [0x75, 15, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1];
    const EXIT: [u8; 8] = [0x89, 0xc7, 0x31, 0xc0, 0xb0, 60, 0x0f, 0x05];
    let function = Function {
        caller: Rule::UNKNOWN,
        ..function(&[], &[UD2])
    };
    for (words, exit, found) in [
        ([0, 0, CALLER], EXIT, FOUND),
        ([0, 0, CALLER], CHILD, CUT),
        // It may have been called by another one.
        ([0, 0x4000, CALLER], EXIT, CUT),
        // Or by one that has no rule now, or whose code is absent.
        ([0, NOT_NOW, CALLER], EXIT, GUESSED),
        ([0, ABSENT, CALLER], EXIT, GUESSED),
    ] {
        let mut codes = function.codes(CHILD);
        codes.calls.insert(CALLER + 8, exit);
        codes.calls.insert(0x4000, INDIRECT);
        codes.calls.insert(NOT_NOW, INDIRECT);
        assert_eq!(walk(&mut codes, &words, 0), found);
    }
}

#[test]
fn a_signal_handler_returns_to_what_it_has_interrupted() {
    let mut codes = Codes::new(&[(CALLER, Rule::OUTERMOST)]);
    codes.text = Some((IP, vec![0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05]));
    let [sp, ip, fp] = X86_64.signal.map(|offset| SP.wrapping_add_signed(offset));
    let memory = memory(&[(sp, SP + 512), (ip, CALLER), (fp, 0)]);
    let end = by_rules(&X86_64, registers(0, 8), &memory, &mut codes, USER_END);
    assert_eq!((codes.words.frames(), end), (2, End::Complete));
}

proptest! {
    /// Whatever the instructions are, decoding ends, and leads up the stack.
    #[test]
    fn any_instructions_can_be_decoded(
        before in prop::collection::vec(any::<u8>(), 0..200),
        after in prop::collection::vec(any::<u8>(), 0..200),
        words in prop::collection::vec(prop::sample::select(vec![CALLER, IP, SP, SP + 64, 0]), 64),
        fp in prop::sample::select(vec![0, SP, SP + 40, u64::MAX]),
    ) {
        let function = Function { before, after, caller: Rule::UNKNOWN };
        for call in [function.direct_call(), INDIRECT] {
            let (frames, _, _) = function.walk(call, &words, fp);
            prop_assert!(frames <= words.len() + 1);
        }
    }
}
