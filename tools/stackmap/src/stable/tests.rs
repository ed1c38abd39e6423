// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ids are the same wherever a kernel lies, and others if anything else is another.

use super::*;
use crate::{
    capture::Manifest,
    stack_map_bin::Stack,
    stacks::Stacks,
    user::{
        binaries::Binaries,
        names::{Names, Places},
        words::Process,
    },
};
use std::collections::HashSet;

/// Where the kernel's functions are, `function_0` to `function_5`, and how long each of them is.
const TEXT: u64 = 0xffff_ffff_8100_0000;
const SIZE: u64 = 0x100;

/// A stack with the id 7 of a kernel with these functions.
fn kernel(ips: &[u64]) -> Loaded {
    let line = |nr| format!("{:x} t function_{nr}\n", TEXT + nr * SIZE);
    let end = format!("{:x} T _etext\n", TEXT + 6 * SIZE);
    loaded(&((0..6).map(line).collect::<String>() + &end), ips)
}

fn loaded(kallsyms: &str, ips: &[u64]) -> Loaded {
    let mut stacks = Stacks::default();
    stacks.push(Stack::example(7, ips)).unwrap();
    Loaded {
        stacks,
        manifest: of_boot(Some("boot")),
        ..Loaded::named(kallsyms)
    }
}

fn of_boot(boot_id: Option<&str>) -> Option<Manifest> {
    let boot_id = boot_id.map(str::to_owned);
    Some(Manifest {
        boot_id,
        ..Manifest::default()
    })
}

#[test]
fn a_return_address_behind_a_function_is_in_it() {
    let (caller, next) = (TEXT + SIZE + 5, TEXT + 3 * SIZE);
    let loaded = kernel(&[]);
    let mut ids = StableIds::new(&loaded);
    // hashlib.blake2b(b"stackmap stack 1\nk" + frames, digest_size=16), where a frame is b"f", module,
    // name and offset; the first frame is what it says.
    for (stack, want) in [
        ([caller, next], "stable b380816a8dcf1b42b150be9bb1e98ad4"),
        ([next, caller], "stable 634c8668b40faca5afed21082457062f"),
    ] {
        assert_eq!(ids.full(&stack).to_string(), want);
    }
}

#[test]
fn what_an_interrupt_met_is_what_it_says() {
    let text = "ffffffff81000000 T _text\nffffffff81000100 T asm_sysvec_apic_timer_interrupt\n\
                ffffffff81000200 T __pfx_one\nffffffff81000210 T one\nffffffff81000300 T _etext\n";
    let loaded = loaded(text, &[]);
    let mut ids = StableIds::new(&loaded);
    let (entry, one) = (0xffff_ffff_8100_0116, 0xffff_ffff_8100_0210);
    let met = ids.full(&[entry, one]);
    assert_eq!(met.to_string(), "stable 9348146f97d67aaed2825dee85bcf0b7");
    // The padding before a function is its own.
    assert_eq!(ids.full(&[entry, one - 3]), met);
}

#[test]
fn a_full_stack_without_a_name_is_of_one_boot() {
    let ips = [TEXT + SIZE + 5, 0xffff_ffff_d000_0000];
    let loaded = kernel(&ips);
    let mut ids = StableIds::new(&loaded);
    let full = ids.full(&ips);
    assert!(!full.stable && full.to_string().starts_with("local "));
    // It has no id of the map. Where it lies is nowhere in it.
    assert_ne!(Some(full), ids.kernel(7));
    assert_eq!(full, ids.full(&[ips[0], ips[1] + 0x1000]));
}

#[test]
fn a_running_kernel_is_of_this_boot() {
    let id = |manifest, stat| {
        let loaded = Loaded {
            manifest,
            stat,
            ..kernel(&[])
        };
        StableIds::new(&loaded).full(&[0xffff_ffff_d000_0000])
    };
    let here = crate::kernel::boot_id();
    let live = id(None, Some(Default::default()));
    assert_eq!(live, id(of_boot(here.as_deref()), None));
    // A file that was copied may be of any boot.
    assert_eq!(id(None, None), id(of_boot(None), None));
    assert!(here.is_none() || live != id(None, None));
}

#[test]
fn names_are_those_of_kallsyms() {
    let rust = "_RNvNtCs1234_6kernel4task7current";
    let of = |name: &str| {
        let text = format!("ffffffff81000000 T {name}\nffffffff81000300 T _etext\n");
        let loaded = loaded(&text, &[0xffff_ffff_8100_0010]);
        let mut ids = StableIds::new(&loaded);
        ids.kernel(7).unwrap().stable_id
    };
    let names = [
        rust,
        "kernel::task::current",
        "one",
        "one.isra.0",
        "one.constprop.0",
    ];
    let ids: HashSet<_> = names.map(of).into_iter().collect();
    assert_eq!(ids.len(), names.len());
}

/// A user stack of these words.
fn user(binaries: &str, words: &[u64]) -> Loaded {
    let mut stacks = Stacks::default();
    stacks.push(Stack::example(9, words)).unwrap();
    let mut names = Names::new(Places::default());
    let map =
        b"7f0000001000 100 LazyCompile:*add a.js:1\n7f0000002000 100 LazyCompile:*add a.js:1\n";
    let process = Process { tgid: 12, start: 3 };
    names.add_perf_map(process, map.to_vec());
    let mut user = User::new(stacks, Binaries::parse(binaries), names);
    user.prime(&mut |_| {});
    Loaded {
        user,
        manifest: of_boot(Some("boot")),
        ..Loaded::default()
    }
}

