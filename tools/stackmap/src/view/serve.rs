// SPDX-License-Identifier: MIT OR Apache-2.0

//! Shows one page to a browser on this machine.
//!
//! Only programs of this machine can connect. Of them, other users and pages of other hosts are kept out: the
//! address of the page has a secret in it, and a name in `Host` that is not this machine's is refused, as
//! another host's page can have its own name lead here (DNS rebinding). A request has a bounded size
//! and a bounded time, and there is a bounded number of them at a time: who connects then is served, and the
//! oldest connection without a request is closed.

use crate::error::{Error, Result};
use std::{
    collections::VecDeque,
    hint::black_box,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{mpsc, Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The most bytes of a request.
const MAX_REQUEST: usize = 16 << 10;
/// The most lines of it.
const MAX_HEADERS: usize = 64;
/// How long a request may take, and how long the browser may not read.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many connections are open at a time; browsers open some that they do not use.
const AT_A_TIME: usize = 16;

/// A page that waits for a browser.
pub struct Server {
    listener: TcpListener,
    port: u16,
    page: Arc<Page>,
}

/// What is served.
struct Page {
    secret: String,
    policy: String,
    html: Vec<u8>,
    /// How long a request may take.
    patience: Duration,
    /// The connections whose request has not come, the oldest first.
    waiting: Mutex<VecDeque<Arc<TcpStream>>>,
}

/// What is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Answer {
    Page,
    /// A status, and why.
    Refused(&'static str, &'static str),
}

const NOT_HTTP: Answer = Answer::Refused("400 Bad Request", "this is not an HTTP request");
const NOT_GET: Answer = Answer::Refused("405 Method Not Allowed", "the page can only be read");
const NOT_HERE: Answer = Answer::Refused(
    "421 Misdirected Request",
    "the address of the page is that which stackmap view printed, with the same port",
);
const NO_PAGE: Answer = Answer::Refused(
    "404 Not Found",
    "the address of the page is that which stackmap view printed",
);

impl Server {
    /// Opens a port of its own for a page, which obeys this policy.
    pub fn new(html: Vec<u8>, policy: String, secret: String) -> Result<Self> {
        let failed = |error| Error::io("open a port on 127.0.0.1", error);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let page = Arc::new(Page {
            secret,
            policy,
            html,
            patience: PATIENCE,
            waiting: Mutex::default(),
        });
        Ok(Self {
            listener,
            port,
            page,
        })
    }

    /// The address of the page.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.page.secret)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Answers until the process is ended, or, if only `once` is wanted, until the page was read.
    pub fn run(&self, once: bool) -> Result {
        let (ended, ends) = mpsc::channel::<bool>();
        let mut nr_open = 0;
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => Arc::new(stream),
                // The browser is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(Error::io("wait for the browser", error)),
            };
            // Waits only if there are as many as there may be.
            while let Some(was_read) = match nr_open {
                AT_A_TIME => {
                    self.page.close_oldest();
                    ends.recv().ok()
                }
                _ => ends.try_recv().ok(),
            } {
                nr_open -= 1;
                if was_read && once {
                    return Ok(());
                }
            }
            nr_open += 1;
            self.page.waiting().push_back(Arc::clone(&stream));
            let (page, port, ended) = (Arc::clone(&self.page), self.port, ended.clone());
            thread::spawn(move || {
                // A browser that goes away is no error.
                let was_read = page.serve(&stream, port).unwrap_or(false);
                let _ = ended.send(was_read);
                if was_read && once {
                    // Has the loop look.
                    let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
                }
            });
        }
    }
}

impl Page {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<TcpStream>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the oldest connection without a request, if there is one.
    fn close_oldest(&self) {
        if let Some(oldest) = self.waiting().pop_front() {
            // It may be closed already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
    }

    /// Answers the request of a connection, and says whether the page was read.
    fn serve(&self, stream: &Arc<TcpStream>, port: u16) -> io::Result<bool> {
        let answer = self.request(stream, port);
        self.waiting().retain(|other| !Arc::ptr_eq(other, stream));
        match answer? {
            Some(answer) => self.answer(stream, answer),
            None => Ok(false),
        }
    }

    /// Reads a request, and says what its answer is. [`None`]: it has not come in time.
    fn request(&self, mut stream: &TcpStream, port: u16) -> io::Result<Option<Answer>> {
        let end = Instant::now() + self.patience;
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            if let Some(answer) = self.judge(&request, port) {
                return Ok(Some(answer));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut buffer)? {
                0 => return Ok(None),
                len => request.extend_from_slice(&buffer[..len]),
            }
        }
    }

