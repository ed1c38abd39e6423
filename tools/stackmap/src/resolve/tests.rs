// SPDX-License-Identifier: MIT OR Apache-2.0

//! Texts before and after.

use super::*;
use crate::{
    source::Loaded,
    stack_map_bin::{self, LoadId, Order, Stack},
    stacks::Stacks,
};

const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000100 T foo
ffffffff81000200 T _end
ffffffffc0000200 T bar\t[mod]
ffffffffc0000300 T end\t[mod]
";

fn loaded(stacks: &[(u32, &[u64])]) -> Loaded {
    let mut loaded = Loaded {
        slot_bits: Some(4),
        ..Loaded::named(KALLSYMS)
    };
    for (id, ips) in stacks {
        loaded.stacks.push(Stack::example(*id, ips)).unwrap();
    }
    loaded
}

const STACK: &[u64] = &[0xffff_ffff_8100_0110, 0xffff_ffff_c000_0210, 0x1234];

fn resolve(text: &str, format: Format) -> (String, Notes) {
    let mut reload = || Ok(None);
    let mut resolver = Resolver::new(loaded(&[(0x15, STACK), (0x16, &[])]), format, &mut reload);
    let mut out = Vec::new();
    resolver
        .run(text.as_bytes(), None, "text", &mut out)
        .unwrap();
    (String::from_utf8(out).unwrap(), resolver.notes)
}

/// The lines of a text, each of them all that an event says.
fn lines(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines
        .map(|line| format!("a-1 [000] ..... 1.0: {line}"))
        .collect()
}

#[test]
fn an_id_in_a_name_is_not_resolved() {
    for line in [
        "a-1 [000] ..... 1.0: sched_process_exec: filename=./<stack_id 21> pid=1 old_pid=1\n",
        "a-1 [000] ..... 1.0: sched_process_exec: filename=./<stack_id 21>\n",
        "a-1 [000] ..... 1.0: tracing_mark_write: <stack_id 21>\n",
        "a-1 [000] ..... 1.0: <stack_id 21> pid=1\n",
        "  <stack_id 21>-1       [000] .....     1.000000: e: x\n",
        // Of a name with a newline in it.
        "<stack_id 21>\n",
        "x <stack_id 21>\n",
    ] {
        assert_eq!(resolve(line, Format::default()).0, line);
    }
    // A task may be called like the beginning of a line.
    let line = "  e-1 [7] . 1: x-77      [000] .....     1.000000: ";
    let (text, _) = resolve(&format!("{line}<stack_id 21>\n"), Format::default());
    assert!(
        text.starts_with(&format!("{line}<stack trace>\n => foo\n")),
        "{text}"
    );
}

#[test]
fn other_text_is_unchanged() {
    let mut text = b"\xff\xfe <stack_id\n\n".to_vec();
    text.extend(vec![b'y'; 1 << 20]);
    let mut reload = || Ok(None);
    let mut resolver = Resolver::new(loaded(&[]), Format::default(), &mut reload);
    let mut out = Vec::new();
    resolver.run(&text[..], None, "text", &mut out).unwrap();
    assert_eq!(out, text);
}

#[test]
fn nothing_controls_the_terminal() {
    let kallsyms = "ffffffff81000000 T e\x1b[2Jvil\nffffffff81000100 T _end\n";
    let mut loaded = loaded(&[(0x15, &[0xffff_ffff_8100_0010])]);
    loaded.symbols = Loaded::named(kallsyms).symbols;
    let mut reload = || Ok(None);
    let mut resolver = Resolver::new(loaded, Format::default(), &mut reload);
    let mut out = Vec::new();
    let text = "a\x1b]0;x\x07-1 [000] ..... 1.0: e: \u{9b}31m\n\
                \x1b-1 [000] ..... 1.0: <stack_id 21>\n";
    resolver
        .run(text.as_bytes(), None, "text", &mut out)
        .unwrap();
    let want = "a\u{fffd}]0;x\u{fffd}-1 [000] ..... 1.0: e: \u{fffd}31m\n\
                \u{fffd}-1 [000] ..... 1.0: <stack trace>\n => e\u{fffd}[2Jvil\n";
    assert_eq!(String::from_utf8(out).unwrap(), want);
}

/// Stacks as `stack_map_bin` has them in a load of the module.
fn of_load(load_id: u32, stacks: &[(u32, &[u64])]) -> Loaded {
    let mut loaded = loaded(&[]);
    let stacks = stacks.iter().map(|&(id, ips)| Stack::example(id, ips));
    let mut bin = Vec::new();
    stack_map_bin::write(&mut bin, Order::Little, LoadId::new(load_id), stacks).unwrap();
    loaded.stacks = Stacks::read(&bin[..], "stacks").unwrap();
    loaded
}

/// Resolves ids by the stacks of the load 7, where newer stacks are those of `load_id`.
fn resolve_beside(load_id: u32) -> (String, Notes, u32) {
    let mut asked = 0;
    let mut reload = || {
        asked += 1;
        Ok(Some(of_load(load_id, &[(0x15, &[]), (0x17, STACK)])))
    };
    let format = Format {
        inline: true,
        ..Format::default()
    };
    let mut resolver = Resolver::new(of_load(7, &[(0x15, STACK)]), format, &mut reload);
    let mut out = Vec::new();
    let text = lines("<stack_id 21>\n<stack_id 23>\n<stack_id 21>\n<stack_id 7>\n");
    resolver
        .run(text.as_bytes(), None, "text", &mut out)
        .unwrap();
    let notes = resolver.notes;
    (String::from_utf8(out).unwrap(), notes, asked)
}

#[test]
fn ids_are_not_resolved_by_another_load() {
    let stack = "foo <- bar [mod] <- 0x1234";
    let gone = "gone, the module was reloaded";
    let (text, notes, asked) = resolve_beside(8);
    let want = format!(
        "<stack_id 21: {stack}>\n<stack_id 23: {gone}>\n<stack_id 21: {stack}>\n<stack_id 7: {gone}>\n"
    );
    assert_eq!((text, notes.missing.gone, asked), (lines(&want), 2, 1));
    // The same load, and one that is not known.
    for load_id in [7, 0] {
        let (text, notes, _) = resolve_beside(load_id);
        let want = format!(
            "<stack_id 21: {stack}>\n<stack_id 23: {stack}>\n<stack_id 21:>\n<stack_id 7: stale, the map \
             was reset>\n"
        );
        assert_eq!((text, notes.missing.gone), (lines(&want), 0));
    }
}
