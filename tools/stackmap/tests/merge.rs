// SPDX-License-Identifier: MIT OR Apache-2.0

//! Merged captures have all events of those that were merged, with the same stacks.

mod common;

use common::{run, stderr, stdout};
use serde_json::Value;
use stackmap::{
    capture::{member, Capture, Manifest, Writer},
    stack_map_bin::LoadId,
    user::{binaries::VDSO, words::Word},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// Of two kernels and several loads of the module; with user stacks, and whole stacks in place of ids.
const CAPTURES: [&str; 4] = ["attack.data", "mixed.data", "user.data", "questions.data"];

/// How often there is an event with all that it has, its stacks by their frames.
fn events(path: &str) -> BTreeMap<String, u32> {
    let text = stdout(&["export", "--format", "json", path]);
    let report = stdout(&["report", "--by", "host", path]);
    // These are older than the names of hosts in captures.
    assert!(report.contains("\n (unknown host) "), "{report}");
    let export: Value = serde_json::from_str(&text).unwrap();
    let stacks = |key: &str| -> BTreeMap<u64, String> {
        let stacks = export[key].as_array().map_or(&[][..], |stacks| stacks);
        let frames = |stack: &Value| {
            let mut frames = stack["frames"].clone();
            // The process of generated code may have another number; not in these captures.
            frames.as_array_mut().unwrap().push(stack["end"].clone());
            // Others are of one boot and one map.
            if stack["stable"] == true {
                let id = stack["stable_id"].clone();
                assert!(id.is_string());
                frames.as_array_mut().unwrap().push(id);
            }
            (stack["id"].as_u64().unwrap(), frames.to_string())
        };
        stacks.iter().map(frames).collect()
    };
    let (kernel, user) = (stacks("stacks"), stacks("user_stacks"));
    let mut events = BTreeMap::new();
    for event in export["events"].as_array().unwrap() {
        let mut event = event.clone();
        event.as_object_mut().unwrap().remove("capture");
        for (key, stacks) in [("stack", &kernel), ("user_stack", &user)] {
            if let Some(id) = event[key].as_u64() {
                event[key] = stacks[&id].clone().into();
            }
        }
        for key in ["missing", "user_missing"] {
            if event[key].is_object() {
                event[key].as_object_mut().unwrap().remove("id");
            }
        }
        *events.entry(event.to_string()).or_default() += 1;
    }
    events
}

fn sum(paths: &[&str]) -> BTreeMap<String, u32> {
    let mut sum = BTreeMap::new();
    for path in paths {
        for (event, count) in events(path) {
            *sum.entry(event).or_default() += count;
        }
    }
    sum
}

fn merge(output: &Path, captures: &[&str]) -> String {
    let mut arguments = vec!["merge", "-o", output.to_str().unwrap()];
    arguments.extend(captures);
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

/// The first that differ.
fn assert_same(one: &BTreeMap<String, u32>, other: &BTreeMap<String, u32>) {
    let lacks = |one: &BTreeMap<String, u32>, other: &BTreeMap<String, u32>| {
        let mut lacks = one
            .iter()
            .filter(|(event, count)| other.get(*event) != Some(count));
        lacks
            .next()
            .map(|(event, count)| format!("{count} {event}"))
    };
    assert_eq!(lacks(one, other), lacks(other, one));
}

#[test]
fn all_events_are_there_with_their_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged");
    let said = merge(&path, &CAPTURES);
    assert!(said.contains(": 4 captures, "), "{said}");
    let merged = events(path.to_str().unwrap());
    assert!(merged.values().sum::<u32>() > 10_000);
    assert_same(&merged, &sum(&CAPTURES));
}

#[test]
fn merged_captures_can_be_merged() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other, all] = ["one", "other", "all"].map(|name| dir.path().join(name));
    merge(&one, &["mixed.data", "user.data"]);
    merge(&other, &["user.data", "attack.data"]);
    let [one, other] = [&one, &other].map(|path| path.to_str().unwrap());
    let said = merge(&all, &[one, "questions.data", other]);
    assert!(said.contains(": 5 captures, "), "{said}");
    let want = [
        "mixed.data",
        "user.data",
        "user.data",
        "attack.data",
        "questions.data",
    ];
    assert_same(&events(all.to_str().unwrap()), &sum(&want));
}

