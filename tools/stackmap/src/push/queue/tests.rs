// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::push::Api;
use std::{collections::BTreeMap, os::unix::fs::PermissionsExt};

fn profile(byte: u8, len: usize) -> Profile {
    Profile {
        about: About {
            url: "http://a".to_owned(),
            api: Api::Pyroscope,
            labels: BTreeMap::from([("a".to_owned(), "b\n".to_owned())]),
        },
        pprof: vec![byte; len],
    }
}

fn open(dir: &Path, size: u64) -> Result<Queue> {
    Queue::open(dir, true, size, Duration::ZERO)
}

fn numbers(queue: &Queue) -> Vec<u64> {
    let waiting = queue.waiting().unwrap().into_iter();
    waiting.map(|waiting| waiting.number).collect()
}

/// A profile of the queue, as its file is called by itself.
fn waiting(number: u64) -> Waiting {
    let name = name_of(number, WAITS);
    Waiting { number, name }
}

#[test]
fn the_oldest_profiles_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path(), 2000).unwrap();
    for byte in 0..3 {
        queue.add(&profile(byte, 400)).unwrap();
    }
    assert_eq!(numbers(&queue), [0, 1, 2]);
    assert_eq!(queue.read(&waiting(1)).unwrap(), profile(1, 400));
    // Refused ones go first, however new they are.
    queue.set_aside(&waiting(2)).unwrap();
    assert_eq!(numbers(&queue), [0, 1]);
    let added = queue.add(&profile(3, 1000)).unwrap();
    assert_eq!((added.waiting.number, &added.dropped[..]), (3, &[0][..]));
    assert_eq!(numbers(&queue), [1, 3]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    queue.add(&profile(4, 10)).unwrap();
    assert_eq!(numbers(&queue), [1, 3, 4]);
    // What has no room at all leaves the others.
    assert!(queue.add(&profile(5, 2000)).is_err());
    assert_eq!(numbers(&queue), [1, 3, 4]);
    queue.remove(&waiting(3)).unwrap();
    queue.add(&profile(5, 10)).unwrap();
    assert_eq!(numbers(&queue), [1, 4, 5]);
}

#[test]
fn other_files_stay_and_broken_ones_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let unfinished = ".stackmap-0123456789abcdef";
    let others = [
        "README",
        "x.profile",
        "1.data",
        ".stackmap-1",
        ".stackmap-0123456789abcdeg",
    ];
    for name in others.iter().chain([&unfinished]) {
        fs::write(at(name), "x").unwrap();
    }
    fs::create_dir(at("5.profile")).unwrap();
    let queue = open(dir.path(), 1 << 20).unwrap();
    assert!(!at(unfinished).exists() && others.iter().all(|name| at(name).exists()));
    assert!(numbers(&queue).is_empty());
    queue.add(&profile(7, 10)).unwrap();
    let good = fs::read(at("0000000000000000.profile")).unwrap();
    let line_end = good.iter().position(|byte| *byte == b'\n').unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    for broken in [
        &[][..],
        b"\n",
        &good[..line_end],
        text.replace("stackmap-push", "stackmap-pull").as_bytes(),
        text.replace("\"version\":1", "\"version\":2").as_bytes(),
        text.replace("pyroscope", "other").as_bytes(),
        &[b"{\"a\":\"", &[b' '; MAX_HEAD][..], b"\"}\n"].concat(),
    ] {
        fs::write(at("0000000000000000.profile"), broken).unwrap();
        let error = queue.read(&waiting(0)).unwrap_err().to_string();
        assert!(error.contains("not a profile of a queue"), "{error}");
    }
}

#[test]
fn only_one_process_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let one = open(dir.path(), 1).unwrap();
    let error = open(dir.path(), 1).err().unwrap().to_string();
    assert!(error.contains("another process"), "{error}");
    drop(one);
    open(dir.path(), 1).unwrap();
}

#[test]
fn it_is_as_large_as_it_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let len = {
        let queue = open(dir.path(), 1 << 20).unwrap();
        queue.add(&profile(0, 100)).unwrap();
        fs::metadata(dir.path().join(name_of(0, WAITS)))
            .unwrap()
            .len()
    };
    let queue = open(dir.path(), 2 * len).unwrap();
    assert!(queue.add(&profile(1, 100)).unwrap().dropped.is_empty());
    assert_eq!(queue.add(&profile(2, 100)).unwrap().dropped, [0]);
    assert!(queue.add(&profile(3, 100 + len as usize)).is_ok());
    assert!(queue.add(&profile(4, 101 + len as usize)).is_err());
    assert_eq!(numbers(&queue), [3]);
    let mut long = profile(5, 1);
    long.about
        .labels
        .insert("b".to_owned(), "x".repeat(MAX_HEAD));
    let queue = {
        drop(queue);
        open(dir.path(), 1 << 20).unwrap()
    };
    let error = queue.add(&long).unwrap_err().to_string();
    assert!(error.contains("labels"), "{error}");
}

#[test]
fn what_waits_is_not_added_again() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path(), 1 << 20).unwrap();
    for (byte, number) in [(0, 0), (1, 1), (0, 0), (1, 1), (2, 2)] {
        assert_eq!(
            queue.add(&profile(byte, 10)).unwrap().waiting,
            waiting(number)
        );
    }
    let mut other = profile(0, 10);
    other.about.api = Api::Parca;
    assert_eq!(queue.add(&other).unwrap().waiting, waiting(3));
    // What was refused is sent again by whoever adds it again.
    queue.set_aside(&waiting(0)).unwrap();
    assert_eq!(queue.add(&profile(0, 10)).unwrap().waiting, waiting(4));
}

#[test]
fn files_may_have_other_names_and_any_number() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path(), 1 << 20).unwrap();
    queue.add(&profile(0, 10)).unwrap();
    queue.set_aside(&waiting(0)).unwrap();
    fs::rename(
        dir.path().join(name_of(0, REFUSED)),
        dir.path().join("7.profile"),
    )
    .unwrap();
    let [renamed] = &queue.waiting().unwrap()[..] else {
        panic!();
    };
    assert_eq!(queue.read(renamed).unwrap(), profile(0, 10));
    queue.set_aside(renamed).unwrap();
    assert!(dir.path().join(name_of(7, REFUSED)).exists());
    queue.add(&profile(1, 10)).unwrap();
    assert_eq!(numbers(&queue), [8]);
    let last = dir.path().join(format!("{}.profile", u64::MAX));
    fs::rename(dir.path().join(name_of(8, WAITS)), &last).unwrap();
    let error = queue.add(&profile(2, 10)).unwrap_err().to_string();
    assert!(error.contains("last number") && last.exists(), "{error}");
}
