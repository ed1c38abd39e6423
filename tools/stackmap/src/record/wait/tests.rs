// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ends of commands.

use super::*;
use signal_hook::consts::SIGUSR1;

fn signals() -> Signals {
    let (sender, news) = mpsc::channel();
    Signals {
        news,
        sender,
        count: Arc::default(),
    }
}

fn run(command: &[&str], duration: Option<Duration>) -> Result<Stopped> {
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    ended(&command, duration, Ends::default(), &signals())
}

/// A recording that ended, and its command.
fn ended(
    command: &[OsString],
    duration: Option<Duration>,
    ends: Ends,
    signals: &Signals,
) -> Result<Stopped> {
    let (stopped, running) = wait(command, duration, ends, signals)?;
    let is_exit = matches!(stopped, Stopped::Command(_));
    assert_eq!(running.is_some(), !command.is_empty() && !is_exit);
    if let Some(pid) = running {
        end_command(pid, signals);
    }
    Ok(stopped)
}

#[test]
fn time_ends_the_recording() {
    assert_eq!(run(&[], Some(Duration::ZERO)).unwrap(), Stopped::Time);
    let short = Some(Duration::from_millis(50));
    assert_eq!(run(&["sleep", "60"], short).unwrap(), Stopped::Time);
    // What does not want to end has to.
    let stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"];
    assert_eq!(run(&stubborn, short).unwrap(), Stopped::Time);
}

#[test]
fn a_signal_ends_the_recording() {
    let signals = signals();
    let send = |signal, by_kernel| {
        let caught = Caught { signal, by_kernel };
        signals.sender.send(News::Signal(caught)).unwrap();
    };
    send(SIGINT, true);
    let none = Ends::default;
    let stopped = ended(&[], None, none(), &signals).unwrap();
    assert_eq!(stopped, Stopped::Signal);
    // The command is passed what the terminal does not send it.
    // Not SIGINT or SIGHUP: tests that run in the background, or under nohup, have them ignored,
    // and so has the command.
    for (signal, status) in [(SIGTERM, 128 + 15), (SIGUSR1, 128 + 10)] {
        send(signal, false);
        let command = ["sleep".into(), "60".into()];
        let stopped = ended(&command, None, none(), &signals).unwrap();
        assert_eq!(stopped.exit_status(), status);
    }
    send(SIGINT, true);
    let command = ["sleep".into(), "0.1".into()];
    let stopped = ended(&command, None, none(), &signals).unwrap();
    assert_eq!(stopped.exit_status(), 0);
}

#[test]
fn the_end_of_recorded_processes_ends_the_recording() {
    let gone = || Ends {
        gone: Some(Box::new(|| {})),
        ..Ends::default()
    };
    let stopped = ended(&[], None, gone(), &signals()).unwrap();
    assert_eq!(stopped, Stopped::Gone);
    // The command only bounds the time; it is terminated.
    let command = ["sleep".into(), "60".into()];
    let stopped = ended(&command, None, gone(), &signals()).unwrap();
    assert_eq!(stopped, Stopped::Gone);
    assert_eq!(stopped.exit_status(), 0);
    // One that ends before them ends it as without them.
    let never = Ends {
        gone: Some(Box::new(|| thread::sleep(Duration::from_secs(60)))),
        ..Ends::default()
    };
    let command = ["false".into()];
    let stopped = ended(&command, None, never, &signals()).unwrap();
    assert_eq!(stopped.exit_status(), 1);
}
