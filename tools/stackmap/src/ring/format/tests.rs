// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptions of a real kernel, and values by them.

use super::*;

const COMMON: &str = "\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

";

/// The description of an event 7, `x`.
pub(crate) fn describe(fields: &str, print: &str) -> String {
    format!("name: x\nID: 7\nformat:\n{COMMON}{fields}\nprint fmt: {print}\n")
}

fn formats(text: &str) -> Formats {
    let mut formats = Formats::default();
    assert_eq!(formats.add("sys", text), Ok(7));
    formats
}

#[test]
fn values_are_what_the_description_says() {
    let text = describe(
        "\tfield:char comm[8];\toffset:8;\tsize:8;\tsigned:0;
\tfield:short small;\toffset:16;\tsize:2;\tsigned:1;
\tfield:unsigned int args[2];\toffset:20;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] name;\toffset:28;\tsize:4;\tsigned:0;
\tfield:__rel_loc int[] list;\toffset:32;\tsize:4;\tsigned:1;
\tfield:__data_loc cpumask_t[] mask;\toffset:36;\tsize:4;\tsigned:0;
\tfield:u64 wide;\toffset:40;\tsize:8;\tsigned:0;
",
        "\"\"",
    );
    let formats = formats(&text);
    let word = |word: u32| word.to_le_bytes().to_vec();
    let mut data = vec![0; 8];
    data.extend(b"a\nb\0junk");
    data.extend(&word(0xfffe_fffe));
    data.extend([word(1), word(u32::MAX)].concat());
    data.extend(word(48 | 4 << 16));
    // Its offset is from after the word.
    data.extend(word((52 - 36) | (8 << 16)));
    data.extend(word(60 | 2 << 16));
    data.extend([9; 8]);
    data.extend(b"<\n>\0");
    data.extend([word(5), word(-6i32 as u32)].concat());
    data.extend([0xab, 0xcd]);
    let format = formats.get(7).unwrap();
    let value = |name| formats.value(format.field(name).unwrap(), &data).unwrap();
    assert_eq!(value("comm"), Value::Text(b"a\nb"));
    assert_eq!(value("small"), Value::Signed(-2));
    let values = |name| match value(name) {
        Value::Array(numbers) => numbers.iter().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let args = [1, u64::from(u32::MAX)].map(Value::Unsigned);
    assert_eq!(values("args"), args);
    assert_eq!(value("name"), Value::Text(b"<\n>"));
    assert_eq!(values("list"), [5, -6].map(Value::Signed));
    assert_eq!(value("mask"), Value::Bytes(&[0xab, 0xcd]));
    assert_eq!(value("wide"), Value::Unsigned(0x0909_0909_0909_0909));
    // Nothing is read after the event.
    for len in 0..data.len() {
        for field in &format.fields {
            let _ = formats.value(field, &data[..len]);
        }
    }
}

#[test]
fn every_event_has_the_common_fields() {
    let formats = formats(&describe("", "\"\""));
    let head = formats.head(&[7, 0, 0x11, 0x22, 0xff, 0xff, 0xff, 0xff]);
    let want = Head {
        id: 7,
        flags: 0x11,
        preempt_count: 0x22,
        pid: -1,
    };
    assert_eq!(head, Some(want));
    assert_eq!(formats.head(&[0; 7]), None);
}

#[test]
fn a_stack_ends_where_the_event_says() {
    let mut formats = Formats::default();
    let text = describe(
        "\tfield:int size;\toffset:8;\tsize:4;\tsigned:1;
\tfield:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;
",
        "\"\"",
    )
    .replace("name: x", "name: kernel_stack");
    formats.add("ftrace", &text).unwrap();
    let format = formats.get(7).unwrap();
    assert_eq!(format.special, Special::KernelStack);
    let frames = |size: u32, ips: &[u64]| {
        let mut data = vec![0; 8];
        data.extend(size.to_le_bytes());
        data.extend([0; 4]);
        data.extend(ips.iter().flat_map(|ip| ip.to_le_bytes()));
        let mut frames = Vec::new();
        formats.frames(format, &data, &mut frames);
        frames
    };
    assert_eq!(frames(2, &[1, 2, 3]), [1, 2]);
    assert_eq!(frames(9, &[1, u64::MAX, 3]), [1]);
    assert_eq!(frames(20, &[5; 20]), [5; 20]);
    assert_eq!(frames(u32::MAX, &[5; 20]), [5; 20]);
    // Only the system ftrace has such events.
    formats.add("mine", &text).unwrap();
    assert_eq!(formats.get(7).unwrap().special, Special::None);
}

#[test]
fn wrong_descriptions_are_refused() {
    let good = describe("\tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n", "\"\"");
    for (from, to) in [
        ("name: x\n", ""),
        ("ID: 7", "ID: 70000"),
        ("common_pid", "pid"),
        ("offset:8", "offset:99999999999"),
        ("field:int a;", "field:a;"),
        // A word says where it is.
        (
            "field:int a;\toffset:8;\tsize:4",
            "field:__data_loc char[] a;\toffset:8;\tsize:8",
        ),
    ] {
        let text = good.replace(from, to);
        assert!(Formats::default().add("sys", &text).is_err(), "{to}");
    }
}
