// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap record` with a directory in place of tracefs: what it writes, and what it leaves.
//!
//! Nothing happens in these files by itself: commands that are recorded do what a kernel would do,
//! or somebody else. How a kernel takes it all is tested in a guest (`guest/record`).

mod about;
mod comms;
mod fake;
mod flight;
mod limits;
mod recover;
mod reused;
mod sleepers;
mod stream;

use fake::{map, of_task, page, page_of, Fake, KMALLOC, STATS};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{symlink, PermissionsExt},
    process::Stdio,
};

#[test]
fn the_settings_of_others_stay() {
    let fake = Fake::new();
    let before = fake.state();
    let script = "for file in set_event trace_clock buffer_size_kb tracing_on options/*; do \
                  echo $file: $(cat $file); done > $out/seen; cat ../../stack_map_instances > $out/listed";
    let text = fake.recorded("-e kmem:kmalloc -b 64 --clock boot", script);
    let want = "\
        set_event: kmem:kmalloc\n\
        trace_clock: boot\n\
        buffer_size_kb: 64\n\
        tracing_on: 1\n\
        options/event-fork: 0\n\
        options/func_stack_trace: 0\n\
        options/function-fork: 0\n\
        options/overwrite: 1\n\
        options/stacktrace: 1\n\
        options/userstacktrace: 0\n";
    assert_eq!(fake.get("seen"), want);
    for said in [
        "stackmap.data: 1 event, 1 stack in the map",
        "note: what programs write to trace_marker is not recorded: ",
    ] {
        assert!(text.contains(said), "{text}");
    }
    assert_eq!(fake.manifest().clock, "boot");
    assert_eq!(fake.state(), before);
    let listed = fake.get("listed");
    let name = listed.trim_end().strip_suffix("/user").unwrap();
    assert!(name.starts_with("stackmap-"), "{name}");
    let listed = format!("{name}/user\n!{name}\n");
    assert!(fake.get("t/stack_map_instances").starts_with(&listed));
    assert_eq!(fake.get("t/stack_map_user"), "settle");
    assert_eq!(fake.get("i/tracing_on"), "0");
    assert_eq!(fake.files(), ["listed", "seen", "stackmap.data"]);
}

#[test]
fn markers_are_copied_only_while_the_instance_records() {
    let fake = Fake::new();
    let option = "i/options/copy_trace_marker";
    fake.put(option, "0\n");
    let script = "cat options/copy_trace_marker > $out/seen";
    let text = fake.recorded(KMALLOC, script);
    assert_eq!((&fake.get("seen")[..], &fake.get(option)[..]), ("1", "0"));
    assert!(!text.contains("trace_marker"), "{text}");
    // Nor while another process has switched it off.
    fake.recorded(KMALLOC, &format!("echo 0 >tracing_on; sleep 0.5; {script}"));
    assert_eq!(fake.get("seen"), "0");
    // A CPU that does not record would keep them from others.
    let text = fake.recorded("-e kmem:kmalloc -C 0", script);
    assert_eq!(fake.get("seen"), "0");
    let said = "trace_marker is not recorded: only some CPUs record";
    assert!(text.contains(said), "{text}");
}

#[test]
fn functions_are_recorded_with_their_stacks() {
    let fake = Fake::new();
    let before = fake.state();
    let script = "cat current_tracer options/func_stack_trace set_ftrace_filter > $out/seen";
    fake.recorded("-f foo -f bar*", script);
    assert_eq!(fake.get("seen"), "function1foo\nbar*\n");
    assert_eq!(fake.state(), before);
    // What the kernel says of a filter without a function.
    let ran = fake.record("-f '#### all functions enabled ####'", "true");
    ran.failed(1, "selects no function");
    assert_eq!(fake.state(), before);
}

#[test]
fn what_others_change_in_the_instance_is_reported() {
    let fake = Fake::new();
    // Scripts, and the files that are reported.
    for script in [
        "true # ",
        "echo >set_event # set_event",
        "echo 1 >tracing_cpumask; echo '[x]' >trace_clock # trace_clock, tracing_cpumask",
        "echo 7 >set_event_pid; echo 0 >options/stacktrace # options/stacktrace, set_event_pid",
        "echo x >events/kmem/kmalloc/filter # events/kmem/kmalloc/filter",
        // Also for a while.
        "echo 0 >tracing_on; sleep 0.3; echo 1 >tracing_on # tracing_on",
        "sleep 0.3; echo 'entries: 1' >per_cpu/cpu0/stats # trace",
    ] {
        let (_, files) = script.split_once(" # ").unwrap();
        let text = fake.recorded(KMALLOC, script);
        assert_eq!(fake.manifest().settings_changed.join(", "), files);
        let said = format!("another process wrote to {files} of");
        assert_eq!(text.contains(&said), !files.is_empty(), "{text}");
    }
}

