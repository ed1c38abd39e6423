// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tables are read back by the reader of the crate that wrote them, and compared with the JSON export.

mod common;

use common::{run, stderr, stdout};
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Field,
};
use serde_json::{json, Value};
use stackmap::{
    capture::{member, Capture, ClockReading, Clocks, Manifest, Writer},
    stack_map_bin::LoadId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

type Row = BTreeMap<String, Value>;

fn value(field: &Field) -> Value {
    match field {
        Field::Bool(flag) => json!(flag),
        Field::Byte(number) => json!(number),
        Field::Short(number) => json!(number),
        Field::Int(number) => json!(number),
        Field::Long(number) => json!(number),
        Field::UByte(number) => json!(number),
        Field::UShort(number) => json!(number),
        Field::UInt(number) => json!(number),
        Field::ULong(number) => json!(number),
        Field::Str(text) => json!(text),
        Field::Decimal(number) => {
            let sign = if number.data()[0] & 0x80 == 0 {
                0
            } else {
                0xff
            };
            let mut bytes = [sign; 16];
            bytes[16 - number.data().len()..].copy_from_slice(number.data());
            let number = i128::from_be_bytes(bytes);
            u64::try_from(number).map_or_else(|_| json!(number as i64), |number| json!(number))
        }
        Field::MapInternal(map) => {
            let text = |field: &Field| value(field).as_str().unwrap().to_owned();
            let entries = map.entries().iter();
            json!(entries
                .map(|(key, of)| (text(key), value(of)))
                .collect::<serde_json::Map<_, _>>())
        }
        other => panic!("{other:?}"),
    }
}

/// The rows in a directory, file by file; a column without a value is not there.
fn rows(dir: &Path) -> Vec<Row> {
    let nr_files = fs::read_dir(dir).unwrap().count();
    let mut rows = Vec::new();
    for number in 0..nr_files {
        let file = File::open(dir.join(format!("part-{number}.parquet"))).unwrap();
        for row in SerializedFileReader::new(file)
            .unwrap()
            .get_row_iter(None)
            .unwrap()
        {
            let columns = row.unwrap().into_columns().into_iter();
            let there = columns.filter(|(_, field)| *field != Field::Null);
            rows.push(there.map(|(name, field)| (name, value(&field))).collect());
        }
    }
    rows
}

/// The directories of events, with their rows, by system and event.
fn events(dir: &Path) -> BTreeMap<(String, String), Vec<Row>> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let part = |path: &Path, key: &str| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_prefix(key).unwrap().to_owned()
    };
    let systems = list(&dir.join("events")).into_iter();
    let events = systems.flat_map(|system| {
        let events = list(&system).into_iter();
        events.map(move |event| (part(&system, "system="), event))
    });
    events
        .map(|(system, event)| ((system, part(&event, "event=")), rows(&event)))
        .collect()
}

/// What an event of the JSON export is as a row, without its fields.
fn common_of(event: &Value, ids: &BTreeMap<(&str, u64), Value>) -> Row {
    let mut row = Row::new();
    for name in ["cpu", "pid", "tgid", "comm"] {
        row.extend(
            event
                .get(name)
                .map(|value| (name.to_owned(), value.clone())),
        );
    }
    row.insert("name".to_owned(), event["event"].clone());
    let capture = event.get("capture").cloned().unwrap_or(json!(0));
    row.insert("capture".to_owned(), capture);
    for (stack, missing, column) in [
        ("stack", "missing", "stack_id"),
        ("user_stack", "user_missing", "user_stack_id"),
    ] {
        if let Some(id) = event.get(stack) {
            row.insert(
                column.to_owned(),
                ids[&(stack, id.as_u64().unwrap())].clone(),
            );
        }
        if let Some(missing) = event.get(missing) {
            let column = column.replace("_id", "_missing");
            row.insert(column, missing["why"].clone());
        }
    }
    if let Some(id) = event.get("stable_id") {
        row.insert("stack_id".to_owned(), id.clone());
    }
    row
}

/// The columns of the fields.
fn fields_of(event: &Value, common: &[&str]) -> Row {
    let Some(values) = event.get("values") else {
        return Row::new();
    };
    let numbers = values.as_object().unwrap().iter();
    let numbers = numbers.filter(|(_, value)| value.is_number());
    let column = |name: &String| match common.contains(&&name[..]) {
        true => format!("field_{name}"),
        false => name.clone(),
    };
    numbers
        .map(|(name, value)| (column(name), value.clone()))
        .collect()
}

const COMMON: [&str; 15] = [
    "capture",
    "number",
    "time",
    "real_time_ns",
    "cpu",
    "pid",
    "tgid",
    "comm",
    "name",
    "stack_id",
    "stack_missing",
    "user_stack_id",
    "user_stack_missing",
    "text",
    "system",
];

