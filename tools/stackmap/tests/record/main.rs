// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap record` with a directory in place of tracefs: what it writes, and what it leaves.
//!
//! Nothing happens in these files by itself: commands that are recorded do what a kernel would do,
//! or somebody else. How a kernel takes it all is tested in a guest (`guest/record`).

mod about;
mod fake;
mod flight;
mod limits;
mod others;
mod stream;

use fake::{page, send, wait_until, with, Fake, KMALLOC, STATS, TRACE};
use stackmap::capture::Capture;
use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

#[test]
fn tracefs_is_restored() {
    let fake = Fake::new();
    fake.put("t/set_event", "sched:sched_switch\n");
    fake.put("t/options/verbose", "1\n");
    fake.put("t/set_event_pid", "12\n34\n");
    let before = fake.state();
    let text = fake.recorded(
        &with(&["--force", "-b", "64"]),
        "cat set_event options/stackmap buffer_size_kb > ../seen",
    );
    assert_eq!(fake.get("seen"), "kmem:kmalloc\n164");
    assert!(
        text.contains("stackmap.data: 6 records in the buffer, 1 stack"),
        "{text}"
    );
    assert_eq!(fake.state(), before);
    assert_eq!(fake.get("t/trace"), "");
    assert_eq!(
        fake.manifest("stackmap.data").put_aside["set_event_pid"],
        "12\n34"
    );
}

#[test]
fn buffer_sizes_of_cpus_are_restored() {
    let fake = Fake::new();
    let sizes = [("cpu0", "640"), ("cpu1", "1408")];
    let file = |cpu| format!("t/per_cpu/{cpu}/buffer_size_kb");
    fake.put("t/buffer_size_kb", "X\n");
    for (cpu, size) in sizes {
        fake.put(&file(cpu), &format!("{size}\n"));
    }
    let script = "for cpu in per_cpu/*; do echo 64 > $cpu/buffer_size_kb; done";
    fake.recorded(&with(&["-b", "64"]), script);
    for (cpu, size) in sizes {
        assert_eq!(fake.get(&file(cpu)), size);
    }
}

#[test]
fn tracefs_is_restored_after_a_fault_at_any_step() {
    let fake = Fake::new();
    fake.put("t/set_event", "sched:sched_switch\n");
    fake.put("t/set_event_notrace_pid", "5\n");
    fake.put("t/tracing_cpumask", "1\n");
    let before = fake.state();
    let steps = [
        "guarded",
        "stopped",
        "emptied",
        "options",
        "functions",
        "events",
        "running",
        "ended",
        "saving",
        "taken",
        "written",
        "restored",
    ];
    for step in steps {
        let (_, text) = fake.record(
            &with(&["--force", "-f", "foo", "--fault", &format!("{step}:fail")]),
            "true",
        );
        assert!(text.contains(&format!("failed at {step}")), "{text}");
        if step != "saving" {
            assert_eq!(fake.state(), before, "{step}: {text}");
        } else {
            // The recording is still in the buffer; all else is as it was.
            assert_eq!(fake.get("t/tracing_on"), "0");
            assert_eq!(fake.get("t/trace"), TRACE);
            assert!(text.contains("is still in the buffer"), "{text}");
            fake.put("t/tracing_on", "1");
            assert_eq!(fake.state(), before, "{step}: {text}");
        }
        for signal in ["-INT", "-TERM", "-KILL"] {
            let _ = fs::remove_file(fake.path("stackmap.data"));
            let hold = format!("{step}:hold");
            let mut child = fake.start("log", &with(&["--force", "-d", "0", "--fault", &hold]));
            send(signal, &child);
            child.wait().unwrap();
            wait_until(|| fake.state() == before);
            let kept = match step {
                "written" | "restored" => true,
                "ended" | "saving" | "taken" => signal != "-KILL",
                _ => false,
            };
            let case = format!("{signal} at {step}: {}", fake.get("log"));
            assert_eq!(fake.path("stackmap.data").exists(), kept, "{case}");
        }
    }
    // Of a file that was being written nothing is left.
    let hidden = |entry: std::io::Result<fs::DirEntry>| {
        entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.')
    };
    wait_until(|| !fs::read_dir(fake.dir.path()).unwrap().any(hidden));
}

