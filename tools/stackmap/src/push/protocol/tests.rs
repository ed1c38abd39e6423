// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::push::About;
use std::collections::BTreeMap;

fn profile() -> Profile {
    Profile {
        about: About {
            url: "http://a".to_owned(),
            api: Api::Parca,
            labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        },
        pprof: b"pprof".to_vec(),
    }
}

#[test]
fn requests_are_what_is_published() {
    // By hand, from profilestore.proto: series 2, labels 1, label 1, name 1, value 2, samples 2, raw_profile 1.
    let message = b"\x12\x13\x0a\x08\x0a\x06\x0a\x01a\x12\x01b\x12\x07\x0a\x05pprof";
    let want = [&[0, 0, 0, 0, message.len() as u8][..], message].concat();
    assert_eq!(Api::Parca.request(&profile()), want);
    let id = id(&profile());
    let json = format!(
        r#"{{"series":[{{"labels":[{{"name":"a","value":"b"}}],"samples":[{{"ID":"{id}","rawProfile":"cHByb2Y="}}]}}]}}"#
    );
    assert_eq!(
        String::from_utf8(Api::Pyroscope.request(&profile())).unwrap(),
        json
    );
}

#[test]
fn ids_tell_profiles_and_labels_apart() {
    let mut other = profile();
    other.about.url.clear();
    assert_eq!(id(&profile()), id(&other));
    other.about.labels.insert("a".to_owned(), "c".to_owned());
    assert_ne!(id(&profile()), id(&other));
    let mut other = profile();
    other.pprof.push(0);
    assert_ne!(id(&profile()), id(&other));
}

#[test]
fn frames_may_be_anything() {
    let none = HeaderMap::new();
    let trailers = |text: &str| {
        let len = (text.len() as u32).to_be_bytes();
        [&[TRAILERS][..], &len, text.as_bytes()].concat()
    };
    let message = [0, 0, 0, 0, 2, 8, 1];
    for (body, want) in [
        (trailers("grpc-status:0\r\n"), Some((0, ""))),
        (
            trailers("Grpc-Status: 7\r\ngrpc-message: a: b\r\n"),
            Some((7, "a: b")),
        ),
        (
            [&message[..], &trailers("grpc-status: 0")].concat(),
            Some((0, "")),
        ),
        ([&message[..6], &trailers("grpc-status: 0")].concat(), None),
        (message.to_vec(), None),
        (vec![], None),
        (vec![TRAILERS, 0xff, 0xff, 0xff, 0xff], None),
        (trailers("grpc-status"), None),
        (trailers("grpc-status: -1"), None),
        (trailers("\u{0}: \u{0}\r\n"), None),
    ] {
        let got = grpc_status(&none, &body);
        let got = got.as_ref().map(|(code, text)| (*code, &text[..]));
        assert_eq!(got, want, "{body:?}");
    }
}

#[test]
fn what_servers_say_is_bounded() {
    assert_eq!(said(b" \n"), "it says nothing");
    assert_eq!(said(b"a\n  b\xff"), "a b\u{fffd}");
    assert_eq!(said(br#"{"message":"m","code":1}"#), "m");
    assert_eq!(said(br#"{"message":1}"#), "{\"message\":1}");
    assert_eq!(
        said("\u{20ac}".repeat(999).as_bytes()).chars().count(),
        MAX_SAID
    );
}
