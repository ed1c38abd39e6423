// SPDX-License-Identifier: MIT OR Apache-2.0

//! A directory in place of tracefs, and recordings in it.

use crate::{
    made::{self, COMMON, HEADER_PAGE},
    tool::{words, Members, Ran},
};
use serde_json::Value;
use stackmap::{capture::Manifest, stack_map_bin::LoadId};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    ops::{Deref, DerefMut},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

pub(super) const STATS: &str =
    "entries: 3\noverrun: 0\ncommit overrun: 0\nbytes: 300\ndropped events: 0\n";
const STAT: &str = "entries: 1 / 16384\ntable_size: 32768\nsuccesses: 1\ndrops: 0\n";
/// A function that is on the stack, where it ends, and one that is on none.
pub(super) const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000008 T foo
ffffffff81000100 T bar
ffffffff81000200 T baz
ffffffff81000300 T _end
";

pub(super) const KMALLOC_ID: u16 = 7;
pub(super) const STACK_ID: u16 = 8;

/// Returns a page of the ring buffer with a kmalloc and its stack.
pub(super) fn page() -> Vec<u8> {
    let records = [(KMALLOC_ID, 64u32), (STACK_ID, 0x0010_0005)];
    let records = records.iter().zip([1000, 2000]);
    let records = records.map(|((id, field), at)| (at, *id, 1, field.to_ne_bytes().to_vec()));
    page_of(&records.collect::<Vec<_>>())
}

/// A record: when it is after the beginning of its page, the number of the event, its task and its fields.
pub(super) type Record = (u32, u16, u32, Vec<u8>);

/// Returns a page with these records.
pub(super) fn page_of(events: &[Record]) -> Vec<u8> {
    let mut records = Vec::new();
    let mut before = 0;
    for (at, id, pid, fields) in events {
        // The words of data: the head of an event with its task, and the fields.
        let words = 2 + fields.len() as u32 / 4;
        records.extend((words | (at - before) << 5).to_ne_bytes());
        before = *at;
        records.extend(id.to_ne_bytes());
        records.extend([0, 0]);
        records.extend(pid.to_ne_bytes());
        records.extend(fields);
    }
    let mut page = 1_000_000_000u64.to_ne_bytes().to_vec();
    page.extend((records.len() as u64).to_ne_bytes());
    page.extend(records);
    page.resize(4096, 0);
    page
}

fn format(name: &str, id: u16, field: &str) -> String {
    let field_is = format!("\tfield:unsigned int {field};\toffset:8;\tsize:4;\tsigned:0;\n");
    let print = format!("print fmt: \"%u\", REC->{field}\n");
    format!("name: {name}\nID: {id}\nformat:\n{COMMON}\n{field_is}\n{print}")
}

/// Returns a map with the stack that the page has, or of another generation, or without any.
pub(super) fn map(ids: &[u32]) -> Vec<u8> {
    let stacks: Vec<_> = ids
        .iter()
        .map(|id| (*id, &[0xffff_ffff_8100_0010][..]))
        .collect();
    made::bin(LoadId::new(7), &stacks)
}

/// Events that tell names of tasks, with their numbers and their fields besides an id.
const OF_TASKS: [(&str, &str, u16, &[&str]); 3] = [
    (
        "task",
        "task_newtask",
        20,
        &["char comm[16]", "int clone_flags"],
    ),
    (
        "task",
        "task_rename",
        21,
        &["char oldcomm[16]", "char newcomm[16]"],
    ),
    ("sched", "sched_process_exit", 22, &["char comm[16]"]),
];

/// Returns the record of such an event, the start of a thread if it is no other one.
pub(super) fn of_task(at: u32, event: &str, by: u32, pid: u32, names: &[&str]) -> Record {
    let (.., id, _) = OF_TASKS
        .iter()
        .find(|(_, name, ..)| *name == event)
        .unwrap();
    let names = names.iter().map(|name| format!("{name:\0<16}"));
    let flags = 0x1_0000u32.to_ne_bytes();
    let fields = [
        &pid.to_ne_bytes(),
        names.collect::<String>().as_bytes(),
        &flags,
    ]
    .concat();
    (at, *id, by, fields)
}

