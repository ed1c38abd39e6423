// SPDX-License-Identifier: MIT OR Apache-2.0

//! A server that records requests and answers them as it is told.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// An answer; `more` are headers.
pub(crate) fn answer(status: &str, kind: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{more}Connection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// What Pyroscope says when it has a profile.
pub(crate) fn pyroscope() -> Vec<u8> {
    answer("200 OK", "application/json", "", b"{}")
}

/// What Parca says: with the status 0, that it has a profile.
pub(crate) fn parca(status: u32, message: &str) -> Vec<u8> {
    let trailers = format!("grpc-status: {status}\r\ngrpc-message: {message}\r\n");
    let len = u32::try_from(trailers.len()).unwrap().to_be_bytes();
    let frames = [&[0, 0, 0, 0, 0, 0x80][..], &len, trailers.as_bytes()].concat();
    answer("200 OK", "application/grpc-web+proto", "", &frames)
}

/// What is done with a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// These bytes are the answer.
    Say(Vec<u8>),
    /// These as well, after this time.
    Later(Duration, Vec<u8>),
    /// These are its beginning, which goes on without end.
    Endless(&'static str, Duration),
    /// The connection is closed.
    Close,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    /// Names in lower case, and values.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The value of a header, which is there once.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found: Vec<_> = self.headers.iter().filter(|(it, _)| it == name).collect();
        assert_eq!(found.len(), 1, "{name}: {self:?}");
        &found[0].1
    }
}

/// A server; it ends with the test.
pub(crate) struct Server {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// One that gives these answers, and then `last` to all requests.
    pub(crate) fn new(answers: &[Answer], last: &[u8]) -> Self {
        Self::over(answers, last, |stream, serve| serve(&mut { stream }))
    }

    /// The same, with something between it and the connection.
    pub(crate) fn over(
        answers: &[Answer],
        last: &[u8],
        between: impl Fn(std::net::TcpStream, &dyn Fn(&mut dyn Stream) -> io::Result<()>) -> io::Result<()>
            + Send
            + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&requests);
        let (answers, last) = (answers.to_vec(), Answer::Say(last.to_vec()));
        thread::spawn(move || {
            let mut answers = answers.into_iter();
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream
                    .set_read_timeout(Some(Duration::from_secs(20)))
                    .unwrap();
                let answer = answers.next().unwrap_or(last.clone());
                // The client may go away at any time.
                let _ = between(stream, &|stream| {
                    let request = read(stream)?;
                    all.lock().unwrap().push(request);
                    give(stream, &answer)
                });
            }
        });
        Self { port, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests until now.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

pub(crate) trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn read(stream: &mut dyn Stream) -> io::Result<Request> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let len = stream.read(&mut piece)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece[..len]);
        let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else {
            continue;
        };
        let head = str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap().to_owned();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        });
        let mut request = Request {
            line,
            headers: headers.collect(),
            body: bytes.split_off(end + 4),
        };
        let len: usize = request.header("content-length").parse().unwrap();
        let have = request.body.len();
        request.body.resize(len, 0);
        stream.read_exact(&mut request.body[have..])?;
        return Ok(request);
    }
}

fn give(stream: &mut dyn Stream, answer: &Answer) -> io::Result<()> {
    match answer {
        Answer::Say(bytes) => stream.write_all(bytes)?,
        Answer::Later(time, bytes) => {
            thread::sleep(*time);
            stream.write_all(bytes)?;
        }
        Answer::Endless(begin, pause) => {
            stream.write_all(begin.as_bytes())?;
            loop {
                thread::sleep(*pause);
                stream.write_all(&[b' '; 512])?;
                stream.flush()?;
            }
        }
        Answer::Close => {}
    }
    stream.flush()
}
