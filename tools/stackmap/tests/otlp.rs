// SPDX-License-Identifier: MIT OR Apache-2.0

//! Profiles of OpenTelemetry, read back by the crate opentelemetry-proto and compared with pprof's and with
//! the export of all events.

#[path = "common/capture.rs"]
mod capture;
mod common;

use capture::Text;
use common::run;
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::{
    collector::profiles::v1development::ExportProfilesServiceRequest,
    common::v1::{any_value::Value, AnyValue},
    profiles::v1development::{Location, Profile, ProfilesData, ProfilesDictionary, ValueType},
};
use prost::Message;
use serde_json::Value as Json;
use stackmap::{
    capture::Manifest,
    export::proto,
    stack_map_bin::{self, Order},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
};

/// How often there is an event of a task with a stack: names, innermost first.
type Counts = BTreeMap<(String, String, Vec<String>), i64>;

fn export(format: &str, arguments: &[&str]) -> Vec<u8> {
    let output = run(&[&["export", "--format", format], arguments].concat());
    assert!(output.status.success(), "{}", common::stderr(&output));
    output.stdout
}

/// The profile of pprof.
fn profile(arguments: &[&str]) -> proto::Profile {
    let mut unpacked = Vec::new();
    GzDecoder::new(&export("pprof", arguments)[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    proto::Profile::decode(&unpacked[..]).unwrap()
}

/// Its samples, by the value with this number.
fn pprof(arguments: &[&str], number: usize) -> Counts {
    let profile = profile(arguments);
    let text = |number: i64| profile.string_table[number as usize].clone();
    let mut counts = Counts::new();
    for sample in &profile.sample {
        let label = |name: &str| {
            let mut labels = sample.label.iter();
            let label = labels.find(|label| text(label.key) == name);
            label.map_or(String::new(), |label| text(label.str))
        };
        let locations = sample.location_id.iter();
        let lines = locations.flat_map(|id| &profile.location[*id as usize - 1].line);
        let names = lines.map(|line| text(profile.function[line.function_id as usize - 1].name));
        let group = (label("event"), label("comm"), names.collect());
        *counts.entry(group).or_default() += sample.value[number];
    }
    counts
}

/// Profiles of OpenTelemetry, as the crate reads them.
struct Otlp {
    data: ProfilesData,
    dictionary: ProfilesDictionary,
}

impl Otlp {
    fn of(arguments: &[&str]) -> Self {
        let bytes = export("otlp", arguments);
        let data = ProfilesData::decode(&bytes[..]).unwrap();
        // Every field is one that the crate knows.
        assert_eq!(data.encode_to_vec(), bytes);
        let request = ExportProfilesServiceRequest::decode(&bytes[..]).unwrap();
        assert_eq!(request.resource_profiles, data.resource_profiles);
        assert_eq!(request.dictionary, data.dictionary);
        let dictionary = data.dictionary.clone().unwrap();
        let this = Self { data, dictionary };
        this.check_first_entries();
        this
    }

    /// The first entry of each table is to be empty.
    fn check_first_entries(&self) {
        let tables = &self.dictionary;
        assert_eq!(tables.string_table[0], "");
        for empty in [
            tables.mapping_table[0].encoded_len(),
            tables.location_table[0].encoded_len(),
            tables.function_table[0].encoded_len(),
            tables.link_table[0].encoded_len(),
            tables.attribute_table[0].encoded_len(),
            tables.stack_table[0].encoded_len(),
        ] {
            assert_eq!(empty, 0);
        }
    }

    fn profiles(&self) -> &[Profile] {
        &self.data.resource_profiles[0].scope_profiles[0].profiles
    }

    fn string(&self, number: i32) -> &str {
        &self.dictionary.string_table[number as usize]
    }

    fn kind(&self, kind: Option<&ValueType>) -> (&str, &str) {
        let kind = kind.unwrap();
        (
            self.string(kind.type_strindex),
            self.string(kind.unit_strindex),
        )
    }

    fn attributes(&self, indices: &[i32]) -> BTreeMap<&str, &str> {
        let entries = indices.iter();
        let entries = entries.map(|index| &self.dictionary.attribute_table[*index as usize]);
        let attributes = entries.map(|entry| (self.string(entry.key_strindex), text(&entry.value)));
        let attributes: BTreeMap<_, _> = attributes.collect();
        assert_eq!(attributes.len(), indices.len());
        attributes
    }

    fn locations(&self, stack: i32) -> impl Iterator<Item = &Location> {
        let stack = &self.dictionary.stack_table[stack as usize];
        let locations = stack.location_indices.iter();
        locations.map(|index| &self.dictionary.location_table[*index as usize])
    }

    fn names(&self, location: &Location) -> Vec<String> {
        let lines = location.lines.iter();
        let functions =
            lines.map(|line| &self.dictionary.function_table[line.function_index as usize]);
        let names = functions.map(|function| self.string(function.name_strindex).to_owned());
        names.collect()
    }

    fn counts(&self, profile: &Profile) -> Counts {
        let mut counts = Counts::new();
        for sample in &profile.samples {
            let attributes = self.attributes(&sample.attribute_indices);
            let get = |key| attributes.get(key).copied().unwrap_or_default().to_owned();
            let locations = self.locations(sample.stack_index);
            let names = locations.flat_map(|location| self.names(location));
            let group = (get("stackmap.event"), get("thread.name"), names.collect());
            let [value] = sample.values[..] else {
                panic!("{sample:?}");
            };
            *counts.entry(group).or_default() += value;
        }
        counts
    }
}

fn text(value: &Option<AnyValue>) -> &str {
    match value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text,
        value => panic!("{value:?}"),
    }
}

#[test]
fn profiles_are_those_of_pprof() {
    for file in [
        "before.data",
        "full.data",
        "mixed.data",
        "user.data",
        "stack_map_bin",
    ] {
        let otlp = Otlp::of(&[file]);
        let [profile] = otlp.profiles() else {
            panic!("{file}");
        };
        assert_eq!(otlp.kind(profile.sample_type.as_ref()), ("events", "count"));
        assert_eq!(otlp.kind(profile.period_type.as_ref()), ("events", "count"));
        assert_eq!(profile.period, 1);
        let counts = otlp.counts(profile);
        assert_eq!(counts, pprof(&[file], 0), "{file}");
        if file == "stack_map_bin" {
            continue;
        }
        // Beside pprof: as many of each event and task as there are.
        let all = common::stdout(&["export", "--format", "json", file]);
        let all: Json = serde_json::from_str(&all).unwrap();
        let mut wanted = BTreeMap::<(&str, &str), i64>::new();
        for event in all["events"].as_array().unwrap() {
            let text = |name: &str| event[name].as_str().unwrap();
            *wanted.entry((text("event"), text("comm"))).or_default() += 1;
        }
        let mut seen = BTreeMap::<(&str, &str), i64>::new();
        for ((event, comm, _), count) in &counts {
            *seen.entry((event, comm)).or_default() += count;
        }
        assert_eq!(seen, wanted, "{file}");
        assert!(counts.len() > 5);
    }
}

#[test]
fn tables_are_those_of_pprof() {
    for arguments in [
        &["mixed.data"][..],
        &["user.data"],
        &["user.data", "--addresses"],
    ] {
        let (otlp, profile) = (Otlp::of(arguments), profile(arguments));
        let text = |number: i64| &profile.string_table[number as usize][..];
        let tables = &otlp.dictionary;
        let mappings = tables.mapping_table[1..].iter().map(|mapping| {
            let file = otlp.string(mapping.filename_strindex);
            (file, mapping.memory_start, mapping.memory_limit)
        });
        let wanted = profile.mapping.iter().map(|mapping| {
            let file = text(mapping.filename);
            (file, mapping.memory_start, mapping.memory_limit)
        });
        assert!(mappings.eq(wanted), "{arguments:?}");
        let functions = tables.function_table[1..].iter();
        let functions = functions.map(|of| [of.name_strindex, of.filename_strindex]);
        let functions = functions.map(|texts| texts.map(|number| otlp.string(number)));
        let wanted = profile.function.iter();
        assert!(functions.eq(wanted.map(|of| [text(of.name), text(of.filename)])));
        assert_eq!(tables.location_table.len(), profile.location.len() + 1);
        for (of, wanted) in tables.location_table[1..].iter().zip(&profile.location) {
            assert_eq!(of.address, wanted.address);
            assert_eq!(of.mapping_index as u64, wanted.mapping_id);
            let lines = of
                .lines
                .iter()
                .map(|of| (of.function_index as u64, of.line));
            let wanted_lines = wanted.line.iter().map(|of| (of.function_id, of.line));
            assert!(lines.eq(wanted_lines), "{of:?}");
            // Nobody knows what is in no mapping.
            assert_eq!(of.attribute_indices.is_empty(), wanted.mapping_id == 0);
        }
        // Each stack and each attribute is there once.
        let stacks = tables.stack_table.iter();
        let stacks: BTreeSet<_> = stacks.map(|stack| &stack.location_indices).collect();
        assert_eq!(stacks.len(), tables.stack_table.len());
        let attributes = tables.attribute_table[1..].iter();
        let attributes = attributes.map(|of| (otlp.string(of.key_strindex), self::text(&of.value)));
        let attributes: BTreeSet<_> = attributes.collect();
        assert_eq!(attributes.len() + 1, tables.attribute_table.len());
    }
}

#[test]
fn frames_say_whose_they_are() {
    let otlp = Otlp::of(&["user.data"]);
    let mut kinds = BTreeMap::<(&str, bool), usize>::new();
    for location in &otlp.dictionary.location_table[1..] {
        let mapping = &otlp.dictionary.mapping_table[location.mapping_index as usize];
        let file = otlp.string(mapping.filename_strindex);
        let attributes = otlp.attributes(&location.attribute_indices);
        let kind = attributes
            .get("profile.frame.type")
            .copied()
            .unwrap_or_default();
        *kinds.entry((kind, file.starts_with('['))).or_default() += 1;
        if file.ends_with("/known") || file == "[kernel.kallsyms]" {
            let attributes = otlp.attributes(&mapping.attribute_indices);
            let build_id = attributes["process.executable.build_id.gnu"];
            assert_eq!(build_id.len(), 40);
        }
    }
    assert!(
        kinds[&("kernel", true)] > 5 && kinds[&("native", false)] > 5,
        "{kinds:?}"
    );
    let resource = otlp.data.resource_profiles[0].resource.as_ref().unwrap();
    let resource = resource.attributes.iter();
    let resource: Vec<_> = resource.map(|of| (&of.key[..], text(&of.value))).collect();
    let wanted = [
        ("os.type", "linux"),
        ("os.version", "7.3.4+deb13-amd64"),
        ("host.arch", "x86_64"),
    ];
    assert_eq!(resource, wanted);
    let profile = &otlp.profiles()[0];
    assert_eq!(
        profile.time_unix_nano,
        1_795_464_018_000_000_000 - 181_350_703
    );
    assert_eq!(profile.duration_nano, 181_350_703);
}

#[test]
fn a_task_may_be_called_like_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture");
    let mut bin = Vec::new();
    stack_map_bin::write(&mut bin, Order::Little, None, [].into_iter()).unwrap();
    let text = Text {
        trace: "  same-1 [000] ..... 1.000001: same: x\n",
        stack_map_bin: &bin,
        stat: b"bits: 14\n",
        kallsyms: b"",
    };
    capture::write(&path, &text, &Manifest::default());
    let otlp = Otlp::of(&[path.to_str().unwrap()]);
    let counts = otlp.counts(&otlp.profiles()[0]);
    let names: Vec<_> = counts
        .keys()
        .map(|(event, comm, _)| [event, comm])
        .collect();
    assert_eq!(names, [["same", "same"]]);
}

