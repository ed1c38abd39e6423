// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is left of recorders that were killed, and captures of buffers of others.

use super::{
    fake::{send, wait_until, Fake, Started, KMALLOC},
    has_the_page,
    stream::{self, TAKEN},
};
use rustix::fs::{flock, FlockOperation};
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{symlink, PermissionsExt},
    process::Command,
};

/// Kills the recorder and its guard, as the command that is recorded.
const KILL: &str = "for pid in $(cat /proc/$PPID/task/$PPID/children); do \
                    [ $pid = $$ ] || kill -KILL $pid; done; kill -KILL $PPID";

/// Records until the recorder and its guard are killed; returns the name of the recording.
fn killed(fake: &Fake, script: &str) -> String {
    let others = fake.instances();
    let ran = fake.record(KMALLOC, &format!("{script} {KILL}"));
    assert_eq!(ran.status, None, "{}", ran.stderr);
    let mut names = fake.instances();
    names.retain(|name| !others.contains(name));
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0)
}

/// Returns the path of a file of the only instance.
fn of_instance(fake: &Fake, file: &str) -> String {
    format!("t/instances/{}/{file}", fake.instances()[0])
}

fn interrupt(mut recorder: Started) {
    send("-INT", &recorder);
    assert!(recorder.wait().unwrap().success());
}

/// Makes another instance, in the place of that which the next recorder makes.
fn another_instance(fake: &Fake) {
    let other = Fake::new();
    for place in ["i", "i.names"] {
        fs::rename(other.path(place), fake.path(place)).unwrap();
    }
}

#[test]
fn the_guard_saves_what_a_killed_recorder_has_recorded() {
    let fake = Fake::new();
    let before = fake.state();
    let mut recorder = fake.start("-e kmem:kmalloc --label a=b");
    send("-KILL", &recorder);
    recorder.wait().unwrap();
    wait_until(|| fake.get("log").contains("its recording is saved"));
    assert_eq!(fake.files(), ["log", "stackmap.data"]);
    has_the_page(&fake, "stackmap.data");
    let manifest = fake.manifest();
    assert_eq!(manifest.recorded.events, ["kmem:kmalloc"]);
    assert_eq!(manifest.labels["a"], "b");
    assert!(manifest.duration_ns > 0);
    assert_eq!(fake.state(), before);
    assert_eq!(fake.get("i/tracing_on"), "0");
}

#[test]
fn an_interrupted_recording_is_whole() {
    let fake = Fake::new();
    for signal in ["-INT", "-TERM", "-HUP"] {
        let mut recorder = fake.start(KMALLOC);
        send(signal, &recorder);
        assert!(recorder.wait().unwrap().success(), "{}", fake.get("log"));
        has_the_page(&fake, "stackmap.data");
        assert_eq!(fake.files(), ["log", "stackmap.data"]);
        fs::remove_file(fake.path("stackmap.data")).unwrap();
    }
}

#[test]
fn a_guard_that_is_stopped_does_not_keep_the_recorder() {
    let fake = Fake::new();
    let mut recorder = fake.start(KMALLOC);
    let pid = recorder.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let mut kill = Command::new("kill");
    let status = kill.arg("-STOP").args(children.split_whitespace()).status();
    assert!(status.unwrap().success());
    send("-INT", &recorder);
    wait_until(|| recorder.try_wait().unwrap().is_some());
    has_the_page(&fake, "stackmap.data");
}

#[test]
fn a_recording_that_cannot_be_stopped_is_kept() {
    let fake = Fake::new();
    let ran = fake.record(KMALLOC, "mv tracing_on $out");
    ran.failed(1, "it is kept: ");
    let tracing_on = fake.path(&of_instance(&fake, "tracing_on"));
    fs::rename(fake.path("tracing_on"), tracing_on).unwrap();
    fake.ran("recover --tracefs t");
    has_the_page(&fake, "stackmap.data");
    assert_eq!(fake.get("i/tracing_on"), "0");
    assert_eq!(fake.files(), ["stackmap.data"]);
}

