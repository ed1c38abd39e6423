// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ends of commands.

use super::*;

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
    wait(&command, duration, &signals())
}

#[test]
fn a_command_ends_the_recording() {
    assert_eq!(run(&["true"], None).unwrap().exit_status(), 0);
    assert_eq!(run(&["sh", "-c", "exit 7"], None).unwrap().exit_status(), 7);
    let killed = run(&["sh", "-c", "kill -9 $$"], None).unwrap();
    assert_eq!(killed.exit_status(), 137);
    let error = run(&["/nowhere/at/all"], None).unwrap_err();
    assert!(
        error.to_string().contains("cannot run /nowhere/at/all"),
        "{error}"
    );
}

#[test]
fn time_ends_the_recording() {
    assert_eq!(run(&[], Some(Duration::ZERO)).unwrap(), Stopped::Time);
    let stopped = run(&["sleep", "60"], Some(Duration::from_millis(50))).unwrap();
    assert_eq!(stopped.exit_status(), 128 + 15);
}

#[test]
fn a_signal_ends_the_recording() {
    let signals = signals();
    signals.sender.send(News::Signal(SIGINT)).unwrap();
    assert_eq!(wait(&[], None, &signals).unwrap(), Stopped::Signal);
    // The command is passed what the terminal does not send it.
    signals.sender.send(News::Signal(SIGTERM)).unwrap();
    let command = ["sleep".into(), "60".into()];
    assert_eq!(
        wait(&command, None, &signals).unwrap().exit_status(),
        128 + 15
    );
}
