// SPDX-License-Identifier: GPL-2.0

//! Rules, and the table that they are kept in.

use proptest::prelude::*;
use stackmap_user::{
    cfi::{learn, Unknown, X86_64},
    rule::{Base, Rule, RuleKind, Saved},
    rules::{Rules, Set, Site, INDICES, SETS},
    Bytes,
};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const SP: u64 = 0x7fff_0000;
const FP: u64 = 0x7fff_1000;

fn table() -> Rules {
    Rules::new((0..SETS).map(|_| Set::default()).collect()).unwrap()
}

/// Sites of one set: it has four.
fn site(nr: u64) -> Site {
    Site::new(1, 7 + nr * SETS as u64).unwrap()
}

/// A rule that identifies its site.
fn rule_of(nr: u64) -> Rule {
    Rule::call(Base::Sp, (nr as i64 % 30000) * 8, Saved::No).unwrap()
}

#[test]
fn a_table_has_its_number_of_sets() {
    assert!(Rules::new(Vec::new()).is_none());
    assert!(Rules::new((0..SETS / 2).map(|_| Set::default()).collect()).is_none());
}

#[test]
fn what_is_put_is_known_until_it_is_forgotten() {
    let rules = table();
    // The first tag is 0.
    for (one, other) in [(0, 1), (17, 18)] {
        assert_eq!(rules.get(site(one)), None);
        rules.put(site(one), Rule::SIGNAL);
        rules.put(site(other), Rule::UNKNOWN);
        assert_eq!(rules.get(site(one)), Some(Rule::SIGNAL));
        assert_eq!(rules.get(site(other)), Some(Rule::UNKNOWN));
        rules.put(site(one), Rule::OUTERMOST);
        assert_eq!(rules.get(site(one)), Some(Rule::OUTERMOST));
        rules.forget();
        assert_eq!((rules.get(site(one)), rules.get(site(other))), (None, None));
    }
}

#[test]
fn all_sets_are_forgotten() {
    let rules = table();
    let sites = || (0..SETS as u64).map(|offset| Site::new(0, offset).unwrap());
    sites().for_each(|site| rules.put(site, Rule::SIGNAL));
    rules.forget();
    assert!(sites().all(|site| rules.get(site).is_none()));
}

#[test]
fn a_site_behind_another_is_in_the_same_file() {
    for (offset, bytes) in [(0, 0), (0x1000, 0x1000), (0x1000, 0x1fff), (0xf000, 0x1234)] {
        let site = Site::new(5, offset).unwrap();
        assert_eq!(Some(site.after(bytes)), Site::new(5, offset + bytes));
    }
}

#[test]
fn a_full_set_makes_room() {
    let rules = table();
    for nr in 0..100 {
        rules.put(site(nr), rule_of(nr));
        assert_eq!(rules.get(site(nr)), Some(rule_of(nr)));
        let known = (0..=nr).filter(|nr| rules.get(site(*nr)).is_some());
        assert_eq!(known.count(), (nr + 1).min(4) as usize);
    }
}

#[test]
fn a_site_is_an_offset_in_one_file() {
    const LAST: u64 = (1 << 32) - 1;
    assert_eq!(Site::new(0, LAST + 1), None);
    assert_eq!(Site::new(INDICES, 0), None);
    let mut sites = vec![Site::new(0, 0).unwrap()];
    for index in [0, 1, 2, 1 << 17, INDICES - 2, INDICES - 1] {
        for offset in [0, 1, 0x4f1a, 0x4f1b, 0x7fff, 0x8000, LAST - 0x4f1b, LAST] {
            let site = Site::new(index, offset).unwrap();
            let others = [index.saturating_sub(1), index + 1, 0, INDICES - 1];
            assert!(site.is_in(index));
            assert!(others
                .iter()
                .all(|other| *other == index || !site.is_in(*other)));
            if (index, offset) == (0, 0) {
                continue;
            }
            let rules = table();
            rules.put(site, Rule::SIGNAL);
            assert_eq!(rules.get(site), Some(Rule::SIGNAL));
            for other in &sites {
                assert_eq!(rules.get(*other), None, "{site:?} {other:?}");
            }
            sites.push(site);
        }
    }
    let first = Site::new(3, 40).unwrap();
    assert_eq!(Some(first.after(2)), Site::new(3, 42));
}

