// SPDX-License-Identifier: MIT OR Apache-2.0

//! What goes to the user: results on standard output, everything else on standard error.

mod pager;
mod target;

pub use target::{is_replaced, Access, NewFile};

use crate::{
    error::{Error, Result, WriteError},
    notes::Note,
};
use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    borrow::Cow,
    fmt,
    io::{self, BufWriter, IsTerminal, StdoutLock, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use target::Target;

/// How long a piece of work takes before its progress is shown.
const PATIENCE: Duration = Duration::from_millis(400);

/// For titles.
pub const TITLE: Style = Style::new().bold();
/// For warnings.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// For errors.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// The style of good results.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// For numbers that matter.
pub const NUMBER: Style = AnsiColor::Cyan.on_default();
/// For what may be passed over.
pub const DIM: Style = Style::new().dimmed();

/// Where a result goes.
pub struct Out {
    to: BufWriter<Target>,
    color: bool,
    /// The file, for errors; none is standard output.
    path: Option<PathBuf>,
}

impl Out {
    /// Standard output.
    pub fn stdout() -> Self {
        let stdout: StdoutLock<'static> = io::stdout().lock();
        let color = AutoStream::choice(&stdout) != ColorChoice::Never;
        Self {
            to: BufWriter::with_capacity(64 << 10, Target::Stream(Box::new(stdout))),
            color,
            path: None,
        }
    }

    /// Standard output; on a terminal page by page, if that is `wanted`.
    pub fn paged(wanted: bool) -> Self {
        let stdout = Self::stdout();
        if !wanted || !io::stdout().is_terminal() {
            return stdout;
        }
        match pager::Pager::start() {
            Some(pager) => Self {
                to: BufWriter::with_capacity(64 << 10, Target::Stream(Box::new(pager))),
                ..stdout
            },
            None => stdout,
        }
    }

    /// The file at `path`, or standard output for `-`. What was there stays until
    /// [`finish`](Self::finish), and if that is never called.
    pub fn file(path: &Path, access: Access) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::stdout());
        }
        Ok(Self {
            to: BufWriter::with_capacity(64 << 10, target::target(path, access)?),
            color: false,
            path: Some(path.to_owned()),
        })
    }

    /// Returns an error of writing with the name of the file.
    fn named(path: Option<&Path>) -> impl Fn(io::Error) -> io::Error + use<'_> {
        move |error| match path {
            Some(path) => {
                let path = path.to_owned();
                io::Error::new(error.kind(), WriteError { path, error })
            }
            None => error,
        }
    }

    /// `text` in a style, if this output has styles.
    pub fn style<T: fmt::Display>(&self, style: Style, text: T) -> impl fmt::Display + use<T> {
        let style = self.styled(style);
        Styled { style, text }
    }

    /// The style, or none if this output has no styles.
    pub fn styled(&self, style: Style) -> Style {
        match self.color {
            true => style,
            false => Style::new(),
        }
    }

    /// Notes at the end of a result, after an empty line.
    pub fn notes(&mut self, notes: &[Note]) -> Result {
        if !notes.is_empty() {
            writeln!(self)?;
        }
        for note in notes {
            let text = safe_text(&note.text);
            match note.warning {
                true => {
                    let label = self.style(WARNING, "WARNING:");
                    writeln!(self, "{label} {text}")?;
                }
                false => writeln!(self, "note: {text}")?,
            }
        }
        Ok(())
    }

    /// Writes all buffered data, and gives a new file its name.
    pub fn finish(mut self) -> Result {
        self.flush()?;
        match self
            .to
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
        {
            Target::Stream(_) => Ok(()),
            Target::File(new) => new.finish(),
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        written.map_err(Self::named(self.path.as_deref()))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.to.write_all(bytes);
        written.map_err(Self::named(self.path.as_deref()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.to.flush();
        written.map_err(Self::named(self.path.as_deref()))
    }
}

/// The directory that a file is in.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// An address, with its `0x`.
#[derive(Clone, Copy)]
pub struct Hex(pub u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

struct Styled<T> {
    style: Style,
    text: T,
}

impl<T: fmt::Display> fmt::Display for Styled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.style)?;
        self.text.fmt(f)?;
        write!(f, "{:#}", self.style)
    }
}

