// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests to a server: each has a bounded time, and is sent again only if that may help.

use super::{About, Api, Failure, Headers, Kind, Profile};
use crate::{
    error::{Error, Result},
    output::warn,
};
use rustls::crypto::ring;
use std::{
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io::ErrorKind,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use ureq::{
    http::Uri,
    tls::{parse_pem, Certificate, PemItem, RootCerts, TlsConfig},
    Agent,
};

/// The most bytes of an answer.
const MAX_ANSWER: u64 = 64 << 10;
/// The longest time of one attempt, to connect, and without what it takes to send this many bytes a second.
const PATIENCE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
const SLOWEST: usize = 50_000;
/// The time before the second attempt; before each one after it, twice that.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Where distributions have the certificates that programs trust.
const TRUSTED: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// A server.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its address.
    pub url: String,
    /// Its interface.
    pub api: Api,
}

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How often a request is sent again.
    pub retries: u32,
    /// How long all requests take together; what is between them does not count.
    pub timeout: Duration,
}

/// What sends requests.
pub struct Client {
    agent: Agent,
    place: Place,
    headers: Headers,
    retries: u32,
    /// The time that is left for requests.
    left: Duration,
}

impl Place {
    /// The server at an address.
    pub fn new(url: &str, api: Api) -> Result<Self> {
        let wrong = |what: &str| Error::Refused(format!("the address of the server {what}"));
        let uri: Uri = url
            .parse()
            .map_err(|_| wrong("is not a URL: http://HOST:4040"))?;
        let scheme = uri.scheme_str().unwrap_or_default();
        let (Some(authority), true, false) = (
            uri.authority(),
            ["http", "https"].contains(&scheme),
            url.contains(['?', '#']),
        ) else {
            return Err(wrong(
                "is not http://HOST or https://HOST, with a port or a path",
            ));
        };
        if authority.as_str().contains('@') {
            return Err(wrong(
                "has a password, which arguments show to everybody\n  hint: --header-file FILE",
            ));
        }
        if authority.as_str() != authority.host() && authority.port_u16().is_none() {
            return Err(wrong("has a port that is no port"));
        }
        // One server has one address: profiles wait under it.
        let host = authority.as_str().to_ascii_lowercase();
        let url = format!("{scheme}://{host}{}", uri.path().trim_end_matches('/'));
        Ok(Self { url, api })
    }

    fn is_encrypted(&self) -> bool {
        self.url.starts_with("https:")
    }

    /// Whether it is on this machine.
    fn is_here(&self) -> bool {
        let uri: Option<Uri> = self.url.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        host == "localhost" || ip.is_some_and(|ip| ip.is_loopback())
    }

    /// Whether what is sent there can be read on the way.
    fn is_open(&self) -> bool {
        !self.is_encrypted() && !self.is_here()
    }
}

impl Client {
    /// One for a server; `trusted` has the certificates that its own is signed with.
    pub fn new(
        place: Place,
        headers: Headers,
        trusted: Option<&Path>,
        limits: Limits,
    ) -> Result<Self> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // With another address, its headers would go elsewhere.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .user_agent(concat!("stackmap/", env!("CARGO_PKG_VERSION")));
        // A proxy may be encrypted, too.
        let certificates = match certificates(trusted) {
            Err(error) if place.is_encrypted() || trusted.is_some() => return Err(error),
            found => found.unwrap_or_default(),
        };
        config = config.tls_config(
            TlsConfig::builder()
                .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
                .root_certs(RootCerts::new_with_certs(&certificates))
                .build(),
        );
        if place.is_here() {
            // What is for this machine does not leave it.
            config = config.proxy(None);
        }
        if place.is_open() && !headers.is_empty() {
            warn("the headers of the requests have secrets, and http: does not hide them\n  hint: https:");
        }
        Ok(Self {
            agent: config.build().new_agent(),
            place,
            headers,
            retries: limits.retries,
            left: limits.timeout,
        })
    }

    /// The address of the server.
    pub(super) fn url(&self) -> &str {
        &self.place.url
    }

    /// Whether a profile is for this server.
    pub(super) fn is_for(&self, about: &About) -> bool {
        about.url == self.place.url && about.api == self.place.api
    }

    /// Sends a profile, until the server has it or nothing more is to be tried.
    pub(super) fn send(&mut self, profile: &Profile) -> Result<(), Failure> {
        let end = Instant::now() + self.left;
        let sent = self.send_until(profile, end);
        self.left = left_until(end);
        sent
    }

    fn send_until(&self, profile: &Profile, end: Instant) -> Result<(), Failure> {
        let body = self.place.api.request(profile);
        let mut attempt = 0;
        loop {
            let Err(failure) = self.attempt(&body, end) else {
                return Ok(());
            };
            let wanted = Duration::from_secs(failure.after.unwrap_or(0));
            let pause = wanted.max(pause(attempt, random()));
            if !failure.retry || attempt >= self.retries || pause >= left_until(end) {
                return Err(failure);
            }
            sleep(pause);
            attempt += 1;
        }
    }

    fn attempt(&self, body: &[u8], end: Instant) -> Result<(), Failure> {
        let left = left_until(end).min(patience(body.len()));
        if left.is_zero() {
            let text = "no time is left\n  hint: --timeout";
            return Err(Failure::new(Kind::Server, false, text));
        }
        let api = self.place.api;
        let (name, value) = api.header();
        let url = format!("{}{}", self.place.url, api.path());
        let mut request = self
            .agent
            .post(url)
            .header("accept", api.content_type())
            .header("content-type", api.content_type())
            .header(name, value);
        for (name, value) in self.headers.iter() {
            request = request.header(name, value);
        }
        let request = request.config().timeout_global(Some(left)).build();
        let mut answer = request.send(body).map_err(failure)?;
        let read = answer.body_mut().with_config().limit(MAX_ANSWER);
        let body = match read.read_to_vec() {
            Ok(body) => body,
            // It says more than is wanted of an error.
            Err(_) if !answer.status().is_success() => Vec::new(),
            Err(error) => return Err(failure(error)),
        };
        api.judge(answer.status(), answer.headers(), &body, &self.headers)
    }
}

