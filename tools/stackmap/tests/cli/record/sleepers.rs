// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks that wait when a recording begins.

use super::fake::{send, wait_until, Fake, Started};
use rustix::fs::{mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    process::Command,
    thread,
};

const SWITCHES: &str = "-e sched:sched_switch";
const STACK: &str = "[<0>] foo+0x10/0xf8\n[<0>] gone+0x1/0x2 [away]\n";
/// The flags of a thread of the kernel, and of a worker of io_uring.
const KERNEL_THREAD: u32 = 0x20_0000;
const USER_WORKER: u32 = 0x4000;

fn fake() -> Fake {
    let fake = Fake::new();
    fake.put("i/events/sched/sched_switch/enable", "1\n");
    fake
}

/// Adds a task that has left a CPU five times, and returns its directory.
fn task(fake: &Fake, pid: u32, state: char, flags: u32) -> String {
    let dir = format!("proc/{pid}/task/{pid}");
    fs::create_dir_all(fake.path(&dir)).unwrap();
    let fields = "0 ".repeat(29);
    let stat = format!("{pid} (a) b) {state} 0 0 0 0 0 {flags} {fields}1 0\n");
    fake.put(&format!("{dir}/stat"), stat);
    fake.put(&format!("{dir}/stack"), STACK);
    fake.put(&format!("proc/{pid}/status"), status(5));
    dir
}

/// Returns the status of a task that has left a CPU so often.
fn status(switches: u32) -> String {
    format!("Name:\ta\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0\n")
}

/// Gives each reader of a file the next text, and those after the last one that. Before the first one has it, does `before`.
fn read_in_turn(
    fake: &Fake,
    file: &str,
    texts: Vec<String>,
    before: impl FnOnce() + Send + 'static,
) {
    let make = |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let path = fake.path(file);
    let next = path.with_extension("next");
    fs::remove_file(&path).unwrap();
    make(&path);
    thread::spawn(move || {
        let (last, firsts) = texts.split_last().unwrap();
        let mut before = Some(before);
        for (number, text) in firsts.iter().enumerate() {
            // This waits for a reader.
            let mut reader = OpenOptions::new().write(true).open(&path).unwrap();
            match number + 1 < firsts.len() {
                true => make(&next),
                false => fs::write(&next, last).unwrap(),
            }
            fs::rename(&next, &path).unwrap();
            if let Some(before) = before.take() {
                before();
            }
            reader.write_all(text.as_bytes()).unwrap();
        }
    });
}

/// Returns the tasks of a capture that waited.
fn sleepers(fake: &Fake) -> Option<Value> {
    let members = fake.capture("stackmap.data").members;
    let text = members.get("sleepers.json")?;
    Some(serde_json::from_slice(text).unwrap())
}

/// Returns the ids of these, and of each whether it has a user stack, and whether it slept on.
fn found(fake: &Fake) -> Vec<(u64, bool, bool)> {
    let sleepers = sleepers(fake).unwrap_or_default();
    let sleepers = sleepers.as_array().into_iter().flatten();
    let flag = |sleeper: &Value, key: &str| sleeper[key].as_bool().unwrap();
    let sleeper = |sleeper: &Value| {
        (
            sleeper["pid"].as_u64().unwrap(),
            flag(sleeper, "has_user"),
            flag(sleeper, "slept_on"),
        )
    };
    let mut found: Vec<_> = sleepers.map(sleeper).collect();
    found.sort_unstable();
    found
}

#[test]
fn tasks_that_wait_when_it_begins_are_kept_with_their_stacks() {
    let fake = fake();
    task(&fake, 77, 'D', 0);
    for (pid, state) in [(78, 'R'), (79, 'Z'), (80, 'X')] {
        task(&fake, pid, state, 0);
    }
    let text = fake.recorded(SWITCHES, "true");
    assert!(!text.contains("WARNING"), "{text}");
    // bar is on this stack alone.
    let foo = 0xffff_ffff_8100_0018_u64;
    let want = json!([{ "pid": 77, "state": "D", "cpu": 1, "stack": [foo, 0],
        "has_user": true, "slept_on": true }]);
    assert_eq!(sleepers(&fake), Some(want));
    // Its user stack is bound at the end, too.
    assert_eq!(fake.get("t/stack_map_user"), "settle 77");
    // Without all switches, nothing tells what becomes of them.
    for options in ["-C 0", "--filter 'prev_prio > 1'"] {
        fake.recorded(&format!("{SWITCHES} {options}"), "true");
        assert_eq!(sleepers(&fake), None, "{options}");
    }
    fake.put("i/events/sched/sched_switch/filter", "none\n");
    fake.put("i/events/sched/sched_switch/enable", "0\n");
    fake.recorded(SWITCHES, "true");
    assert_eq!(sleepers(&fake), None);
}

