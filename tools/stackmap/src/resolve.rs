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
    source::{differ, Loaded, Missing, Shown},
    symbols::{texts::Texts, Frame},
    tally::{missing_name, LOST, NOT_KEPT, PENDING},
    trace::{Cookie, Sides, StackRef, UserRef},
};
use line::{Ids, UserSide};
use lines::{Chunk, Lines};
use std::{
    collections::{HashMap, HashSet},
    io::{BufReader, Read, Write},
};

/// The names of the events, as trace-cmd prints them before the id.
const TRACE_CMD_NAMES: [&[u8]; 2] = [b"stack_id:", b"stack_id_user:"];
/// How wide trace-cmd makes the names of events.
const TRACE_CMD_WIDTH: usize = 22;
/// How many lines are read between two reports of progress.
const STEP: u64 = 4096;
/// How many entries into the kernel are remembered of a text that is read once.
const MAX_ENTRIES: usize = 1 << 16;

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

/// What a text that is read once has said of entries into the kernel.
#[derive(Default)]
struct Entries {
    /// The ids of their user stacks.
    bound: HashMap<Cookie, u32>,
    /// The ones whose events were first.
    waiting: HashSet<Cookie>,
}

impl Entries {
    /// The user stack of an event.
    fn user(&mut self, side: UserSide) -> User {
        match side {
            UserSide::None => User::Known(UserRef::None),
            UserSide::Id(id) => User::of_id(id),
            UserSide::Cookie(cookie) => match self.bound.get(&cookie) {
                Some(id) => User::of_id(*id),
                None => {
                    if self.waiting.len() == MAX_ENTRIES {
                        self.waiting.clear();
                    }
                    self.waiting.insert(cookie);
                    User::Later(cookie)
                }
            },
        }
    }

    /// A cookie is bound to an id. Says whether an event waits for it.
    fn bind(&mut self, cookie: Cookie, id: u32) -> bool {
        if self.bound.len() == MAX_ENTRIES {
            self.bound.clear();
        }
        self.bound.insert(cookie, id);
        self.waiting.remove(&cookie)
    }
}

/// The user stack that is written with one of the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum User {
    Known(UserRef),
    /// A later line has it.
    Later(Cookie),
}

impl User {
    fn known(self) -> UserRef {
        match self {
            User::Known(user) => user,
            User::Later(_) => UserRef::None,
        }
    }

