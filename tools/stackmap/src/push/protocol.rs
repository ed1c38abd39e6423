// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is sent to each server, and what its answers mean.
//!
//! Pyroscope: its push API, by Connect in JSON, which is public and stable
//! (<https://grafana.com/docs/pyroscope/latest/reference-server-api/>). Parca: `WriteRaw` of its
//! `ProfileStoreService`, by gRPC-Web, which is what its own page in the browser speaks over HTTP/1.1.

use super::{Failure, Headers, Kind, Profile};
use base64::{engine::general_purpose::STANDARD, Engine};
use blake2::{digest::consts::U16, Blake2b, Digest};
use clap::ValueEnum;
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::collections::HashMap;
use ureq::http::{HeaderMap, StatusCode};

/// The most characters of what a server says.
const MAX_SAID: usize = 300;
/// The flag of a frame that has trailers.
const TRAILERS: u8 = 0x80;

/// The interface of a server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// Grafana Pyroscope, also behind Grafana Alloy
    Pyroscope,
    /// Parca
    Parca,
}

/// Of Parca's messages, the fields that are sent.
#[derive(Clone, PartialEq, Message)]
pub struct WriteRawRequest {
    /// Profiles.
    #[prost(message, repeated, tag = "2")]
    pub series: Vec<RawProfileSeries>,
}

/// A profile with its labels.
#[derive(Clone, PartialEq, Message)]
pub struct RawProfileSeries {
    /// Its labels.
    #[prost(message, optional, tag = "1")]
    pub labels: Option<LabelSet>,
    /// The profile.
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<RawSample>,
}

/// Labels.
#[derive(Clone, PartialEq, Message)]
pub struct LabelSet {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub labels: Vec<Label>,
}

/// A label.
#[derive(Clone, PartialEq, Message)]
pub struct Label {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A packed pprof profile.
#[derive(Clone, PartialEq, Message)]
pub struct RawSample {
    /// Its bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub raw_profile: Vec<u8>,
}

impl Api {
    /// Where below the address of the server profiles are sent to.
    pub(super) fn path(self) -> &'static str {
        match self {
            Api::Pyroscope => "/push.v1.PusherService/Push",
            Api::Parca => "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
        }
    }

    /// The content type of requests, which is that of answers, too.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Api::Pyroscope => "application/json",
            Api::Parca => "application/grpc-web+proto",
        }
    }

    /// The other headers that a request has.
    pub(super) fn header(self) -> (&'static str, &'static str) {
        match self {
            Api::Pyroscope => ("connect-protocol-version", "1"),
            Api::Parca => ("x-grpc-web", "1"),
        }
    }

    /// The body of a request.
    pub(super) fn request(self, profile: &Profile) -> Vec<u8> {
        let labels = profile.about.labels.iter();
        match self {
            Api::Pyroscope => {
                let pair = |(name, value)| json!({"name": name, "value": value});
                let labels: Vec<Value> = labels.map(pair).collect();
                let raw = STANDARD.encode(&profile.pprof);
                let sample = json!({"ID": id(profile), "rawProfile": raw});
                let series = json!({"labels": labels, "samples": [sample]});
                json!({"series": [series]}).to_string().into_bytes()
            }
            Api::Parca => {
                let label = |(name, value): (&String, &String)| Label {
                    name: name.clone(),
                    value: value.clone(),
                };
                let series = RawProfileSeries {
                    labels: Some(LabelSet {
                        labels: labels.map(label).collect(),
                    }),
                    samples: vec![RawSample {
                        raw_profile: profile.pprof.clone(),
                    }],
                };
                let message = WriteRawRequest {
                    series: vec![series],
                };
                let message = message.encode_to_vec();
                // A frame: no flags, the length, the message. A file in the queue is never that long.
                let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
                [&[0][..], &len.to_be_bytes(), &message].concat()
            }
        }
    }

    /// Whether an answer confirms the profile.
    pub(super) fn judge(
        self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        secrets: &Headers,
    ) -> Result<(), Failure> {
        if !status.is_success() {
            return Err(of_http(status, headers, body, secrets));
        }
        let confirmed = match self {
            Api::Pyroscope => {
                let answer: Option<Value> = serde_json::from_slice(body).ok();
                let answer = answer.as_ref().and_then(Value::as_object);
                // Errors have these.
                let is_good = answer.is_some_and(|it| {
                    !["code", "error", "message"]
                        .iter()
                        .any(|key| it.contains_key(*key))
                });
                is_good && is_of_type(headers, &["application/json"])
            }
            Api::Parca => {
                let grpc = is_of_type(
                    headers,
                    &["application/grpc-web", "application/grpc-web+proto"],
                );
                match grpc.then(|| grpc_status(headers, body)).flatten() {
                    Some((0, _)) => true,
                    Some((code, message)) => return Err(of_grpc(code, &message, secrets)),
                    None => false,
                }
            }
        };
        match confirmed {
            true => Ok(()),
            false => Err(Failure::new(
                Kind::Server,
                false,
                format!(
                    "the answer is not that of {}: {}\n  hint: the address of the server, and --to",
                    self.name(),
                    said(body, secrets)
                ),
            )),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Api::Pyroscope => "Pyroscope",
            Api::Parca => "Parca",
        }
    }
}

