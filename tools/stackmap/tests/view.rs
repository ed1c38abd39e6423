// SPDX-License-Identifier: MIT OR Apache-2.0

//! The page of `stackmap view`: what is in it, who may read it, and how it is served. What a browser
//! does with it is tested by `tests/view`.

use base64::{prelude::BASE64_STANDARD, Engine};
use flate2::read::GzDecoder;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

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
