// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is not delivered waits in a queue.

use super::{
    push, pushed,
    server::{answer, pyroscope, Answer, Server},
    stderr, Got,
};
use std::{
    fs,
    os::unix::fs::{symlink, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// A directory that a queue can be in, and its path.
fn place() -> (TempDir, PathBuf, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue");
    let text = path.to_str().unwrap().to_owned();
    (dir, path, text)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn busy() -> Answer {
    Answer::Say(answer("503 Service Unavailable", "text/plain", "", b""))
}

/// The zones of the profiles that a server got, in their order.
fn zones(server: &Server) -> String {
    let requests = server.requests();
    let zones = requests
        .iter()
        .map(|it| Got::by_pyroscope(it).labels["zone"].clone());
    zones.collect::<Vec<_>>().join(" ")
}

/// Pushes a capture that is labelled with a zone.
fn of_zone<'a>(zone: &'a str, queue: &'a str, url: &'a str) -> [&'a str; 8] {
    [
        "--retries",
        "0",
        "--queue",
        queue,
        "--label",
        zone,
        url,
        "before.data",
    ]
}

#[test]
fn the_next_push_sends_what_waits() {
    let (_dir, dir, queue) = place();
    let server = Server::new(&[busy(), busy(), busy()], &pyroscope());
    let url = server.url();
    for zone in ["zone=a", "zone=b", "zone=c"] {
        let output = push(&of_zone(zone, &queue, &url));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(&queue), "{}", stderr(&output));
    }
    assert_eq!(names(&dir).len(), 3);
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    for name in names(&dir) {
        assert_eq!(fs::metadata(dir.join(name)).unwrap().mode() & 0o777, 0o600);
    }
    // The first one was tried each time, the others after it were not.
    assert_eq!(zones(&server), "a a a");
    let said = pushed(&of_zone("zone=d", &queue, &url));
    assert!(said.contains("4 profiles sent"), "{said}");
    assert_eq!(zones(&server), "a a a a b c d");
    assert!(names(&dir).is_empty());
    let said = pushed(&["--flush", "--queue", &queue, &url]);
    assert!(said.contains("0 profiles sent"), "{said}");
    assert_eq!(server.requests().len(), 7);
}

#[test]
fn an_error_with_one_profile_does_not_hold_up_the_others() {
    let (_dir, dir, queue) = place();
    let first = Server::new(&[busy(), busy()], &[]);
    let url = first.url();
    push(&of_zone("zone=a", &queue, &url));
    push(&of_zone("zone=b", &queue, &url));
    // The same server, as the queue has its address.
    let answers = |status| Answer::Say(answer(status, "text/plain", "", b""));
    let again = ["500 Internal Server Error", "400 Bad Request"].map(answers);
    let server = Server::new(&again, &pyroscope());
    for name in names(&dir) {
        let bytes = fs::read(dir.join(&name)).unwrap();
        let at = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let head = String::from_utf8(bytes[..at].to_vec())
            .unwrap()
            .replace(&url, &server.url());
        fs::write(dir.join(name), [head.as_bytes(), &bytes[at..]].concat()).unwrap();
    }
    let output = push(&of_zone("zone=c", &queue, &server.url()));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("2 profiles not delivered")
            && said.contains(&format!("left in {queue} for the next push: 1"))
            && said.contains("N.refused: 1"),
        "{said}"
    );
    assert_eq!(zones(&server), "a b c");
    assert_eq!(
        names(&dir),
        ["0000000000000000.profile", "0000000000000001.refused"]
    );
    pushed(&["--flush", "--queue", &queue, &server.url()]);
    assert_eq!(zones(&server), "a b c a");
    assert_eq!(names(&dir), ["0000000000000001.refused"]);
    // As the hint says.
    fs::rename(dir.join("0000000000000001.refused"), dir.join("1.profile")).unwrap();
    pushed(&["--flush", "--queue", &queue, &server.url()]);
    assert_eq!(zones(&server), "a b c a b");
    assert!(names(&dir).is_empty());
}

#[test]
fn what_is_pushed_again_waits_once() {
    let (_dir, dir, queue) = place();
    let server = Server::new(&[busy(), busy()], &pyroscope());
    for _ in 0..2 {
        let output = push(&of_zone("zone=a", &queue, &server.url()));
        let said = stderr(&output);
        assert!(said.contains("1 profile not delivered"), "{said}");
        assert_eq!(names(&dir), ["0000000000000000.profile"]);
    }
    pushed(&["--flush", "--queue", &queue, &server.url()]);
    assert_eq!(zones(&server), "a a a");
}

