// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sums of fields, by every command that has `--weight`, compared with what an export of all events has in
//! these fields.

mod common;

use common::{run, stderr, stdout};
use flate2::read::GzDecoder;
use prost::Message;
use serde_json::Value;
use stackmap::export::proto::Profile;
use std::{collections::BTreeMap, io::Read};

/// How many events there are that say a number which is not negative, and what they say in all, by event.
fn sums(field: &str) -> BTreeMap<String, (u64, u64)> {
    let all: Value =
        serde_json::from_str(&stdout(&["export", "--format", "json", "mixed.data"])).unwrap();
    let mut sums = BTreeMap::<String, (u64, u64)>::new();
    for event in all["events"].as_array().unwrap() {
        if let Some(number) = event["values"][field].as_u64() {
            let sum = sums
                .entry(event["event"].as_str().unwrap().to_owned())
                .or_default();
            *sum = (sum.0 + 1, sum.1 + number);
        }
    }
    sums
}

fn total(sums: &BTreeMap<String, (u64, u64)>) -> (u64, u64) {
    sums.values()
        .fold((0, 0), |(nr, sum), (one, number)| (nr + one, sum + number))
}

#[test]
fn reports_add_up_what_a_field_says() {
    let sums = sums("bytes_alloc");
    let (nr, sum) = total(&sums);
    assert!(sums.len() == 2 && nr > 500 && sum > 10 * nr);
    let report = stdout(&[
        "report",
        "--weight",
        "bytes_alloc",
        "--top",
        "0",
        "mixed.data",
    ]);
    let head = report.lines().nth(2).unwrap();
    assert!(head.starts_with(&format!("{nr} events, ")), "{head}");
    assert!(head.contains(&format!(", {sum} bytes_alloc")), "{head}");
    for (event, (nr, sum)) in &sums {
        let share = *sum as f64 * 100.0 / total(&sums).1 as f64;
        let row = format!("{nr} {sum} {share:.1} %");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut lines = report.lines().map(words);
        assert!(
            lines.any(|line| line.starts_with(&format!("{event} {row} "))),
            "{event} {row}: {report}"
        );
        let title = format!("\n{event}: {nr} events, {sum} bytes_alloc\n");
        assert!(report.contains(&title), "{title}");
    }
    // What weighs most comes first, although something else is more frequent.
    let heaviest = stdout(&[
        "report",
        "--weight",
        "bytes_alloc",
        "--by",
        "stack",
        "--top",
        "2",
        "mixed.data",
    ]);
    assert!(
        heaviest.contains("\n#2: kmem_cache_alloc 2\n"),
        "{heaviest}"
    );
}

#[test]
fn negative_numbers_are_left_out() {
    let filter = ["--event", "sys_exit_*", "--weight", "ret", "mixed.data"];
    let ret = sums("ret");
    let (nr, sum) = total(&ret);
    assert!(nr > 100 && sum > 1000);
    let report = stdout(&[&["report", "--top", "0"], &filter[..]].concat());
    assert!(report.contains(&format!(", {sum} ret")), "{report}");
    let folded = stdout(&[&["folded"], &filter[..]].concat());
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    let counts = counts.map(|count| count.parse::<u64>().unwrap());
    assert_eq!(counts.sum::<u64>(), sum);
    let all = stdout(&["export", "--format", "json", "mixed.data"]);
    let all: Value = serde_json::from_str(&all).unwrap();
    let events = all["events"].as_array().unwrap().iter();
    let negative = events.filter(|event| {
        let ret = event["values"]["ret"].as_i64();
        ret.is_some_and(|ret| ret < 0)
    });
    let note = format!(
        "note: not counted: {} events that have a negative ret",
        negative.count()
    );
    assert!(report.contains(&note), "{note}: {report}");
}