/// There was no answer.
fn failure(error: ureq::Error) -> Failure {
    use ureq::{Error, Timeout};
    let retry = matches!(
        error,
        Error::Io(_)
            | Error::Timeout(_)
            | Error::HostNotFound
            | Error::ConnectionFailed
            | Error::Protocol(_)
    );
    // A certificate that is not trusted comes as an error of the connection.
    let tls = match &error {
        Error::Io(error) => error
            .get_ref()
            .is_some_and(|error| error.is::<rustls::Error>()),
        _ => false,
    };
    // There was a server: a smaller profile may get through.
    let was_there = match &error {
        Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
        ),
        Error::Timeout(timeout) => !matches!(timeout, Timeout::Resolve | Timeout::Connect),
        _ => false,
    };
    let kind = match was_there {
        true => Kind::Unknown,
        false => Kind::Server,
    };
    Failure::new(kind, retry && !tls, error.to_string())
}

/// How long an attempt with so many bytes may take.
fn patience(len: usize) -> Duration {
    PATIENCE + Duration::from_secs((len / SLOWEST) as u64)
}

fn left_until(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// What is trusted.
fn certificates(trusted: Option<&Path>) -> Result<Vec<Certificate<'static>>> {
    let path = match trusted {
        Some(path) => path.to_owned(),
        None => std::env::var_os("SSL_CERT_FILE")
            .map(PathBuf::from)
            .or_else(|| {
                TRUSTED
                    .map(PathBuf::from)
                    .into_iter()
                    .find(|path| path.exists())
            })
            .ok_or_else(|| {
                Error::Refused(
                    "https: needs the certificates that are trusted\n  \
                     hint: install ca-certificates, or give --ca-file FILE"
                        .to_owned(),
                )
            })?,
    };
    let pem = fs::read(&path).map_err(|error| Error::read(&path, error))?;
    let certificates = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        return Err(Error::input(
            path.display().to_string(),
            "it has no certificates (PEM)",
        ));
    }
    Ok(certificates)
}

/// How long to wait behind an attempt: at least half of twice as long as before, so that not all machines
/// come back at the same time.
fn pause(attempt: u32, random: u64) -> Duration {
    let longest = FIRST_PAUSE
        .saturating_mul(1 << attempt.min(16))
        .min(LONGEST_PAUSE);
    let half = longest / 2;
    half + half.mul_f64(random as f64 / u64::MAX as f64)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        for (attempt, longest) in [(0, 500), (1, 1000), (3, 4000), (6, 30_000), (40, 30_000)] {
            let longest = Duration::from_millis(longest);
            assert_eq!(pause(attempt, u64::MAX), longest);
            assert_eq!(pause(attempt, 0), longest / 2);
        }
    }

    #[test]
    fn addresses_are_those_of_servers() {
        for url in ["http://a:4040", "https://a/b/", "http://[::1]:1/"] {
            let place = Place::new(url, Api::Parca).unwrap();
            assert_eq!(place.url, url.trim_end_matches('/'));
        }
        for url in [
            "",
            "a",
            "a:4040",
            "ftp://a",
            "http://a/?b",
            "http://a b",
            "/a",
            "http://",
            "http://a/#b",
            "http://a:99999",
            "http://a:",
            "http://[::1]:x",
        ] {
            assert!(Place::new(url, Api::Parca).is_err(), "{url}");
        }
        let place = Place::new("HTTPS://Host.Example:1/Path/", Api::Parca).unwrap();
        assert_eq!(place.url, "https://host.example:1/Path");
        let error = Place::new("http://ann:secret@a", Api::Parca).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("--header-file") && !text.contains("secret"),
            "{text}"
        );
    }

    #[test]
    fn what_stays_on_the_machine_is_not_open() {
        for (url, open) in [
            ("http://localhost:1", false),
            ("http://127.0.0.2", false),
            ("http://[::1]:1", false),
            ("https://a", false),
            ("http://a", true),
            ("http://localhost.a", true),
            ("http://10.0.0.1", true),
        ] {
            assert_eq!(
                Place::new(url, Api::Parca).unwrap().is_open(),
                open,
                "{url}"
            );
        }
    }
}