#[test]
fn a_small_queue_loses_nothing_while_the_server_is_there() {
    let (other, dir, queue) = place();
    let all = other.path().join("all.data");
    let all = all.to_str().unwrap();
    let captures = ["attack.data", "mixed.data", "questions.data", "user.data"];
    let many = other.path().join("many.data");
    let many = many.to_str().unwrap();
    crate::common::stdout(&[&["merge", "-o", all][..], &captures].concat());
    // Their profiles have more than a MiB together.
    crate::common::stdout(&[&["merge", "-o", many][..], &captures.repeat(12)].concat());
    let server = Server::new(&[], &pyroscope());
    let arguments = ["--retries", "0", "--queue-size", "1", "--queue", &queue];
    let said = pushed(&[&arguments[..], &[&server.url(), many]].concat());
    assert!(said.contains("48 profiles sent"), "{said}");
    assert_eq!(server.requests().len(), 48);
    // Without a server, each is kept once.
    let away = Server::new(&vec![busy(); 9], &pyroscope());
    for _ in 0..2 {
        let output = push(&[&arguments[..], &[&away.url(), all]].concat());
        let said = stderr(&output);
        assert!(said.contains("4 profiles not delivered"), "{said}");
        assert_eq!(names(&dir).len(), 4);
    }
    assert_eq!(away.requests().len(), 2);
}

#[test]
fn what_a_queue_loses_is_an_error() {
    let (_dir, dir, queue) = place();
    let away = Server::new(&vec![busy(); 9], &pyroscope());
    let url = away.url();
    push(&of_zone("zone=a", &queue, &url));
    // It grows to what a queue of one MiB takes, and the next one replaces it.
    let path = dir.join("0000000000000000.profile");
    let file = fs::File::options().append(true).open(&path).unwrap();
    file.set_len((1 << 20) - 100).unwrap();
    let small = [&["--queue-size", "1"][..], &of_zone("zone=b", &queue, &url)].concat();
    let output = push(&small);
    let said = stderr(&output);
    assert!(
        said.contains("the queue is full: 1 profile dropped"),
        "{said}"
    );
    assert!(said.contains("2 profiles not delivered"), "{said}");
    assert!(
        said.contains("for the next push: 1") && said.contains("not kept: 1"),
        "{said}"
    );
    assert_eq!(names(&dir), ["0000000000000001.profile"]);
}

#[test]
fn profiles_stay_for_the_server_that_they_are_for() {
    let (_dir, dir, queue) = place();
    let (one, other) = (
        Server::new(&[busy()], &pyroscope()),
        Server::new(&[], &pyroscope()),
    );
    push(&of_zone("zone=a", &queue, &one.url()));
    let said = pushed(&of_zone("zone=b", &queue, &other.url()));
    assert!(said.contains("1 profile for other servers"), "{said}");
    assert_eq!(zones(&other), "b");
    let said = pushed(&["--flush", "--to", "parca", "--queue", &queue, &one.url()]);
    assert!(said.contains("0 profiles sent"), "{said}");
    pushed(&["--flush", "--queue", &queue, &one.url()]);
    assert_eq!(zones(&one), "a a");
    assert!(names(&dir).is_empty());
}

#[test]
fn two_at_once_send_each_profile_once() {
    let (_dir, dir, queue) = place();
    let slow = Answer::Later(Duration::from_millis(700), pyroscope());
    let server = Server::new(&[slow], &pyroscope());
    let url = server.url();
    thread::scope(|scope| {
        for zone in ["zone=a", "zone=b", "zone=c"] {
            let (queue, url) = (&queue, &url);
            scope.spawn(move || pushed(&of_zone(zone, queue, url)));
        }
    });
    let mut zones: Vec<_> = zones(&server).split(' ').map(str::to_owned).collect();
    zones.sort();
    assert_eq!(zones, ["a", "b", "c"]);
    assert!(names(&dir).is_empty());
}

#[test]
fn other_users_have_no_part_in_a_queue() {
    let (_dir, dir, queue) = place();
    let server = Server::new(&[], &pyroscope());
    let url = server.url();
    fs::create_dir(&dir).unwrap();
    for mode in [0o770, 0o707, 0o1777] {
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        let output = push(&of_zone("zone=a", &queue, &url));
        assert!(stderr(&output).contains("chmod 700"), "{}", stderr(&output));
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let link = format!("{queue}-link");
    symlink(&dir, &link).unwrap();
    let not_there = format!("{queue}/a/b");
    for other in [&link[..], &not_there, "before.data"] {
        let output = push(&of_zone("zone=a", other, &url));
        assert!(
            stderr(&output).contains("as a queue"),
            "{}",
            stderr(&output)
        );
    }
    assert!(server.requests().is_empty());
    pushed(&of_zone("zone=a", &queue, &url));
}
