// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sends profiles to a server that keeps them: Grafana Pyroscope or Parca.
//!
//! A profile is in a [queue](Queue) on disk before it is sent, and leaves it when the server has
//! confirmed it. So none is lost when the server is away or the process is killed; a server whose answer
//! is lost gets a profile again, with the same id.

mod client;
mod headers;
mod labels;
mod protocol;
mod queue;

pub use client::{Client, Limits, Place};
pub use headers::Headers;
pub use labels::labels;
pub use protocol::{Api, Label, LabelSet, RawProfileSeries, RawSample, WriteRawRequest};
pub use queue::Queue;

use crate::{
    error::Result,
    notes::count_of,
    output::{say, warn},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// A profile, and where it goes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Profile {
    /// What is said of it.
    pub about: About,
    /// A packed pprof profile.
    pub pprof: Vec<u8>,
}

/// What is said of a profile.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct About {
    /// The server.
    pub url: String,
    /// Its interface.
    pub api: Api,
    /// Names and values, as the server wants them.
    pub labels: BTreeMap<String, String>,
}

/// Why a profile was not delivered.
#[derive(Debug)]
struct Failure {
    kind: Kind,
    /// Whether it may go well soon.
    retry: bool,
    /// When the server wants to be asked again, in seconds.
    after: Option<u64>,
    text: String,
}

/// What a failure is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// The server cannot be reached, or lets nobody in: others are not tried.
    Server,
    /// An error in the server, perhaps with this profile only: others are tried.
    Unknown,
    /// This profile: it is not sent again.
    Profile,
}

impl Failure {
    fn new(kind: Kind, retry: bool, text: impl Into<String>) -> Self {
        Self {
            kind,
            retry,
            after: None,
            text: text.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What became of the profiles in a queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// The server has them.
    pub sent: u64,
    /// The server does not want them, or they are not readable; they are put aside.
    pub refused: u64,
    /// They wait for the next time.
    pub left: u64,
}

/// Sends the profiles of a queue that are for the server of `client`, oldest first.
pub fn send(queue: &Queue, client: &mut Client) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut others = 0;
    let mut away = false;
    for number in queue.numbers()? {
        let profile = match queue.read(number) {
            Ok(profile) => profile,
            Err(error) => {
                warn(format_args!("{error}; it is put aside"));
                queue.set_aside(number)?;
                outcome.refused += 1;
                continue;
            }
        };
        if !client.is_for(&profile.about) {
            others += 1;
            continue;
        }
        if away {
            outcome.left += 1;
            continue;
        }
        match client.send(&profile) {
            Ok(()) => {
                queue.remove(number)?;
                outcome.sent += 1;
            }
            Err(failure) if failure.kind == Kind::Profile => {
                warn(format_args!(
                    "{} refuses profile {number}: {failure}",
                    client.url()
                ));
                queue.set_aside(number)?;
                outcome.refused += 1;
            }
            Err(failure) => {
                warn(format_args!(
                    "profile {number} is not delivered to {}: {failure}",
                    client.url()
                ));
                outcome.left += 1;
                away = failure.kind == Kind::Server;
            }
        }
    }
    if others > 0 {
        say(format_args!(
            "note: {} for other servers stay in the queue",
            count_of(others, "profile")
        ));
    }
    Ok(outcome)
}
