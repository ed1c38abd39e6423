// SPDX-License-Identifier: MIT OR Apache-2.0

//! A directory in place of tracefs, and recordings in it.

use stackmap::{
    capture::{Capture, Manifest, PACKING},
    stack_map_bin::{self, LoadId, Order, Stack},
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

pub(super) const STATS: &str =
    "entries: 3\noverrun: 0\ncommit overrun: 0\nbytes: 300\ndropped events: 0\n";
const STAT: &str = "entries: 1 / 16384\ntable_size: 32768\nsuccesses: 1\ndrops: 0\n";
pub(super) const TRACE: &str =
    "  a-1 [000] ..... 1.000001: kmalloc: x\n  a-1 [000] ..... 1.000002: <stack_id 1048581>\n";

/// A function that is on the stack, where it ends, and one that is on none.
pub(super) const KALLSYMS: &str = "\
ffffffff81000000 T _text
ffffffff81000008 T foo
ffffffff81000100 T bar
ffffffff81000200 T baz
ffffffff81000300 T _end
";

/// A page of the ring buffer with what [`TRACE`] has, and what describes it.
const HEADER_PAGE: &str = "\
\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;
";
const KMALLOC_ID: u16 = 7;
const STACK_ID: u16 = 8;

pub(super) fn page() -> Vec<u8> {
    let mut records = Vec::new();
    for (id, field) in [(KMALLOC_ID, 64u32), (STACK_ID, 0x0010_0005)] {
        // A delta of 1000, and three words of data: the head of an event with its task, and a field.
        records.extend((3u32 | 1000 << 5).to_ne_bytes());
        records.extend(id.to_ne_bytes());
        records.extend([0, 0]);
        records.extend(1u32.to_ne_bytes());
        records.extend(field.to_ne_bytes());
    }
    let mut page = 1_000_000_000u64.to_ne_bytes().to_vec();
    page.extend((records.len() as u64).to_ne_bytes());
    page.extend(records);
    page.resize(4096, 0);
    page
}

fn format(name: &str, id: u16, field: &str) -> String {
    format!(
        "name: {name}\nID: {id}\nformat:\n\
         \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
         \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
         \tfield:unsigned int {field};\toffset:8;\tsize:4;\tsigned:0;\n\n\
         print fmt: \"%u\", REC->{field}\n"
    )
}

/// A directory like tracefs.
pub(super) struct Fake {
    pub(super) dir: tempfile::TempDir,
    /// Whether it is not streamed: a file that stands for a buffer does not lose what is read.
    pub(super) overwrite: bool,
}

/// A map with the stack that [`TRACE`] has, or of another generation, or without any.
pub(super) fn map(ids: &[u32]) -> Vec<u8> {
    let ips = [0xffff_ffff_8100_0010];
    let stacks: Vec<_> = ids
        .iter()
        .map(|id| Stack {
            id: *id,
            ref_count: 1,
            ips: &ips,
        })
        .collect();
    let mut bin = Vec::new();
    stack_map_bin::write(&mut bin, Order::Little, LoadId::new(7), stacks.into_iter()).unwrap();
    bin
}

impl Fake {
    pub(super) fn new() -> Self {
        let fake = Self {
            dir: tempfile::tempdir().unwrap(),
            overwrite: true,
        };
        let events = ["kmem/kmalloc", "kmem/kfree", "sched/sched_switch"];
        for place in ["t", "t/instances/x"] {
            for dir in ["options", "per_cpu/cpu0", "per_cpu/cpu1", "instances"] {
                fs::create_dir_all(fake.dir.path().join(place).join(dir)).unwrap();
            }
            let put = |file: &str, text: &str| fake.put(&format!("{place}/{file}"), text);
            for (file, text) in [
                ("trace", "old\n"),
                ("tracing_on", "1\n"),
                ("current_tracer", "nop\n"),
                ("available_tracers", "function nop\n"),
                ("set_event", ""),
                ("set_event_pid", ""),
                ("set_event_notrace_pid", ""),
                ("set_ftrace_pid", "no pid\n"),
                ("set_ftrace_filter", "#### all functions enabled ####\n"),
                ("trace_clock", "[local] global\n"),
                ("tracing_cpumask", "3\n"),
                ("buffer_size_kb", "1408\n"),
                ("per_cpu/cpu0/stats", STATS),
                ("per_cpu/cpu1/stats", STATS),
                ("options/stacktrace", "0\n"),
                ("options/func_stack_trace", "0\n"),
                ("options/verbose", "0\n"),
                ("options/overwrite", "1\n"),
                ("options/event-fork", "0\n"),
                ("options/function-fork", "0\n"),
                ("options/record-tgid", "0\n"),
            ] {
                put(file, text);
            }
            let described = [
                ("kmem/kmalloc", KMALLOC_ID, "bytes"),
                ("ftrace/stack_id", STACK_ID, "stack_id"),
            ];
            for (event, id, field) in described {
                fs::create_dir_all(fake.path(&format!("{place}/events/{event}"))).unwrap();
                let (_, name) = event.split_once('/').unwrap();
                put(&format!("events/{event}/format"), &format(name, id, field));
            }
            put("events/header_page", HEADER_PAGE);
            put("events/header_event", "");
            put("per_cpu/cpu1/trace_pipe_raw", "");
            let raw = format!("{place}/per_cpu/cpu0/trace_pipe_raw");
            fs::write(fake.path(&raw), page()).unwrap();
            for event in events {
                let dir = fake.dir.path().join(place).join("events").join(event);
                fs::create_dir_all(dir).unwrap();
                put(&format!("events/{event}/filter"), "none\n");
                put(
                    &format!("events/{event}/trigger"),
                    "# Available triggers:\n",
                );
            }
        }
        let available: String = events.map(|event| event.replace('/', ":") + "\n").concat();
        fake.put("t/available_events", &available);
        fake.put("t/stack_map_stat", STAT);
        fake.put("t/stack_map", "");
        fake.put("t/stack_map_instances", "");
        fake.put("t/options/stackmap", "0\n");
        fs::write(fake.path("t/stack_map_bin"), map(&[0x0010_0005])).unwrap();
        fs::create_dir(fake.path("proc")).unwrap();
        fake.put("proc/modules", "");
        fake.put("proc/kallsyms", KALLSYMS);
        // What the command of a recording does as the kernel would.
        fake.put("new", TRACE);
        fake
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(super) fn put(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap();
    }

    pub(super) fn get(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    /// Everything in tracefs but what the buffer holds, and without the ends of lines.
    pub(super) fn state(&self) -> BTreeMap<PathBuf, String> {
        let mut state = BTreeMap::new();
        let mut dirs = vec![self.path("t")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if !path.ends_with("trace") {
                    let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                    // A file that is empty shows itself with a comment, or "no pid".
                    let text = text.lines().filter(|line| !line.starts_with(['#', 'n']));
                    let text: Vec<_> = text.collect();
                    state.insert(path, text.join("\n"));
                }
            }
        }
        state
    }

    pub(super) fn stackmap(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stackmap"));
        command
            .args(arguments)
            .arg("--color=never")
            .current_dir(self.dir.path())
            .env("STACKMAP_TEST_PROC", "proc")
            .env("TMPDIR", self.dir.path());
        command
    }

    /// A recording of `arguments`, with a command that runs in tracefs.
    pub(super) fn command(&self, arguments: &[&str], script: &str) -> Command {
        let mut command = self.stackmap(&["record", "--tracefs", "t"]);
        if self.overwrite {
            command.arg("--overwrite");
        }
        command.args(arguments);
        if !script.is_empty() {
            let script = format!("cd t; cat ../new > trace; {script}");
            command.args(["--", "sh", "-c", &script]);
        }
        command
    }

    pub(super) fn record(&self, arguments: &[&str], script: &str) -> (Output, String) {
        let output = self.command(arguments, script).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output, text)
    }

    /// A recording that must end well; what it says.
    pub(super) fn recorded(&self, arguments: &[&str], script: &str) -> String {
        let (output, text) = self.record(arguments, script);
        assert!(output.status.success(), "{text}");
        text
    }

    /// A recording that runs until a signal.
    pub(super) fn start(&self, log: &str, arguments: &[&str]) -> Started {
        let log = self.path(log);
        let mut command = self.command(arguments, "");
        command
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap());
        let child = Started(command.spawn().unwrap());
        wait_until(|| fs::read_to_string(&log).unwrap().contains("held at"));
        child
    }

    pub(super) fn manifest(&self, file: &str) -> Manifest {
        Capture::open(&self.path(file)).unwrap().manifest().clone()
    }
}

