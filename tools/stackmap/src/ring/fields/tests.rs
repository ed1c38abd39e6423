// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fields with hostile names.

use super::*;
use crate::ring::format::tests::describe;

/// The fields of an event of the system "sys"; `data` begins at offset 8.
pub(crate) fn fields(description: &str, print: &str, data: &[u8]) -> Fields {
    fields_of("sys", description, print, data)
}

/// The same of another system.
pub(crate) fn fields_of(system: &str, description: &str, print: &str, data: &[u8]) -> Fields {
    recorded(system, &describe(description, print), data)
}

/// The same of an event that is described by this text.
pub(crate) fn recorded(system: &str, text: &str, data: &[u8]) -> Fields {
    let mut formats = Formats::default();
    let id = formats.add(system, text).unwrap();
    Fields {
        format: formats.get(id).cloned(),
        about: Rc::new(About {
            formats,
            texts: Texts::default(),
        }),
        data: [&[0; 8], data].concat(),
    }
}

fn escaped(text: &[u8], quoted: bool) -> String {
    let mut out = String::new();
    escape(text, quoted, &mut out);
    out
}

#[test]
fn a_system_call_argument_is_shown_by_its_contents() {
    let mut data = 1u32.to_le_bytes().to_vec();
    data.extend([0; 4]);
    data.extend(0x7fff_0000u64.to_le_bytes());
    data.extend((28u32 | 5 << 16).to_le_bytes());
    data.extend(b"/bin\0");
    let description = "\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;
\tfield:const char * filename;\toffset:16;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] __filename_val;\toffset:24;\tsize:4;\tsigned:0;
";
    let fields = fields(description, "\"\"", &data);
    assert_eq!(fields.text(&Symbols::default()), "filename=/bin");
}

#[test]
fn addresses_are_exported_only_on_request() {
    let address = 0xffff_8881_003b_d000u64;
    let mut data = address.to_le_bytes().to_vec();
    data.extend((address as i64).to_le_bytes());
    data.extend((-4097i32).to_le_bytes());
    data.extend((-22i32).to_le_bytes());
    data.extend(address.to_le_bytes());
    data.extend(b"at ffff8881003bd000\0");
    let description = "\tfield:const void * ptr;\toffset:8;\tsize:8;\tsigned:0;
\tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;
\tfield:int small;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int error;\toffset:28;\tsize:4;\tsigned:1;
\tfield:u64 list[1];\toffset:32;\tsize:8;\tsigned:0;
\tfield:char text[20];\toffset:40;\tsize:20;\tsigned:0;
";
    let fields = fields(description, "\"ptr=%p\", REC->ptr", &data);
    let values = |addresses| serde_json::to_string(&fields.values(addresses).unwrap()).unwrap();
    assert_eq!(
        fields.export(&Symbols::default(), false),
        "ptr=(address) ret=(address) small=-4097 error=-22 list=(address) text=\"at (address)\""
    );
    assert_eq!(
        values(false),
        r#"{"ptr":"(address)","ret":"(address)","small":-4097,"error":-22,"list":"(address)","text":"at (address)"}"#
    );
    assert!(values(true).contains(&address.to_string()));
    assert_eq!(
        fields.export(&Symbols::default(), true),
        fields.text(&Symbols::default())
    );
    assert!(fields
        .text(&Symbols::default())
        .contains("ffff8881003bd000"));
}

#[test]
fn the_memory_of_an_event_is_accounted_for() {
    const LEN: usize = 60 << 10;
    let word = (8u32 | (LEN as u32) << 16).to_le_bytes();
    let data = [&word[..], &[0xff; LEN]].concat();
    let many = |field: &dyn Fn(usize) -> String| (0..2000).map(field).collect::<String>();
    let place = "offset:8;\tsize";
    for (description, print) in [
        (
            many(&|nr| format!("\tfield:__data_loc u8[] f{nr};\t{place}:4;\tsigned:0;\n")),
            String::new(),
        ),
        (
            many(&|nr| format!("\tfield:u8 f{nr}[];\t{place}:0;\tsigned:0;\n")),
            String::new(),
        ),
        // A number of one byte with a name of many.
        (
            format!("\tfield:u8 f[];\t{place}:0;\tsigned:0;\n"),
            format!(
                "\"%s\", __print_symbolic(REC->f, {{255, \"{}\"}})",
                "A".repeat(100_000)
            ),
        ),
    ] {
        let fields = fields(&description, &print, &data);
        assert!(fields.text(&Symbols::default()).len() < 2 * MAX_TEXT);
        let values = serde_json::to_string(&fields.values(true).unwrap()).unwrap();
        assert!(values.len() < 2 * MAX_TEXT);
    }
}

#[test]
fn addresses_in_bytes_are_addresses() {
    let mut data = vec![1, 2, 3];
    data.extend(0xffff_8881_003b_d000u64.to_le_bytes());
    for declared in ["u8 buf[11]", "struct thing buf"] {
        let description = format!("\tfield:{declared};\toffset:8;\tsize:11;\tsigned:0;\n");
        let fields = fields(&description, "", &data);
        assert_eq!(fields.export(&Symbols::default(), false), "buf=(address)");
    }
}

#[test]
fn texts_are_escaped() {
    for (text, quoted, want) in [
        (&b"plain/word:1"[..], true, "plain/word:1"),
        (b"", true, "\"\""),
        (b"two words", true, "\"two words\""),
        (b"two words", false, "two words"),
        (b"a=b", true, "\"a=b\""),
        (b"a\"b\\", true, r#""a\"b\\""#),
        (b"\x1b[31m\x07", false, r"\u{1b}[31m\u{7}"),
        (b"\xff\xc3\xa9", false, "\\xff\u{e9}"),
        // What turns the direction of a text.
        ("\u{202e}x".as_bytes(), false, r"\u{202e}x"),
        ("\u{9b}x".as_bytes(), false, r"\u{9b}x"),
    ] {
        assert_eq!(escaped(text, quoted), want);
    }
}
