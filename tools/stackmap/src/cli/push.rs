// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap push`: profiles to a server.

use super::args::{Global, Input, WeightArgs};
use crate::{
    error::{Error, Result},
    events,
    export::pprof,
    notes::{count_of, Notes},
    output::{say, say_notes},
    push::{self, About, Api, Client, Delivery, Headers, Limits, Outcome, Place, Profile, Queue},
    record::Label,
    source::{Loaded, Source},
};
use clap::{value_parser, Args};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

const EXAMPLES: &str = "\
examples:
  stackmap push http://pyroscope:4040                     a profile of stackmap.data
  stackmap push --to parca http://parca:7070 a.data
  stackmap push --label zone=b --queue /var/spool/stackmap https://pyroscope.example
  stackmap push --flush --queue /var/spool/stackmap https://pyroscope.example";

/// Send a recording as a profile to Grafana Pyroscope or Parca
#[derive(Args, Debug)]
#[command(before_help = EXAMPLES)]
pub(super) struct Push {
    /// Address of the server, http: or https:
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    weight: WeightArgs,
    /// What the server is
    #[arg(long, value_name = "SERVER", value_enum, default_value_t = Api::Pyroscope)]
    to: Api,
    /// One more label of the profile, or another value for one; can be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<Label>,
    /// Send kernel addresses, too
    #[arg(long)]
    addresses: bool,
    /// File with headers for each request, "Authorization: ..."; STACKMAP_PUSH_TOKEN in the environment is
    /// sent as a bearer token
    #[arg(long, value_name = "FILE")]
    header_file: Option<PathBuf>,
    /// File with the certificates to trust with https: [default: SSL_CERT_FILE, or those of the system]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Directory, which is made if it is not there, to keep what is not delivered in; the next push sends it first
    #[arg(long, value_name = "DIR")]
    queue: Option<PathBuf>,
    /// How much the queue keeps at most, in MiB; the oldest profiles are dropped for new ones
    #[arg(long, value_name = "MIB", default_value = "64", requires = "queue")]
    #[arg(value_parser = value_parser!(u64).range(1..=1 << 20))]
    queue_size: u64,
    /// Send only what is in the queue
    #[arg(long, requires = "queue", conflicts_with_all = ["file", "labels", "addresses", "WeightArgs"])]
    flush: bool,
    /// How often a request is repeated that may go well later, after pauses that grow
    #[arg(long, value_name = "N", default_value = "4")]
    retries: u32,
    /// How long all profiles together may take; what is not sent by then stays in the queue
    #[arg(long, value_name = "SECS", default_value = "60")]
    #[arg(value_parser = value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl Push {
    pub(super) fn run(self, global: &Global) -> Result {
        let place = Place::new(&self.url, self.to)?;
        Label::check(&self.labels)?;
        let headers = Headers::read(self.header_file.as_deref())?;
        let limits = Limits {
            retries: self.retries,
            timeout: Duration::from_secs(self.timeout),
        };
        let opened = match self.flush {
            true => None,
            false => {
                let (source, mut loaded) = self.input.open(global)?;
                self.weight.set(&source, &mut loaded)?;
                Some((source, loaded))
            }
        };
        let open = |dir: &PathBuf| {
            let size = self.queue_size << 20;
            Queue::open(dir, !self.flush, size, limits.timeout)
        };
        let queue = self.queue.as_ref().map(open).transpose()?;
        let client = Client::new(place.clone(), headers, self.ca_file.as_deref(), limits)?;
        let mut delivery = Delivery::new(queue, client);
        delivery.send_waiting()?;
        let delivered = match opened {
            Some((mut source, loaded)) => self.deliver(&place, &mut source, &loaded, &mut delivery),
            None => Ok(()),
        };
        let outcome = delivery.outcome();
        say(format_args!(
            "{}: {} sent",
            place.url,
            count_of(outcome.sent, "profile")
        ));
        delivered?;
        match outcome.left + outcome.refused + outcome.lost {
            0 => Ok(()),
            nr => Err(self.not_delivered(nr, outcome)),
        }
    }

    /// What became of the profiles that the server does not have.
    fn not_delivered(&self, nr: u64, outcome: Outcome) -> Error {
        let mut text = format!("{} not delivered to {}", count_of(nr, "profile"), self.url);
        let Some(dir) = self.queue.as_deref().map(Path::display) else {
            return Error::Refused(text + "\n  hint: --queue DIR keeps them for the next push");
        };
        if outcome.left > 0 {
            text += &format!("\n  left in {dir} for the next push: {}", outcome.left);
        }
        if outcome.refused > 0 {
            text += &format!(
                "\n  put aside in {dir} as N.refused: {}\n  hint: the next push sends what is renamed to \
                 N.profile",
                outcome.refused
            );
        }
        if outcome.lost > 0 {
            text += &format!("\n  not kept: {}", outcome.lost);
        }
        Error::Refused(text)
    }

    /// Delivers a profile of each recording of `source`.
    fn deliver(
        &self,
        place: &Place,
        source: &mut Source,
        loaded: &Loaded,
        delivery: &mut Delivery,
    ) -> Result {
        let (true, Some(manifest)) = (source.capture().is_some(), &loaded.manifest) else {
            return Err(Error::input(
                source.name(),
                "only captures are sent, as they say when and where they were recorded\n  hint: stackmap record",
            ));
        };
        let recordings = match &loaded.recordings[..] {
            [] => std::slice::from_ref(manifest),
            several => several,
        };
        let given = Label::all(&self.labels);
        for (number, recording) in (0..).zip(recordings) {
            let mut notes = Notes::default();
            let mut builder = pprof::Builder::new(loaded, self.addresses).of(recording);
            let mut add = |event: &_, sides: crate::trace::Sides<'_>| {
                builder.event(event, sides);
                Ok(())
            };
            events::for_each_of((number, recording), source, loaded, &mut notes, &mut add)?;
            let notes = notes.lines(Some(loaded));
            say_notes(&notes);
            if builder.is_empty() {
                say("note: no event is left: nothing is sent of it");
                continue;
            }
            let mut pprof = Vec::new();
            builder.write(&notes, &mut pprof)?;
            delivery.deliver(&Profile {
                about: About {
                    url: place.url.clone(),
                    api: place.api,
                    labels: push::labels(recording, &given),
                },
                pprof,
            })?;
        }
        Ok(())
    }
}
