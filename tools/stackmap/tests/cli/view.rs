// SPDX-License-Identifier: MIT OR Apache-2.0

//! The page of `stackmap view`: what is in it, where it is written, and who opens it. What a browser
//! does with it is tested by `tests/view`.

use super::tool::{command, data, events, json, micros, mode, run, stdout, unpacked, Dir, Ran};
use base64::{prelude::BASE64_STANDARD, Engine};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// A user that is not root.
const NOBODY: u32 = 65534;

/// The page of a capture, and its data.
fn page(arguments: &str) -> (String, Vec<u8>) {
    let page = stdout(format!("view -o - {arguments}"));
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = data.split_once('<').unwrap();
    let data = unpacked(&BASE64_STANDARD.decode(data).unwrap());
    (page, data)
}

/// Reads the data of a page, as its script does.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> u64 {
        let len = self.0.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        let digits = bytes.iter().rev();
        digits.fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
    }

    fn text(&mut self) -> String {
        let len = self.number() as usize;
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn table<T>(&mut self, mut row: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let len = self.number();
        (0..len).map(|_| row(self)).collect()
    }
}

/// What a page and an export have of an event. Frames are innermost first.
#[derive(Clone, Debug, Default, PartialEq)]
struct Event {
    time: u64,
    cpu: u64,
    event: String,
    task: (u64, String),
    weight: u64,
    stack: Vec<String>,
}

/// What is said of all events in the data of a page, and the events.
fn decoded(data: &[u8]) -> (Value, Vec<Event>) {
    let mut data = Reader(data);
    let meta: Value = serde_json::from_str(&data.text()).unwrap();
    let names = data.table(|data| (data.number(), data.text()).1);
    let nodes = data.table(|data| (data.number(), data.number() as usize));
    let kinds = data.table(Reader::text);
    let tasks = data.table(|data| (data.number(), data.text()));
    let mut events = data.table(|data| Event {
        time: data.number(),
        ..Event::default()
    });
    let mut time = meta["begin"].as_str().unwrap().parse().unwrap();
    for event in &mut events {
        time += event.time;
        event.time = time;
    }
    events
        .iter_mut()
        .for_each(|event| event.cpu = data.number());
    for event in &mut events {
        event.event = kinds[data.number() as usize].clone();
    }
    for event in &mut events {
        event.task = tasks[data.number() as usize].clone();
    }
    for event in &mut events {
        let mut node = data.number();
        while node > 0 {
            let (back, name) = nodes[node as usize - 1];
            event.stack.push(names[name].clone());
            node = if back > 0 { node - back } else { 0 };
        }
    }
    for event in &mut events {
        event.weight = match meta["weighted"].as_bool().unwrap() {
            true => data.number(),
            false => 1,
        };
    }
    assert!(data.0.is_empty());
    (meta, events)
}

/// The same of an export as JSON: the texts of its notes, and the events, in the order of time.
fn exported(capture: &str, weight: Option<&str>) -> (Vec<Value>, Vec<Event>) {
    let json = json(capture);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let name = |frame: &Value| match frame["module"].as_str() {
        Some(module) => format!("{} [{module}]", text(&frame["function"])),
        None => text(&frame["function"]),
    };
    let list = |value: &Value| value.as_array().unwrap().clone();
    let stacks = list(&json["stacks"]).into_iter().map(|stack| {
        let frames = list(&stack["frames"]).iter().map(name).collect();
        (stack["id"].as_u64().unwrap(), frames)
    });
    let stacks: HashMap<u64, Vec<String>> = stacks.collect();
    let events = events(&json).iter().filter_map(|event| {
        Some(Event {
            time: micros(event),
            cpu: event["cpu"].as_u64().unwrap(),
            event: text(&event["event"]),
            task: (event["pid"].as_u64().unwrap(), text(&event["comm"])),
            weight: match weight {
                Some(field) => event["values"][field].as_u64()?,
                None => 1,
            },
            stack: match event["stack"].as_u64() {
                Some(id) => stacks[&id].clone(),
                None => list(&event["frames"]).iter().map(text).collect(),
            },
        })
    });
    let mut events: Vec<_> = events.collect();
    events.sort_by_key(|event| event.time);
    let notes = list(&json["notes"]).into_iter();
    (notes.map(|note| note["text"].clone()).collect(), events)
}

#[test]
fn a_page_has_what_an_export_has() {
    for (capture, weight) in [
        ("full.data", None),
        ("mixed.data", None),
        ("mixed.data", Some("bytes_alloc")),
    ] {
        let (notes, want) = exported(capture, weight);
        // What is the same for all would not be compared.
        let cpus: HashSet<_> = want.iter().map(|event| event.cpu).collect();
        let tasks: HashSet<_> = want.iter().map(|event| &event.task).collect();
        assert!(cpus.len() > 1 && tasks.len() > 5 && want.len() > 80);
        let weighted = weight.map(|field| format!("--weight {field}"));
        let arguments = format!("{} {capture}", weighted.unwrap_or_default());
        let (meta, got) = decoded(&page(&arguments).1);
        for (number, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got, want, "{arguments}, event {number}");
        }
        assert_eq!(got.len(), want.len(), "{arguments}");
        assert_eq!(meta["unit"], weight.unwrap_or("events"));
        if weight.is_none() {
            assert_eq!(meta["notes"].as_array(), Some(&notes), "{capture}");
            assert_eq!(notes.is_empty(), capture != "full.data");
        }
    }
}

