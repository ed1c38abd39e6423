// SPDX-License-Identifier: GPL-2.0

//! Rules by the table of functions that Go's linker writes. Real tables are compared in `eh_frame.rs`.

use proptest::prelude::*;
use stackmap_user::{
    cfi::{learn, File, Unknown, X86_64},
    rule::{Base, Rule, Saved},
    Bytes,
};
use std::cell::Cell;

const TABLE: usize = 1024;
const SECTIONS: usize = 128;
const NAMES: &[u8] = b"\0.gopclntab\0.go.module\0";
const NAMES_AT: usize = 512;
const MODULE: usize = 768;
const FUNCTIONS: usize = 0x200;
const DEPTHS: usize = 0x100;
const FUNCTION_NAMES: usize = 0x400;
/// Where these names are.
const GOEXIT: u8 = 48;
const SIGTRAMP: u8 = 63;
const END: usize = 4096;
const RELOCATIONS: usize = 3072;
/// Where the code begins, in the file as in memory.
const TEXT: u64 = 2048;

/// A file of three functions of 16 bytes: one with a frame, one that is outermost, one that writes to the stack pointer.
fn file(version: u8, text: u64) -> Vec<u8> {
    let mut file = vec![0; END];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01");
    put(18, &[62]);
    put(32, &[64]);
    put(40, &SECTIONS.to_le_bytes());
    put(54, &[56, 0, 1, 0, 64, 0, 4, 0, 3]);
    put(64, &[1]);
    put(64 + 32, &END.to_le_bytes());
    for (nr, name, at) in [(1, 1_u32, TABLE), (2, 12, MODULE), (3, 0, NAMES_AT)] {
        put(SECTIONS + 64 * nr, &name.to_le_bytes());
        for field in [16, 24] {
            put(SECTIONS + 64 * nr + field, &at.to_le_bytes());
        }
    }
    put(NAMES_AT, NAMES);
    put(MODULE, &TABLE.to_le_bytes());
    put(MODULE + 176, &TEXT.to_le_bytes());
    put(TABLE, &[version, 0xff, 0xff, 0xff, 0, 0, 1, 8]);
    put(TABLE + 8, &3_u64.to_le_bytes());
    put(TABLE + 24, &text.to_le_bytes());
    put(TABLE + 32, &FUNCTION_NAMES.to_le_bytes());
    put(
        TABLE + FUNCTION_NAMES,
        b"main.main\0runtime.sigpanic\0runtime.asyncPreempt\0runtime.goexit\0runtime.sigtramp\0runtime.retpolineAX\0",
    );
    put(TABLE + 56, &DEPTHS.to_le_bytes());
    put(TABLE + 64, &FUNCTIONS.to_le_bytes());
    // Depth 0 in 4 bytes, 24 in the next 10, 0 in the last 2.
    put(TABLE + DEPTHS + 1, &[2, 4, 48, 10, 47, 2, 0]);
    let flags = if version == 0xf0 { 37 } else { 41 };
    for (nr, flag) in [(0, 0), (1, 1), (2, 2), (3, 0)] {
        let function = 64 + 48 * nr;
        put(TABLE + FUNCTIONS + 8 * nr, &(16 * nr as u32).to_le_bytes());
        put(
            TABLE + FUNCTIONS + 8 * nr + 4,
            &(function as u32).to_le_bytes(),
        );
        put(TABLE + FUNCTIONS + function + 16, &1_u32.to_le_bytes());
        put(TABLE + FUNCTIONS + function + flags, &[flag]);
    }
    put(TABLE + FUNCTIONS + 64 + 48 + 4, &[GOEXIT]);
    file
}

/// The same, with the table in a section of other data, and these relocations.
fn linked_by_c(relocations: &[[u64; 3]]) -> Vec<u8> {
    let mut file = file(0xf0, 0);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(NAMES_AT, b"\0.data.rel.ro\0.rela.dyn\0");
    let size = 24 * relocations.len();
    for (nr, name, at, size) in [(1, 1_u32, TABLE - 64, 512), (2, 14, RELOCATIONS, size)] {
        put(SECTIONS + 64 * nr, &name.to_le_bytes());
        for (field, value) in [(16, at), (24, at), (32, size)] {
            put(SECTIONS + 64 * nr + field, &value.to_le_bytes());
        }
    }
    let words = relocations.iter().flatten();
    let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    put(RELOCATIONS, &bytes);
    file
}

fn rule(file: &[u8], offset: u64) -> Result<Rule, Unknown> {
    learn(&Bytes(file), &X86_64, TEXT + offset)
}