/// A process that does not outlive a test that fails.
pub(super) struct Started(Child);

impl Started {
    pub(super) fn new(child: Child) -> Self {
        Self(child)
    }
}

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

pub(super) const KMALLOC: [&str; 2] = ["-e", "kmem:kmalloc"];

pub(super) fn with<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&KMALLOC[..], arguments].concat()
}

/// Gives `out` the members of a capture.
pub(super) fn each(path: &Path, mut out: impl FnMut(&str, Vec<u8>)) {
    let mut archive = zip::ZipArchive::new(File::open(path).unwrap()).unwrap();
    for at in 0..archive.len() {
        let mut member = archive.by_index(at).unwrap();
        let mut content = Vec::new();
        member.read_to_end(&mut content).unwrap();
        let name = member.name().unwrap().into_owned();
        out(&name, content);
    }
}

/// Writes a capture again, with another text in the member `name`.
pub(super) fn rewrite(path: &Path, name: &str, change: impl Fn(String) -> String) {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    each(path, |member, mut content| {
        if member == name {
            content = change(String::from_utf8(content).unwrap()).into_bytes();
        }
        archive.start_file(member, PACKING).unwrap();
        archive.write_all(&content).unwrap();
    });
    fs::write(path, archive.finish().unwrap().into_inner()).unwrap();
}
