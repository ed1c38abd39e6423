// SPDX-License-Identifier: GPL-2.0

//! KUnit tests inside the kernel, with its allocator, RCU and debug checks: of the map, whose larger tests run on
//! the host, in `selftests/map/`; and of the table of files, which is made of the kernel's trees.
//!
//! Compiled only with `CONFIG_KUNIT`.
//!
//! C header: [`include/kunit/test.h`](srctree/include/kunit/test.h)

#[kernel::prelude::kunit_tests(stackmap_map)]
mod tests {
    use crate::map::{Counter, Fallback, Found, Id, Map, ReadSide, Seed, BITS_MIN, MAX_FRAMES};
    use kernel::prelude::*;

    const CAPACITY: u64 = 1 << BITS_MIN;

    /// The smallest map, with one context.
    fn map() -> Result<Map> {
        Map::new(BITS_MIN, 1, Seed::new([1, 2])).ok_or(ENOMEM)
    }

    /// A stack that differs from those of other numbers in its outermost frame only.
    fn stack(number: u64, depth: usize) -> Result<KVec<u64>> {
        let mut frames = KVec::with_capacity(depth, GFP_KERNEL)?;
        for i in 0..depth as u64 {
            frames.push(0xffff_ffff_8100_0000 + i * 64, GFP_KERNEL)?;
        }
        if let Some(outermost) = frames.last_mut() {
            *outermost += number;
        }
        Ok(frames)
    }

    /// Records a stack without pool growth.
    fn record(map: &Map, frames: &[u64]) -> Result<Found, Fallback> {
        let section = ReadSide::enter();
        // SAFETY: A test is one thread, and its map is its own; inside a read-side section.
        unsafe { map.enter(section.inside(), 0) }.get_id(frames)
    }

    /// Records a stack, then grows the pool if needed.
    fn record_and_grow(map: &Map, frames: &[u64]) -> Result<Found, Fallback> {
        let found = record(map, frames);
        if map.wants_growth() && map.grow().is_err() {
            pr_warn!("out of memory for pool growth\n");
        }
        found
    }

    /// Whether `id` is that of these frames, carried by `ref_count` events.
    fn reads_back(map: &Map, id: Id, frames: &[u64], ref_count: u32) -> Result<bool> {
        let mut buffer = KBox::new([0; MAX_FRAMES], GFP_KERNEL)?;
        Ok(map.lookup(id, &mut buffer).is_some_and(|stack| {
            stack.id == id && stack.ref_count == ref_count && buffer[..stack.nr] == *frames
        }))
    }

    #[test]
    fn a_stack_has_one_id_and_reads_back() -> Result {
        let map = map()?;
        for depth in [0, 1, 2, 16, 255, MAX_FRAMES] {
            let frames = stack(7, depth)?;
            let first = record_and_grow(&map, &frames);
            assert!(first.is_ok_and(|found| found.inserted && found.id.get() <= i32::MAX as u32));
            let again = record_and_grow(&map, &frames);
            assert!(again.is_ok_and(|found| !found.inserted));
            assert_eq!(again.map(|found| found.id), first.map(|found| found.id));
            if let Ok(Found { id, .. }) = first {
                assert!(reads_back(&map, id, &frames, 2)?);
            }
        }
        assert_eq!(map.entries(), 6);
        Ok(())
    }

    #[test]
    fn a_full_map_refuses_new_stacks_and_finds_known_ones() -> Result {
        let map = map()?;
        let mut ids = KVec::new();
        for number in 0..CAPACITY {
            if let Ok(found) = record_and_grow(&map, &stack(number, 12)?) {
                ids.push(found.id, GFP_KERNEL)?;
            }
        }
        assert_eq!(ids.len() as u64, CAPACITY);
        for number in CAPACITY..CAPACITY + 100 {
            let refused = record_and_grow(&map, &stack(number, 12)?);
            assert_eq!(refused, Err(Fallback::Full));
        }
        for (number, id) in ids.iter().enumerate() {
            let found = record_and_grow(&map, &stack(number as u64, 12)?);
            assert!(found.is_ok_and(|found| found.id == *id && !found.inserted));
        }
        assert_eq!(u64::from(map.entries()), CAPACITY);
        assert_eq!(map.total(Counter::Inserts), CAPACITY);
        Ok(())
    }