#[test]
fn each_stack_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let count = |captures: &[&str]| {
        let path = dir.path().join("merged");
        let said = merge(&path, captures);
        let (_, counts) = said.trim().split_once(", ").unwrap();
        let number = |word: &str| word.split(' ').next().unwrap().parse::<u64>().unwrap();
        let counts: Vec<_> = counts.split(", ").map(number).collect();
        counts
    };
    for (name, alone) in [("questions.data", 0), ("user.data", 1)] {
        let [one, two] = [&[name; 1][..], &[name; 2]].map(count);
        assert_eq!(two[0], 2 * one[0], "records");
        assert_eq!(one[1], two[1], "stacks");
        // Generated code of a process of one capture is not that of a process of another.
        assert!(one[2] > 0 && two[2] == one[2] + alone, "user stacks");
    }
}

#[test]
fn what_is_shown_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged");
    let captures = ["mixed.data", "attack.data", "user.data"];
    merge(&path, &captures);
    let folded = |path: &str| {
        let mut folded = BTreeMap::new();
        for line in stdout(&["folded", path]).lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            // What is marked as the kernel's where there are user stacks, too.
            let stack = stack.replace("_[k]", "");
            *folded.entry(stack).or_insert(0) += count.parse::<u32>().unwrap();
        }
        folded
    };
    let mut want = BTreeMap::new();
    for (stack, count) in captures.iter().flat_map(|path| folded(path)) {
        *want.entry(stack).or_insert(0) += count;
    }
    let manifest = |path: &Path| Capture::open(path).unwrap().manifest().clone();
    let merged = manifest(&path);
    let all = captures.map(|name| manifest(&data(name)));
    let sum = |of: fn(&Manifest) -> u64| all.iter().map(of).sum::<u64>();
    assert_eq!(merged.duration_ns, sum(|one| one.duration_ns));
    let entries = |of: &Manifest| of.cpus.iter().map(|cpu| cpu.entries).sum::<u64>();
    assert_eq!(entries(&merged), sum(entries));
    assert_eq!(Some(merged.time), all.iter().map(|one| one.time).max());
    let common = all.iter().all(|one| one.clock == all[0].clock);
    assert_eq!(merged.clock, if common { &all[0].clock[..] } else { "" });
    let path = path.to_str().unwrap();
    assert_same(&folded(path), &want);
    let report = stdout(&["report", path]);
    assert!(report.contains(": 3 captures, Linux "), "{report}");
    let export: Value =
        serde_json::from_str(&stdout(&["export", "--format", "json", path])).unwrap();
    assert_eq!(export["captures"].as_array().unwrap().len(), 3);
    let of = export["events"].as_array().unwrap().iter();
    let mut of: Vec<_> = of.map(|event| event["capture"].as_u64().unwrap()).collect();
    of.dedup();
    assert_eq!(of, [0, 1, 2]);
}

fn data(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    tests.join("data").join(name)
}

/// A capture like another one, but for what it says of itself, and for what `change_member` makes of its members.
fn changed(
    like: &str,
    to: &Path,
    change: impl FnOnce(&mut Manifest),
    change_member: impl Fn(&str, &mut Vec<u8>),
) {
    let mut manifest = Capture::open(&data(like)).unwrap().manifest().clone();
    change(&mut manifest);
    let mut archive = zip::ZipArchive::new(File::open(data(like)).unwrap()).unwrap();
    let mut writer = Writer::create(to).unwrap();
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).unwrap();
        let name = member.name().unwrap().into_owned();
        if name == member::MANIFEST {
            continue;
        }
        let mut content = Vec::new();
        member.read_to_end(&mut content).unwrap();
        change_member(&name, &mut content);
        writer.member(&name, &mut &content[..]).unwrap();
    }
    writer.finish(&manifest).unwrap();
}

