// SPDX-License-Identifier: MIT OR Apache-2.0

//! A second process that reads the files that frames are named by.
//!
//! They may be anybody's, and what reads debug information trusts it: it may need any memory or time,
//! or crash. So that is done in a process with limits. What it said before it died is kept.

use super::lookup::{answer, Answer, Request};
use crate::error::{Error, Result};
use rustix::{
    event::{poll, PollFd, PollFlags},
    process::{set_parent_process_death_signal, setrlimit, Resource, Rlimit, Signal},
    time::Timespec,
};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{ChildStdout, Command, Stdio},
};

/// The hidden command that the second process runs.
pub const COMMAND: &str = "name-frames";
/// The limits of the process: memory of its own, in bytes, and time, in seconds.
const LIMITS: [(Resource, u64); 3] = [
    (Resource::Data, 2 << 30),
    (Resource::Cpu, 300),
    (Resource::Core, 0),
];
/// It is waited for this long, in seconds, while it says nothing.
const QUIET: i64 = 120;
/// Its answers are no longer, in bytes.
const MAX_ANSWER: u64 = 8 << 20;

/// Has a second process answer a request. If it does not come to its end, answers are missing.
pub(super) fn ask(request: &Request, say: &mut dyn FnMut(Answer)) {
    let child = Command::new("/proc/self/exe")
        .arg0("stackmap")
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Ctrl-C is for us, and it ends with us.
        .process_group(0)
        .spawn();
    let (Ok(mut child), Ok(request)) = (child, serde_json::to_vec(request)) else {
        return;
    };
    let (input, output) = (child.stdin.take(), child.stdout.take());
    if let Some(mut input) = input {
        // If it is dead, it says nothing.
        let _ = input.write_all(&request);
    }
    let output = output.map(Output);
    let mut output = output.map(|output| BufReader::with_capacity(64 << 10, output));
    let mut line = Vec::new();
    while let Some(answer) = output.as_mut().and_then(|output| next(output, &mut line)) {
        say(answer);
    }
    // It may be busy still, or blocked.
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads the next answer, a line of JSON; [`None`]: nothing more comes.
fn next(output: &mut impl BufRead, line: &mut Vec<u8>) -> Option<Answer> {
    line.clear();
    output.take(MAX_ANSWER).read_until(b'\n', line).ok()?;
    serde_json::from_slice(line.strip_suffix(b"\n")?).ok()
}

/// The output of the process, which is not waited for without end.
struct Output(ChildStdout);

impl Read for Output {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let quiet = Timespec {
            tv_sec: QUIET,
            tv_nsec: 0,
        };
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&quiet))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => self.0.read(buffer),
        }
    }
}

/// What the second process does.
pub fn main() -> Result {
    let failed = |error| Error::io("name frames", error);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    for (resource, limit) in LIMITS {
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(resource, limit).map_err(|error| failed(error.into()))?;
    }
    let request: Request = serde_json::from_reader(io::stdin().lock())
        .map_err(|error| Error::input("standard input", error.to_string()))?;
    let mut output = io::stdout().lock();
    let mut result = Ok(());
    answer(&request, &mut |answer| {
        if result.is_ok() {
            let line = serde_json::to_string(&answer).map_err(io::Error::from);
            // Each line at once: what comes next may be the end.
            result = line.and_then(|line| writeln!(output, "{line}"));
        }
    });
    result.map_err(failed)
}