    fn of_id(id: u32) -> Self {
        match id {
            0 => User::Known(UserRef::NotKept),
            id => User::Known(UserRef::Id(id)),
        }
    }
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
    entries: Entries,
    /// What is written next, and the frames in it.
    text: Vec<u8>,
    ips: Vec<u64>,
    /// What was found missing.
    pub notes: Notes,
    /// How many ids were replaced.
    pub resolved: u64,
    /// How many lines end with an id, and are no lines of a trace in a known format.
    pub unread: u64,
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
            entries: Entries::default(),
            text: Vec::new(),
            ips: Vec::new(),
            notes: Notes::default(),
            resolved: 0,
            unread: 0,
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
        let Some((start, ids)) = chunk.whole.then(|| line::ids(chunk.text())).flatten() else {
            self.unread += u64::from(line::is_unknown(chunk.text()));
            return Ok(out.write_all(chunk.bytes)?);
        };
        let text = chunk.text();
        let before = &text[..start];
        let form = match before.trim_ascii_end().ends_with(TRACE_CMD_NAMES[0])
            || before.trim_ascii_end().ends_with(TRACE_CMD_NAMES[1])
        {
            true => self.form(Form::TraceCmd),
            false => self.form(Form::Kernel),
        };
        match ids {
            Ids::Kernel(id, side) => {
                let user = self.entries.user(side);
                self.stack(before, id, user, form, out)?;
            }
            Ids::User(id, cookie) => {
                out.write_all(text.trim_ascii_end())?;
                if self.entries.bind(cookie, id) {
                    self.text.clear();
                    self.user_stack(User::of_id(id), form)?;
                    out.write_all(&self.text)?;
                }
            }
        }
        Ok(out.write_all(&chunk.bytes[text.trim_ascii_end().len()..])?)
    }

    /// The form that is wanted where a text is of this one.
    fn form(&self, form: Form) -> Form {
        match self.format.inline {
            true => Form::Inline,
            false => form,
        }
    }

    /// Writes what stands before an id, its stack, and the user stack.
    fn stack(
        &mut self,
        before: &[u8],
        id: u32,
        user: User,
        form: Form,
        out: &mut impl Write,
    ) -> Result {
        let wanted = self.loaded.shown.of(Sides::of_id(id, user.known()));
        let unknown = |loaded: &Loaded| {
            let user = match wanted.user {
                UserRef::Id(id) => loaded.user_stack(id).is_none(),
                _ => false,
            };
            user || loaded.stack(id).is_none()
        };
        if unknown(&self.loaded) {
            self.reload()?;
        }
        if wanted.kernel == StackRef::None {
            self.text.clear();
            self.text.extend_from_slice(before);
            let _ = write!(self.text, "<stack_id {id}>");
        } else if let Some(stack) = self.loaded.stack(id) {
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
        } else {
            let missing = self.missing(|loaded| loaded.missing(id));
            self.text.clear();
            self.text.extend_from_slice(before);
            let name = missing_name("stack_id", id, missing);
            self.text.extend_from_slice(name.as_bytes());
        }
        self.user_stack(user, form)?;
        Ok(out.write_all(&self.text)?)
    }

    /// Reads newer stacks, if there can be any.
    fn reload(&mut self) -> Result {
        if self.loaded_anew {
            return Ok(());
        }
        if let Some(loaded) = (self.reload)()? {
            // Whatever is in the text may still be of the load that it began with.
            self.loaded_anew = differ(self.loaded.stacks.load_id(), loaded.stacks.load_id());
            if !self.loaded_anew {
                self.loaded = loaded;
                self.texts.clear();
            }
        }
        Ok(())
    }

    /// Counts a stack that is not there, and says why.
    fn missing(&mut self, why: impl Fn(&Loaded) -> Missing) -> Missing {
        let missing = match self.loaded_anew {
            true => Missing::Gone,
            false => why(&self.loaded),
        };
        self.notes.missing.count(missing);
        missing
    }

    /// Adds a user stack to the text.
    fn user_stack(&mut self, user: User, form: Form) -> Result {
        let separator = match form {
            Form::Inline => " ",
            Form::Kernel | Form::TraceCmd => "\n",
        };
        if self.loaded.shown == Shown::Kernel {
            return Ok(());
        }
        let text = match user {
            User::Known(UserRef::None) => return Ok(()),
            User::Known(UserRef::Id(id)) => return self.user_frames(id, separator, form),
            User::Known(UserRef::NotKept) => NOT_KEPT.to_owned(),
            User::Known(UserRef::Pending) => PENDING.to_owned(),
            User::Known(UserRef::Lost) => LOST.to_owned(),
            User::Later(cookie) => format!("<user {}:{}>", cookie as u32, cookie >> 32),
        };
        Ok(write!(self.text, "{separator}{text}")?)
    }

    fn user_frames(&mut self, id: u32, separator: &str, form: Form) -> Result {
        if self.loaded.user_stack(id).is_none() {
            let missing = self.missing(|loaded| loaded.missing_user());
            let name = missing_name("user_stack_id", id, missing);
            return Ok(write!(self.text, "{separator}{name}")?);
        }
        let Some(stack) = self.loaded.user_stack(id) else {
            return Ok(());
        };
        let text = &mut self.text;
        let mut between = match form {
            Form::Inline => {
                write!(text, "{separator}<user_stack_id {id}:")?;
                " "
            }
            Form::Kernel => {
                write!(text, "{separator}<user stack trace>")?;
                "\n => "
            }
            Form::TraceCmd => {
                write!(text, "{separator}<user stack trace >")?;
                "\n=> "
            }
        };
        let user = &self.loaded.user;
        for frame in user.stack(stack.ips).flat_map(|which| user.frames(which)) {
            let name = match self.format.offsets {
                true => frame.to_string(),
                false => frame.plain(),
            };
            let name = safe(&name);
            match form {
                // A name from a file, which can be anything, makes no two frames of one.
                Form::Inline => write!(text, "{between}{}", name.replace(NEXT, " < - "))?,
                _ => write!(text, "{between}{name}")?,
            }
            if let Some(source) = frame.source() {
                write!(text, " ({})", safe(&source.to_string()))?;
            }
            if form == Form::Inline {
                between = NEXT;
            }
        }
        if form == Form::Inline {
            text.push(b'>');
        }
        Ok(())
    }

    /// Begins the text of a stack.
    fn begin(&mut self, before: &[u8], id: u32, form: Form) {
        let trimmed = before.trim_ascii_end();
        let name = TRACE_CMD_NAMES.iter();
        let before = match name.filter_map(|name| trimmed.strip_suffix(*name)).next() {
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
            Form::Inline => NEXT.as_bytes(),
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

/// What is between frames in a line.
const NEXT: &str = " <- ";

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

mod line;
mod lines;
mod records;
#[cfg(test)]
mod tests;
