// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is sent again, and what not; what lets requests in; and encryption.

use super::{
    command, push, pushed,
    server::{answer, parca, pyroscope, Answer, Server},
    stderr, Got,
};
use rustls::{
    crypto::ring,
    pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer},
    ServerConfig, ServerConnection,
};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Output,
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        Arc,
    },
    time::{Duration, Instant},
};

const CAPTURE: &str = "before.data";

fn say(status: &str, more: &str, body: &str) -> Answer {
    Answer::Say(answer(status, "text/plain", more, body.as_bytes()))
}

/// Pushes to a server that says this first, and all is well later. How often it was asked, and how it ended.
fn after(first: &Answer, last: &[u8], arguments: &[&str]) -> (usize, Output, Duration) {
    let server = Server::new(std::slice::from_ref(first), last);
    let url = server.url();
    let began = Instant::now();
    let output = push(&[arguments, &[&url, CAPTURE]].concat());
    let took = began.elapsed();
    let requests = server.requests();
    for request in &requests {
        assert_eq!(request.body, requests[0].body);
    }
    (requests.len(), output, took)
}

#[test]
fn what_may_go_well_soon_is_sent_again() {
    for first in [
        say("500 Internal Server Error", "", "x"),
        say("502 Bad Gateway", "", "x"),
        say("503 Service Unavailable", "", "x"),
        say("408 Request Timeout", "", ""),
        say("429 Too Many Requests", "Retry-After: never\r\n", ""),
        Answer::Close,
        Answer::Say(b"\x01\x02 no HTTP\r\n\r\n".to_vec()),
        Answer::Say(pyroscope()[..40].to_vec()),
    ] {
        let (nr, output, _) = after(&first, &pyroscope(), &[]);
        assert!(
            nr == 2 && output.status.success(),
            "{first:?}: {}",
            stderr(&output)
        );
    }
    for status in [2, 8, 13, 14] {
        let first = Answer::Say(parca(status, "later"));
        let (nr, output, _) = after(&first, &parca(0, ""), &["--to", "parca"]);
        assert!(
            nr == 2 && output.status.success(),
            "{status}: {}",
            stderr(&output)
        );
    }
    let busy = say("503 Service Unavailable", "", "x");
    let (nr, _, took) = after(&busy, &pyroscope(), &[]);
    assert!(nr == 2 && took >= Duration::from_millis(250), "{took:?}");
    let (nr, output, _) = after(&busy, &pyroscope(), &["--retries", "0"]);
    assert!(nr == 1 && !output.status.success());
}

