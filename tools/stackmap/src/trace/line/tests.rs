// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lines as the kernel and trace-cmd print them.

use super::*;

fn parse(line: &str) -> Line<'_> {
    Line::parse(line.as_bytes()).unwrap_or_else(|| panic!("not a line: {line}"))
}

const KMALLOC: Body<'_> = Body::Event {
    name: b"kmalloc",
    fields: b"call_site=foo+0x1/0x2 ptr=0",
};

#[test]
fn reads_lines_of_trace() {
    let line = parse(
        "             ash-132     [001] d..2.     3.319031: kmalloc: call_site=foo+0x1/0x2 ptr=0",
    );
    let want = Line {
        comm: b"ash",
        pid: 132,
        tgid: None,
        cpu: 1,
        flags: b"d..2.",
        time: Time::Nanos(3_319_031_000),
        body: KMALLOC,
    };
    assert_eq!(line, want);
    let line = parse("          <idle>-0       [000] d..2.     3.325159: <stack_id 59218>");
    assert_eq!(line.comm, b"<idle>");
    assert_eq!(line.body, Body::StackId(59218, UserSide::None));
}

#[test]
fn an_id_with_a_user_stack_is_a_stack_id() {
    let head = "          <idle>-0       [000] d..2.     3.325159: ";
    let cookie = 9 << 32 | 2;
    let bind = Body::UserStackId { id: 8, cookie };
    let id = |user| Body::StackId(7, user);
    for (text, body) in [
        ("<stack_id 7> <user_stack_id 8>", id(UserSide::Id(8))),
        ("<stack_id 7> <user 2:9>", id(UserSide::Cookie(cookie))),
        (
            "stack_id_user: <stack_id 7> <user 2:9>",
            id(UserSide::Cookie(cookie)),
        ),
        ("<user_stack_id 8> for 2:9", bind),
        ("user_stack_id: <user_stack_id 8> for 2:9", bind),
    ] {
        assert_eq!(parse(&format!("{head}{text}")).body, body, "{text}");
    }
    for text in [
        "<stack_id 7> <user_stack_id >",
        "<stack_id 7> <user 2>",
        "<stack_id 7> <user 2:9> x",
        "<user_stack_id 8> for 2",
        "<user_stack_id 8> for 2:4294967296",
    ] {
        let line = format!("{head}{text}");
        assert!(matches!(parse(&line).body, Body::Event { .. }), "{text}");
    }
}

#[test]
fn reads_every_layout() {
    let body = "kmalloc: call_site=foo+0x1/0x2 ptr=0";
    for (head, tgid, cpu, flags, time) in [
        (
            "ash-158     (    158) [001] .....     6.118631: ",
            Some(158),
            1,
            ".....",
            Time::Nanos(6_118_631_000),
        ),
        (
            "ash-158     (-------) [001] .....     6.118631: ",
            None,
            1,
            ".....",
            Time::Nanos(6_118_631_000),
        ),
        (
            "ash-158     (    158) [001]      6.118631: ",
            Some(158),
            1,
            "",
            Time::Nanos(6_118_631_000),
        ),
        (
            "ash-158     [127] .....            3: ",
            None,
            127,
            ".....",
            Time::Ticks(3),
        ),
        (
            "     ash-158       1..... 20741us!: ",
            None,
            1,
            ".....",
            Time::Nanos(20_741_000),
        ),
        (
            "     ash-158       1..... 1041us : ",
            None,
            1,
            ".....",
            Time::Nanos(1_041_000),
        ),
        (
            "      ash-158    12d..1.     6.734159: ",
            None,
            12,
            "d..1.",
            Time::Nanos(6_734_159_000),
        ),
        (
            "     ash-158   [000] d..1.     6.734159123:              ",
            None,
            0,
            "d..1.",
            Time::Nanos(6_734_159_123),
        ),
    ] {
        let text = format!("{head}{body}");
        let line = parse(&text);
        assert_eq!(line.comm, b"ash", "{text}");
        assert_eq!(line.pid, 158, "{text}");
        assert_eq!((line.tgid, line.cpu), (tgid, cpu), "{text}");
        assert_eq!(line.flags, flags.as_bytes(), "{text}");
        assert_eq!(line.time, time, "{text}");
    }
}

#[test]
fn reads_lines_of_trace_cmd() {
    let line = parse(
        "              ls-178   [000] .....     6.732495: stack_id:             <stack_id 49131>",
    );
    assert_eq!(line.body, Body::StackId(49131, UserSide::None));
    let line = parse(
        "              ls-187   [001] .....    12.003955: kernel_stack:         <stack trace >",
    );
    assert_eq!(line.body, Body::KernelStack);
    let line = parse(
        "              ls-187   [001] .....    12.004051: kmalloc:              (mm_init+0x34) x=y",
    );
    let want = Body::Event {
        name: b"kmalloc",
        fields: b"(mm_init+0x34) x=y",
    };
    assert_eq!(line.body, want);
}

#[test]
fn reads_calls_of_the_function_tracer() {
    let line =
        parse("             ash-158     [001] .....     5.829043: ksys_write <-do_syscall_64");
    let want = Body::Function {
        name: b"ksys_write",
        caller: b"do_syscall_64",
    };
    assert_eq!(line.body, want);
}

#[test]
fn a_comm_may_hold_nearly_anything() {
    for comm in [
        "a b",
        "kworker/u8:2-ev",
        "x-1 [",
        "Web Content",
        "-",
        "ünï-1 cödé",
        "a-1 (2) b",
    ] {
        let text = format!("{comm}-77 [003] ..... 1.000001: e: f=1");
        let line = parse(&text);
        assert_eq!(line.comm, comm.as_bytes(), "{text}");
        assert_eq!((line.pid, line.cpu), (77, 3), "{text}");
    }
    let line = Line::parse(b"\xff\xfe-1 [000] ..... 1.000001: e: f=1").unwrap();
    assert_eq!(line.comm, b"\xff\xfe");
}

#[test]
fn takes_no_other_lines() {
    for text in [
        "",
        "# tracer: nop",
        "#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION",
        "CPU:1 [LOST 4198 EVENTS]",
        " => trace_event_raw_event_kmalloc",
        "=> alloc_bprm (ffffffff969b9b45)",
        "cpus=2",
        "ash-132 [000] ..... 3.3190311234: too: many digits",
        "ash-132 [99999999] ..... 3.319031: e: no such cpu",
        "ash-132 [000] ..... 99999999999999999999.0: e: too late",
        "ash-99999999999999 [000] ..... 1.0: e: no such pid",
        "ash-132 [000] .....",
        "ash-132 [000",
        "ash-132 (1",
        "-",
    ] {
        assert_eq!(Line::parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn finds_ids_in_a_text() {
    assert_eq!(find_stack_id(b"<stack_id 42>"), Some((0, 13, 42)));
    assert_eq!(
        find_stack_id(b"a <stack_id <stack_id 7> b"),
        Some((12, 24, 7))
    );
    for text in [
        "",
        "<stack_id >",
        "<stack_id 1",
        "<stack_id -1>",
        "<stack_id 99999999999>",
    ] {
        assert_eq!(find_stack_id(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn times_are_printed_as_they_were_read() {
    for text in ["3.319031", "0.000001", "123456", "86400.000000"] {
        assert_eq!(Time::parse(text.as_bytes()).unwrap().to_string(), text);
    }
}
