// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ids are the same wherever a kernel lies, and others if anything else is another.

use super::*;
use crate::{
    capture::Manifest,
    stack_map_bin::Stack,
    stacks::Stacks,
    symbols::{kallsyms::Kallsyms, modules::Modules, Symbols},
    user::{
        binaries::Binaries,
        names::{Names, Places},
        words::Process,
    },
};
use proptest::prelude::*;
use std::collections::HashSet;

/// How long each function is, with the padding behind it.
const SIZE: u64 = 0x100;
/// How many functions the kernel has, and each of its modules.
const NR: u64 = 6;
const MODULES: u64 = 3;

/// A function, and an offset in it: the module is the one behind the kernel, which is 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct In {
    module: u64,
    function: u64,
    offset: u64,
}

/// Where the kernel and its modules lie.
#[derive(Clone, Debug)]
struct Layout(Vec<u64>);

impl Layout {
    fn start(&self, of: In) -> u64 {
        self.0[of.module as usize] + 0x40 + of.function * SIZE
    }

    fn ips(&self, stack: &[In]) -> Vec<u64> {
        let ip = |of: &In| self.start(*of) + of.offset;
        stack.iter().map(ip).collect()
    }

    fn kallsyms(&self) -> Kallsyms {
        let mut text = format!("{:016x} T _text\n", self.0[0]);
        for module in 0..=MODULES {
            for function in 0..NR {
                let of = In {
                    module,
                    function,
                    offset: 0,
                };
                let (start, name) = (self.start(of), name(of));
                text += &format!("{start:016x} t {name}{}\n", bracket(module));
            }
        }
        // The kernel's last function has an end.
        let end = self.start(In {
            module: 0,
            function: NR,
            offset: 0,
        });
        text += &format!("{end:016x} T _etext\n");
        Kallsyms::parse(text.into_bytes(), &Modules::default(), "").unwrap()
    }

    fn loaded(&self, stack: &[In]) -> Loaded {
        loaded(self.kallsyms(), &self.ips(stack))
    }

    fn id(&self, stack: &[In]) -> Identity {
        let loaded = self.loaded(stack);
        StableIds::new(&loaded).kernel(7).unwrap()
    }
}

/// Functions of modules have the names of those of the kernel.
fn name(of: In) -> String {
    format!("function_{}", of.function)
}

fn bracket(module: u64) -> String {
    match module {
        0 => String::new(),
        module => format!("\t[module_{module}]"),
    }
}

fn loaded(kallsyms: Kallsyms, ips: &[u64]) -> Loaded {
    let mut stacks = Stacks::default();
    stacks.push(stack(7, ips)).unwrap();
    Loaded {
        stacks,
        symbols: Symbols {
            kallsyms: Some(kallsyms),
            ..Symbols::default()
        },
        manifest: of_boot(Some("boot")),
        ..Loaded::default()
    }
}

fn of_boot(boot_id: Option<&str>) -> Option<Manifest> {
    let boot_id = boot_id.map(str::to_owned);
    Some(Manifest {
        boot_id,
        ..Manifest::default()
    })
}

fn stack(id: u32, ips: &[u64]) -> Stack<'_> {
    Stack {
        id,
        ref_count: 1,
        ips,
    }
}

fn layouts() -> impl Strategy<Value = Layout> {
    let bases = Just((1..=MODULES).collect::<Vec<_>>()).prop_shuffle();
    (0..0x200_u64, bases, 1..9_u64).prop_map(|(kaslr, order, gap)| {
        let text = 0xffff_ffff_8100_0000 + (kaslr << 21);
        let modules = order
            .iter()
            .map(|at| 0xffff_ffff_c000_0000 + at * gap * 0x1000);
        Layout([text].into_iter().chain(modules).collect())
    })
}

prop_compose! {
    fn frames()(module in 0..=MODULES, function in 0..NR, offset in 1..SIZE) -> In {
        In { module, function, offset }
    }
}

fn stacks() -> impl Strategy<Value = Vec<In>> {
    prop::collection::vec(frames(), 1..12)
}

proptest! {
    #[test]
    fn an_id_does_not_depend_on_addresses(one in layouts(), other in layouts(), stack in stacks()) {
        let id = one.id(&stack);
        prop_assert!(id.stable);
        prop_assert_eq!(id, other.id(&stack));
        let loaded = other.loaded(&[]);
        let mut ids = StableIds::new(&loaded);
        // A full stack is the same stack.
        let ips = other.ips(&stack);
        prop_assert_eq!(ids.full(&ips), id);
        prop_assert_eq!(ids.full(&ips), id);
    }

    #[test]
    fn one_change_makes_another_id(layout in layouts(), stack in stacks(), at: prop::sample::Index) {
        let at = at.index(stack.len());
        let mut ids = HashSet::from([layout.id(&stack)]);
        let mut changed: Vec<Vec<In>> = Vec::new();
        let mut change = |change: fn(&mut In)| {
            let mut other = stack.clone();
            change(&mut other[at]);
            changed.push(other);
        };
        change(|frame| frame.offset = if frame.offset == 1 { 2 } else { frame.offset - 1 });
        change(|frame| frame.function = (frame.function + 1) % NR);
        change(|frame| frame.module = (frame.module + 1) % (MODULES + 1));
        let mut reversed = stack.clone();
        reversed.reverse();
        changed.extend((reversed != stack).then_some(reversed));
        changed.push(stack[1..].to_vec());
        changed.push([&stack[..], &stack[at..=at]].concat());
        let nr_changed = changed.iter().collect::<HashSet<_>>().len();
        ids.extend(changed.iter().map(|stack| layout.id(stack)));
        prop_assert_eq!(ids.len(), 1 + nr_changed);
    }
}