    #[test]
    fn a_pool_without_room_refuses_until_it_has_grown() -> Result {
        let map = map()?;
        let mut refused = None;
        for number in 0..CAPACITY {
            let frames = stack(number, 500)?;
            if let Err(reason) = record(&map, &frames) {
                refused = Some((reason, frames));
                break;
            }
        }
        let Some((reason, frames)) = refused else {
            return Err(ENOSPC);
        };
        assert_eq!(reason, Fallback::Growing);
        assert!(map.wants_growth());
        let bytes = map.pool_bytes();
        assert!(map.grow().is_ok());
        assert!(map.pool_bytes() > bytes);
        assert!(record(&map, &frames).is_ok_and(|found| found.inserted));
        Ok(())
    }

    #[test]
    fn a_pool_at_its_limit_says_so() -> Result {
        let map = map()?;
        let mut reason = None;
        for number in 0..CAPACITY {
            if let Err(refused) = record_and_grow(&map, &stack(number, MAX_FRAMES)?) {
                reason = Some(refused);
                break;
            }
        }
        assert_eq!(reason, Some(Fallback::PoolFull));
        assert!(record_and_grow(&map, &stack(0, MAX_FRAMES)?).is_ok_and(|found| !found.inserted));
        Ok(())
    }

    #[test]
    fn after_a_reset_old_ids_resolve_to_nothing() -> Result {
        let map = map()?;
        let frames = stack(1, 20)?;
        let mut buffer = KBox::new([0; MAX_FRAMES], GFP_KERNEL)?;
        let mut old = KVec::new();
        for _ in 0..10 {
            let found = record(&map, &frames);
            assert!(found.is_ok_and(|found| found.inserted && !old.contains(&found.id)));
            if let Ok(Found { id, .. }) = found {
                assert!(reads_back(&map, id, &frames, 1)?);
                old.push(id, GFP_KERNEL)?;
            }
            assert!(map.reset().is_ok());
            assert_eq!((map.entries(), map.total(Counter::Inserts)), (0, 0));
            assert!(old.iter().all(|id| map.lookup(*id, &mut buffer).is_none()));
        }
        Ok(())
    }

    #[test]
    fn an_export_holds_what_was_there_when_it_began() -> Result {
        let map = map()?;
        for number in 0..100 {
            assert!(record_and_grow(&map, &stack(number, 30)?).is_ok());
        }
        let snapshot = map.snapshot()?;
        for number in 100..200 {
            assert!(record_and_grow(&map, &stack(number, 30)?).is_ok());
        }
        assert_eq!(map.count(&snapshot), Ok(100));
        let mut buffer = KBox::new([0; MAX_FRAMES], GFP_KERNEL)?;
        let (mut nr, mut from) = (0, 0);
        while let Ok(Some(stack)) = map.next(&snapshot, from, &mut buffer) {
            from = stack.next();
            nr += 1;
        }
        assert_eq!(nr, 100);
        assert!(map.reset().is_ok());
        assert!(map.count(&snapshot).is_err());
        Ok(())
    }
}

#[kernel::prelude::kunit_tests(stackmap_binaries)]
mod binaries {
    use crate::{
        shim::{stackmap_binary, stackmap_file_key},
        user::{
            binaries::{index_after, Binaries},
            file_table::{FILES_MAX, FIRST},
            rule::Rule,
            rules::{Rules, Set, Site, INDICES, SETS},
        },
    };
    use kernel::prelude::*;

    const ROOT: u32 = 0;

    fn rules() -> Result<Rules> {
        let mut sets = KVVec::with_capacity(SETS, GFP_KERNEL)?;
        for _ in 0..SETS {
            sets.push(Set::default(), GFP_KERNEL)?;
        }
        Rules::new(sets).ok_or(EINVAL)
    }

    fn file(ino: u64) -> stackmap_file_key {
        stackmap_file_key {
            ino,
            ..stackmap_file_key::zeroed()
        }
    }

    /// A binary with a build-id; without one if it is empty.
    fn found(build_id: &[u8]) -> Result<KBox<stackmap_binary>> {
        let mut found: KBox<stackmap_binary> = KBox::zeroed(GFP_KERNEL)?;
        for (to, from) in found.build_id.iter_mut().zip(build_id) {
            *to = *from;
        }
        found.build_id_len = build_id.len() as _;
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
            let first = binaries.add(ROOT, &file(0), &*found(build_ids[0])?, &rules)?;
            // It is forgotten.
            for ino in 1..=FILES_MAX as u64 {
                binaries.add(ROOT, &file(ino), &*found(b"other")?, &rules)?;
            }
            assert!(binaries.indices(&file(0)).is_none());
            let again = binaries.add(ROOT, &file(0), &*found(build_ids[1])?, &rules)?;
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
}