    /// Answers a request, and says whether the page was read.
    fn answer(&self, mut stream: &TcpStream, answer: Answer) -> io::Result<bool> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let (status, kind, body) = match answer {
            Answer::Page => ("200 OK", "text/html", &self.html[..]),
            Answer::Refused(status, why) => (status, "text/plain", why.as_bytes()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\nCache-Control: no-store\r\nContent-Security-Policy: {}; \
             frame-ancestors 'none'\r\nCross-Origin-Opener-Policy: same-origin\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n\
             X-Content-Type-Options: nosniff\r\n\r\n",
            body.len(),
            self.policy
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        stream.flush()?;
        Ok(answer == Answer::Page)
    }

    /// What the answer to a request is, as soon as it has come as a whole.
    fn judge(&self, bytes: &[u8], port: u16) -> Option<Answer> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(status) if status.is_complete() => {}
            Ok(_) if bytes.len() < MAX_REQUEST => return None,
            _ => return Some(NOT_HTTP),
        }
        let hosts = request.headers.iter();
        let mut hosts = hosts.filter(|header| header.name.eq_ignore_ascii_case("host"));
        let is_here = |host: &[u8]| {
            let names = ["127.0.0.1", "localhost"];
            names
                .iter()
                .any(|name| host == format!("{name}:{port}").as_bytes())
        };
        Some(match (hosts.next(), hosts.next()) {
            (Some(host), None) if is_here(host.value) => {
                let path = request.path.unwrap_or_default();
                let word = path
                    .strip_prefix('/')
                    .and_then(|path| path.strip_suffix('/'));
                match word.is_some_and(|word| is_same(word.as_bytes(), self.secret.as_bytes())) {
                    _ if request.method != Some("GET") => NOT_GET,
                    true => Answer::Page,
                    false => NO_PAGE,
                }
            }
            _ => NOT_HERE,
        })
    }
}

