// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a recording waits for: a command, a time, a signal, the end of processes.

use super::{account::Account, processes::Wait};
use crate::{
    error::{Error, Result},
    output::say,
};
use rustix::process::{kill_process, Pid, Signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::{exfiltrator::WithOrigin, SignalsInfo},
    low_level::siginfo::Cause,
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

/// The exit status of a recording that a signal aborted.
pub(super) const INTERRUPTED: u8 = 130;
/// How long a command may take to end after a signal.
const GRACE: Duration = Duration::from_secs(2);

/// A caught signal.
#[derive(Clone, Copy)]
struct Caught {
    signal: i32,
    /// The kernel sent it: Ctrl-C at a terminal reaches all processes in the foreground there.
    by_kernel: bool,
}

enum News {
    Signal(Caught),
    Exited(ExitStatus),
    /// All recorded processes have ended.
    Gone,
}

/// Why a recording has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stopped {
    /// The time is over.
    Time,
    /// A signal came while there was no command.
    Signal,
    /// All recorded processes have ended.
    Gone,
    /// The command has ended.
    Command(ExitStatus),
}

impl Stopped {
    /// The status that says how the command ended.
    pub(super) fn exit_status(self) -> u8 {
        match self {
            Stopped::Time | Stopped::Signal | Stopped::Gone => 0,
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

    /// Says how it ended, unless the time was over or the command succeeded.
    pub(super) fn say(self) {
        match self {
            Stopped::Command(status) if !status.success() => {
                say(format_args!("note: the command ended with {status}"));
            }
            Stopped::Gone => say("note: all recorded processes have ended"),
            _ => {}
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
        let mut signals = SignalsInfo::<WithOrigin>::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
            .map_err(|error| Error::io("catch signals", error))?;
        let count = Arc::new(AtomicUsize::new(0));
        let (to, counter) = (sender.clone(), Arc::clone(&count));
        thread::spawn(move || {
            for origin in signals.forever() {
                counter.fetch_add(1, Ordering::Relaxed);
                let caught = Caught {
                    signal: origin.signal,
                    by_kernel: matches!(origin.cause, Cause::Kernel),
                };
                // Nobody listens after the end of the recording.
                let _ = to.send(News::Signal(caught));
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

/// Runs `command`, as `user` if there is one, or waits for `duration` or for a signal. The end of the
/// recorded processes, for which `gone` waits, ends it, too.
pub(super) fn wait(
    command: &[OsString],
    user: Option<&Account>,
    duration: Option<Duration>,
    gone: Option<Wait>,
    signals: &Signals,
) -> Result<Stopped> {
    let pid = start(command, user, signals)?;
    if pid.is_none() && duration.is_none() {
        say(match gone {
            Some(_) => "recording until Ctrl-C, or until all recorded processes have ended",
            None => "recording until Ctrl-C",
        });
    }
    if let Some(gone) = gone {
        let sender = signals.sender.clone();
        thread::spawn(move || {
            gone();
            let _ = sender.send(News::Gone);
        });
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
            (Ok(News::Signal(signal)), Some(pid)) => signal.pass_on(pid),
            (Ok(News::Gone), pid) => {
                if let Some(pid) = pid {
                    end_command(pid, signals);
                }
                return Ok(Stopped::Gone);
            }
            (Err(RecvTimeoutError::Timeout), None) => return Ok(Stopped::Time),
            (Err(RecvTimeoutError::Timeout), Some(pid)) => {
                end_command(pid, signals);
                return Ok(Stopped::Time);
            }
            (Err(RecvTimeoutError::Disconnected), _) => return Ok(Stopped::Signal),
        }
    }
}

/// Ends the command because the time is over, or there is nothing to record: by SIGTERM, then by SIGKILL.
fn end_command(pid: Pid, signals: &Signals) {
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = kill_process(pid, signal);
        let patience = Instant::now() + GRACE;
        loop {
            let left = patience.saturating_duration_since(Instant::now());
            match signals.news.recv_timeout(left) {
                Ok(News::Exited(_)) => return,
                Ok(News::Signal(_) | News::Gone) => {}
                Err(_) => break,
            }
        }
    }
}

impl Caught {
    /// The terminal sends its signals to the command as well; what others send is passed on.
    fn pass_on(self, pid: Pid) {
        if !self.by_kernel {
            // If the command has ended, its end is reported anyway.
            let _ = kill_process(
                pid,
                Signal::from_named_raw(self.signal).unwrap_or(Signal::TERM),
            );
        }
    }
}

fn start(command: &[OsString], user: Option<&Account>, signals: &Signals) -> Result<Option<Pid>> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(None);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let child = match user {
        Some(user) => user.spawn(&mut command),
        None => command.spawn(),
    };
    let mut child = child.map_err(|error| Error::Command {
        command: program.to_string_lossy().into_owned(),
        error,
    })?;
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