/// A line or more on standard error; nothing in it controls the terminal.
pub fn say(text: impl fmt::Display) {
    show(format_args!("{}", safe_text(text)));
}

/// A warning on standard error.
pub fn warn(text: impl fmt::Display) {
    let text = safe_text(text);
    show(format_args!("{WARNING}WARNING:{WARNING:#} {text}"));
}

/// Notes on standard error.
pub fn say_notes(notes: &[Note]) {
    for note in notes {
        match note.warning {
            true => warn(&note.text),
            false => say(format_args!("note: {}", note.text)),
        }
    }
}

/// An error on standard error.
pub fn say_error(error: &Error) {
    let text = safe_text(error);
    show(format_args!("{ERROR}stackmap:{ERROR:#} {text}"));
}

/// Writes to standard error. An error there cannot be reported.
fn show(text: fmt::Arguments<'_>) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// A message with names in it, safe to show. Its line ends stay.
fn safe_text(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(safe).collect();
    lines.join("\n")
}

/// Whether a character controls a terminal, or deceives who reads it: control characters, those that
/// change the direction of the text, and those that Unicode has nothing shown of
/// (`Default_Ignorable_Code_Point`), by which two names look the same.
pub(crate) fn controls(c: char) -> bool {
    let deceives = |c| {
        matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
                | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        )
    };
    c.is_control() || deceives(c)
}

/// A text from a trace or a file, safe to show: nothing in it controls the terminal.
pub fn safe(text: &str) -> Cow<'_, str> {
    if !text.contains(controls) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| match c {
        '\t' => ' ',
        c if controls(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    });
    Cow::Owned(shown.collect())
}

/// Bytes of a text, made safe to show as by [`safe`], except that tabs and line ends stay. Bytes
/// that are not UTF-8 stay, unless they are C1 controls of a terminal (0x80 to 0x9f).
pub fn safe_lines(text: &[u8]) -> Cow<'_, [u8]> {
    let is_harmless = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    if text.iter().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    const SHOWN: &[u8] = "\u{fffd}".as_bytes();
    let mut safe = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        let mut chars = chunk.valid().chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\n' | '\t' => safe.push(c as u8),
                // Elsewhere a carriage return lets the rest overwrite the beginning of the line.
                '\r' if chars.peek() == Some(&'\n') => safe.push(b'\r'),
                c if controls(c) => safe.extend_from_slice(SHOWN),
                c => safe.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            match byte {
                0x80..=0x9f => safe.extend_from_slice(SHOWN),
                byte => safe.push(*byte),
            }
        }
    }
    Cow::Owned(safe)
}

/// Writes JSON with escapes for every character that [`safe`] would replace; JSON itself requires
/// escapes for ASCII controls only.
pub struct JsonText<W>(pub W);

impl<W: Write> Write for JsonText<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Texts come in pieces that are texts themselves.
        let text = match std::str::from_utf8(bytes) {
            Ok(text) if !bytes.is_ascii() || bytes.contains(&0x7f) => text,
            _ => return self.0.write_all(bytes),
        };
        let mut rest = text;
        while let Some(at) = rest.find(|c| controls(c) && c != '\n') {
            let (before, behind) = rest.split_at(at);
            self.0.write_all(before.as_bytes())?;
            let mut chars = behind.chars();
            if let Some(c) = chars.next() {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(self.0, "\\u{unit:04x}")?;
                }
            }
            rest = chars.as_str();
        }
        self.0.write_all(rest.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// How wide the terminal is that a result goes to.
pub fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (columns, _) = ratatui::crossterm::terminal::size().ok()?;
    Some(columns.into()).filter(|columns| *columns > 0)
}

/// A progress bar on standard error, if that is a terminal and the work takes long.
pub struct Progress {
    label: &'static str,
    total: Option<u64>,
    bytes: bool,
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Work on `total` things.
    pub fn new(label: &'static str, total: Option<u64>) -> Self {
        Self {
            label,
            total,
            bytes: false,
            begun: Instant::now(),
            bar: None,
        }
    }

