// SPDX-License-Identifier: MIT OR Apache-2.0

//! User stacks: what led to an event, outside of the kernel.
//!
//! A frame is an offset in a file, and the file is known by its build-id. So it is named wherever
//! there is a file with that build-id: on another machine, and when the process is gone.

pub mod binaries;
pub mod child;
mod elf;
mod files;
mod functions;
pub mod live;
mod lookup;
pub mod names;
mod perf_map;
pub mod segments;
mod symbols;
pub mod words;

use crate::{
    folded::Kind,
    stacks::Stacks,
    symbols::{
        texts::{AddressHasher, ByNumber},
        SourceLine,
    },
};
use binaries::Binaries;
use names::{Named, Names};
use std::{collections::HashSet, fmt, hash::BuildHasherDefault};
use words::{At, End};

/// What is known of frames.
pub type ByFrame<V> = ByNumber<WhichFrame, V>;
type FrameSet = HashSet<WhichFrame, BuildHasherDefault<AddressHasher>>;

/// A frame that is not named yet.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WhichFrame {
    /// Where it is.
    pub at: At,
    /// Whether it is looked up as it is, rather than as a return address.
    pub exact: bool,
}

/// User stacks, and what it takes to read them.
#[derive(Default)]
pub struct User {
    /// The stacks; their frames are [`words`].
    pub stacks: Stacks,
    /// The files that they have frames in.
    pub binaries: Binaries,
    /// The names of their frames.
    pub names: Names,
}

impl User {
    /// These stacks, to be named by what [`prime`](Self::prime) finds.
    pub fn new(stacks: Stacks, binaries: Binaries, names: Names) -> Self {
        Self {
            stacks,
            binaries,
            names,
        }
    }

    /// Looks all frames up, so that [`frames`](Self::frames) knows. `progress` is called now and then
    /// with the number of frames that are done.
    pub fn prime(&mut self, progress: &mut dyn FnMut(u64)) {
        self.look_up(|_| true, progress);
        // What a signal interrupted is no return address, but that is known only now.
        self.look_up(|frame| frame.exact, progress);
    }

    /// Looks frames up that are `wanted`.
    fn look_up(&mut self, wanted: impl Fn(&WhichFrame) -> bool, progress: &mut dyn FnMut(u64)) {
        let mut frames = FrameSet::default();
        for stack in self.stacks.iter() {
            frames.extend(self.stack(stack.ips).filter(&wanted));
        }
        self.names
            .prime(frames.into_iter(), &self.binaries, progress);
    }

    /// The frames of a stack, innermost first.
    pub fn stack<'a>(&'a self, words: &'a [u64]) -> impl Iterator<Item = WhichFrame> + use<'a> {
        let mut exact = true;
        words::frames(words).0.map(move |at| {
            let frame = WhichFrame { at, exact };
            exact = self.names.is_signal_return(frame);
            frame
        })
    }

    /// How a stack ends.
    pub fn end(&self, words: &[u64]) -> End {
        words::frames(words).1
    }

    /// The frames at a place, innermost first: those that were inlined, and the last one.
    pub fn frames(&self, which: WhichFrame) -> impl Iterator<Item = UserFrame<'_>> {
        let named = self.names.frames(which);
        let frame = move |named| UserFrame {
            at: which.at,
            named,
            binaries: &self.binaries,
        };
        let unnamed = named.is_empty().then(move || frame(None));
        let named = named.iter().map(move |named| frame(Some(named)));
        named.chain(unnamed)
    }
}

/// A frame of a user stack, as people read it.
#[derive(Clone, Copy)]
pub struct UserFrame<'a> {
    /// Where it is.
    pub at: At,
    /// What is there, if that is known.
    pub named: Option<&'a Named>,
    binaries: &'a Binaries,
}

impl fmt::Debug for UserFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl<'a> UserFrame<'a> {
    /// The line of source code that made the call.
    pub fn source(&self) -> Option<&'a SourceLine> {
        self.named?.source.as_ref()
    }

    /// The name of the file that it is in.
    pub fn file(&self) -> Option<String> {
        match self.at {
            At::File { index, .. } => Some(self.binaries.name(index)),
            At::Address { .. } => None,
        }
    }

    /// What it is, for colours.
    pub fn kind(&self) -> Kind {
        match self.named {
            Some(_) => Kind::User,
            None => Kind::UserAddress,
        }
    }

    /// The name of the function.
    pub fn function(&self) -> Option<&'a str> {
        // Debug information may know that a function was inlined, and not its name.
        let name = |named: &'a Named| named.function.as_deref().unwrap_or("?");
        self.named.map(name)
    }

    /// The name without an offset, or else the file and the offset in it, or else the address.
    pub fn plain(&self) -> String {
        match self.function() {
            Some(function) => function.to_owned(),
            None => self.to_string(),
        }
    }
}

/// `name+0xoffset/0xsize [file]`, as the kernel prints functions of modules; `file+0xoffset`, or the
/// address.
impl fmt::Display for UserFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file();
        if let (Some(named), Some(function)) = (self.named, self.function()) {
            f.write_str(function)?;
            match (named.inlined, named.size) {
                (true, _) => {}
                (false, Some(size)) => write!(f, "+0x{:x}/0x{size:x}", named.offset)?,
                (false, None) => write!(f, "+0x{:x}", named.offset)?,
            }
            if let Some(file) = file {
                write!(f, " [{file}]")?;
            }
            return f.write_str(if named.inlined { " (inlined)" } else { "" });
        }
        match (self.at, file) {
            (At::File { offset, .. }, Some(file)) => write!(f, "{file}+0x{offset:x}"),
            (At::File { offset, .. }, None) => write!(f, "0x{offset:x}"),
            (At::Address { address, process }, _) => match process {
                Some(process) => write!(f, "0x{address:x} (process {})", process.tgid),
                None => write!(f, "0x{address:x}"),
            },
        }
    }
}