fn of_user(binaries: &str, words: &[u64]) -> Identity {
    let loaded = user(binaries, words);
    StableIds::new(&loaded).user(9).unwrap()
}

fn file(index: u64, offset: u64) -> u64 {
    1 << 63 | index << 40 | offset
}

const COMPLETE: u64 = 1;
const PROCESS: u64 = 1 << 62 | 3 << 32 | 12;

#[test]
fn a_user_stack_is_known_by_its_files() {
    let stack = |index| [file(index, 0x1234), file(index, 0x5678), COMPLETE];
    let id = of_user("2 00ab 0:1 5 20 /usr/bin/x\n", &stack(2));
    assert!(id.stable);
    // Whatever it is called, and wherever it is.
    let elsewhere = "3 00AB 8:2 77 20 /opt/y (deleted)\n";
    assert_eq!(of_user(elsewhere, &stack(3)), id);
    let by_name = of_user("2 - 0:1 5 20 /usr/bin/x\n", &stack(2));
    assert_eq!(of_user("4 - 9:9 6 20 /x (deleted)\n", &stack(4)), by_name);
    let known = "2 00ab 0:1 5 20 /usr/bin/x\n3 00ac 0:1 5 20 /usr/bin/x\n";
    let others = [
        of_user(known, &stack(3)),
        of_user(known, &[file(2, 0x1235), file(2, 0x5678), COMPLETE]),
        of_user(known, &[file(2, 0x5678), file(2, 0x1234), COMPLETE]),
        of_user(known, &[file(2, 0x1234), file(2, 0x5678), 2]),
        of_user(known, &[file(2, 0x1234), COMPLETE]),
        of_user("2 - 0:1 5 21 /usr/bin/x\n", &stack(2)),
        of_user("2 - 0:1 5 20 /usr/bin/y\n", &stack(2)),
        of_user("", &stack(0)),
        of_user("", &stack(1)),
        by_name,
        id,
    ];
    assert!(others.iter().all(|identity| identity.stable));
    assert_eq!(others.iter().collect::<HashSet<_>>().len(), others.len());
}

#[test]
fn stacks_that_are_read_later_have_the_same_ids() {
    let words = [0x7f00_0000_3000, PROCESS, COMPLETE];
    let order = crate::stack_map_bin::Order::Little;
    let mut file = Vec::new();
    let one = [Stack::example(9, &words)].into_iter();
    crate::stack_map_bin::write_user(&mut file, order, LoadId::new(5), one).unwrap();
    let mut at_once = user("", &words);
    at_once.user.stacks = Stacks::read_user(&file[..], "").unwrap();
    let mut later = user("", &words);
    later.user.unread = Stacks::read_user_ids(&file[..], "", &mut |_| {}).unwrap();
    let ids = [&at_once, &later].map(|loaded| StableIds::new(loaded).user(9).unwrap());
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], of_user("", &words));
}

#[test]
fn generated_code_is_known_by_its_name() {
    let at = |address| of_user("", &[address, PROCESS, COMPLETE]);
    assert!(at(0x7f00_0000_1010).stable);
    assert_eq!(at(0x7f00_0000_1010), at(0x7f00_0000_2020));
    let unknown = [
        at(0x7f00_0000_3000),
        at(0x7f00_0000_3001),
        of_user("", &[0x7f00_0000_3000, PROCESS + 1, COMPLETE]),
        of_user("", &[0x7f00_0000_3000, PROCESS + (1 << 32), COMPLETE]),
        of_user("", &[0x7f00_0000_3000, COMPLETE]),
        // The table of files does not have it.
        of_user("", &[file(9, 0x3000), COMPLETE]),
        of_user("", &[file(8, 0x3000), COMPLETE]),
    ];
    assert!(unknown.iter().all(|identity| !identity.stable));
    assert_eq!(unknown.iter().collect::<HashSet<_>>().len(), unknown.len());
    let mut elsewhere = user("", &[0x7f00_0000_3000, PROCESS, COMPLETE]);
    elsewhere.manifest = of_boot(Some("other"));
    let elsewhere = StableIds::new(&elsewhere).user(9).unwrap();
    assert_ne!(elsewhere, unknown[0]);
}

#[test]
fn a_vdso_is_known_by_its_image() {
    let Some(image) = crate::user::live::vdso() else {
        return;
    };
    let words = [file(0, 0xabc), COMPLETE];
    let by_name = of_user("", &words);
    let mut loaded = user("", &words);
    loaded.user.names.set_vdso(0, image);
    let by_build = StableIds::new(&loaded).user(9).unwrap();
    assert!(by_name.stable && by_build.stable && by_name != by_build);
    let id = loaded.user.build_id(0).unwrap().to_owned();
    assert_eq!(
        of_user(&format!("5 {id} 0:1 5 6 /x\n"), &[file(5, 0xabc), COMPLETE]),
        by_build
    );
}

#[test]
fn there_is_no_id_without_a_stack() {
    let loaded = kernel(&[]);
    let mut ids = StableIds::new(&loaded);
    assert_eq!((ids.kernel(8), ids.user(7)), (None, None));
    assert_eq!(ids.of(Key::of_id(7)), ids.kernel(7));
    assert_eq!(ids.of(Key::of_user_id(7)), None);
    assert_eq!(ids.of(Key::NONE), None);
}