#[test]
fn addresses_of_the_kernel_are_left_out() {
    for command in [&["folded"][..], &["export", "--format", "pprof", "-o", "-"]] {
        let output = run(&[command, &["--weight", "call_site", "questions.data"]].concat());
        let said = stderr(&output);
        let why = "events that have an address of the kernel as call_site";
        assert!(said.contains(why), "{said}");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(command[0] == "export" || shown.is_empty(), "{shown}");
    }
}

#[test]
fn exports_have_both_numbers() {
    let (nr, sum) = total(&sums("bytes_alloc"));
    let weight = ["--weight", "bytes_alloc", "mixed.data"];
    let mut packed = Vec::new();
    let profile = run(&[&["export", "--format", "pprof"], &weight[..]].concat()).stdout;
    GzDecoder::new(&profile[..])
        .read_to_end(&mut packed)
        .unwrap();
    let profile = Profile::decode(&packed[..]).unwrap();
    let name = |number: i64| &profile.string_table[usize::try_from(number).unwrap()];
    let types: Vec<_> = profile
        .sample_type
        .iter()
        .map(|of| name(of.r#type))
        .collect();
    assert_eq!(types, ["events", "bytes_alloc"]);
    assert_eq!(name(profile.default_sample_type), "bytes_alloc");
    let sum_of = |index: usize| {
        let values = profile.sample.iter().map(|sample| sample.value[index]);
        values.sum::<i64>() as u64
    };
    assert_eq!((sum_of(0), sum_of(1)), (nr, sum));

    let firefox = stdout(&[&["export", "--format", "firefox"], &weight[..]].concat());
    let firefox: Value = serde_json::from_str(&firefox).unwrap();
    let threads = firefox["threads"].as_array().unwrap().iter();
    let weights = threads.flat_map(|thread| thread["samples"]["weight"].as_array().unwrap());
    let weights: Vec<_> = weights.map(|weight| weight.as_u64().unwrap()).collect();
    assert_eq!((weights.len() as u64, weights.iter().sum()), (nr, sum));
}

#[test]
fn graphs_and_comparisons_say_what_they_count() {
    let (_, sum) = total(&sums("bytes_alloc"));
    let weight = ["--weight", "bytes_alloc", "mixed.data"];
    let svg = stdout(&[&["flame", "-o", "-"], &weight[..]].concat());
    assert!(svg.contains(&format!("events, {sum} bytes_alloc in ")));
    assert!(svg.contains(" bytes_alloc, 100%)"), "{svg}");
    let diff = stdout(&[&["diff", "mixed.data"], &weight[..]].concat());
    assert!(diff.contains(&format!("before: mixed.data, {sum} bytes_alloc\n")));
}

#[test]
fn what_has_no_such_number_is_named() {
    let output = run(&[
        "report",
        "--event",
        "kfree",
        "--weight",
        "bytes",
        "mixed.data",
    ]);
    assert!(output.status.success() && output.stdout.is_empty());
    let said = stderr(&output);
    assert!(
        said.contains("not counted: 150 events that have no number bytes\n"),
        "{said}"
    );
    assert!(
        said.contains("of fields with a number, kfree has call_site, ptr\n"),
        "{said}"
    );
    for (arguments, want) in [
        (
            &["report", "--weight", "bytes_alloc", "before.data"][..],
            "before.data: it has no binary records",
        ),
        (
            &["folded", "--weight", "bytes_alloc", "stack_map_bin"],
            "stack_map_bin: it has no binary records",
        ),
        (
            &[
                "export",
                "--format",
                "json",
                "--weight",
                "ret",
                "mixed.data",
            ],
            "--format json has all fields of each event",
        ),
        (
            &["flame", "--map", "--weight", "ret", "-o", "-", "mixed.data"],
            "cannot be used with",
        ),
        (
            &[
                "flame",
                "--event",
                "sys_exit_close",
                "--weight",
                "ret",
                "-o",
                "-",
                "mixed.data",
            ],
            "all stacks count 0: there is nothing to draw",
        ),
    ] {
        let output = run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr(&output).contains(want), "{}", stderr(&output));
    }
}