/// What a frame of the JSON export is as a row.
fn frame_row(frame: &Value, is_user: bool) -> Row {
    let mut row = Row::new();
    let renamed: &[(&str, &str)] = match is_user {
        true => &[
            ("offset", "function_offset"),
            ("file", "source_file"),
            ("line", "source_line"),
            ("address", "address"),
        ],
        false => &[
            ("offset", "function_offset"),
            ("file", "source_file"),
            ("line", "source_line"),
            ("ip", "address"),
        ],
    };
    let same = ["function", "module", "path", "build_id", "file_offset"];
    let same = same.iter().map(|name| (*name, *name));
    for (from, to) in renamed.iter().copied().chain(same) {
        if let Some(value) = frame.get(from).filter(|value| !value.is_null()) {
            row.insert(to.to_owned(), value.clone());
        }
    }
    let inlined = frame.get("inlined").cloned().unwrap_or(json!(false));
    row.insert("inlined".to_owned(), inlined);
    row
}

fn compare(capture: &str, options: &[&str]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("tables");
    let to = ["export", "--format", "parquet", "-o", dir.to_str().unwrap()];
    let arguments = [&to, options, &[capture]].concat();
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let options: Vec<_> = options
        .iter()
        .copied()
        .filter(|option| *option != "--text")
        .collect();
    let json = ["export", "--format", "json"];
    let json: Value =
        serde_json::from_str(&stdout(&[&json, &options[..], &[capture]].concat())).unwrap();
    let has_text = arguments.contains(&"--text");

    let mut ids = BTreeMap::new();
    let mut frames_of = BTreeMap::new();
    for (list, stack) in [("stacks", "stack"), ("user_stacks", "user_stack")] {
        for of in json
            .get(list)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            ids.insert((stack, of["id"].as_u64().unwrap()), of["stable_id"].clone());
            let id = of["stable_id"].as_str().unwrap();
            frames_of.insert(id, (of, stack == "user_stack"));
        }
    }
    // By name: those of a name are in order.
    let mut wanted: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for event in json["events"].as_array().unwrap() {
        wanted
            .entry(event["event"].as_str().unwrap())
            .or_default()
            .push(event);
    }
    let mut referred = BTreeSet::new();
    let (mut nr_events, mut numbers) = (0, BTreeSet::new());
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for ((system, of), rows) in events(&dir) {
        for mut row in rows {
            nr_events += 1;
            let name = row["name"].as_str().unwrap().to_owned();
            match name.ends_with("()") {
                true => assert_eq!((&system[..], &of[..]), ("ftrace", "function")),
                false => assert_eq!(of, name),
            }
            let at = seen.entry(name.clone()).or_default();
            let event = wanted[&name[..]][*at];
            *at += 1;
            let has_clocks = json.pointer("/manifest/clocks").is_some();
            assert_eq!(row.remove("real_time_ns").is_some(), has_clocks);
            numbers.insert(row.remove("number").unwrap().as_u64().unwrap() as usize);
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
            let mut want = common_of(event, &ids);
            want.extend(fields_of(event, &COMMON));
            assert_eq!(row, want, "{event}");
        }
    }
    assert_eq!(nr_events, json["events"].as_array().unwrap().len());
    assert!(numbers.into_iter().eq(0..nr_events), "each once");

    let stacks = rows(&dir.join("stacks"));
    let frames = rows(&dir.join("frames"));
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
            // Its frames are texts without offsets.
            assert_eq!(stack["stable"], false);
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
        let names = of["frames"].as_array().unwrap().iter().rev().map(|frame| {
            let function = frame["function"].as_str().unwrap_or("?");
            match frame.get("module") {
                Some(module) => format!("{function} [{}]", module.as_str().unwrap()),
                None => function.to_owned(),
            }
        });
        let names: Vec<_> = names.collect();
        for (name, shown) in names
            .iter()
            .zip(stack["folded"].as_str().unwrap().split(';'))
        {
            assert!(name == "?" || name == shown, "{name} {shown}");
        }
    }
    assert_eq!(nr_frames, frames.len());

    let captures = rows(&dir.join("captures"));
    let one = [json["manifest"].clone()];
    let manifests = json
        .get("captures")
        .and_then(Value::as_array)
        .map_or(&one[..], |all| all);
    assert_eq!(captures.len(), manifests.len());
    for (number, (row, manifest)) in captures.iter().zip(manifests).enumerate() {
        assert_eq!(row["capture"], json!(number));
        for name in [
            "release",
            "machine",
            "boot_id",
            "host",
            "duration_ns",
            "clock",
            "build_id",
            "tool",
            "page_size",
        ] {
            let told = manifest.get(name).filter(|value| **value != json!(""));
            assert_eq!(row.get(name), told, "{name}");
        }
        let lost = manifest["cpus"].as_array().unwrap().iter();
        let lost = lost.flat_map(|cpu| [&cpu["overrun"], &cpu["dropped"]]);
        let lost: u64 = lost.map(|number| number.as_u64().unwrap()).sum();
        assert_eq!(row["lost_events"], lost);
        let labels = manifest.get("labels").cloned().unwrap_or(json!({}));
        assert_eq!(row["labels"], labels);
    }
    nr_events
}

