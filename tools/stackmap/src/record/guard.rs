// SPDX-License-Identifier: MIT OR Apache-2.0

//! The process that finishes a recording whose own process has died, also by SIGKILL.
//!
//! It waits until its standard input is closed: then the recording process is dead. One that has finished the
//! recording itself kills it.

use super::{recover, settings};
use crate::{
    error::{Error, Result},
    tracefs::Tracefs,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use std::{
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{atomic::AtomicBool, Arc},
};

/// The hidden command that the process runs.
pub const COMMAND: &str = "guard-recording";
/// The option `func_stack_trace` of all instances is on, and is off again.
pub(super) const OPTION_ON: u8 = b'+';
pub(super) const OPTION_OFF: u8 = b'-';

/// The process.
pub(super) struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    /// Starts the process for the recording of this name below `top`, the directory of tracefs.
    pub(super) fn start(name: &str, top: &Path) -> Result<Self> {
        let failed = |error| Error::io("start the process that guards the recording", error);
        let mut child = Command::new("/proc/self/exe")
            .arg0("stackmap")
            .args([COMMAND, name])
            .arg(top)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Neither Ctrl-C nor the end of a job of a shell is meant for it.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        match child.stdin.take() {
            Some(pipe) => Ok(Self { child, pipe }),
            None => Err(failed(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Tells the process what it would have to undo.
    pub(super) fn tell(&mut self, what: u8) {
        // If it is dead, nobody guards the recording: that is no reason to lose it.
        let _ = self.pipe.write_all(&[what]);
    }

    /// Returns the id of its process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process, as there is nothing left to do, also if somebody has stopped it.
    pub(super) fn dismiss(mut self) {
        // It may be dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the process does.
pub fn main(name: &str, top: &Path) -> Result {
    let top = Tracefs::find(Some(top))?;
    let failed = |error| Error::io("guard the recording", error);
    // Ignored: signals are meant for the recording process.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(failed)?;
    }
    let mut messages = Vec::new();
    io::stdin().read_to_end(&mut messages).map_err(failed)?;
    let switched = match messages.last() {
        Some(&OPTION_ON) => settings::lock(&top).and_then(|_lock| settings::switch_off(&top)),
        _ => Ok(()),
    };
    recover::for_the_dead(&top, name).and(switched)
}
