// SPDX-License-Identifier: GPL-2.0

//! The files of user stacks, and what each user may use, as in the module: with the facade in place of the kernel.

use crate::{
    binaries::{index_after, Binaries},
    file_table::{Indices, FILES_MAX, FIRST, VDSO, VDSO32},
    rule::Rule,
    rules::{Rules, Set, Site, INDICES, SETS},
    shares::PoolShares,
    shim::{stackmap_binary, stackmap_file_key},
};
use kernel::prelude::*;

const ROOT: u32 = 0;

fn rules() -> Result<Rules> {
    Rules::new((0..SETS).map(|_| Set::default()).collect()).ok_or(EINVAL)
}

fn file(ino: u64) -> stackmap_file_key {
    stackmap_file_key {
        ino,
        ..stackmap_file_key::default()
    }
}

/// A binary with a build-id; without one if it is empty.
fn found(build_id: &[u8]) -> Result<stackmap_binary> {
    let mut found = stackmap_binary {
        build_id_len: 0,
        path_len: 0,
        build_id: [0; 20],
        path: [0; 4096],
    };
    found.build_id[..build_id.len()].copy_from_slice(build_id);
    found.build_id_len = build_id.len() as u32;
    found.path[..4].copy_from_slice(b"/bin");
    found.path_len = 4;
    Ok(found)
}

#[test]
fn the_file_that_came_first_is_forgotten_for_a_new_one() -> Result {
    let (mut binaries, rules, found) = (Binaries::new(FIRST)?, rules()?, found(b"same")?);
    let first = binaries.add(ROOT, &file(0), &found, &rules)?;
    for ino in 1..FILES_MAX as u64 {
        binaries.add(ROOT, &file(ino), &found, &rules)?;
    }
    for ino in 0..5 {
        binaries.add(ROOT, &file(FILES_MAX as u64 + ino), &found, &rules)?;
        assert!(binaries.indices(&file(ino)).is_none());
        assert!(binaries.indices(&file(ino + 1)).is_some());
    }
    assert_eq!((binaries.len(), binaries.files()), (1, FILES_MAX));
    let again = binaries.add(ROOT, &file(0), &found, &rules)?;
    assert_eq!(again.binary, first.binary);
    assert!(again.file > first.file);
    Ok(())
}

#[test]
fn a_file_that_is_met_stays_for_another_turn() -> Result {
    let (mut binaries, rules, found) = (Binaries::new(FIRST)?, rules()?, found(b"same")?);
    for ino in 0..FILES_MAX as u64 {
        binaries.add(ROOT, &file(ino), &found, &rules)?;
    }
    let met = binaries.meet(&file(0)).ok_or(EINVAL)?;
    for ino in 0..FILES_MAX as u64 - 1 {
        binaries.add(ROOT, &file(FILES_MAX as u64 + ino), &found, &rules)?;
    }
    assert!(binaries.indices(&file(0)).is_some());
    assert!(binaries.indices(&file(FILES_MAX as u64 - 1)).is_none());
    binaries.add(ROOT, &file(2 * FILES_MAX as u64), &found, &rules)?;
    assert!(binaries.indices(&file(0)).is_none());
    let again = binaries.add(ROOT, &file(0), &found, &rules)?;
    assert!(again.binary == met.binary && again.file != met.file);
    // If all were met, one goes all the same.
    let all = 0..3 * FILES_MAX as u64;
    let known = all.filter(|ino| binaries.meet(&file(*ino)).is_some());
    assert_eq!(known.count(), FILES_MAX);
    binaries.add(ROOT, &file(u64::MAX), &found, &rules)?;
    assert!(binaries.indices(&file(u64::MAX)).is_some());
    assert_eq!(binaries.files(), FILES_MAX);
    Ok(())
}