#[test]
fn tables_have_what_json_has() {
    for (capture, least) in [
        ("before.data", 200),
        ("function.data", 4),
        ("full.data", 50),
        ("mixed.data", 500),
        ("overwritten.data", 50),
        ("user.data", 40),
    ] {
        let nr_events = compare(capture, &[]);
        assert!(nr_events >= least, "{capture}: {nr_events}");
    }
    let filtered = compare(
        "mixed.data",
        &["--text", "--addresses", "--event", "kmalloc"],
    );
    assert!(filtered > 50, "{filtered}");
    compare("user.data", &["--text", "--kernel"]);
}

#[test]
fn merged_captures_are_numbered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.data");
    let path = path.to_str().unwrap();
    let captures = ["mixed.data", "user.data", "questions.data"];
    stdout(&[&["merge", "-o", path], &captures[..]].concat());
    let nr_events = compare(path, &[]);
    assert!(nr_events > 15_000, "{nr_events}");
}

/// A capture like user.data, but for what it says of itself.
fn changed(path: &Path, change: impl FnOnce(&mut Manifest)) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let file = File::open(data.join("user.data")).unwrap();
    let mut zip = zip::ZipArchive::new(file).unwrap();
    let mut writer = Writer::create(path).unwrap();
    for index in 0..zip.len() {
        let mut content = Vec::new();
        let mut from = zip.by_index(index).unwrap();
        from.read_to_end(&mut content).unwrap();
        let name = from.name().unwrap();
        if name != member::MANIFEST {
            writer.member(&name, &mut &content[..]).unwrap();
        }
    }
    let capture = Capture::open(&data.join("user.data")).unwrap();
    let mut manifest = capture.manifest().clone();
    change(&mut manifest);
    writer.finish(&manifest).unwrap();
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
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("labelled.data");
    changed(&path, |manifest| {
        manifest.host = Some("web\u{fffd};1".to_owned());
        manifest.release.clear();
        manifest.labels = [("service", "web"), ("zone", "\u{e9}")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        manifest.clocks = Clocks {
            begin: Some(reading(5_000_000_000, 1_700_000_000_000_000_000, 700)),
            end: Some(reading(6_000_000_000, 1_700_000_002_000_000_000, 800)),
        };
    });
    let path = path.to_str().unwrap();
    assert!(compare(path, &[]) > 0);

    let tables = dir.path().join("tables");
    let to = tables.to_str().unwrap();
    stdout(&["export", "--format", "parquet", "-o", to, path]);
    let captures = rows(&tables.join("captures"));
    let number = |name: &str| captures[0][name].as_u64().unwrap();
    assert_eq!(number("begin_time"), 5_000_000_000);
    assert_eq!(number("end_time"), 6_000_000_000);
    assert_eq!(number("begin_real_time_ns"), 1_700_000_000_000_000_000);
    assert_eq!(number("end_real_time_ns"), 1_700_000_002_000_000_000);
    assert_eq!(number("clock_error_ns"), 800);
    for row in events(&tables).into_values().flatten() {
        let [time, real] = ["time", "real_time_ns"].map(|name| row[name].as_u64().unwrap());
        assert_eq!(real, 1_700_000_000_000_000_000 + 2 * (time - 5_000_000_000));
    }
}

#[test]
fn a_directory_is_written_once_and_is_private_with_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tables");
    let path = path.to_str().unwrap();
    let export = |more: &[&str]| {
        let command = ["export", "--format", "parquet", "user.data"];
        run(&[&command, more].concat())
    };
    assert!(export(&["--addresses", "-o", path]).status.success());
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path), 0o700);
    assert_eq!(mode(&format!("{path}/stacks/part-0.parquet")), 0o600);
    let again = export(&["-o", path]);
    assert!(
        stderr(&again).contains("has files already"),
        "{}",
        stderr(&again)
    );
    assert_eq!(again.status.code(), Some(1));
    for (arguments, want) in [
        (&[][..], "hint: -o DIR"),
        (&["--weight", "x", "-o", "y"], "--weight adds up"),
    ] {
        let said = stderr(&export(arguments));
        assert!(said.contains(want), "{said}");
    }
    let said = stderr(&run(&["export", "--format", "json", "--text", "user.data"]));
    assert!(said.contains("--text is for --format parquet"), "{said}");
    // Nothing else is left.
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn stacks_of_another_load_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gone.data");
    changed(&path, |manifest| manifest.load_id = LoadId::new(1));
    let path = path.to_str().unwrap();
    assert!(compare(path, &[]) > 0);
    let tables = dir.path().join("tables");
    let to = tables.to_str().unwrap();
    stdout(&["export", "--format", "parquet", "-o", to, path]);
    for column in ["stack_missing", "user_stack_missing"] {
        let rows = events(&tables).into_values().flatten();
        let gone = rows.filter(|row| row.get(column) == Some(&json!("gone")));
        assert!(gone.count() > 10, "{column}");
    }
}

