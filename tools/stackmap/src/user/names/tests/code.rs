// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names around single instructions.

use super::{
    super::super::{User, MAX_NESTED},
    *,
};
use std::collections::BTreeMap;

/// Code without names, and the offsets of its parts in the file.
struct Code {
    program: Program,
    labels: BTreeMap<String, u64>,
}

impl Code {
    /// Assembles it. Labels are removed, other symbols stay.
    fn new(source: &str) -> Self {
        let program = Program::new();
        let build_id = format!("-Wl,--build-id=0x{}", program.build_id);
        fs::write(program.path("code.s"), source).unwrap();
        let arguments = ["-shared", "-nostdlib", &build_id, "-o", "program", "code.s"];
        run(program.dir.path(), "cc", &arguments);
        let content = fs::read(program.path("program")).unwrap();
        let elf = object::File::parse(&content[..]).unwrap();
        let segments = segments_of(&program.binary()).unwrap();
        let labels = elf.symbols().filter_map(|symbol| {
            let address = symbol.address();
            let behind = |of: &&Segment| (of.vaddr..of.vaddr + of.size).contains(&address);
            let segment = segments.iter().find(behind)?;
            let offset = address - segment.vaddr + segment.offset;
            Some((symbol.name().ok()?.to_owned(), offset))
        });
        let labels: BTreeMap<_, _> = labels.collect();
        let strip = ["--wildcard", "--strip-symbol=label*", "program"];
        run(program.dir.path(), "objcopy", &strip);
        Self { program, labels }
    }

    /// What is `behind` bytes after a label, and whether a signal handler returns there.
    fn at(&self, label: &str, behind: u64, exact: bool) -> (Option<String>, bool) {
        let offset = self.labels[label] + behind;
        let frame = WhichFrame {
            at: at(offset),
            exact,
        };
        let mut names = Names::new(Places::default());
        let table = table(&self.program.binary());
        let function = look_up(&mut names, frame, &table).last().map(|named| {
            let name = named.function.as_deref().unwrap_or_default();
            format!("{name}+{}", named.offset)
        });
        (function, names.is_signal_return(frame))
    }
}

#[test]
fn a_symbol_without_a_size_names_its_own_address() {
    let code = Code::new(
        ".text
        .type sized, @function
        sized: .fill 8, 1, 0x90
        .size sized, . - sized
        .type open, @function
        open: .fill 8, 1, 0x90
        .globl plain
        plain: .fill 8, 1, 0x90
        label: .fill 8, 1, 0x90\n",
    );
    let name = |label, behind, exact| code.at(label, behind, exact).0;
    assert_eq!(name("sized", 7, true).as_deref(), Some("sized+7"));
    assert_eq!(name("sized", 8, false).as_deref(), Some("sized+8"));
    assert_eq!(name("open", 0, true).as_deref(), Some("open+0"));
    assert_eq!(name("open", 1, false).as_deref(), Some("open+1"));
    assert_eq!(name("open", 1, true), None);
    assert_eq!(name("plain", 0, true).as_deref(), Some("plain+0"));
    assert_eq!(name("plain", 2, false), None);
    assert_eq!(name("label", 0, true), None);
}

#[test]
fn signal_handlers_return_to_code_without_a_name() {
    let returns = [
        "0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05",
        "0xb8, 0xad, 0, 0, 0, 0xcd, 0x80",
        "0x58, 0xb8, 0x77, 0, 0, 0, 0xcd, 0x80",
        "0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4",
    ];
    for bytes in returns {
        let code = Code::new(&format!(
            ".text
            .type before, @function
            before: .fill 8, 1, 0x90
            .size before, . - before
            label: .byte {bytes}
            label_end: .fill 64, 1, 0x90\n"
        ));
        // It is called by nothing: what lies before it is not the caller.
        assert_eq!(code.at("label", 0, false), (None, true), "{bytes}");
        assert_eq!(code.at("label", 0, true), (None, true));
        assert_eq!(code.at("label", 1, true), (None, true));
        assert_eq!(code.at("label", 1, false), (None, false));
        assert_eq!(code.at("label_end", 0, true), (None, false));
        let before = Some("before+4".to_owned());
        assert_eq!(code.at("before", 4, false), (before, false));
    }
    // After a system call that does not return.
    let code = Code::new(&format!(
        ".text
        .byte 0x0f, 0x05
        .type __restore_rt, @function
        __restore_rt: .byte {}
        .size __restore_rt, . - __restore_rt\n",
        returns[0]
    ));
    let named = Some("__restore_rt+0".to_owned());
    assert_eq!(code.at("__restore_rt", 0, false), (named, true));
    for name in [
        "__restore_rt",
        "__kernel_rt_sigreturn",
        "__kernel_sigreturn",
    ] {
        let code = Code::new(&format!(".text\n{name}: .fill 64, 1, 0x90\n"));
        let named = Some(format!("{name}+0"));
        assert_eq!(code.at(name, 0, false), (named, true));
        assert!(!code.at(name, 1, false).1);
    }
}

#[test]
fn a_system_call_at_the_end_of_a_function_is_not_in_the_next_one() {
    for (bytes, is_entry) in [
        ("0x0f, 0x05", true),
        ("0xcd, 0x80", true),
        ("0x0f, 0x34", true),
        ("0x90, 0x05", false),
    ] {
        let code = Code::new(&format!(
            ".text
            .type first, @function
            first: .fill 8, 1, 0x90
            .byte {bytes}
            .size first, . - first
            .type second, @function
            second: .fill 8, 1, 0x90
            .size second, . - second\n"
        ));
        let second = (!is_entry).then(|| "second+0".to_owned());
        assert_eq!(code.at("second", 0, true).0, second, "{bytes}");
        assert_eq!(code.at("second", 1, true).0.as_deref(), Some("second+1"));
        assert_eq!(code.at("second", 0, false).0.as_deref(), Some("first+10"));
    }
}

/// Each handler runs before the one that it interrupted has returned.
#[test]
fn what_nested_handlers_interrupted_is_no_return_address() {
    let code = Code::new(
        ".text
        .type before, @function
        before: .fill 8, 1, 0x90
        .size before, . - before
        .type plain, @function
        plain: .fill 8, 1, 0x90
        .size plain, . - plain
        .type __restore_rt, @function
        __restore_rt: .byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05
        .size __restore_rt, . - __restore_rt\n",
    );
    let word = |label: &str, behind| match at(code.labels[label] + behind) {
        At::File { index, offset } => 1 << 63 | u64::from(index) << 40 | offset,
        At::Address { .. } => unreachable!(),
    };
    for handlers in 1..=MAX_NESTED {
        let mut words = vec![word("before", 3)];
        words.extend(vec![word("__restore_rt", 0); handlers]);
        words.extend([word("plain", 0), word("plain", 0), 1]);
        let mut user = User {
            binaries: table(&code.program.binary()),
            names: Names::new(Places::default()),
            ..User::default()
        };
        let each = &mut |see: &mut dyn FnMut(&[u64])| {
            see(&words);
            Ok(())
        };
        user.prime_each(each, &mut |_| {}).unwrap();
        let names = user.stack(&words).flat_map(|frame| user.frames(frame));
        let names: Vec<_> = names.map(|frame| frame.plain()).collect();
        // What called it made its call in what lies before.
        assert_eq!(
            names[names.len() - 3..],
            ["__restore_rt", "plain", "before"]
        );
    }
}