#[test]
fn what_cannot_be_read_at_the_end_loses_nothing() {
    for (hide, file) in [
        ("sed -i s/^[0-9a-f]*/0000000000000000/", "proc/kallsyms"),
        ("f() { rm $1; mkdir $1; }; f", "proc/modules"),
        ("rm", "t/stack_map_stat"),
        ("rm", "t/stack_map_bin"),
    ] {
        let fake = Fake::new();
        let text = fs::read(fake.path(file)).unwrap();
        let ran = fake.record(KMALLOC, &format!("{hide} $out/{file}"));
        ran.failed(1, "it is kept: ");
        let _ = fs::remove_dir(fake.path(file));
        fake.put(file, text);
        fake.ran("recover --tracefs t");
        has_the_page(&fake, "stackmap.data");
    }
    let fake = Fake::new();
    fake.put("proc/kallsyms", "0000000000000000 T _stext\n");
    fake.record(KMALLOC, "true").failed(1, "kptr_restrict");
    assert!(fake.instances().is_empty());
}

#[test]
fn a_recording_whose_file_is_gone_can_be_recovered() {
    let fake = Fake::new();
    let name = killed(&fake, "");
    fs::remove_file(fake.path(&format!("run/{name}.json"))).unwrap();
    fake.ran("recover --tracefs t -o found");
    has_the_page(&fake, "found");
    assert_eq!(fake.files(), ["found"]);
}

#[test]
fn a_later_capture_is_not_replaced() {
    let fake = Fake::new();
    fake.put("stackmap.data", "earlier");
    let name = killed(&fake, "");
    fake.put("stackmap.data", "later");
    let ran = fake.run("recover --tracefs t");
    ran.failed(1, "was written after it had begun");
    assert_eq!(fake.get("stackmap.data"), "later");
    fake.ran(&format!("recover --tracefs t {name} -o stackmap.data"));
    has_the_page(&fake, "stackmap.data");
}

#[test]
fn instances_of_others_are_left_alone() {
    let fake = Fake::new();
    for name in ["mine", "stackmap-mine"] {
        let other = Fake::new();
        for cpu in ["cpu0", "cpu1"] {
            other.put(&format!("i/per_cpu/{cpu}/stats"), "entries: 0\n");
        }
        fs::rename(other.path("i"), fake.path("t/instances").join(name)).unwrap();
    }
    let before = fake.state();
    fake.recorded(KMALLOC, "true");
    for name in ["mine", "stackmap-mine", "..", "../instances/mine", ""] {
        for command in ["recover", "recover --remove"] {
            let ran = fake.run(&format!("{command} '{name}' --tracefs t"));
            ran.failed(1, &format!("there is no recording {name}"));
        }
    }
    assert_eq!(fake.state(), before);
}

#[test]
fn what_is_left_can_be_recovered() {
    let fake = Fake::new();
    let before = fake.state();
    let name = killed(&fake, "");
    let list = fake.ran("recover --list --tracefs t");
    let line = format!("{name}: 1 KiB in the buffer, 0 KiB streamed, for ");
    assert!(list.starts_with(&line), "{list}");
    assert!(list.ends_with("/stackmap.data\n"), "{list}");
    fake.ran(&format!("recover --tracefs t -o found {name}"));
    has_the_page(&fake, "found");
    assert_eq!(fake.state(), before);
    assert_eq!(fake.files(), ["found"]);
    let ran = fake.run("recover --tracefs t");
    ran.failed(1, "no recorder has left anything");
}

