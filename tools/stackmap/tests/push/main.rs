// SPDX-License-Identifier: MIT OR Apache-2.0

//! `stackmap push` against a server of the test's own: it records what is sent, and is as strict as the
//! published interfaces of Pyroscope and Parca. It is neither of them.

#[path = "../common/mod.rs"]
mod common;
mod delivery;
mod kept;
mod server;

use base64::{engine::general_purpose::STANDARD, Engine};
use common::stderr;
use flate2::read::GzDecoder;
use prost::Message;
use serde_json::Value;
use server::{parca, pyroscope, Request, Server};
use stackmap::{export::proto, push::WriteRawRequest};
use std::{
    collections::BTreeMap,
    io::Read,
    path::Path,
    process::{Command, Output},
};

/// The tool, where the captures are, with nothing in its environment that it reads.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stackmap"));
    command
        .arg("push")
        .args(arguments)
        .env_clear()
        .env("NO_COLOR", "1")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"));
    command
}

fn push(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Pushes, which is to succeed.
fn pushed(arguments: &[&str]) -> String {
    let output = push(arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

/// A profile that a server got.
struct Got {
    id: String,
    labels: BTreeMap<String, String>,
    pprof: Vec<u8>,
}

impl Got {
    /// What a request to Pyroscope has.
    fn by_pyroscope(request: &Request) -> Self {
        assert_eq!(request.line, "POST /push.v1.PusherService/Push HTTP/1.1");
        assert_eq!(request.header("content-type"), "application/json");
        assert_eq!(request.header("connect-protocol-version"), "1");
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let keys = |value: &Value| {
            let object = value.as_object().unwrap();
            object.keys().cloned().collect::<Vec<_>>().join(" ")
        };
        let one = |value: &Value| {
            let list = value.as_array().unwrap();
            assert_eq!(list.len(), 1);
            list[0].clone()
        };
        assert_eq!(keys(&body), "series");
        let series = one(&body["series"]);
        assert_eq!(keys(&series), "labels samples");
        let sample = one(&series["samples"]);
        assert_eq!(keys(&sample), "ID rawProfile");
        let pairs = series["labels"].as_array().unwrap().iter().map(|label| {
            assert_eq!(keys(label), "name value");
            let text = |key: &str| label[key].as_str().unwrap().to_owned();
            (text("name"), text("value"))
        });
        let got = Self {
            id: sample["ID"].as_str().unwrap().to_owned(),
            labels: unique(pairs),
            pprof: STANDARD
                .decode(sample["rawProfile"].as_str().unwrap())
                .unwrap(),
        };
        assert!(!got.labels["service_name"].is_empty());
        got.profile();
        got
    }

    /// What a request to Parca has.
    fn by_parca(request: &Request) -> Self {
        let service = "/parca.profilestore.v1alpha1.ProfileStoreService";
        assert_eq!(request.line, format!("POST {service}/WriteRaw HTTP/1.1"));
        assert_eq!(request.header("content-type"), "application/grpc-web+proto");
        assert_eq!(request.header("x-grpc-web"), "1");
        let (head, message) = request.body.split_at(5);
        let len = u32::try_from(message.len()).unwrap().to_be_bytes();
        assert_eq!(head, [&[0][..], &len].concat());
        let write = WriteRawRequest::decode(message).unwrap();
        assert_eq!(write.encode_to_vec(), message);
        let [series] = &write.series[..] else {
            panic!("{} series", write.series.len());
        };
        let labels = series.labels.clone().unwrap().labels.into_iter();
        let got = Self {
            id: String::new(),
            labels: unique(labels.map(|label| (label.name, label.value))),
            pprof: series.samples[0].raw_profile.clone(),
        };
        assert_eq!(series.samples.len(), 1);
        got.profile();
        got
    }

    /// The profile, which is as both servers want it.
    fn profile(&self) -> proto::Profile {
        for name in self.labels.keys() {
            let mut chars = name.chars();
            let begin = chars.next().unwrap();
            assert!(begin == '_' || begin.is_ascii_alphabetic(), "{name}");
            assert!(
                chars.all(|c| c == '_' || c.is_ascii_alphanumeric()),
                "{name}"
            );
            assert!(name == "__name__" || !name.starts_with("__"), "{name}");
        }
        assert_eq!(self.labels["__name__"], "stackmap");
        let mut bytes = Vec::new();
        GzDecoder::new(&self.pprof[..])
            .read_to_end(&mut bytes)
            .unwrap();
        let profile = proto::Profile::decode(&bytes[..]).unwrap();
        let has = |number: i64| usize::try_from(number).unwrap() < profile.string_table.len();
        assert_eq!(profile.string_table[0], "");
        assert!(profile.time_nanos > 0 && profile.duration_nanos > 0);
        for (of, id) in (1..).zip(&profile.location) {
            // Places in programs' files, and none in the kernel.
            assert!(id.id == of && id.address < 1 << 47);
        }
        for (of, function) in (1..).zip(&profile.function) {
            assert!(function.id == of && has(function.name));
        }
        for (of, mapping) in (1..).zip(&profile.mapping) {
            assert!(mapping.id == of && has(mapping.filename) && has(mapping.build_id));
        }
        for kind in &profile.sample_type {
            assert!(!profile.string_table[usize::try_from(kind.r#type).unwrap()].contains('-'));
        }
        for sample in &profile.sample {
            assert_eq!(sample.value.len(), profile.sample_type.len());
            let last = profile.location.len() as u64;
            assert!(sample.location_id.iter().all(|id| (1..=last).contains(id)));
            assert!(sample
                .label
                .iter()
                .all(|label| label.key > 0 && has(label.str)));
        }
        profile
    }

    /// How many events it has.
    fn events(&self) -> i64 {
        self.profile()
            .sample
            .iter()
            .map(|sample| sample.value[0])
            .sum()
    }
}

/// Labels, of which no two have one name.
fn unique(pairs: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (name, value) in pairs {
        assert!(!value.is_empty() && labels.insert(name, value).is_none());
    }
    labels
}

fn export(arguments: &[&str]) -> Vec<u8> {
    let output = common::run(&[&["export", "--format", "pprof"], arguments].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    output.stdout
}

#[test]
fn servers_get_the_profile_that_is_exported() {
    let server = Server::new(&[], &pyroscope());
    let labels = [
        "--label",
        "zone=b",
        "--label",
        "a.b=c",
        "--label",
        "service=shop",
    ];
    let said = pushed(&[&labels[..], &[&server.url(), "questions.data"]].concat());
    assert!(
        said.ends_with(&format!("{}: 1 profile sent\n", server.url())),
        "{said}"
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].header("user-agent").starts_with("stackmap/"));
    assert_eq!(requests[0].header("host"), &server.url()["http://".len()..]);
    let got = Got::by_pyroscope(&requests[0]);
    assert!(got.pprof == export(&["questions.data"]));
    let want = [
        ("__name__", "stackmap"),
        ("a_b", "c"),
        ("machine", "x86_64"),
        ("release", "7.3.4+deb13-amd64"),
        ("service", "shop"),
        ("service_name", "shop"),
        ("zone", "b"),
    ];
    let want = want.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(got.labels, BTreeMap::from(want));

    // The same profile has the same id, with the same labels only.
    pushed(&[&labels[..], &[&server.url(), "questions.data"]].concat());
    pushed(&[&server.url(), "questions.data"]);
    let ids: Vec<_> = server
        .requests()
        .iter()
        .map(|it| Got::by_pyroscope(it).id)
        .collect();
    assert!(ids[0] == ids[1] && ids[0] != ids[2], "{ids:?}");
    let parts: Vec<_> = ids[0].split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12]);
    assert!(&ids[0][14..15] == "8" && "89ab".contains(&ids[0][19..20]));

    let server = Server::new(&[], &parca(0, ""));
    let url = format!("{}/", server.url());
    pushed(&[&["--to", "parca"], &labels[..], &[&url, "questions.data"]].concat());
    let of_parca = Got::by_parca(&server.requests()[0]);
    assert!(of_parca.pprof == got.pprof && of_parca.labels == got.labels);
}

#[test]
fn each_capture_of_a_merge_is_a_profile() {
    let dir = tempfile::tempdir().unwrap();
    let all = dir.path().join("all.data");
    let all = all.to_str().unwrap();
    let merge = ["merge", "-o", all, "questions.data", "user.data"];
    common::stdout(&merge);
    let server = Server::new(&[], &pyroscope());
    pushed(&[&server.url(), all]);
    let got: Vec<_> = server.requests().iter().map(Got::by_pyroscope).collect();
    assert_eq!(got.len(), 2);
    for (got, name) in got.iter().zip(["questions.data", "user.data"]) {
        let alone = Server::new(&[], &pyroscope());
        pushed(&[&alone.url(), name]);
        let alone = Got::by_pyroscope(&alone.requests()[0]);
        assert_eq!(got.labels, alone.labels);
        assert_eq!(got.events(), alone.events());
        let (one, other) = (got.profile(), alone.profile());
        assert_eq!(one.time_nanos, other.time_nanos);
        assert_eq!(one.duration_nanos, other.duration_nanos);
        assert_eq!(one.sample.len(), other.sample.len());
    }
    assert_ne!(got[0].profile().time_nanos, got[1].profile().time_nanos);
}

#[test]
fn filters_and_weights_are_those_of_the_export() {
    let server = Server::new(&[], &pyroscope());
    let arguments = ["questions.data", "--comm", "k*", "--kernel"];
    pushed(&[&[&server.url()[..]], &arguments[..]].concat());
    let got = Got::by_pyroscope(&server.requests()[0]);
    assert!(got.pprof == export(&arguments) && got.events() > 0);
    for more in [&["--weight", "bytes_alloc"][..], &["--addresses"]] {
        let arguments = [&arguments[..], more].concat();
        pushed(&[&[&server.url()[..]], &arguments[..]].concat());
        let last: Value = serde_json::from_slice(&server.requests().pop().unwrap().body).unwrap();
        let raw = &last["series"][0]["samples"][0]["rawProfile"];
        assert!(raw == &STANDARD.encode(export(&arguments)), "{more:?}");
    }
    // Nothing is sent of what has no events.
    let nr = server.requests().len();
    let said = pushed(&[&server.url(), "questions.data", "--comm", "nobody"]);
    assert!(
        said.contains("0 profiles sent") && server.requests().len() == nr,
        "{said}"
    );

    // Hostile names get there as they are, and say nothing to the terminal.
    let said = pushed(&[&server.url(), "attack.data"]);
    assert!(!said.contains('\x1b'), "{said:?}");
    assert!(Got::by_pyroscope(&server.requests().pop().unwrap()).events() > 0);
}

#[test]
fn only_captures_are_sent() {
    let server = Server::new(&[], &pyroscope());
    for (arguments, says) in [
        (&["no.data"][..], "no.data"),
        (&["--live", "--tracefs", "/nowhere"], "tracefs"),
        (&["--label", "A=b", "user.data"], "the name of a label"),
        (&["--flush"], "--queue"),
        (&["--queue-size", "1", "user.data"], "--queue"),
        (
            &["--flush", "--queue", "/nowhere"],
            "use /nowhere as a queue",
        ),
    ] {
        let output = push(&[&[&server.url()[..]], arguments].concat());
        assert!(!output.status.success());
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    for url in [
        "localhost:4040",
        "ftp://localhost",
        "http://ann:secret@localhost",
        "http://localhost:99999",
        "http://localhost/#a",
    ] {
        let output = push(&[url, "user.data"]);
        let said = stderr(&output);
        assert!(said.contains("the address of the server"), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
    assert!(server.requests().is_empty());
}
