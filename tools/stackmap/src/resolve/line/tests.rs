// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lines as the kernel and trace-cmd print them.

use super::*;

const COOKIE: Cookie = 9 << 32 | 2;

/// The ids of a line, and the text that they were read from.
fn found(line: &str) -> Option<(&str, Ids)> {
    ids(line.as_bytes()).map(|(start, ids)| (&line[start..], ids))
}

#[test]
fn an_id_may_have_a_user_stack() {
    let head = "          <idle>-0       [000] d..2.     3.325159: ";
    for (text, want) in [
        ("<stack_id 7>", Ids::Kernel(7, UserSide::None)),
        (
            "<stack_id 7> <user_stack_id 8>",
            Ids::Kernel(7, UserSide::Id(8)),
        ),
        (
            "<stack_id 7> <user 2:9>",
            Ids::Kernel(7, UserSide::Cookie(COOKIE)),
        ),
        ("<user_stack_id 8> for 2:9", Ids::User(8, COOKIE)),
    ] {
        let name = match want {
            Ids::Kernel(..) => "stack_id_user",
            Ids::User(..) => "user_stack_id",
        };
        for name in ["", &format!("{name}:      ")] {
            let line = format!("{head}{name}{text}");
            assert_eq!(found(&line), Some((text, want)), "{line}");
        }
    }
    for text in [
        "<stack_id 7> <user_stack_id >",
        "<stack_id 7> <user 2>",
        "<stack_id 7> <user 2:9> x",
        "<stack_id 7> x>",
        "<stack_id >",
        "<stack_id -1>",
        "<stack_id 99999999999>",
        "<user_stack_id 8> for 2",
        "<user_stack_id 8> for 2:4294967296",
        "tracing_mark_write: <stack_id 7>",
        "user_stack_id: <stack_id 7>",
        "kernel_stack:         <stack trace >",
        "kmalloc: x=1",
    ] {
        assert_eq!(found(&format!("{head}{text}")), None, "{text}");
    }
}

#[test]
fn reads_every_layout() {
    for head in [
        "             ash-132     [001] d..2.     3.319031: ",
        "ash-158     (    158) [001] .....     6.118631: ",
        "ash-158     (-------) [001] .....     6.118631: ",
        "ash-158     (    158) [001]      6.118631: ",
        "ash-158     [127] .....            3: ",
        "     ash-158       1..... 20741us!: ",
        "     ash-158       1..... 1041us : ",
        "      ash-158    12d..1.     6.734159: ",
        "     ash-158   [000] d..1.     6.734159123: stack_id:    ",
        "              ls-178   [000] .....     6.732495: stack_id:             ",
        "              ls-178   [000] .....     6.732495: (+431) stack_id:             ",
    ] {
        let line = format!("{head}<stack_id 7>");
        let want = Ids::Kernel(7, UserSide::None);
        assert_eq!(found(&line), Some(("<stack_id 7>", want)), "{line}");
    }
}

#[test]
fn a_comm_may_hold_nearly_anything() {
    for comm in [
        &b"a b"[..],
        b"kworker/u8:2-ev",
        b"x-1 [",
        b"Web Content",
        b"-",
        "\u{fc}n\u{ef}-1 c".as_bytes(),
        b"a-1 (2) b",
        b"\xff\xfe",
    ] {
        let line = [comm, b"-77 [003] ..... 1.000001: <stack_id 7>"].concat();
        assert!(ids(&line).is_some(), "{comm:?}");
    }
}

#[test]
fn takes_no_other_lines() {
    for head in [
        "",
        "# tracer: nop",
        "CPU:1 [LOST 4198 EVENTS]",
        "=> alloc_bprm (ffffffff969b9b45)",
        "ash-132 [000] ..... 3.3190311234: ",
        "ash-132 [99999999] ..... 3.319031: ",
        "ash-132 [000] ..... 99999999999999999999.0: ",
        "ash-99999999999999 [000] ..... 1.0: ",
        "ash-132 [000] ..... 1.0:",
        "ash-132 [000] .....",
        "ash-132 [000",
        "ash-132 (1",
        "-",
    ] {
        assert_eq!(found(&format!("{head}<stack_id 7>")), None, "{head}");
    }
}
