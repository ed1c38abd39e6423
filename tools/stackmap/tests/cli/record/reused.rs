// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names and numbers of tasks, modules and pages that are others later.

use super::fake::{
    of_task, page_of, send, Fake, Started, KALLSYMS, KMALLOC, KMALLOC_ID, STACK_ID, STATS,
};
use crate::made;
use stackmap::stack_map_bin::LoadId;
use std::{
    fs::{self, File},
    io::Write,
    process::{Command, Stdio},
};

const PID: u32 = 4_194_303;
const PROCESS: u32 = 4_194_302;

fn kmallocs(times: &[u32]) -> Vec<super::fake::Record> {
    let mut events = Vec::new();
    for at in times {
        for (at, id, field) in [(*at, KMALLOC_ID, 64u32), (at + 1, STACK_ID, 0x0010_0005)] {
            events.push((at, id, PID, u32::to_ne_bytes(field).to_vec()));
        }
    }
    events
}

/// Returns the start of a process, and no thread, by a task.
fn process(at: u32, by: u32, name: &str) -> super::fake::Record {
    let mut record = of_task(at, "task_newtask", by, PID, &[name]);
    let flags = record.3.len() - 4;
    record.3[flags..].fill(0);
    record
}

#[test]
fn modules_at_one_address_have_no_names() {
    let fake = Fake::new();
    let old = "old 4096 0 - Live 0xffffffffc0000000\n";
    fake.put("proc/modules", old);
    fake.put(
        "proc/kallsyms",
        format!("{KALLSYMS}ffffffffc0000000 t old_f\t[old]\n"),
    );
    fake.put(
        "t/stack_map_bin",
        made::bin(
            LoadId::new(7),
            &[(0x0010_0005, &[0xffff_ffff_c000_0010, 0xffff_ffff_8100_0010])],
        ),
    );
    let script = "echo 'new 4096 0 - Live 0xffffffffc0000000' > $out/proc/modules; \
                  printf 'ffffffff81000000 T _text\\nffffffff81000008 T foo\\nffffffff81000100 T bar\\nffffffffc0000000 t new_f\\t[new]\\n' > $out/proc/kallsyms";
    fake.recorded(KMALLOC, script);
    let text = fake.ran("report --top 9 stackmap.data");
    assert!(!text.contains("new_f+"), "{text}");
}

#[test]
fn perf_events_report_bpf_programs_before_kallsyms_is_read() {
    let fake = Fake::new();
    fake.put("proc/stat", "cpu0 0\n");
    let path = fake.path("proc/kallsyms");
    let fifo = || {
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap()
            .success());
    };
    fifo();
    let mut command = fake.command(KMALLOC, "true");
    let mut recorder = Started(command.stderr(Stdio::null()).spawn().unwrap());
    // First it checks that it may, then it has the programs from before the recording, then all symbols.
    let nr_events = [(); 3].map(|()| {
        // Waits for the reader.
        let mut kallsyms = File::options().write(true).open(&path).unwrap();
        let files = fs::read_dir(format!("/proc/{}/fd", recorder.id())).unwrap();
        let files = files.flat_map(|file| fs::read_link(file.unwrap().path()));
        let nr_events = files
            .filter(|file| file.ends_with("anon_inode:[perf_event]"))
            .count();
        fifo();
        kallsyms.write_all(KALLSYMS.as_bytes()).unwrap();
        nr_events
    });
    assert!(recorder.wait().unwrap().success());
    assert_eq!(nr_events, [0, 1, 1]);
}

#[test]
fn a_thread_that_ended_is_no_thread_of_its_process_later() {
    let fake = Fake::new();
    fake.put(
        "i/per_cpu/cpu0/trace_pipe_raw",
        page_of(&kmallocs(&[12_000, 31_000])),
    );
    let names = [
        of_task(10_000, "task_newtask", PROCESS, PID, &["thread"]),
        of_task(20_000, "sched_process_exit", PID, PID, &["thread"]),
        process(30_000, 1, "other"),
        of_task(32_000, "sched_process_exit", PID, PID, &["other"]),
        of_task(40_000, "sched_process_exit", PROCESS, PROCESS, &["process"]),
    ];
    fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&names));
    fake.recorded(KMALLOC, "true");
    let export = fake.export("stackmap.data");
    let events = export["events"].as_array().unwrap().iter();
    let tgids: Vec<_> = events.map(|event| event["tgid"].as_u64()).collect();
    assert_eq!(tgids, [Some(PROCESS.into()), Some(PID.into())]);
}