#[test]
fn a_buffer_has_one_recording_at_a_time() {
    let fake = Fake::new();
    let before = fake.state();
    let mut first = fake.start("log", &with(&["--fault", "running:hold"]));
    for force in [&[][..], &["--force"]] {
        let (output, text) = fake.record(&with(&[&["-o", "other"][..], force].concat()), "true");
        assert_eq!(output.status.code(), Some(1), "{text}");
        let who = format!("process {} is recording already, for ", first.id());
        assert!(text.contains(&who), "{text}");
        assert!(text.contains("record --tracefs t"), "{text}");
        assert!(!fake.path("other").exists());
    }
    // The settings of the first recording are unchanged.
    assert_eq!(fake.get("t/set_event"), "kmem:kmalloc\n");

    // Beside it, with the module's switch for both.
    let mut third = fake.start(
        "log3",
        &with(&["-o", "c", "-i", "x", "--fault", "ended:hold", "-d", "0"]),
    );
    send("-INT", &first);
    first.wait().unwrap();
    assert_eq!(fake.get("t/options/stackmap"), "1");
    assert_eq!(fake.get("t/instances/x/set_event"), "kmem:kmalloc\n");
    let text = fake.recorded(&with(&["-o", "other"]), "true");
    assert!(text.contains("6 records"), "{text}");
    assert_eq!(fake.get("t/options/stackmap"), "1");
    // The last one is killed, and undone.
    send("-KILL", &third);
    third.wait().unwrap();
    wait_until(|| fake.get("t/stack_map_instances") == "x\n!x\n");
    assert_eq!(fake.get("t/options/stackmap"), "0");
    fake.put("t/stack_map_instances", "");
    wait_until(|| fake.state() == before);
}

#[test]
fn a_killed_recording_is_undone_before_the_next_begins() {
    let fake = Fake::new();
    let mut first = fake.start("log", &with(&["--fault", "running:hold"]));
    send("-KILL", &first);
    first.wait().unwrap();
    let before = fake.recorded(&KMALLOC, "true");
    assert!(!before.contains("put aside"), "{before}");
    assert_eq!(fake.get("t/options/stackmap"), "0");
    assert_eq!(fake.get("t/set_event"), "");
}

#[test]
fn instances_are_listed_and_restored() {
    let fake = Fake::new();
    let before = fake.state();
    for arguments in [&["--instance", "x"][..], &["--tracefs", "t/instances/x"]] {
        let mut command = fake.stackmap(&["record"]);
        if !arguments.contains(&"--tracefs") {
            command.args(["--tracefs", "t"]);
        }
        let script = "cd t/instances/x; cat ../../../new > trace; cat ../../stack_map_instances set_event > ../../../seen";
        let output = command
            .args(with(arguments))
            .args(["--", "sh", "-c", script])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fake.get("seen"), "x\nkmem:kmalloc\n");
        assert_eq!(fake.get("t/stack_map_instances"), "x\n!x\n");
        assert_eq!(fake.get("t/trace"), "old\n");
        fake.put("t/stack_map_instances", "");
        assert_eq!(fake.state(), before);
        let manifest = fake.manifest("stackmap.data");
        assert_eq!(manifest.recorded.instance.as_deref(), Some("x"));
    }
    // An instance that was listed before stays listed.
    fake.put("t/stack_map_instances", "x\n");
    fake.recorded(&with(&["-i", "x"]), "true");
    assert_eq!(fake.get("t/stack_map_instances"), "x\n");

    for name in ["", "..", "a/b"] {
        let (_, text) = fake.record(&with(&["-i", name]), "true");
        assert!(text.contains("not a valid name for an instance"), "{text}");
    }
    let mut nested = fake.stackmap(&["record", "--tracefs", "t/instances/x", "-i", "y"]);
    let output = nested.args(KMALLOC).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("is already an instance, x"), "{text}");
    // A kernel would make its files, too: what fails leaves no instance.
    let (_, text) = fake.record(&with(&["-i", "y"]), "true");
    assert!(
        text.contains("there is no tracefs at t/instances/y"),
        "{text}"
    );
    assert!(!fake.path("t/instances/y").exists());
}