/// The id of a profile: the same for the same profile with the same labels, as a UUID of version 8.
pub(super) fn id(profile: &Profile) -> String {
    let mut hash = Blake2b::<U16>::new();
    for (name, value) in &profile.about.labels {
        hash.update(format!("{name:?}={value:?}\n"));
    }
    hash.update(&profile.pprof);
    let mut id = u128::from_be_bytes(hash.finalize().into());
    id = id & !(0xf << 76) | 0x8 << 76;
    id = id & !(0x3 << 62) | 0x2 << 62;
    let digits = format!("{id:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

/// Whether an answer is of one of these media types, whatever their parameters.
fn is_of_type(headers: &HeaderMap, kinds: &[&str]) -> bool {
    let value = headers.get("content-type");
    let value = value.and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next());
    kind.is_some_and(|kind| kinds.iter().any(|it| kind.trim().eq_ignore_ascii_case(it)))
}

/// The status of gRPC in an answer, and what is said of it: in the headers if there is nothing else, or in
/// the trailers, which are the last frame.
fn grpc_status(headers: &HeaderMap, mut body: &[u8]) -> Option<(u32, String)> {
    let mut lines = HashMap::new();
    for name in ["grpc-status", "grpc-message"] {
        if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) {
            lines.insert(name.to_owned(), value.to_owned());
        }
    }
    while let Some((head, rest)) = body.split_first_chunk::<5>() {
        let [flags, len @ ..] = *head;
        let len = usize::try_from(u32::from_be_bytes(len)).ok()?;
        let (frame, rest) = rest.split_at_checked(len)?;
        if flags & TRAILERS != 0 {
            for line in str::from_utf8(frame).ok()?.lines() {
                let (name, value) = line.split_once(':')?;
                lines.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
        }
        body = rest;
    }
    let code = lines.get("grpc-status")?.parse().ok()?;
    let message = lines.remove("grpc-message").unwrap_or_default();
    Some((code, message))
}

/// A failure by its status of gRPC.
fn of_grpc(code: u32, message: &str, secrets: &Headers) -> Failure {
    let (kind, retry) = match code {
        // INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE
        3 | 9 | 11 => (Kind::Profile, false),
        // NOT_FOUND, PERMISSION_DENIED, UNIMPLEMENTED, UNAUTHENTICATED
        5 | 7 | 12 | 16 => (Kind::Server, false),
        // UNAVAILABLE
        14 => (Kind::Server, true),
        // RESOURCE_EXHAUSTED is also a profile that is too large.
        _ => (Kind::Unknown, true),
    };
    let text = format!(
        "status {code} of gRPC: {}",
        said(message.as_bytes(), secrets)
    );
    Failure::new(kind, retry, text)
}

/// A failure by its status of HTTP.
fn of_http(status: StatusCode, headers: &HeaderMap, body: &[u8], secrets: &Headers) -> Failure {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (kind, retry, hint) = match status.as_u16() {
        408 | 425 | 429 | 502..=504 => (Kind::Server, true, ""),
        300..=399 => (Kind::Server, false, "give the address that leads there"),
        401 | 403 | 407 => (Kind::Server, false, "--header-file or STACKMAP_PUSH_TOKEN"),
        404 | 405 | 501 => (Kind::Server, false, "the address of the server, and --to"),
        413 => (Kind::Profile, false, "record for a shorter time"),
        400..=499 => (Kind::Profile, false, ""),
        _ => (Kind::Unknown, true, ""),
    };
    let place = text("location").filter(|_| status.is_redirection());
    let place = place.and_then(|place| place.split(['?', '#']).next());
    let said = match (status.as_u16(), place) {
        // Such an answer may be about what was sent to get in.
        (401 | 403 | 407, _) => String::new(),
        (_, Some(place)) => format!(": {}", said(format!("to {place}").as_bytes(), secrets)),
        (_, None) => format!(": {}", said(body, secrets)),
    };
    let hint = match hint {
        "" => String::new(),
        hint => format!("\n  hint: {hint}"),
    };
    Failure {
        after: text("retry-after").and_then(|text| text.trim().parse().ok()),
        ..Failure::new(kind, retry, format!("{status}{said}{hint}"))
    }
}

/// The beginning of what a server says, in one line, without secrets.
fn said(body: &[u8], secrets: &Headers) -> String {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let message = json.as_ref().and_then(|json| json["message"].as_str());
    let text = secrets.hidden_in(&String::from_utf8_lossy(body));
    let message = message.map(|message| secrets.hidden_in(message));
    let words: Vec<&str> = message
        .as_ref()
        .unwrap_or(&text)
        .split_whitespace()
        .collect();
    let text: String = words.join(" ").chars().take(MAX_SAID).collect();
    match text.is_empty() {
        true => "it says nothing".to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests;
