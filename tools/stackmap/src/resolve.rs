// SPDX-License-Identifier: MIT OR Apache-2.0

//! Puts the stacks back into the text of a trace, in constant memory.
//!
//! A line that says `<stack_id N>` and nothing else becomes what the kernel prints of a stack that was recorded
//! whole (`<stack trace>` and a line ` => function` for each frame), or what trace-cmd prints. So
//! whatever reads such traces reads these.

use crate::{
    error::{Error, Result},
    notes::Notes,
    output::{safe, safe_lines, Progress},
    source::{differ, Loaded, Missing},
    symbols::{texts::Texts, Frame},
    tally::missing_name,
    trace::{Body, Chunk, Line, Lines},
};
use memchr::memmem;
use std::io::{BufReader, Read, Write};

/// The name of the event, as trace-cmd prints it before the id.
const TRACE_CMD_NAME: &[u8] = b"stack_id:";
/// How wide trace-cmd makes the names of events.
const TRACE_CMD_WIDTH: usize = 22;
/// How many lines are read between two reports of progress.
const STEP: u64 = 4096;

/// How stacks are put into a text.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Format {
    /// On the line of the id, rather than on lines of their own.
    pub inline: bool,
    /// With offsets into the functions.
    pub offsets: bool,
}

/// In what form a stack is wanted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Kernel,
    TraceCmd,
    Inline,
}

/// Reads newer stacks when an id is not known yet.
pub type Reload<'a> = dyn FnMut() -> Result<Option<Loaded>> + 'a;

/// Puts stacks back.
pub struct Resolver<'a> {
    loaded: Loaded,
    reload: &'a mut Reload<'a>,
    /// Whether the module was reloaded since the stacks were read.
    loaded_anew: bool,
    format: Format,
    texts: Texts,
    /// What is written next, and the frames in it.
    text: Vec<u8>,
    ips: Vec<u64>,
    /// What was found missing.
    pub notes: Notes,
    /// How many ids were replaced.
    pub resolved: u64,
}

impl<'a> Resolver<'a> {
    /// One that knows what is `loaded`, and asks `reload` for newer stacks.
    pub fn new(loaded: Loaded, format: Format, reload: &'a mut Reload<'a>) -> Self {
        Self {
            loaded,
            reload,
            loaded_anew: false,
            format,
            texts: Texts::new(move |frame, text| write_frame(format, frame, text)),
            text: Vec::new(),
            ips: Vec::new(),
            notes: Notes::default(),
            resolved: 0,
        }
    }

    /// Copies `input`, which is called `name` and has `size` bytes, to `out`.
    pub fn run(
        &mut self,
        input: impl Read,
        size: Option<u64>,
        name: &str,
        out: &mut impl Write,
    ) -> Result {
        let mut lines = Lines::new(BufReader::with_capacity(64 << 10, input));
        let mut progress = Progress::bytes("resolving", size);
        let mut nr_lines = 0u64;
        loop {
            // Before waiting for more input, all complete output is written.
            if lines.input().buffer().is_empty() {
                out.flush()?;
            }
            let offset = lines.offset();
            let chunk = match lines.next_chunk() {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(out.flush()?),
                Err(error) => return Err(Error::reading(name, offset, error)),
            };
            let bytes = &safe_lines(chunk.bytes);
            self.line(&Chunk { bytes, ..chunk }, out)?;
            nr_lines += 1;
            if nr_lines.is_multiple_of(STEP) {
                progress.set(lines.offset());
            }
        }
    }

    /// The loaded stacks, as they are by now.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Copies a line, or a piece of one. An id is what the module prints: all that a line says. A
    /// name in any other line may look like one.
    fn line(&mut self, chunk: &Chunk<'_>, out: &mut impl Write) -> Result {
        let Some((start, id)) = chunk.whole.then(|| stack_id(chunk.text())).flatten() else {
            return Ok(out.write_all(chunk.bytes)?);
        };
        let text = chunk.text();
        let before = &text[..start];
        let form = match before.trim_ascii_end().ends_with(TRACE_CMD_NAME) {
            true => self.form(Form::TraceCmd),
            false => self.form(Form::Kernel),
        };
        self.stack(before, id, form, out)?;
        Ok(out.write_all(&chunk.bytes[text.trim_ascii_end().len()..])?)
    }