#[test]
fn a_process_that_ended_was_no_thread() {
    let fake = Fake::new();
    fake.put(
        "i/per_cpu/cpu0/trace_pipe_raw",
        page_of(&kmallocs(&[1_000, 31_000])),
    );
    let names = [
        of_task(2_000, "sched_process_exit", PID, PID, &["alpha"]),
        of_task(30_000, "task_newtask", PROCESS, PID, &["thread"]),
        of_task(40_000, "sched_process_exit", PROCESS, PROCESS, &["process"]),
    ];
    fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&names));
    fake.recorded(KMALLOC, "true");
    let text = fake.ran(&format!("report --by comm --pid {PROCESS}"));
    assert!(!text.contains("alpha"), "{text}");
}

#[test]
fn a_child_of_the_recorder_is_its_own_until_exec() {
    for is_own in [false, true] {
        let fake = Fake::new();
        let events = kmallocs(&[12_000, 22_000]);
        fake.put("i/per_cpu/cpu0/trace_pipe_raw", page_of(&events));
        let mut recorder = fake.start(KMALLOC);
        let by = if is_own { recorder.id() } else { 1 };
        let renamed = of_task(20_000, "task_rename", PID, PID, &["stackmap", "true"]);
        let names = [process(10_000, by, "stackmap"), renamed];
        let mut instances = fs::read_dir(fake.path("t/instances")).unwrap().flatten();
        let instance =
            instances.find(|entry| entry.file_name().to_string_lossy().contains("names"));
        let instance = instance.unwrap().path();
        fs::write(
            instance.join("per_cpu/cpu0/trace_pipe_raw"),
            page_of(&names),
        )
        .unwrap();
        send("-INT", &recorder);
        assert!(recorder.wait().unwrap().success());
        let text = fake.ran("report --by comm stackmap.data");
        assert!(text.contains("true "), "{text}");
        assert_eq!(text.contains("stackmap "), !is_own, "{text}");
    }
}

#[test]
fn in_a_container_the_first_process_outside_is_not_the_recorder() {
    let fake = Fake::new();
    let mut command = Command::new("unshare");
    let inner = fake.command(KMALLOC, "true");
    command
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(inner.get_program())
        .args(inner.get_args());
    command.current_dir(fake.dir.path());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap());
    }
    let output = command.output().unwrap();
    assert!(output.status.success());
    let text = fake.ran("report --by comm stackmap.data");
    assert!(text.contains("1 event,"), "{text}");
}

#[test]
fn a_name_that_has_ended_is_not_that_of_the_next_task() {
    // That the second task began was overwritten.
    let fake = Fake::new();
    fake.put(
        "i/per_cpu/cpu0/trace_pipe_raw",
        page_of(&kmallocs(&[12_000])),
    );
    let names = [
        of_task(2_000, "sched_process_exit", PID, PID, &["alpha"]),
        of_task(30_000, "task_rename", PID, PID, &["beta", "gamma"]),
    ];
    fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&names));
    fake.recorded(KMALLOC, "true");
    let text = fake.ran("report --by comm stackmap.data");
    assert!(!text.contains("alpha"), "{text}");
}