#[test]
fn why_stacks_are_missing_is_of_each_capture() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [gone, reset, odd] = ["gone", "reset", "odd"].map(path);
    let load = |manifest: &mut Manifest| manifest.load_id = LoadId::new(1);
    changed("user.data", Path::new(&gone), load, |_, _| {});
    let was_reset = |manifest: &mut Manifest| manifest.reset = true;
    changed("user.data", Path::new(&reset), was_reset, |_, _| {});
    // How often each of these stands for a stack.
    let missing = |path: &str| {
        let folded = stdout(&["folded", path]);
        let count = |why: &str| {
            let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap();
            let lines = folded.lines().filter(|line| line.contains(why));
            lines.map(count).sum::<u32>()
        };
        ["user_stack_id", "stale, ", "unknown>", "gone, "].map(count)
    };
    assert_eq!(missing(&gone), [25, 0, 0, 41]);
    for captures in [&[&gone[..]][..], &[&gone, "questions.data", &reset]] {
        merge(Path::new(&odd), captures);
        assert_eq!(missing(&odd), [25, 41, 0, 0]);
    }
}

#[test]
fn images_of_vdsos_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let [one, merged] = ["one", "merged"].map(|name| dir.path().join(name));
    // Frames in files become such in the vDSO.
    let in_vdso = |name: &str, user: &mut Vec<u8>| {
        if name != member::STACK_MAP_USER_BIN {
            return;
        }
        for word in user.chunks_exact_mut(8) {
            let number = u64::from_ne_bytes(word.try_into().unwrap());
            if number >> 63 == 1 {
                word.copy_from_slice(&Word::file(VDSO, number & 0xfff).to_ne_bytes());
            }
        }
    };
    changed("user.data", &one, |_| {}, in_vdso);
    let one = one.to_str().unwrap();
    merge(&merged, &[one, one]);
    let mut capture = Capture::open(&merged).unwrap();
    let binaries = capture.binaries().unwrap();
    let found = capture.vdsos(&binaries).unwrap();
    let [(_, image)] = &found[..] else {
        panic!("{} images", found.len());
    };
    let mut want = Vec::new();
    let mut capture = Capture::open(&data("user.data")).unwrap();
    let mut member = capture.member(member::VDSO).unwrap();
    member.read_to_end(&mut want).unwrap();
    assert_eq!(*image, want);
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged");
    let output = path.to_str().unwrap();
    for (captures, says) in [
        (
            &["stack_map_bin"][..],
            "only captures with the binary ring buffer can be merged",
        ),
        (
            &["before.data"],
            "only captures with the binary ring buffer can be merged",
        ),
        (&["user.data", "nothing.data"], "nothing.data"),
        (&["user.data", "trace"], "trace"),
        (&[], "CAPTURE"),
    ] {
        let output = run(&[&["merge", "-o", output], captures].concat());
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains(says), "{text}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    merge(&path, &["questions.data"; 2]);
    for command in [
        "offcpu",
        "leaks",
        "latency",
        "resolve",
        "export --format firefox",
        "view -o out",
        "export --format perfetto -o out",
        "export --format trace.dat -o out",
    ] {
        let words: Vec<_> = command.split(' ').chain([output]).collect();
        let output = run(&words);
        let text = stderr(&output);
        let says = "it is a merge of 2 captures";
        assert!(
            !output.status.success() && text.contains(says),
            "{command}: {text}"
        );
    }
}

/// The ids of stacks that have no stable one: those of the kernel, of which no function has a name.
fn local_ids(path: &Path) -> BTreeSet<String> {
    let kallsyms = path.with_extension("kallsyms");
    fs::write(&kallsyms, "ffffffffffff0000 T none\n").unwrap();
    let [path, kallsyms] = [path, &kallsyms].map(|path| path.to_str().unwrap());
    let text = stdout(&["export", "--format", "json", "--kallsyms", kallsyms, path]);
    let export: Value = serde_json::from_str(&text).unwrap();
    let stacks = export["stacks"].as_array().unwrap().iter();
    let local = stacks.filter(|stack| stack["stable"] == false);
    local.map(|stack| stack["stable_id"].to_string()).collect()
}

