// SPDX-License-Identifier: MIT OR Apache-2.0

//! What goes to the user: results on standard output, everything else on standard error.

use crate::{
    error::{Error, Result},
    notes::Note,
};
use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    borrow::Cow,
    fmt,
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, StdoutLock, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

/// How long a piece of work takes before its progress is shown.
const PATIENCE: Duration = Duration::from_millis(400);

/// For titles.
pub const TITLE: Style = Style::new().bold();
/// For warnings.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// For errors.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// For what is well.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// For numbers that matter.
pub const NUMBER: Style = AnsiColor::Cyan.on_default();
/// For what may be passed over.
pub const DIM: Style = Style::new().dimmed();

/// Where a result goes.
pub struct Out {
    to: BufWriter<Target>,
    color: bool,
}

enum Target {
    Stream(Box<dyn Write>),
    /// It has its name when all is in it, and never without.
    File(NamedTempFile, PathBuf),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Stream(stream) => stream.write(bytes),
            Target::File(file, _) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Target::Stream(stream) => stream.flush(),
            Target::File(file, _) => file.flush(),
        }
    }
}

impl Out {
    /// Standard output.
    pub fn stdout() -> Self {
        let stdout: StdoutLock<'static> = io::stdout().lock();
        let color = AutoStream::choice(&stdout) != ColorChoice::Never;
        Self {
            to: BufWriter::with_capacity(64 << 10, Target::Stream(Box::new(stdout))),
            color,
        }
    }

    /// The file at `path`, or standard output for `-`. What was there stays until
    /// [`finish`](Self::finish), and if that never comes.
    pub fn file(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::stdout());
        }
        let failed = |error| Error::io(format!("write {}", path.display()), error);
        let target = match is_replaced(path) {
            false => Target::Stream(Box::new(File::create(path).map_err(failed)?)),
            true => {
                let mut builder = tempfile::Builder::new();
                let builder = builder.prefix(".stackmap-");
                // As File::create has it; the umask counts.
                let builder = builder.permissions(fs::Permissions::from_mode(0o666));
                let file = builder.tempfile_in(directory_of(path)).map_err(failed)?;
                Target::File(file, path.to_owned())
            }
        };
        Ok(Self {
            to: BufWriter::with_capacity(64 << 10, target),
            color: false,
        })
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

    /// Notes at the end of a result.
    pub fn notes(&mut self, notes: &[Note]) -> Result {
        for note in notes {
            match note.warning {
                true => {
                    let label = self.style(WARNING, "WARNING:");
                    writeln!(self, "{label} {}", note.text)?;
                }
                false => writeln!(self, "note: {}", note.text)?,
            }
        }
        Ok(())
    }

    /// Everything goes out now.
    pub fn finish(mut self) -> Result {
        self.to.flush()?;
        match self
            .to
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?
        {
            Target::Stream(_) => Ok(()),
            Target::File(file, path) => match file.persist(&path) {
                Ok(_) => Ok(()),
                Err(error) => Err(Error::io(format!("write {}", path.display()), error.error)),
            },
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Whether an output replaces what is at `path`. A pipe, a device, a link to anywhere and standard
/// output are written to.
pub fn is_replaced(path: &Path) -> bool {
    let is_file = || match path.symlink_metadata() {
        Ok(metadata) => metadata.is_file(),
        Err(_) => true,
    };
    path != Path::new("-") && is_file()
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

/// A line on standard error. What fails there cannot be told.
pub fn say(text: impl fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// A warning on standard error.
pub fn warn(text: impl fmt::Display) {
    say(format_args!("{WARNING}WARNING:{WARNING:#} {text}"));
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
    say(format_args!("{ERROR}stackmap:{ERROR:#} {error}"));
}

/// A text from a trace or a file, safe to show: nothing in it controls the terminal.
pub fn safe(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    });
    Cow::Owned(shown.collect())
}

/// How wide the terminal is that a result goes to.
pub fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (columns, _) = ratatui::crossterm::terminal::size().ok()?;
    Some(columns.into()).filter(|columns| *columns > 0)
}

/// How far a piece of work has come, on a terminal at standard error, if it takes long.
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

    /// `done` of them are done.
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
mod tests {
    use super::*;

    #[test]
    fn nothing_controls_the_terminal() {
        assert_eq!(safe("plain ünïcödé"), "plain ünïcödé");
        assert_eq!(safe("a\x1b[31mb\tc\u{9b}"), "a\u{fffd}[31mb c\u{fffd}");
    }

    #[test]
    fn styles_are_only_where_they_are_seen() {
        let out = |color| Out {
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