#[test]
fn the_next_recorder_says_what_was_left() {
    let fake = Fake::new();
    let before = fake.state();
    let name = killed(&fake, "");
    another_instance(&fake);
    let text = fake.recorded(KMALLOC, "true");
    let said = format!(
        "a recorder was killed and has left a recording: \"stackmap recover {name}\" saves it"
    );
    assert!(text.contains(&said), "{text}");
    assert_eq!(fake.instances(), [&name[..]]);
    // With another one, a name must be given.
    let other = killed(&fake, "");
    let ran = fake.run("recover --tracefs t");
    let ran = ran.failed(1, "2 recordings were left");
    assert!(ran.stderr.contains("recover takes a name"));
    fake.ran(&format!("recover --tracefs t --remove {other}"));
    for place in ["i", "i.names"] {
        fs::remove_dir_all(fake.path(place)).unwrap();
    }
    // An empty one is removed.
    for cpu in ["cpu0", "cpu1"] {
        let stats = of_instance(&fake, &format!("per_cpu/{cpu}/stats"));
        fake.put(&stats, "entries: 0\n");
    }
    let text = fake.recorded(KMALLOC, "true");
    assert!(!text.contains("was killed"), "{text}");
    assert_eq!(fake.state(), before);
    assert_eq!(fake.files(), ["stackmap.data"]);
}

#[test]
fn what_was_streamed_is_left_without_its_buffer() {
    let fake = stream::fake();
    let script = format!(
        "cat $out/pages > per_cpu/cpu0/trace_pipe_raw; {TAKEN}; \
         for cpu in 0 1; do echo 'entries: 0' > per_cpu/cpu$cpu/stats; done;"
    );
    let name = killed(&fake, &script);
    another_instance(&fake);
    // What cannot be read is not nothing.
    let spool = fake.path(&format!(".{name}"));
    let readable = |mode| fs::set_permissions(&spool, Permissions::from_mode(mode)).unwrap();
    readable(0o755);
    let text = fake.recorded("-e kmem:kmalloc --overwrite -o other", "true");
    assert!(text.contains("has left a recording"), "{text}");
    readable(0o700);
    let list = fake.ran("recover --list --tracefs t");
    let line = format!("{name}: 0 KiB in the buffer, 1 KiB streamed, for ");
    assert!(list.starts_with(&line), "{list}");
    // Nor with its instance, in whose place nothing of the top level is saved.
    fs::remove_dir_all(fake.path("t/instances").join(&name)).unwrap();
    fs::remove_dir_all(fake.path("i.names")).unwrap();
    fake.ran("recover --tracefs t");
    assert_eq!(fs::read_dir(fake.path("t/instances")).unwrap().count(), 0);
    let report = fake.ran("report");
    assert!(report.contains("2 events, 1 different stack"), "{report}");
    let cpus = fake.manifest().cpus;
    let entries: Vec<_> = cpus.iter().map(|cpu| cpu.entries).collect();
    assert_eq!(entries, [4, 0]);
    assert_eq!(fake.files(), ["other", "pages", "stackmap.data"]);
}

#[test]
fn a_recorder_that_runs_is_left_alone() {
    let fake = Fake::new();
    let recorder = fake.start(KMALLOC);
    let name = fake.instances().remove(0);
    let list = fake.ran("recover --list --tracefs t");
    assert_eq!(list, format!("{name}: is being recorded, or saved\n"));
    for command in ["recover", "recover --remove", "save --instance"] {
        let ran = fake.run(&format!("{command} {name} --tracefs t"));
        ran.failed(1, &format!("{name} is being recorded"));
    }
    interrupt(recorder);
    has_the_page(&fake, "stackmap.data");
}

#[test]
fn a_recording_without_room_is_kept_until_it_is_recovered() {
    let fake = Fake::new();
    let before = fake.state();
    let stats = "entries: 1\noverrun: 0\nbytes: 1000000000000000000\n";
    fake.put("i/per_cpu/cpu1/stats", stats);
    let ran = fake.record(KMALLOC, "true");
    ran.failed(1, "the recording is not saved: ");
    assert!(!fake.path("stackmap.data").exists());
    fake.put(&of_instance(&fake, "per_cpu/cpu1/stats"), "entries: 0\n");
    fake.ran("recover --tracefs t");
    has_the_page(&fake, "stackmap.data");
    assert_eq!(fake.state(), before);
    assert_eq!(fake.files(), ["stackmap.data"]);

    // What was read from the buffer is kept, too.
    fake.put("i/per_cpu/cpu1/stats", "entries: 0\n");
    let ran = fake.record("-e kmem:kmalloc -o /dev/full", "true");
    ran.failed(1, "cannot write /dev/full: No space left");
    fake.put(&of_instance(&fake, "per_cpu/cpu0/trace_pipe_raw"), "");
    fake.ran("recover --tracefs t -o stackmap.data");
    has_the_page(&fake, "stackmap.data");
    assert_eq!(fake.files(), ["stackmap.data"]);
}

