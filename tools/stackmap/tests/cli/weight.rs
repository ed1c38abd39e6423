// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sums of fields, by every command that has `--weight`, compared with what an export of all events has in
//! these fields. `data/golden/weight.txt` has reports, and what is refused.

use super::tool::{counts, events, json, run, stdout, unpacked};
use prost::Message;
use serde_json::Value;
use stackmap::export::proto::Profile;
use std::collections::BTreeMap;

/// How many events there are that say a number which is not negative, and what they say in all, by event.
fn sums(field: &str) -> BTreeMap<String, (u64, u64)> {
    let mut sums = BTreeMap::<String, (u64, u64)>::new();
    for event in events(&json("mixed.data")) {
        if let Some(number) = event["values"][field].as_u64() {
            let name = event["event"].as_str().unwrap().to_owned();
            let sum = sums.entry(name).or_default();
            *sum = (sum.0 + 1, sum.1 + number);
        }
    }
    sums
}

fn total(sums: &BTreeMap<String, (u64, u64)>) -> (u64, u64) {
    let add = |(nr, sum), (one, number): &(u64, u64)| (nr + one, sum + number);
    sums.values().fold((0, 0), add)
}

#[test]
fn reports_add_up_what_a_field_says() {
    let sums = sums("bytes_alloc");
    let (nr, sum) = total(&sums);
    assert!(sums.len() == 2 && nr > 500 && sum > 10 * nr);
    let report = stdout("report --weight bytes_alloc --top 0 mixed.data");
    let head = report.lines().nth(2).unwrap();
    assert!(head.starts_with(&format!("{nr} events, ")), "{head}");
    assert!(head.contains(&format!(", {sum} bytes_alloc")), "{head}");
    for (event, (nr, part)) in &sums {
        let share = *part as f64 * 100.0 / sum as f64;
        let row = format!("{event} {nr} {part} {share:.1} % ");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut lines = report.lines().map(words);
        assert!(lines.any(|line| line.starts_with(&row)), "{row}: {report}");
        let title = format!("\n{event}: {nr} events, {part} bytes_alloc\n");
        assert!(report.contains(&title), "{title}");
    }
    // What weighs most comes first, although something else is more frequent.
    let heaviest = stdout("report --weight bytes_alloc --by stack --top 2 mixed.data");
    assert!(heaviest.contains("\n#2: kmem_cache_alloc 2\n"));
}

#[test]
fn negative_numbers_are_left_out() {
    let filter = "--event sys_exit_* --weight ret mixed.data";
    let (nr, sum) = total(&sums("ret"));
    assert!(nr > 100 && sum > 1000);
    let report = stdout(format!("report --top 0 {filter}"));
    assert!(report.contains(&format!(", {sum} ret")), "{report}");
    let folded = stdout(format!("folded {filter}"));
    assert_eq!(counts(&folded).sum::<u64>(), sum);
    let all = json("mixed.data");
    let rets = events(&all)
        .iter()
        .filter_map(|event| event["values"]["ret"].as_i64());
    let negative = rets.filter(|ret| *ret < 0).count();
    let note = format!("note: not counted: {negative} events that have a negative ret");
    assert!(report.contains(&note), "{note}: {report}");
}

#[test]
fn exports_have_both_numbers() {
    let (nr, sum) = total(&sums("bytes_alloc"));
    let profile = run("export --format pprof --weight bytes_alloc mixed.data").well();
    let profile = Profile::decode(&unpacked(&profile.stdout)[..]).unwrap();
    let name = |number: i64| &profile.string_table[usize::try_from(number).unwrap()];
    let types = profile.sample_type.iter().map(|of| name(of.r#type));
    assert_eq!(types.collect::<Vec<_>>(), ["events", "bytes_alloc"]);
    assert_eq!(name(profile.default_sample_type), "bytes_alloc");
    let sum_of = |index: usize| {
        let values = profile.sample.iter().map(|sample| sample.value[index]);
        values.sum::<i64>() as u64
    };
    assert_eq!((sum_of(0), sum_of(1)), (nr, sum));

    let firefox = stdout("export --format firefox --weight bytes_alloc mixed.data");
    let firefox: Value = serde_json::from_str(&firefox).unwrap();
    let threads = firefox["threads"].as_array().unwrap().iter();
    let weights = threads.flat_map(|thread| thread["samples"]["weight"].as_array().unwrap());
    let weights: Vec<_> = weights.map(|weight| weight.as_u64().unwrap()).collect();
    assert_eq!((weights.len() as u64, weights.iter().sum()), (nr, sum));
    // Of addresses of the kernel, there is nothing to add up.
    let said = run("export --format pprof --weight call_site -o - questions.data").stderr;
    let why = "events that have an address of the kernel as call_site";
    assert!(said.contains(why), "{said}");
}

#[test]
fn graphs_say_what_they_count() {
    let (_, sum) = total(&sums("bytes_alloc"));
    let svg = stdout("flame -o - --weight bytes_alloc mixed.data");
    assert!(svg.contains(&format!("events, {sum} bytes_alloc in ")));
    assert!(svg.contains(" bytes_alloc, 100%)"), "{svg}");
}
