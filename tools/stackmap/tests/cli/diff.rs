// SPDX-License-Identifier: MIT OR Apache-2.0

//! Differences of captures of a few events.

use super::{
    made::{bin, capture, Text},
    tool::{stdout, Dir},
};
use stackmap::capture::Manifest;

/// Writes a capture of `nr` events, in turn in each of some functions, within `seconds`, and returns its path.
fn of(dir: &Dir, functions: &str, nr: u32, seconds: u64) -> String {
    let functions: Vec<_> = functions.split(' ').collect();
    let event = |number: u32| {
        let id = 1 + number as usize % functions.len();
        let line = |at, what: &str| format!("prog-7 (7) [000] .... 1.{at:06}: {what}\n");
        line(2 * number, "a: x") + &line(2 * number + 1, &format!("<stack_id {id}>"))
    };
    let ips = (0..).map(|number| [0xffff_ffff_8100_0010 + number * 0x100]);
    let ips: Vec<_> = ips.take(functions.len()).collect();
    let stacks = (1..).zip(&ips).map(|(id, ips)| (id, &ips[..]));
    let symbols = ips.iter().zip(&functions);
    let symbols = symbols.map(|(ips, name)| format!("{:x} T {name}\n", ips[0] - 0x10));
    let kallsyms = symbols.collect::<String>() + "ffffffff81100000 T _end\n";
    let text = Text {
        trace: &(1..=nr).map(event).collect::<String>(),
        stack_map_bin: &bin(None, &stacks.collect::<Vec<_>>()),
        kallsyms: kallsyms.as_bytes(),
    };
    let manifest = Manifest {
        duration_ns: seconds * 1_000_000_000,
        ..Manifest::default()
    };
    let path = dir.at(&format!("{}-{nr}.data", functions.join("-")));
    capture(&text, &manifest).write(&path);
    path
}

#[test]
fn clones_of_a_function_are_no_difference() {
    let dir = Dir::new();
    let names = ["foo.isra.0", "foo", "foo.cold foo.part.3", "foo.llvm.123"];
    for names in names.windows(2) {
        let [before, after] = [0, 1].map(|side| of(&dir, names[side], 2, 1));
        for (one, other, name) in [(&before, &after, names[1]), (&after, &before, names[0])] {
            let svg = stdout(format!("diff --flame - {one} {other}"));
            let mut names = name.split(' ');
            let is_shown = names.any(|name| svg.contains(&format!(">{name} (2 events")));
            assert!(is_shown, "{svg}");
            for options in ["", "--of function"] {
                let text = stdout(format!("diff {options} {one} {other}"));
                assert!(text.contains("no share has changed"), "{text}");
            }
        }
    }
}

#[test]
fn a_flame_graph_shows_what_is_compared() {
    let dir = Dir::new();
    let (before, after) = (of(&dir, "foo", 2, 2), of(&dir, "foo", 4, 1));
    for (what, grown) in [
        ("share", "0.00%"),
        ("rate", "+75.00%"),
        ("total", "+50.00%"),
    ] {
        let svg = stdout(format!("diff --compare {what} --flame - {before} {after}"));
        let frame = format!("foo (4 events, 100.00%; {grown})");
        assert!(svg.contains(&frame), "{what}: {svg}");
    }
}
