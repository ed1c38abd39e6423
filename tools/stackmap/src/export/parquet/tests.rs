// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables of hostile captures, and of formats that differ.

use super::*;
use crate::{
    ring::{
        fields::{tests::recorded, Fields},
        format::{tests::describe, Formats},
        Order,
    },
    trace::{Flags, Recording, Time},
};
use ::parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Field,
};
use std::fs::{self, File};

fn event(name: &str, fields: Fields) -> Event {
    Event {
        name: name.to_owned(),
        fields,
        comm: "a\u{fffd};\n\u{1f40c}".to_owned(),
        pid: u32::MAX,
        tgid: None,
        cpu: 3,
        time: Time::Nanos(5),
        flags: Flags::default(),
        recording: Recording::default(),
    }
}

/// Writes events, of formats that are described.
fn write(path: &Path, formats: &[&Formats], events: &[Event], text: bool) -> usize {
    let loaded = Loaded::default();
    let options = Options {
        addresses: true,
        text,
    };
    let mut writer = Writer::new(path, Access::Umask, &loaded, options).unwrap();
    writer.describe(formats.iter().copied());
    for event in events {
        writer.event(event, Sides::NONE, &[]).unwrap();
    }
    let nr = writer.events.len();
    writer.finish().unwrap();
    nr
}

fn rows(path: &Path) -> Vec<Vec<(String, Field)>> {
    let file = File::open(path).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().into_columns()).collect()
}

/// The formats of the system "sys" that are described.
fn formats(texts: &[&str]) -> Formats {
    let mut formats = Formats::new(Order::Little, 8);
    for text in texts {
        formats.add("sys", text).unwrap();
    }
    formats
}

/// The columns behind those of all events.
fn fields(path: &Path) -> Vec<(String, Field)> {
    rows(path)[0][COMMON.len()..].to_vec()
}

fn number(name: &str, at: usize, size: usize, signed: u8) -> String {
    format!("\tfield:t {name};\toffset:{at};\tsize:{size};\tsigned:{signed};\n")
}

#[test]
fn fields_with_names_of_columns_are_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let description = [
        number("pid", 8, 4, 1),
        number("PID", 12, 4, 1),
        number("field_pid", 16, 4, 1),
        number("a-b", 20, 2, 0),
        number("a_b", 22, 2, 0),
        number("odd", 24, 1, 0),
        "\tfield:char list[4];\toffset:25;\tsize:4;\tsigned:0;\n".to_owned(),
        "\tfield:u16 array[2];\toffset:29;\tsize:4;\tsigned:0;\n".to_owned(),
        number("text", 33, 8, 1),
        number("event", 41, 8, 0),
    ]
    .concat();
    let mut data = Vec::new();
    for number in 1..4i32 {
        data.extend((-number).to_le_bytes());
    }
    data.extend([4, 0, 5, 0, 255, b'x', 0, 0, 0, 1, 0, 2, 0]);
    data.extend((-6i64).to_le_bytes());
    data.extend(u64::MAX.to_le_bytes());
    let text = describe(&description, "\"\"");
    let of = event("x", recorded("sys", &text, &data));
    let path = dir.path().join("out");
    write(&path, &[&formats(&[&text])], &[of], false);
    let path = path.join("events/system=sys/event=x/part-0.parquet");
    let want = [
        ("field_pid", Field::Int(-1)),
        ("field_PID", Field::Null),
        ("field_field_pid", Field::Int(-3)),
        ("a_b", Field::UShort(4)),
        ("field_a_b", Field::UShort(5)),
        ("odd", Field::UByte(255)),
        ("field_text", Field::Long(-6)),
        ("field_event", Field::ULong(u64::MAX)),
    ];
    let mut want: Vec<_> = want.map(|(name, field)| (name.to_owned(), field)).into();
    // Upper and lower case are the same.
    want[1] = ("field_field_PID".to_owned(), Field::Int(-2));
    want[2].0 = "field_field_field_pid".to_owned();
    assert_eq!(fields(&path), want);
    let common = &rows(&path)[0];
    let at = |name: &str| &common.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!(*at("pid"), Field::Long(u32::MAX.into()));
    assert_eq!(*at("comm"), Field::Str("a\u{fffd};\n\u{1f40c}".to_owned()));
}

