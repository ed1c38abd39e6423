// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a `print fmt` of a real kernel makes of numbers.

use super::*;
use crate::ring::format::{tests::describe, Formats};

fn show(fields: &[&str], print: &str) -> Vec<Show> {
    let fields = fields
        .iter()
        .map(|name| format!("\tfield:unsigned long {name};\toffset:8;\tsize:8;\tsigned:0;\n"));
    let text = describe(&fields.collect::<String>(), print);
    let mut formats = Formats::default();
    formats.add("sys", &text).unwrap();
    let format = formats.get(7).unwrap();
    format
        .fields
        .iter()
        .map(|field| field.show.clone())
        .collect()
}

fn shown(show: &Show, number: u64) -> String {
    let mut text = String::new();
    show.number(&mut text, number, false).unwrap();
    text
}

#[test]
fn the_conversion_says_the_base() {
    let print = r#""a=%pS b=%-8lx%% c=%03o d=%zu, e=\"%s\" f=%ps", (void *)REC->a, ((unsigned long)(REC->b)), REC->c, REC->d, __get_str(e), (void *)REC->f"#;
    let shows = show(&["a", "b", "c", "d", "e", "f"], print);
    let want = [
        Show::Symbol(true),
        Show::Hex,
        Show::Octal,
        Show::Decimal,
        Show::Decimal,
        Show::Symbol(false),
    ];
    assert_eq!(shows, want);
    assert_eq!(shown(&shows[2], 0o644), "0o644");
}

#[test]
fn flags_have_names() {
    let print = r#""gfp_flags=%s", (REC->flags) ? __print_flags(REC->flags, "|", {( unsigned long)((( gfp_t)(((((1UL))) << (10))|((((1UL))) << (11)))) | (( gfp_t)((((1UL))) << (6)))), "GFP_NOFS"}, {( unsigned long)(( gfp_t)((((1UL))) << (8))), "__GFP_ZERO"}, { 0, ((void *)0) } ) : "none""#;
    let shows = show(&["flags"], print);
    let nofs = 1 << 10 | 1 << 11 | 1 << 6;
    assert_eq!(shown(&shows[0], nofs), "GFP_NOFS");
    assert_eq!(
        shown(&shows[0], nofs | 1 << 8 | 1),
        "GFP_NOFS|__GFP_ZERO|0x1"
    );
    assert_eq!(shown(&shows[0], 0), "0");
    assert_eq!(shown(&shows[0], 2), "0x2");
}

#[test]
fn values_have_names() {
    let print = r#""vec=%u [action=%s]", REC->vec, __print_symbolic(REC->vec, { 0, "HI" }, { 0x1, "a, \"b)" })"#;
    let shows = show(&["vec"], print);
    assert_eq!(shown(&shows[0], 0), "HI");
    assert_eq!(shown(&shows[0], 1), r#"a, \"b)"#);
    assert_eq!(shown(&shows[0], 9), "0x9");
    // Names that only the compiler knows.
    let print = r#""mode=%s", __print_symbolic(REC->mode, { HRTIMER_MODE_ABS, "ABS" })"#;
    assert_eq!(show(&["mode"], print), [Show::Decimal]);
}

#[test]
fn constants_are_what_c_makes_of_them() {
    for (text, want) in [
        ("0x10", Some(16)),
        ("017", Some(15)),
        ("1 << 3 | 1", Some(9)),
        ("(( gfp_t)((((1UL))) << (22)))", Some(1 << 22)),
        ("~0ULL & 0xf0", Some(0xf0)),
        ("(1 + 2) << 1", Some(6)),
        ("-1", Some(u64::MAX)),
        ("1 << 64", None),
        ("SOME_NAME", None),
        ("(1", None),
        ("1 2", None),
        ("", None),
    ] {
        assert_eq!(constant(text), want, "{text}");
    }
    assert_eq!(constant(&"(".repeat(100_000)), None);
    assert_eq!(constant(&"~".repeat(100_000)), None);
}

#[test]
fn complex_expressions_are_unchanged() {
    for print in [
        "",
        "\"",
        "\"%x",
        "\"%x\"",
        "\"%x\",",
        "\"%x\", REC->a + 1",
        "\"%x\", REC->",
        "\"%x\", (",
        "\"%s\", __print_flags(REC->a",
        "\"%s\", __print_flags(REC->a, \"|\", {1})",
        "\"%",
    ] {
        assert_eq!(show(&["a"], print), [Show::Decimal], "{print}");
    }
}