/// Events that there are.
const EVENTS: [&str; 3] = ["kmem/kmalloc", "kmem/kfree", "sched/sched_switch"];

/// A directory like tracefs, `t`, and those like new instances, which are in `t` while a recording has them: `i`, and
/// `i.names` for the names of tasks.
pub(super) struct Fake {
    pub(super) dir: tempfile::TempDir,
    /// Whether it is not streamed: a file that stands for a buffer does not lose what is read.
    pub(super) overwrite: bool,
}

impl Fake {
    pub(super) fn new() -> Self {
        let fake = Self {
            dir: tempfile::tempdir().unwrap(),
            overwrite: true,
        };
        for place in ["t", "i", "i.names"] {
            fake.buffer(place);
        }
        fake.put("i.names/per_cpu/cpu0/trace_pipe_raw", "");
        fs::create_dir(fake.path("t/instances")).unwrap();
        let available: String = EVENTS.map(|event| event.replace('/', ":") + "\n").concat();
        for (file, text) in [
            ("t/available_events", &available[..]),
            ("t/available_tracers", "function nop\n"),
            ("t/stack_map_stat", STAT),
            ("t/stack_map", ""),
            ("t/stack_map_instances", ""),
            ("t/stack_map_user", ""),
            ("t/options/stackmap", "0\n"),
            ("proc/modules", ""),
            ("proc/kallsyms", KALLSYMS),
        ] {
            fs::create_dir_all(fake.path(file).parent().unwrap()).unwrap();
            fake.put(file, text);
        }
        fake.put("t/stack_map_bin", map(&[0x0010_0005]));
        fake
    }

    /// Makes the files of a buffer.
    fn buffer(&self, place: &str) {
        for dir in "options per_cpu/cpu0 per_cpu/cpu1 events/ftrace/stack_id".split(' ') {
            fs::create_dir_all(self.path(place).join(dir)).unwrap();
        }
        for event in EVENTS {
            let dir = self.path(place).join("events").join(event);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [("filter", "none\n"), ("trigger", "# Available triggers:\n")] {
                fs::write(dir.join(file), text).unwrap();
            }
        }
        for (system, event, id, fields) in OF_TASKS {
            let field = |name: &str, offset: usize, size: usize| {
                format!("\tfield:{name};\toffset:{offset};\tsize:{size};\tsigned:1;\n")
            };
            let mut text =
                format!("name: {event}\nID: {id}\nformat:\n{COMMON}\n") + &field("int pid", 8, 4);
            let mut offset = 12;
            for name in fields {
                let size = if name.ends_with(']') { 16 } else { 4 };
                text += &field(name, offset, size);
                offset += size;
            }
            let dir = format!("{place}/events/{system}/{event}");
            fs::create_dir_all(self.path(&dir)).unwrap();
            self.put(&format!("{dir}/format"), text);
        }
        for (file, text) in [
            ("trace", ""),
            ("tracing_on", "1\n"),
            ("current_tracer", "nop\n"),
            ("set_event", ""),
            ("set_event_pid", ""),
            ("set_ftrace_pid", "no pid\n"),
            ("set_ftrace_filter", "#### all functions enabled ####\n"),
            ("trace_clock", "[local] global mono\n"),
            ("tracing_cpumask", "3\n"),
            ("buffer_size_kb", "1408\n"),
            ("buffer_percent", "50\n"),
            ("per_cpu/cpu0/stats", STATS),
            ("per_cpu/cpu1/stats", STATS),
            ("per_cpu/cpu0/buffer_size_kb", "1408\n"),
            ("per_cpu/cpu1/buffer_size_kb", "1408\n"),
            ("per_cpu/cpu1/trace_pipe_raw", ""),
            ("options/stacktrace", "0\n"),
            ("options/userstacktrace", "1\n"),
            ("options/func_stack_trace", "0\n"),
            ("options/overwrite", "0\n"),
            ("options/event-fork", "1\n"),
            ("options/function-fork", "1\n"),
            (
                "events/kmem/kmalloc/format",
                &format("kmalloc", KMALLOC_ID, "bytes"),
            ),
            (
                "events/ftrace/stack_id/format",
                &format("stack_id", STACK_ID, "stack_id"),
            ),
            ("events/header_page", HEADER_PAGE),
            ("events/header_event", ""),
        ] {
            self.put(&format!("{place}/{file}"), text);
        }
        self.put(&format!("{place}/per_cpu/cpu0/trace_pipe_raw"), page());
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(super) fn put(&self, file: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(file), content).unwrap();
    }

