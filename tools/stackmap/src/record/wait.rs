// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a recording waits for: a command, a time, a signal, the end of processes, an event.

use super::{processes::Wait, trigger::Watch};
use crate::{
    error::{Error, Result},
    output::say,
};
use rustix::process::{kill_process, Pid, Signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ},
    flag,
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
    /// An event occurred, or tracing is off.
    Watched(Option<String>),
}

/// Why a recording has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Stopped {
    /// The time is over.
    Time,
    /// A signal came while there was no command.
    Signal,
    /// All recorded processes have ended.
    Gone,
    /// An event of --on-trigger occurred: this one.
    Triggered(String),
    /// Somebody has switched tracing off.
    Off,
    /// The command has ended.
    Command(ExitStatus),
}

impl Stopped {
    /// The status that says how the command ended.
    pub(super) fn exit_status(&self) -> u8 {
        match self {
            Stopped::Command(status) => {
                let signal = status.signal().map(|signal| 128 + signal);
                status
                    .code()
                    .or(signal)
                    .and_then(|code| u8::try_from(code).ok())
                    .unwrap_or(1)
            }
            _ => 0,
        }
    }

    /// Says how it ended, unless the time was over or the command succeeded.
    pub(super) fn say(&self) {
        match self {
            Stopped::Command(status) if !status.success() => {
                say(format_args!("note: the command ended with {status}"));
            }
            Stopped::Gone => say("note: all recorded processes have ended"),
            Stopped::Triggered(event) => say(format_args!("note: ended by the event {event}")),
            Stopped::Off => say("note: ended because tracing was switched off"),
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
        let failed = |error| Error::io("catch signals", error);
        // A file that may not be larger is an error, and not the end.
        flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
        let (sender, news) = mpsc::channel();
        let mut signals =
            SignalsInfo::<WithOrigin>::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).map_err(failed)?;
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

/// What may end a recording besides its time, its command and signals.
#[derive(Default)]
pub(super) struct Ends {
    /// The end of the recorded processes.
    pub(super) gone: Option<Wait>,
    /// An event, or that tracing is off.
    pub(super) watch: Option<Watch>,
}

/// Runs `command`, or waits for `duration`, for a signal or for `ends`.
/// Returns the command, too, if it still runs.
pub(super) fn wait(
    command: &[OsString],
    duration: Option<Duration>,
    ends: Ends,
    signals: &Signals,
) -> Result<(Stopped, Option<Pid>)> {
    let pid = start(command, signals)?;
    if pid.is_none() && duration.is_none() {
        let until = [
            ends.watch.as_ref().map(|_| ", or until it is triggered"),
            ends.gone
                .as_ref()
                .map(|_| ", or until all recorded processes have ended"),
        ];
        let until: String = until.into_iter().flatten().collect();
        say(format_args!("recording until Ctrl-C{until}"));
    }
    let news = |wait: Box<dyn FnOnce() -> News + Send>| {
        let sender = signals.sender.clone();
        thread::spawn(move || drop(sender.send(wait())));
    };
    if let Some(gone) = ends.gone {
        news(Box::new(move || {
            gone();
            News::Gone
        }));
    }
    if let Some(watch) = ends.watch {
        news(Box::new(move || News::Watched(watch())));
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
        let stopped = match (news, pid) {
            (Ok(News::Exited(status)), _) => return Ok((Stopped::Command(status), None)),
            (Ok(News::Signal(signal)), Some(pid)) => {
                signal.pass_on(pid);
                continue;
            }
            (Ok(News::Signal(_)), None) | (Err(RecvTimeoutError::Disconnected), _) => {
                Stopped::Signal
            }
            (Ok(News::Gone), _) => Stopped::Gone,
            (Ok(News::Watched(Some(event))), _) => Stopped::Triggered(event),
            (Ok(News::Watched(None)), _) => Stopped::Off,
            (Err(RecvTimeoutError::Timeout), _) => Stopped::Time,
        };
        return Ok((stopped, pid));
    }
}

/// Ends the command because the recording has ended: by SIGTERM, then by SIGKILL.
pub(super) fn end_command(pid: Pid, signals: &Signals) {
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = kill_process(pid, signal);
        let patience = Instant::now() + GRACE;
        loop {
            let left = patience.saturating_duration_since(Instant::now());
            match signals.news.recv_timeout(left) {
                Ok(News::Exited(_)) => return,
                Ok(_) => {}
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

fn start(command: &[OsString], signals: &Signals) -> Result<Option<Pid>> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(None);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let mut child = command.spawn().map_err(|error| Error::Command {
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
