// SPDX-License-Identifier: GPL-2.0

//! Call frame information that no linker of a distribution writes: each file is made here.

use stackmap_user::{
    cfi::{learn, File, Machine, Unknown, ARM64, X86_64},
    rule::{Base, Rule, Saved},
};
use std::cell::Cell;

/// Where the file is loaded: not at its own offsets.
const BASE: u64 = 0x40_0000;
const TABLE: usize = 0x1000;
const FRAMES: usize = 0x2000;
/// Two functions with a gap between them.
const FIRST: u64 = 0x3000;
const SECOND: u64 = 0x3020;
const SIZE: u64 = 0x10;
const END: usize = 0x4000;
/// Headers of sections, of which the names are the last bytes of the file.
const SECTIONS: usize = 0x3800;
const NAMES: &[u8] = b"\0.eh_frame\0";

struct Bytes(Vec<u8>);

impl File for Bytes {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        let start = offset as usize;
        bytes.copy_from_slice(
            self.0
                .get(start..start + bytes.len())
                .ok_or(Unknown::Damaged)?,
        );
        Ok(())
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Bytes {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The rule of an address of a function, by its offset.
    fn rule(&self, offset: u64) -> Result<Rule, Unknown> {
        learn(self, &X86_64, offset)
    }
}

/// How a file is made.
struct Made<'a> {
    machine: &'a Machine,
    /// The letters of the augmentation, after the first one.
    letters: &'a str,
    /// The head of the table; none: there is no table.
    head: Option<[u8; 4]>,
    /// The program that both functions have in common.
    common: &'a [u8],
    /// More bytes of augmentation than there are letters for.
    more: usize,
    /// That of the first function.
    program: &'a [u8],
}

const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// cfa = rsp + 8, return address at cfa - 8
const COMMON: &[u8] = &[0x0c, 7, 8, 0x90, 1];
/// cfa = rsp + 48
const PROGRAM: &[u8] = &[0x0e, 48];

const PLAIN: Made<'_> = Made {
    machine: &X86_64,
    letters: "R",
    head: Some(HEAD),
    common: COMMON,
    more: 0,
    program: PROGRAM,
};

impl Made<'_> {
    fn file(&self) -> Bytes {
        let mut file = Bytes(vec![0; END]);
        let load = [BASE, BASE, END as u64, END as u64, 4096];
        file.put(0, b"\x7fELF\x02\x01\x01");
        file.put(18, &self.machine.elf.to_le_bytes());
        file.put(32, &64_u64.to_le_bytes());
        file.put(40, &(SECTIONS as u64).to_le_bytes());
        file.put(54, &[56, 0, 2, 0, 64, 0, 3, 0, 2, 0]);
        file.put(64, &[1, 0, 0, 0, 5, 0, 0, 0]);
        for (nr, word) in load.iter().enumerate() {
            file.put(64 + 16 + 8 * nr, &word.to_le_bytes());
        }
        if let Some(head) = self.head {
            let at = 64 + 56;
            file.put(at, &0x6474_e550_u32.to_le_bytes());
            file.put(at + 8, &(TABLE as u64).to_le_bytes());
            file.put(at + 16, &(BASE + TABLE as u64).to_le_bytes());
            file.put(at + 32, &28_u64.to_le_bytes());
            file.put(TABLE, &head);
        }
        // The section of descriptions, and that of names.
        let second = SECTIONS + 64;
        file.put(second, &1_u32.to_le_bytes());
        for (nr, word) in [BASE + FRAMES as u64, FRAMES as u64, 0x1000]
            .iter()
            .enumerate()
        {
            file.put(second + 16 + 8 * nr, &word.to_le_bytes());
        }
        let names = END - NAMES.len();
        file.put(SECTIONS + 128 + 24, &(names as u64).to_le_bytes());
        file.put(names, NAMES);

        let mut entries = vec![];
        let mut at = FRAMES;
        let mut more = vec![0x1b];
        // What nobody may take for instructions: def_cfa_offset 96.
        more.extend([0x0e, 96].iter().cycle().take(self.more));
        let mut body = vec![0, 0, 0, 0, 1, b'z'];
        body.extend(self.letters.as_bytes());
        body.extend([0, 1, 0x78, self.machine.ra as u8, more.len() as u8]);
        body.extend(&more);
        body.extend(self.common);
        at = file.description(at, &body);
        for (begin, program) in [(FIRST, self.program), (SECOND, &[0x0e, 64])] {
            entries.push((begin, at));
            let mut body = vec![];
            body.extend(((at + 4 - FRAMES) as u32).to_le_bytes());
            body.extend((begin.wrapping_sub(at as u64 + 8) as u32).to_le_bytes());
            body.extend((SIZE as u32).to_le_bytes());
            body.push(0);
            body.extend(program);
            at = file.description(at, &body);
        }
        file.put(TABLE + 8, &2_u32.to_le_bytes());
        for (nr, (begin, description)) in entries.iter().enumerate() {
            let word = |at: u64| (at.wrapping_sub(TABLE as u64) as u32).to_le_bytes();
            file.put(TABLE + 12 + 8 * nr, &word(*begin));
            file.put(TABLE + 16 + 8 * nr, &word(*description as u64));
        }
        file
    }
}