#[test]
fn a_title_has_no_directory() {
    let (meta, _) = decoded(&page("../data/before.data").1);
    assert_eq!(meta["title"], "before.data");
    for arguments in [
        "flame -o -",
        "offcpu --flame -",
        "leaks --flame -",
        "export --format firefox -o -",
    ] {
        let text = stdout(format!("{arguments} ../data/questions.data"));
        // Where there are warnings, Firefox shows these in its place.
        assert!(arguments.starts_with("export") || text.contains("questions.data"));
        assert!(!text.is_empty() && !text.contains("../data"), "{arguments}");
    }
}

fn has(bytes: &[u8], part: &str) -> bool {
    bytes
        .windows(part.len())
        .any(|window| window == part.as_bytes())
}

#[test]
fn a_name_is_in_the_data_only() {
    let title = "</script><script>x</script>{data}";
    let (page, data) = page(&format!("--title {title} before.data"));
    assert!(has(&data, "kmalloc") && has(&data, "</script><script>x"));
    for word in ["kmalloc", "schedule", "<script>x", "before.data"] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(page.matches("<script").count(), 2);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
}

#[test]
fn addresses_are_shown_on_request() {
    let dir = Dir::new();
    // Symbols of another kernel name nothing.
    let none = dir.put("kallsyms", "0000000000001000 t nothing\n");
    let arguments = format!("--kallsyms {none} before.data");
    let (_, hidden) = page(&arguments);
    assert!(has(&hidden, "[unknown]") && !has(&hidden, "0xffffffff"));
    let (_, given) = page(&format!("{arguments} --addresses"));
    assert!(has(&given, "0xffffffff"));
    // A file of another mode would keep it.
    for (more, want) in [("", 0o644), ("--addresses", 0o600)] {
        let path = dir.at(&format!("page{more}.html"));
        stdout(format!("view before.data {more} -o {path}"));
        assert_eq!(mode(&path), want);
    }
}

#[test]
fn the_page_is_beside_the_capture() {
    let dir = Dir::new();
    let capture = dir.put("a.data", fs::read(data("before.data")).unwrap());
    let page = dir.at("a.data.html");
    for _ in 0..2 {
        let ran = run(format!("view {capture}")).well();
        let want = format!("the page is {page}\n");
        assert!(ran.stderr.ends_with(&want), "{}", ran.stderr);
        assert!(ran.stdout.is_empty());
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"));
        // What is replaced is a page, whatever is in it.
        fs::write(&page, text.replace("</html>", "")).unwrap();
    }
    fs::write(&page, "<!DOCTYPE html>").unwrap();
    for (path, want) in [
        (&capture[..], "is no page of \"stackmap view\", and stays"),
        ("-", "name a file with -o"),
    ] {
        let mut view = command(format!("view {path}"));
        let output = view.stdin(File::open(&capture).unwrap()).output();
        Ran::from(output.unwrap()).failed(1, want);
    }
    assert_eq!(fs::read_to_string(&page).unwrap(), "<!DOCTYPE html>");
}

#[test]
fn a_browser_is_started_for_users() {
    let dir = Dir::new();
    let allow = |name, mode| fs::set_permissions(dir.at(name), PermissionsExt::from_mode(mode));
    allow(".", 0o777).unwrap();
    dir.put("xdg-open", "#!/bin/sh\necho \"$1\" >\"$LOG\"\n");
    allow("xdg-open", 0o755).unwrap();
    // Another user may not reach where they are. A file that a fork has open for writing cannot be run.
    let copied = Command::new("cp")
        .args([env!("CARGO_BIN_EXE_stackmap"), "before.data", &dir.at(".")])
        .current_dir(data("."))
        .status();
    assert!(copied.unwrap().success());
    let is_root = rustix::process::geteuid().is_root();
    // The one that starts a browser is the last one: until then, the others would have.
    for (number, (more, screen, user, starts)) in [
        (&[][..], "DISPLAY", 0, false),
        (&["-o", "other.html"], "DISPLAY", NOBODY, false),
        (&[], "NO_DISPLAY", NOBODY, false),
        (&[], "WAYLAND_DISPLAY", NOBODY, true),
        (&["--addresses"], "DISPLAY", NOBODY, true),
    ]
    .into_iter()
    .enumerate()
    {
        if user == 0 && !is_root {
            continue;
        }
        let log = dir.at(&number.to_string());
        let mut view = Command::new(dir.at("stackmap"));
        view.args(["view", "before.data"])
            .args(more)
            .env_clear()
            .env("PATH", dir.at("."))
            .env("LOG", &log)
            .env(screen, "1")
            .current_dir(&dir);
        if is_root {
            view.uid(user).gid(user);
        }
        Ran::from(view.output().unwrap()).well();
        let page = dir.at(more.get(1).unwrap_or(&"before.data.html"));
        fs::remove_file(&page).unwrap();
        let opened = || fs::read_to_string(&log).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(10);
        while starts && !opened().ends_with('\n') && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        let want = if starts {
            format!("{page}\n")
        } else {
            String::new()
        };
        assert_eq!(opened(), want, "{more:?} {screen} {user}");
    }
    assert_eq!(dir.nr_files(), 3 + 2);
}