#[test]
fn a_column_holds_what_all_formats_have() {
    let dir = tempfile::tempdir().unwrap();
    let old = [
        number("a", 8, 8, 0),
        number("b", 16, 4, 0),
        number("c", 20, 1, 0),
    ];
    let new = [
        number("a", 8, 1, 1),
        number("b", 9, 4, 1),
        number("c", 13, 2, 0),
        number("d", 15, 8, 1),
    ];
    let old = describe(&old.concat(), "\"\"");
    let new = describe(&new.concat(), "\"\"").replace("ID: 7", "ID: 8");
    // Another event whose field is the same column.
    let other = describe(&number("c", 8, 4, 1), "\"\"");
    let other = other
        .replace("ID: 7", "ID: 9")
        .replace("name: x", "name: y");
    let data_of_old = [&u64::MAX.to_le_bytes()[..], &u32::MAX.to_le_bytes(), &[200]].concat();
    let data_of_new = [
        &(-5i8).to_le_bytes()[..],
        &(-6i32).to_le_bytes(),
        &u16::MAX.to_le_bytes(),
        &(-7i64).to_le_bytes(),
    ]
    .concat();
    let events = [
        event("x", recorded("sys", &old, &data_of_old)),
        event("x", recorded("sys", &new, &data_of_new)),
        event("y", recorded("sys", &other, &(-8i32).to_le_bytes())),
        // It is too short for its last field.
        event("x", recorded("sys", &new, &data_of_new[..7])),
    ];
    let path = dir.path().join("out");
    // As of two captures, whose formats have numbers of their own.
    let all = [
        &formats(&[&old, &new, &other]),
        &formats(&[&other]),
        &formats(&[&other, &old]),
    ];
    write(&path, &all, &events, false);
    let of = |event: &str| path.join(format!("events/system=sys/event={event}/part-0.parquet"));
    let found = rows(&of("x"));
    let found: Vec<Vec<_>> = found
        .into_iter()
        .map(|row| row.into_iter().skip(COMMON.len()).collect())
        .collect();
    let names: Vec<_> = found[0].iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    let decimal = |field: &Field| match field {
        Field::Decimal(decimal) => {
            let bytes = decimal.data();
            let sign = if bytes[0] & 0x80 == 0 { 0 } else { 0xff };
            let mut all = [sign; 16];
            all[16 - bytes.len()..].copy_from_slice(bytes);
            (
                decimal.precision(),
                decimal.scale(),
                i128::from_be_bytes(all),
            )
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(decimal(&found[0][0].1), (20, 0, u64::MAX.into()));
    assert_eq!(decimal(&found[1][0].1), (20, 0, -5));
    let rest = |row: usize| -> Vec<_> {
        found[row][1..]
            .iter()
            .map(|(_, field)| field.clone())
            .collect()
    };
    let long = Field::Long;
    assert_eq!(
        rest(0),
        [long(u32::MAX.into()), Field::Int(200), Field::Null]
    );
    assert_eq!(
        rest(1),
        [long(-6), Field::Int(i32::from(u16::MAX)), long(-7)]
    );
    assert_eq!(
        rest(2),
        [long(-6), Field::Int(i32::from(u16::MAX)), Field::Null]
    );
    assert_eq!(fields(&of("y")), [("c".to_owned(), Field::Int(-8))]);
}

#[test]
fn many_events_have_few_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let nr = 3 * MAX_PARTITIONS;
    let text = |number: usize| {
        event(
            &format!("../\u{1f40c} {number}"),
            Fields::Text(format!("n={number}")),
        )
    };
    let events: Vec<_> = (0..nr).map(text).collect();
    assert_eq!(write(&path, &[], &events, true), MAX_PARTITIONS + 1);
    let system = path.join("events/system=unknown");
    assert_eq!(fs::read_dir(&system).unwrap().count(), MAX_PARTITIONS);
    let one = rows(&system.join("event=_____17/part-0.parquet"));
    assert_eq!(one.len(), 1);
    assert_eq!(
        one[0][COMMON.len()],
        ("text".to_owned(), Field::Str("n=17".to_owned()))
    );
    let others = rows(&path.join("events/system=other/event=other/part-0.parquet"));
    assert_eq!(others.len(), nr - MAX_PARTITIONS);
    let name = Field::Str(format!("../\u{1f40c} {}", nr - 1));
    assert_eq!(others.last().unwrap()[8].1, name);
}

#[test]
fn rows_are_written_when_there_are_many() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let nr = 2 * MAX_ROWS + 1;
    let of = |number: usize| Event {
        time: Time::Nanos(number as u64),
        ..event("x", Fields::default())
    };
    let events: Vec<_> = (0..nr).map(of).collect();
    write(&path, &[], &events, false);
    let files = path.join("events/system=unknown/event=x");
    let numbers = (0..3).flat_map(|number| rows(&files.join(format!("part-{number}.parquet"))));
    let times: Vec<_> = numbers.map(|row| row[2].1.clone()).collect();
    assert!(times
        .iter()
        .zip(0..)
        .all(|(time, number)| *time == Field::Long(number)));
    assert_eq!(times.len(), nr);

    // All rows together are bounded, too: by their texts, here.
    let path = dir.path().join("texts");
    let text = "x".repeat(MAX_SIZE);
    let of = |number: usize| {
        event(
            &format!("e{}", number % 2),
            Fields::Text(format!("{number}{text}")),
        )
    };
    let events: Vec<_> = (0..18).map(of).collect();
    write(&path, &[], &events, true);
    for name in ["e0", "e1"] {
        let files = path
            .join("events/system=unknown/event=")
            .display()
            .to_string()
            + name;
        let nr_files = fs::read_dir(&files).unwrap().count();
        assert!(nr_files > 1, "{nr_files}");
        let parts =
            (0..nr_files).map(|number| Path::new(&files).join(format!("part-{number}.parquet")));
        assert_eq!(parts.map(|part| rows(&part).len()).sum::<usize>(), 9);
    }
}