impl Bytes {
    /// Returns where the next one is.
    fn description(&mut self, at: usize, body: &[u8]) -> usize {
        let end = (at + 4 + body.len()).next_multiple_of(4);
        self.put(at, &((end - at - 4) as u32).to_le_bytes());
        self.put(at + 4, body);
        end
    }
}

fn sp(offset: i64) -> Result<Rule, Unknown> {
    Ok(Rule::call(Base::Sp, offset, Saved::No).unwrap())
}

#[test]
fn a_function_has_its_own_rule_by_the_table_and_by_a_search() {
    for head in [Some(HEAD), None] {
        let file = Made { head, ..PLAIN }.file();
        for offset in [0, SIZE - 1] {
            assert_eq!(file.rule(FIRST + offset), sp(48), "{head:?}");
            assert_eq!(file.rule(SECOND + offset), sp(64), "{head:?}");
        }
    }
}

/// It would be the rule of the function before.
#[test]
fn code_between_functions_has_no_rule() {
    for head in [Some(HEAD), None] {
        let file = Made { head, ..PLAIN }.file();
        for offset in [FIRST - 1, FIRST + SIZE, SECOND - 1, SECOND + SIZE] {
            let found = file.rule(offset);
            // A search ends at the zeros after the last description.
            assert!(
                matches!(found, Err(Unknown::NoFunction | Unknown::Damaged)),
                "{offset:#x}: {found:?}"
            );
        }
    }
}

/// The loop in which a retpoline catches speculation.
const TRAP: [u8; 7] = [0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9];

#[test]
fn a_retpoline_has_no_rule_described_or_not() {
    let mut file = PLAIN.file();
    file.put(SECOND as usize - 11, &TRAP);
    for offset in [SECOND - 16, SECOND - 1, SECOND, SECOND + 4] {
        assert_eq!(
            file.rule(offset),
            Err(Unknown::Inexpressible),
            "{offset:#x}"
        );
    }
    assert_eq!(file.rule(SECOND + 5), sp(64));
}

/// A file of which some reads must be done later.
struct Later<'a>(&'a Bytes, Cell<u32>);

impl File for Later<'_> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        let left = self.1.get().checked_sub(1).ok_or(Unknown::Later)?;
        self.1.set(left);
        self.0.read(offset, bytes)
    }

    fn size(&self) -> u64 {
        self.0.size()
    }
}

#[test]
fn a_rule_is_known_once_all_is_read() {
    // def_cfa_offset 16
    let mut file = Made {
        program: &[0x0e, 16],
        ..PLAIN
    }
    .file();
    file.put(FIRST as usize - 7, &TRAP);
    for (offset, want) in [(FIRST, Err(Unknown::Inexpressible)), (SECOND, sp(64))] {
        let reads = (0..).find(|reads| {
            let found = learn(&Later(&file, Cell::new(*reads)), &X86_64, offset);
            assert!([Err(Unknown::Later), want].contains(&found), "{found:?}");
            found == want
        });
        assert!(reads > Some(0));
    }
}