#[test]
fn tables_without_rows_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let tables = dir.path().join("tables");
    let to = tables.to_str().unwrap();
    let nobody = ["--comm", "nobody", "user.data"];
    stdout(&[&["export", "--format", "parquet", "-o", to][..], &nobody].concat());
    assert!(!tables.join("events").exists());
    for (table, len) in [("stacks", 0), ("frames", 0), ("captures", 1)] {
        assert!(tables.join(table).join("part-0.parquet").exists());
        assert_eq!(rows(&tables.join(table)).len(), len);
    }
}

#[test]
fn real_times_are_by_the_clock_of_each_capture() {
    let dir = tempfile::tempdir().unwrap();
    let [early, late, cycles, all] = ["early", "late", "cycles", "all"].map(|name| {
        let path = dir.path().join(name);
        path.to_str().unwrap().to_owned()
    });
    for (path, clock, real) in [
        (&early, "global", 1_700_000_000_000_000_000),
        (&late, "global", 1_800_000_000_000_000_000),
        // One reading does not say how long a cycle is.
        (&cycles, "x86-tsc", 1_900_000_000_000_000_000),
    ] {
        changed(Path::new(path), |manifest| {
            manifest.clock = clock.to_owned();
            manifest.clocks.begin = Some(reading(0, real, 1));
        });
    }
    stdout(&["merge", "-o", &all, &early, &late, &cycles]);
    let tables = dir.path().join("tables");
    let to = tables.to_str().unwrap();
    stdout(&["export", "--format", "parquet", "-o", to, &all]);
    let mut seen = BTreeMap::new();
    for row in events(&tables).into_values().flatten() {
        let capture = row["capture"].as_u64().unwrap();
        *seen.entry(capture).or_insert(0) += 1;
        let real = row.get("real_time_ns").map(|real| real.as_u64().unwrap());
        let begin = [1_700_000_000_000_000_000, 1_800_000_000_000_000_000].get(capture as usize);
        let time = row["time"].as_u64().unwrap();
        assert_eq!(real, begin.map(|begin| begin + time));
    }
    assert!(seen.len() == 3 && seen[&0] == seen[&1] && seen[&1] == seen[&2]);
}

#[test]
fn kernel_addresses_are_there_on_request_only() {
    let dir = tempfile::tempdir().unwrap();
    let [tables, none] = ["tables", "none"].map(|name| dir.path().join(name));
    // No frame of the kernel has a name.
    fs::write(&none, "ffffffffffff0000 T none\n").unwrap();
    let [to, none] = [&tables, &none].map(|path| path.to_str().unwrap());
    // The last ones are errors.
    let is_of_kernel = |number: u64| (1 << 63..u64::MAX - 4095).contains(&number);
    let told = |arguments: &[&str]| {
        let command = ["export", "--format", "parquet", "--text", "-o", to];
        stdout(&[&command, arguments].concat());
        let others = ["stacks", "frames", "captures"].map(|name| rows(&tables.join(name)));
        let all = events(&tables).into_values().chain(others).flatten();
        let is_address = |value: Value| match value {
            Value::String(text) => {
                let mut words = text.split(|c: char| !c.is_ascii_hexdigit());
                words.any(|word| {
                    word.len() == 16 && u64::from_str_radix(word, 16).is_ok_and(is_of_kernel)
                })
            }
            value => value.as_u64().is_some_and(is_of_kernel),
        };
        let told = all.flat_map(Row::into_values).any(is_address);
        fs::remove_dir_all(&tables).unwrap();
        told
    };
    for arguments in [
        &["mixed.data"][..],
        &["full.data"],
        &["before.data", "--kallsyms", none],
        &["user.data", "--kallsyms", none],
    ] {
        assert!(!told(arguments), "{arguments:?}");
        assert!(
            told(&[arguments, &["--addresses"]].concat()),
            "{arguments:?}"
        );
    }
}