#[test]
fn what_instances_do_not_have_is_refused() {
    let fake = Fake::new();
    let before = fake.state();
    fs::create_dir(fake.path("t/instances/mine")).unwrap();
    fake.put("t/instances/mine/trace", "");
    let is_tracer = "blk is a tracer, which only the top level of tracefs has";
    let list = fake.run("record --tracefs t -l kmem:km*");
    assert_eq!(list.stdout, b"kmem:kmalloc\n");
    for (arguments, says) in [
        ("t -e blk", is_tracer),
        ("t -e kmem:x*", "there is no event \"kmem:x*\""),
        (
            "t/instances/mine -e kmem:kmalloc",
            "--tracefs is an instance, mine",
        ),
    ] {
        let ran = fake.run(&format!("record --tracefs {arguments} -- true"));
        ran.failed(1, says);
    }
    fs::remove_dir_all(fake.path("t/instances/mine")).unwrap();
    assert_eq!(fake.state(), before);
    assert!(fake.files().is_empty());
}

#[test]
fn what_fails_leaves_no_instance() {
    let mut fake = Fake::new();
    let before = fake.state();
    // The kernel refuses one setting after the other.
    for file in [
        "trace_clock",
        "set_event",
        "buffer_percent",
        "per_cpu/cpu1/trace_pipe_raw",
    ] {
        let (path, away) = (fake.path("i").join(file), fake.path("away"));
        fs::rename(&path, &away).unwrap();
        fs::create_dir(&path).unwrap();
        fake.overwrite = file != "buffer_percent";
        let ran = fake.record("-e kmem:kmalloc -d 0", "");
        // A buffer of a CPU that cannot be read is skipped.
        let is_well = ran.status == Some(0);
        assert_eq!(is_well, file.ends_with("raw"), "{file}: {}", ran.stderr);
        fs::remove_dir(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        let _ = fs::remove_file(fake.path("stackmap.data"));
        assert_eq!(fake.state(), before, "{file}");
        assert!(fake.files().is_empty(), "{file}: {:?}", fake.files());
    }
}

#[test]
fn record_reports_losses() {
    let fake = Fake::new();
    let text = fake.recorded(KMALLOC, "true");
    assert!(!text.contains("WARNING"), "{text}");

    let full = "entries: 100\noverrun: 900\ncommit overrun: 3\nbytes: 102400\ndropped events: 4\n";
    fake.put("i/per_cpu/cpu1/stats", full);
    let text = fake.recorded(KMALLOC, "true");
    let said = "WARNING: 900 records overwritten in the ring buffer during the recording; -b 1280 \
                would have held them";
    assert!(text.contains(said), "{text}");
    let said = "WARNING: 7 records did not fit into the ring buffer";
    assert!(text.contains(said), "{text}");

    // A stack without its event is none.
    let mut stack_alone = page();
    stack_alone.drain(16..32);
    stack_alone[8] -= 16;
    fake.put("i/per_cpu/cpu0/trace_pipe_raw", stack_alone);
    fake.put("i/per_cpu/cpu1/stats", STATS);
    let text = fake.recorded(KMALLOC, "echo 0 > tracing_on");
    assert!(text.contains("stackmap.data: 0 events, "), "{text}");
    assert!(text.contains("WARNING: tracing was switched off"), "{text}");
    assert!(text.contains("WARNING: nothing was recorded"), "{text}");
    assert!(fake.manifest().switched_off);

    fake.put("i/per_cpu/cpu0/stats", "entries: 0\nread events: 7\n");
    let text = fake.recorded(KMALLOC, "true");
    let said = "WARNING: 7 records missing: another process read them";
    assert!(text.contains(said), "{text}");
    assert!(!text.contains("nothing was recorded"), "{text}");
}

/// Asserts that a capture has what the buffer had.
fn has_the_page(fake: &Fake, capture: &str) {
    let members = fake.capture(capture).members;
    assert!(!members.contains_key("trace"));
    // After it may be a page that says that records are missing.
    assert_eq!(members["trace_pipe_raw"][8..56], page()[..48]);
}

#[test]
fn a_damaged_page_leaves_the_others_intact() {
    let fake = Fake::new();
    let before = fake.state();
    let mut longer = page();
    // It says that it has more than a page.
    longer[8..16].copy_from_slice(&5000u64.to_ne_bytes());
    let raw = "i/per_cpu/cpu1/trace_pipe_raw";
    for damaged in [&b"short"[..], &longer, &[0xff; 4096]] {
        fake.put(raw, damaged);
        let text = fake.recorded(KMALLOC, "true");
        assert!(text.contains("WARNING: CPU 1: "), "{text}");
        assert!(text.contains("the page is skipped"), "{text}");
        has_the_page(&fake, "stackmap.data");
        fake.put(raw, "");
        assert_eq!(fake.state(), before);
    }
    // What cannot be read at all: a directory.
    fs::remove_file(fake.path(raw)).unwrap();
    fs::create_dir(fake.path(raw)).unwrap();
    let text = fake.recorded(KMALLOC, "true");
    assert!(text.contains("the rest is skipped"), "{text}");
    has_the_page(&fake, "stackmap.data");
}

#[test]
fn a_capture_holds_the_records_of_the_buffer() {
    let fake = Fake::new();
    fake.recorded(KMALLOC, "true");
    has_the_page(&fake, "stackmap.data");
    let export = fake.export("stackmap.data");
    let event = &export["events"][0];
    assert_eq!(event["event"], "kmalloc");
    assert_eq!(event["values"]["bytes"], 64);
    assert_eq!(event["stack"], 0x0010_0005);
    assert!(export["events"][1].is_null());

    // Without fields and arguments, too; the texts of trace_printk() are such.
    fake.put("t/printk_formats", "0xffffffff81000000 : \"a secret\"\n");
    for (option, kept) in [("", true), ("--no-args", false)] {
        fake.recorded(&format!("{KMALLOC} {option}"), "true");
        let texts = fake.capture("stackmap.data").text("printk_formats");
        assert_eq!(texts.contains("a secret"), kept);
    }
    assert_eq!(fake.manifest().recorded.command, ["sh"]);
    let event = &fake.export("stackmap.data")["events"][0];
    assert_eq!(event["fields"], "");
    assert_eq!(event["stack"], 0x0010_0005);
}

#[test]
fn tasks_that_have_ended_have_their_names_and_processes() {
    let fake = Fake::new();
    // No task has such a number, or the test would fail: a thread of a thread of the first one.
    let [process, thread, last] = [4_194_301, 4_194_302, 4_194_303];
    let mut page = page();
    for at in [24, 40] {
        page[at..at + 4].copy_from_slice(&u32::to_ne_bytes(last));
    }
    fake.put("i/per_cpu/cpu0/trace_pipe_raw", page);
    let records = [
        of_task(1, "task_newtask", process, thread, &["first"]),
        of_task(2, "task_newtask", thread, last, &["third"]),
        of_task(3000, "sched_process_exit", last, last, &["third"]),
        of_task(3001, "sched_process_exit", process, process, &["first"]),
    ];
    fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&records));
    fake.recorded(KMALLOC, "true");
    let event = &fake.export("stackmap.data")["events"][0];
    assert_eq!(
        (event["pid"].as_u64(), &event["comm"]),
        (Some(last.into()), &"third".into())
    );
    assert_eq!(event["tgid"], process);
}

