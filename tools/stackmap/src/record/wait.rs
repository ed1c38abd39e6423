// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a recording waits for: a command, a time, a signal.

use crate::{
    error::{Error, Result},
    output::say,
};
use rustix::process::{kill_process, Pid, Signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator,
};
use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
        Arc,
    },
    thread,
    time::{Duration, Instant},
};

enum News {
    Signal(i32),
    Exited(ExitStatus),
}

/// Why a recording has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stopped {
    /// The time is over.
    Time,
    /// A signal came while there was no command.
    Signal,
    /// The command has ended.
    Command(ExitStatus),
}

impl Stopped {
    /// The status that says how the command ended.
    pub(super) fn exit_status(self) -> u8 {
        match self {
            Stopped::Time | Stopped::Signal => 0,
            Stopped::Command(status) => {
                let signal = status.signal().map(|signal| 128 + signal);
                status
                    .code()
                    .or(signal)
                    .and_then(|code| u8::try_from(code).ok())
                    .unwrap_or(1)
            }
        }
    }

    /// Says how the command ended, if not well.
    pub(super) fn say(self) {
        if let Stopped::Command(status) = self {
            if !status.success() {
                say(format_args!("note: the command ended with {status}"));
            }
        }
    }
}

/// Signals, caught.
pub(super) struct Signals {
    news: Receiver<News>,
    sender: Sender<News>,
    count: Arc<AtomicUsize>,
}

impl Signals {
    /// Catches them from now on.
    pub(super) fn catch() -> Result<Self> {
        let (sender, news) = mpsc::channel();
        let mut signals = iterator::Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
            .map_err(|error| Error::io("catch signals", error))?;
        let count = Arc::new(AtomicUsize::new(0));
        let (to, counter) = (sender.clone(), Arc::clone(&count));
        thread::spawn(move || {
            for signal in signals.forever() {
                counter.fetch_add(1, Ordering::Relaxed);
                // Nobody listens after the end of the recording.
                let _ = to.send(News::Signal(signal));
            }
        });
        Ok(Self {
            news,
            sender,
            count,
        })
    }

    /// How many there were.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Runs `command`, or waits for `duration` or for a signal.
pub(super) fn wait(
    command: &[OsString],
    duration: Option<Duration>,
    signals: &Signals,
) -> Result<Stopped> {
    let pid = start(command, signals)?;
    if pid.is_none() && duration.is_none() {
        say("recording until Ctrl-C");
    }
    let end = duration.and_then(|duration| Instant::now().checked_add(duration));
    loop {
        let news = match end {
            Some(end) => signals
                .news
                .recv_timeout(end.saturating_duration_since(Instant::now())),
            None => signals
                .news
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
        };
        match (news, pid) {
            (Ok(News::Exited(status)), _) => return Ok(Stopped::Command(status)),
            (Ok(News::Signal(_)), None) => return Ok(Stopped::Signal),
            (Ok(News::Signal(signal)), Some(pid)) => pass_on(signal, pid),
            (Err(RecvTimeoutError::Timeout), None) => return Ok(Stopped::Time),
            (Err(RecvTimeoutError::Timeout), Some(pid)) => {
                // -d and a command: the command is over when the time is.
                let _ = kill_process(pid, Signal::TERM);
                return match signals.news.recv() {
                    Ok(News::Exited(status)) => Ok(Stopped::Command(status)),
                    _ => Ok(Stopped::Time),
                };
            }
            (Err(RecvTimeoutError::Disconnected), _) => return Ok(Stopped::Signal),
        }
    }
}

/// The terminal sends its signals to the command as well; what others send is passed on.
fn pass_on(signal: i32, pid: Pid) {
    if signal != SIGINT && signal != SIGQUIT {
        // If the command is gone, that is what is awaited.
        let _ = kill_process(pid, Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
    }
}

fn start(command: &[OsString], signals: &Signals) -> Result<Option<Pid>> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(None);
    };
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .map_err(|error| Error::io(format!("run {}", program.to_string_lossy()), error))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let sender = signals.sender.clone();
    thread::spawn(move || {
        if let Ok(status) = child.wait() {
            let _ = sender.send(News::Exited(status));
        }
    });
    Ok(pid)
}

#[cfg(test)]
mod tests;