#[test]
fn ids_that_are_not_stable_are_of_one_merge() {
    let dir = tempfile::tempdir().unwrap();
    let merged = [&["user.data"][..], &["user.data", "questions.data"]].map(|captures| {
        let path = dir.path().join(captures.len().to_string());
        merge(&path, captures);
        local_ids(&path)
    });
    assert!(!merged[0].is_empty() && merged[0].is_disjoint(&merged[1]));
    // The same load of the module, in another boot.
    let [other, path] = ["other", "path"].map(|name| dir.path().join(name));
    let boot = |manifest: &mut Manifest| manifest.boot_id = Some("other".to_owned());
    changed("user.data", &other, boot, |_, _| {});
    merge(&path, &[other.to_str().unwrap()]);
    assert!(merged[0].is_disjoint(&local_ids(&path)));
}

/// The manifest of a merge of two captures like user.data.
fn whole(one: impl FnOnce(&mut Manifest), two: impl FnOnce(&mut Manifest)) -> Manifest {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, merged] = ["one", "two", "merged"].map(|name| dir.path().join(name));
    changed("user.data", &first, one, |_, _| {});
    changed("user.data", &second, two, |_, _| {});
    let [first, second] = [&first, &second].map(|path| path.to_str().unwrap());
    let said = merge(&merged, &[first, second]);
    assert!(!said.contains("more than once"), "{said}");
    Capture::open(&merged).unwrap().manifest().clone()
}

#[test]
fn the_whole_says_what_all_captures_have_in_common() {
    let say = |host: &str, zone: &str, release: &str, page_size| {
        let labels = [("service", "web"), ("zone", zone), (zone, "x")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let (host, release) = (host.to_owned(), release.to_owned());
        move |manifest: &mut Manifest| {
            manifest.labels = labels.into();
            manifest.host = Some(host);
            manifest.release = release;
            manifest.page_size = Some(page_size);
        }
    };
    let same = whole(say("h", "a", "7.3", 4096), say("h", "b", "7.3", 4096));
    let labels: Vec<_> = same.labels.iter().collect();
    assert_eq!(labels, [(&"service".to_owned(), &"web".to_owned())]);
    assert_eq!(same.host.as_deref(), Some("h"));
    assert_eq!((&same.release[..], same.page_size), ("7.3", Some(4096)));
    let differ = whole(say("h", "a", "7.3", 4096), say("i", "b", "7.4", 65536));
    assert_eq!((differ.host, differ.page_size), (None, None));
    assert_eq!(differ.release, "");
}

#[test]
fn what_is_true_of_one_capture_is_true_of_the_whole() {
    let all = |manifest: &Manifest| {
        [
            manifest.anonymous,
            manifest.no_args,
            manifest.modules_changed,
            manifest.reset,
            manifest.switched_off,
        ]
    };
    let set = |manifest: &mut Manifest| {
        manifest.anonymous = true;
        manifest.no_args = true;
        manifest.modules_changed = true;
        manifest.reset = true;
        manifest.switched_off = true;
    };
    assert_eq!(all(&whole(set, |_| {})), [true; 5]);
    assert_eq!(all(&whole(|_| {}, set)), [true; 5]);
    let later = |manifest: &mut Manifest| manifest.time += 1;
    assert_eq!(all(&whole(later, |_| {})), [false; 5]);
}

#[test]
fn losses_and_what_was_recorded_are_of_all_captures() {
    let lose = |overrun, dropped, event: &'static str| {
        move |manifest: &mut Manifest| {
            manifest.cpus[1].overrun = overrun;
            manifest.cpus[1].dropped = dropped;
            manifest.recorded.events = vec![event.to_owned()];
            manifest.recorded.functions = vec![format!("{event}_function")];
        }
    };
    let whole = whole(lose(1, 20, "b:b"), lose(300, 4000, "a:a"));
    let cpus: Vec<_> = whole
        .cpus
        .iter()
        .map(|cpu| (cpu.cpu, cpu.overrun, cpu.dropped))
        .collect();
    assert_eq!(cpus, [(0, 0, 0), (1, 301, 4020)]);
    assert_eq!(whole.recorded.events, ["a:a", "b:b"]);
    assert_eq!(whole.recorded.functions, ["a:a_function", "b:b_function"]);
}