#[test]
fn devices_and_pipes_are_written_to() {
    let fake = Fake::new();
    fake.put("target", "what was there");
    symlink("target", fake.path("link")).unwrap();
    fake.recorded("-e kmem:kmalloc -o link", "true");
    assert!(fake.path("link").is_symlink());
    has_the_page(&fake, "target");

    let mut command = fake.command("-e kmem:kmalloc -o - -d 0", "");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let output = child.unwrap().wait_with_output().unwrap();
    assert!(output.stdout.starts_with(b"PK"));
    assert!(!fake.path("-").exists());
}

#[test]
fn errors_of_the_output_file_are_reported() {
    let fake = Fake::new();
    fake.put("new", "");
    symlink("nothing", fake.path("dangling")).unwrap();
    fs::create_dir(fake.path("open")).unwrap();
    fs::set_permissions(fake.path("open"), Permissions::from_mode(0o1777)).unwrap();
    symlink("../new", fake.path("open/link")).unwrap();
    for (output, says) in [
        (
            "dangling",
            "cannot write dangling: it is a link to a file that is not there",
        ),
        ("t", "t: this is a directory\n  hint: give a file with -o"),
        ("no/file", "cannot write no/file: there is no directory no"),
        ("new/file", "cannot write new/file: Not a directory"),
        ("open/link", "other users can write to"),
    ] {
        let ran = fake.record(&format!("{KMALLOC} -o {output}"), "true");
        ran.failed(1, says);
    }
}

