// SPDX-License-Identifier: MIT OR Apache-2.0

//! The page of `stackmap view`: what is in it, who may read it, and how it is served. What a browser
//! does with it is tested by `tests/view`.

use base64::{prelude::BASE64_STANDARD, Engine};
use flate2::read::GzDecoder;
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A user that is not root.
const NOBODY: u32 = 65534;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stackmap"));
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    command
        .args(arguments)
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .env_remove("SSH_CONNECTION")
        .current_dir(data);
    command
}

/// The page of a capture, and its data.
fn page(arguments: &[&str]) -> (String, Vec<u8>) {
    let output = command(&[&["view", "-o", "-"], arguments].concat()).output();
    let page = String::from_utf8(output.unwrap().stdout).unwrap();
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = data.split_once('<').unwrap();
    let data = BASE64_STANDARD.decode(data).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(&data[..]).read_to_end(&mut bytes).unwrap();
    (page, bytes)
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
    let output = command(&["export", "--format", "json", capture]).output();
    let json: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
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
    let events = list(&json["events"]).into_iter().filter_map(|event| {
        Some(Event {
            time: text(&event["time"]).replace('.', "").parse().unwrap(),
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
        let weighted = weight.map(|field| ["--weight", field]);
        let arguments = [weighted.as_ref().map_or(&[][..], |given| given), &[capture]].concat();
        let (meta, got) = decoded(&page(&arguments).1);
        for (number, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got, want, "{arguments:?}, event {number}");
        }
        assert_eq!(got.len(), want.len(), "{arguments:?}");
        assert_eq!(meta["unit"], weight.unwrap_or("events"));
        if weight.is_none() {
            assert_eq!(meta["notes"].as_array(), Some(&notes), "{capture}");
            assert_eq!(notes.is_empty(), capture != "full.data");
        }
    }
}

#[test]
fn a_title_has_no_directory() {
    let path = "../data/before.data";
    let (meta, _) = decoded(&page(&[path]).1);
    assert_eq!(meta["title"], "before.data");
    let path = "../data/questions.data";
    for arguments in [
        &["flame", "-o", "-"][..],
        &["offcpu", "--flame", "-"],
        &["leaks", "--flame", "-"],
        &["export", "--format", "firefox", "-o", "-"],
    ] {
        let text = command(&[arguments, &[path]].concat())
            .output()
            .unwrap()
            .stdout;
        // Where there are warnings, Firefox shows these in its place.
        let named = arguments[0] == "export" || has(&text, "questions.data");
        assert!(
            named && !text.is_empty() && !has(&text, "../data"),
            "{arguments:?}"
        );
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
    let (page, data) = page(&["--title", title, "before.data"]);
    assert!(has(&data, "kmalloc") && has(&data, "</script><script>x"));
    for word in ["kmalloc", "schedule", "<script>x", "before.data"] {
        assert!(!page.contains(word), "{word}");
    }
    assert_eq!(page.matches("<script").count(), 2);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
}

#[test]
fn the_policy_names_the_one_script() {
    let (page, _) = page(&["before.data"]);
    let nonce = page.split("script-src 'nonce-").nth(1).unwrap();
    let (nonce, _) = nonce.split_once('\'').unwrap();
    assert!(page.contains("content=\"default-src 'none'; "));
    assert_eq!(
        page.matches(&format!("<script nonce=\"{nonce}\">")).count(),
        1
    );
    assert_eq!(
        page.matches(&format!("<style nonce=\"{nonce}\">")).count(),
        1
    );
}

#[test]
fn addresses_are_shown_on_request() {
    let dir = tempfile::tempdir().unwrap();
    // Symbols of another kernel name nothing.
    let none = dir.path().join("kallsyms");
    fs::write(&none, "0000000000001000 t nothing\n").unwrap();
    let none = none.to_str().unwrap();
    let hidden = page(&["--kallsyms", none, "before.data"]).1;
    assert!(has(&hidden, "[unknown]") && !has(&hidden, "0xffffffff"));
    let given = page(&["--kallsyms", none, "--addresses", "before.data"]).1;
    assert!(has(&given, "0xffffffff"));
    for (more, mode) in [(None, 0o644), (Some("--addresses"), 0o600)] {
        let path = dir.path().join("page.html");
        let mut view = command(&["view", "before.data", "-o"]);
        // A file of another mode would keep it.
        let _ = fs::remove_file(&path);
        let output = view.arg(&path).args(more).output().unwrap();
        assert!(output.status.success());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
    }
}

#[test]
fn a_map_without_events_is_refused() {
    let output = command(&["view", "-o", "-", "stack_map_bin"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("has no events that could be shown"), "{text}");
}

/// A process that is not left behind by a test that fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[test]
fn the_page_is_served_once() {
    let mut child = Running(
        command(&["view", "--once", "before.data"])
            .env("SSH_CONNECTION", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    // Behind notes on what is missing in the recording.
    let line = lines.find_map(|line| line.ok().filter(|line| line.contains("the page is at")));
    let line = line.unwrap();
    let address = line
        .strip_prefix("the page is at http://127.0.0.1:")
        .unwrap();
    let (port, rest) = address.split_once('/').unwrap();
    let secret = rest.strip_suffix("/ until it was read").unwrap();
    let hint = lines.next().unwrap().unwrap();
    assert!(
        hint.ends_with(&format!("ssh -L {port}:127.0.0.1:{port} HOST")),
        "{hint}"
    );
    let ask = |path: &str, host: &str| {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(ask("/", "localhost").starts_with("HTTP/1.1 404 "));
    let path = format!("/{secret}/");
    assert!(ask(&path, "evil.example").starts_with("HTTP/1.1 421 "));
    let text = ask(&path, "localhost");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"));
    // The policy of the head is that of the page, and its script is allowed.
    let policy = text.split("Content-Security-Policy: ").nth(1).unwrap();
    let (policy, _) = policy.split_once("; frame-ancestors").unwrap();
    assert!(text.contains(&format!("content=\"{policy}\"")));
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn a_browser_is_started_for_users() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mode = |name, mode| fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    mode("", 0o777);
    fs::write(at("xdg-open"), "#!/bin/sh\necho \"$1\" >\"$LOG\"\n").unwrap();
    mode("xdg-open", 0o755);
    // Another user may not reach where they are. A file that a fork has open for writing cannot be run.
    let copied = Command::new("cp")
        .args([env!("CARGO_BIN_EXE_stackmap"), "tests/data/before.data"])
        .arg(dir.path())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(copied.unwrap().success());
    let is_root = rustix::process::geteuid().is_root();
    // The one that starts a browser is the last one: until then, the others would have.
    for (number, (more, screen, user, starts)) in [
        (None, "DISPLAY", 0, false),
        (Some("--no-browser"), "DISPLAY", NOBODY, false),
        (Some("--addresses"), "DISPLAY", NOBODY, false),
        (None, "NO_DISPLAY", NOBODY, false),
        (None, "WAYLAND_DISPLAY", NOBODY, true),
        (None, "DISPLAY", NOBODY, true),
    ]
    .into_iter()
    .enumerate()
    {
        if user == 0 && !is_root {
            continue;
        }
        let log = at(&number.to_string());
        let mut view = Command::new(at("stackmap"));
        view.args(["view", "--once", "before.data"])
            .args(more)
            .env_clear()
            .env("PATH", dir.path())
            .env("LOG", &log)
            .env(screen, "1")
            .current_dir(dir.path())
            .stderr(Stdio::piped());
        if is_root {
            view.uid(user).gid(user);
        }
        let mut child = Running(view.spawn().unwrap());
        let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
        let url = lines
            .find_map(|line| Some(line.ok()?.strip_prefix("the page is at ")?.to_owned()))
            .unwrap();
        let url = url.split(' ').next().unwrap();
        let (host, path) = url
            .strip_prefix("http://")
            .unwrap()
            .split_once('/')
            .unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(child.0.wait().unwrap().success());
        let opened = || fs::read_to_string(&log).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(10);
        while starts && !opened().ends_with('\n') && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        let want = if starts {
            format!("{url}\n")
        } else {
            String::new()
        };
        assert_eq!(opened(), want, "{more:?} {screen} {user}");
    }
    let names = fs::read_dir(&dir).unwrap().count();
    assert_eq!(names, 3 + 2);
}
