// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures whose user stacks lead to files that somebody made to do harm: what a file says of itself
//! costs that file its names, and nothing else.

use super::tool::{data, stdout, Dir, Members};
use stackmap::{
    capture::member,
    stack_map_bin::{self, Order, Stack},
    stacks::Stacks,
};
use std::{fs, process::Command};

const BUILD_ID: &str = "00112233445566778899aabbccddeeff00112233";
const FILE: u64 = 1 << 63;
const INDEX_SHIFT: u32 = 40;
/// How a stack ends that is complete.
const COMPLETE: u64 = 1;

/// A file in a directory of its own, and a capture with stacks that lead to it.
struct Hostile {
    dir: Dir,
}

impl Hostile {
    /// Assembles a file whose function `victim` is at its label.
    fn new(source: &str) -> Self {
        let dir = Dir::new();
        dir.put("source.s", source);
        let build_id = format!("-Wl,--build-id=0x{BUILD_ID}");
        let output = Command::new("cc")
            .current_dir(&dir)
            .args(["-shared", "-nostdlib", &build_id, "-o", "file", "source.s"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        Self { dir }
    }

    /// Where `victim` is in the file.
    fn victim(&self) -> u64 {
        use object::{Object, ObjectSection, ObjectSymbol};
        let content = fs::read(self.dir.at("file")).unwrap();
        let elf = object::File::parse(&content[..]).unwrap();
        let mut symbols = elf.symbols();
        let victim = symbols
            .find(|symbol| symbol.name() == Ok("victim"))
            .unwrap();
        let text = elf.section_by_name(".text").unwrap();
        victim.address() - text.address() + text.file_range().unwrap().0
    }

    /// Returns the first stack, a line for each frame, of a capture whose stacks have these frames in the file.
    fn dumped(&self, offsets: &[u64]) -> Vec<String> {
        let [file, path] = ["file", "capture"].map(|name| self.dir.at(name));
        let mut capture = Members::read(data("user.data"));
        let stacks = &capture.members[member::STACK_MAP_USER_BIN];
        let stacks = Stacks::read_user(&stacks[..], "").unwrap();
        let frames = offsets
            .iter()
            .map(|offset| FILE | 2 << INDEX_SHIFT | offset);
        let words: Vec<_> = frames.chain([COMPLETE]).collect();
        let led = stacks.iter().map(|stack| Stack {
            ips: &words,
            ..stack
        });
        let mut bin = Vec::new();
        stack_map_bin::write_user(&mut bin, Order::Little, stacks.load_id(), led).unwrap();
        let size = fs::metadata(&file).unwrap().len();
        let binaries = format!("2 {BUILD_ID} 0:1 1 {size} {file}\n").into_bytes();
        let kept = "stack_map_bin stack_map_stat kallsyms modules";
        let kept = kept.split(' ');
        capture
            .members
            .retain(|name, _| kept.clone().any(|of| of == name));
        for (name, content) in [
            (member::STACK_MAP_USER_BIN, bin),
            (member::BINARIES, binaries),
        ] {
            capture.members.insert(name.to_owned(), content);
        }
        capture.write(&path);
        let text = stdout(format!("dump --user --top 1 {path}"));
        let frames = text.lines().filter_map(|line| line.trim().split_once("] "));
        frames.map(|(_, frame)| frame.to_owned()).collect()
    }
}

/// A function with debug information: `dies` is what is in it, and `line` what its line program does
/// before its only row.
fn with_debug_information(dies: &str, line: &str) -> String {
    format!(
        "
        .text
        .globl victim
        .type victim, @function
        victim: .fill 256, 1, 0x90
        .size victim, . - victim
        .type other, @function
        other: .fill 16, 1, 0x90
        .size other, . - other

        .section .debug_abbrev, \"\", @progbits
        .byte 1, 0x11, 1, 0x11, 1, 0x12, 7, 0x10, 0x17, 0, 0
        .byte 2, 0x2e, 1, 3, 8, 0x11, 1, 0x12, 7, 0, 0
        .byte 3, 0x1d, 1, 0, 0
        .byte 0

        .section .debug_info, \"\", @progbits
        .long info_end - info
        info: .short 4
        .long 0
        .byte 8
        .byte 1
        .quad victim, 272
        .long 0
        .byte 2
        .string \"victim\"
        .quad victim, 256
        {dies}
        .byte 0, 0
        info_end:

        .section .debug_line, \"\", @progbits
        .long line_end - line
        line: .short 4
        .long program - header
        header: .byte 1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1
        .byte 0
        .string \"victim.c\"
        .byte 0, 0, 0, 0
        program: .byte 0, 9, 2
        .quad victim
        {line}
        .byte 1, 2, 0x80, 2, 0, 1, 1
        line_end:\n"
    )
}

#[test]
fn debug_information_of_a_file_is_shown_unless_it_cannot_be_read() {
    // What reads it crashes, or panics: the frames have the names of the symbols.
    let nested = ".fill 1000000, 1, 3\n.fill 1000000, 1, 0";
    // A file that the header does not have.
    let file = ".byte 4, 77";
    for (dies, line, shown) in [("", "", " (victim.c:1)"), (nested, "", ""), ("", file, "")] {
        let hostile = Hostile::new(&with_debug_information(dies, line));
        let victim = hostile.victim();
        let frames = hostile.dumped(&[victim + 4, victim + 260]);
        let want = format!("victim+0x4/0x100 [file]{shown}");
        assert_eq!(frames, [&want, "other+0x4/0x10 [file]"], "{dies} {line}");
    }
}
