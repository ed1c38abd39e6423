// SPDX-License-Identifier: MIT OR Apache-2.0

//! Captures whose user stacks lead to files that somebody made to do harm: what a file says of itself
//! costs that file its names, and nothing else.

use stackmap::{
    capture::{member, Capture, Writer},
    stack_map_bin::{self, Order, Stack},
};
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

const BUILD_ID: &str = "00112233445566778899aabbccddeeff00112233";
const FILE: u64 = 1 << 63;
const INDEX_SHIFT: u32 = 40;
/// How a stack ends that is complete.
const COMPLETE: u64 = 1;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// A file in a directory of its own, and a capture with stacks that lead to it.
struct Hostile {
    dir: TempDir,
}

impl Hostile {
    /// Assembles a file whose function `victim` is at its label.
    fn new(source: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("source.s"), source).unwrap();
        let build_id = format!("-Wl,--build-id=0x{BUILD_ID}");
        let output = Command::new("cc")
            .current_dir(dir.path())
            .args(["-shared", "-nostdlib", &build_id, "-o", "file", "source.s"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        Self { dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    /// Where `victim` is in the file.
    fn victim(&self) -> u64 {
        use object::{Object, ObjectSection, ObjectSymbol};
        let content = fs::read(self.file()).unwrap();
        let elf = object::File::parse(&content[..]).unwrap();
        let mut symbols = elf.symbols();
        let victim = symbols
            .find(|symbol| symbol.name() == Ok("victim"))
            .unwrap();
        let text = elf.section_by_name(".text").unwrap();
        victim.address() - text.address() + text.file_range().unwrap().0
    }

    /// A capture whose stacks have these frames in the file.
    fn capture(&self, offsets: &[u64]) -> PathBuf {
        let mut old = Capture::open(&data("user.data")).unwrap();
        let mut bin = Vec::new();
        let stacks = {
            let source = old.member_name(member::STACK_MAP_USER_BIN);
            let input = old.member(member::STACK_MAP_USER_BIN).unwrap();
            stackmap::stacks::Stacks::read_user(input, &source).unwrap()
        };
        let frames = offsets
            .iter()
            .map(|offset| FILE | 2 << INDEX_SHIFT | offset);
        let words: Vec<_> = frames.chain([COMPLETE]).collect();
        let led = stacks.iter().map(|stack| Stack {
            ips: &words,
            ..stack
        });
        stack_map_bin::write_user(&mut bin, Order::NATIVE, stacks.load_id(), led).unwrap();
        let size = fs::metadata(self.file()).unwrap().len();
        let path = self.file();
        let binaries = format!("2 {BUILD_ID} 0:1 1 {size} {}\n", path.display());

        let capture = self.dir.path().join("capture");
        let mut writer = Writer::create(&capture).unwrap();
        let manifest = old.manifest().clone();
        for (name, content) in self.members(&mut old) {
            writer.member(&name, &mut &content[..]).unwrap();
        }
        writer
            .member(member::STACK_MAP_USER_BIN, &mut &bin[..])
            .unwrap();
        writer
            .member(member::BINARIES, &mut binaries.as_bytes())
            .unwrap();
        writer.finish(&manifest).unwrap();
        capture
    }

    /// What stays of a capture.
    fn members(&self, capture: &mut Capture) -> Vec<(String, Vec<u8>)> {
        let names = [
            member::STACK_MAP_BIN,
            member::STAT,
            member::STAT_BEFORE,
            member::KALLSYMS,
            member::MODULES,
        ];
        let mut read = |name: &str| {
            let mut content = Vec::new();
            let mut member = capture.member(name).unwrap();
            member.read_to_end(&mut content).unwrap();
            (name.to_owned(), content)
        };
        names.into_iter().map(&mut read).collect()
    }

    /// The first stack of such a capture, a line for each frame.
    fn dumped(&self, offsets: &[u64]) -> Vec<String> {
        let output = Command::new(env!("CARGO_BIN_EXE_stackmap"))
            .args(["dump", "--user", "--top", "1"])
            .arg(self.capture(offsets))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
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
fn debug_information_of_a_file_is_shown() {
    let hostile = Hostile::new(&with_debug_information("", ""));
    let victim = hostile.victim();
    let frames = hostile.dumped(&[victim + 4, victim + 260]);
    assert_eq!(
        frames,
        [
            "victim+0x4/0x100 [file] (victim.c:1)",
            "other+0x4/0x10 [file]"
        ]
    );
}

/// What reads debug information crashes, or panics: the frames have the names of the symbols.
#[test]
fn debug_information_that_cannot_be_read_costs_nothing_else() {
    let nested = ".fill 1000000, 1, 3\n.fill 1000000, 1, 0";
    // A file that the header does not have.
    let file = ".byte 4, 77";
    for (dies, line) in [(nested, ""), ("", file)] {
        let hostile = Hostile::new(&with_debug_information(dies, line));
        let victim = hostile.victim();
        let frames = hostile.dumped(&[victim + 4, victim + 260]);
        assert_eq!(
            frames,
            ["victim+0x4/0x100 [file]", "other+0x4/0x10 [file]"],
            "{dies} {line}"
        );
    }
}