#[test]
fn statuses_of_commands_are_those_of_a_shell() {
    let fake = Fake::new();
    fake.put("text", "");
    for (command, status, says) in [
        ("/nowhere/at/all", 127, "cannot run /nowhere/at/all"),
        ("./text", 126, "cannot run ./text"),
        ("false", 1, ""),
        ("sh -c 'kill -9 $$'", 137, ""),
    ] {
        let ran = fake.record(&format!("{KMALLOC} -- {command}"), "");
        assert!(!ran.failed(status, says).stderr.contains("tracefs"));
    }
}

#[test]
fn a_capture_has_the_symbols_that_it_needs() {
    let fake = Fake::new();
    for (option, nr) in [("", 3), ("--all-symbols", 5)] {
        fake.recorded(&format!("{KMALLOC} {option}"), "true");
        let capture = fake.capture("stackmap.data");
        let kallsyms = capture.text("kallsyms");
        // A name, and where the symbol ends.
        let names = ["_text", "foo", "bar", "baz", "_end"];
        let has = |name: &&str| kallsyms.lines().any(|line| line.ends_with(name));
        let found: Vec<_> = names.into_iter().filter(has).collect();
        assert_eq!(found, names[..nr]);
        let report = fake.ran("report");
        assert!(report.contains(" foo+0x8/0xf8\n"), "{report}");
    }
}

#[test]
fn a_reset_during_the_recording_is_reported() {
    let fake = Fake::new();
    for (ids, reset) in [
        (&[0x0010_0005][..], false),
        (&[0x0010_0005, 0x0010_0006], false),
        (&[0x0010_8005], true),
        (&[], true),
    ] {
        fake.put("t/stack_map_bin", map(&[0x0010_0005]));
        fake.put("map", map(ids));
        let text = fake.recorded(KMALLOC, "cat $out/map > ../../stack_map_bin");
        assert_eq!(text.contains("WARNING: the map was reset"), reset, "{text}");
        assert_eq!(fake.manifest().reset, reset);
        let report = fake.ran("report");
        assert_eq!(report.contains("1 event has a stale id"), reset, "{report}");
    }
}

#[test]
fn what_cannot_be_read_is_missing_in_the_live_commands_alone() {
    for (file, dump, top) in [
        (
            "proc/kallsyms",
            "names of kernel functions",
            "names of kernel functions",
        ),
        ("proc/modules", "modules", ""),
        ("t/stack_map_stat", "counters", "counters"),
        ("t/stack_map_user_bin", "user stacks", ""),
        ("t/tracing_on", "", ""),
    ] {
        let fake = Fake::new();
        let _ = fs::remove_file(fake.path(file));
        fs::create_dir(fake.path(file)).unwrap();
        for (command, lacks) in [("dump", dump), ("top --once -i 0.05", top)] {
            let ran = fake.run(&format!("{command} --tracefs t")).well();
            let said = match lacks {
                "" => String::new(),
                lacks => format!("WARNING: without {lacks}: cannot read"),
            };
            let is_said = ran.stderr.contains("without");
            assert!(ran.stderr.starts_with(&said), "{}", ran.stderr);
            assert_eq!(is_said, !lacks.is_empty(), "{}", ran.stderr);
            let text = ran.text();
            assert!(text.contains("1048581"), "{command} {file}: {text}");
            let has_names = file != "proc/kallsyms";
            assert_eq!(text.contains("foo"), has_names, "{command} {file}: {text}");
            assert_eq!(
                text.contains("ffffffff81000010"),
                !has_names || command == "dump",
                "{text}"
            );
        }
    }
    // As kernel.kptr_restrict=2 has it.
    let fake = Fake::new();
    fake.put("proc/kallsyms", "0000000000000000 T _stext\n");
    for command in ["dump", "top --once -i 0.05"] {
        let ran = fake.run(&format!("{command} --tracefs t")).well();
        assert!(ran.stderr.contains("kptr_restrict"), "{}", ran.stderr);
        assert!(ran.text().contains("0xffffffff81000010"));
    }
}