#[test]
fn what_will_not_go_well_is_not() {
    for (first, says) in [
        (
            say(
                "400 Bad Request",
                "",
                "{\"code\":\"x\",\"message\":\"bad  \\u001b[m\\nlabels\"}",
            ),
            "bad \u{fffd}[m labels",
        ),
        (
            say("413 Payload Too Large", "", ""),
            "record for a shorter time",
        ),
        (say("422 Unprocessable", "", "x"), "refuses a profile: 422"),
        (
            say("422 Unprocessable", "", &"x".repeat(100 << 10)),
            "422 Unprocessable Entity: ",
        ),
        (say("401 Unauthorized", "", "x"), "--header-file"),
        (say("404 Not Found", "", "x"), "--to"),
        (
            say("302 Found", "Location: http://127.0.0.1:1/x\r\n", ""),
            "to http://127.0.0.1:1/x",
        ),
        (
            say("200 OK", "", "<html>"),
            "the answer is not that of Pyroscope",
        ),
        (
            Answer::Say(answer("200 OK", "application/json", "", b"[]")),
            "not that of Pyroscope",
        ),
        (Answer::Say(parca(0, "")), "not that of Pyroscope"),
    ] {
        let (nr, output, _) = after(&first, &pyroscope(), &[]);
        let said = stderr(&output);
        assert!(
            nr == 1 && output.status.code() == Some(1),
            "{first:?}: {said}"
        );
        assert!(said.contains(says), "{first:?}: {said}");
        assert!(said.contains("1 profile not delivered"), "{said}");
        assert!(said.len() < 1000 && !said.contains('\x1b'), "{said}");
    }
    let no_status = answer(
        "200 OK",
        "application/grpc-web+proto",
        "",
        &[0, 0, 0, 0, 9, 1],
    );
    for (first, says) in [
        (parca(3, "invalid label"), "status 3 of gRPC: invalid label"),
        (parca(16, ""), "status 16 of gRPC"),
        (no_status, "not that of Parca"),
        (pyroscope(), "not that of Parca"),
        (
            answer("200 OK", "application/grpc-web", "grpc-status: 12\r\n", b""),
            "status 12 of gRPC",
        ),
    ] {
        let (nr, output, _) = after(&Answer::Say(first), &parca(0, ""), &["--to", "parca"]);
        let said = stderr(&output);
        assert!(nr == 1 && !output.status.success(), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn the_server_says_when_to_come_back() {
    let later = |time| {
        say(
            "429 Too Many Requests",
            &format!("Retry-After: {time}\r\n"),
            "",
        )
    };
    let (nr, output, took) = after(&later("2"), &pyroscope(), &[]);
    assert!(nr == 2 && output.status.success());
    assert!(took >= Duration::from_secs(2), "{took:?}");
    // That is longer than all may take.
    let (nr, output, took) = after(&later("3600"), &pyroscope(), &[]);
    assert!(nr == 1 && !output.status.success());
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn time_and_size_of_answers_are_bounded() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let whole: &str = Box::leak(format!("{head}Content-Length: 99999999\r\n\r\n").into_boxed_str());
    for (first, what) in [
        (
            Answer::Later(Duration::from_secs(20), pyroscope()),
            "timeout",
        ),
        (
            Answer::Endless(whole, Duration::from_millis(200)),
            "timeout",
        ),
        (Answer::Endless(whole, Duration::ZERO), "limit"),
        (
            Answer::Endless("HTTP/1.1 200 OK\r\nX: ", Duration::ZERO),
            "header",
        ),
    ] {
        let arguments = ["--timeout", "2", "--retries", "0"];
        let (nr, output, took) = after(&first, &pyroscope(), &arguments);
        let said = stderr(&output);
        assert!(nr == 1 && !output.status.success(), "{said}");
        assert!(said.contains(what), "{what}: {said}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let output = push(&[
        "--retries",
        "1",
        &format!("http://127.0.0.1:{port}"),
        CAPTURE,
    ]);
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("refused"),
        "{said}"
    );
}

#[test]
fn secrets_are_sent_and_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("headers");
    fs::write(
        &file,
        "X-Scope-OrgID: team-nine\nAuthorization: Basic c2VjcmV0\n",
    )
    .unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    // Also where what is shown of it is cut.
    let echo = format!(
        "no: Basic c2VjcmV0, t0ken-of-ann {} c2VjcmV0",
        "x".repeat(258)
    );
    let server = Server::new(
        &[
            say("400 Bad Request", "", &echo),
            say("401 Unauthorized", "", &echo),
        ],
        &pyroscope(),
    );
    let url = server.url();
    for shown in [
        "400 Bad Request: no: (secret), t0ken-of-ann xxx",
        "401 Unauthorized\n",
    ] {
        let output = push(&["--header-file", file, &url, CAPTURE]);
        let said = stderr(&output);
        assert!(said.contains(shown) && !said.contains("c2V"), "{said}");
    }
    let output = command(&[&url, CAPTURE])
        .env("STACKMAP_PUSH_TOKEN", "t0ken-of-ann")
        .output()
        .unwrap();
    assert!(output.status.success());
    let requests = server.requests();
    assert_eq!(requests[0].header("authorization"), "Basic c2VjcmV0");
    assert_eq!(requests[0].header("x-scope-orgid"), "team-nine");
    assert_eq!(requests[2].header("authorization"), "Bearer t0ken-of-ann");
    assert!(requests[2]
        .headers
        .iter()
        .all(|(name, _)| name != "x-scope-orgid"));

    // Whoever sends them in the open is told. There is no such server.
    let output = push(&[
        "--header-file",
        file,
        "--retries",
        "0",
        "--timeout",
        "1",
        "http://nowhere.invalid",
        CAPTURE,
    ]);
    let said = stderr(&output);
    assert!(said.contains("http: does not hide them"), "{said}");

    // Another server does not get them.
    let other = Server::new(&[], &pyroscope());
    let place = format!("Location: {}/\r\n", other.url());
    let server = Server::new(&[say("307 Temporary Redirect", &place, "")], &pyroscope());
    let output = push(&["--header-file", file, &server.url(), CAPTURE]);
    assert!(!output.status.success() && other.requests().is_empty());
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn only_servers_that_are_trusted_get_anything() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/push");
    let certificate = CertificateDer::from_pem_file(top.join("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(top.join("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let nr_connections = Arc::new(AtomicUsize::new(0));
    let nr_opened = Arc::clone(&nr_connections);
    let server = Server::over(&[], &pyroscope(), move |mut stream, serve| {
        nr_opened.fetch_add(1, Relaxed);
        let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        serve(&mut rustls::Stream::new(&mut connection, &mut stream))?;
        connection.send_close_notify();
        connection.complete_io(&mut stream).map(drop)
    });
    let trusted = top.join("ca.pem");
    let trusted = trusted.to_str().unwrap();
    for host in ["localhost", "127.0.0.1"] {
        pushed(&[
            "--ca-file",
            trusted,
            &format!("https://{host}:{}", server.port),
            CAPTURE,
        ]);
    }
    assert_eq!(server.requests().len(), 2);
    Got::by_pyroscope(&server.requests()[0]);

    let url = format!("https://localhost:{}", server.port);
    let other = top.join("server.pem");
    for (arguments, says) in [
        (
            &["--ca-file", other.to_str().unwrap(), &url][..],
            "certificate",
        ),
        (&["--ca-file", "no.pem", &url], "cannot read no.pem"),
        (
            &["--ca-file", "../push/server.key", &url],
            "it has no certificates",
        ),
    ] {
        let began = Instant::now();
        let output = push(&[arguments, &[CAPTURE]].concat());
        let said = stderr(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(says), "{said}");
        assert!(began.elapsed() < Duration::from_secs(10), "{said}");
    }
    // The one whose certificate is not trusted was tried once.
    assert_eq!(nr_connections.load(Relaxed), 3);
    assert_eq!(server.requests().len(), 2);
    // The certificates of the environment are trusted as well.
    let output = command(&[&url, CAPTURE])
        .env("SSL_CERT_FILE", trusted)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}