#[test]
fn numbers_of_formats_are_those_of_one_capture() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let one = describe(&number("a", 8, 4, 1), "\"\"");
    let other = describe(&number("b", 8, 4, 1), "\"\"").replace("name: x", "name: y");
    let events = [("x", &one), ("y", &other)].map(|(name, text)| Event {
        recording: Recording {
            number: (name == "y").into(),
            ..Recording::default()
        },
        ..event(name, recorded("sys", text, &5i32.to_le_bytes()))
    });
    let all = [&formats(&[&one]), &formats(&[&other])];
    write(&path, &all, &events, false);
    for (name, capture, column) in [("x", 0, "a"), ("y", 1, "b")] {
        let file = path.join(format!("events/system=sys/event={name}/part-0.parquet"));
        assert_eq!(fields(&file), [(column.to_owned(), Field::Int(5))]);
        assert_eq!(rows(&file)[0][0].1, Field::Int(capture));
    }
}

#[test]
fn kinds_without_files_of_their_own_have_no_fields() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let text = |kind: usize| {
        let text = describe(&number("a", 8, 4, 1), "\"\"");
        let text = text.replace("ID: 7", &format!("ID: {}", 100 + kind));
        text.replace("name: x", &format!("name: e{kind}"))
    };
    let texts: Vec<_> = (0..MAX_PARTITIONS + 3).map(text).collect();
    let all: Vec<_> = texts.iter().map(|text| &text[..]).collect();
    let of = |(kind, text): (usize, &&str)| {
        let data = (kind as i32).to_le_bytes();
        event(&format!("e{kind}"), recorded("sys", text, &data))
    };
    let events: Vec<_> = all.iter().enumerate().map(of).collect();
    let nr_files = write(&path, &[&formats(&all)], &events, false);
    assert_eq!(nr_files, MAX_PARTITIONS + 1);
    let others = rows(&path.join("events/system=other/event=other/part-0.parquet"));
    assert_eq!(others.len(), 3);
    assert!(others.iter().all(|row| row.len() == COMMON.len()));
    let dirs = fs::read_dir(path.join("events/system=sys")).unwrap();
    let kinds = dirs.map(|dir| {
        let dir = dir.unwrap().path();
        let [(name, Field::Int(kind))] = &fields(&dir.join("part-0.parquet"))[..] else {
            panic!("{}", dir.display());
        };
        assert!(name == "a" && dir.ends_with(format!("event=e{kind}")));
    });
    assert_eq!(kinds.count(), MAX_PARTITIONS);
}

#[test]
fn events_of_a_name_have_few_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let text = |from: usize| {
        let field = |nr: usize| number(&format!("f{}", from + nr), 8 + nr, 1, 0);
        describe(&(0..200).map(field).collect::<String>(), "\"\"")
    };
    let (one, other) = (text(0), text(100));
    let last = event("x", recorded("sys", &other, &[9; 200]));
    let all = [&formats(&[&other]), &formats(&[&one])];
    write(&path, &all, &[last], false);
    let fields = fields(&path.join("events/system=sys/event=x/part-0.parquet"));
    assert_eq!(fields.len(), MAX_COLUMNS);
    let is_there = |(_, field): &&(String, Field)| *field == Field::UByte(9);
    assert_eq!(fields.iter().filter(is_there).count(), 200);
}

