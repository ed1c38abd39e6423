// SPDX-License-Identifier: MIT OR Apache-2.0

//! In every output the total, also by group, is that of the events in an export of everything, which `truth.rs`
//! compares with the kernel's text.

use super::{
    filters::all,
    parquet::rows,
    perfetto::Reader,
    tool::{counts, events, json, micros, run, stdout, unpacked, Dir},
    trace_dat::Dat,
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{select, Index},
};
use prost::Message;
use regex::Regex;
use serde_json::Value;
use stackmap::export::proto::Profile;
use std::{collections::BTreeMap, fs, sync::LazyLock};

/// The captures: of events and of functions, with losses, with full stacks, with user stacks.
const FILES: [&str; 6] = [
    "before.data",
    "full.data",
    "function.data",
    "mixed.data",
    "overwritten.data",
    "user.data",
];
const KEYS: [&str; 5] = ["event", "comm", "pid", "cpu", "stack"];

/// How many events there are, and the sum of their weights, by group.
type Sums = BTreeMap<String, (u64, u64)>;

fn sums(groups: impl IntoIterator<Item = (String, (u64, u64))>) -> Sums {
    let mut sums = Sums::new();
    for (group, (events, weight)) in groups {
        let sum = sums.entry(group).or_default();
        *sum = (sum.0 + events, sum.1 + weight);
    }
    sums
}

fn total(sums: &Sums) -> (u64, u64) {
    let add = |sum: (u64, u64), of: &(u64, u64)| (sum.0 + of.0, sum.1 + of.1);
    sums.values().fold((0, 0), add)
}

/// Returns the sums of weights.
fn weights(sums: &Sums) -> BTreeMap<&str, u64> {
    let some = sums.iter().filter(|(_, (_, weight))| *weight > 0);
    some.map(|(group, (_, weight))| (&group[..], *weight))
        .collect()
}

/// A capture, what is kept of it and how, and the events that are to be counted.
struct Case<'a> {
    arguments: String,
    weight: Option<&'a str>,
    nr_all: usize,
    events: Vec<&'a Value>,
}

