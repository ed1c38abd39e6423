// SPDX-License-Identifier: MIT OR Apache-2.0

//! OpenTelemetry's profiles, as its protocol (OTLP) has them.
//!
//! They are those of pprof in other tables, so a pprof profile is made first. What the values are is
//! said once for a profile: sums of a field are a second one.

pub mod messages;

use super::{proto, tables::Tables};
use crate::{capture::Manifest, error::Result, notes::Note, source::Loaded};
use messages::{
    AnyValue, Attribute, Dictionary, Function, KeyValue, Line, Link, Location, Mapping, Profile,
    ProfilesData, Resource, ResourceProfiles, Sample, Scope, ScopeProfiles, Stack, Value,
    ValueType,
};
use prost::Message;
use std::{collections::HashMap, io::Write};

/// Writes a profile of pprof, whose samples have an event and the name of a task.
pub(super) fn write(
    tables: Tables<'_>,
    loaded: &Loaded,
    notes: &[Note],
    out: &mut impl Write,
) -> Result {
    let mut dictionary = Builder::default();
    dictionary.add_tables(&tables);
    let profile = tables.profile;
    let mut profiles = Vec::new();
    // The one that is to be shown first comes first.
    for index in (0..profile.sample_type.len()).rev() {
        profiles.push(dictionary.profile(&profile, index, notes));
    }
    let data = ProfilesData {
        resource_profiles: vec![ResourceProfiles {
            resource: loaded.manifest.as_ref().map(resource),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(Scope {
                    name: "stackmap".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                profiles,
            }],
        }],
        dictionary: Some(dictionary.tables),
    };
    Ok(out.write_all(&data.encode_to_vec())?)
}

/// The machine that a capture was recorded on.
fn resource(manifest: &Manifest) -> Resource {
    let attributes = [
        ("os.type", "linux"),
        ("os.version", &manifest.release),
        ("host.arch", &manifest.machine),
    ];
    Resource {
        attributes: Vec::from(attributes.map(|(key, text)| KeyValue {
            key: key.to_owned(),
            value: Some(value(text)),
        })),
    }
}

fn value(text: &str) -> AnyValue {
    AnyValue {
        value: Some(Value::Text(text.to_owned())),
    }
}

/// A number of an entry. No table has so many that it would not be one.
fn index(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(0)
}

/// Tables that grow, and where their entries are.
struct Builder {
    tables: Dictionary,
    strings: HashMap<String, i32>,
    attributes: HashMap<(i32, String), i32>,
    stacks: HashMap<Vec<u64>, i32>,
}

impl Default for Builder {
    /// With the first entries, which are empty.
    fn default() -> Self {
        Self {
            tables: Dictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Link::default()],
                string_table: vec![String::new()],
                attribute_table: vec![Attribute::default()],
                stack_table: vec![Stack::default()],
            },
            strings: HashMap::from([(String::new(), 0)]),
            attributes: HashMap::new(),
            stacks: HashMap::new(),
        }
    }
}

impl Builder {
    fn string(&mut self, text: &str) -> i32 {
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        let number = index(self.tables.string_table.len());
        self.tables.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), number);
        number
    }

    fn attribute(&mut self, key: &str, text: &str) -> i32 {
        let key_strindex = self.string(key);
        let next = index(self.tables.attribute_table.len());
        let table = &mut self.tables.attribute_table;
        let known = self.attributes.entry((key_strindex, text.to_owned()));
        *known.or_insert_with(|| {
            table.push(Attribute {
                key_strindex,
                value: Some(value(text)),
            });
            next
        })
    }

    /// The mappings, functions and locations of stacks, which keep their numbers: there they begin with 1.
    fn add_tables(&mut self, tables: &Tables<'_>) {
        let profile = &tables.profile;
        for mapping in &profile.mapping {
            let attributes = match text(profile, mapping.build_id) {
                "" => None,
                build_id => Some(self.attribute("process.executable.build_id.gnu", build_id)),
            };
            let mapping = Mapping {
                memory_start: mapping.memory_start,
                memory_limit: mapping.memory_limit,
                filename_strindex: self.string(text(profile, mapping.filename)),
                attribute_indices: Vec::from_iter(attributes),
            };
            self.tables.mapping_table.push(mapping);
        }
        for function in &profile.function {
            let function = Function {
                name_strindex: self.string(text(profile, function.name)),
                filename_strindex: self.string(text(profile, function.filename)),
            };
            self.tables.function_table.push(function);
        }
        for location in &profile.location {
            let kind = match location.mapping_id {
                0 => None,
                mapping if tables.is_of_kernel(mapping) => Some("kernel"),
                _ => Some("native"),
            };
            let kind = kind.map(|kind| self.attribute("profile.frame.type", kind));
            let lines = location.line.iter().map(|line| Line {
                function_index: index(line.function_id),
                line: line.line,
            });
            let location = Location {
                mapping_index: index(location.mapping_id),
                address: location.address,
                lines: lines.collect(),
                attribute_indices: Vec::from_iter(kind),
            };
            self.tables.location_table.push(location);
        }
    }

    /// The profile of the value with this number.
    fn profile(&mut self, profile: &proto::Profile, number: usize, notes: &[Note]) -> Profile {
        let value_type = |builder: &mut Self, of: &proto::ValueType| ValueType {
            type_strindex: builder.string(text(profile, of.r#type)),
            unit_strindex: builder.string(text(profile, of.unit)),
        };
        let mut samples = Vec::new();
        for sample in &profile.sample {
            let labels = sample.label.iter();
            let labels = labels.map(|label| {
                let key = match text(profile, label.key) {
                    "comm" => "thread.name",
                    _ => "stackmap.event",
                };
                self.attribute(key, text(profile, label.str))
            });
            let attribute_indices = labels.collect();
            samples.push(Sample {
                stack_index: self.stack(&sample.location_id),
                attribute_indices,
                values: vec![sample.value[number]],
            });
        }
        let notes: Vec<_> = notes.iter().map(|note| &note.text[..]).collect();
        let notes = match notes.is_empty() {
            true => None,
            false => Some(self.attribute("stackmap.notes", &notes.join("\n"))),
        };
        Profile {
            sample_type: Some(value_type(self, &profile.sample_type[number])),
            samples,
            time_unix_nano: profile.time_nanos.try_into().unwrap_or(0),
            duration_nano: profile.duration_nanos.try_into().unwrap_or(0),
            period_type: profile.period_type.as_ref().map(|of| value_type(self, of)),
            period: profile.period,
            attribute_indices: Vec::from_iter(notes),
        }
    }

    fn stack(&mut self, locations: &[u64]) -> i32 {
        if let Some(number) = self.stacks.get(locations) {
            return *number;
        }
        let number = index(self.tables.stack_table.len());
        self.tables.stack_table.push(Stack {
            location_indices: locations.iter().map(|id| index(*id)).collect(),
        });
        self.stacks.insert(locations.to_vec(), number);
        number
    }
}

fn text(profile: &proto::Profile, number: i64) -> &str {
    &profile.string_table[number as usize]
}