#[test]
fn stacks_are_written_when_there_are_many() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let loaded = Loaded::default();
    let options = Options::default();
    let mut writer = Writer::new(&path, Access::Umask, &loaded, options).unwrap();
    let event = event("x", Fields::default());
    // Where a name ends is a part of the id.
    let mut stacks = vec![
        ["ab", "c"].map(str::to_owned),
        ["a", "bc"].map(str::to_owned),
    ];
    stacks.extend((2..MAX_ROWS).map(|number| [format!("f{number}"), "g".to_owned()]));
    // One with offsets has the id that it would have in a map.
    stacks.push(["f+0x10/0x20", "g+0x30/0x40 [m]"].map(str::to_owned));
    for stack in &stacks {
        let sides = Sides {
            kernel: StackRef::Whole(stack),
            ..Sides::NONE
        };
        writer.event(&event, sides, &[]).unwrap();
    }
    writer.finish().unwrap();
    let parts = |table: &str, nr: usize| -> Vec<_> {
        let part = |nr| path.join(table).join(format!("part-{nr}.parquet"));
        (0..nr).map(|nr| rows(&part(nr))).collect()
    };
    let lens = |parts: &[Vec<_>]| parts.iter().map(Vec::len).collect::<Vec<_>>();
    let all = parts("stacks", 2);
    assert_eq!(lens(&all), [MAX_ROWS, 1]);
    let is_stable = |row: &Vec<(String, Field)>| row[2].1 == Field::Bool(true);
    assert!(!all[0].iter().any(is_stable) && is_stable(&all[1][0]));
    let identity = StableIds::new(&loaded).text(&stacks[MAX_ROWS]).unwrap();
    assert_eq!(all[1][0][0].1, Field::Str(identity.stable_id.to_string()));
    assert_eq!(lens(&parts("frames", 3)), [MAX_ROWS, MAX_ROWS, 2]);
}

#[test]
fn what_is_missing_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let loaded = Loaded {
        manifest: Some(Manifest {
            generation: Some(1),
            reset: true,
            ..Manifest::default()
        }),
        slot_bits: Some(8),
        ..Loaded::default()
    };
    let options = Options::default();
    let mut writer = Writer::new(&path, Access::Umask, &loaded, options).unwrap();
    let event = event("x", Fields::default());
    for (id, user) in [
        (0x001, UserRef::NotKept),
        (0x101, UserRef::Pending),
        (0x201, UserRef::Lost),
        (0x1ff, UserRef::Id(5)),
    ] {
        let kernel = StackRef::Id(id);
        writer.event(&event, Sides { kernel, user }, &[]).unwrap();
    }
    writer.finish().unwrap();
    let rows = rows(&path.join("events/system=unknown/event=x/part-0.parquet"));
    let texts: Vec<_> = rows
        .iter()
        .map(|row| [9, 10, 11, 12].map(|column| row[column].1.to_string()))
        .collect();
    let want = [
        ["stale", "not kept"],
        ["unknown", "pending"],
        ["stale", "lost"],
        ["unknown", "stale"],
    ];
    let quoted = |text: &str| format!("\"{text}\"");
    let want = want.map(|[kernel, user]| {
        [
            "null".to_owned(),
            quoted(kernel),
            "null".to_owned(),
            quoted(user),
        ]
    });
    assert_eq!(texts, want);
}

#[test]
fn upper_and_lower_case_of_two_captures_are_one_column() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let [upper, lower] = ["Len", "len"].map(|name| describe(&number(name, 8, 4, 1), "\"\""));
    let of = |text: &str, capture: u32| Event {
        recording: Recording {
            number: capture,
            ..Recording::default()
        },
        ..event("x", recorded("sys", text, &capture.to_le_bytes()))
    };
    let events = [of(&upper, 0), of(&lower, 1)];
    let all = [&formats(&[&upper]), &formats(&[&lower])];
    write(&path, &all, &events, false);
    let rows = rows(&path.join("events/system=sys/event=x/part-0.parquet"));
    let found: Vec<_> = rows.iter().map(|row| &row[COMMON.len()..]).collect();
    let want = [0, 1].map(|value| [("Len".to_owned(), Field::Int(value))]);
    assert_eq!(found, want);
}