impl<'a> Case<'a> {
    fn new(
        (file, all): (&str, &'a Value),
        weight: Option<&'a str>,
        filter: &str,
        is_kept: impl Fn(&Value) -> bool,
    ) -> Self {
        let weighted = weight.map(|field| format!("--weight {field} "));
        Self {
            arguments: format!("{}{filter} {file}", weighted.unwrap_or_default()),
            weight,
            nr_all: events(all).len(),
            events: events(all).iter().filter(|event| is_kept(event)).collect(),
        }
    }

    /// Returns what is to be counted by a key. Events whose field is no number or a negative one have no weight.
    fn wanted(&self, by: &str) -> Sums {
        self.wanted_of(by, u64::MAX)
    }

    /// The same of events that weigh `most` at most.
    fn wanted_of(&self, by: &str, most: u64) -> Sums {
        let groups = self.events.iter().filter_map(|event| {
            let weight = match self.weight {
                Some(field) => event["values"][field].as_u64()?,
                None => 1,
            };
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            let group = match by {
                "stack" => String::new(),
                "cpu" => format!("CPU {}", event["cpu"]),
                "pid" => format!("{}-{}", text("comm"), event["pid"]),
                _ => text(by),
            };
            Some((group, (1, weight.min(most))))
        });
        sums(groups)
    }

    /// There is nothing to count.
    fn is_refused(&self) {
        for command in ["report", "folded", "flame -o -", "export --format pprof"] {
            run(format!("{command} {}", self.arguments)).failed(2, "not counted");
        }
    }

    /// Returns what is said of this many events: all, or of how many.
    fn heads(&self, nr: u64) -> [String; 2] {
        let plural = if nr == 1 { "" } else { "s" };
        [
            format!(">{nr} event{plural}"),
            format!(">{nr} of {} events", self.nr_all),
        ]
    }

    /// Compares what groups events.
    fn compare_groups(&self, by: &str) {
        let arguments = format!("--by {by} {}", self.arguments);
        let want = self.wanted(by);
        self.compare_report(by, &want, &arguments);

        let folded = stdout(format!("folded {arguments}"));
        let groups = folded.lines().zip(counts(&folded)).map(|(stack, count)| {
            let group = if by == "stack" { "" } else { stack };
            (group.split(';').next().unwrap().to_owned(), (0, count))
        });
        assert_eq!(weights(&sums(groups)), weights(&want), "folded {arguments}");

        let (nr, weight) = total(&want);
        let flame = run(format!("flame -o - {arguments}"));
        if weight == 0 {
            flame.failed(1, "to draw");
            return;
        }
        let text = flame
            .well()
            .text()
            .replace("&lt;", "<")
            .replace("&gt;", ">");
        static BOX_IS: LazyLock<Regex> = LazyLock::new(|| {
            let title = r#"<title>(.*?) \(([\d,]+) \w+, [\d.]+%\)</title><rect [^>]*\by="(\d+)""#;
            Regex::new(title).unwrap()
        });
        let boxes = BOX_IS.captures_iter(&text).map(|found| {
            let (_, [name, count, y]) = found.extract();
            let count: u64 = count.replace(',', "").parse().unwrap();
            (y.parse::<u64>().unwrap(), name.to_owned(), count)
        });
        let mut boxes: Vec<_> = boxes.collect();
        boxes.sort_unstable();
        let (bottom, name, count) = boxes.pop().unwrap();
        assert_eq!((&name[..], count), ("all", weight), "flame {arguments}");
        let sum = self.weight.map(|field| format!(", {weight} {field}"));
        let end = sum.unwrap_or_default() + " in ";
        let is_there = |head: &String| text.contains(&format!("{head}{end}"));
        assert!(self.heads(nr).iter().any(is_there), "flame {arguments}");
        if by != "stack" {
            // What is narrower is not drawn.
            let is_wide = |part: u64| part * 500 > weight;
            let drawn = boxes
                .iter()
                .filter(|(y, _, count)| *y == bottom - 16 && is_wide(*count));
            let drawn: BTreeMap<_, _> = drawn.map(|(_, name, count)| (&name[..], *count)).collect();
            let mut wide = weights(&want);
            wide.retain(|_, part| is_wide(*part));
            assert_eq!(drawn, wide, "flame {arguments}");
        }
    }

    fn compare_report(&self, by: &str, want: &Sums, arguments: &str) {
        let report = stdout(format!("report --top 1000000 --depth 1 {arguments}"));
        let (nr, weight) = total(want);
        let head = report.lines().nth(2).unwrap();
        let is_it = |begin: &String| head.starts_with(&begin[1..]);
        assert!(self.heads(nr).iter().any(is_it), "report {arguments}");
        if let Some(field) = self.weight {
            let sum = format!(", {weight} {field}");
            assert!(head.contains(&sum), "report {arguments}");
        }

        static TITLE_IS: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"^(\S.*): (\d+) events?(?:, (\d+) \w+)?$").unwrap());
        static ROW_IS: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"^ +[\d.]+ % +(\d+)  (?:(\d+) events?, )?").unwrap());
        let number = |text: &str| text.parse::<u64>().unwrap();
        let (mut titles, mut stacks) = (Sums::new(), Sums::new());
        let mut group = String::new();
        for line in report.lines().skip(3) {
            if let Some(title) = TITLE_IS.captures(line) {
                title[1].clone_into(&mut group);
                let nr = number(&title[2]);
                let weight = title.get(3).map_or(nr, |weight| number(weight.as_str()));
                assert!(titles.insert(group.clone(), (nr, weight)).is_none());
            } else if let Some(row) = ROW_IS.captures(line) {
                let weight = number(&row[1]);
                let nr = row.get(2).map_or(weight, |nr| number(nr.as_str()));
                let sum = stacks.entry(group.clone()).or_default();
                *sum = (sum.0 + nr, sum.1 + weight);
            }
        }
        assert_eq!(stacks, *want, "stacks of report {arguments}");
        if by != "stack" {
            assert_eq!(titles, *want, "report {arguments}");
        }
    }

    /// Compares what is exported.
    fn compare_exports(&self) {
        let arguments = &self.arguments;
        let want = self.wanted("event");
        let export = |format: &str| format!("export --format {format} {arguments}");

        let profile = unpacked(&run(export("pprof")).well().stdout);
        let profile = Profile::decode(&profile[..]).unwrap();
        let text = |index: i64| &profile.string_table[index as usize][..];
        let types = profile.sample_type.iter().map(|kind| text(kind.r#type));
        let types: Vec<_> = types.collect();
        assert_eq!(types, [&["events"][..], self.weight.as_slice()].concat());
        let default = text(profile.default_sample_type);
        assert_eq!(default, self.weight.unwrap_or_default());
        for (key, want) in [("event", &want), ("comm", &self.wanted("comm"))] {
            let groups = profile.sample.iter().map(|sample| {
                let mut labels = sample.label.iter();
                let group = labels.find(|label| text(label.key) == key).unwrap();
                let (nr, weight) = (sample.value[0], *sample.value.last().unwrap());
                (text(group.str).to_owned(), (nr as u64, weight as u64))
            });
            assert_eq!(sums(groups), *want, "pprof {arguments}");
        }

        let profile = run(export("firefox")).well();
        // A weight there has 32 bits.
        let cut = self.wanted_of("event", 0x7fff_ffff);
        assert_eq!(profile.stderr.contains("less than they do"), cut != want);
        let profile: Value = serde_json::from_slice(&profile.stdout).unwrap();
        let threads = profile["threads"].as_array().unwrap().iter();
        let groups = threads.flat_map(|thread| {
            let column = |table: &str, of: &str| thread[table][of].as_array().unwrap().clone();
            let name = move |index: Value| {
                let name = &thread["stringArray"][index.as_u64().unwrap() as usize];
                name.as_str().unwrap().to_owned()
            };
            let names = column("markers", "name").into_iter().map(name);
            let weights = column("samples", "weight").into_iter();
            assert_eq!(names.len(), weights.len());
            names.zip(weights.map(|weight| (1, weight.as_u64().unwrap())))
        });
        let groups: Vec<_> = groups.collect();
        assert_eq!(sums(groups), cut, "firefox {arguments}");

        let trace = Reader::of(arguments);
        let groups = trace.recorded().filter_map(|seen| {
            let weight = match self.weight {
                Some(_) => seen.weight? as u64,
                None => {
                    assert_eq!(seen.weight, None);
                    1
                }
            };
            Some((seen.name.clone(), (1, weight)))
        });
        assert_eq!(sums(groups), want, "perfetto {arguments}");
    }

    /// Compares what exports all events, whatever their weights.
    fn compare_recordings(&self) {
        assert_eq!(self.weight, None);
        let arguments = &self.arguments;
        let export = json(arguments);
        let names = events(&export)
            .iter()
            .map(|event| event["event"].as_str().unwrap());
        let got = sums(names.map(|name| (name.to_owned(), (1, 1))));
        assert_eq!(got, self.wanted("event"), "json {arguments}");

        let dir = Dir::new();
        let tables = dir.at("tables");
        stdout(format!("export --format parquet -o {tables} {arguments}"));
        // The tables have all events, and say which of them other commands do not show.
        let mut rows = rows(&tables, "events");
        rows.retain(|row| row["plumbing"] == false || arguments.contains("--plumbing"));
        for (column, by) in [("name", "event"), ("comm", "comm")] {
            let groups = rows.iter().map(|row| row[column].as_str().unwrap());
            let got = sums(groups.map(|group| (group.to_owned(), (1, 1))));
            assert_eq!(got, self.wanted(by), "parquet {arguments}");
        }

        let out = dir.at("trace.dat");
        stdout(format!("export --format trace.dat -o {out} {arguments}"));
        let read = Dat::new(&fs::read(&out).unwrap());
        let stacks = ["kernel_stack", "user_stack"].map(|name| read.of(name));
        let cpu = |(cpu, ..): (u32, u64, Vec<u8>)| format!("CPU {cpu}");
        let mut got = sums(
            read.records()
                .into_iter()
                .map(|record| (cpu(record), (1, 1))),
        );
        for record in stacks.into_iter().flatten() {
            let sum = got.get_mut(&cpu(record)).unwrap();
            *sum = (sum.0 - 1, sum.1 - 1);
        }
        got.retain(|_, (nr, _)| *nr > 0);
        assert_eq!(got, self.wanted("cpu"), "trace.dat {arguments}");
    }
}

#[test]
fn totals_are_those_of_the_events() {
    for file in FILES {
        let all = all(file);
        let case = Case::new((file, &*all), None, "", |_| true);
        KEYS.iter().for_each(|by| case.compare_groups(by));
        case.compare_exports();
        case.compare_recordings();
    }
}

/// Returns the filter that keeps events which are like this one.
fn filter_by(name: &str, event: &Value) -> String {
    match &event[name] {
        Value::String(text) => format!("--{name} '{text}' "),
        number => format!("--{name} {number} "),
    }
}

/// Whether such a filter by the other event keeps an event.
fn fits(name: &str, event: &Value, other: &Value) -> bool {
    // The id of a process is that of all its threads.
    event[name] == other[name] || name == "pid" && event["tgid"] == other["pid"]
}

#[test]
fn a_filter_alone_keeps_what_it_says() {
    for file in ["before.data", "user.data"] {
        let all = all(file);
        let some = &events(&all)[events(&all).len() / 2];
        for name in ["comm", "pid", "cpu", "event"] {
            let filter = filter_by(name, some);
            let case = Case::new((file, &*all), None, &filter, |event| {
                fits(name, event, some)
            });
            assert!(case.events.len() < case.nr_all);
            case.compare_groups("stack");
            if name != "cpu" {
                let filter = filter.replace("--", "--not-");
                let case = Case::new((file, &*all), None, &filter, |event| {
                    !fits(name, event, some)
                });
                assert!(case.events.len() < case.nr_all);
                case.compare_groups("stack");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(16)
    })]

    /// Of what is filtered and weighted, too. Filters are by some events of a capture.
    #[test]
    fn totals_of_what_is_kept_are_those_of_its_events(
        file in select(FILES.to_vec()),
        weight in select(vec![None, Some("bytes_alloc"), Some("ret")]),
        shown in select(vec!["", "--user", "--kernel", "--plumbing"]),
        some in vec(any::<Index>(), 1..3),
        by in select(KEYS.to_vec()),
        keys in any::<[bool; 5]>(),
    ) {
        let all = all(if shown == "--plumbing" { format!("{shown} {file}").leak() } else { file });
        let some: Vec<_> = some.iter().map(|index| index.get(events(&all))).collect();
        let times = some.iter().copied().map(micros);
        let (from, to) = (times.clone().min().unwrap(), times.max().unwrap());
        let names = ["comm", "pid", "cpu", "event"].into_iter().zip(keys);
        let names: Vec<_> = names.filter_map(|(name, is_wanted)| is_wanted.then_some(name)).collect();
        let filters = names.iter().flat_map(|name| some.iter().map(move |event| filter_by(name, event)));
        let mut filter: String = filters.collect();
        if keys[4] {
            let [from, to] = [from, to].map(|time| format!("{}.{:06}", time / 1_000_000, time % 1_000_000));
            filter += &format!("--time {from}..{to} ");
        }
        let is_kept = |event: &Value| {
            let is = |name: &&str| some.iter().any(|other| fits(name, event, other));
            names.iter().all(is) && (!keys[4] || (from..=to).contains(&micros(event)))
        };
        let case = Case::new((file, &*all), weight, &format!("{filter}{shown}"), is_kept);
        if case.wanted("event").is_empty() {
            case.is_refused();
            return Ok(());
        }
        case.compare_groups(by);
        case.compare_exports();
        if weight.is_none() {
            case.compare_recordings();
        }
    }
}