    pub(super) fn get(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    /// What is in tracefs, except for the file that lists instances to the module.
    pub(super) fn state(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut state = BTreeMap::new();
        let mut dirs = vec![self.path("t")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => dirs.push(path),
                    false
                        if path.ends_with("stack_map_instances")
                            || path.ends_with("stack_map_user") => {}
                    false => drop(state.insert(path.clone(), fs::read(path).unwrap())),
                }
            }
        }
        state
    }

    fn stackmap(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stackmap"));
        command
            .args(words(arguments))
            .current_dir(self.dir.path())
            .env("STACKMAP_TEST_PROC", "proc")
            .env("STACKMAP_TEST_RUN", self.path("run"))
            .env("STACKMAP_TEST_INSTANCE", self.path("i"))
            .env("TMPDIR", self.dir.path());
        command
    }

    /// Returns a recording of `arguments`, with a command that runs in the instance.
    pub(super) fn command(&self, arguments: &str, script: &str) -> Command {
        let overwrite = if self.overwrite { "--overwrite" } else { "" };
        let mut command = self.stackmap(&format!("record --tracefs t {overwrite} {arguments}"));
        if !script.is_empty() {
            let script = format!("out=$PWD; cd t/instances/stackmap-*; {script}");
            command.args(["--", "sh", "-c", &script]);
        }
        command
    }

    pub(super) fn record(&self, arguments: &str, script: &str) -> Ran {
        self.command(arguments, script).output().unwrap().into()
    }

    /// Records well, and returns what is said.
    pub(super) fn recorded(&self, arguments: &str, script: &str) -> String {
        self.record(arguments, script).well().stderr
    }

    /// Starts a recording that runs until a signal.
    pub(super) fn start(&self, arguments: &str) -> Started {
        let log = File::create(self.path("log")).unwrap();
        let mut command = self.command(arguments, "");
        command.stdin(Stdio::null()).stderr(log);
        let child = Started(command.spawn().unwrap());
        wait_until(|| self.get("log").contains("recording until"));
        child
    }

    /// Runs another command.
    pub(super) fn run(&self, arguments: &str) -> Ran {
        self.stackmap(arguments).output().unwrap().into()
    }

    /// Runs a command that must end well; returns what it prints, and what it says.
    pub(super) fn ran(&self, arguments: &str) -> String {
        let ran = self.run(arguments).well();
        String::from_utf8_lossy(&ran.stdout).into_owned() + &ran.stderr
    }

    /// Returns the export of a capture.
    pub(super) fn export(&self, capture: &str) -> Value {
        let ran = self.run(&format!("export --format json {capture}")).well();
        serde_json::from_slice(&ran.stdout).unwrap()
    }

    /// The names of all files but those of tracefs.
    pub(super) fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> = names.map(name).collect();
        let run = fs::read_dir(self.path("run"))
            .into_iter()
            .flatten()
            .flatten();
        names.extend(run.map(|entry| format!("run/{}", name(entry))));
        names.retain(|name| !["t", "i", "i.names", "proc", "run"].contains(&&name[..]));
        names.sort();
        names
    }

    pub(super) fn capture(&self, file: &str) -> Members {
        Members::read(self.path(file))
    }

    pub(super) fn manifest(&self) -> Manifest {
        self.capture("stackmap.data").manifest
    }

    /// Returns the names of the instances of recordings.
    pub(super) fn instances(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("t/instances")).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let names = names.map(|entry| name(entry.unwrap()));
        names.filter(|name| name.starts_with("stackmap-")).collect()
    }
}

/// A process that does not outlive a test that fails.
pub(super) struct Started(pub(super) Child);

impl Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn wait_until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end);
        sleep(Duration::from_millis(5));
    }
}

pub(super) fn send(signal: &str, child: &Child) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(status.success());
}

pub(super) const KMALLOC: &str = "-e kmem:kmalloc";
