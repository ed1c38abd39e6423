// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables of hostile captures, and of many rows.

use super::*;
use crate::{
    ring::{
        fields::{tests::recorded, Fields},
        format::tests::describe,
    },
    trace::Time,
};
use ::parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Field,
};
use std::fs::File;

fn event(name: &str, fields: Fields) -> Event {
    Event {
        comm: "a\u{fffd};\n\u{1f40c}".into(),
        pid: u32::MAX,
        ..Event::example(name, fields)
    }
}

const OPTIONS: Options = Options {
    addresses: true,
    text: false,
};

/// Writes events with their stacks as the capture "h1".
fn write<'e>(
    path: &Path,
    loaded: &Loaded,
    events: impl IntoIterator<Item = (&'e Event, Sides<'e>)>,
) {
    let manifest = Manifest::default();
    let of = (loaded, loaded.manifest.as_ref().unwrap_or(&manifest));
    let mut writer = Writer::new(path, "h1", Access::Umask, of, OPTIONS).unwrap();
    for (event, sides) in events {
        writer.event(event, sides).unwrap();
    }
    writer.finish().unwrap();
}

fn write_events(path: &Path, events: &[Event]) {
    let events = events.iter().map(|event| (event, Sides::NONE));
    write(path, &Loaded::default(), events);
}

fn reader(path: &Path, table: &str) -> SerializedFileReader<File> {
    let file = path.join(table).join("capture=h1/part.parquet");
    SerializedFileReader::new(File::open(file).unwrap()).unwrap()
}

fn rows(path: &Path, table: &str) -> Vec<Vec<(String, Field)>> {
    let reader = reader(path, table);
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().into_columns()).collect()
}

/// The fields of each event.
fn fields(path: &Path) -> Vec<Vec<(String, i64)>> {
    let entry = |(name, value): &(Field, Field)| match (name, value) {
        (Field::Str(name), Field::Long(value)) => (name.clone(), *value),
        other => panic!("{other:?}"),
    };
    let map = |row: Vec<(String, Field)>| match &row[14].1 {
        Field::MapInternal(map) => map.entries().iter().map(entry).collect(),
        other => panic!("{other:?}"),
    };
    rows(path, "events").into_iter().map(map).collect()
}

/// The description of an event with these fields.
fn described(fields: &str) -> String {
    describe(fields, "\"\"")
}

fn number(name: &str, at: usize, size: usize, signed: u8) -> String {
    format!("\tfield:t {name};\toffset:{at};\tsize:{size};\tsigned:{signed};\n")
}

#[test]
fn fields_are_numbers_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let description = [
        number("pid", 8, 4, 1),
        number("PID", 12, 4, 1),
        number("pid", 16, 4, 1),
        number("odd", 20, 1, 0),
        "\tfield:char list[4];\toffset:21;\tsize:4;\tsigned:0;\n".to_owned(),
        "\tfield:u16 array[2];\toffset:25;\tsize:4;\tsigned:0;\n".to_owned(),
        number("low", 29, 8, 1),
        number("high", 37, 8, 0),
    ]
    .concat();
    let mut data = Vec::new();
    for number in 1..4i32 {
        data.extend((-number).to_le_bytes());
    }
    data.extend([255, b'x', 0, 0, 0, 1, 0, 2, 0]);
    data.extend((-6i64).to_le_bytes());
    data.extend(u64::MAX.to_le_bytes());
    let text = described(&description);
    let of = |len: usize| event("x", recorded("sys", &text, &data[..len]));
    write_events(dir.path(), &[of(data.len()), of(8)]);
    let all = [
        ("pid", -1),
        ("PID", -2),
        ("odd", 255),
        ("low", -6),
        ("high", -1),
    ];
    let all = all.map(|(name, value)| (name.to_owned(), value));
    // The second event is too short for the others.
    assert_eq!(fields(dir.path()), [&all[..], &all[..2]]);
    let row = &rows(dir.path(), "events")[0];
    let at = |name: &str| &row.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!(*at("pid"), Field::Long(u32::MAX.into()));
    assert_eq!(*at("comm"), Field::Str("a\u{fffd};\n\u{1f40c}".to_owned()));
    assert_eq!(*at("system"), Field::Str("sys".to_owned()));
    assert_eq!(*at("text"), Field::Null);
}