#[test]
fn what_is_lost_is_said() {
    let otlp = Otlp::of(&["overwritten.data"]);
    let attributes = otlp.attributes(&otlp.profiles()[0].attribute_indices);
    let notes = attributes["stackmap.notes"];
    assert!(notes.contains("1986 records overwritten"), "{notes}");
}

#[test]
fn sums_of_a_field_come_first() {
    let weight = ["--weight", "bytes_alloc", "mixed.data"];
    let otlp = Otlp::of(&weight);
    let [sums, events] = otlp.profiles() else {
        panic!("{}", otlp.profiles().len());
    };
    assert_eq!(otlp.kind(sums.sample_type.as_ref()).0, "bytes_alloc");
    assert_eq!(otlp.counts(sums), pprof(&weight, 1));
    assert_eq!(otlp.kind(events.sample_type.as_ref()).0, "events");
    assert_eq!(otlp.counts(events), pprof(&weight, 0));
    assert_eq!(otlp.counts(sums).values().sum::<i64>(), 170_136);
}

#[test]
fn kernel_addresses_are_there_on_request_only() {
    let told = |arguments: &[&str]| {
        let otlp = Otlp::of(arguments);
        let tables = &otlp.dictionary;
        let is_address = |number: u64| number >> 56 != 0;
        tables
            .location_table
            .iter()
            .any(|of| is_address(of.address))
            || tables
                .mapping_table
                .iter()
                .any(|of| is_address(of.memory_start))
            || tables
                .string_table
                .iter()
                .any(|text| text.starts_with("0xffff"))
    };
    for file in ["mixed.data", "full.data"] {
        assert!(!told(&[file]), "{file}");
        assert!(told(&[file, "--addresses"]), "{file}");
    }
}