#[test]
fn one_offset_in_many_files_is_in_many_sets() {
    let rules = table();
    let site = |index| Site::new(index, 0x1234).unwrap();
    (0..10_000).for_each(|index| rules.put(site(index), Rule::SIGNAL));
    assert!((0..10_000).all(|index| rules.get(site(index)).is_some()));
}

#[test]
fn what_was_read_across_eras_is_read_again() {
    let rules = table();
    let mut round = 0;
    let found = rules.in_one_era(|stays| {
        round += 1;
        match round {
            // It notices itself, or not at all.
            1 => {
                rules.begin_era();
                stays().then_some(1)
            }
            2 => {
                assert!(stays());
                rules.begin_era();
                (!stays()).then_some(2)
            }
            _ => stays().then_some(3),
        }
    });
    assert_eq!((found, round), (Some(3), 3));
    rules.put(site(1), Rule::SIGNAL);
    // What is not found for another reason is not looked for again.
    let mut rounds = 0;
    let found = rules.in_one_era(|stays| {
        rounds += 1;
        stays().then_some(()).and(None::<u32>)
    });
    assert_eq!((found, rounds), (None, 1));
    assert!(rules.get(site(1)).is_some());
    rules.begin_era();
    assert!(rules.get(site(1)).is_none());
}