#[test]
fn the_map_of_an_instance_is_that_of_the_top_level() {
    let fake = Fake::new();
    let output = fake
        .stackmap(&["dump", "--json", "--tracefs", "t/instances/x"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1048581"));
}

#[test]
fn patterns_are_expanded() {
    let fake = Fake::new();
    fake.recorded(
        &["-e", "kmem:km*", "-e", "*:*_switch", "-e", "kmem:*"],
        "cat set_event > ../seen",
    );
    assert_eq!(
        fake.get("seen"),
        "kmem:kmalloc\nsched:sched_switch\nkmem:*\n"
    );
    let (output, text) = fake.record(&["-e", "kmem:x*"], "true");
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("there is no event \"kmem:x*\""), "{text}");
}

#[test]
fn record_reports_losses() {
    let fake = Fake::new();
    assert!(!fake.recorded(&KMALLOC, "true").contains("WARNING"));

    let full = "entries: 100\noverrun: 900\ncommit overrun: 0\nbytes: 102400\ndropped events: 0\n";
    fake.put("t/per_cpu/cpu1/stats", full);
    let text = fake.recorded(&KMALLOC, "true");
    let said = "WARNING: 900 records overwritten in the ring buffer during the recording; -b 1280 \
                would have held them";
    assert!(text.contains(said), "{text}");

    for cpu in ["cpu0", "cpu1"] {
        fake.put(
            &format!("t/per_cpu/{cpu}/stats"),
            "entries: 0\noverrun: 0\n",
        );
    }
    let text = fake.recorded(&KMALLOC, "echo 0 > tracing_on");
    assert!(text.contains("WARNING: tracing was switched off"), "{text}");
    assert!(text.contains("WARNING: nothing was recorded"), "{text}");
    assert!(fake.manifest("stackmap.data").switched_off);

    fake.put("t/per_cpu/cpu0/stats", "entries: 0\nread events: 7\n");
    let text = fake.recorded(&KMALLOC, "true");
    assert!(
        text.contains("WARNING: 7 records missing: another process read them"),
        "{text}"
    );
    assert!(!text.contains("nothing was recorded"), "{text}");
}

#[test]
fn a_recording_that_cannot_be_written_is_saved_elsewhere() {
    let fake = Fake::new();
    let before = fake.state();
    let (output, text) = fake.record(&with(&["-o", "/dev/full"]), "true");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("WARNING: cannot write /dev/full: No space left"),
        "{text}"
    );
    let rest = text.split_once("the recording is in ").unwrap().1;
    let path = Path::new(rest.split_once(',').unwrap().0);
    assert_eq!(path.parent().unwrap(), fake.dir.path());
    has_the_page(path);
    assert_eq!(fake.state(), before);
}

/// The capture has what the buffer had.
fn has_the_page(path: &Path) {
    let mut capture = Capture::open(path).unwrap();
    assert!(capture.member("trace").is_err());
    let mut pages = Vec::new();
    let mut member = capture.member("trace_pipe_raw").unwrap();
    member.read_to_end(&mut pages).unwrap();
    let used = page()[..48].to_vec();
    assert_eq!(pages[8..], used);
}

#[test]
fn the_buffer_is_read_only_when_there_is_room_for_it() {
    let fake = Fake::new();
    let before = fake.state();
    fake.put(
        "t/per_cpu/cpu1/stats",
        "entries: 1\noverrun: 0\nbytes: 1000000000000000000\n",
    );
    // Otherwise readers of this file would fail.
    fake.put("t/per_cpu/cpu0/trace_pipe_raw", "damaged");
    let (output, text) = fake.record(&KMALLOC, "true");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot write") || text.contains("write "),
        "{text}"
    );
    assert!(text.contains("is still in the buffer"), "{text}");
    assert_eq!(fake.get("t/trace"), TRACE);
    assert_eq!(fake.get("t/tracing_on"), "0");
    assert!(!fake.path("stackmap.data").exists());

    fake.put("t/per_cpu/cpu1/stats", STATS);
    fake.put("t/tracing_on", "1");
    let text = fake.recorded(&KMALLOC, "true");
    assert!(text.contains("trace_pipe_raw"), "{text}");
    fs::write(fake.path("t/per_cpu/cpu0/trace_pipe_raw"), page()).unwrap();
    assert_eq!(fake.state(), before);
}