#[test]
fn columns_do_not_depend_on_the_capture() {
    let dir = tempfile::tempdir().unwrap();
    let schemas = |path: &Path| {
        ["captures", "stacks", "frames", "events"].map(|table| {
            let reader = reader(path, table);
            format!("{:?}", reader.metadata().file_metadata().schema())
        })
    };
    let [none, some] = ["none", "some"].map(|name| dir.path().join(name));
    write_events(&none, &[]);
    let text = described(&number("a", 8, 4, 0));
    let sides = Sides {
        kernel: StackRef::Whole(&[0x10]),
        ..Sides::NONE
    };
    let of = event("x", recorded("sys", &text, &[1; 4]));
    write(&some, &Loaded::default(), [(&of, sides)]);
    assert_eq!(schemas(&none), schemas(&some));
    assert!(rows(&none, "events").is_empty() && rows(&none, "captures").len() == 1);
}

#[test]
fn rows_are_written_when_there_are_many() {
    let dir = tempfile::tempdir().unwrap();
    let nr_groups = |path: &Path| reader(path, "events").metadata().num_row_groups();
    let path = dir.path().join("rows");
    // A map is not divided where its values are encoded.
    let text = described(
        &(0..100)
            .map(|nr| number(&format!("f{nr}"), 8 + nr, 1, 0))
            .collect::<String>(),
    );
    let of = |number: usize| Event {
        time: Time::Nanos(number as u64),
        ..event(
            "x",
            recorded("sys", &text, &vec![number as u8; number % 101]),
        )
    };
    let events: Vec<_> = (0..1025).map(of).collect();
    write_events(&path, &events);
    assert!(nr_groups(&path) >= 3);
    let times: Vec<_> = rows(&path, "events")
        .iter()
        .map(|row| row[4].1.clone())
        .collect();
    let want: Vec<_> = (0..1025).map(Field::Long).collect();
    assert_eq!(times, want);
    for (number, fields) in fields(&path).iter().enumerate() {
        assert_eq!(fields.len(), number % 101);
        let is_right = |(_, value): &(String, i64)| *value == i64::from(number as u8);
        assert!(fields.iter().all(is_right));
    }

    // All rows together are bounded by their texts, too.
    let path = dir.path().join("texts");
    let text = "x".repeat(1 << 18);
    let events: Vec<_> = (0..9)
        .map(|number| event(&format!("{number}{text}"), Fields::default()))
        .collect();
    write_events(&path, &events);
    assert!(nr_groups(&path) > 2);
    assert_eq!(rows(&path, "events").len(), 9);
}

#[test]
fn what_is_missing_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let loaded = Loaded {
        manifest: Some(Manifest {
            generation: Some(1),
            reset: true,
            ..Manifest::default()
        }),
        slot_bits: Some(8),
        ..Loaded::default()
    };
    let event = event("x", Fields::default());
    let sides = [
        (0x001, UserRef::NotKept),
        (0x101, UserRef::Pending),
        (0x201, UserRef::Lost),
        (0x1ff, UserRef::Id(5)),
    ]
    .map(|(id, user)| Sides {
        kernel: StackRef::Id(id),
        user,
    });
    write(dir.path(), &loaded, sides.map(|sides| (&event, sides)));
    let rows = rows(dir.path(), "events");
    let found = rows
        .iter()
        .map(|row| [10, 11, 12, 13].map(|column| row[column].1.clone()));
    let want = [
        ["stale", "not kept"],
        ["unknown", "pending"],
        ["stale", "lost"],
        ["unknown", "stale"],
    ];
    let want = want.map(|[kernel, user]| {
        let text = |text: &str| Field::Str(text.to_owned());
        [Field::Null, text(kernel), Field::Null, text(user)]
    });
    assert_eq!(found.collect::<Vec<_>>(), want);
}