#[test]
fn a_name_is_unknown_while_a_change_of_it_may_be_lost() {
    let running = Started(Command::new("sleep").arg("100").spawn().unwrap());
    let ended = |pid| vec![of_task(2_000, "sched_process_exit", pid, pid, &["alpha"])];
    let renamed = |pid| {
        let names = [(2_000, ["sh", "alpha"]), (30_000, ["beta", "gamma"])];
        let names = names.map(|(at, names)| of_task(at, "task_rename", pid, pid, &names));
        names.to_vec()
    };
    let begun = |pid| {
        [
            ended(pid),
            vec![of_task(30_000, "task_newtask", 1, pid, &["beta"])],
        ]
        .concat()
    };
    let runs = running.id();
    // What a task records after its exit has its name if no other task with its ID can have begun.
    for (pid, names, lost, want) in [
        (PID, ended(PID), "", ["alpha", "alpha", "alpha", "alpha"]),
        (
            PID,
            ended(PID),
            "overwritten",
            ["alpha", "<...>", "<...>", "<...>"],
        ),
        (
            PID,
            ended(PID),
            "dropped",
            ["alpha", "<...>", "<...>", "<...>"],
        ),
        (
            PID,
            ended(PID),
            "damaged",
            ["alpha", "<...>", "<...>", "<...>"],
        ),
        (
            PID,
            ended(PID),
            "torn",
            ["alpha", "<...>", "<...>", "<...>"],
        ),
        (PID, begun(PID)[1..].to_vec(), "", ["beta"; 4]),
        (
            PID,
            begun(PID)[1..].to_vec(),
            "overwritten",
            ["<...>", "<...>", "<...>", "beta"],
        ),
        (runs, ended(runs), "", ["alpha", "alpha", "alpha", "alpha"]),
        (
            runs,
            ended(runs),
            "overwritten",
            ["alpha", "<...>", "sleep", "sleep"],
        ),
        (
            PID,
            renamed(PID),
            "overwritten",
            ["sh", "<...>", "beta", "gamma"],
        ),
        (PID, begun(PID), "", ["alpha", "alpha", "alpha", "beta"]),
        (
            PID,
            begun(PID),
            "overwritten",
            ["alpha", "<...>", "<...>", "beta"],
        ),
    ] {
        let fake = Fake::new();
        let mut events = kmallocs(&[1_000, 12_000, 25_000, 31_000]);
        events.iter_mut().for_each(|event| event.2 = pid);
        fake.put("i/per_cpu/cpu0/trace_pipe_raw", page_of(&events));
        fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", page_of(&names));
        let mut page = page_of(&[]);
        page[..8].copy_from_slice(&1_000_020_000u64.to_ne_bytes());
        match lost {
            // Records before the page are missing.
            "overwritten" => page[11] |= 0x80,
            "damaged" => page[8..12].copy_from_slice(&5000u32.to_ne_bytes()),
            // Its only record is longer than the page says.
            "torn" => {
                page[8..12].copy_from_slice(&4u32.to_ne_bytes());
                page[16..20].copy_from_slice(&28u32.to_ne_bytes());
            }
            "dropped" => {
                let stats = STATS.replacen("dropped events: 0", "dropped events: 1", 1);
                fake.put("i.names/per_cpu/cpu1/stats", stats);
            }
            _ => {}
        }
        fake.put("i.names/per_cpu/cpu1/trace_pipe_raw", page);
        fake.recorded(KMALLOC, "true");
        let export = fake.export("stackmap.data");
        let events = export["events"].as_array().unwrap().iter();
        let comms: Vec<_> = events
            .map(|event| event["comm"].as_str().unwrap())
            .collect();
        assert_eq!(comms, want, "{pid} {names:?} {lost}");
    }
}

#[test]
fn a_page_that_was_skipped_is_missing_later_too() {
    let fake = Fake::new();
    let good = page_of(&kmallocs(&[12_000]));
    let mut damaged = page_of(&kmallocs(&[22_000, 32_000]));
    // It says that it is longer than a page is.
    damaged[8..12].copy_from_slice(&5000u32.to_le_bytes());
    fake.put("i/per_cpu/cpu0/trace_pipe_raw", [good, damaged].concat());
    fake.recorded(KMALLOC, "true");
    let text = fake.ran("report stackmap.data");
    assert!(
        text.contains("missing") || text.contains("skipped") || text.contains("lost"),
        "{text}"
    );
}

#[test]
fn events_of_one_time_are_in_the_order_of_a_life() {
    // Clocks such as uptime have few times.
    let fake = Fake::new();
    fake.put(
        "i/per_cpu/cpu0/trace_pipe_raw",
        page_of(&kmallocs(&[12_000])),
    );
    let renamed = of_task(10_000, "task_rename", PID, PID, &["sh", "prog"]);
    let ended = of_task(20_000, "sched_process_exit", PID, PID, &["prog"]);
    fake.put(
        "i.names/per_cpu/cpu0/trace_pipe_raw",
        page_of(&[renamed, ended]),
    );
    fake.put(
        "i.names/per_cpu/cpu1/trace_pipe_raw",
        page_of(&[process(10_000, 1, "sh")]),
    );
    fake.recorded(KMALLOC, "true");
    let text = fake.ran("report --by comm stackmap.data");
    assert!(text.contains("prog"), "{text}");
}
