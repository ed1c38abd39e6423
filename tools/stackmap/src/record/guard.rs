// SPDX-License-Identifier: MIT OR Apache-2.0

//! A second process that undoes a recording should the first one die.
//!
//! It reads the [`Undo`] as a line of JSON from its standard input, and then waits for the end of
//! it. If that comes without the word that all is done, the other end is dead.

use super::Undo;
use crate::{
    error::{Error, Result},
    output::say,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::{
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{atomic::AtomicBool, Arc},
};

/// The hidden command that the second process runs.
pub const COMMAND: &str = "undo-recording";
/// What the second process answers when it is ready.
const READY: &str = "ready\n";
/// All is done.
const DONE: &str = "done\n";

/// The second process.
pub(super) struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    /// Starts it. When this returns, `undo` will be done come what may.
    pub(super) fn start(undo: &Undo) -> Result<Self> {
        let failed = |error| Error::io("start the process that guards tracefs", error);
        let mut child = Command::new("/proc/self/exe")
            .arg0("stackmap")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Neither Ctrl-C nor the end of a job of a shell is meant for it.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (Some(mut pipe), Some(answer)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Refused(
                "the process that guards tracefs has no pipe".into(),
            ));
        };
        let mut line = serde_json::to_vec(undo).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        pipe.write_all(&line).map_err(failed)?;
        let mut ready = String::new();
        io::BufReader::new(answer)
            .read_line(&mut ready)
            .map_err(failed)?;
        if ready != READY {
            return Err(Error::Refused(
                "the process that guards tracefs did not start".into(),
            ));
        }
        Ok(Self { child, pipe })
    }

    /// Tells it that all is done.
    pub(super) fn dismiss(self) {
        let Self {
            mut child,
            mut pipe,
        } = self;
        // If it is dead it has nothing to do either.
        let _ = pipe.write_all(DONE.as_bytes());
        drop(pipe);
        let _ = child.wait();
    }
}

/// What the second process does.
pub fn main() -> Result {
    let failed = |error| Error::io("guard tracefs", error);
    // Caught and left alone: whoever means the recording means the first process.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(failed)?;
    }
    let mut input = io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line).map_err(failed)?;
    let undo: Undo = serde_json::from_str(&line)
        .map_err(|error| Error::input("standard input", error.to_string()))?;
    io::stdout().write_all(READY.as_bytes()).map_err(failed)?;
    line.clear();
    input.read_line(&mut line).map_err(failed)?;
    if line == DONE {
        return Ok(());
    }
    let result = undo.run_for_the_dead();
    if result.is_ok() {
        say("stackmap: the recording died; tracefs is as it was before");
    }
    result
}