    /// Work on `total` bytes.
    pub fn bytes(label: &'static str, total: Option<u64>) -> Self {
        let mut progress = Self::new(label, total);
        progress.bytes = true;
        progress
    }

    /// Shows that `done` of the total are done.
    pub fn set(&mut self, done: u64) {
        if self.bar.is_none() && self.begun.elapsed() > PATIENCE {
            let (with_total, without) = match self.bytes {
                true => (
                    "{msg} {bar:30} {bytes} of {total_bytes}, {eta} left",
                    "{msg} {spinner} {bytes}",
                ),
                false => (
                    "{msg} {bar:30} {pos} of {len}, {eta} left",
                    "{msg} {spinner} {pos}",
                ),
            };
            let target = ProgressDrawTarget::stderr();
            let bar = ProgressBar::with_draw_target(self.total, target);
            let template = if self.total.is_some() {
                with_total
            } else {
                without
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(self.label);
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// Returns what is written to a file.
    pub(crate) fn written(write: impl FnOnce(&mut Out) -> Result) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut out = Out::file(&path, Access::Umask).unwrap();
        write(&mut out).unwrap();
        out.finish().unwrap();
        fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn nothing_controls_the_terminal() {
        assert_eq!(safe("plain ünïcödé"), "plain ünïcödé");
        assert_eq!(safe("a\x1b[31mb\tc\u{9b}"), "a\u{fffd}[31mb c\u{fffd}");
        assert_eq!(safe("a\u{202e}b\u{61c}"), "a\u{fffd}b\u{fffd}");
        // The first and the last of each range, and what is beside them.
        let unseen = "\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180f}\u{200b}\u{200f}\
            \u{2028}\u{202e}\u{2060}\u{206f}\u{3164}\u{fe00}\u{fe0f}\u{feff}\u{ffa0}\u{fff0}\u{fffb}\
            \u{1bca0}\u{1bca3}\u{1d173}\u{1d17a}\u{e0000}\u{e0fff}";
        let seen = "\u{ac}\u{ae}\u{34e}\u{350}\u{61b}\u{61d}\u{115e}\u{1161}\u{17b3}\u{17b6}\u{180a}\u{1810}\
            \u{200a}\u{2010}\u{2027}\u{202f}\u{205f}\u{2070}\u{3163}\u{3165}\u{fdff}\u{fe10}\u{fefe}\
            \u{ff00}\u{ff9f}\u{ffa1}\u{ffef}\u{fffc}\u{1bc9f}\u{1bca4}\u{1d172}\u{1d17b}\u{dffff}\u{e1000}";
        assert_eq!(safe(unseen), "\u{fffd}".repeat(28));
        assert_eq!(safe(seen), seen);
        for (text, want) in [
            (&b"a b\tc\r\nd\n"[..], &b"a b\tc\r\nd\n"[..]),
            (
                b"a\x1b[31m\rb\x7f",
                "a\u{fffd}[31m\u{fffd}b\u{fffd}".as_bytes(),
            ),
            ("ü\u{9b}\u{202e}".as_bytes(), "ü\u{fffd}\u{fffd}".as_bytes()),
            (b"\xff\x9b \xfe", b"\xff\xef\xbf\xbd \xfe"),
        ] {
            assert_eq!(&safe_lines(text)[..], want, "{text:?}");
        }
    }

    #[test]
    fn json_is_the_same_with_escapes() {
        let text = "a\u{9b}ü\u{202e}\u{7f}\n\x1b\u{e0041}";
        let mut json = Vec::new();
        serde_json::to_writer(JsonText(&mut json), text).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert_eq!(json, r#""a\u009bü\u202e\u007f\n\u001b\udb40\udc41""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn styles_are_used_only_on_terminals() {
        let out = |color| Out {
            path: None,
            to: BufWriter::new(Target::Stream(Box::new(io::sink()))),
            color,
        };
        assert_eq!(out(false).style(TITLE, "x").to_string(), "x");
        assert_eq!(out(true).style(TITLE, "x").to_string(), "\x1b[1mx\x1b[0m");
        assert_eq!(
            format!("{:>3}", out(true).style(TITLE, 7)),
            "\x1b[1m  7\x1b[0m"
        );
    }
}