/// One set, so that readers and writers meet.
#[test]
fn no_site_has_the_rule_of_another_while_both_are_put() {
    let (rules, done) = (table(), AtomicBool::new(false));
    thread::scope(|scope| {
        for first in 0..2 {
            let (rules, done) = (&rules, &done);
            scope.spawn(move || {
                for round in 0..200_000 {
                    let nr = 1 + first + 2 * (round % 8);
                    rules.put(site(nr), rule_of(nr));
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        while !done.load(Ordering::Relaxed) {
            for nr in 1..=16 {
                if let Some(found) = rules.get(site(nr)) {
                    assert_eq!(found, rule_of(nr), "site {nr}");
                }
            }
        }
    });
}

#[test]
fn offsets_that_are_too_large_have_no_rule() {
    for offset in [
        4,
        8 * ((1 << 17) - 1024),
        -8 * 1025,
        i64::MAX & !7,
        i64::MIN,
    ] {
        assert_eq!(Rule::call(Base::Sp, offset, Saved::No), None, "{offset}");
    }
    for saved in [8 << 8, -(8 << 8), -12, 0] {
        assert_eq!(Rule::call(Base::Fp, 16, Saved::At(saved)), None, "{saved}");
    }
    assert_eq!(Rule::call(Base::Fp, 16, Saved::AtFp), None);
    assert_eq!(Rule::tracked(0).kind(), RuleKind::Tracked(0));
    for (offset, by, fits) in [
        (8 * 1023, 8 * 63, true),
        (-8 * 1024, 0, true),
        (8 * 1024, 0, false),
        (0, 8 * 64, false),
        (0, 8 << 16, false),
        (0, -8, false),
        (0, 4, false),
    ] {
        let rule = Rule::aligned(Base::Sp, offset, by, Saved::No);
        let kept = (SP.wrapping_add_signed(offset), by as u64);
        let want = fits.then_some((RuleKind::Aligned, kept));
        let found = rule.map(|rule| (rule.kind(), rule.kept(SP, FP)));
        assert_eq!(found, want, "{offset} {by}");
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
    for name in ["go", "go-module", "go-relocated"] {
        assert_eq!(seed(name), call(Base::Sp, 32, Saved::At(-16)), "{name}");
    }
    assert_eq!(seed("outermost"), Ok(Rule::OUTERMOST));
    assert_eq!(seed("signal"), Ok(Rule::SIGNAL));
    for name in ["index", "stored", "register"] {
        assert_eq!(seed(name), Ok(Rule::COMPUTED), "{name}");
    }
}

/// A file without a table, whose descriptions take turns with this number of CIEs and are of functions there.
fn static_file(heads: usize, descriptions: usize, (begin, size): (u64, u64)) -> Vec<u8> {
    const START: usize = 512;
    // Of version 1, without augmentation; the return address is register 16.
    const HEAD: [u8; 16] = [12, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0, 0, 0];

    let mut file = vec![0; START];
    let names = b"\0.eh_frame\0";
    for _ in 0..heads {
        file.extend_from_slice(&HEAD);
    }
    for nr in 0..descriptions {
        let id = file.len() + 4;
        let head = START + nr % heads * HEAD.len();
        file.extend_from_slice(&20_u32.to_le_bytes());
        file.extend_from_slice(&((id - head) as u32).to_le_bytes());
        file.extend_from_slice(&begin.to_le_bytes());
        file.extend_from_slice(&size.to_le_bytes());
    }
    let end = file.len();
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01");
    put(18, &[62]);
    // Program headers at 64, section headers at 128, names at 400.
    put(32, &[64]);
    put(40, &[128]);
    put(54, &[56, 0, 1, 0, 64, 0, 3, 0, 2]);
    put(400, names);
    put(64, &[1]);
    put(64 + 32, &end.to_le_bytes());
    put(192, &[1]);
    for at in [16, 24] {
        put(192 + at, &START.to_le_bytes());
    }
    put(192 + 32, &(end - START).to_le_bytes());
    put(256 + 24, &400_usize.to_le_bytes());
    put(256 + 32, &names.len().to_le_bytes());
    file
}

#[test]
fn a_search_ends() {
    let search = |heads, descriptions| {
        let file = static_file(heads, descriptions, (0x10_0000, 1));
        stackmap_user::learn_hostile(&[&[1, 10][..], &file].concat())
    };
    assert_eq!(search(1, 16_000), Err(Unknown::NoFunction));
    assert_eq!(search(1, 17_000), Err(Unknown::TooLong));
    // Four heads are remembered; another counts as eight descriptions more.
    assert_eq!(search(4, 16_000), Err(Unknown::NoFunction));
    assert_eq!(search(5, 1_800), Err(Unknown::NoFunction));
    assert_eq!(search(5, 2_000), Err(Unknown::TooLong));
}

/// Its first address is below its last.
#[test]
fn a_file_that_is_loaded_at_the_end_of_the_address_space_is_refused() {
    let mut file = static_file(1, 1, (0, u64::MAX));
    file[64 + 16..64 + 24].copy_from_slice(&256_u64.wrapping_neg().to_le_bytes());
    file[192 + 16..192 + 24].copy_from_slice(&0_u64.to_le_bytes());
    let found = stackmap_user::learn_hostile(&[&[1, 10][..], &file].concat());
    // What is found there has no length.
    assert_eq!(found, Err(Unknown::NoFunction));
}

/// A file with a table of two functions, and a program that begins between them.
fn file_with_start(functions: [i32; 2], entry: u64) -> Vec<u8> {
    let mut file = static_file(1, 2, (0, 0));
    let table = file.len();
    file.extend([1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 2, 0, 0, 0]);
    for (nr, function) in functions.into_iter().enumerate() {
        // After what they have in common, each of 24 bytes.
        let described = 512 + 16 + 24 * nr as i32;
        let relative = |address: i32| (address - table as i32).to_le_bytes();
        file.extend([relative(function), relative(described)].concat());
        let begin = described as usize + 8;
        file[begin..begin + 8].copy_from_slice(&i64::from(function).to_le_bytes());
        file[begin + 8..begin + 16].copy_from_slice(&16_u64.to_le_bytes());
    }
    file[24..32].copy_from_slice(&entry.to_le_bytes());
    let size = file.len() as u64;
    let mut segment = |nr: usize, kind: u32, at: u64, size: u64| {
        let header = &mut file[64 + 56 * nr..][..56];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        for (field, word) in [(8, at), (16, at), (32, size)] {
            header[field..field + 8].copy_from_slice(&word.to_le_bytes());
        }
    };
    segment(0, 1, 0, size);
    segment(1, 0x6474_e550, table as u64, size - table as u64);
    file[56..58].copy_from_slice(&2_u16.to_le_bytes());
    file
}

#[test]
fn the_first_instructions_of_a_program_are_known_as_such_without_a_description() {
    let found = |functions, entry, at: u8| {
        let file = file_with_start(functions, entry);
        stackmap_user::learn_hostile(&[&[1, at][..], &file].concat())
    };
    // A description that says nothing of where the frame ends has no rule.
    assert_eq!(found([16, 160], 100, 20), Err(Unknown::Inexpressible));
    for at in [100, 101, 159] {
        assert_eq!(found([16, 160], 100, at), Ok(Rule::START), "{at}");
    }
    // Before them, in a function, too far after them.
    assert_eq!(found([16, 160], 100, 99), Err(Unknown::NoFunction));
    assert_eq!(found([16, 160], 100, 160), Err(Unknown::Inexpressible));
    assert_eq!(found([16, 240], 100, 163), Ok(Rule::START));
    assert_eq!(found([16, 240], 100, 164), Err(Unknown::NoFunction));
}

/// As compilers pad it that keep frame pointers: 16 KiB after the last function that is described.
#[test]
fn generated_code_is_told_by_its_padding() {
    let mut file = file_with_start([16, 160], 100);
    file.resize(16_384 + 256, 0x90);
    let size = file.len() as u64;
    file[64 + 32..64 + 40].copy_from_slice(&size.to_le_bytes());
    let rule = |file: &[u8], offset| learn(&Bytes(file), &X86_64, offset);
    let undescribed = Err(Unknown::NoFunction);
    assert_eq!(rule(&file, 16_384 + 100), undescribed);
    // Functions that are aligned to 64 bytes.
    file[16_384 - 4..16_384].fill(0xcc);
    for offset in [16_384, 16_384 + 1, 16_384 + 100] {
        assert_eq!(rule(&file, offset), Ok(Rule::GENERATED), "{offset}");
    }
    assert_eq!(rule(&file, 16_384 - 1), undescribed);
    // To 16 bytes.
    file[16_384 + 12..16_384 + 16].fill(0xcc);
    assert_eq!(rule(&file, 16_384 + 15), Ok(Rule::GENERATED));
    assert_eq!(rule(&file, 16_384 + 16), undescribed);
    // Near to a function.
    file[2048 - 4..2048].fill(0xcc);
    assert_eq!(rule(&file, 2048), undescribed);
}

/// A file with one function that is everywhere, one of whose descriptions cannot be understood.
#[test]
fn other_functions_of_a_file_with_a_strange_description_have_rules() {
    let mut file = static_file(2, 2, (0, u64::MAX));
    // Its version.
    file[512 + 8] = 9;
    let found = stackmap_user::learn_hostile(&[&[1, 10][..], &file].concat());
    assert_eq!(found, Err(Unknown::Damaged));
    // Its return address is in another register.
    file[512 + 8] = 1;
    file[512 + 12] = 17;
    let found = stackmap_user::learn_hostile(&[&[1, 10][..], &file].concat());
    // The other description has no program.
    assert_eq!(found, Err(Unknown::Inexpressible));
}

proptest! {
    #[test]
    fn headers_with_any_numbers_are_understood_or_refused(
        changes in proptest::collection::vec(
            (
                prop_oneof![8_usize..15, 24_usize..40],
                prop_oneof![
                    Just(0_u64), Just(1), Just(512), Just(4096), Just(1 << 63),
                    any::<u64>(), (0_u64..5000).prop_map(u64::wrapping_neg),
                ],
            ),
            1..4,
        ),
        at in any::<u8>(),
    ) {
        let mut file = static_file(1, 3, (0, u64::MAX));
        for (word, number) in changes {
            file[8 * word..8 * word + 8].copy_from_slice(&number.to_le_bytes());
        }
        let _ = stackmap_user::learn_hostile(&[&[1, at][..], &file].concat());
    }

    #[test]
    fn any_file_is_read_in_bounded_time(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = stackmap_user::learn_hostile(&bytes);
    }

    #[test]
    fn a_rule_says_what_it_was_made_of(
        offset in -1024_i64..(1 << 17) - 1024,
        saved in proptest::option::of(1 - (1_i64 << 8)..0),
        by_fp in any::<bool>(),
    ) {
        let base = if by_fp { Base::Fp } else { Base::Sp };
        let rule = Rule::call(base, offset * 8, saved.map_or(Saved::No, |at| Saved::At(at * 8)));
        let rule = Rule::from_bits(rule.unwrap().bits()).unwrap();
        prop_assert_eq!(rule.kind(), RuleKind::Call);
        let end = (if by_fp { FP } else { SP }).wrapping_add_signed(offset * 8);
        prop_assert_eq!(rule.end(SP, FP), end);
        prop_assert_eq!(rule.fp_at(end), saved.map(|at| end.wrapping_add_signed(at * 8)));
        prop_assert_eq!(rule.without_at_fp(), None);
    }

    /// The table knows the last of each site, or nothing of it.
    #[test]
    fn a_table_is_never_wrong(puts in proptest::collection::vec((1_u64..64, 0_i64..100), 0..300)) {
        let rules = table();
        let mut last = HashMap::new();
        for (nr, words) in puts {
            let rule = Rule::call(Base::Sp, words * 8, Saved::No).unwrap();
            rules.put(site(nr), rule);
            last.insert(nr, rule);
        }
        for nr in 0..64 {
            if let Some(found) = rules.get(site(nr)) {
                prop_assert_eq!(Some(&found), last.get(&nr));
            }
        }
    }
}
