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

fn said_to_all(body: &[u8]) -> String {
    said(body, &Headers::default())
}

#[test]
fn each_status_has_one_meaning() {
    use Kind::{Profile, Server, Unknown};
    let none = (HeaderMap::new(), Headers::default());
    for (status, kind, retry) in [
        (301, Server, false),
        (302, Server, false),
        (307, Server, false),
        (400, Profile, false),
        (401, Server, false),
        (403, Server, false),
        (404, Server, false),
        (405, Server, false),
        (407, Server, false),
        (408, Server, true),
        (413, Profile, false),
        (422, Profile, false),
        (425, Server, true),
        (429, Server, true),
        (500, Unknown, true),
        (501, Server, false),
        (502, Server, true),
        (503, Server, true),
        (504, Server, true),
        (507, Unknown, true),
    ] {
        let code = StatusCode::from_u16(status).unwrap();
        let got = of_http(code, &none.0, b"", &none.1);
        assert_eq!((got.kind, got.retry), (kind, retry), "{status}");
    }
    for (status, kind, retry) in [
        (2, Unknown, true),
        (3, Profile, false),
        (5, Server, false),
        (7, Server, false),
        (8, Unknown, true),
        (9, Profile, false),
        (11, Profile, false),
        (12, Server, false),
        (13, Unknown, true),
        (14, Server, true),
        (16, Server, false),
    ] {
        let got = of_grpc(status, "", &none.1);
        assert_eq!((got.kind, got.retry), (kind, retry), "{status}");
    }
}

#[test]
fn only_what_confirms_a_profile_does() {
    let json = "application/json";
    for (kind, body, good) in [
        (json, "{}", true),
        ("Application/JSON; charset=utf-8", "{\"more\": 1}", true),
        (json, "{\"code\": \"internal\"}", false),
        (json, "{\"error\": \"please log in\"}", false),
        (json, "[]", false),
        (json, "", false),
        ("application/jsonp", "{}", false),
        ("text/plain", "{}", false),
    ] {
        let headers = [("content-type", kind)].map(|(name, value)| {
            let name: ureq::http::HeaderName = name.parse().unwrap();
            (name, value.parse().unwrap())
        });
        let headers = HeaderMap::from_iter(headers);
        let secrets = Headers::default();
        let judged = Api::Pyroscope.judge(StatusCode::OK, &headers, body.as_bytes(), &secrets);
        assert_eq!(judged.is_ok(), good, "{kind}: {body}");
    }
}

#[test]
fn what_servers_say_is_bounded() {
    assert_eq!(said_to_all(b" \n"), "it says nothing");
    assert_eq!(said_to_all(b"a\n  b\xff"), "a b\u{fffd}");
    assert_eq!(said_to_all(br#"{"message":"m","code":1}"#), "m");
    assert_eq!(said_to_all(br#"{"message":1}"#), "{\"message\":1}");
    assert_eq!(
        said_to_all("\u{20ac}".repeat(999).as_bytes())
            .chars()
            .count(),
        MAX_SAID
    );
}
