// SPDX-License-Identifier: MIT OR Apache-2.0

//! The page of `stackmap view`: what is in it, where it is written, and who opens it. What a browser
//! does with it is tested by `tests/view`.

use super::tool::{command, contains, data, mode, run, stdout, unpacked, Dir, Ran};
use base64::{prelude::BASE64_STANDARD, Engine};
use std::{
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

#[test]
fn a_title_has_no_directory() {
    let (_, data) = page("../data/before.data");
    assert!(contains(&data, r#""title":"before.data""#));
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

#[test]
fn a_name_is_in_the_data_only() {
    let title = "</script><script>x</script>{data}";
    let (page, data) = page(&format!("--title {title} before.data"));
    assert!(contains(&data, "kmalloc") && contains(&data, "</script><script>x"));
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
    assert!(contains(&hidden, "[unknown]") && !contains(&hidden, "0xffffffff"));
    let (_, given) = page(&format!("{arguments} --addresses"));
    assert!(contains(&given, "0xffffffff"));
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