#[test]
fn a_table_of_another_form_is_left_out() {
    for head in [
        [2, 0x1b, 0x03, 0x3b],
        [1, 0x1b, 0x02, 0x3b],
        [1, 0x1b, 0x03, 0x3a],
    ] {
        let mut file = Made {
            head: Some(head),
            ..PLAIN
        }
        .file();
        // It says what is wrong: that the first function is described as the second.
        let second: [u8; 4] = file.0[TABLE + 24..TABLE + 28].try_into().unwrap();
        file.put(TABLE + 16, &second);
        assert_eq!(file.rule(FIRST), sp(48), "{head:?}");
    }
}

#[test]
fn a_table_is_no_longer_than_its_segment() {
    let mut file = PLAIN.file();
    file.put(TABLE + 8, &4_u32.to_le_bytes());
    assert_eq!(file.rule(FIRST), Err(Unknown::Damaged));
}

#[test]
fn augmentation_is_no_part_of_the_program() {
    for more in [1, 2, 6] {
        let common = [COMMON, &[0x0e, 40]].concat();
        let file = Made {
            common: &common,
            program: &[],
            more,
            ..PLAIN
        }
        .file();
        assert_eq!(file.rule(FIRST), sp(40));
    }
}

#[test]
fn a_register_is_restored_to_what_functions_have_in_common() {
    let kept = Rule::call(Base::Sp, 48, Saved::At(-16)).unwrap();
    // The frame pointer at cfa - 16; in the function at cfa - 24, and restored, in both ways.
    let common = [COMMON, &[0x86, 2]].concat();
    for restore in [&[0xc6][..], &[0x06, 6]] {
        let program = [PROGRAM, &[0x86, 3], restore].concat();
        let file = Made {
            common: &common,
            program: &program,
            ..PLAIN
        }
        .file();
        assert_eq!(file.rule(FIRST), Ok(kept));
    }
    // The return address is lost, and then where it was.
    let program = [PROGRAM, &[0x07, 16, 0xd0]].concat();
    let file = Made {
        program: &program,
        ..PLAIN
    }
    .file();
    assert_eq!(file.rule(FIRST), sp(48));
}

/// Other rules of the stack pointer than that its value is the frame's end.
#[test]
fn a_stack_pointer_that_is_not_where_the_frame_ends_is_no_plain_calls() {
    let rule = |of_sp: &[u8]| {
        let program = [PROGRAM, of_sp].concat();
        let file = Made {
            program: &program,
            ..PLAIN
        };
        file.file().rule(FIRST)
    };
    // same_value, val_offset 0 and 1, offset, expression breg7 0, val_expression breg7 0, undefined
    assert_eq!(rule(&[0x08, 7]), sp(48));
    assert_eq!(rule(&[0x14, 7, 0]), sp(48));
    assert_eq!(rule(&[0x14, 7, 1]), Err(Unknown::Inexpressible));
    assert_eq!(rule(&[0x87, 2]), Ok(Rule::COMPUTED));
    assert_eq!(rule(&[0x10, 7, 2, 0x77, 0]), Ok(Rule::COMPUTED));
    assert_eq!(rule(&[0x16, 7, 2, 0x77, 0]), Err(Unknown::Inexpressible));
    assert_eq!(rule(&[0x07, 7]), Err(Unknown::Inexpressible));
    // Of another register.
    assert_eq!(rule(&[0x14, 3, 1]), sp(48));
}