#[test]
fn a_damaged_page_leaves_the_others_intact() {
    let fake = Fake::new();
    let before = fake.state();
    let mut longer = page();
    // It says that it has more than a page.
    longer[8..16].copy_from_slice(&5000u64.to_ne_bytes());
    for damaged in [&b"short"[..], &longer, &[0xff; 4096]] {
        let raw = "t/per_cpu/cpu1/trace_pipe_raw";
        fs::write(fake.path(raw), damaged).unwrap();
        let text = fake.recorded(&KMALLOC, "true");
        assert!(
            text.contains("WARNING: t/per_cpu/cpu1/trace_pipe_raw: ")
                && text.contains("the page is skipped"),
            "{text}"
        );
        has_the_page(&fake.path("stackmap.data"));
        fake.put(raw, "");
        assert_eq!(fake.state(), before);
    }
    // What cannot be read at all: a directory.
    fs::remove_file(fake.path("t/per_cpu/cpu1/trace_pipe_raw")).unwrap();
    fs::create_dir(fake.path("t/per_cpu/cpu1/trace_pipe_raw")).unwrap();
    let text = fake.recorded(&KMALLOC, "true");
    assert!(text.contains("the rest is skipped"), "{text}");
    has_the_page(&fake.path("stackmap.data"));
}

#[test]
fn a_buffer_that_cannot_be_opened_is_not_changed() {
    let fake = Fake::new();
    fs::remove_file(fake.path("t/per_cpu/cpu1/trace_pipe_raw")).unwrap();
    let (output, text) = fake.record(&KMALLOC, "true");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is still in the buffer"), "{text}");
    assert_eq!(fake.get("t/trace"), TRACE);
    assert_eq!(fake.get("t/tracing_on"), "0");
}

#[test]
fn a_recording_that_cannot_be_written_anywhere_is_reported_lost() {
    let fake = Fake::new();
    let before = fake.state();
    let (output, text) = fake.record(&with(&["--fault", "taken:fail"]), "true");
    assert_eq!(output.status.code(), Some(1), "{text}");
    // In the file, and in each other place.
    assert!(text.matches("failed at taken").count() > 1, "{text}");
    assert!(
        text.contains("the recording is lost: the ring buffer is emptied already"),
        "{text}"
    );
    assert!(!text.contains("still in the buffer"), "{text}");
    assert_eq!(fake.state(), before);
}

#[test]
fn a_capture_holds_the_records_of_the_buffer() {
    let fake = Fake::new();
    fake.recorded(&KMALLOC, "true");
    has_the_page(&fake.path("stackmap.data"));
    let output = fake.stackmap(&["export", "--format", "json"]).output();
    let json: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let event = &json["events"][0];
    assert_eq!(event["event"], "kmalloc");
    assert_eq!(event["values"]["bytes"], 64);
    assert_eq!(event["stack"], 0x0010_0005);
    assert_eq!(json["events"].as_array().unwrap().len(), 1);

    // Without fields and arguments, too; the texts of trace_printk() are such.
    fake.put("t/printk_formats", "0xffffffff81000000 : \"a secret\"\n");
    for (arguments, kept) in [(&[][..], true), (&["--no-args"], false)] {
        fake.recorded(&with(arguments), "true");
        let mut capture = Capture::open(&fake.path("stackmap.data")).unwrap();
        let mut texts = String::new();
        let mut member = capture.member("printk_formats").unwrap();
        member.read_to_string(&mut texts).unwrap();
        assert_eq!(texts.contains("a secret"), kept);
    }
    assert_eq!(fake.manifest("stackmap.data").recorded.command, ["sh"]);
    let output = fake.stackmap(&["export", "--format", "json"]).output();
    let json: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!(json["events"][0]["fields"], "");
    assert_eq!(json["events"][0]["stack"], 0x0010_0005);
}

#[test]
fn devices_and_pipes_are_written_to() {
    let fake = Fake::new();
    fake.put("target", "what was there");
    std::os::unix::fs::symlink("target", fake.path("link")).unwrap();
    fake.recorded(&with(&["-o", "link"]), "true");
    assert!(fake.path("link").is_symlink());
    assert!(Capture::open(&fake.path("target")).is_ok());

    let child = fake
        .command(&with(&["-o", "-", "-d", "0"]), "")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let output = child.unwrap().wait_with_output().unwrap();
    assert!(output.stdout.starts_with(b"PK"));
    assert!(!fake.path("-").exists());
}

