// SPDX-License-Identifier: MIT OR Apache-2.0

//! A second process that restores tracefs if the recording process dies.
//!
//! Its standard input is a socket: the guard reads the [`Undo`] from it as a line of JSON, and then
//! waits. If the socket closes without [`DONE`], the recording process is dead. Its standard output
//! is the open file of the module's switch, so the guard shares the lock on the switch.

use super::{
    lock::{Lock, Switch},
    Undo,
};
use crate::{
    error::{Error, Result},
    output::say,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::{
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    sync::{atomic::AtomicBool, Arc},
};

/// The hidden command that the second process runs.
pub const COMMAND: &str = "undo-recording";
/// The answer of the second process when it has read the [`Undo`].
const READY: &str = "ready\n";
/// The recording process has restored tracefs itself.
const DONE: &str = "done\n";

/// The second process.
pub(super) struct Guard {
    child: Child,
    socket: UnixStream,
}

impl Guard {
    /// Starts the process. From then on `undo` is done whatever happens, and nobody else gets the
    /// lock before that.
    pub(super) fn start(undo: &Undo, lock: &Lock, switch: &Switch) -> Result<Self> {
        let failed = |error| Error::io("start the process that guards tracefs", error);
        let (mut socket, other) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("stackmap")
            .arg(COMMAND)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::from(switch.file().map_err(failed)?))
            // Neither Ctrl-C nor the end of a job of a shell is meant for it.
            .process_group(0);
        lock.inherit(true).map_err(failed)?;
        let child = command.spawn();
        lock.inherit(false).map_err(failed)?;
        // Our copy of the other end of the socket goes with it.
        drop(command);
        let child = child.map_err(failed)?;
        let mut line = serde_json::to_vec(undo).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        socket.write_all(&line).map_err(failed)?;
        let mut ready = String::new();
        BufReader::new(&socket)
            .read_line(&mut ready)
            .map_err(failed)?;
        if ready != READY {
            return Err(Error::Refused(
                "the process that guards tracefs did not start".into(),
            ));
        }
        Ok(Self { child, socket })
    }

    /// Tells the process that tracefs is restored.
    pub(super) fn dismiss(self) {
        let Self {
            mut child,
            mut socket,
        } = self;
        // If it is dead it has nothing to do either.
        let _ = socket.write_all(DONE.as_bytes());
        drop(socket);
        let _ = child.wait();
    }
}

/// What the second process does.
pub fn main() -> Result {
    let failed = |error| Error::io("guard tracefs", error);
    // Ignored: signals are meant for the recording process.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(failed)?;
    }
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut socket = UnixStream::from(socket);
    let mut input = BufReader::new(socket.try_clone().map_err(failed)?);
    let mut line = String::new();
    input.read_line(&mut line).map_err(failed)?;
    let undo: Undo = serde_json::from_str(&line)
        .map_err(|error| Error::input("standard input", error.to_string()))?;
    socket.write_all(READY.as_bytes()).map_err(failed)?;
    line.clear();
    // The end of a process that has not read everything is an error here.
    let read = input.read_line(&mut line);
    if read.is_ok() && line == DONE {
        return Ok(());
    }
    let result = undo.run_for_the_dead(&io::stdout());
    if result.is_ok() {
        say("stackmap: the recording process died; tracefs is restored");
    }
    result
}
