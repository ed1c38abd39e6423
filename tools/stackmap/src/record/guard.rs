// SPDX-License-Identifier: MIT OR Apache-2.0

//! A second process that restores tracefs if the recording process dies.
//!
//! Its standard input is a socket: the guard reads the [`Undo`] from it as a line of JSON, and then
//! waits. If the socket closes without [`DONE`], the recording process is dead. Before the line come
//! the open files of the module's switches, so the guard shares the locks on the switches.

use super::{
    lock::{Lock, Switch},
    Undo,
};
use crate::{
    error::{Error, Result},
    output::say,
};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::{
    io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
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
    pub(super) fn start(undo: &Undo, lock: &Lock, switches: &[Switch]) -> Result<Self> {
        let failed = |error| Error::io("start the process that guards tracefs", error);
        let (mut socket, other) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("stackmap")
            .arg(COMMAND)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            // Neither Ctrl-C nor the end of a job of a shell is meant for it.
            .process_group(0);
        lock.inherit(true).map_err(failed)?;
        let child = command.spawn();
        lock.inherit(false).map_err(failed)?;
        // Our copy of the other end of the socket goes with it.
        drop(command);
        let child = child.map_err(failed)?;
        send_files(&socket, switches).map_err(failed)?;
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

/// Room for the files of all switches, beside what goes through a socket.
const ROOM: usize = rustix::cmsg_space!(ScmRights(2));

fn send_files(socket: &UnixStream, switches: &[Switch]) -> io::Result<()> {
    let files: Vec<_> = switches.iter().map(AsFd::as_fd).collect();
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    if !beside.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let byte = [IoSlice::new(b"\n")];
    sendmsg(socket, &byte, &mut beside, SendFlags::empty())?;
    Ok(())
}

fn receive_files(socket: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut bytes, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let files = beside.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    });
    Ok(files.collect())
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
    let switches = receive_files(&socket).map_err(failed)?;
    let mut input = BufReader::new(socket.try_clone().map_err(failed)?);
    let mut line = String::new();
    input.read_line(&mut line).map_err(failed)?;
    let undo: Undo = serde_json::from_str(&line)
        .map_err(|error| Error::input("standard input", error.to_string()))?;
    if switches.len() != undo.nr_switches() {
        return Err(failed(io::ErrorKind::InvalidData.into()));
    }
    socket.write_all(READY.as_bytes()).map_err(failed)?;
    line.clear();
    // The end of a process that has not read everything is an error here.
    let read = input.read_line(&mut line);
    if read.is_ok() && line == DONE {
        return Ok(());
    }
    let result = undo.run_for_the_dead(&switches);
    if result.is_ok() {
        say("stackmap: the recording process died; tracefs is restored");
    }
    result
}