#[test]
fn errors_of_the_output_file_are_reported() {
    let fake = Fake::new();
    for (output, says) in [
        ("t", "t: this is a directory\n  hint: give a file with -o"),
        ("no/file", "cannot write no/file: there is no directory no"),
        ("new/file", "cannot write new/file: Not a directory"),
    ] {
        let (result, text) = fake.record(&with(&["-o", output]), "true");
        assert_eq!(result.status.code(), Some(1), "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn statuses_of_commands_are_those_of_a_shell() {
    let fake = Fake::new();
    fake.put("text", "");
    for (command, status) in [("/nowhere/at/all", 127), ("./text", 126), ("false", 1)] {
        let mut record = fake.command(&KMALLOC, "");
        let output = record.args(["--", command]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!text.contains("tracefs"), "{text}");
    }
}

/// Records `command` with `--user`; returns what it printed, what was said, and the status.
fn recorded_as(user: &str, command: &[&str]) -> (String, String, Option<i32>) {
    let fake = Fake::new();
    let mut record = fake.command(&KMALLOC, "");
    let record = record.args(["--user", user, "--"]).args(command);
    let output = record.output().unwrap();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
        output.status.code(),
    )
}

#[test]
fn a_command_has_the_rights_of_its_user_alone() {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let (_, text, status) = recorded_as("root", &["true"]);
        assert_eq!(status, Some(1), "{text}");
        assert!(
            text.contains("only root can run a command as root"),
            "{text}"
        );
        return;
    }
    // All four ids of each kind, and no capability.
    let script = "grep -E '^(Uid|Gid|Groups|CapPrm|CapEff)' /proc/self/status | tr -s '\\t ' ' ';\
                  echo $HOME $USER $LOGNAME";
    let (printed, text, status) = recorded_as("nobody", &["sh", "-c", script]);
    assert_eq!(status, Some(0), "{text}");
    let wanted = "Uid: 65534 65534 65534 65534\nGid: 65534 65534 65534 65534\nGroups: 65534 \n\
                  CapPrm: 0000000000000000\nCapEff: 0000000000000000\n\
                  /nonexistent nobody nobody\n";
    assert_eq!(printed, wanted);
    // The recording itself has root's.
    assert!(text.contains("stackmap.data: 6 records"), "{text}");

    let (_, text, status) = recorded_as("no such user", &["true"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("there is no user \"no such user\""), "{text}");
    // What root could run, and the user cannot.
    let private = tempfile::tempdir().unwrap();
    let program = private.path().join("true");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(private.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let (_, text, status) = recorded_as("nobody", &[program.to_str().unwrap()]);
    assert_eq!(status, Some(126), "{text}");
    assert!(text.contains("Permission denied"), "{text}");
    assert_eq!(recorded_as("nobody", &["/nowhere/at/all"]).2, Some(127));
}

#[test]
fn a_user_without_a_command_is_refused() {
    let fake = Fake::new();
    let mut record = fake.command(&KMALLOC, "");
    let output = record.args(["--user", "root", "-d", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn help_is_a_command() {
    let output = Command::new(env!("CARGO_BIN_EXE_stackmap"))
        .args(["help", "record"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.starts_with("examples:\n") && text.contains("--instance"),
        "{text}"
    );
}

#[test]
fn a_capture_has_the_symbols_that_it_needs() {
    let fake = Fake::new();
    for (arguments, slim) in [
        (&[][..], true),
        (&["--slim"], true),
        (&["--all-symbols"], false),
    ] {
        fake.recorded(&with(arguments), "true");
        assert_eq!(fake.manifest("stackmap.data").slim, slim);
        let mut capture = Capture::open(&fake.path("stackmap.data")).unwrap();
        let kallsyms = capture.kallsyms().unwrap();
        // A name, and where the symbol ends.
        let names = ["_text", "foo", "bar", "baz", "_end"];
        let has = |name: &&str| kallsyms.text().lines().any(|line| line.ends_with(name));
        let found: Vec<_> = names.into_iter().filter(has).collect();
        assert_eq!(found, names[..if slim { 3 } else { 5 }]);
        let output = fake.stackmap(&["report"]).output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(report.contains(" foo+0x8/0xf8\n"), "{report}");
    }
    let (output, text) = fake.record(&with(&["--slim", "--all-symbols"]), "true");
    assert_eq!(output.status.code(), Some(2), "{text}");
}
