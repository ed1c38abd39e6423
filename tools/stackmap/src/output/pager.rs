// SPDX-License-Identifier: MIT OR Apache-2.0

//! Long results on a terminal, page by page, as git and perf show them.

use signal_hook::{
    consts::{SIGINT, SIGQUIT},
    flag, low_level, SigId,
};
use std::{
    env,
    io::{self, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
};

/// The pager if `$PAGER` is not set.
const DEFAULT: &str = "less";
/// Options of less if `$LESS` is not set: end at once if all fits on the screen (F), show colours
/// (R), leave the text on the screen (X).
const LESS: &str = "FRX";

/// A program that shows pages.
pub(super) struct Pager {
    child: Child,
    input: Option<ChildStdin>,
    /// Handlers of SIGINT and SIGQUIT, which are for the pager while it runs.
    signals: Vec<SigId>,
}

impl Pager {
    /// Starts `$PAGER`. [`None`]: `$PAGER` is empty or `cat`, or the pager does not start.
    pub(super) fn start() -> Option<Self> {
        let wanted = env::var("PAGER").unwrap_or_else(|_| DEFAULT.to_owned());
        let wanted = wanted.trim();
        if wanted.is_empty() || wanted == "cat" {
            return None;
        }
        // A shell only for a command with arguments: a shell hides whether a program exists.
        let mut command =
            match wanted.contains(|c: char| !c.is_alphanumeric() && !"/._-".contains(c)) {
                true => {
                    let mut shell = Command::new("sh");
                    shell.arg("-c").arg(wanted);
                    shell
                }
                false => Command::new(wanted),
            };
        if env::var_os("LESS").is_none() {
            command.env("LESS", LESS);
        }
        let mut child = command.stdin(Stdio::piped()).spawn().ok()?;
        let ignore = Arc::default();
        let ignored = [SIGINT, SIGQUIT].map(|signal| flag::register(signal, Arc::clone(&ignore)));
        Some(Self {
            input: child.stdin.take(),
            child,
            signals: ignored.into_iter().flatten().collect(),
        })
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.input {
            Some(input) => input.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.input {
            Some(input) => input.flush(),
            None => Ok(()),
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // The pager sees the end of its input; wait until the user leaves it.
        self.input = None;
        let _ = self.child.wait();
        for signal in self.signals.drain(..) {
            low_level::unregister(signal);
        }
    }
}
