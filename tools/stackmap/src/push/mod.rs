// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sends profiles to a server that keeps them: Grafana Pyroscope or Parca.
//!
//! A profile may be in a [queue](Queue) on disk before it is sent, and leaves it when the server has
//! confirmed it. So none is lost when the server is away or the process is killed; a server whose answer
//! is lost gets a profile again, with the same id.

mod client;
mod delivery;
mod headers;
mod labels;
mod protocol;
mod queue;

pub use client::{Client, Limits, Place};
pub use delivery::{Delivery, Outcome};
pub use headers::Headers;
pub use labels::labels;
pub use protocol::{Api, Label, LabelSet, RawProfileSeries, RawSample, WriteRawRequest};
pub use queue::Queue;

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// The most bytes of a packed profile.
const MAX_PROFILE: usize = 256 << 20;

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
