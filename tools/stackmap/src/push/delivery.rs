// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sends profiles, and keeps in the queue what is not delivered.

use super::{queue::Waiting, Client, Kind, Profile, Queue, MAX_PROFILE};
use crate::{
    error::Result,
    notes::count_of,
    output::{say, warn},
};
use std::collections::HashSet;

/// What became of profiles.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// The server has them.
    pub sent: u64,
    /// The server does not want them, or they are not readable; the queue has them aside.
    pub refused: u64,
    /// They wait in the queue for the next time.
    pub left: u64,
    /// They are nowhere: there is no queue, or it was full.
    pub lost: u64,
}

/// What delivers profiles to a server.
pub struct Delivery {
    queue: Option<Queue>,
    client: Client,
    /// The server is: nothing more is tried.
    away: bool,
    /// The numbers of the profiles that stay in the queue.
    left: HashSet<u64>,
    outcome: Outcome,
}

impl Delivery {
    /// Without a queue, what is not delivered is lost.
    pub fn new(queue: Option<Queue>, client: Client) -> Self {
        Self {
            queue,
            client,
            away: false,
            left: HashSet::new(),
            outcome: Outcome::default(),
        }
    }

    /// What became of all of them.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            left: self.left.len() as u64,
            ..self.outcome
        }
    }

    /// Sends what waits in the queue for the server, oldest first.
    pub fn send_waiting(&mut self) -> Result {
        let Some(queue) = &self.queue else {
            return Ok(());
        };
        let mut others = 0;
        for waiting in queue.waiting()? {
            others += u64::from(!self.send_one(&waiting)?);
        }
        if others > 0 {
            say(format_args!(
                "note: {} for other servers stay in the queue",
                count_of(others, "profile")
            ));
        }
        Ok(())
    }

    /// Sends a profile of the queue. Returns whether it is for the server.
    fn send_one(&mut self, waiting: &Waiting) -> Result<bool> {
        let Some(queue) = &self.queue else {
            return Ok(false);
        };
        match queue.read(waiting) {
            Ok(profile) if self.client.is_for(&profile.about) => {
                self.send(&profile, Some(waiting))?;
            }
            Ok(_) => return Ok(false),
            Err(error) => {
                warn(format_args!("{error}; it is put aside"));
                self.refuse(Some(waiting));
            }
        }
        Ok(true)
    }

    /// Sends a profile; if there is a queue, it is there until the server has it.
    pub fn deliver(&mut self, profile: &Profile) -> Result {
        let len = profile.pprof.len();
        if len > MAX_PROFILE {
            warn(format_args!(
                "a profile has {} MiB, and at most {} MiB are sent\n  hint: record for a shorter time, or filter",
                len >> 20,
                MAX_PROFILE >> 20
            ));
            self.outcome.lost += 1;
            return Ok(());
        }
        let kept = match self.queue.as_ref().map(|queue| queue.add(profile)) {
            None => None,
            Some(Ok(added)) => {
                for number in &added.dropped {
                    self.left.remove(number);
                }
                self.outcome.lost += added.dropped.len() as u64;
                if self.left.contains(&added.waiting.number) {
                    // It was tried just now.
                    return Ok(());
                }
                Some(added.waiting)
            }
            Some(Err(error)) => {
                warn(format_args!(
                    "{error}\n  the profile is sent without being kept"
                ));
                None
            }
        };
        self.send(profile, kept.as_ref())
    }

    fn send(&mut self, profile: &Profile, kept: Option<&Waiting>) -> Result {
        if self.away {
            self.leave(kept);
            return Ok(());
        }
        let what = kept.map_or("a profile".to_owned(), |kept| {
            format!("profile {}", kept.number)
        });
        match self.client.send(profile) {
            Ok(()) => {
                self.outcome.sent += 1;
                if let (Some(queue), Some(kept)) = (&self.queue, kept) {
                    queue.remove(kept)?;
                }
            }
            Err(failure) if failure.kind == Kind::Profile => {
                warn(format_args!(
                    "{} refuses {what}: {failure}",
                    self.client.url()
                ));
                self.refuse(kept);
            }
            Err(failure) => {
                warn(format_args!(
                    "{what} is not delivered to {}: {failure}",
                    self.client.url()
                ));
                self.away = failure.kind == Kind::Server;
                self.leave(kept);
            }
        }
        Ok(())
    }

    /// It is not sent again by itself.
    fn refuse(&mut self, kept: Option<&Waiting>) {
        let (Some(queue), Some(kept)) = (&self.queue, kept) else {
            self.outcome.lost += 1;
            return;
        };
        match queue.set_aside(kept) {
            Ok(()) => self.outcome.refused += 1,
            // The others are more important.
            Err(error) => {
                warn(error);
                self.leave(Some(kept));
            }
        }
    }

    fn leave(&mut self, kept: Option<&Waiting>) {
        match kept {
            Some(kept) => drop(self.left.insert(kept.number)),
            None => self.outcome.lost += 1,
        }
    }
}