#[test]
fn a_capture_that_is_given_twice_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged");
    let said = merge(&path, &["user.data", "questions.data", "user.data"]);
    assert!(said.contains("1 capture given more than once"), "{said}");
    let said = merge(&path, &["user.data", "questions.data"]);
    assert!(!said.contains("more than once"), "{said}");
}

#[test]
fn generated_code_has_the_names_of_its_capture() {
    let dir = tempfile::tempdir().unwrap();
    let [other, merged] = ["other", "merged"].map(|name| dir.path().join(name));
    // A process with the same number and start, on another machine.
    changed(
        "user.data",
        &other,
        |_| {},
        |name, content| {
            if member::is_perf_map(name) {
                let text = String::from_utf8(content.clone()).unwrap();
                assert!(text.contains("generated code"));
                *content = text.replace("generated code", "other code").into();
            }
        },
    );
    let count = |path: &str, name: &str| {
        let folded = stdout(&["folded", "--user", path]);
        let lines = folded.lines().filter(|line| line.contains(name));
        let counts = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap());
        counts.sum::<u32>()
    };
    let nr = count("user.data", "generated code");
    assert!(nr > 0);
    let other = other.to_str().unwrap();
    for captures in [["user.data", other], [other, "user.data"]] {
        merge(&merged, &captures);
        let path = merged.to_str().unwrap();
        assert_eq!(count(path, "generated code"), nr);
        assert_eq!(count(path, "other code"), nr);
    }
}

#[test]
fn segments_of_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let merged = dir.path().join("merged");
    let captures = ["user.data", "questions.data"];
    merge(&merged, &captures);
    let segments = |path: &Path| {
        let mut capture = Capture::open(path).unwrap();
        let (binaries, segments) = (capture.binaries().unwrap(), capture.segments());
        let of = |index| {
            let id = binaries.get(index)?.build_id.clone()?;
            let of_file = segments.get(index, Some(&id))?.clone();
            Some((id, format!("{of_file:?}")))
        };
        (0..100).filter_map(of).collect::<BTreeMap<_, _>>()
    };
    let all = captures.iter().map(|name| segments(&data(name)));
    let all: BTreeMap<_, _> = all.flatten().collect();
    assert_eq!(all.len(), 12);
    assert_eq!(segments(&merged), all);
}

#[test]
fn files_without_build_ids_are_those_of_one_capture() {
    let dir = tempfile::tempdir().unwrap();
    let [one, merged] = ["one", "merged"].map(|name| dir.path().join(name));
    let known = "00112233445566778899aabbccddeeff00112233";
    let without = |name: &str, content: &mut Vec<u8>| {
        if name == member::BINARIES {
            let text = String::from_utf8(content.clone()).unwrap();
            assert!(text.contains(known));
            *content = text.replace(known, "-").into();
        }
    };
    changed("user.data", &one, |_| {}, without);
    let path = one.to_str().unwrap();
    merge(&merged, &[path, path]);
    let binaries = Capture::open(&merged).unwrap().binaries().unwrap();
    let paths = (0..100).filter_map(|index| binaries.get(index));
    let paths: Vec<_> = paths.map(|binary| &binary.path).collect();
    let count = |name: &str| paths.iter().filter(|path| path.ends_with(name)).count();
    assert_eq!((count("tests/known"), count("bin/busybox")), (2, 1));
}

#[test]
fn hits_of_stacks_are_summed_up() {
    let dir = tempfile::tempdir().unwrap();
    let merged = dir.path().join("merged");
    let hits = |path: &Path| {
        let stacks = Capture::open(path).unwrap().stacks().unwrap();
        let hits = stacks.iter().map(|stack| u64::from(stack.ref_count));
        hits.sum::<u64>()
    };
    let captures = ["user.data", "mixed.data", "user.data"];
    let sum = captures.iter().map(|name| hits(&data(name))).sum::<u64>();
    merge(&merged, &captures);
    assert_eq!(hits(&merged), sum);
}