/// Whether two words are the same, in a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let pairs = one.iter().zip(other);
    let differs = pairs.fold(0, |differs, (one, other)| {
        black_box(differs | (one ^ other))
    });
    one.len() == other.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server::new(
            b"<html>".to_vec(),
            "default-src 'none'".to_owned(),
            "abcd".to_owned(),
        )
        .unwrap()
    }

    fn judge(request: &str) -> Option<Answer> {
        server().page.judge(request.as_bytes(), 80)
    }

    #[test]
    fn only_the_page_is_served() {
        for (request, want) in [
            (
                "GET /abcd/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(Answer::Page),
            ),
            (
                "GET /abcd/ HTTP/1.1\r\nhOST: localhost:80\r\nA: b\r\n\r\n",
                Some(Answer::Page),
            ),
            ("GET /abcd/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n", None),
            ("", None),
            (
                "GET /abce/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NO_PAGE),
            ),
            (
                "GET /bbcd/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NO_PAGE),
            ),
            (
                "GET /abc/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NO_PAGE),
            ),
            (
                "GET /abcde/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NO_PAGE),
            ),
            (
                "GET // HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NO_PAGE),
            ),
            (
                "GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NO_PAGE),
            ),
            (
                "GET /abcd HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NO_PAGE),
            ),
            (
                "POST /abcd/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NOT_GET),
            ),
            (
                "HEAD /abcd/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
                Some(NOT_GET),
            ),
            ("GET /abcd/ HTTP/1.1\r\n\r\n", Some(NOT_HERE)),
            (
                "GET /abcd/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
                Some(NOT_HERE),
            ),
            (
                "GET /abcd/ HTTP/1.1\r\nHost: 127.0.0.1:81\r\n\r\n",
                Some(NOT_HERE),
            ),
            (
                "GET /abcd/ HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
                Some(NOT_HERE),
            ),
            (
                "GET /abcd/ HTTP/1.1\r\nHost: 127.0.0.1:80.evil.example\r\n\r\n",
                Some(NOT_HERE),
            ),
            (
                "GET /abcd/ HTTP/1.1\r\nHost: evil.127.0.0.1:80\r\n\r\n",
                Some(NOT_HERE),
            ),
            (
                "GET /abcd/ HTTP/1.1\r\nHost: 127.0.0.1:80\r\nHost: evil.example\r\n\r\n",
                Some(NOT_HERE),
            ),
            ("\x01\x02", Some(NOT_HTTP)),
            ("GET /abcd/\r\n\r\n", Some(NOT_HTTP)),
        ] {
            assert_eq!(judge(request), want, "{request:?}");
        }
    }

    #[test]
    fn requests_are_bounded() {
        let long = format!("GET /{}", "a".repeat(MAX_REQUEST));
        assert_eq!(judge(&long), Some(NOT_HTTP));
        assert_eq!(judge(&long[..MAX_REQUEST - 1]), None);
        let many = "A: b\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(
            judge(&format!("GET / HTTP/1.1\r\n{many}\r\n")),
            Some(NOT_HTTP)
        );
    }

    #[test]
    fn the_page_is_read_in_pieces_and_once() {
        let server = server();
        let url = server.url();
        let secret = url.rsplit('/').nth(1).unwrap();
        let port = server.port();
        let ask = |path: &str| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", port);
            for piece in request.as_bytes().chunks(7) {
                stream.write_all(piece).unwrap();
            }
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        // Not in a scope, which would wait for it if something is not as it should be.
        let running = thread::spawn(move || server.run(true));
        assert!(ask("/").starts_with("HTTP/1.1 404 "));
        let page = ask(&format!("/{secret}/"));
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "<html>");
        let lines: Vec<_> = head.split("\r\n").collect();
        assert_eq!(
            lines,
            [
                "HTTP/1.1 200 OK",
                "Content-Type: text/html; charset=utf-8",
                "Content-Length: 6",
                "Connection: close",
                "Cache-Control: no-store",
                "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
                "Cross-Origin-Opener-Policy: same-origin",
                "Cross-Origin-Resource-Policy: same-origin",
                "Referrer-Policy: no-referrer",
                "X-Content-Type-Options: nosniff",
            ]
        );
        running.join().unwrap().unwrap();
    }

    #[test]
    fn of_many_connections_the_oldest_are_closed() {
        let server = server();
        let port = server.port();
        thread::spawn(move || server.run(false));
        let begin = Instant::now();
        let mut idle: Vec<_> = (0..AT_A_TIME + 40)
            .map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap())
            .collect();
        let mut asks = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let request = format!("GET /abcd/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
        asks.write_all(request.as_bytes()).unwrap();
        let mut page = String::new();
        asks.read_to_string(&mut page).unwrap();
        assert!(page.ends_with("<html>"));
        for closed in &mut idle[..40] {
            assert!(closed.read(&mut [0]).map_or(true, |len| len == 0));
        }
        assert!(begin.elapsed() < PATIENCE);
        let mut last = idle.pop().unwrap();
        last.set_nonblocking(true).unwrap();
        let error = last.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_request_has_a_bounded_time() {
        let mut server = server();
        let patience = Duration::from_millis(300);
        Arc::get_mut(&mut server.page).unwrap().patience = patience;
        let port = server.port();
        thread::spawn(move || server.run(false));
        for piece in ["", "a"] {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let turn = Duration::from_millis(20);
            stream.set_read_timeout(Some(turn)).unwrap();
            let begin = Instant::now();
            // Ends when nothing can be written, or there is an end to be read.
            while stream.write_all(piece.as_bytes()).is_ok()
                && stream
                    .read(&mut [0])
                    .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            {
                assert!(begin.elapsed() < 100 * patience, "{piece:?}");
            }
            assert!(begin.elapsed() >= patience, "{piece:?}");
        }
    }

    #[test]
    fn it_listens_on_this_machine_only() {
        let address = server().listener.local_addr().unwrap();
        assert!(address.ip().is_loopback() && address.port() != 0);
    }
}