    /// The form that is wanted where a text is of this one.
    fn form(&self, form: Form) -> Form {
        match self.format.inline {
            true => Form::Inline,
            false => form,
        }
    }

    /// Writes what stands before an id, and its stack.
    fn stack(&mut self, before: &[u8], id: u32, form: Form, out: &mut impl Write) -> Result {
        if self.loaded.stack(id).is_none() && !self.loaded_anew {
            if let Some(loaded) = (self.reload)()? {
                // Whatever is in the text may still be of the load that it began with.
                self.loaded_anew = differ(self.loaded.stacks.load_id(), loaded.stacks.load_id());
                if !self.loaded_anew {
                    self.loaded = loaded;
                    self.texts.clear();
                }
            }
        }
        let Some(stack) = self.loaded.stack(id) else {
            let missing = match self.loaded_anew {
                true => Missing::Gone,
                false => self.loaded.missing(id),
            };
            self.notes.missing(missing);
            out.write_all(before)?;
            return Ok(out.write_all(missing_name(id, missing).as_bytes())?);
        };
        self.resolved += 1;
        let mut ips = std::mem::take(&mut self.ips);
        ips.clear();
        ips.extend_from_slice(stack.ips);
        self.begin(before, id, form);
        self.frames(&ips, form);
        self.ips = ips;
        if form == Form::Inline {
            self.text.push(b'>');
        }
        Ok(out.write_all(&self.text)?)
    }

    /// Begins the text of a stack.
    fn begin(&mut self, before: &[u8], id: u32, form: Form) {
        let before = match before.trim_ascii_end().strip_suffix(TRACE_CMD_NAME) {
            Some(before) if form == Form::TraceCmd => before,
            _ => before,
        };
        let text = &mut self.text;
        text.clear();
        text.extend_from_slice(before);
        // Writing into a vector does not fail.
        let _ = match form {
            Form::Kernel => write!(text, "<stack trace>"),
            Form::TraceCmd => write!(text, "{:TRACE_CMD_WIDTH$}<stack trace >", "kernel_stack:"),
            Form::Inline => write!(text, "<stack_id {id}:"),
        };
    }

    /// Adds the frames to it.
    fn frames(&mut self, ips: &[u64], form: Form) {
        let separator: &[u8] = match form {
            Form::Kernel => b"\n => ",
            Form::TraceCmd => b"\n=> ",
            Form::Inline => b" <- ",
        };
        let text = &mut self.text;
        self.texts.fetch(ips);
        let mut is_first = true;
        for at in self.loaded.symbols.stack(ips) {
            let frames = self.texts.of(&self.loaded.symbols, at.ip, at.exact);
            for frame in frames.lines() {
                match form {
                    Form::Inline if is_first => text.push(b' '),
                    _ => text.extend_from_slice(separator),
                }
                text.extend_from_slice(frame);
                is_first = false;
                if form == Form::TraceCmd {
                    let _ = write!(text, " ({:x})", at.ip);
                }
            }
        }
    }
}

/// The id that is all that a line says, and where it stands.
fn stack_id(text: &[u8]) -> Option<(usize, u32)> {
    // Most lines are none, and reading them takes longer than this.
    let start = text
        .trim_ascii_end()
        .ends_with(b">")
        .then(|| memmem::rfind(text, b"<stack_id "))??;
    match Line::parse(text)?.body {
        Body::StackId(id) => Some((start, id)),
        _ => None,
    }
}

fn write_frame(format: Format, frame: &Frame<'_>, text: &mut Vec<u8>) {
    let name = match format.offsets {
        true => frame.to_string(),
        false => frame.plain().to_string(),
    };
    text.extend_from_slice(safe(&name).as_bytes());
    if let Some(source) = frame.source {
        let source = format!(" ({source})");
        text.extend_from_slice(safe(&source).as_bytes());
    }
}

mod records;
#[cfg(test)]
mod tests;
