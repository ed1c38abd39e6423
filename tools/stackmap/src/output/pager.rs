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

/// What shows pages if the user does not say.
const DEFAULT: &str = "less";
/// How less behaves if the user does not say: it ends at once if all fits on the screen, shows
/// colours, and leaves what was shown on the screen.
const LESS: &str = "FRX";

/// A program that shows pages.
pub(super) struct Pager {
    child: Child,
    input: Option<ChildStdin>,
    /// Keys that end a program are for the pager meanwhile.
    signals: Vec<SigId>,
}

impl Pager {
    /// Starts `$PAGER`. [`None`]: the user wants none, or there is none.
    pub(super) fn start() -> Option<Self> {
        let wanted = env::var("PAGER").unwrap_or_else(|_| DEFAULT.to_owned());
        let wanted = wanted.trim();
        if wanted.is_empty() || wanted == "cat" {
            return None;
        }
        // A shell is for what is more than a name: it would not say whether there is one.
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
        // It has all that comes, and shows it until the user has seen enough.
        self.input = None;
        let _ = self.child.wait();
        for signal in self.signals.drain(..) {
            low_level::unregister(signal);
        }
    }
}