#[test]
fn a_function_has_the_depth_of_each_instruction() {
    let bare = Ok(Rule::call(Base::Sp, 8, Saved::No).unwrap());
    let frame = Ok(Rule::call(Base::Sp, 32, Saved::At(-16)).unwrap());
    // The version says where the flags are; the newest leaves it to another table where the code begins.
    for (version, text) in [(0xf0, TEXT), (0xf1, TEXT), (0xf1, 0)] {
        let file = file(version, text);
        let want = [bare; 4].into_iter().chain([frame; 10]).chain([bare; 2]);
        for (offset, want) in (0..).zip(want) {
            assert_eq!(rule(&file, offset), want, "{offset}");
        }
        assert_eq!(rule(&file, 16), Ok(Rule::OUTERMOST));
        assert_eq!(rule(&file, 32), Err(Unknown::Inexpressible));
        assert_eq!(rule(&file, 48), Err(Unknown::NoFunction));
        let before = learn(&Bytes(&file), &X86_64, TEXT - 1);
        assert_eq!(before, Err(Unknown::NoFunction));
    }
}

#[test]
fn the_last_relocation_of_other_data_leads_to_the_table() {
    const RELATIVE: u64 = 8;
    let last = [TABLE as u64 + 24, RELATIVE, TEXT];
    let around = [
        [TABLE as u64 - 64, RELATIVE, 1],
        last,
        [TABLE as u64 + 448, RELATIVE, 2],
        [TABLE as u64 + 32, 6, 0],
    ];
    let frame = Ok(Rule::call(Base::Sp, 32, Saved::At(-16)).unwrap());
    // One of another kind is no address of the program.
    let other = [last, around[3]];
    for relocations in [&around[..], &around[1..], &around[..2], &[last], &other] {
        assert_eq!(rule(&linked_by_c(relocations), 4), frame);
    }
    for relocations in [&[][..], &around[..1], &around[2..]] {
        assert_eq!(rule(&linked_by_c(relocations), 4), Err(Unknown::NoFunction));
    }
}

/// Where they return to is an instruction that has not been run.
#[test]
fn a_function_that_a_signal_handler_has_called_has_no_rule() {
    for (name, is_plain) in [(0, true), (10, false), (27, false), (28, true), (80, false)] {
        let mut file = file(0xf1, TEXT);
        file[TABLE + FUNCTIONS + 64 + 4] = name;
        assert_eq!(rule(&file, 0).is_ok(), is_plain, "{name}");
    }
}

/// Go's own walk ends in more functions: C, the kernel or a signal has called them.
#[test]
fn a_stack_ends_where_a_goroutine_does() {
    let mut file = file(0xf1, TEXT);
    file[TABLE + FUNCTIONS + 64 + 48 + 4] = SIGTRAMP;
    assert_eq!(rule(&file, 16), Err(Unknown::Inexpressible));
}

#[test]
fn functions_of_c_have_no_depths() {
    let mut file = file(0xf1, TEXT);
    file[TABLE + FUNCTIONS + 64 + 16] = 0;
    // If it were read: depth 7 in 2 bytes, 24 in the next ones.
    file[TABLE + DEPTHS..][..6].copy_from_slice(&[0, 2, 50, 14, 1, 0]);
    for offset in 2..16 {
        assert_eq!(rule(&file, offset), Err(Unknown::NoFunction), "{offset}");
    }
}

/// A file that says of all functions but the first time that they begin elsewhere.
struct Changing<'a>(&'a [u8], Cell<bool>);

impl File for Changing<'_> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        Bytes(self.0).read(offset, bytes)?;
        if offset == (TABLE + FUNCTIONS) as u64 && self.1.replace(true) {
            bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }
}

#[test]
fn a_table_may_change_while_it_is_read() {
    let file = file(0xf1, TEXT);
    let changing = Changing(&file, Cell::new(false));
    assert_eq!(learn(&changing, &X86_64, TEXT), Err(Unknown::Damaged));
}

#[test]
fn another_table_has_no_rules() {
    assert_eq!(rule(&file(0xf2, TEXT), 0), Err(Unknown::NoFunction));
    let mut other = file(0xf1, 0);
    other[MODULE] = 1;
    assert_eq!(rule(&other, 0), Err(Unknown::NoFunction));
    // A function that is longer than its depths.
    let mut short = file(0xf1, TEXT);
    short[TABLE + DEPTHS + 5] = 0;
    assert_eq!(rule(&short, 14), Err(Unknown::NoFunction));
}

proptest! {
    /// Whatever the table is, the reading ends.
    #[test]
    fn any_table_is_read(
        changes in proptest::collection::vec((0..END, any::<u8>()), 1..40),
        offset in 0..64_u64,
        by_c: bool,
    ) {
        let mut file = match by_c {
            true => linked_by_c(&[[TABLE as u64 + 24, 8, TEXT]]),
            false => file(0xf1, TEXT),
        };
        for (at, byte) in changes {
            file[at] = byte;
        }
        if let Ok(rule) = rule(&file, offset) {
            prop_assert_eq!(Rule::from_bits(rule.bits()), Some(rule));
        }
    }
}
