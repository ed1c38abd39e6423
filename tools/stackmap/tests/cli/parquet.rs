// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables are read back by the reader of the crate that wrote them, and compared with the JSON export.

use super::tool::{data, events, json, mode, run, stdout, Dir, Members};
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Field,
};
use serde_json::{json, Map, Value};
use stackmap::capture::{ClockReading, Clocks};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::PathBuf,
};

pub(crate) type Row = BTreeMap<String, Value>;

fn value(field: &Field) -> Value {
    match field {
        Field::Bool(flag) => json!(flag),
        Field::Int(number) => json!(number),
        Field::Long(number) => json!(number),
        Field::Str(text) => json!(text),
        Field::MapInternal(map) => {
            let text = |field: &Field| value(field).as_str().unwrap().to_owned();
            let entries = map.entries().iter();
            json!(entries
                .map(|(key, of)| (text(key), value(of)))
                .collect::<Map<_, _>>())
        }
        other => panic!("{other:?}"),
    }
}

const TABLES: [&str; 4] = ["captures", "stacks", "frames", "events"];

/// Returns the directories of captures in a table.
fn partitions(tables: &str, table: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("{tables}/{table}")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Returns the rows of a table of the only capture; a column without a value is not there.
pub(crate) fn rows(tables: &str, table: &str) -> Vec<Row> {
    let [capture] = &partitions(tables, table)[..] else {
        panic!("several captures");
    };
    let file = File::open(capture.join("part.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let row = |row: parquet::record::Row| {
        let columns = row.into_columns().into_iter();
        let there = columns.filter(|(_, field)| *field != Field::Null);
        there.map(|(name, field)| (name, value(&field))).collect()
    };
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|found| row(found.unwrap())).collect()
}

/// Writes the tables of a capture.
fn export(tables: &str, arguments: &str) {
    stdout(format!("export --format parquet -o {tables} {arguments}"));
}

/// What an event of the JSON export is as a row, without its fields.
fn common_of(event: &Value, ids: &BTreeMap<(&str, u64), Value>) -> Row {
    let mut row = Row::new();
    for (from, to) in [
        ("cpu", "cpu"),
        ("pid", "pid"),
        ("tgid", "tgid"),
        ("comm", "comm"),
        ("event", "name"),
        ("stable_id", "stack_id"),
    ] {
        row.extend(event.get(from).map(|value| (to.to_owned(), value.clone())));
    }
    for (stack, missing) in [("stack", "missing"), ("user_stack", "user_missing")] {
        if let Some(id) = event.get(stack) {
            let id = ids[&(stack, id.as_u64().unwrap())].clone();
            row.insert(format!("{stack}_id"), id);
        }
        if let Some(missing) = event.get(missing) {
            row.insert(format!("{stack}_missing"), missing["why"].clone());
        }
    }
    row
}

/// The fields that are numbers, of 64 bits with a sign.
fn fields_of(event: &Value) -> Value {
    let values = event.get("values").and_then(Value::as_object);
    let numbers = values.into_iter().flatten().filter_map(|(name, value)| {
        let number = value
            .as_i64()
            .or(value.as_u64().map(|number| number as i64))?;
        Some((name.clone(), json!(number)))
    });
    numbers.collect::<Map<_, _>>().into()
}

/// What a frame of the JSON export is as a row.
fn frame_row(frame: &Value, is_user: bool) -> Row {
    let mut row = Row::new();
    for (from, to) in [
        ("offset", "function_offset"),
        ("file", "source_file"),
        ("line", "source_line"),
        (if is_user { "address" } else { "ip" }, "address"),
        ("function", "function"),
        ("module", "module"),
        ("path", "path"),
        ("build_id", "build_id"),
        ("file_offset", "file_offset"),
    ] {
        if let Some(value) = frame.get(from).filter(|value| !value.is_null()) {
            row.insert(to.to_owned(), value.clone());
        }
    }
    let inlined = frame.get("inlined").cloned().unwrap_or(json!(false));
    row.insert("inlined".to_owned(), inlined);
    row
}

/// What an event is known by.
fn name_of(event: &Value) -> [&Value; 4] {
    ["time", "cpu", "pid", "event"].map(|key| &event[key])
}

/// Compares the tables of a capture with its export as JSON; returns how many events it has.
fn compare(capture: &str, options: &str) -> usize {
    let dir = Dir::new();
    let tables = dir.at("tables");
    export(&tables, &format!("{options} {capture}"));
    let has_text = options.contains("--text");
    let options = options.replace("--text", "");
    // With --plumbing, stacks have more frames, too.
    let [json, all] = ["", "--plumbing"].map(|more| json(format!("{options} {more} {capture}")));

    let mut ids = BTreeMap::new();
    let mut frames_of = BTreeMap::new();
    for (list, stack) in [("stacks", "stack"), ("user_stacks", "user_stack")] {
        for of in json[list].as_array().into_iter().flatten() {
            ids.insert((stack, of["id"].as_u64().unwrap()), of["stable_id"].clone());
            let id = of["stable_id"].as_str().unwrap();
            frames_of.insert(id, (of, stack == "user_stack"));
        }
    }
    let mut referred = BTreeSet::new();
    let mut without_plumbing = Vec::new();
    let wanted = events(&all);
    let rows_of_events = rows(&tables, "events");
    assert_eq!(rows_of_events.len(), wanted.len());
    for (number, (mut row, event)) in rows_of_events.into_iter().zip(wanted).enumerate() {
        let [system, of, name] = ["system", "event", "name"].map(|column| row[column].clone());
        match name.as_str().unwrap().ends_with("()") {
            true => assert_eq!((system, of), (json!("ftrace"), json!("function"))),
            false => assert_eq!(of, name),
        }
        row.retain(|column, _| column != "system" && column != "event");
        assert_eq!(row.remove("number").unwrap(), json!(number));
        if row.remove("plumbing").unwrap() == false {
            without_plumbing.push(name_of(event));
        }
        let has_clocks = json.pointer("/manifest/clocks").is_some();
        assert_eq!(row.remove("real_time_ns").is_some(), has_clocks);
        assert_eq!(row.remove("host").as_ref(), json.pointer("/manifest/host"));
        let time = (row.remove("time").unwrap().as_u64().unwrap() + 500) / 1000;
        let time = format!("{}.{:06}", time / 1_000_000, time % 1_000_000);
        assert_eq!(json!(time), event["time"]);
        for column in ["stack_id", "user_stack_id"] {
            referred.extend(row.get(column).map(|id| id.as_str().unwrap().to_owned()));
        }
        if has_text {
            assert_eq!(row.remove("text").unwrap(), event["fields"]);
        }
        if event.get("frames").is_some() && event.get("stable_id").is_none() {
            row.remove("stack_id").unwrap();
        }
        assert_eq!(row.remove("fields").unwrap(), fields_of(event));
        assert_eq!(row, common_of(event, &ids), "{event}");
    }
    let shown: Vec<_> = events(&json).iter().map(name_of).collect();
    assert_eq!(without_plumbing, shown);

    let stacks = rows(&tables, "stacks");
    let frames = rows(&tables, "frames");
    let written = stacks
        .iter()
        .map(|row| row["stack_id"].as_str().unwrap().to_owned());
    assert_eq!(written.collect::<BTreeSet<_>>(), referred, "only these");
    assert_eq!(stacks.len(), referred.len());
    let mut frames_by: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &frames {
        let id = row["stack_id"].as_str().unwrap();
        frames_by.entry(id).or_default().push(row);
    }
    let mut nr_frames = 0;
    for stack in &stacks {
        let id = stack["stack_id"].as_str().unwrap();
        let own = &frames_by[id];
        nr_frames += own.len();
        assert_eq!(json!(own.len()), stack["frames"]);
        assert_eq!(
            stack["folded"].as_str().unwrap().split(';').count(),
            own.len()
        );
        // A full stack is in no list of stacks.
        let Some((of, is_user)) = frames_of.get(id) else {
            assert_eq!(stack["side"], "kernel");
            assert_eq!(stack["stable"], true);
            continue;
        };
        assert_eq!(stack["side"], if *is_user { "user" } else { "kernel" });
        assert_eq!(stack["stable"], of["stable"]);
        assert_eq!(stack.get("ends"), of.get("end"));
        for (depth, (row, frame)) in own.iter().zip(of["frames"].as_array().unwrap()).enumerate() {
            let mut want = frame_row(frame, *is_user);
            want.insert("depth".to_owned(), json!(depth));
            want.insert("stack_id".to_owned(), json!(id));
            assert_eq!(**row, want);
        }
        let frames = of["frames"].as_array().unwrap().iter().rev();
        for (frame, shown) in frames.zip(stack["folded"].as_str().unwrap().split(';')) {
            let function = frame["function"].as_str().unwrap_or("?");
            let name = match frame["module"].as_str() {
                Some(module) => format!("{function} [{module}]"),
                None => function.to_owned(),
            };
            assert!(name == "?" || name == shown, "{name} {shown}");
        }
    }
    assert_eq!(nr_frames, frames.len());

    let manifest = &json["manifest"];
    let [row] = &rows(&tables, "captures")[..] else {
        panic!("one capture");
    };
    let same = "release machine boot_id host duration_ns clock build_id tool page_size";
    for name in same.split(' ') {
        let value = manifest.get(name).filter(|value| **value != json!(""));
        assert_eq!(row.get(name), value, "{name}");
    }
    let lost = manifest["cpus"].as_array().unwrap().iter();
    let lost = lost.flat_map(|cpu| [&cpu["overrun"], &cpu["dropped"]]);
    let lost: u64 = lost.map(|number| number.as_u64().unwrap()).sum();
    assert_eq!(row["lost_events"], lost);
    let labels = manifest.get("labels").cloned().unwrap_or(json!({}));
    assert_eq!(row["labels"], labels);
    wanted.len()
}

#[test]
fn tables_have_what_json_has() {
    for (capture, least) in [
        ("before.data", 150),
        ("function.data", 4),
        ("full.data", 50),
        ("mixed.data", 500),
        ("questions.data", 13_000),
        ("user.data", 30),
    ] {
        let nr_events = compare(capture, "");
        assert!(nr_events >= least, "{capture}: {nr_events}");
    }
    let filtered = compare("mixed.data", "--text --addresses --event kmalloc");
    assert!(filtered > 50, "{filtered}");
    compare("user.data", "--text --kernel");
}

fn reading(trace: u64, realtime_ns: u64, error_ns: u64) -> ClockReading {
    ClockReading {
        trace,
        realtime_ns,
        error_ns,
        ..ClockReading::default()
    }
}

/// A capture with a host, labels and clocks.
#[test]
fn captures_say_where_and_when() {
    let dir = Dir::new();
    let [path, tables] = ["labelled.data", "tables"].map(|name| dir.at(name));
    let mut capture = Members::read(data("user.data"));
    let manifest = &mut capture.manifest;
    manifest.host = Some("web\u{fffd};1".to_owned());
    manifest.release.clear();
    manifest.labels = [("service", "web"), ("zone", "\u{e9}")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    manifest.clocks = Clocks {
        begin: Some(reading(5_000_000_000, 1_700_000_000_000_000_000, 700)),
        end: Some(reading(6_000_000_000, 1_700_000_002_000_000_000, 800)),
    };
    (manifest.cpus[0].overrun, manifest.cpus[0].dropped) = (3, 4);
    capture.write(&path);
    assert!(compare(&path, "") > 0);

    export(&tables, &path);
    let captures = rows(&tables, "captures");
    for (name, want) in [
        ("begin_time", 5_000_000_000),
        ("end_time", 6_000_000_000),
        ("begin_real_time_ns", 1_700_000_000_000_000_000),
        ("end_real_time_ns", 1_700_000_002_000_000_000),
        ("clock_error_ns", 800_u64),
        ("lost_events", 7),
    ] {
        assert_eq!(captures[0][name], want, "{name}");
    }
    for row in rows(&tables, "events") {
        let [time, real] = ["time", "real_time_ns"].map(|name| row[name].as_i64().unwrap());
        assert_eq!(real, 1_700_000_000_000_000_000 + 2 * (time - 5_000_000_000));
    }

    // One reading does not say how long a cycle is.
    for (clock, begin) in [
        ("global", Some(1_699_999_995_000_000_000_u64)),
        ("x86-tsc", None),
    ] {
        capture.manifest.clock = clock.to_owned();
        capture.manifest.clocks.end = None;
        capture.write(&path);
        fs::remove_dir_all(&tables).unwrap();
        export(&tables, &path);
        for row in rows(&tables, "events") {
            let real = row.get("real_time_ns").map(|real| real.as_u64().unwrap());
            let time = row["time"].as_u64().unwrap();
            assert_eq!(real, begin.map(|begin| begin + time));
        }
    }
}

#[test]
fn captures_are_appended_and_each_is_there_once() {
    let dir = Dir::new();
    let [tables, labelled] = ["tables", "labelled.data"].map(|name| dir.at(name));
    let copy = dir.put("copy.data", fs::read(data("user.data")).unwrap());
    let mut capture = Members::read(data("user.data"));
    capture.manifest.host = Some("web".to_owned());
    capture.write(&labelled);
    for (path, nr) in [
        ("user.data", 1),
        (&copy, 1),
        ("mixed.data", 2),
        (&labelled, 3),
        ("mixed.data", 3),
    ] {
        export(&tables, path);
        for table in TABLES {
            assert_eq!(partitions(&tables, table).len(), nr, "{path}");
        }
    }
    // Other filters replace the partition.
    let nr_empty = || {
        let all = TABLES.iter().flat_map(|table| partitions(&tables, table));
        let rows = all.map(|path| {
            let file = File::open(path.join("part.parquet")).unwrap();
            let reader = SerializedFileReader::new(file).unwrap();
            reader.metadata().file_metadata().num_rows()
        });
        rows.filter(|nr| *nr == 0).count()
    };
    assert_eq!(nr_empty(), 0);
    let command = format!("export --format parquet -o {tables} --comm nobody mixed.data");
    run(command).failed(2, "none of ");
    // All but the row of the capture.
    assert_eq!((nr_empty(), partitions(&tables, "events").len()), (3, 3));
}

#[test]
fn tables_are_private_with_addresses() {
    let dir = Dir::new();
    let tables = dir.at("tables");
    export(&tables, "--addresses user.data");
    for table in TABLES {
        let partition = &partitions(&tables, table)[0];
        assert_eq!(mode(partition), 0o700);
        assert_eq!(mode(partition.join("part.parquet")), 0o600);
    }
    // Nothing else is left.
    assert_eq!(dir.nr_files(), 1);
}

#[test]
fn kernel_addresses_are_there_on_request_only() {
    let dir = Dir::new();
    let tables = dir.at("tables");
    // No frame of the kernel has a name.
    let none = dir.put("none", "ffffffffffff0000 T none\n");
    // The last ones are errors.
    let is_of_kernel = |number: u64| (1 << 63..u64::MAX - 4095).contains(&number);
    let is_address = |value: Value| match value {
        Value::String(text) => {
            let mut words = text.split(|c: char| !c.is_ascii_hexdigit());
            words.any(|word| {
                word.len() == 16 && u64::from_str_radix(word, 16).is_ok_and(is_of_kernel)
            })
        }
        Value::Object(fields) => {
            let mut numbers = fields.values().filter_map(Value::as_i64);
            numbers.any(|number| is_of_kernel(number as u64))
        }
        _ => false,
    };
    let has_addresses = |arguments: &str| {
        export(&tables, &format!("--text {arguments}"));
        let all = TABLES.into_iter().flat_map(|table| rows(&tables, table));
        let found = all.flat_map(Row::into_values).any(is_address);
        fs::remove_dir_all(&tables).unwrap();
        found
    };
    for arguments in ["mixed.data", &format!("user.data --kallsyms {none}")] {
        assert!(!has_addresses(arguments), "{arguments}");
        assert!(has_addresses(&format!("{arguments} --addresses")));
    }
}