#[test]
fn files_are_forgotten_of_the_user_who_has_most() -> Result {
    const OTHERS: u64 = 64;
    let (mut binaries, rules, found) = (Binaries::new(FIRST)?, rules()?, found(b"same")?);
    for ino in 0..OTHERS {
        let user = if ino % 2 == 0 { ROOT } else { 1000 };
        binaries.add(user, &file(ino), &found, &rules)?;
    }
    for ino in 0..2 * FILES_MAX as u64 {
        binaries.add(1001, &file(OTHERS + ino), &found, &rules)?;
    }
    for ino in 0..OTHERS {
        assert!(binaries.indices(&file(ino)).is_some());
    }
    assert_eq!(binaries.files(), FILES_MAX);
    // Another one gets as many, not more.
    let other = |ino: u64| file(4 * FILES_MAX as u64 + ino);
    for ino in 0..2 * FILES_MAX as u64 {
        binaries.add(ROOT, &other(ino), &found, &rules)?;
    }
    let mut own = 0;
    for ino in 0..2 * FILES_MAX as u64 {
        own += u64::from(binaries.indices(&other(ino)).is_some());
    }
    let half = (FILES_MAX as u64 - OTHERS / 2) / 2;
    assert!(own.abs_diff(half) <= OTHERS / 2);
    assert!(binaries.indices(&file(1)).is_some());
    // A reset forgets whose files there were.
    binaries.forget();
    for ino in 0..FILES_MAX as u64 {
        // Fewer than another had before.
        let user = [1000, 1000, 1000, 1002, 1003, 1004, 1005][ino as usize % 7];
        binaries.add(user, &file(ino), &found, &rules)?;
    }
    binaries.meet(&file(0)).ok_or(EINVAL)?;
    binaries.add(ROOT, &other(0), &found, &rules)?;
    assert!(binaries.indices(&file(0)).is_some());
    assert!(binaries.indices(&file(1)).is_none());
    Ok(())
}

#[test]
fn an_eighth_of_the_files_is_roots_however_many_users_there_are() -> Result {
    let (mut binaries, rules, found) = (Binaries::new(FIRST)?, rules()?, found(b"same")?);
    let file_of = |user: u64, nr: u64| file(user << 32 | nr);
    for nr in 0..FILES_MAX as u64 {
        binaries.add(ROOT, &file_of(0, nr), &found, &rules)?;
    }
    for user in 1..300 {
        for nr in 0..100 {
            binaries.add(user, &file_of(user.into(), nr), &found, &rules)?;
        }
    }
    let known = (0..FILES_MAX as u64).filter(|nr| binaries.indices(&file_of(0, *nr)).is_some());
    assert_eq!(known.count(), FILES_MAX / 8);
    assert_eq!(binaries.files(), FILES_MAX);
    Ok(())
}

#[test]
fn a_forgotten_file_without_a_build_id_is_the_same_binary_again() -> Result {
    let (mut binaries, rules) = (Binaries::new(FIRST)?, rules()?);
    let (named, nameless) = (found(b"same")?, found(b"")?);
    let first = binaries.add(ROOT, &file(0), &nameless, &rules)?;
    let other = binaries.add(ROOT, &file(1), &nameless, &rules)?;
    assert!(other.binary != first.binary);
    for ino in 0..FILES_MAX as u64 {
        binaries.add(ROOT, &file(2 + ino), &named, &rules)?;
    }
    assert!(binaries.indices(&file(0)).is_none());
    assert_eq!(
        binaries.add(ROOT, &file(0), &nameless, &rules)?.binary,
        first.binary
    );
    Ok(())
}

#[test]
fn no_rule_is_left_when_indices_are_used_again() -> Result {
    let (mut binaries, rules, found) = (Binaries::new(INDICES - 2)?, rules()?, found(b"same")?);
    let first = Site::new(FIRST, 16).ok_or(EINVAL)?;
    rules.put(first, Rule::UNKNOWN);
    for file_index in INDICES - 2..INDICES {
        let indices = binaries.add(ROOT, &file(file_index.into()), &found, &rules)?;
        assert_eq!(indices.file, file_index);
    }
    let era = rules.era();
    assert!(rules.get(first).is_some());
    // Files stay, and get the first indices.
    let new = binaries.add(ROOT, &file(0), &found, &rules)?;
    assert_eq!(new.file, FIRST + 2);
    assert!(rules.get(first).is_none() && rules.era() != era);
    for file_index in INDICES - 2..INDICES {
        let known = binaries.meet(&file(file_index.into())).ok_or(EINVAL)?;
        assert_eq!(known.file, FIRST + file_index - (INDICES - 2));
    }
    let next = binaries.add(ROOT, &file(1), &found, &rules)?;
    assert_eq!(next.file, FIRST + 3);
    assert_eq!((binaries.len(), binaries.files()), (1, 4));
    Ok(())
}

