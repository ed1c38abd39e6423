// SPDX-License-Identifier: MIT OR Apache-2.0

//! Texts before and after.

use super::*;
use crate::{
    source::Loaded,
    stack_map_bin::Stack,
    symbols::{kallsyms::Kallsyms, modules::Modules, Symbols},
};

const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000100 T foo
ffffffff81000200 T _end
ffffffffc0000200 T bar\t[mod]
ffffffffc0000300 T end\t[mod]
";

fn loaded(stacks: &[(u32, &[u64])]) -> Loaded {
    let kallsyms = Kallsyms::parse(KALLSYMS.into(), &Modules::default(), "").unwrap();
    let mut loaded = Loaded {
        symbols: Symbols {
            kallsyms: Some(kallsyms),
            debug_info: None,
        },
        slot_bits: Some(4),
        ..Loaded::default()
    };
    for (id, ips) in stacks {
        let ref_count = 1;
        let id = *id;
        loaded.stacks.push(Stack { id, ref_count, ips }).unwrap();
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

#[test]
fn prints_as_the_kernel_does() {
    let (text, notes) = resolve(
        "# tracer: nop\n a-1 [000] ..... 1.0: e: x\n a-1 [000] ..... 1.0: <stack_id 21>\nx",
        Format::default(),
    );
    let want = "# tracer: nop\n a-1 [000] ..... 1.0: e: x\n a-1 [000] ..... 1.0: <stack trace>\n \
                => foo\n => bar [mod]\n => 0x1234\nx";
    assert_eq!(text, want);
    assert_eq!(notes, Notes::default());
}

#[test]
fn prints_as_trace_cmd_does() {
    let (text, _) = resolve(
        "a-1 [000] ..... 1.0: stack_id:             <stack_id 21>\n",
        Format {
            offsets: true,
            ..Format::default()
        },
    );
    let want = "a-1 [000] ..... 1.0: kernel_stack:         <stack trace >\n\
                => foo+0x10/0x100 (ffffffff81000110)\n\
                => bar+0x10/0x100 [mod] (ffffffffc0000210)\n=> 0x1234 (1234)\n";
    assert_eq!(text, want);
}

#[test]
fn prints_on_the_line() {
    let inline = Format {
        inline: true,
        ..Format::default()
    };
    let (text, _) = resolve("t: <stack_id 21>\r\nt: <stack_id 22>\n", inline);
    assert_eq!(
        text,
        "t: <stack_id 21: foo <- bar [mod] <- 0x1234>\r\nt: <stack_id 22:>\n"
    );
    // What is not at the end of a line is no event of its own.
    let (text, _) = resolve("a <stack_id 21> and <stack_id 21>", Format::default());
    let stack = "foo <- bar [mod] <- 0x1234";
    assert_eq!(
        text,
        format!("a <stack_id 21: {stack}> and <stack trace>\n => foo\n => bar [mod]\n => 0x1234")
    );
}

#[test]
fn what_is_missing_is_said_and_counted() {
    let (text, notes) = resolve(
        "<stack_id 30>\n<stack_id 5>\n<stack_id 5>\n<stack_id x>\n<stack_id -1>\n",
        Format::default(),
    );
    assert_eq!(
        text,
        "<stack_id 30: unknown>\n<stack_id 5: stale, the map was reset>\n<stack_id 5: stale, the \
         map was reset>\n<stack_id x>\n<stack_id -1>\n"
    );
    assert_eq!((notes.unknown, notes.stale), (1, 2));
}

#[test]
fn other_text_stays_as_it_is() {
    let mut text = b"\xff\xfe <stack_id\n\n".to_vec();
    text.extend(vec![b'y'; 1 << 20]);
    let mut reload = || Ok(None);
    let mut resolver = Resolver::new(loaded(&[]), Format::default(), &mut reload);
    let mut out = Vec::new();
    resolver.run(&text[..], None, "text", &mut out).unwrap();
    assert_eq!(out, text);
}

#[test]
fn newer_stacks_are_asked_for() {
    let mut newer = vec![loaded(&[(0x15, STACK), (0x17, &[0xffff_ffff_8100_0100])])];
    let mut reload = || Ok(newer.pop());
    let format = Format {
        inline: true,
        ..Format::default()
    };
    let mut resolver = Resolver::new(loaded(&[(0x15, STACK)]), format, &mut reload);
    let mut out = Vec::new();
    let text = "<stack_id 21>\n<stack_id 23>\n<stack_id 24>\n";
    resolver
        .run(text.as_bytes(), None, "text", &mut out)
        .unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.ends_with("<stack_id 23: foo>\n<stack_id 24: unknown>\n"),
        "{out}"
    );
    assert_eq!(resolver.resolved, 2);
}
