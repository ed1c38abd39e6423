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
    Queue::open(dir, size, Duration::ZERO)
}

#[test]
fn the_oldest_profiles_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let queue = open(dir.path(), 2000).unwrap();
    for byte in 0..3 {
        queue.add(&profile(byte, 400)).unwrap();
    }
    assert_eq!(queue.numbers().unwrap(), [0, 1, 2]);
    assert_eq!(queue.read(1).unwrap(), profile(1, 400));
    // Refused ones go first, however new they are.
    queue.set_aside(2).unwrap();
    assert_eq!(queue.numbers().unwrap(), [0, 1]);
    queue.add(&profile(3, 1000)).unwrap();
    assert_eq!(queue.numbers().unwrap(), [1, 3]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    queue.add(&profile(4, 10)).unwrap();
    assert_eq!(queue.numbers().unwrap(), [1, 3, 4]);
    // What has no room at all leaves the others.
    assert!(queue.add(&profile(5, 2000)).is_err());
    assert_eq!(queue.numbers().unwrap(), [1, 3, 4]);
    queue.remove(3).unwrap();
    queue.add(&profile(5, 10)).unwrap();
    assert_eq!(queue.numbers().unwrap(), [1, 4, 5]);
}

#[test]
fn other_files_stay_and_broken_ones_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["README", "x.profile", "1.data", ".stackmap-1"] {
        fs::write(at(name), "x").unwrap();
    }
    let queue = open(dir.path(), 1 << 20).unwrap();
    assert!(!at(".stackmap-1").exists() && at("README").exists());
    assert!(queue.numbers().unwrap().is_empty());
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
        let error = queue.read(0).unwrap_err().to_string();
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