#[test]
fn no_rule_of_a_forgotten_file_is_kept() -> Result {
    let (mut binaries, rules, found) = (Binaries::new(INDICES - 1)?, rules()?, found(b"same")?);
    let last = binaries.add(ROOT, &file(0), &found, &rules)?;
    let site = Site::new(last.file, 16).ok_or(EINVAL)?;
    binaries.keep(&file(1), site, Rule::UNKNOWN, &rules);
    assert!(rules.get(site).is_none());
    binaries.keep(&file(0), site, Rule::UNKNOWN, &rules);
    assert!(rules.get(site).is_some());
    // Indices begin anew while the rule is being learnt.
    let new = binaries.add(ROOT, &file(1), &found, &rules)?;
    assert_eq!(new.file, FIRST + 1);
    binaries.keep(&file(0), site, Rule::UNKNOWN, &rules);
    assert!(rules.get(site).is_none());
    let again = binaries.meet(&file(0)).ok_or(EINVAL)?;
    let site = Site::new(again.file, 16).ok_or(EINVAL)?;
    binaries.keep(&file(0), site, Rule::UNKNOWN, &rules);
    assert!(again.file != last.file && rules.get(site).is_some());
    Ok(())
}

#[test]
fn a_file_is_the_same_binary_without_its_build_id_at_hand() -> Result {
    let rules = rules()?;
    for build_ids in [[&b"same"[..], &b""[..]], [b"", b"same"]] {
        let mut binaries = Binaries::new(INDICES - 1)?;
        let first = binaries.add(ROOT, &file(0), &found(build_ids[0])?, &rules)?;
        // It is forgotten.
        for ino in 1..=FILES_MAX as u64 {
            binaries.add(ROOT, &file(ino), &found(b"other")?, &rules)?;
        }
        assert!(binaries.indices(&file(0)).is_none());
        let again = binaries.add(ROOT, &file(0), &found(build_ids[1])?, &rules)?;
        assert_eq!(again.binary, first.binary);
    }
    Ok(())
}

#[test]
fn a_reset_gives_new_indices_and_in_the_end_the_first_ones() -> Result {
    let (mut binaries, rules, found) = (Binaries::new(FIRST)?, rules()?, found(b"same")?);
    let first = binaries.add(ROOT, &file(0), &found, &rules)?;
    binaries.forget();
    assert_eq!((binaries.len(), binaries.files()), (0, 0));
    assert!(binaries.get(first.binary).is_none());
    let next = binaries.add(ROOT, &file(0), &found, &rules)?;
    assert!(next.binary != first.binary && next.file != first.file);
    // The largest index that a word can have.
    let last = (1 << 23) - 1;
    let (mut from, mut wrapped) = (next.binary, false);
    while !wrapped {
        let after = index_after(from, 8192);
        wrapped = after < from;
        assert!(wrapped || after == from + 8192);
        assert!(after + 8192 <= last);
        from = after;
    }
    assert_eq!(from, first.binary);
    Ok(())
}

#[test]
fn a_binary_has_its_path_and_its_first_file_until_a_reset() -> Result {
    let (mut binaries, rules, found) = (Binaries::new(FIRST)?, rules()?, found(b"same")?);
    let key = stackmap_file_key { dev: 8, ..file(17) };
    let index = binaries.add(ROOT, &key, &found, &rules)?.binary;
    assert_eq!(
        (binaries.next(0), binaries.next(index + 1)),
        (Some(index), None)
    );
    let binary = binaries.get(index).ok_or(EINVAL)?;
    assert_eq!(
        (binary.file.dev, binary.file.ino, binary.file.size),
        (8, 17, 0)
    );
    assert_eq!(
        (&*binary.build_id, &*binary.path),
        (&b"same"[..], &b"/bin"[..])
    );
    for index in [VDSO, VDSO32] {
        let Indices { binary, file } = Indices::vdso(index);
        assert_eq!((binary, file), (index, index));
        assert!(binaries.get(index).is_none());
    }
    binaries.forget();
    assert_eq!(binaries.next(0), None);
    Ok(())
}

#[test]
fn a_user_who_is_not_root_cannot_use_all_of_what_is_shared() -> Result {
    let shares = PoolShares::new(800)?;
    shares.add(ROOT, 800);
    shares.add(1000, 599);
    assert!(!shares.is_exhausted(1000));
    shares.add(1000, 1);
    assert!(shares.is_exhausted(1000) && !shares.is_exhausted(1001) && !shares.is_exhausted(ROOT));
    shares.add(1001, 100);
    assert!(shares.is_exhausted(1001) && !shares.is_exhausted(ROOT));
    shares.forget();
    assert!(!shares.is_exhausted(1000));
    Ok(())
}
