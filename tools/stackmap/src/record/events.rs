// SPDX-License-Identifier: MIT OR Apache-2.0

//! Names of events, checked before anything is changed.

use crate::{
    error::{Error, Result},
    tracefs::Tracefs,
};
use std::{fs, io};

/// Looks for events that are not there. What has wildcards is left to the kernel.
pub(super) fn check(tracefs: &Tracefs, events: &[String]) -> Result {
    for event in events {
        if event.is_empty() || event.contains(char::is_whitespace) {
            return Err(missing(event));
        }
        if event.contains(['*', '?', '[', '!']) {
            continue;
        }
        let found = match event.split_once([':', '/']) {
            Some((system, "")) => tracefs.path("events").join(system).is_dir(),
            Some((system, name)) => tracefs.path("events").join(system).join(name).is_dir(),
            None => exists(tracefs, event),
        };
        if !found {
            return Err(missing(event));
        }
    }
    Ok(())
}

/// Whether some system has an event of this name, or is called so.
fn exists(tracefs: &Tracefs, name: &str) -> bool {
    let events = tracefs.path("events");
    if events.join(name).is_dir() {
        return true;
    }
    let Ok(systems) = fs::read_dir(events) else {
        return false;
    };
    systems
        .filter_map(io::Result::ok)
        .any(|system| system.path().join(name).is_dir())
}

/// What the kernel said of an event, in words.
pub(super) fn explain(error: Error, event: &str) -> Error {
    match error {
        Error::Io { error, .. } if error.kind() == io::ErrorKind::InvalidInput => missing(event),
        error => error,
    }
}

fn missing(event: &str) -> Error {
    Error::Refused(format!(
        "there is no event \"{event}\"\n  hint: available_events in tracefs lists them, as \
         system:event"
    ))
}