fn fixed() -> Layout {
    Layout(vec![
        0xffff_ffff_8100_0000,
        0xffff_ffff_c000_1000,
        0xffff_ffff_c000_2000,
        0xffff_ffff_c000_3000,
    ])
}

fn at(module: u64, function: u64, offset: u64) -> In {
    In {
        module,
        function,
        offset,
    }
}

#[test]
fn a_return_address_behind_a_function_is_in_it() {
    let end = at(0, 2, SIZE);
    let next = at(0, 3, 0);
    let (caller, layout) = (at(0, 1, 5), fixed());
    assert_eq!(layout.ips(&[end]), layout.ips(&[next]));
    let loaded = layout.loaded(&[]);
    let mut ids = StableIds::new(&loaded);
    let ips = |stack: [In; 2]| layout.ips(&stack);
    // hashlib.blake2b(b"stackmap stack 1\nk" + frames, digest_size=16), where a frame is b"f", module,
    // name and offset; the first frame is what it says.
    for (stack, want) in [
        ([caller, end], "stable b380816a8dcf1b42b150be9bb1e98ad4"),
        ([next, caller], "stable 634c8668b40faca5afed21082457062f"),
    ] {
        assert_eq!(ids.full(&ips(stack)).to_string(), want);
    }
}

#[test]
fn what_an_interrupt_met_is_what_it_says() {
    let text = "ffffffff81000000 T _text\nffffffff81000100 T asm_sysvec_apic_timer_interrupt\n\
                ffffffff81000200 T __pfx_one\nffffffff81000210 T one\nffffffff81000300 T _etext\n";
    let kallsyms = Kallsyms::parse(text.as_bytes().to_vec(), &Modules::default(), "").unwrap();
    let loaded = loaded(kallsyms, &[]);
    let mut ids = StableIds::new(&loaded);
    let (entry, one) = (0xffff_ffff_8100_0116, 0xffff_ffff_8100_0210);
    let met = ids.full(&[entry, one]);
    assert_eq!(met.to_string(), "stable 9348146f97d67aaed2825dee85bcf0b7");
    // The padding before a function is its own.
    assert_eq!(ids.full(&[entry, one - 3]), met);
}

#[test]
fn an_id_of_a_frame_without_a_name_is_of_one_boot() {
    let (layout, known) = (fixed(), [at(0, 1, 5)]);
    let unknown = 0xffff_ffff_d000_0000;
    let ips = [layout.ips(&known)[0], unknown];
    let mut ids = Vec::new();
    for (boot_id, stack_id, load_id) in [
        (Some("boot"), 7, None),
        (Some("other"), 7, None),
        (None, 7, None),
        (Some("boot"), 8, None),
        (Some("boot"), 7, LoadId::new(5)),
    ] {
        let mut file = Vec::new();
        let order = crate::stack_map_bin::Order::Little;
        let one = [stack(stack_id, &ips)].into_iter();
        crate::stack_map_bin::write(&mut file, order, load_id, one).unwrap();
        let loaded = Loaded {
            stacks: Stacks::read(&file[..], "").unwrap(),
            manifest: of_boot(boot_id),
            ..layout.loaded(&[])
        };
        let identity = StableIds::new(&loaded).kernel(stack_id).unwrap();
        assert!(!identity.stable && identity.to_string().starts_with("local "));
        ids.push(identity.stable_id);
        ids.push(StableIds::new(&loaded).full(&ips).stable_id);
    }
    // A full stack has no id of the map, and no load.
    let full = |index: usize| ids[2 * index + 1];
    assert!(full(0) == full(3) && full(0) == full(4));
    let all: HashSet<_> = ids.iter().collect();
    assert_eq!(all.len(), 8);
    // Where it lies is nowhere in it.
    let loaded = layout.loaded(&known);
    let mut ids = StableIds::new(&loaded);
    assert_eq!(ids.full(&ips), ids.full(&[ips[0], unknown + 0x1000]));
}

#[test]
fn a_running_kernel_is_of_this_boot() {
    let id = |manifest, stat| {
        let loaded = Loaded {
            manifest,
            stat,
            ..fixed().loaded(&[])
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
        let kallsyms = Kallsyms::parse(text.into_bytes(), &Modules::default(), "").unwrap();
        let loaded = loaded(kallsyms, &[0xffff_ffff_8100_0010]);
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
    stacks.push(stack(9, words)).unwrap();
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
    let one = [stack(9, &words)].into_iter();
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
    let loaded = fixed().loaded(&[]);
    let mut ids = StableIds::new(&loaded);
    assert_eq!((ids.kernel(8), ids.user(7)), (None, None));
    assert_eq!(ids.of(Key::of_id(7)), ids.kernel(7));
    assert_eq!(ids.of(Key::of_user_id(7)), None);
    assert_eq!(ids.of(Key::NONE), None);
}

#[test]
fn an_id_is_32_digits() {
    let mut number = [0; 16];
    (number[1], number[15]) = (0xa, 0xbc);
    let id = StableId(number);
    let text = "000a00000000000000000000000000bc";
    assert_eq!(id.to_string(), text);
    assert_eq!(serde_json::to_value(id).unwrap(), text);
    for (prefix, fits) in [
        ("000a0000", Some(true)),
        ("000A0000", Some(true)),
        (text, Some(true)),
        ("000a0001", Some(false)),
        ("000a000", None),
        ("000a000g", None),
        ("000a00000000000000000000000000bc0", None),
    ] {
        assert_eq!(
            Prefix::new(prefix).map(|prefix| prefix.fits(id)),
            fits,
            "{prefix}"
        );
    }
}