#[test]
fn tasks_that_are_not_recorded_do_not_wait() {
    let fake = fake();
    let process = Started(Command::new("sleep").arg("100").spawn().unwrap());
    task(&fake, 77, 'S', 0);
    task(&fake, process.id(), 'S', 0);
    fake.recorded(&format!("{SWITCHES} -p {}", process.id()), "true");
    assert_eq!(found(&fake), [(process.id().into(), true, true)]);
    // The shell becomes the recorder.
    let inner = fake.command(SWITCHES, "true");
    let script = "cp -r proc/77 proc/$$; mv proc/$$/task/77 proc/$$/task/$$; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(inner.get_program());
    command.args(inner.get_args()).current_dir(fake.dir.path());
    command.envs(inner.get_envs().map(|(name, value)| (name, value.unwrap())));
    assert!(command.output().unwrap().status.success());
    let found = found(&fake);
    assert_eq!((found.len(), found[0].0), (2, 77), "{found:?}");
}

#[test]
fn tasks_that_run_or_end_during_the_recording_do_not_sleep_on() {
    let fake = fake();
    for (pid, flags) in [
        (76, 0),
        (77, 0),
        (78, 0),
        (79, KERNEL_THREAD),
        (80, USER_WORKER),
    ] {
        task(&fake, pid, 'S', flags);
    }
    fake.put("more", status(6));
    fake.recorded(
        SWITCHES,
        "cp $out/more $out/proc/77/status; rm -r $out/proc/78",
    );
    let want = [
        (76, true, true),
        (77, true, false),
        (78, true, false),
        (79, false, true),
        (80, false, true),
    ];
    assert_eq!(found(&fake), want);
    fake.recorded(&format!("{SWITCHES} --no-user"), "true");
    let want = [76, 77, 79, 80].map(|pid| (pid, false, true));
    assert_eq!(found(&fake), want);
}

#[test]
fn tasks_that_run_or_end_before_it_begins_are_not_kept() {
    for is_killed in [false, true] {
        let fake = fake();
        // They end after they were found, and meanwhile; and run after that, and meanwhile.
        task(&fake, 77, 'S', 0);
        let ends = vec![status(5), String::new()];
        read_in_turn(&fake, "proc/77/status", ends, || ());
        task(&fake, 78, 'S', 0);
        fs::remove_file(fake.path("proc/78/status")).unwrap();
        task(&fake, 79, 'S', 0);
        read_in_turn(&fake, "proc/79/status", [5, 6].map(status).into(), || ());
        let dir = task(&fake, 80, 'S', 0);
        let runs = fake.path("proc/80/status");
        let stack = vec![STACK.to_owned(); 2];
        let run = move || fs::write(runs, status(6)).unwrap();
        read_in_turn(&fake, &format!("{dir}/stack"), stack, run);
        task(&fake, 81, 'S', 0);
        if is_killed {
            let mut recorder = fake.start(SWITCHES);
            send("-KILL", &recorder);
            recorder.wait().unwrap();
            wait_until(|| fake.get("log").contains("its recording is saved"));
        } else {
            fake.recorded(SWITCHES, "true");
        }
        assert_eq!(found(&fake), [(81, true, !is_killed)]);
    }
}

#[test]
fn user_stacks_of_another_wait_are_not_kept() {
    // Read when it is found, when tracing is on, when its stack is bound, at the end, and when that is bound again.
    for (switches, has_user, slept_on) in [
        (&[5, 5, 5, 5, 5][..], true, true),
        (&[5, 5, 6], false, false),
        (&[5, 5, 5, 6], true, false),
        (&[5, 5, 5, 5, 6], false, true),
    ] {
        let fake = fake();
        task(&fake, 77, 'S', 0);
        let texts = switches.iter().map(|switches| status(*switches));
        read_in_turn(&fake, "proc/77/status", texts.collect(), || ());
        fake.recorded(SWITCHES, "true");
        assert_eq!(found(&fake), [(77, has_user, slept_on)], "{switches:?}");
    }
    // What cannot be bound again keeps the first stack.
    let fake = fake();
    task(&fake, 77, 'S', 0);
    fake.recorded(SWITCHES, "rm $out/t/stack_map_user");
    assert_eq!(found(&fake), [(77, true, true)]);
}