/// By data alignments of -8.
#[test]
fn a_return_address_on_arm64_is_in_its_register_or_beside_the_frame_pointer() {
    let lettered = |letters: &str, program: &[u8]| {
        let made = Made {
            machine: &ARM64,
            letters,
            // cfa = sp
            common: &[0x0c, 31, 0],
            more: 0,
            head: Some(HEAD),
            program,
        };
        learn(&made.file(), &ARM64, FIRST)
    };
    let arm64 = |program: &[u8]| lettered("R", program);
    let call = |base, offset, saved| Ok(Rule::call(base, offset, saved).unwrap());
    let entry = call(Base::Sp, 0, Saved::No);
    let saved = call(Base::Sp, 48, Saved::At(-48));
    // x29 at cfa - 48, x30 at cfa - 40
    let record = [0x0e, 48, 0x9d, 6, 0x9e, 5];
    let after_record = |program: &[u8]| arm64(&[&record, program].concat());
    for (found, want) in [
        (arm64(&[]), entry),
        (arm64(&[0x0e, 16]), sp(16)),
        (after_record(&[]), saved),
        (
            after_record(&[0x0d, 29]),
            call(Base::Fp, 48, Saved::At(-48)),
        ),
        (after_record(&[0x0d, 19]), Ok(Rule::tracked(19))),
        (after_record(&[0xdd, 0xde, 0x0e, 0]), entry),
        // x30 alone: as far above; far away
        (after_record(&[0xdd]), call(Base::Sp, 48, Saved::At(40))),
        (arm64(&[0x9e, 128, 2]), Ok(Rule::COMPUTED)),
        // x30 elsewhere; x29 alone; in the caller's frame
        (after_record(&[0x9e, 1]), Ok(Rule::COMPUTED)),
        (after_record(&[0xde]), Ok(Rule::COMPUTED)),
        (arm64(&[0x11, 30, 0x7f]), Ok(Rule::COMPUTED)),
        (arm64(&[0x11, 29, 0x7f, 0x11, 30, 0x7e]), Ok(Rule::COMPUTED)),
        // undefined x30; x29
        (arm64(&[0x07, 30]), Ok(Rule::OUTERMOST)),
        (arm64(&[0x07, 29]), Err(Unknown::Inexpressible)),
        // x0 is restored, and x4 is, too
        (after_record(&[0x80, 1]), Ok(Rule::HANDLER)),
        (after_record(&[0x80, 1, 0x84, 2]), saved),
        // That of the stubs of x86-64.
        (
            arm64(&[
                0x0f, 11, 0x8f, 8, 0x8e, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
            ]),
            Err(Unknown::Inexpressible),
        ),
    ] {
        assert_eq!(found, want);
    }
    // AARCH64_negate_ra_state, and with_pc
    for signs in [0x2c, 0x2d] {
        assert_eq!(after_record(&[signs]), saved);
        let program = &[signs];
        let file = Made { program, ..PLAIN }.file();
        assert_eq!(file.rule(FIRST), Err(Unknown::Inexpressible));
    }
    // Signed with the second key; memory that is tagged; both; another letter.
    for (letters, is_known) in [("BR", true), ("RG", true), ("BRG", true), ("RX", false)] {
        let found = lettered(letters, &record);
        assert_eq!(found == saved, is_known, "{letters}: {found:?}");
    }
    // A file of another machine.
    assert_eq!(learn(&PLAIN.file(), &ARM64, FIRST), Err(Unknown::NoElf));
}

#[test]
fn a_program_has_a_largest_number_of_steps() {
    let many = |nr| {
        let mut program = PROGRAM.to_vec();
        program.resize(nr, 0);
        // Each of these is a nop: a description may be longer than the part with functions.
        let mut made = Made {
            program: &program[..16],
            ..PLAIN
        }
        .file();
        let at = made.0.len();
        made.0.resize(at + nr + 64, 0);
        // The description of the first function moves after all else.
        let end = made.0.len() as u64;
        made.put(64 + 32, &end.to_le_bytes());
        let mut body = vec![];
        body.extend(((at + 4 - FRAMES) as u32).to_le_bytes());
        body.extend((FIRST.wrapping_sub(at as u64 + 8) as u32).to_le_bytes());
        body.extend((SIZE as u32).to_le_bytes());
        body.push(0);
        body.extend(&program);
        made.description(at, &body);
        made.put(TABLE + 16, &((at - TABLE) as u32).to_le_bytes());
        made.rule(FIRST)
    };
    assert_eq!(many(9_000), sp(48));
    assert_eq!(many(11_000), Err(Unknown::TooLong));
}

#[test]
fn numbers_may_be_longer_than_they_need() {
    for number in [
        &[48_u8][..],
        &[0xb0, 0x80, 0],
        &[0xb0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
    ] {
        let program = [&[0x0e], number].concat();
        let file = Made {
            program: &program,
            ..PLAIN
        }
        .file();
        assert_eq!(file.rule(FIRST), sp(48), "{number:x?}");
    }
    // More than 64 bits.
    let program = [
        0x0e, 0xb0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2,
    ];
    let file = Made {
        program: &program,
        ..PLAIN
    }
    .file();
    assert_eq!(file.rule(FIRST), Err(Unknown::Damaged));
}