#[test]
fn a_buffer_of_others_is_saved_and_stays() {
    let fake = Fake::new();
    let other = Fake::new();
    fs::rename(other.path("i"), fake.path("t/instances/mine")).unwrap();
    // Of an event that nobody has enabled any more.
    for place in ["t", "t/instances/mine"] {
        fake.put(&format!("{place}/events/kmem/kmalloc/id"), "7\n");
        let events = "kmem:kfree\nsched:sched_switch\nkmem:kmalloc\n";
        fake.put(&format!("{place}/set_event"), events);
        fake.put(&format!("{place}/events/kmem/enable"), "1\n");
    }
    let before = fake.state();
    for (option, instance) in [("", None), ("--instance mine", Some("mine"))] {
        let text = fake.ran(&format!("save --tracefs t -o saved {option}"));
        assert!(text.contains("the buffer is empty now"), "{text}");
        has_the_page(&fake, "saved");
        let manifest = fake.capture("saved").manifest;
        assert_eq!(manifest.recorded.events, ["kmem:*", "sched:sched_switch"]);
        assert_eq!(manifest.recorded.instance.as_deref(), instance);
        // What is in the pages, whatever the kernel counts.
        assert_eq!(manifest.cpus[0].entries, 2);
        assert_eq!(fake.export("saved")["events"][0]["event"], "kmalloc");
        assert_eq!(fake.state(), before);
        assert_eq!(fake.files(), ["saved"]);
    }
}

#[test]
fn the_next_recorder_records_although_what_was_left_cannot_be_removed() {
    let fake = Fake::new();
    // The kernel makes or removes it just now.
    fs::create_dir(fake.path("t/instances/stackmap-1")).unwrap();
    let other = Fake::new();
    for cpu in ["cpu0", "cpu1"] {
        other.put(&format!("i/per_cpu/{cpu}/stats"), "entries: 0\n");
    }
    fs::rename(other.path("i"), fake.path("t/instances/stackmap-2")).unwrap();
    let text = fake.recorded(KMALLOC, "true");
    let warnings: Vec<_> = text
        .lines()
        .filter(|line| line.contains("WARNING"))
        .collect();
    assert_eq!(warnings.len(), 1, "{text}");
    assert!(
        warnings[0].contains("stackmap-2 was left: cannot remove"),
        "{text}"
    );
    has_the_page(&fake, "stackmap.data");
}

#[test]
fn what_cannot_be_read_hides_no_other_recording() {
    let fake = Fake::new();
    let name = killed(&fake, "");
    another_instance(&fake);
    fake.put("run/stackmap-1.json", "{");
    fs::create_dir(fake.path("t/instances/stackmap-2")).unwrap();
    symlink("trace", fake.path("t/instances/stackmap-2/trace")).unwrap();
    let has = |text: String, said: &str| {
        for said in [
            said,
            "stackmap-1 was left: ",
            "stackmap-2 was left: cannot look into t/instances/stackmap-2",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    };
    let listed = fake.ran("recover --list --tracefs t");
    has(listed, &format!("{name}: 1 KiB in the buffer"));
    let notes = fake.recorded("-e kmem:kmalloc -o other", "true");
    has(notes, &format!("stackmap recover {name}\" saves it"));
    for place in ["i", "i.names"] {
        fs::remove_dir_all(fake.path(place)).unwrap();
    }
    has(fake.ran("recover --tracefs t"), "stackmap.data: 1 event");
}

#[test]
fn an_instance_that_another_process_holds_is_given_up_and_removed() {
    let fake = Fake::new();
    let held = File::open(fake.path("i")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let ran = fake.record(KMALLOC, "true");
    ran.failed(1, "another process holds it");
    assert!(fake.instances().is_empty());
}
