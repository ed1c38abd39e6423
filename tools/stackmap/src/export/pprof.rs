// SPDX-License-Identifier: MIT OR Apache-2.0

//! pprof profiles: what `go tool pprof`, speedscope, Grafana and others read.
//!
//! A sample is a stack with the labels `event` and `comm`, its value the number of events.

use super::{
    proto::{Label, Profile, Sample, ValueType},
    tables::Tables,
};
use crate::{
    capture::Manifest,
    error::Result,
    notes::Note,
    output::Progress,
    source::Loaded,
    tally::{Count, Key, Keys},
    trace::{Event, Sides},
    weight::Weight,
};
use flate2::{write::GzEncoder, Compression};
use prost::Message;
use std::{collections::HashMap, io::Write};

/// A profile that grows event by event.
pub struct Builder<'a> {
    loaded: &'a Loaded,
    counts: HashMap<(i64, i64, Key), Count>,
    keys: Keys,
    tables: Tables<'a>,
}

impl<'a> Builder<'a> {
    /// One without events; with addresses of the kernel only if they are wanted.
    pub fn new(loaded: &'a Loaded, addresses: bool) -> Self {
        Self {
            loaded,
            counts: HashMap::new(),
            keys: Keys::default(),
            tables: Tables::new(loaded, addresses),
        }
    }

    /// Counts an event, unless it has no weight.
    pub fn event(&mut self, event: &Event, sides: Sides<'_>) {
        let Ok(weight) = self.loaded.weight.of(event) else {
            return;
        };
        let key = self.keys.key(sides);
        let group = (
            self.tables.string(&event.name),
            self.tables.string(&event.comm),
            key,
        );
        let count = Count::one(weight, event.time);
        self.counts.entry(group).or_default().merge(&count);
    }

    /// Counts the stacks of a map by their references.
    pub fn map(&mut self) {
        let (stacks, key) = self.loaded.map();
        for stack in stacks.iter() {
            let count = self.counts.entry((0, 0, key(stack.id))).or_default();
            let references = u64::from(stack.ref_count);
            count.events += references;
            count.weight += references;
        }
    }

    /// Writes the profile.
    pub fn write(self, notes: &[Note], out: &mut impl Write) -> Result {
        let mut packed = GzEncoder::new(out, Compression::default());
        packed.write_all(&self.profile(notes).encode_to_vec())?;
        packed.finish()?;
        Ok(())
    }

    /// The profile, complete.
    fn profile(mut self, notes: &[Note]) -> Profile {
        self.samples();
        let events = ValueType {
            r#type: self.tables.string("events"),
            unit: self.tables.string("count"),
        };
        self.tables.profile.sample_type = vec![events];
        if let Weight::Field(field) = &self.loaded.weight {
            let weight = ValueType {
                r#type: self.tables.string(field),
                unit: self.tables.string("count"),
            };
            self.tables.profile.sample_type.push(weight);
            self.tables.profile.default_sample_type = weight.r#type;
        }
        self.tables.profile.period_type = Some(events);
        self.tables.profile.period = 1;
        if let Some(manifest) = &self.loaded.manifest {
            self.about(manifest);
        }
        for note in notes {
            let comment = self.tables.string(&note.text);
            self.tables.profile.comment.push(comment);
        }
        self.tables.finish()
    }

    fn about(&mut self, manifest: &Manifest) {
        let began = manifest.began_ns();
        self.tables.profile.time_nanos = i64::try_from(began).unwrap_or(0);
        self.tables.profile.duration_nanos = i64::try_from(manifest.duration_ns).unwrap_or(0);
        let comment = self
            .tables
            .string(&format!("Linux {} {}", manifest.release, manifest.machine));
        self.tables.profile.comment.push(comment);
    }

    fn samples(&mut self) {
        let mut counts: Vec<_> = self.counts.drain().collect();
        counts.sort_by_key(|(group, count)| (std::cmp::Reverse(count.weight), *group));
        let keys = std::mem::take(&mut self.keys);
        let value = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let [event_key, comm_key] = ["event", "comm"].map(|key| self.tables.string(key));
        let mut progress = Progress::new("naming stacks", Some(counts.len() as u64));
        for (done, ((event, comm, key), count)) in counts.into_iter().enumerate() {
            progress.set(done as u64);
            let location_id = self.tables.locations_of(key, &keys);
            let label = [(event_key, event), (comm_key, comm)];
            let label = label.into_iter().filter(|(_, str)| *str != 0);
            self.tables.profile.sample.push(Sample {
                location_id,
                value: match self.loaded.weight {
                    Weight::One => vec![value(count.events)],
                    Weight::Field(_) => vec![value(count.events), value(count.weight)],
                },
                label: label.map(|(key, str)| Label { key, str, num: 0 }).collect(),
            });
        }
    }
}
